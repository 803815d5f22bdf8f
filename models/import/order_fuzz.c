// libFuzzer target for GPTQ's group indices, which are foreign numbers that select scales. The first byte is
// the group size in units of 8, the second the number of groups; indices of four bytes follow. Columns that
// can be sorted must be sorted completely, and dequantize to the same values in another order.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "models/import/packing.h"

#define ROWS 8
#define MOST 1024  // columns

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static uint8_t codes[MOST / 8 * ROWS * 4], scales[MOST / 8 * ROWS * 2], zeros[MOST / 8 * 4];
  static float plain[MOST], sorted[MOST];
  if (size < 2) return 0;
  const int64_t group = 8 * (1 + data[0] % 16), groups = 1 + data[1] % 16, columns = group * groups;
  if (columns > MOST || size - 2 < 4 * (size_t)columns) return 0;
  for (size_t i = 0; i < sizeof codes; ++i) codes[i] = (uint8_t)(i * 37 + 11);
  for (size_t i = 0; i < sizeof scales; ++i) scales[i] = (uint8_t)(i % 2 ? 0x30 + i % 8 : i * 29);
  for (size_t i = 0; i < sizeof zeros; ++i) zeros[i] = (uint8_t)(i * 101);
  const mlx_tensor_t parts[] = {{.dtype = MLX_I32, .data = codes},
                                {.dtype = MLX_F16, .data = scales},
                                {.dtype = MLX_I32, .data = zeros},
                                {.dtype = MLX_I32, .data = data + 2}};
  mlx_packing_t p = {.kind = MLX_PACKED_GPTQ,
                     .bits = 4,
                     .rows = ROWS,
                     .columns = columns,
                     .group = group,
                     .parts = {&parts[0], &parts[1], &parts[2], &parts[3]}};
  int64_t starts[16];
  int32_t order[MOST];
  bool seen[MOST] = {false};
  if (!mlx_packing_sort_columns(&p, starts, order)) return 0;
  mlx_packing_dequantize(&p, ROWS - 1, 1, plain);
  p.order = order;
  mlx_packing_dequantize(&p, ROWS - 1, 1, sorted);
  if (!mlx_packing_has_codes(&p)) abort();
  for (int64_t i = 0; i < columns; ++i) {
    if (order[i] < 0 || order[i] >= columns || seen[order[i]]) abort();
    if (memcmp(&sorted[i], &plain[order[i]], sizeof *plain)) abort();
    seen[order[i]] = true;
  }
  return 0;
}
