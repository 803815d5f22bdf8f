// Parses arbitrary bytes as a log-probability file and checks every accepted row.
#include "artifact/logprobs.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  mlx_logprobs_t file;
  mlx_status_t status = mlx_logprobs_read("fuzz", data, size, &file);
  float *row = NULL;
  if (!status) status = mlx_alloc((size_t)file.header.vocab, sizeof *row, &row);
  for (size_t i = 0; !status && i < file.row_count; ++i) {
    status = mlx_logprobs_row(&file, i, row);
    for (int64_t j = 0; !status && j < file.header.vocab; ++j) {
      if (isnan(row[j]) || row[j] > 0.01f) abort();
    }
  }
  mlx_free(row);
  mlx_status_free(status);
  return 0;
}
