// Loads 16-bit words from unaligned little-endian bytes, and converts f16 to f32.
#ifndef MLXCEL_GRAPH_HALF_H_
#define MLXCEL_GRAPH_HALF_H_

#include <stdint.h>
#include <string.h>

static inline uint16_t mlx_load_u16(const uint8_t *bytes) { return (uint16_t)(bytes[0] | bytes[1] << 8); }

static inline float mlx_float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Infinities keep their sign. NaNs keep their payload and are not made quiet, as in numpy.
static inline float mlx_f16_to_f32(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7fff;
  if (magnitude >= 0x7c00) return mlx_float_of_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  if (magnitude >= 0x0400)
    return mlx_float_of_bits(sign | ((magnitude << 13) + (112u << 23)));  // 112: difference of biases
  float value = (float)magnitude * 0x1p-24f;
  return sign ? -value : value;
}

static inline float mlx_load_f16(const uint8_t *bytes) { return mlx_f16_to_f32(mlx_load_u16(bytes)); }

#endif  // MLXCEL_GRAPH_HALF_H_
