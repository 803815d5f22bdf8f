// Sums over ranks: engines that each have a part of the model. All ranks run the same steps with the same
// rows at the same time. Each stores its part of a row, waits for those of the others, and adds all parts in
// one order, so that every rank has the same bits.
//
// A counter of a rank and row counts the parts that were stored. A rank stores part n + 2 of a row only after
// it has added part n + 1 of all ranks, and these were stored after their ranks had added part n. So two
// places are enough.
#include "rows.h"

// About a minute: the other ranks have stopped.
#define MAX_WAIT 2000000000u

typedef struct exchange {
  int32_t *stop;      // 1: nothing is waited for any more
  int32_t *counters;  // [ranks][MLX_CPU_STEP_TOKENS]
  float *parts;       // [2][ranks][MLX_CPU_STEP_TOKENS][width]
} exchange_t;

// False: |results| has none, or it is too small.
static bool find_exchange(const call_t *c, const mlx_instruction_t *i, exchange_t *out) {
  const int64_t at = c->batch[MLX_STEP_AT_EXCHANGE], words = c->limits.results * MLX_RESULT_WORDS;
  if (at <= 0 || at > words || mlx_exchange_words(i->heads, i->width) > words - at) return false;
  int32_t *start = c->results + at;
  *out = (exchange_t){start, start + MLX_EXCHANGE_COUNTERS,
                      (float *)(void *)(start + mlx_exchange_parts(i->heads))};
  return true;
}

INLINE float *part_at(const exchange_t *e, const mlx_instruction_t *i, uint32_t number, int rank, int row) {
  return e->parts + (((int64_t)(number & 1) * i->heads + rank) * MLX_CPU_STEP_TOKENS + row) * i->width;
}

// Waits until |rank| has stored part |number| of the row.
static void wait_for_part(const exchange_t *e, int rank, int row, uint32_t number) {
  const int32_t *counter = &e->counters[rank * MLX_CPU_STEP_TOKENS + row];
  for (uint32_t waited = 0;; ++waited) {
    const uint32_t stored = (uint32_t)__atomic_load_n(counter, __ATOMIC_ACQUIRE);
    if ((int32_t)(stored - number) >= 0 || __atomic_load_n(e->stop, __ATOMIC_RELAXED)) return;
    if (waited >= MAX_WAIT) __atomic_store_n(e->stop, 1, __ATOMIC_RELAXED);
    spin_pause();
  }
}

// Columns [column, column + 16) of all ranks, added in the order of a binary tree.
INLINE v16 add_parts(const exchange_t *e, const mlx_instruction_t *i, uint32_t number, int row, int column) {
  v16 parts[MLX_MOST_EXCHANGED];
  for (int rank = 0; rank < i->heads; ++rank)
    parts[rank] = load_some(part_at(e, i, number, rank, row) + column, i->width - column);
  for (int step = 1; step < i->heads; step *= 2)
    for (int rank = 0; rank < i->heads; rank += 2 * step)
      parts[rank] = v_add(parts[rank], parts[rank + step]);
  return parts[0];
}

void mlx_run_sum_ranks(const call_t *c, const mlx_instruction_t *i, int row) {
  exchange_t e;
  const float *own = row_at(c, &i->a, row);
  float *out = row_at(c, &i->out, row);
  if (i->heads > MLX_MOST_EXCHANGED || row >= MLX_CPU_STEP_TOKENS || !find_exchange(c, i, &e)) return;
  int32_t *counter = &e.counters[i->kv_heads * MLX_CPU_STEP_TOKENS + row];
  const uint32_t number = (uint32_t)*counter + 1;
  float *part = part_at(&e, i, number, i->kv_heads, row);
  for (int k = 0; k < i->width; k += 16) store_some(part + k, load_some(own + k, i->width - k), i->width - k);
  __atomic_store_n(counter, (int32_t)number, __ATOMIC_RELEASE);
  for (int rank = 0; rank < i->heads; ++rank) wait_for_part(&e, rank, row, number);
  for (int k = 0; k < i->width; k += 16) store_some(out + k, add_parts(&e, i, number, row, k), i->width - k);
  store_row_parts(c, i, row, i->width);
}
