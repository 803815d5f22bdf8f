// One call of the CPU network kernel: its operands, and the control state that its workgroups share.
#ifndef MLXCEL_KERNELS_CPU_CALL_H_
#define MLXCEL_KERNELS_CPU_CALL_H_

#include <stdbool.h>

#include "../step.h"
#include "layout.h"
#include "network.h"
#include "tile_amx.h"
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
  uint32_t tokens, wanted;                 // tokens of this step, and tokens whose logits are wanted
  uint32_t segments;                       // runs of tokens of one sequence
  uint32_t in_long;                        // rows of long segments: rows 0 to in_long - 1
  uint32_t separate;                       // 1: no row continues another row: all sequences decode
  uint32_t stopped;                        // 1: a burst ends with this step
  CACHE_LINE_ALIGNED uint32_t closed;  // 1: a thread left this call, and no workgroup may join it any more
  uint32_t remaining;                  // workgroups that ran on after the last one left, less one
  // From call to call. Only the last workgroup that returns from a call writes them.
  uint32_t limit;     // most workgroups that may run at the same time
  uint32_t strain;    // grows with each call that a thread left, shrinks with each other call; less one
  uint32_t calm;      // calls since the limit changed that no thread left, less one
  uint32_t patience;  // calm calls before the limit is raised; UINT32_MAX before the first change
} control_t;
_Static_assert(sizeof(control_t) <= 4 * MLX_CPU_CONTROL_WORDS, "control_t is at the start of the scratch");

// Sizes of the arguments, so that wrong input never leads out of bounds.
typedef struct limits {
  int64_t batch, history;           // words
  int64_t kv;                       // units: see mlx_kv_unit
  int64_t logits, hidden, results;  // rows
} limits_t;

// Pages of one kind (step.h).
enum { PAGES, WINDOW_PAGES, PAGE_KINDS };
typedef struct pages {
  const int32_t *table;  // [slot_count][slot_pages]
  int count;
  int64_t bytes;   // of one page
  uint8_t *first;  // page 0
} pages_t;

typedef struct call {
  const mlx_program_t *n;
  const mlx_phase_t *phases;
  const mlx_instruction_t *code;
  const float *floats;  // of the program
  const uint8_t *weights;
  // Arguments (step.h).
  const int32_t *batch;
  int32_t *history, *results;
  uint8_t *kv;
  float *logits, *hidden;
  limits_t limits;
  control_t *control;
  float *scratch;
  // Of each row. A row is a token; the rows of long segments come first.
  int32_t *slot_of, *position_of, *id_of, *type_of;
  int32_t *end_of;               // position after the last one of its segment
  int32_t *page_of[PAGE_KINDS];  // pages that take its keys and values
  int32_t *row_of;               // [capacity] row of token i of the batch
  int32_t *segment_at;           // [capacity] first row of segment i; ascending
  int32_t *wanted_of;            // [MLX_CPU_MAX_WANTED] row of wanted token i
  float *best;
  // Checked fields of the header of |batch|.
  pages_t pages[PAGE_KINDS];
  pages_t states;  // |table|: [slot_count][2]
  int slot_count, slot_pages, history_width;
  bool is_burst;
  uint32_t steps, workgroups;
  int32_t *token_of;  // [capacity] token of the batch that a row is
} call_t;

INLINE int min_int(int a, int b) { return a < b ? a : b; }
INLINE int max_int(int a, int b) { return a > b ? a : b; }
INLINE int divide_up(int a, int b) { return (a + b - 1) / b; }
// |value|, or the nearest of 0 and |count| - 1.
INLINE int clamp_index(int64_t value, int count) {
  return value < 0 || count < 1 ? 0 : value < count ? (int)value : count - 1;
}

// Number of rows that an instruction computes in this step.
INLINE int row_count(const call_t *c, const mlx_instruction_t *i) {
  return (int)(i->rows == MLX_ROWS_TOKENS ? c->control->tokens : c->control->wanted);
}
// Number of them in long segments. They come first.
INLINE int long_rows(const call_t *c, const mlx_instruction_t *i) {
  return i->rows == MLX_ROWS_TOKENS ? (int)c->control->in_long : 0;
}
INLINE float *row_at(const call_t *c, const mlx_program_buffer_t *buffer, int64_t row) {
  return c->scratch + buffer->at + row * buffer->stride;
}
INLINE bool has_weight(const mlx_program_weight_t *weight) { return weight->at != MLX_NO_WEIGHT; }
INLINE const float *vector_at(const call_t *c, const mlx_program_weight_t *weight) {
  return (const float *)(const void *)(c->weights + weight->at);
}

// Whether the bf16 parts of a row of |i|'s result are stored, and its f32 values.
INLINE bool stores_parts(const call_t *c, const mlx_instruction_t *i, int row) {
  return HAS_TILES && i->out.parts &&
         i->out.stores & (row < long_rows(c, i) ? MLX_STORE_LONG_PARTS : MLX_STORE_SHORT_PARTS);
}
INLINE bool stores_plain(const call_t *c, const mlx_instruction_t *i, int row) {
  return !HAS_TILES || !i->out.stores ||
         i->out.stores & (row < long_rows(c, i) ? MLX_STORE_LONG_PLAIN : MLX_STORE_SHORT_PLAIN);
}
INLINE uint16_t *parts_of_buffer(const call_t *c, const mlx_program_buffer_t *buffer) {
  return (uint16_t *)(void *)(c->scratch + buffer->parts);
}
// bf16 values in the parts of 16 tokens.
INLINE int64_t parts_stride(int columns) { return (int64_t)columns / MLX_PANEL_BLOCK * A_BLOCK; }

// Stores the parts of 16 columns of a row, starting at |column|. The buffer has |columns| columns.
INLINE void store_parts(uint16_t *parts, v16 values, int row, int columns, int column) {
  uint16_t *tiles = parts + row / 16 * parts_stride(columns) + (int64_t)(column / MLX_PANEL_BLOCK) * A_BLOCK;
  split_columns(values, tiles + row % 16 * MLX_PANEL_BLOCK + column % MLX_PANEL_BLOCK);
}
// Stores the parts of a whole row of |i|'s result, from its f32 values.
INLINE void store_row_parts(const call_t *c, const mlx_instruction_t *i, int row, int columns) {
  if (!stores_parts(c, i, row)) return;
  const float *values = row_at(c, &i->out, row);
  for (int k = 0; k < columns; k += 16)
    store_parts(parts_of_buffer(c, &i->out), v_load(values + k), row, columns, k);
}

// The first |count| lanes.
INLINE void store_some(float *to, v16 values, int count) {
  float lanes[16];
  if (count >= 16) {
    v_store(to, values);
    return;
  }
  v_store(lanes, values);
  for (int i = 0; i < count; ++i) to[i] = lanes[i];
}
INLINE v16 load_some(const float *from, int count) {
  float lanes[16];
  if (count >= 16) return v_load(from);
  for (int i = 0; i < 16; ++i) lanes[i] = i < count ? from[i] : 0;
  return v_load(lanes);
}

// The call that arguments describe. False if |batch| does not fit the other arguments.
bool mlx_network_call(const mlx_network_arguments_t *arguments, call_t *out);

#endif  // MLXCEL_KERNELS_CPU_CALL_H_
