// Reads arbitrary bytes as a tar archive, as given and with repaired header checksums.
#include "artifact/tar.h"

#include <string.h>

#include "base/file.h"
#include "base/memory.h"

// A member must be inside the archive and have a safe name. A header written for that name must read back the
// same.
static void check_member(const mlx_tar_member_t *member, size_t size) {
  uint8_t bytes[3 * MLX_TAR_BLOCK] = {0};
  mlx_tar_t again = {.name = "again.tar", .bytes = bytes, .size = sizeof bytes};
  mlx_tar_member_t read;
  bool found = false;
  if (!mlx_is_safe_path(member->name) || member->offset > size || member->size > size - member->offset)
    __builtin_trap();
  mlx_status_t status = mlx_tar_header(member->name, 0, bytes);
  if (!status && (mlx_tar_next(&again, &read, &found) || !found || strcmp(read.name, member->name)))
    __builtin_trap();
  mlx_status_free(status);
}

static void read_all(const uint8_t *data, size_t size) {
  mlx_tar_t tar = {.name = "fuzz.tar", .bytes = data, .size = size};
  mlx_tar_member_t member;
  bool found = true;
  mlx_status_t status = NULL;
  while (!status && found) {
    status = mlx_tar_next(&tar, &member, &found);
    if (!status && found) check_member(&member, size);
  }
  mlx_status_free(status);
}

// Sets the right checksum in every header, so that the fuzzer reaches the code behind the checksum test.
static void repair_sums(uint8_t *bytes, size_t size) {
  for (size_t at = 0; at + MLX_TAR_BLOCK <= size; at += MLX_TAR_BLOCK) {
    uint8_t *block = bytes + at;
    unsigned sum = 0;
    if (memcmp(block + 257, "ustar", 5)) continue;
    memset(block + 148, ' ', 8);
    for (int i = 0; i < MLX_TAR_BLOCK; ++i) sum += block[i];
    for (int i = 153; i >= 148; --i, sum >>= 3) block[i] = (uint8_t)('0' + (sum & 7));
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  uint8_t *copy;
  read_all(data, size);
  if (!size || mlx_alloc(size, 1, &copy)) return 0;
  memcpy(copy, data, size);
  repair_sums(copy, size);
  read_all(copy, size);
  mlx_free(copy);
  return 0;
}
