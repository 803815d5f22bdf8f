// One call of the CPU network kernel: its operands, and the control state that its workgroups share.
#ifndef MLXCEL_KERNELS_CPU_CALL_H_
#define MLXCEL_KERNELS_CPU_CALL_H_

#include <stdbool.h>

#include "layout.h"
#include "tiles.h"
#include "vector.h"

#define IDLE UINT64_MAX  // ticket value while no call runs; the scratch tensor is initialized to it
#define CACHE_LINE_ALIGNED _Alignas(64)  // starts a cache line

// State that all workgroups of a call share. The scratch tensor is initialized to all ones, so counters start
// at -1: |present|, |returned|, |strain| and |calm| hold their count less one.
typedef struct control {
  CACHE_LINE_ALIGNED uint64_t ticket;      // phase << 32 | next item
  CACHE_LINE_ALIGNED uint32_t unfinished;  // items of the phase that are not completed
  CACHE_LINE_ALIGNED uint32_t present;     // workgroups that run now, less one
  uint32_t returned;                       // workgroups that have returned from this call, less one
  uint32_t tokens, active;  // tokens of this step, and active sequences: those that have tokens in it
  CACHE_LINE_ALIGNED uint32_t closed;  // 1: a thread left this call, and no workgroup may join it any more
  uint32_t remaining;                  // workgroups that ran on after the last one left, less one
  // From call to call. Only the last workgroup that returns from a call writes them.
  uint32_t limit;     // most workgroups that may run at the same time
  uint32_t strain;    // grows with each call that a thread left, shrinks with each other call; less one
  uint32_t calm;      // calls since the limit changed that no thread left, less one
  uint32_t patience;  // calm calls before the limit is raised; UINT32_MAX before the first change
} control_t;
_Static_assert(sizeof(control_t) <= 4 * MLX_CPU_CONTROL_WORDS, "control_t is at the start of the scratch");

typedef struct call {
  const mlx_network_t *n;
  const float *frequencies;
  const mlx_network_layer_t *layers;
  const uint8_t *weights;
  const int32_t *tokens, *start, *count, *pages;
  uint8_t *kv;
  int32_t *token, *position, *result;
  float *logits;
  control_t *control;
  // The five arrays of mlx_network_scratch_t.slots.
  int32_t *sequence_of, *position_of, *id_of, *last_of, *active_sequences;
  float *rope_table, *x, *h, *qkv, *attended, *act, *best;
  uint16_t *h_parts, *act_parts;
  int width;  // T of prefill_T; 0 for decode
  uint32_t steps, workgroups;
} call_t;

INLINE int min_int(int a, int b) { return a < b ? a : b; }
INLINE int divide_up(int a, int b) { return (a + b - 1) / b; }
INLINE int q_width(const mlx_network_t *n) { return n->heads * n->head_dim; }
INLINE int kv_width(const mlx_network_t *n) { return n->kv_heads * n->head_dim; }
INLINE int qkv_width(const mlx_network_t *n) { return q_width(n) + 2 * kv_width(n); }

// True if activations with |columns| columns are multiplied on AMX tiles. The phase that produces them then
// stores their bf16 parts too.
INLINE bool is_tiled(const call_t *c, int columns) {
  return HAS_TILES && c->n->tiles && c->control->tokens >= MIN_TILED_TOKENS && columns % MLX_PANEL_BLOCK == 0;
}
// bf16 values in the parts of 16 tokens.
INLINE int64_t parts_stride(int columns) { return (int64_t)columns / MLX_PANEL_BLOCK * A_BLOCK; }

// Stores the parts of 16 columns of a token, starting at |column|.
INLINE void store_parts(uint16_t *parts, v16 values, int token, int columns, int column) {
  uint16_t *tiles =
      parts + token / 16 * parts_stride(columns) + (int64_t)(column / MLX_PANEL_BLOCK) * A_BLOCK;
  split_columns(values, tiles + token % 16 * MLX_PANEL_BLOCK + column % MLX_PANEL_BLOCK);
}

#endif  // MLXCEL_KERNELS_CPU_CALL_H_
