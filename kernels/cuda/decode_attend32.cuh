// Decode: how a warp answers queries when keys and values are f32: with plain multiplications, all of them in
// f32.
//
// A pass of a warp is POSITIONS positions for four queries. Lane 4 * row + quad has of the key of |row| (and
// |row| + 8) every fourth group of four numbers; of the values every lane has every 32nd number, of all
// positions.

#define PASS (HEAD_DIM <= 64 ? 16 : 8)
#define ROUND (WARPS * PASS)
#define BUFFERS 1
#define KEY_ROWS (PASS / 8)
#define KEY_FOURS (HEAD_DIM / 16)
#define VALUE_COLUMNS ceil_div(HEAD_DIM, 32)
static_assert(PAGE % PASS == 0, "a pass lies in one page");

static __device__ __forceinline__ void ask(Attention *a, int query, int d, float value) {
  a->question[query][d] = value;
}

struct Pass {
  int first;
  float4 k[KEY_ROWS][KEY_FOURS];
  float v[PASS][VALUE_COLUMNS];
};

static __device__ __forceinline__ int lane_row() { return (threadIdx.x & 31) >> 2; }
static __device__ __forceinline__ int lane_quad() { return threadIdx.x & 3; }
static __device__ __forceinline__ int value_column(int i) { return (int)(threadIdx.x & 31) + i * 32; }

// Positions from |first| on that are below |end|; the newest one is not there yet.
static __device__ __forceinline__ void load_pass(const Model &m, Pass &pass, int layer, int head, int first,
                                                 int end) {
  const float *from = kv_place(m, layer, head, first < end ? __ldg(m.pages + first / PAGE) : 0, first);
  const float *k = from + lane_row() * HEAD_DIM + lane_quad() * 4, *v = from + PAGE * HEAD_DIM;
  pass.first = first;
#pragma unroll
  for (int i = 0; i < KEY_ROWS * KEY_FOURS; ++i) {
    const int further = i / KEY_FOURS * 8, column = i % KEY_FOURS * 16;
    pass.k[i / KEY_FOURS][i % KEY_FOURS] =
        first + lane_row() + further < end ? look4(k + further * HEAD_DIM + column) : float4{0, 0, 0, 0};
  }
#pragma unroll
  for (int i = 0; i < PASS * VALUE_COLUMNS; ++i) {
    const int position = i / VALUE_COLUMNS, column = value_column(i % VALUE_COLUMNS);
    const bool there = first + position < end && column < HEAD_DIM;
    pass.v[position][i % VALUE_COLUMNS] = there ? look(v + position * HEAD_DIM + column) : 0.0f;
  }
}

// Lanes whose position is the newest take it from shared memory.
static __device__ __forceinline__ void put_newest(const Attention *a, Pass &pass, int position) {
  const int nth = position - pass.first;
  if (nth >= PASS) return;
#pragma unroll
  for (int i = 0; i < KEY_ROWS * KEY_FOURS; ++i) {
    if (lane_row() + i / KEY_FOURS * 8 != nth) continue;
    pass.k[i / KEY_FOURS][i % KEY_FOURS] = *(const float4 *)(a->k + i % KEY_FOURS * 16 + lane_quad() * 4);
  }
#pragma unroll
  for (int i = 0; i < PASS * VALUE_COLUMNS; ++i) {
    const int column = value_column(i % VALUE_COLUMNS);
    if (i / VALUE_COLUMNS == nth && column < HEAD_DIM)
      pass.v[i / VALUE_COLUMNS][i % VALUE_COLUMNS] = a->v[column];
  }
}

struct Mix {
  float peak, sum;  // of query |quad|; the sum of this lane's positions
  float mixed[ASKED][VALUE_COLUMNS];
};

static __device__ __forceinline__ float dot(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// Of query |quad|, at positions |row| and |row| + 8.
static __device__ __forceinline__ void scores_of(const Pass &pass, const Attention *a, int asked, int queries,
                                                 int end, float (&score)[KEY_ROWS]) {
#pragma unroll
  for (int q = 0; q < ASKED; ++q) {
    if (asked + q >= queries) break;
    float sum[KEY_ROWS] = {};
#pragma unroll
    for (int i = 0; i < KEY_FOURS; ++i) {
      const float4 question = *(const float4 *)(a->question[asked + q] + i * 16 + lane_quad() * 4);
#pragma unroll
      for (int r = 0; r < KEY_ROWS; ++r) sum[r] = dot(pass.k[r][i], question, sum[r]);
    }
#pragma unroll
    for (int r = 0; r < KEY_ROWS; ++r) {
      sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
      sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
      if (lane_quad() == q) score[r] = pass.first + lane_row() + r * 8 < end ? sum[r] : NOTHING;
    }
  }
}

static __device__ __forceinline__ void mix_pass(Mix &mix, const Pass &pass, Attention *a, int asked,
                                                int queries, int end) {
  float4 *factors = a->factors[threadIdx.x >> 5];
  float score[KEY_ROWS] = {}, peak = mix.peak;
  scores_of(pass, a, asked, queries, end, score);
#pragma unroll
  for (int r = 0; r < KEY_ROWS; ++r) peak = fmaxf(peak, score[r]);
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes <<= 1) peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, lanes));
  const float keep = exp_of(mix.peak - peak);
  mix.peak = peak;
  mix.sum *= keep;
#pragma unroll
  for (int r = 0; r < KEY_ROWS; ++r) {
    const float factor = exp_of(score[r] - peak);
    mix.sum += factor;
    ((float *)&factors[lane_row() + r * 8])[lane_quad()] = factor;
  }
#pragma unroll
  for (int i = 0; i < ASKED * VALUE_COLUMNS; ++i)
    mix.mixed[i / VALUE_COLUMNS][i % VALUE_COLUMNS] *= __shfl_sync(~0u, keep, i / VALUE_COLUMNS);
  __syncwarp();
#pragma unroll
  for (int i = 0; i < PASS; ++i) {
    const float4 factor = factors[i];
#pragma unroll
    for (int c = 0; c < VALUE_COLUMNS; ++c) {
      mix.mixed[0][c] = fmaf(factor.x, pass.v[i][c], mix.mixed[0][c]);
      mix.mixed[1][c] = fmaf(factor.y, pass.v[i][c], mix.mixed[1][c]);
      mix.mixed[2][c] = fmaf(factor.z, pass.v[i][c], mix.mixed[2][c]);
      mix.mixed[3][c] = fmaf(factor.w, pass.v[i][c], mix.mixed[3][c]);
    }
  }
  __syncwarp();
}

// What this warp found, for the block.
static __device__ __forceinline__ void tell_block(Attention *a, Mix &mix, int query, int count) {
  const int warp = threadIdx.x >> 5, quad = lane_quad();
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes <<= 1) mix.sum += __shfl_xor_sync(~0u, mix.sum, lanes);
  if (lane_row() == 0 && quad < count)
    a->peak[warp][query + quad] = mix.peak, a->sum[warp][query + quad] = mix.sum;
#pragma unroll
  for (int i = 0; i < ASKED * VALUE_COLUMNS; ++i) {
    const int column = value_column(i % VALUE_COLUMNS);
    if (i / VALUE_COLUMNS < count && column < HEAD_DIM)
      a->mixed[warp][query + i / VALUE_COLUMNS][column] = mix.mixed[i / VALUE_COLUMNS][i % VALUE_COLUMNS];
  }
}
