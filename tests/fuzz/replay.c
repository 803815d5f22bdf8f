// Runs a fuzz target without libFuzzer on every committed case of a folder, and on truncated and bit-flipped
// copies of each case. The few thousand inputs are the same on every run. While a case whose name begins with
// "valid_" runs unchanged, $MLXCEL_FUZZ_VALID is set: a target may require that it is accepted.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t next_random(uint64_t *state) {  // splitmix64
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

typedef struct replay {
  const char *folder;
  int cases;
} replay_t;

static mlx_status_t replay_case(void *user, const char *name) {
  replay_t *replay = user;
  char *path, *bytes = NULL, *copy = NULL;
  size_t size = 0;
  MLX_TRY(mlx_join_path(replay->folder, name, &path));
  mlx_status_t status = mlx_read_file(path, 1 << 20, &bytes, &size);
  mlx_free(path);
  if (!status) status = mlx_alloc(size + 1, 1, &copy);
  if (!strncmp(name, "valid_", 6)) setenv("MLXCEL_FUZZ_VALID", "1", 1);
  if (!status) LLVMFuzzerTestOneInput((const uint8_t *)bytes, size);
  unsetenv("MLXCEL_FUZZ_VALID");
  uint64_t state = size;
  for (int i = 0; !status && size && i < 400; ++i) {
    memcpy(copy, bytes, size);
    for (uint64_t flips = next_random(&state) % 4; flips; --flips)
      copy[next_random(&state) % size] ^= (char)(1 << next_random(&state) % 8);
    LLVMFuzzerTestOneInput((const uint8_t *)copy, i % 4 ? size : next_random(&state) % size);
  }
  mlx_free(copy);
  mlx_free(bytes);
  if (!status) ++replay->cases;
  return status;
}

int main(int argc, char **argv) {
  replay_t replay = {.folder = argc > 1 ? argv[1] : "."};
  mlx_status_t status = mlx_list_dir(replay.folder, replay_case, &replay);
  if (status || !replay.cases) {
    fprintf(stderr, "%s: %s\n", replay.folder, status ? mlx_status_message(status) : "no committed cases");
    mlx_status_free(status);
    return 1;
  }
  fprintf(stderr, "%d cases replayed\n", replay.cases);
  return 0;
}
