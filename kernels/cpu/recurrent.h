// Instructions with a recurrent state: a segment reads and replaces the state of its sequence (../step.h).
#ifndef MLXCEL_KERNELS_CPU_RECURRENT_H_
#define MLXCEL_KERNELS_CPU_RECURRENT_H_

#include "activation_functions.h"
#include "call.h"

// The rows of one segment, and the part of the state of its sequence that an instruction keeps.
typedef struct segment {
  int first, count;   // rows
  const float *from;  // NULL: the state is zero
  float *to;          // may equal |from|
} segment_t;

INLINE float *state_at(const call_t *c, const mlx_instruction_t *i, int number) {
  const int page = number < 0 || number >= c->states.count ? 0 : number;
  return (float *)(void *)(c->states.first + page * c->states.bytes + i->kv_at);
}

// Segment |nth| of step |step| of a call.
INLINE segment_t segment_of(const call_t *c, const mlx_instruction_t *i, int nth, int step) {
  const int first = c->segment_at[nth],
            end = nth + 1 < (int)c->control->segments ? c->segment_at[nth + 1] : (int)c->control->tokens;
  // The position of padding is clamped to 0, and so is its page: it has no state.
  const int32_t *states = c->states.table + 2 * c->slot_of[first];
  const bool padding = !c->page_of[PAGES][first];
  float *to = state_at(c, i, padding ? 0 : states[1]);
  const float *from = step ? to : state_at(c, i, padding ? 0 : states[0]);
  return (segment_t){first, end - first, c->position_of[first] && !padding ? from : 0, to};
}

#define STATE_COLUMNS 64  // of an item with a state per head: the state of a block stays in the first cache

INLINE float first_lane(v16 x) {
  float lanes[16];
  v_store(lanes, x);
  return lanes[0];
}
INLINE float exponential(float x) { return first_lane(v_exp(v_all(x))); }

// log(1 + e^x)
INLINE float softplus(float x) { return x > 20 ? x : (float)natural_log(1 + (double)exponential(x)); }

// Copies |count| columns of the state of a head between [dim][width] and [blocks][dim][16].
INLINE void load_state(const float *from, int dim, int width, int count, float *to) {
  for (int k = 0; k < count; k += 16) {
    for (int r = 0; r < dim; ++r)
      v_store(to + (k * dim + 16 * r), from ? load_some(from + (int64_t)r * width + k, count - k) : v_zero());
  }
}
INLINE void store_state(const float *from, int dim, int width, int count, float *to) {
  for (int k = 0; k < count; k += 16) {
    for (int r = 0; r < dim; ++r)
      store_some(to + (int64_t)r * width + k, v_load(from + (k * dim + 16 * r)), count - k);
  }
}

// Items: a block of channels of a segment.
int mlx_convolve_items(const call_t *c, const mlx_instruction_t *i);                     // convolve.c
void mlx_run_convolve(const call_t *c, const mlx_instruction_t *i, int item, int step);  // convolve.c
// Items: a block of columns of a value head of a segment.
int mlx_delta_items(const call_t *c, const mlx_instruction_t *i);                     // delta.c
void mlx_run_delta(const call_t *c, const mlx_instruction_t *i, int item, int step);  // delta.c
// Items: a block of columns of a head of a segment.
int mlx_scan_items(const call_t *c, const mlx_instruction_t *i);                     // scan.c
void mlx_run_scan(const call_t *c, const mlx_instruction_t *i, int item, int step);  // scan.c

#endif  // MLXCEL_KERNELS_CPU_RECURRENT_H_
