// Decode: the consumers' activations, and their products with rows of weights.

static __device__ __forceinline__ void sync_consumers() {
  asm volatile("barrier.sync 1, %0;" ::"n"(THREADS) : "memory");
}

#include "decode_parts16.cuh"
#ifdef PACKED
#include "decode_parts8.cuh"
#endif

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

template <typename A>
static __device__ __forceinline__ void receive_activations(Shared *s, const float *words, A &x) {
  constexpr int K = A::columns;
  float4 value[Tiling<K>::runs];
  receive_all<K>(words, value);
  stage_all(s, x, value);
}

// Gains of a norm; ones without a norm.
static __device__ __forceinline__ void load_gain(const u8 *weight, float4 (&gain)[Tiling<HIDDEN>::runs]) {
  using C = Tiling<HIDDEN>;
#pragma unroll
  for (int i = 0; i < C::runs; ++i) {
    const int column = C::column(i) + (threadIdx.x & 31) * 4;
    if (!PRE_NORMS && !weight)
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

template <typename A>
static __device__ __forceinline__ void normalize(Shared *s, float4 (&value)[Tiling<HIDDEN>::runs],
                                                 const float4 (&gain)[Tiling<HIDDEN>::runs], A &x) {
  multiply_gain(s, value, gain);
  stage_all(s, x, value);
}

static __device__ __forceinline__ float norm_scale(const Shared *s) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < WARPS; ++i) sum += s->square[i];
  return rsqrtf(sum / HIDDEN + NORM_EPS);
}

// The same for the sums of a layer, whose input may have no norm.
static __device__ __forceinline__ float layer_scale(const Shared *s) {
  return PRE_NORMS ? norm_scale(s) : 1.0f;
}

#if POST_NORMS
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
    float4 *x = (float4 *)(s->residual + column);
    *x = value[i] = {x->x + v.x * scale * g.x, x->y + v.y * scale * g.y, x->z + v.z * scale * g.z,
                     x->w + v.w * scale * g.w};
  }
}
#define AFTER_ATTENTION(layer) AT(POST_ATTN_NORM, layer)
#define AFTER_MLP(layer) AT(POST_MLP_NORM, layer)
#else
#define AFTER_ATTENTION(layer) nullptr
#define AFTER_MLP(layer) nullptr
#endif

// |post|: with POST_NORMS, the gain of the norm of the received sublayer output.
template <typename A>
static __device__ __forceinline__ void receive_and_normalize(Shared *s, const float *words, const u8 *post,
                                                             const u8 *weight, A &x) {
  float4 value[Tiling<HIDDEN>::runs], gain[Tiling<HIDDEN>::runs];
  load_gain(weight, gain);
#if POST_NORMS
  float4 post_gain[Tiling<HIDDEN>::runs];
  load_gain(post, post_gain);
  receive_all<HIDDEN>(words, value);
  add_normalized(s, value, post_gain);
#else
  (void)post;
  receive_all<HIDDEN>(words, value);
#endif
  normalize(s, value, gain, x);
}

static __device__ __forceinline__ void embed(const Model &m, Shared *s, int token, QkvInput &x) {
  using C = Tiling<HIDDEN>;
  float4 value[C::runs], gain[C::runs];
  load_gain(BEFORE_ATTENTION(0), gain);
#pragma unroll
  for (int i = 0; i < C::runs; ++i) {
    const int column = C::column(i) + (threadIdx.x & 31) * 4;
    value[i] = C::has(i, column) ? EmbedFormat::load4<HIDDEN>(m.weights + EMBED_AT, token, column)
                                 : float4{0, 0, 0, 0};
    const float scale = (float)EMBED_SCALE;
    value[i] = {value[i].x * scale, value[i].y * scale, value[i].z * scale, value[i].w * scale};
#if POST_NORMS
    if (C::has(i, column)) *(float4 *)(s->residual + column) = value[i];
#endif
  }
  normalize(s, value, gain, x);
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
      const float old = (int)threadIdx.x < count ? before(row) : 0.0f;
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
      typename F::template Activations<PART_OF(FFN, PART)> x;
      receive_activations(s, words, x);
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

  // Calls done(row, gate sum, up sum, before(row), whether the row is in the last batch) for each row. All
  // threads call first() once before the first done(), when all consumers have received their activations.
  template <typename F, typename G, typename First, typename Before, typename Done>
  __device__ __forceinline__ void pairs(const GateInput &x, Rows rows, bool second, First first,
                                        Before before, Done done) {
    const int t = threadIdx.x, low = t / TILE * 2 * TILE + t % TILE;
#pragma unroll 1
    for (int begin = rows.begin; begin < rows.end; begin += BATCH / 2 * TILE) {
      const int count = min(BATCH / 2 * TILE, rows.end - begin);
      const float2 bias = t < count ? before(begin + t) : float2{0, 0};
      multiply_batch<F, G, false, PAIR_ROWS>(x, 2 / PAIR_ROWS * ceil_div(count, TILE),
                                             [=](int) { return second; });
      sync_consumers();
      if (begin == rows.begin) {
        first();
        sync_consumers();
      }
      const bool last = begin + BATCH / 2 * TILE >= rows.end;
      if (t < count) done(begin + t, total(low), total(low + TILE), bias, last);
      buffer ^= 1;
    }
  }
};
