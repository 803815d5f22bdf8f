// What the compiler tells the CPU's kernel (network.c), and where both find things: shared by them, so it is
// plain C.
//
// Matrices lie in panels of 16 rows: what the 16 rows have of one column, or of one block of 32 columns, is
// together, so that a vector register holds one column of 16 rows. Rows past the last one are zero. In a
// block of a packed format:
//
//   F32, F16, BF16  a column: 16 numbers
//   Q4_0            16 scales (f16), then four times 16 words, each with the codes of 8 columns of one row,
//   the first column lowest Q4_1            16 scales, 16 offsets (f16), then as Q4_0 Q8_0            16
//   scales (f16), then for each column 16 codes of a byte Q4_WIDE         as Q4_1, scales and offsets in f32
//   Q8_WIDE         16 scales, 16 offsets (f32), then for each column 16 codes of a byte without sign
//   Q8_HALVES       16 scales (f32) of the first 16 columns, 16 of the others, then as Q8_0
//   Q8_1            as Q8_WIDE, scales and offsets in f16
//   Q4_BF16         as Q4_1, scales and offsets in bf16
//   Q8_BF16         as Q8_WIDE, scales and offsets in bf16
//   Q4_K            of each 256 columns 16 scales, 16 offsets (f16), which the integers of their 8 blocks
//   multiply: each has 16 integers of
//                   a byte for the scale, 16 for the offset, then as Q4_1
//   Q5_K            the same, then as Q8_WIDE
//   Q6_K            of each 256 columns 16 scales (f16); a block has 16 signed bytes for the scale of its
//   first 16 columns, 16 for the others',
//                   then as Q8_0
//   Q2_K            as Q4_K with twice the integers: scales of the first 16 columns and of the others,
//   offsets likewise
//
// panel_format.h has the same as a table; graph/dtype.c says which format each type of a file becomes.
//
// KV pool: [layers][pool pages][KV heads] of a key page [head_dim][16 positions] and a value page [16
// positions][head_dim].
#ifndef MLXCEL_KERNELS_CPU_NETWORK_H_
#define MLXCEL_KERNELS_CPU_NETWORK_H_

#include <stdint.h>

#include "panel_format.h"

#define MLX_CPU_PAGE 16        // positions in a page: the kernel's vectors are as wide
#define MLX_CPU_WORKGROUPS 64  // threads that one call can use
#define MLX_CPU_MOST_COLUMNS 65536
#define MLX_CPU_CONTROL_WORDS 128  // of the scratch, before everything else

// A weight: bytes from the archive's start, and for a matrix its format. Norms are plain f32.
typedef struct mlx_network_weight {
  uint64_t at;
  int32_t format, padding;
} mlx_network_weight_t;

typedef struct mlx_network_layer {
  mlx_network_weight_t attn_norm, q, k, v, o, mlp_norm, gate, up, down;
} mlx_network_layer_t;

typedef struct mlx_network {
  int32_t hidden, ffn, heads, kv_heads, head_dim, layers, vocab;
  int32_t sequences, sequence_pages, pool_pages;
  int32_t most_tokens;  // of all rows together, in one call
  int32_t kv_format;    // F32, F16 or BF16
  int32_t tiles;        // 1: the kernel multiplies tiles of parts, for which the scratch has room
  int32_t padding;
  float norm_eps, scale;
  mlx_network_weight_t embed, final_norm, head;
  // then float frequencies[head_dim / 2 rounded up to even], then mlx_network_layer_t [layers]
} mlx_network_t;

// Where the scratch, an i32 tensor, has what: in words.
typedef struct mlx_network_scratch {
  int64_t slots;  // [5][most_tokens] of each token its row, position and id; of each row that takes part its
                  // last token and itself
  int64_t turns;  // [most_tokens][head_dim] cosines, then sines
  int64_t x, h;   // [most_tokens][hidden] the residual stream; what a norm made of it
  int64_t qkv;    // [most_tokens][(heads + 2 kv_heads) * head_dim]
  int64_t attended;   // [most_tokens][heads * head_dim]
  int64_t act;        // [most_tokens][ffn]
  int64_t h_parts;    // [most_tokens rounded up to 32] of what h or attended has, cut into parts (tiles.h)
  int64_t act_parts;  // and of act
  int64_t best;       // [rows][panels of the head][2] largest logit, and its token
  int64_t words;      // of all
} mlx_network_scratch_t;

static inline int64_t mlx_round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// Words of activations cut into three parts of 16 bits: of 16 tokens, 768 for each block.
static inline int64_t mlx_parts_words(int64_t tokens, int64_t columns) {
  return mlx_round_up(tokens, 32) / 16 * (mlx_round_up(columns, MLX_PANEL_BLOCK) / MLX_PANEL_BLOCK) * 768;
}

static inline mlx_network_scratch_t mlx_network_scratch(const mlx_network_t *n) {
  const int64_t tokens = n->most_tokens, hd = n->head_dim;
  mlx_network_scratch_t s;
  s.slots = MLX_CPU_CONTROL_WORDS;
  s.turns = mlx_round_up(s.slots + 5 * tokens, 16);
  s.x = mlx_round_up(s.turns + tokens * hd, 16);
  s.h = mlx_round_up(s.x + tokens * n->hidden, 16);
  s.qkv = mlx_round_up(s.h + tokens * n->hidden, 16);
  s.attended = mlx_round_up(s.qkv + tokens * (n->heads + 2 * n->kv_heads) * hd, 16);
  s.act = mlx_round_up(s.attended + tokens * n->heads * hd, 16);
  const int64_t attended = (int64_t)n->heads * hd, widest = n->hidden > attended ? n->hidden : attended;
  s.h_parts = mlx_round_up(s.act + tokens * n->ffn, 16);
  s.act_parts = s.h_parts + (n->tiles ? mlx_parts_words(tokens, widest) : 0);
  s.best = s.act_parts + (n->tiles ? mlx_parts_words(tokens, n->ffn) : 0);
  s.words =
      mlx_round_up(s.best + 2 * n->sequences * mlx_round_up(n->vocab, MLX_PANEL_ROWS) / MLX_PANEL_ROWS, 16);
  return s;
}

static inline int64_t mlx_network_frequency_words(const mlx_network_t *n) {
  return mlx_round_up(n->head_dim / 2, 2);
}

#endif  // MLXCEL_KERNELS_CPU_NETWORK_H_
