// Activation vectors, prepared for multiplication with quantized panels. CPUs with AVX-512 VNNI, VBMI and AMX
// multiply in integers; other CPUs multiply in f32 and need only the sum of each block.
//
// Integer path: a block of 32 activations becomes 32 integers of 24 bits that share a power of two. The
// rounding error is at most 2^-23 of the block's largest value. That is the error of a sum in f32, whose
// every addition rounds to 24 bits. So this is not activation quantization: the accuracy is that of f32. An
// integer has three digits of a byte, each from -128 to 127. Products of codes and digits are summed exactly.
// At the end of a block the sums become f32 and are scaled. One VNNI instruction multiplies four columns of
// 16 rows with a digit. Three of them replace eight f32 instructions, and no code has to be converted to
// float first.
//
// Digits are stored in the order in which the instruction needs them, digit by digit. For 8 columns: columns
// 0 2 4 6, then columns 5 7 1 3. So a u32 with 8 codes of 4 bits needs one mask for the first four, and a
// rotation by 20 bits and a mask for the others.
//
// panels_by_vectors_integer.c multiplies several vectors at once, on AMX tiles. There a digit is a bf16
// number.
#ifndef MLXCEL_KERNELS_CPU_VECTORS_H_
#define MLXCEL_KERNELS_CPU_VECTORS_H_

#include <stdbool.h>

#include "layout.h"
#include "vector.h"

#if HAS_INTEGERS
#define DIGITS 3
#define MAX_VECTORS 64    // activation vectors that are prepared together
#define MAX_ENTRIES 3072  // prepared blocks, of all vectors together
#else
#define MAX_VECTORS 16
#define MAX_ENTRIES 2048
#endif
#define MAX_BLOCKS (MLX_CPU_MAX_COLUMNS / MLX_PANEL_BLOCK)  // of one vector
#define GROUP_VECTORS 16                                    // rows of a tile
_Static_assert(MAX_BLOCKS <= MAX_ENTRIES, "a vector of MLX_CPU_MAX_COLUMNS can be prepared");

// Blocks |first| to |first| + |blocks| - 1 of |count| activation vectors. Several vectors are divided into
// groups of |group| vectors. Entries are in the order of entry_of().
typedef struct vectors {
  const float *x[MAX_VECTORS];
  int count, group, first, blocks;
  bool quantized;  // the arrays below are filled in: the vectors can be multiplied with quantized panels
#if HAS_INTEGERS
  union {
    struct {
      int8_t digits[MAX_BLOCKS][DIGITS * MLX_PANEL_BLOCK];  // [digit][8 groups of 4 columns]
      int32_t digit_sums[MAX_BLOCKS][2][4];  // per digit: over columns 0-15, and over columns 16-31
      float power[MAX_BLOCKS];               // power of two that scales the integers back to activations
    } one;
    // Several vectors, per group and block: [digit][vector][32 columns] in bf16, scaled to activations.
    _Alignas(64) uint16_t tiles[MAX_ENTRIES * DIGITS * MLX_PANEL_BLOCK];
  };
#endif
  float sums[MAX_ENTRIES];  // sum of each block, for the offsets
#if !HAS_INTEGERS
  float placed[MLX_CPU_MAX_COLUMNS];  // of a single vector: place_columns()
#endif
} vectors_t;

// Entry of block |block| of the first vector of group |nth|. The other vectors of the group follow.
INLINE int64_t entry_of(const vectors_t *x, int block, int nth) {
  return ((int64_t)nth * x->blocks + block) * x->group;
}

// Groups of |count| vectors, of equal size.
INLINE int group_count(int count) { return (count + GROUP_VECTORS - 1) / GROUP_VECTORS; }
INLINE int group_size(int count) { return (count + group_count(count) - 1) / group_count(count); }
// Blocks of |count| vectors that can be prepared together: whole super-blocks.
INLINE int prepared_blocks(int count) {
  return MAX_ENTRIES / (group_count(count) * group_size(count)) / MLX_PANEL_GROUP * MLX_PANEL_GROUP;
}

// Prepares blocks |first| to |first| + |blocks| - 1 of the |count| vectors |x|, which |out| keeps pointers
// to. |blocks| is at most prepared_blocks(count). For plain panels |quantized| is false.
void mlx_prepare_vectors(const float *const *x, int count, int first, int blocks, bool quantized,
                         vectors_t *out);

#endif  // MLXCEL_KERNELS_CPU_VECTORS_H_
