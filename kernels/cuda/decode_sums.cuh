// Decode: the consumers' activations, and their products with rows of weights.
#pragma once

#include "decode_parts16.cuh"
#include "decode_parts8.cuh"
#include "decode_ring.cuh"

static __device__ __forceinline__ void sync_consumers() { sync_threads<THREADS>(); }

// Loads all words first, then reloads the words that were EMPTY.
template <int K>
static __device__ __forceinline__ void receive_all(const float *words, float4 (&value)[Tiling<K>::runs]) {
  using C = Tiling<K>;
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int i = 0; i < C::runs; ++i) {
    const int column = C::column(i) + lane * 4;
    value[i] = C::has(i, column) ? load_relaxed4(words + column) : float4{0, 0, 0, 0};
  }
  for (bool again = true; again;) {
    again = false;
#pragma unroll
    for (int i = 0; i < C::runs; ++i) again |= any_empty(value[i]);
    again = __any_sync(~0u, again);  // lanes leave the loop together: shuffles of a diverged warp are slow
    if (!again) break;
#pragma unroll
    for (int i = 0; i < C::runs; ++i) {
      if (any_empty(value[i])) value[i] = load_relaxed4(words + C::column(i) + lane * 4);
    }
  }
}

// Replaces the values of this warp's columns by those of columns order[column], which other warps may have.
// |order| NULL: keeps them. All consumers must call it.
template <int K>
static __device__ __forceinline__ void reorder(Shared *s, const int *order,
                                               float4 (&value)[Tiling<K>::runs]) {
  using C = Tiling<K>;
  const u32 last = C::width - 1;  // a damaged file must not lead out of bounds
  if (!ORDERED || !order) return;
  float *row = (float *)&s->row;
  sync_consumers();  // all warps have read the row before
#pragma unroll
  for (int i = 0; i < C::runs; ++i) {
    const int column = C::column(i) + (threadIdx.x & 31) * 4;
    if (C::has(i, column)) *(float4 *)(row + column) = value[i];
  }
  sync_consumers();
#pragma unroll
  for (int i = 0; i < C::runs; ++i) {
    const int column = C::column(i) + (threadIdx.x & 31) * 4;
    if (!C::has(i, column)) continue;
    const uint4 at = *(const uint4 *)(order + column);
    value[i] = {row[min(at.x, last)], row[min(at.y, last)], row[min(at.z, last)], row[min(at.w, last)]};
  }
}

// |order|: of the columns of the product; NULL: none.
template <typename A>
static __device__ __forceinline__ void receive_activations(Shared *s, const float *words, const int *order,
                                                           A &x) {
  constexpr int K = A::columns;
  float4 value[Tiling<K>::runs];
  receive_all<K>(words, value);
  reorder<K>(s, order, value);
  stage_all(s, x, value);
}

// Gains or biases of a norm; ones if the norm has no gains. Biases always have a weight.
template <int RUNS>
static __device__ __forceinline__ void load_gain(const u8 *weight, float4 (&gain)[RUNS]) {
  using C = Tiling<HIDDEN>;
#pragma unroll
  for (int i = 0; i < RUNS; ++i) {
    const int column = C::column(i) + (threadIdx.x & 31) * 4;
    if (!GAINS && !weight && LAYER_NORMS)  // columns past the last stay 0
      gain[i] = C::has(i, column) ? float4{1, 1, 1, 1} : float4{0, 0, 0, 0};
    else if (!GAINS && !weight)
      gain[i] = {1, 1, 1, 1};
    else
      gain[i] = C::has(i, column) ? *(const float4 *)((const float *)weight + column) : float4{0, 0, 0, 0};
  }
}

// Multiplies the residual stream by the gain of the norm. The RMS divides the sums later: see norm_scale.
static __device__ __forceinline__ void multiply_gain(Shared *s, float4 (&value)[Tiling<HIDDEN>::runs],
                                                     const float4 (&gain)[Tiling<HIDDEN>::runs]) {
  float square = 0;
#pragma unroll
  for (int i = 0; i < Tiling<HIDDEN>::runs; ++i) {
    const float4 v = value[i], g = gain[i];
    square += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    value[i] = {v.x * g.x, v.y * g.y, v.z * g.z, v.w * g.w};
  }
  square = warp_sum(square);
  if ((threadIdx.x & 31) == 0) s->square[threadIdx.x >> 5] = square;
}

// Biases of a norm, if norms have them.
constexpr int BIAS_RUNS = NORM_BIASES ? Tiling<HIDDEN>::runs : 1;
static __device__ __forceinline__ void load_norm(Norm norm, float4 (&gain)[Tiling<HIDDEN>::runs],
                                                 float4 (&bias)[BIAS_RUNS]) {
  load_gain(norm.gain, gain);
  if constexpr (NORM_BIASES) load_gain(norm.bias, bias);
}

// Stores the number of columns of this warp, their mean, and the sum of the squares of their deviations from
// it. They are complete after the barrier: see row_moments.
static __device__ __forceinline__ void measure_row(Shared *s, const float4 (&value)[Tiling<HIDDEN>::runs]) {
  using C = Tiling<HIDDEN>;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  float sum = 0, count = 0, square = 0;
#pragma unroll
  for (int i = 0; i < C::runs; ++i) {
    sum += (value[i].x + value[i].y) + (value[i].z + value[i].w);
    if (C::has(i, C::column(i) + lane * 4)) count += 4;
  }
  sum = warp_sum(sum);
  count = C::even ? HIDDEN / WARPS : warp_sum(count);
  const float mean = count > 0 ? sum / count : 0;
#pragma unroll
  for (int i = 0; i < C::runs; ++i) {
    if (!C::has(i, C::column(i) + lane * 4)) continue;
    const float4 d = {value[i].x - mean, value[i].y - mean, value[i].z - mean, value[i].w - mean};
    square += (d.x * d.x + d.y * d.y) + (d.z * d.z + d.w * d.w);
  }
  square = warp_sum(square);
  if (lane == 0) s->mean[warp] = mean, s->deviation[warp] = square, s->columns[warp] = count;
  sync_consumers();
}

// Mean and inverse standard deviation of the row that was measured last.
static __device__ __forceinline__ float2 row_moments(const Shared *s) {
  float mean = 0, square = 0;
#pragma unroll
  for (int i = 0; i < WARPS; ++i) mean += s->mean[i] * s->columns[i];
  mean /= HIDDEN;
#pragma unroll
  for (int i = 0; i < WARPS; ++i) {
    const float d = s->mean[i] - mean;
    square += s->deviation[i] + s->columns[i] * (d * d);
  }
  return {mean, rsqrtf(square / HIDDEN + NORM_EPS)};
}

// LayerNorm of the row that was measured last.
static __device__ __forceinline__ void apply_norm(const Shared *s, float4 (&value)[Tiling<HIDDEN>::runs],
                                                  const float4 (&gain)[Tiling<HIDDEN>::runs],
                                                  const float4 (&bias)[BIAS_RUNS]) {
  const float2 moments = row_moments(s);
  const float mean = moments.x, scale = moments.y;
#pragma unroll
  for (int i = 0; i < Tiling<HIDDEN>::runs; ++i) {
    const float4 v = value[i], g = gain[i];
    value[i] = {(v.x - mean) * scale * g.x, (v.y - mean) * scale * g.y, (v.z - mean) * scale * g.z,
                (v.w - mean) * scale * g.w};
    if constexpr (NORM_BIASES) {
      const float4 b = bias[i];
      value[i] = {value[i].x + b.x, value[i].y + b.y, value[i].z + b.z, value[i].w + b.w};
    }
  }
}

// Four numbers of the residual stream that this block keeps, from |column| on.
static __device__ __forceinline__ float4 *residual_at(Shared *s, int column) {
  return (float4 *)((float *)&s->residual + column);
}

static __device__ __forceinline__ void keep_row(Shared *s, const float4 (&value)[Tiling<HIDDEN>::runs]) {
  using C = Tiling<HIDDEN>;
#pragma unroll
  for (int i = 0; i < C::runs; ++i) {
    const int column = C::column(i) + (threadIdx.x & 31) * 4;
    if (C::has(i, column)) *residual_at(s, column) = value[i];
  }
}

// The input of gate and up, from the row that was kept when the input of q, k and v was computed.
static __device__ __forceinline__ void normalize_kept(Shared *s, Norm norm, const int *order, GateInput &x) {
  using C = Tiling<HIDDEN>;
  float4 value[C::runs], gain[C::runs], bias[BIAS_RUNS];
  load_norm(norm, gain, bias);
#pragma unroll
  for (int i = 0; i < C::runs; ++i) {
    const int column = C::column(i) + (threadIdx.x & 31) * 4;
    value[i] = C::has(i, column) ? *residual_at(s, column) : float4{0, 0, 0, 0};
  }
  if constexpr (LAYER_NORMS)
    apply_norm(s, value, gain, bias);
  else
    multiply_gain(s, value, gain);
  reorder<HIDDEN>(s, order, value);
  stage_all(s, x, value);
}

struct NoUse {  // see normalize
  __device__ __forceinline__ void operator()(const float4 (&)[Tiling<HIDDEN>::runs]) const {}
};

// RMSNorm: multiplies by the gain only, see norm_scale. All consumers call use(value) with their columns of
// the row.
template <typename A, typename Use = NoUse>
static __device__ __forceinline__ void normalize(Shared *s, float4 (&value)[Tiling<HIDDEN>::runs],
                                                 const float4 (&gain)[Tiling<HIDDEN>::runs],
                                                 const float4 (&bias)[BIAS_RUNS], const int *order, A &x,
                                                 Use use = {}) {
  if constexpr (PARALLEL && KEEPS_ROW) keep_row(s, value);
  if constexpr (LAYER_NORMS) {
    measure_row(s, value);
    apply_norm(s, value, gain, bias);
  } else {
    multiply_gain(s, value, gain);
  }
  use(value);
  reorder<HIDDEN>(s, order, value);
  stage_all(s, x, value);
}

// The factor of sums of products with a normalized row.
static __device__ __forceinline__ float norm_scale(const Shared *s) {
  if (LAYER_NORMS) return 1.0f;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < WARPS; ++i) sum += s->square[i];
  return rsqrtf(sum / HIDDEN + NORM_EPS);
}

// The same for the sums of a layer, whose input may have no norm.
static __device__ __forceinline__ float layer_scale(const Shared *s) {
  return PRE_NORMS ? norm_scale(s) : 1.0f;
}

// |value| holds the output of a sublayer: replaces it by the residual stream after the normalized output is
// added. Every block keeps the whole residual stream, so that this needs no exchange between blocks.
static __device__ __forceinline__ void add_normalized(Shared *s, float4 (&value)[Tiling<HIDDEN>::runs],
                                                      const float4 (&gain)[Tiling<HIDDEN>::runs]) {
  using C = Tiling<HIDDEN>;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < C::runs; ++i) {
    const float4 v = value[i];
    sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  sum = warp_sum(sum);
  if ((threadIdx.x & 31) == 0) s->output_square[threadIdx.x >> 5] = sum;
  sync_consumers();
  sum = 0;
#pragma unroll
  for (int i = 0; i < WARPS; ++i) sum += s->output_square[i];
  const float scale = rsqrtf(sum / HIDDEN + NORM_EPS);
#pragma unroll
  for (int i = 0; i < C::runs; ++i) {
    const int column = C::column(i) + (threadIdx.x & 31) * 4;
    if (!C::has(i, column)) continue;
    const float4 v = value[i], g = gain[i];
    float4 *x = residual_at(s, column);
    *x = value[i] = {x->x + v.x * scale * g.x, x->y + v.y * scale * g.y, x->z + v.z * scale * g.z,
                     x->w + v.w * scale * g.w};
  }
}

// |post|: with POST_NORMS, the gain of the norm of the received sublayer output.
template <typename A, typename Use = NoUse>
static __device__ __forceinline__ void receive_and_normalize(Shared *s, const float *words, const u8 *post,
                                                             Norm norm, const int *order, A &x,
                                                             Use use = {}) {
  float4 value[Tiling<HIDDEN>::runs], gain[Tiling<HIDDEN>::runs], bias[BIAS_RUNS];
  load_norm(norm, gain, bias);
  if constexpr (POST_NORMS) {
    float4 post_gain[Tiling<HIDDEN>::runs];
    load_gain(post, post_gain);
    receive_all<HIDDEN>(words, value);
    add_normalized(s, value, post_gain);
  } else {
    receive_all<HIDDEN>(words, value);
  }
  normalize(s, value, gain, bias, order, x, use);
}

// Column |column| of the embedding of a token.
static __device__ __forceinline__ float embedded1(const Model &m, int token, int position, int column) {
  float x = EmbedFormat::load1<HIDDEN>(m.weights + config.embed.at, token, column) * config.embed_scale;
  if constexpr (config.positions.present())
    x += EmbedFormat::load1<HIDDEN>(m.weights + config.positions.at, min(position, config.position_rows - 1),
                                    column);
  return x;
}

template <typename Use = NoUse>
static __device__ __forceinline__ void embed(const Model &m, Shared *s, int token, int position, QkvInput &x,
                                             Use use = {}) {
  using C = Tiling<HIDDEN>;
  float4 value[C::runs], gain[C::runs], bias[BIAS_RUNS];
  load_norm(Norm{optional_weight<config.attn_norm>(m, 0), optional_weight<config.attn_norm_bias>(m, 0)}, gain,
            bias);
#pragma unroll
  for (int i = 0; i < C::runs; ++i) {
    const int column = C::column(i) + (threadIdx.x & 31) * 4;
    value[i] = C::has(i, column) ? EmbedFormat::load4<HIDDEN>(m.weights + config.embed.at, token, column)
                                 : float4{0, 0, 0, 0};
    const float scale = config.embed_scale;
    value[i] = {value[i].x * scale, value[i].y * scale, value[i].z * scale, value[i].w * scale};
    if constexpr (config.positions.present()) {
      if (C::has(i, column)) {
        const float4 p = EmbedFormat::load4<HIDDEN>(m.weights + config.positions.at,
                                                    min(position, config.position_rows - 1), column);
        value[i] = {value[i].x + p.x, value[i].y + p.y, value[i].z + p.z, value[i].w + p.w};
      }
    }
    if constexpr (POST_NORMS) {
      if (C::has(i, column)) *residual_at(s, column) = value[i];
    }
  }
  normalize(s, value, gain, bias, order_at<config.qkv_order>(m, 0), x, use);
}

// ----------------------------------------------------------------------------------------------------------
// Consumers: row sums

struct Consumer {
  Shared *s;
  RingPosition at;
  int buffer;  // index of the partial sums in use

  // Multiplies ROWS tile rows of eight rows; their sums are tiles ROWS * nth and up of the batch. ADD: adds
  // them to the sums of the parts before this one.
  template <typename F, bool ADD, int ROWS, typename A>
  __device__ __forceinline__ void multiply_tile(const A &x, int nth) {
    constexpr int K = A::columns;
    const int lane = threadIdx.x & 31;
    typename F::Sum sum[ROWS] = {};
    using Stage = typename F::template Stage<K, ROWS>;
#pragma unroll
    for (int i = 0; i < Tiling<K>::segments * Stage::count; ++i) {
      const int segment = i / Stage::count, part = i % Stage::count;
      if (F::template is_empty_stage<K, ROWS>(segment, part)) continue;
      barrier_wait(&s->full[at.stage], at.parity);
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
        F::template multiply_stage<K, ROWS>(s, s->ring + at.stage * STAGE_BYTES + r * Stage::row_bytes,
                                            segment, part, x, sum[r]);
      barrier_arrive(&s->free[at.stage]);
      at.next();
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      float total = F::total(sum[r], lane & 2);
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      total = x.rescale(total);
      float *sums = &s->partial[buffer][threadIdx.x >> 5][(nth * ROWS + r) * TILE + (lane >> 2)];
      if ((lane & 3) == 0) *sums = ADD ? *sums + total : total;
    }
  }

  // Multiplies |count| times ROWS tile rows, in the format F, or G if second(nth).
  template <typename F, typename G, bool ADD, int ROWS, typename A, typename Second>
  __device__ __forceinline__ void multiply_batch(const A &x, int count, Second second) {
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      if constexpr (Same<F, G>::value) {
        multiply_tile<F, ADD, ROWS>(x, i);
      } else if (second(i)) {
        multiply_tile<G, ADD, ROWS>(x, i);
      } else {
        multiply_tile<F, ADD, ROWS>(x, i);
      }
    }
  }

  __device__ __forceinline__ float total(int row) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) sum += s->partial[buffer][i][row];
    return sum;
  }

  // Calls done(row, sum, before(row)) for each row, in one thread per row. before() is called first, so that
  // its load overlaps with the sum. second(row): whether a row has format G instead of F.
  template <typename F, typename G, typename A, typename Second, typename Before, typename Done>
  __device__ __forceinline__ void rows(const A &x, Rows rows, Second second, Before before, Done done) {
#pragma unroll 1
    for (int begin = rows.begin; begin < rows.end; begin += BATCH * TILE) {
      const int count = min(BATCH * TILE, rows.end - begin), row = begin + (int)threadIdx.x;
      const auto old = (int)threadIdx.x < count ? before(row) : decltype(before(row)){};
      multiply_batch<F, G, false, 1>(x, ceil_div(count, TILE),
                                     [&](int i) { return second(begin + i * TILE); });
      sync_consumers();
      if ((int)threadIdx.x < count) done(row, total(threadIdx.x), old);
      buffer ^= 1;
    }
  }

  // Multiplies |count| rows of the MLP's down projection, from this part of its columns to the last.
  template <typename F, typename G, int PART>
  __device__ __forceinline__ void multiply_parts(const float *words, int count, bool second) {
    {
      typename F::template Activations<part_of(FFN, PART)> x;
      receive_activations(s, words, nullptr, x);
      multiply_batch<F, G, (PART > 0), 1>(x, ceil_div(count, TILE), [=](int) { return second; });
    }
    if constexpr (PART + 1 < FFN_PARTS) multiply_parts<F, G, PART + 1>(words, count, second);
  }

  // rows() for an MLP that is too wide to keep its hidden values |words| in registers.
  template <typename F, typename G, typename Before, typename Done>
  __device__ __forceinline__ void rows_in_parts(const float *words, Rows rows, bool second, Before before,
                                                Done done) {
#pragma unroll 1
    for (int begin = rows.begin; begin < rows.end; begin += BATCH * TILE) {
      const int count = min(BATCH * TILE, rows.end - begin), row = begin + (int)threadIdx.x;
      const float old = (int)threadIdx.x < count ? before(row) : 0.0f;
      multiply_parts<F, G, 0>(words, count, second);
      sync_consumers();
      if ((int)threadIdx.x < count) done(row, total(threadIdx.x), old);
      buffer ^= 1;
    }
  }

  // Calls done(row, sum, sum, sum, before(row)) with the sums of rows |row|, HIDDEN + |row| and
  // 2 * HIDDEN + |row|.
  template <typename F, typename G, typename A, typename Before, typename Done>
  __device__ __forceinline__ void triples(const A &x, Rows rows, bool second, Before before, Done done) {
    constexpr int most = BATCH / 3 * TILE;
    const int t = threadIdx.x, low = t / TILE * 3 * TILE + t % TILE;
#pragma unroll 1
    for (int begin = rows.begin; begin < rows.end; begin += most) {
      const int count = min(most, rows.end - begin);
      const auto old = t < count ? before(begin + t) : decltype(before(begin)){};
      multiply_batch<F, G, false, 1>(x, 3 * ceil_div(count, TILE), [=](int) { return second; });
      sync_consumers();
      if (t < count) done(begin + t, total(low), total(low + TILE), total(low + 2 * TILE), old);
      buffer ^= 1;
    }
  }

  // Calls done(row, gate sum, up sum, before(row), whether the row is in the last batch) for each row;
  // without a gate, with the up sum and 0. ROWS: tile rows of a stage. All threads call first() once before
  // the first done(), when all consumers have received their activations; not with PARALLEL.
  template <typename F, typename G, int ROWS = PAIR_ROWS, typename A, typename First, typename Before,
            typename Done>
  __device__ __forceinline__ void pairs(const A &x, Rows rows, bool second, First first, Before before,
                                        Done done) {
    constexpr int most = BATCH / MLP_MATRICES * TILE;
    const int t = threadIdx.x, low = t / TILE * MLP_MATRICES * TILE + t % TILE;
#pragma unroll 1
    for (int begin = rows.begin; begin < rows.end; begin += most) {
      const int count = min(most, rows.end - begin);
      const float2 bias = t < count ? before(begin + t) : float2{0, 0};
      multiply_batch<F, G, false, ROWS>(x, MLP_MATRICES / ROWS * ceil_div(count, TILE),
                                        [=](int) { return second; });
      sync_consumers();
      if (begin == rows.begin && !PARALLEL) {
        first();
        sync_consumers();
      }
      const bool last = begin + most >= rows.end;
      if (t < count) done(begin + t, total(low), MLP_MATRICES > 1 ? total(low + TILE) : 0.0f, bias, last);
      buffer ^= 1;
    }
  }
};
