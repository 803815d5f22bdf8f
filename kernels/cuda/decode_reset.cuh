// Decode: marking words EMPTY that every block has read.
#pragma once

#include "decode_attention.cuh"
#include "decode_recurrent.cuh"

static __device__ __forceinline__ void mark_rows_empty(float *words, Rows rows) {
#pragma unroll 1
  for (int r = rows.begin + (int)threadIdx.x; r < rows.end; r += THREADS) mark_empty(words + r);
}

// Hidden values, and the scores of experts.
static __device__ __forceinline__ void mark_mlp_empty(const Model &m, const Shared *s, int parity) {
  Scratch *w = m.scratch;
  if constexpr (MIXTURE) {
#pragma unroll 1
    for (int r = s->ffn.begin + (int)threadIdx.x; r < s->ffn.end; r += THREADS)
      mark_empty(&w->hidden[parity][hidden_word(r)]);
    for (int i = s->block + (int)threadIdx.x * s->blocks; i < SCORES; i += THREADS * s->blocks)
      mark_empty(&w->router[parity][i]);
    if constexpr (SHARED_EXPERT) mark_rows_empty(w->shared[parity], s->shared[0]);
  } else {
    mark_rows_empty(w->hidden[parity], s->ffn);
  }
}

static __device__ __forceinline__ void mark_splits_empty(const Model &m, int task, Plan plan) {
  const int query = plan.query(task), words = HEAD_DIM + 2;
#pragma unroll 1
  for (int i = threadIdx.x; i < plan.queries * words; i += THREADS)
    mark_empty(&m.scratch->split[query + i / words][plan.split(task)][i % words]);
}

// With PARALLEL: called when this block has received all outputs of
// attention, and the words of x0 that it adds them to. By then every block has published its queries, so it
// has received all of x0 and has read everything of the previous layer. The words are used again one layer
// later, by blocks that have received all outputs of this layer, which this block publishes after a fence.
static __device__ __forceinline__ void reset_parallel(const Model &m, const Shared *s, int parity,
                                                      Plan plan) {
  Scratch *w = m.scratch;
  mark_rows_empty(w->qkv, s->qkv);
  mark_rows_empty(w->x0[parity], s->width);
  mark_rows_empty(w->attended[parity ^ 1], rows_of_block(Q_WIDTH, s->block, s->blocks));
  mark_mlp_empty(m, s, parity ^ 1);
  if (plan.splits == 1) return;
#pragma unroll 1
  for (int task = s->block; task < plan.tasks(); task += s->blocks) mark_splits_empty(m, task, plan);
}

// Called when x1 of this layer is complete. By then every
// block has read the inputs of x1 and everything of the previous layer. The words are used again one layer
// later at the earliest, by blocks that have received a value that this block published after its next fence.
static __device__ __forceinline__ void reset_serial(const Model &m, const Shared *s, int layer, int parity,
                                                    Plan plan) {
  Scratch *w = m.scratch;
  if (!is_recurrent(layer)) mark_rows_empty(w->qkv, s->qkv);
  mark_rows_empty(w->x0[0], s->width);
  mark_rows_empty(w->x1[parity ^ 1], s->width);
  mark_mlp_empty(m, s, parity ^ 1);
  if constexpr (RECURRENT) {
    if (is_recurrent(layer)) return reset_recurrent(m, s);
  }
#pragma unroll 1
  for (int task = s->block; task < plan.tasks(); task += s->blocks) {
    const int query = plan.query(task);
    if (plan.splits == 1)
      mark_rows_empty(w->attended[0], {query * HEAD_DIM, (query + plan.queries) * HEAD_DIM});
    else
      mark_splits_empty(m, task, plan);
  }
  if (plan.splits == 1) return;
#pragma unroll 1
  for (int head = s->blocks - 1 - s->block; head < HEADS; head += s->blocks) {
    mark_rows_empty(w->attended[0], {head * HEAD_DIM, (head + 1) * HEAD_DIM});
  }
}

// Marks the words EMPTY that every block has read.
static __device__ __forceinline__ void reset_consumed(const Model &m, const Shared *s, int layer, int parity,
                                                      Plan plan) {
  if constexpr (PARALLEL)
    reset_parallel(m, s, parity, plan);
  else
    reset_serial(m, s, layer, parity, plan);
}

// Marks the words EMPTY that the last layer of a launch leaves. |parity| is that of a next layer.
static __device__ __forceinline__ void reset_last_layer(const Model &m, const Shared *s, int parity) {
  Scratch *w = m.scratch;
  if constexpr (PARALLEL) {
    mark_rows_empty(w->x0[parity], s->width);
    mark_rows_empty(w->attended[parity ^ 1], rows_of_block(Q_WIDTH, s->block, s->blocks));
  } else {
    mark_rows_empty(w->x0[0], s->width);
    mark_rows_empty(w->x1[parity ^ 1], s->width);
  }
  mark_mlp_empty(m, s, parity ^ 1);
}

// Marks the words EMPTY that the token before this one was chosen with.
static __device__ __forceinline__ void reset_choice(const Model &m, const Shared *s, int epoch) {
  Scratch *w = m.scratch;
  const int nth = (epoch - 1) & 3;
#pragma unroll 1
  for (int i = s->block; i < BLOCKS; i += s->blocks) {
    if (threadIdx.x < 2) mark_empty(&w->best[nth][i][threadIdx.x]);
    if (threadIdx.x < 2 + 2 * MAX_CANDIDATES) mark_empty(&w->candidates[nth][i][threadIdx.x]);
  }
}
