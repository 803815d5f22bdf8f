// Decode: what the consumers multiply with, and the sums of rows.

static __device__ __forceinline__ void consumers_meet() {
  asm volatile("barrier.sync 1, %0;" ::"n"(THREADS) : "memory");
}

// This lane's two words of a staged piece; a part that there is not is zero.
static __device__ __forceinline__ uint2 staged_words(const Shared *s, int run, int piece) {
  const int lane = threadIdx.x & 31, quad = lane & 3, part = lane >> 2 & 3, half = lane >> 4;
  const u8 *from = s->work.runs[threadIdx.x >> 5] + run * RUN_BYTES + piece * PIECE_BYTES +
                   ((half * 4 + quad) * PARTS + part) * 8;
  return part < PARTS ? *(const uint2 *)from : uint2{0, 0};
}

template <int K, typename S>
static __device__ __forceinline__ uint2 words_of(const S *s, const Activations<K> &x, int run, int piece) {
  return Cut<K>::kept ? x.word[Cut<K>::kept ? run : 0][piece] : staged_words(s, run, piece);
}

// Lane i has activations 4i to 4i + 3 of the run: their parts go where the instruction wants them.
static __device__ __forceinline__ void stage(Shared *s, int run, float4 x) {
  const int lane = threadIdx.x & 31;
  u8 *to = s->work.runs[threadIdx.x >> 5] + run * RUN_BYTES + (lane >> 3) * PIECE_BYTES;
#pragma unroll
  for (int i = 0; i < PARTS; ++i) {
    const u32 first = to16x2(x.x, x.y), second = to16x2(x.z, x.w);
    *(u32 *)(to + staged_at(lane, 0) + i * 8) = first;
    *(u32 *)(to + staged_at(lane, 1) + i * 8) = second;
    x = {x.x - low16(first), x.y - high16(first), x.z - low16(second), x.w - high16(second)};
  }
}

// The sum of piece |quad|, from all lanes' four.
static __device__ __forceinline__ float piece_sum(float4 x) {
  float sum = (x.x + x.y) + (x.z + x.w);
#pragma unroll
  for (int lanes = 1; lanes < 8; lanes <<= 1) sum += __shfl_xor_sync(~0u, sum, lanes);
  return __shfl_sync(~0u, sum, (threadIdx.x & 3) * 8);
}

// The values of this warp's columns become its activations.
template <int K>
static __device__ __forceinline__ void stage_all(Shared *s, Activations<K> &x,
                                                 const float4 (&value)[Cut<K>::runs]) {
  using C = Cut<K>;
#pragma unroll
  for (int i = 0; OFFSETS && i < C::runs; ++i) x.sum[i] = piece_sum(value[i]);
#pragma unroll
  for (int begin = 0; begin < C::runs; begin += C::staged) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < C::staged && begin + i < C::runs; ++i) stage(s, i, value[begin + i]);
    __syncwarp();
    if (!C::kept) return;
#pragma unroll
    for (int i = 0; i < 4 * C::staged && begin + i / 4 < C::runs; ++i)
      x.word[begin + i / 4][i % 4] = staged_words(s, i / 4, i % 4);
  }
}

// All words are asked for before any is looked at, and all that were empty again.
template <int K>
static __device__ __forceinline__ void hear_all(const float *words, float4 (&value)[Cut<K>::runs]) {
  using C = Cut<K>;
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int i = 0; i < C::runs; ++i) {
    const int column = C::column(i) + lane * 4;
    value[i] = C::has(i, column) ? look4(words + column) : float4{0, 0, 0, 0};
  }
  for (bool again = true; again;) {
    again = false;
#pragma unroll
    for (int i = 0; i < C::runs; ++i) again |= any_empty(value[i]);
    if (!again) break;
#pragma unroll
    for (int i = 0; i < C::runs; ++i) {
      if (any_empty(value[i])) value[i] = look4(words + C::column(i) + lane * 4);
    }
  }
}

template <int K>
static __device__ __forceinline__ void hear_activations(Shared *s, const float *words, Activations<K> &x) {
  float4 value[Cut<K>::runs];
  hear_all<K>(words, value);
  stage_all<K>(s, x, value);
}

static __device__ __forceinline__ void load_gain(const u8 *weight, float4 (&gain)[Cut<HIDDEN>::runs]) {
  using C = Cut<HIDDEN>;
#pragma unroll
  for (int i = 0; i < C::runs; ++i) {
    const int column = C::column(i) + (threadIdx.x & 31) * 4;
    gain[i] = C::has(i, column) ? *(const float4 *)((const float *)weight + column) : float4{0, 0, 0, 0};
  }
}

// The residual stream times the norm's gain. Its length divides the sums, when they are there: see
// norm_scale.
static __device__ __forceinline__ void normalise(Shared *s, float4 (&value)[Cut<HIDDEN>::runs],
                                                 const float4 (&gain)[Cut<HIDDEN>::runs],
                                                 Activations<HIDDEN> &x) {
  float square = 0;
#pragma unroll
  for (int i = 0; i < Cut<HIDDEN>::runs; ++i) {
    const float4 v = value[i], g = gain[i];
    square += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    value[i] = {v.x * g.x, v.y * g.y, v.z * g.z, v.w * g.w};
  }
  square = warp_sum(square);
  if ((threadIdx.x & 31) == 0) s->square[threadIdx.x >> 5] = square;
  stage_all<HIDDEN>(s, x, value);
}

static __device__ __forceinline__ float norm_scale(const Shared *s) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < WARPS; ++i) sum += s->square[i];
  return rsqrtf(sum / HIDDEN + NORM_EPS);
}

static __device__ __forceinline__ void hear_and_normalise(Shared *s, const float *words, const u8 *weight,
                                                          Activations<HIDDEN> &x) {
  float4 value[Cut<HIDDEN>::runs], gain[Cut<HIDDEN>::runs];
  load_gain(weight, gain);
  hear_all<HIDDEN>(words, value);
  normalise(s, value, gain, x);
}

static __device__ __forceinline__ void embed(const Model &m, Shared *s, int token, Activations<HIDDEN> &x) {
  using C = Cut<HIDDEN>;
  float4 value[C::runs], gain[C::runs];
  load_gain(AT(ATTN_NORM, 0), gain);
#pragma unroll
  for (int i = 0; i < C::runs; ++i) {
    const int column = C::column(i) + (threadIdx.x & 31) * 4;
    value[i] = C::has(i, column) ? EmbedFormat::four<HIDDEN>(m.weights + EMBED_AT, token, column)
                                 : float4{0, 0, 0, 0};
  }
  normalise(s, value, gain, x);
}

// ----------------------------------------------------------------------------------------------------------
// Consumers: sums of rows

struct Consumer {
  Shared *s;
  Place at;
  int buffer;  // of partial sums

  // Eight rows, whose sums are the |nth| of the batch.
  template <typename F, int K>
  __device__ __forceinline__ void take_tile(const Activations<K> &x, int nth) {
    const int lane = threadIdx.x & 31;
    typename F::Sum sum = {};
#pragma unroll
    for (int segment = 0; segment < Cut<K>::segments; ++segment) {
      barrier_wait(&s->full[at.stage], at.turn);
      F::template take<K>(s, s->ring + at.stage * STAGE_BYTES, segment, x, sum);
      barrier_arrive(&s->room[at.stage]);
      at.next();
    }
    float total = F::total(sum, lane & 2);
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    if ((lane & 3) == 0) s->partial[buffer][threadIdx.x >> 5][nth * TILE + (lane >> 2)] = total;
  }

  __device__ __forceinline__ float total(int row) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) sum += s->partial[buffer][i][row];
    return sum;
  }

  // done(row, sum, before(row)) for each row, by one thread each; before() is called long before the sum is
  // there.
  template <typename F, int K, typename Before, typename Done>
  __device__ __forceinline__ void rows(const Activations<K> &x, Rows rows, Before before, Done done) {
#pragma unroll 1
    for (int begin = rows.begin; begin < rows.end; begin += BATCH * TILE) {
      const int count = min(BATCH * TILE, rows.end - begin), row = begin + (int)threadIdx.x;
      const float old = (int)threadIdx.x < count ? before(row) : 0.0f;
#pragma unroll 1
      for (int i = 0; i * TILE < count; ++i) take_tile<F, K>(x, i);
      consumers_meet();
      if ((int)threadIdx.x < count) done(row, total(threadIdx.x), old);
      buffer ^= 1;
    }
  }

  // done(row, gate's sum, up's sum). first() is called by all threads, when all have their activations,
  // before the first done().
  template <typename F, typename First, typename Done>
  __device__ __forceinline__ void pairs(const Activations<HIDDEN> &x, Rows rows, First first, Done done) {
    const int t = threadIdx.x, low = t / TILE * 2 * TILE + t % TILE;
#pragma unroll 1
    for (int begin = rows.begin; begin < rows.end; begin += BATCH / 2 * TILE) {
      const int count = min(BATCH / 2 * TILE, rows.end - begin);
#pragma unroll 1
      for (int i = 0; i / 2 * TILE < count; ++i) take_tile<F, HIDDEN>(x, i);
      consumers_meet();
      if (begin == rows.begin) {
        first();
        consumers_meet();
      }
      if (t < count) done(begin + t, total(low), total(low + TILE));
      buffer ^= 1;
    }
  }
};
