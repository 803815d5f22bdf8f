// Vectors of 16 bytes, in the syntax of both gcc and clang. The compilers use SSE2 and NEON for them.
#ifndef MLXCEL_COMPILER_VECTORS_H_
#define MLXCEL_COMPILER_VECTORS_H_

#include <stdint.h>
#include <string.h>

typedef uint8_t mlx_bytes_t __attribute__((vector_size(16)));
typedef uint16_t mlx_halves_t __attribute__((vector_size(16)));
typedef uint32_t mlx_words_t __attribute__((vector_size(16)));

// Elements of |a| and |b|, which both have |type|, by their index in |a| followed by |b|.
#ifdef __clang__
#define MLX_SHUFFLE(type, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MLX_SHUFFLE(type, a, b, ...) __builtin_shuffle(a, b, (type){__VA_ARGS__})
#endif

static inline mlx_bytes_t mlx_load_bytes(const uint8_t *from) {
  mlx_bytes_t bytes;
  memcpy(&bytes, from, sizeof bytes);
  return bytes;
}
static inline void mlx_store_bytes(uint8_t *to, mlx_bytes_t bytes) { memcpy(to, &bytes, sizeof bytes); }

// a[0], b[0], a[1], b[1], ... from the low or the high half of both.
static inline mlx_bytes_t mlx_zip_low(mlx_bytes_t a, mlx_bytes_t b) {
  return MLX_SHUFFLE(mlx_bytes_t, a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
static inline mlx_bytes_t mlx_zip_high(mlx_bytes_t a, mlx_bytes_t b) {
  return MLX_SHUFFLE(mlx_bytes_t, a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

#endif  // MLXCEL_COMPILER_VECTORS_H_
