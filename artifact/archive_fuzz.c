// Parses arbitrary bytes as a weights archive and reads every byte of every entry.
#include "artifact/archive.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  mlx_archive_t archive;
  mlx_status_t status = mlx_archive_parse("fuzz.irpa", data, size, &archive);
  unsigned sum = 0;
  for (size_t i = 0; !status && i < archive.count; ++i) {
    for (size_t j = 0; j < archive.entries[i].size; ++j) sum += archive.entries[i].data[j];
  }
  mlx_archive_clear(&archive);
  mlx_status_free(status);
  return sum == 0xffffffffu;  // uses the sum, so that the compiler keeps the reads
}
