// The argument |batch| (step.h): checks its header, and lists the tokens of a step. Every index and offset is
// clamped: invalid input may give wrong results, but never an access out of bounds.
#ifndef MLXCEL_KERNELS_CPU_BATCH_H_
#define MLXCEL_KERNELS_CPU_BATCH_H_

#include "call.h"

// Whether words [at, at + count) are in |batch|.
INLINE bool in_batch(const call_t *c, int64_t at, int64_t count) {
  return at >= 0 && count >= 0 && at <= c->limits.batch && count <= c->limits.batch - at;
}

// An array of |count| words whose offset is the header's word |at|. NULL if it is not in |batch|.
INLINE const int32_t *batch_array(const call_t *c, int at, int64_t count) {
  return in_batch(c, c->batch[at], count) ? c->batch + c->batch[at] : 0;
}

// Positions that a sequence can have.
INLINE int position_count(const call_t *c) { return min_int(c->slot_pages * MLX_CPU_PAGE, c->history_width); }
INLINE int32_t *history_at(const call_t *c, int64_t slot, int position) {
  return c->history + slot * c->history_width + position;
}

// Reads the sizes of the page table, the history and the pool, and the number of steps. False if they do not
// fit the arguments.
bool mlx_read_batch(call_t *c);
// Lists the tokens of a step. Step |step| of a burst reads the token that the step before it sampled.
void mlx_run_list(const call_t *c, int step);

#endif  // MLXCEL_KERNELS_CPU_BATCH_H_
