// Decode: the ring of shared-memory stages, and the producer that fills it with weights.
#pragma once

#include "decode_state.cuh"

struct RingPosition {  // position in the ring; the producer and every consumer warp have one each
  u32 stage, parity;   // parity: of the pass through the ring
  __device__ __forceinline__ void next() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

struct Producer {
  Shared *s;
  RingPosition at, oldest;  // oldest: the oldest copy in flight, IN_FLIGHT stages behind
  int started;
  bool stopped;  // the consumers need no more stages

  // Waits for a free stage and for the oldest copy in flight. Then announces |bytes| for the next stage.
  // Returns NULL if the consumers have stopped.
  __device__ __forceinline__ u8 *begin(int bytes) {
    // When |stopped| is set, no consumer releases a stage any more: all lanes then see the same.
    while (!barrier_passed(&s->free[at.stage], at.parity ^ 1)) {
      if (!*(volatile int *)&s->stopped || barrier_passed(&s->free[at.stage], at.parity ^ 1)) continue;
      stopped = true;
      return nullptr;
    }
    if (started >= IN_FLIGHT) {
      barrier_wait(&s->full[oldest.stage], oldest.parity);
      oldest.next();
    } else {
      ++started;
    }
#if __CUDA_ARCH__ >= 900
    if ((threadIdx.x & 31) == 0) barrier_expect(full(), bytes);
    __syncwarp();
#else
    (void)bytes;
#endif
    return s->ring + at.stage * STAGE_BYTES;
  }

  __device__ __forceinline__ u64 *full() const { return &s->full[at.stage]; }

  __device__ __forceinline__ void end() {
#if __CUDA_ARCH__ < 900
    barrier_arrive_after_copies(full());
#endif
    at.next();
  }

  // Waits for all copies in flight: a block must not exit before its copies have arrived.
  __device__ __forceinline__ void drain() {
#if __CUDA_ARCH__ >= 900
    for (; oldest.stage != at.stage || oldest.parity != at.parity; oldest.next())
      barrier_wait(&s->full[oldest.stage], oldest.parity);
#else
    wait_all_copies();
#endif
  }
};

// ----------------------------------------------------------------------------------------------------------
// Division of rows among blocks

static __device__ Rows rows_of_block(int rows, int block, int blocks) {
  const u32 units = ceil_div(rows, SHARE_UNIT);
  return {(int)((u64)units * (u32)block / (u32)blocks) * SHARE_UNIT,
          min(rows, (int)((u64)units * ((u32)block + 1) / (u32)blocks) * SHARE_UNIT)};
}

// row<F, K>(row): the address of a row of K columns in the format F.
struct Matrix {
  const u8 *from;
  template <typename F, int K>
  __device__ __forceinline__ const u8 *row(int row) const {
    return from + F::template row_offset<K>(row);
  }
};

// Gate or up. Index::stored: index of a row in the stored matrix.
template <typename Index>
struct MlpMatrix {
  const u8 *from;
  const Shared *s;
  template <typename F, int K>
  __device__ __forceinline__ const u8 *row(int row) const {
    return from + F::template row_offset<K>(Index::stored(s, row));
  }
};

struct QkvMatrices {
  const u8 *q, *k, *v;
  template <typename F, int K>
  __device__ __forceinline__ const u8 *row(int row) const {
    if (row < Q_ROWS) return q + F::template row_offset<K>(row);
    row -= Q_ROWS;
    if (row < KV_WIDTH) return k + F::template row_offset<K>(row);
    return v + F::template row_offset<K>(row - KV_WIDTH);
  }
};

static __device__ __forceinline__ int qkv_role(int row) {
  return row < Q_ROWS ? SECOND_Q : row < Q_ROWS + KV_WIDTH ? SECOND_K : SECOND_V;
}

static __device__ __forceinline__ float qkv_bias(const Model &m, int layer, int row) {
  if (config.q_bias.present() && row < Q_ROWS) return bias_at<config.q_bias>(m, layer, row);
  if (config.k_bias.present() && row >= Q_ROWS && row < Q_ROWS + KV_WIDTH)
    return bias_at<config.k_bias>(m, layer, row - Q_ROWS);
  if (config.v_bias.present() && row >= Q_ROWS + KV_WIDTH)
    return bias_at<config.v_bias>(m, layer, row - Q_ROWS - KV_WIDTH);
  return 0;
}

// The matrices of a recurrent layer's input with the delta rule.
struct DeltaMatrices {
  const u8 *in, *z, *beta, *step;
  template <typename F, int K>
  __device__ __forceinline__ const u8 *row(int row) const {
    if (row < CHANNELS) return in + F::template row_offset<K>(row);
    row -= CHANNELS;
    if (DELTA_APART || row < VALUE_WIDTH) return z + F::template row_offset<K>(row);
    row -= VALUE_WIDTH;
    return row < VALUE_HEADS ? beta + F::template row_offset<K>(row)
                             : step + F::template row_offset<K>(row - VALUE_HEADS);
  }
};

static __device__ __forceinline__ bool uses_second_delta(int layer, int row) {
  if (!DELTA_APART && row >= IN_WIDTH) return config.delta_rows_format == 2;
  return uses_second(layer, row < CHANNELS ? SECOND_RECURRENT_IN : SECOND_DELTA_Z);
}

// Rows of gate and up. In a mixture they are the rows of the chosen experts, one expert after the other.
// stored_row: index in the stored matrix; hidden_word: index of the hidden value that the row computes;
// expert_weight: factor of that value.
static __device__ __forceinline__ int stored_row(const Shared *s, int row) {
  if constexpr (MIXTURE) return *(const volatile int *)&s->chosen[row / FFN] * FFN + row % FFN;
  return row;
}
static __device__ __forceinline__ int hidden_word(int row) {
  if constexpr (MIXTURE) return row / FFN * FFN_STRIDE + row % FFN;
  return row;
}
static __device__ __forceinline__ float expert_weight(const Shared *s, int row) {
  if constexpr (MIXTURE) return s->weight[row / FFN];
  return 1.0f;
}

struct MlpIndex {
  static __device__ __forceinline__ int stored(const Shared *s, int row) { return stored_row(s, row); }
};
struct SharedIndex {  // of the shared expert
  static __device__ __forceinline__ int stored(const Shared *, int row) { return row; }
};

static __device__ __forceinline__ float2 mlp_biases(const Model &m, const Shared *s, int layer, int row) {
  if constexpr (!config.gate_bias.present() && !config.up_bias.present()) return {0.0f, 0.0f};
  const int stored = stored_row(s, row);
  if constexpr (MLP_MATRICES == 1)
    return {bias_at<config.up_bias>(m, layer, stored), 0.0f};
  else
    return {bias_at<config.gate_bias>(m, layer, stored), bias_at<config.up_bias>(m, layer, stored)};
}

static __device__ __forceinline__ float head_bias(const Model &m, int row) {
  if constexpr (config.head_bias.present()) return ((const float *)(m.weights + config.head_bias.at))[row];
  return 0;
}

// Bias of the down projection; in a mixture the weighted sum of those of the chosen experts.
static __device__ __forceinline__ float down_bias(const Model &m, const Shared *s, int layer, int row) {
  if constexpr (config.down_bias.present() && MIXTURE) {
    float bias = 0;
#pragma unroll
    for (int i = 0; i < USED; ++i)
      bias += s->weight[i] * bias_at<config.down_bias>(m, layer, s->chosen[i] * HIDDEN + row);
    return bias;
  } else {
    return bias_at<config.down_bias>(m, layer, row);
  }
}

// ----------------------------------------------------------------------------------------------------------
// The producer

// Copies the columns K of |count| rows from |first| on.
template <typename F, int K, typename At>
static __device__ __forceinline__ void copy_rows(Producer &p, int first, int count, At at) {
  const auto row_at = [&](int row) { return at.template row<F, Tiling<K>::width>(row); };
  F::template copy_tile<K>(p, first, count, row_at);
}

// The same in the format F, or G if |second|.
template <typename F, typename G, int K, typename At>
static __device__ __forceinline__ void copy_either(Producer &p, int first, int count, bool second, At at) {
  if constexpr (!Same<F, G>::value) {
    if (second) return copy_rows<G, K>(p, first, count, at);
  }
  copy_rows<F, K>(p, first, count, at);
}

// second(row): whether a row has format G.
template <typename F, typename G, int K, typename Second, typename At>
static __device__ __forceinline__ void stream_rows(Producer &p, Rows rows, Second second, At at) {
#pragma unroll 1
  for (int r = rows.begin; r < rows.end && !p.stopped; r += TILE)
    copy_either<F, G, K>(p, r, min(TILE, rows.end - r), second(r), at);
}

// The order of Consumer::rows_in_parts.
template <typename F, typename G, int PART, typename At>
static __device__ __forceinline__ void stream_part(Producer &p, Rows rows, bool second, At at) {
  stream_rows<F, G, part_of(FFN, PART)>(p, rows, [=](int) { return second; }, at);
  if constexpr (PART + 1 < FFN_PARTS) stream_part<F, G, PART + 1>(p, rows, second, at);
}

template <typename At>
static __device__ __forceinline__ void stream_down(Producer &p, Rows rows, bool second, At at) {
  if constexpr (FFN_PARTS == 1) {
    stream_rows<DownFormat, DownFormat2, FFN>(p, rows, [=](int) { return second; }, at);
  } else {
#pragma unroll 1
    for (int begin = rows.begin; begin < rows.end && !p.stopped; begin += BATCH * TILE)
      stream_part<DownFormat, DownFormat2, 0>(p, {begin, min(rows.end, begin + BATCH * TILE)}, second, at);
  }
}

template <typename F, typename Index>
static __device__ __forceinline__ void copy_pair(Producer &p, int row, const u8 *gate, const u8 *up) {
  const u64 at = F::template row_offset<HIDDEN>(Index::stored(p.s, row));
  const u8 *const from[2] = {gate + at, up + at};
  F::template copy_tiles<HIDDEN>(p, from);
}

// A stage has a tile row of gate and one of up, so that one thread gets the sums of both.
template <typename F, typename G, typename Index>
static __device__ __forceinline__ void stream_in_pairs(Producer &p, Rows rows, bool second, const u8 *gate,
                                                       const u8 *up) {
#pragma unroll 1
  for (int r = rows.begin; r < rows.end && !p.stopped; r += TILE) {
    if (!Same<F, G>::value && second)
      copy_pair<G, Index>(p, r, gate, up);
    else
      copy_pair<F, Index>(p, r, gate, up);
  }
}

// Tiles of gate and up alternate, so that one thread gets the sums of both.
template <typename F, typename G, typename Index>
static __device__ __forceinline__ void stream_in_turns(Producer &p, Rows rows, bool second, const u8 *gate,
                                                       const u8 *up) {
#pragma unroll 1
  for (int r = rows.begin; r < rows.end; r += TILE) {
#pragma unroll 1
    for (int i = 0; i < 2 && !p.stopped; ++i) {
      const MlpMatrix<Index> matrix = {i ? up : gate, p.s};
      copy_either<F, G, HIDDEN>(p, r, min(TILE, rows.end - r), second, matrix);
    }
  }
}

// The order of Consumer::pairs with ROWS tile rows in a stage.
template <typename F, typename G, typename Index, int ROWS>
static __device__ __forceinline__ void stream_pairs(Producer &p, Rows rows, bool second, const u8 *gate,
                                                    const u8 *up) {
  if constexpr (ROWS == 2)
    stream_in_pairs<F, G, Index>(p, rows, second, gate, up);
  else
    stream_in_turns<F, G, Index>(p, rows, second, gate, up);
}

// Waits until the experts of the |nth| layer of this launch are chosen. False: the consumers have stopped.
static __device__ __forceinline__ bool wait_for_choice(const Shared *s, int nth) {
  while (*(const volatile int *)&s->choices[0] <= nth)
    if (*(const volatile int *)&s->stopped) return false;
  __threadfence_block();
  return true;
}

// Addresses of rows in the down projections of the chosen experts.
struct ExpertRows {
  const u8 *from;
  const Shared *s;
  template <typename F>
  __device__ __forceinline__ const u8 *row(int slot, int row) const {
    return from + F::template row_offset<FFN>(*(const volatile int *)&s->chosen[slot] * HIDDEN + row);
  }
};

// Copies whole rows of the down projections, tile row by tile row.
template <typename F, typename G>
static __device__ __forceinline__ void stream_expert_down(Producer &p, Rows rows, bool second,
                                                          ExpertRows at) {
#pragma unroll 1
  for (int r = rows.begin; r < rows.end && !p.stopped; r += TILE) {
    const int count = min(TILE, rows.end - r);
    if (!Same<F, G>::value && second)
      G::template copy_grouped<DOWN_WIDTH>(p, r, count, at);
    else
      F::template copy_grouped<DOWN_WIDTH>(p, r, count, at);
  }
}

// The matrices that the MLP's input is multiplied with.
static __device__ __forceinline__ void stream_mlp(const Model &m, Producer &p, int l) {
  const bool second = uses_second(l, SECOND_GATE);
  if constexpr (MLP_MATRICES == 2)
    stream_pairs<GateFormat, GateFormat2, MlpIndex, PAIR_ROWS>(
        p, p.s->ffn, second, weight_at<config.gate>(m, l), weight_at<config.up>(m, l));
  else
    stream_rows<GateFormat, GateFormat2, HIDDEN>(
        p, p.s->ffn, [=](int) { return second; }, Matrix{weight_at<config.up>(m, l)});
}

template <int = 0>
static __device__ __forceinline__ void stream_shared_pairs(const Model &m, Producer &p, int l) {
  stream_pairs<SharedGateFormat, SharedGateFormat2, SharedIndex, SHARED_PAIR_ROWS>(
      p, p.s->shared[0], uses_second(l, SECOND_SHARED_GATE), weight_at<config.shared_gate>(m, l),
      weight_at<config.shared_up>(m, l));
}

template <int PART>
static __device__ __forceinline__ void stream_shared_part(Producer &p, Rows rows, bool second, Matrix at) {
  stream_rows<SharedDownFormat, SharedDownFormat2, part_of(SHARED_FFN, PART)>(
      p, rows, [=](int) { return second; }, at);
  if constexpr (PART + 1 < SHARED_PARTS) stream_shared_part<PART + 1>(p, rows, second, at);
}

// The order of rows_of_all_experts.
template <int = 0>
static __device__ __forceinline__ void stream_all_down(const Model &m, Producer &p, int l) {
  const Rows rows = p.s->width;
#pragma unroll 1
  for (int begin = rows.begin; begin < rows.end && !p.stopped; begin += BATCH * TILE) {
    const Rows batch = {begin, min(rows.end, begin + BATCH * TILE)};
    stream_shared_part<0>(p, batch, uses_second(l, SECOND_SHARED_DOWN),
                          Matrix{weight_at<config.shared_down>(m, l)});
    stream_expert_down<DownFormat, DownFormat2>(p, batch, uses_second(l, SECOND_DOWN),
                                                ExpertRows{weight_at<config.down>(m, l), p.s});
  }
}

// The matrices that hidden values are multiplied with.
static __device__ __forceinline__ void stream_hidden(const Model &m, Producer &p, int l) {
  if constexpr (SHARED_EXPERT)
    stream_all_down(m, p, l);
  else if constexpr (MIXTURE)
    stream_expert_down<DownFormat, DownFormat2>(p, p.s->width, uses_second(l, SECOND_DOWN),
                                                ExpertRows{weight_at<config.down>(m, l), p.s});
  else
    stream_down(p, p.s->width, uses_second(l, SECOND_DOWN), Matrix{weight_at<config.down>(m, l)});
}

// The matrices that the input of a recurrent layer is multiplied with.
template <int = 0>
static __device__ __forceinline__ void stream_recurrent(const Model &m, Producer &p, int l) {
  const Rows rows = p.s->in[0];
  if constexpr (DELTA) {
    stream_rows<InFormat, InFormat2, HIDDEN>(
        p, rows, [&](int row) { return uses_second_delta(l, row); },
        DeltaMatrices{weight_at<config.recurrent_in>(m, l), weight_at<config.delta_z>(m, l),
                      weight_at<config.delta_beta>(m, l), weight_at<config.delta_step>(m, l)});
  } else {  // the order of Consumer::triples
    const bool second = uses_second(l, SECOND_RECURRENT_IN);
    const Matrix matrix = {weight_at<config.recurrent_in>(m, l)};
#pragma unroll 1
    for (int r = rows.begin; r < rows.end; r += TILE) {
#pragma unroll 1
      for (int i = 0; i < 3 && !p.stopped; ++i)
        copy_either<InFormat, InFormat2, HIDDEN>(p, i * HIDDEN + r, min(TILE, rows.end - r), second, matrix);
    }
  }
}

// The matrix that the output of attention, or of a recurrent layer, is multiplied with.
template <int = 0>
static __device__ __forceinline__ void stream_output(const Model &m, Producer &p, int l) {
  const auto second = [&](int) { return uses_second(l, SECOND_O); };
  const u8 *matrix = is_recurrent(l) ? weight_at<config.recurrent_out>(m, l) : weight_at<config.o>(m, l);
  if (OUT_WIDTH != Q_WIDTH && is_recurrent(l))
    stream_rows<OFormat, OFormat2, OUT_WIDTH>(p, p.s->width, second, Matrix{matrix});
  else
    stream_rows<OFormat, OFormat2, Q_WIDTH>(p, p.s->width, second, Matrix{matrix});
}

static __device__ void produce(const Model &m, Shared *s, int steps) {
  Producer p = {s, {0, 0}, {0, 0}, 0, false};
#pragma unroll 1
  for (int step = 0; step < steps && !p.stopped; ++step) {
#pragma unroll 1
    for (int l = 0; l < LAYERS && !p.stopped; ++l) {
      if (is_recurrent(l)) {
        if constexpr (RECURRENT) stream_recurrent(m, p, l);
      } else {
        stream_rows<QkvFormat, QkvFormat2, HIDDEN>(
            p, s->qkv, [&](int row) { return uses_second(l, qkv_role(row)); },
            QkvMatrices{weight_at<config.q>(m, l), weight_at<config.k>(m, l), weight_at<config.v>(m, l)});
      }
      if (PARALLEL) stream_mlp(m, p, l);
      if constexpr (RECURRENT)
        stream_output(m, p, l);
      else
        stream_rows<OFormat, OFormat2, Q_WIDTH>(
            p, s->width, [&](int) { return uses_second(l, SECOND_O); }, Matrix{weight_at<config.o>(m, l)});
      if constexpr (SHARED_EXPERT) stream_shared_pairs(m, p, l);
      if constexpr (MIXTURE) {
        if (p.stopped || !wait_for_choice(s, step * LAYERS + l)) break;
      }
      if (!PARALLEL) stream_mlp(m, p, l);
      stream_hidden(m, p, l);
    }
    stream_rows<HeadFormat, HeadFormat, HIDDEN>(
        p, s->vocab, [](int) { return false; }, Matrix{m.weights + config.head.at});
  }
  p.drain();
}
