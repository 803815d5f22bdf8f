// Decode: attention of a warp over 16-bit keys and values, on tensor cores.
//
// Not decode_attend32.cuh with narrower numbers: 16-bit keys and values are operands of tensor cores as they
// are stored, and only queries and softmax weights are split into parts. f32 keys and values would have to be
// split too, which takes more instructions per number than its multiply-adds with four queries.
#pragma once

#include "decode_pool.cuh"

struct Attend16 {
  using Attention = Attention16;
  static constexpr int KEY_BLOCKS = Attention::KEY_BLOCKS, VALUE_WARPS = Attention::VALUE_WARPS;

  // A number of a new key or value, as the pool holds it.
  static __device__ __forceinline__ u16 to_row(float x) { return KvNumber::narrow(x); }

  // Stores one number of a query in the layout of scores_of: columns 2i and 2i + 1 of one operand are the
  // first two parts of query i; column 2i of the other operand is its third part.
  static __device__ __forceinline__ void store_query(Attention *a, int query, int d, float value) {
    u16(*to)[8] =
        &a->query_data[query / QUERY_BATCH][d / 32 * 2 + d / 4 % 2][query % QUERY_BATCH * 8 + d / 8 % 4];
#pragma unroll
    for (int part = 0; part < 3; ++part) {
      const u16 rounded = KvNumber::narrow(value);
      to[part % 2 * 4][part / 2 * 4 + d % 4] = rounded;
      value -= KvNumber::widen(rounded);
    }
  }

  // A pass of a warp is 16 positions for four queries, on tensor cores. Lane 4 * row + quad holds eight
  // numbers of the keys of |row| and |row| + 8, starting at 8 * quad, of every 32. It holds eight numbers of
  // the values of positions |quad|, |quad| + 4, + 8 and + 12, starting at 8 * row. These are 64 columns; for
  // wider values several warps process the same positions. The order of the columns in an instruction is
  // free, as long as both operands use the same order.
  static constexpr int PASS = 16,
                       BUFFERS = HEAD_DIM <= 64 ? 2 : 1;  // passes that are loaded before the first is used

  struct Pass {
    int first;
    uint4 k[2][KEY_BLOCKS], v[4];
  };

  static __device__ __forceinline__ uint4 load16(const u16 *from) { return load_relaxed128(from); }

  static __device__ __forceinline__ int lane_row() { return (threadIdx.x & 31) >> 2; }
  static __device__ __forceinline__ int lane_quad() { return threadIdx.x & 3; }
  static __device__ __forceinline__ constexpr int value_row(int i) {  // relative to the quad's first position
    return (i & 1) * 8 + (i & 2) * 2;
  }

  static __device__ __forceinline__ int value_column() {
    return (int)(threadIdx.x >> 5) % VALUE_WARPS * 64 + lane_row() * 8;
  }

  // Loads positions from |first| up to |end|. The newest position is not in the pool yet.
  static __device__ __forceinline__ void load_pass(const Model &m, Pass &pass, int layer, int head, int first,
                                                   int end) {
    const int row = lane_row(), quad = lane_quad();
    const u16 *from =
        (const u16 *)kv_address(m, layer, head, first < end ? page_at(m, layer, first) : 0, first);
    const u16 *k = from + row * HEAD_DIM + quad * 8, *v = from + (PAGE + quad) * HEAD_DIM + value_column();
    pass.first = first;
#pragma unroll
    for (int i = 0; i < 2 * KEY_BLOCKS; ++i) {
      const int row_step = i % 2 * 8, column = i / 2 * 32;
      const bool valid = first + row + row_step < end && column + quad * 8 < HEAD_DIM;
      pass.k[i % 2][i / 2] = valid ? load16(k + row_step * HEAD_DIM + column) : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool valid = first + quad + value_row(i) < end && value_column() < HEAD_DIM;
      pass.v[i] = valid ? load16(v + value_row(i) * HEAD_DIM) : uint4{0, 0, 0, 0};
    }
  }

  // Lanes that hold the newest position copy it from shared memory.
  static __device__ __forceinline__ void insert_newest(const Attention *a, Pass &pass, int position) {
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

  // Scores of query |quad| at positions |row| and |row| + 8.
  static __device__ __forceinline__ float2 scores_of(const Pass &pass,
                                                     const u16 (&query_data)[2 * KEY_BLOCKS][32][8],
                                                     Visible visible) {
    const int row = lane_row();
    float upper[4] = {}, lower[4] = {};
#pragma unroll
    for (int i = 0; i < 2 * KEY_BLOCKS; ++i) {
      // Numbers of a query past HEAD_DIM are not set, and could be NaN.
      const bool exists = HEAD_DIM % 32 == 0 || i / 2 * 32 + lane_quad() * 8 < HEAD_DIM;
      const uint4 low = pass.k[0][i / 2], high = pass.k[1][i / 2],
                  q = exists ? *(const uint4 *)query_data[i][threadIdx.x & 31] : uint4{0, 0, 0, 0};
      const uint4 keys = i % 2 ? uint4{low.z, high.z, low.w, high.w} : uint4{low.x, high.x, low.y, high.y};
      KvNumber::multiply(upper, keys, {q.x, q.y});
      KvNumber::multiply(lower, keys, row % 2 ? uint2{0, 0} : uint2{q.z, q.w});
    }
    return {masked_score(visible, pass.first + row, upper[0] + upper[1] + lower[0]),
            masked_score(visible, pass.first + row + 8, upper[2] + upper[3] + lower[2])};
  }

  struct OnlineSoftmax {
    float peak, sum;  // of query |quad|; the sum covers this lane's positions
    float acc[8][4];  // rows: one of the first two parts of a query, and its third part
  };

  // Converts scores to softmax weights, as an operand whose rows are the first, second and third parts of the
  // queries' weights. Rescales the accumulator if the peak grows.
  static __device__ __forceinline__ uint4 softmax_weights(OnlineSoftmax &softmax, float2 score) {
    const int row = lane_row(), from = lane_quad() * 4 + (row & 3);
    float peak = fmaxf(softmax.peak, fmaxf(score.x, score.y));
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes <<= 1) peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, lanes));
    const float keep = exp_of(softmax.peak - peak);
    float2 p = {exp_of(score.x - peak), exp_of(score.y - peak)};
    softmax.peak = peak;
    softmax.sum = softmax.sum * keep + p.x + p.y;
    const float ours = __shfl_sync(~0u, keep, row & 3);
    if (__any_sync(~0u, ours != 1.0f)) {
#pragma unroll
      for (int i = 0; i < 32; ++i) softmax.acc[i / 4][i % 4] *= ours;
    }
    u32 fragment[2][3];
#pragma unroll
    for (int part = 0; part < 3; ++part) {
      const u32 pair = KvNumber::narrow2(p.x, p.y);
      fragment[0][part] = __shfl_sync(~0u, pair, from);
      fragment[1][part] = __shfl_sync(~0u, pair, from + 16);
      p = {p.x - KvNumber::low(pair), p.y - KvNumber::high(pair)};
    }
    const bool second = row & 4;
    return {second ? fragment[0][1] : fragment[0][0], second ? 0 : fragment[0][2],
            second ? fragment[1][1] : fragment[1][0], second ? 0 : fragment[1][2]};
  }

  static __device__ __forceinline__ void add_values(OnlineSoftmax &softmax, const Pass &pass, uint4 weights) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      u32 v[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) v[n] = component(pass.v[n], i);
      KvNumber::multiply(softmax.acc[2 * i], weights,
                         {__byte_perm(v[0], v[1], 0x5410), __byte_perm(v[2], v[3], 0x5410)});
      KvNumber::multiply(softmax.acc[2 * i + 1], weights,
                         {__byte_perm(v[0], v[1], 0x7632), __byte_perm(v[2], v[3], 0x7632)});
    }
  }

  static __device__ __forceinline__ void accumulate_pass(OnlineSoftmax &softmax, const Pass &pass,
                                                         const Attention *a, int first_query, int,
                                                         Visible visible) {
    add_values(softmax, pass,
               softmax_weights(softmax, scores_of(pass, a->query_data[first_query / QUERY_BATCH], visible)));
  }

  // Stores the warp's result for the block.
  static __device__ __forceinline__ void store_warp_result(Attention *a, OnlineSoftmax &softmax, int query,
                                                           int count) {
    const int warp = threadIdx.x >> 5, quad = lane_quad(), row = lane_row(),
              column = warp % VALUE_WARPS * 64 + quad * 16;
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes <<= 1) softmax.sum += __shfl_xor_sync(~0u, softmax.sum, lanes);
    if (row == 0 && quad < count)
      a->peak[warp / VALUE_WARPS][query + quad] = softmax.peak,
                                          a->sum[warp / VALUE_WARPS][query + quad] = softmax.sum;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float value = softmax.acc[i % 8][i / 8] + softmax.acc[i % 8][i / 8 + 2];
      value += __shfl_xor_sync(~0u, value, 16);
      const bool exists = column + (HEAD_DIM % 16 ? i : 0) < HEAD_DIM;
      if (row < count && exists) a->acc[warp / VALUE_WARPS][query + row][column + i] = value;
    }
  }
};
