// Decode: how a warp answers queries when keys and values have 16 bits: on tensor cores.

// Puts a number of a query where scores_of wants it: columns 2i and 2i + 1 of one operand are the first two
// parts of query i, column 2i of the other is its third part.
static __device__ __forceinline__ void ask(Attention *a, int query, int d, float value) {
  u16(*to)[8] = &a->question[query / ASKED][d / 32 * 2 + d / 4 % 2][query % ASKED * 8 + d / 8 % 4];
#pragma unroll
  for (int part = 0; part < 3; ++part) {
    const u16 rounded = to16(value);
    to[part % 2 * 4][part / 2 * 4 + d % 4] = rounded;
    value -= from16(rounded);
  }
}

// A pass of a warp is 16 positions for four queries, on tensor cores. Lane 4 * row + quad has of the keys of
// |row| and |row| + 8 the eight numbers from 8 * quad on, of every 32; and of the values of |quad| and 4, 8,
// 12 further on the eight numbers from 8 * row on. Those are 64 columns: where values have more, as many
// warps take the same positions. Which numbers of a row an instruction takes together is free, as long as
// both operands agree.
#define PASS 16
#define ROUND (WARPS / SIDES * PASS)
#define BUFFERS (HEAD_DIM <= 64 ? 2 : 1)  // passes that are loaded before the first is used
static_assert(PAGE % PASS == 0, "a pass lies in one page");

struct Pass {
  int first;
  uint4 k[2][KEY_BLOCKS], v[4];
};

static __device__ __forceinline__ uint4 load16(const u16 *from) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

static __device__ __forceinline__ int lane_row() { return (threadIdx.x & 31) >> 2; }
static __device__ __forceinline__ int lane_quad() { return threadIdx.x & 3; }
static __device__ __forceinline__ constexpr int value_row(int i) {
  return (i & 1) * 8 + (i & 2) * 2;
}  // from the quad's on

static __device__ __forceinline__ int value_column() {
  return (int)(threadIdx.x >> 5) % SIDES * 64 + lane_row() * 8;
}

// Positions from |first| on that are below |end|; the newest one is not there yet.
static __device__ __forceinline__ void load_pass(const Model &m, Pass &pass, int layer, int head, int first,
                                                 int end) {
  const int row = lane_row(), quad = lane_quad();
  const u16 *from = kv_place(m, layer, head, first < end ? __ldg(m.pages + first / PAGE) : 0, first);
  const u16 *k = from + row * HEAD_DIM + quad * 8, *v = from + (PAGE + quad) * HEAD_DIM + value_column();
  pass.first = first;
#pragma unroll
  for (int i = 0; i < 2 * KEY_BLOCKS; ++i) {
    const int further = i % 2 * 8, column = i / 2 * 32;
    const bool there = first + row + further < end && column + quad * 8 < HEAD_DIM;
    pass.k[i % 2][i / 2] = there ? load16(k + further * HEAD_DIM + column) : uint4{0, 0, 0, 0};
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool there = first + quad + value_row(i) < end && value_column() < HEAD_DIM;
    pass.v[i] = there ? load16(v + value_row(i) * HEAD_DIM) : uint4{0, 0, 0, 0};
  }
}

// Lanes whose position is the newest take it from shared memory.
static __device__ __forceinline__ void put_newest(const Attention *a, Pass &pass, int position) {
  const int nth = position - pass.first;
  if (nth >= PASS) return;
#pragma unroll
  for (int i = 0; i < 2 * KEY_BLOCKS; ++i) {
    const int column = i / 2 * 32 + lane_quad() * 8;
    if (lane_row() + i % 2 * 8 == nth && column < HEAD_DIM)
      pass.k[i % 2][i / 2] = *(const uint4 *)(a->k + column);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (lane_quad() + value_row(i) == nth && value_column() < HEAD_DIM)
      pass.v[i] = *(const uint4 *)(a->v + value_column());
  }
}

// Of query |quad|, at positions |row| and |row| + 8.
static __device__ __forceinline__ float2 scores_of(const Pass &pass,
                                                   const u16 (&question)[2 * KEY_BLOCKS][32][8], int end) {
  const int row = lane_row();
  float upper[4] = {}, lower[4] = {};
#pragma unroll
  for (int i = 0; i < 2 * KEY_BLOCKS; ++i) {
    const uint4 low = pass.k[0][i / 2], high = pass.k[1][i / 2],
                q = *(const uint4 *)question[i][threadIdx.x & 31];
    const uint4 keys = i % 2 ? uint4{low.z, high.z, low.w, high.w} : uint4{low.x, high.x, low.y, high.y};
    multiply(upper, keys, {q.x, q.y});
    multiply(lower, keys, row % 2 ? uint2{0, 0} : uint2{q.z, q.w});
  }
  return {pass.first + row < end ? upper[0] + upper[1] + lower[0] : NOTHING,
          pass.first + row + 8 < end ? upper[2] + upper[3] + lower[2] : NOTHING};
}

struct Mix {
  float peak, sum;    // of query |quad|; the sum of this lane's positions
  float mixed[8][4];  // rows of the sums: one of a query's first two parts, and its third
};

// The scores as factors of the values: an operand whose rows are the first parts of the queries, the second,
// the third.
static __device__ __forceinline__ uint4 weigh(Mix &mix, float2 score) {
  const int row = lane_row(), from = lane_quad() * 4 + (row & 3);
  float peak = fmaxf(mix.peak, fmaxf(score.x, score.y));
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes <<= 1) peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, lanes));
  const float keep = exp_of(mix.peak - peak);
  float2 p = {exp_of(score.x - peak), exp_of(score.y - peak)};
  mix.peak = peak;
  mix.sum = mix.sum * keep + p.x + p.y;
  const float ours = __shfl_sync(~0u, keep, row & 3);
  if (__any_sync(~0u, ours != 1.0f)) {
#pragma unroll
    for (int i = 0; i < 32; ++i) mix.mixed[i / 4][i % 4] *= ours;
  }
  u32 word[2][3];
#pragma unroll
  for (int part = 0; part < 3; ++part) {
    const u32 pair = to16x2(p.x, p.y);
    word[0][part] = __shfl_sync(~0u, pair, from);
    word[1][part] = __shfl_sync(~0u, pair, from + 16);
    p = {p.x - low16(pair), p.y - high16(pair)};
  }
  const bool second = row & 4;
  return {second ? word[0][1] : word[0][0], second ? 0 : word[0][2], second ? word[1][1] : word[1][0],
          second ? 0 : word[1][2]};
}

static __device__ __forceinline__ void mix_in(Mix &mix, const Pass &pass, uint4 weights) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    u32 v[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) v[n] = word_of(pass.v[n], i);
    multiply(mix.mixed[2 * i], weights, {__byte_perm(v[0], v[1], 0x5410), __byte_perm(v[2], v[3], 0x5410)});
    multiply(mix.mixed[2 * i + 1], weights,
             {__byte_perm(v[0], v[1], 0x7632), __byte_perm(v[2], v[3], 0x7632)});
  }
}

static __device__ __forceinline__ void mix_pass(Mix &mix, const Pass &pass, const Attention *a, int asked,
                                                int, int end) {
  mix_in(mix, pass, weigh(mix, scores_of(pass, a->question[asked / ASKED], end)));
}

// What this warp found, for the block.
static __device__ __forceinline__ void tell_block(Attention *a, Mix &mix, int query, int count) {
  const int warp = threadIdx.x >> 5, quad = lane_quad(), row = lane_row(),
            column = warp % SIDES * 64 + quad * 16;
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes <<= 1) mix.sum += __shfl_xor_sync(~0u, mix.sum, lanes);
  if (row == 0 && quad < count)
    a->peak[warp / SIDES][query + quad] = mix.peak, a->sum[warp / SIDES][query + quad] = mix.sum;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float value = mix.mixed[i % 8][i / 8] + mix.mixed[i % 8][i / 8 + 2];
    value += __shfl_xor_sync(~0u, value, 16);
    if (row < count && column < HEAD_DIM) a->mixed[warp / SIDES][query + row][column + i] = value;
  }
}
