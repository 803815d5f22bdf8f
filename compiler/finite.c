// Checks blocks of weights without branches, then searches a block that fails. See finite.h.
#include "compiler/finite.h"

#include <string.h>

#define BLOCK 4096  // numbers

// An infinite or NaN number has all bits of its exponent set. Adding the lowest bit of the exponent then
// carries into the sign bit, which is cleared before.
static bool block_has_32(const uint8_t *numbers, size_t count) {
  uint32_t carries = 0;
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits;
    memcpy(&bits, numbers + 4 * i, 4);
    carries |= (bits & 0x7fffffffu) + 0x00800000u;
  }
  return carries >> 31;
}

static bool block_has_16(const uint8_t *numbers, size_t count, uint16_t lowest_exponent_bit) {
  uint16_t carries = 0;
  for (size_t i = 0; i < count; ++i) {
    uint16_t bits;
    memcpy(&bits, numbers + 2 * i, 2);
    carries |= (uint16_t)((bits & 0x7fffu) + lowest_exponent_bit);
  }
  return carries >> 15;
}

static bool has_infinite(mlx_dtype_t dtype, const uint8_t *numbers, size_t count) {
  return dtype == MLX_F32 ? block_has_32(numbers, count)
                          : block_has_16(numbers, count, dtype == MLX_BF16 ? 0x0080 : 0x0400);
}

mlx_status_t mlx_check_finite(const char *name, mlx_dtype_t dtype, const void *numbers, size_t count,
                              uint64_t first) {
  if (dtype != MLX_F32 && dtype != MLX_BF16 && dtype != MLX_F16) return NULL;
  const size_t size = dtype == MLX_F32 ? 4 : 2;
  const uint8_t *at = numbers;
  for (size_t done = 0, part; done < count; done += part) {
    part = count - done < BLOCK ? count - done : BLOCK;
    if (!has_infinite(dtype, at + done * size, part)) continue;
    while (!has_infinite(dtype, at + done * size, 1)) ++done;
    float value;
    mlx_dtype_info(dtype)->to_f32(at + done * size, 1, &value);
    return mlx_status_hint(
        mlx_error(MLX_INVALID_INPUT, "tensor '%s' has a value that is not finite: element %llu is %f in %s",
                  name, (unsigned long long)(first + done), (double)value, mlx_dtype_info(dtype)->name),
        "the file is damaged or was converted with overflow: fetch it again; for values over 65504, "
        "compile with --dtype f32");
  }
  return NULL;
}
