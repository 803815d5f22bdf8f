// Memory layout of the CPU network kernel (network.c). Plain C, because compiler/ includes it to write the
// data that the kernel reads: weight panels, the KV pool, the scratch tensor and the network description.
//
// A matrix is stored as panels of 16 rows. The 16 values of one column, or the codes of one block of 32
// columns, are contiguous, so that one vector register holds one column of 16 rows. Rows past the last row of
// the matrix are zero. Contents of a panel, per column or per block of 32 columns:
//
//   F32, F16, BF16  one column: 16 values
//   Q4_0            16 scales (f16), then 4 times 16 u32: 8 codes of 4 bits of one row, first column lowest
//   Q4_1            16 scales and 16 offsets (f16), then codes as in Q4_0
//   Q8_0            16 scales (f16), then per column 16 signed bytes
//   Q4_WIDE         as Q4_1, with scales and offsets in f32
//   Q8_WIDE         16 scales and 16 offsets (f32), then per column 16 unsigned bytes
//   Q8_HALVES       16 scales (f32) for columns 0-15, 16 scales for columns 16-31, then codes as in Q8_0
//   Q8_1            as Q8_WIDE, with scales and offsets in f16
//   Q4_BF16         as Q4_1, with scales and offsets in bf16
//   Q8_BF16         as Q8_WIDE, with scales and offsets in bf16
//
// The K formats have super-blocks of 256 columns, which are 8 blocks. A super-block starts with f16 factors.
// The bytes in its blocks multiply these factors to give the scales and offsets of the block:
//
//   Q4_K            super-block: 16 scale and 16 offset factors; block: 16 scale bytes, 16 offset bytes, then
//                   codes as in Q4_1
//   Q5_K            as Q4_K, with codes as in Q8_WIDE
//   Q6_K            super-block: 16 scale factors; block: 16 signed scale bytes for columns 0-15, 16 for
//                   columns 16-31, then codes as in Q8_0
//   Q2_K            as Q4_K, with separate scale bytes and offset bytes for columns 0-15 and columns 16-31
//
// panel_format.h has the same formats as a table; graph/dtype.c maps each file type to a format.
//
// KV pool: [layers][pool pages][KV heads], each a key page [head_dim][16 positions] and a value page
// [16 positions][head_dim].
#ifndef MLXCEL_KERNELS_CPU_LAYOUT_H_
#define MLXCEL_KERNELS_CPU_LAYOUT_H_

#include <stdint.h>

#include "panel_format.h"

#define MLX_CPU_PAGE 16        // positions in a KV page; equals the vector width of the kernel
#define MLX_CPU_WORKGROUPS 64  // workgroups of one call: the maximum number of threads
#define MLX_CPU_MAX_COLUMNS 65536
#define MLX_CPU_CONTROL_WORDS 128  // 32-bit words at the start of the scratch tensor, for control_t

// A weight: byte offset in the archive and, for a matrix, its panel format. Norm weights are plain f32.
typedef struct mlx_network_weight {
  uint64_t at;
  int32_t format, padding;
} mlx_network_weight_t;

typedef struct mlx_network_layer {
  mlx_network_weight_t attn_norm, q, k, v, o, mlp_norm, gate, up, down;
} mlx_network_layer_t;

// The network description: this struct, then float frequencies[head_dim / 2 rounded up to even], then
// mlx_network_layer_t[layers].
typedef struct mlx_network {
  int32_t hidden, ffn, heads, kv_heads, head_dim, layers, vocab;
  int32_t sequences, sequence_pages, pool_pages;
  int32_t max_tokens;  // maximum number of tokens in one call, all sequences together
  int32_t kv_format;   // F32, F16 or BF16
  int32_t tiles;       // 1: use AMX tiles; the scratch tensor then has space for the bf16 parts
  int32_t padding;
  float norm_eps, scale;
  mlx_network_weight_t embed, final_norm, head;
} mlx_network_t;

// Offsets into the scratch tensor (i32), in 32-bit words.
typedef struct mlx_network_scratch {
  int64_t slots;  // [5][max_tokens] per token: sequence, position, token ID; per active sequence: slot of
                  // its last token, sequence
  int64_t rope_table;  // [max_tokens][head_dim] RoPE cosines, then sines
  int64_t x, h;        // [max_tokens][hidden] residual stream; normalized residual stream
  int64_t qkv;         // [max_tokens][(heads + 2 kv_heads) * head_dim]
  int64_t attended;    // [max_tokens][heads * head_dim] attention output
  int64_t act;         // [max_tokens][ffn] SwiGLU output
  int64_t h_parts;     // [max_tokens rounded up to 32] h or attended, split into bf16 parts (tiles.h)
  int64_t act_parts;   // [max_tokens rounded up to 32] act, split into bf16 parts
  int64_t best;        // [sequences][panels of the output head][2] largest logit, its row in the panel
  int64_t words;       // total size
} mlx_network_scratch_t;

static inline int64_t mlx_round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// Size of activations split into three bf16 parts, in 32-bit words: 768 per block of 16 tokens x 32 columns.
static inline int64_t mlx_parts_words(int64_t tokens, int64_t columns) {
  return mlx_round_up(tokens, 32) / 16 * (mlx_round_up(columns, MLX_PANEL_BLOCK) / MLX_PANEL_BLOCK) * 768;
}

static inline mlx_network_scratch_t mlx_network_scratch(const mlx_network_t *n) {
  const int64_t tokens = n->max_tokens, hd = n->head_dim;
  mlx_network_scratch_t s;
  s.slots = MLX_CPU_CONTROL_WORDS;
  s.rope_table = mlx_round_up(s.slots + 5 * tokens, 16);
  s.x = mlx_round_up(s.rope_table + tokens * hd, 16);
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

#endif  // MLXCEL_KERNELS_CPU_LAYOUT_H_
