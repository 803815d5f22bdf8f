// Decode: attention of a warp over f32 or 8-bit keys and values, computed in f32 without tensor cores.
// decode_attend16.cuh says why it is apart.
//
// A pass of a warp is PASS positions for four queries. Lane KEY_LANES * row + quad holds some groups of four
// numbers of the key of |row| (and of |row| + 8 with 16 positions). Of the values every lane holds some
// groups of VALUE_VECTOR numbers, for all positions; with several VALUE_WARPS, of some columns only.
#pragma once

#include "decode_pool.cuh"

// CODES: they have 8 bits.
template <bool CODES>
struct Attend32 {
  using Attention = Attention32;
  using T = typename Select<CODES, u8, float>::Type;  // of the pool
  static constexpr int VALUE_WARPS = Attention::VALUE_WARPS;
  static constexpr int KEY_LANES = HEAD_DIM <= 128 || VALUE_WARPS > 1 ? 4 : 8;
  static constexpr int PASS = HEAD_DIM <= 64 ? 16 : 32 / KEY_LANES, BUFFERS = 1;
  static constexpr int KEY_ROWS = PASS * KEY_LANES / 32, ROW_STEP = 32 / KEY_LANES, KEY_STEP = 4 * KEY_LANES;
  static constexpr int KEY_FOURS = ceil_div(HEAD_DIM, KEY_STEP);
  static constexpr int VALUE_COLUMNS = ceil_div(HEAD_DIM, 32 * VALUE_WARPS);
  static constexpr int VALUE_VECTOR = VALUE_COLUMNS % 4 == 0 ? 4 : 1;
  static constexpr int QUERIES = min_of(QUERY_BATCH, GROUP);  // of a pass

  // A number of a new key or value.
  static __device__ __forceinline__ float to_row(float x) { return x; }

  static __device__ __forceinline__ void store_query(Attention *a, int query, int d, float value) {
    a->query_data[query][d] = value;
  }

  struct Pass {
    int first;
    float4 k[KEY_ROWS][KEY_FOURS];
    float v[PASS][VALUE_COLUMNS];
  };

  static __device__ __forceinline__ int lane_row() { return (threadIdx.x & 31) / KEY_LANES; }
  static __device__ __forceinline__ int lane_quad() { return threadIdx.x % KEY_LANES; }
  // Whether a lane's |nth| group of four numbers of a key exists.
  static __device__ __forceinline__ bool has_four(int nth) {
    return HEAD_DIM % KEY_STEP == 0 || nth * KEY_STEP + lane_quad() * 4 < HEAD_DIM;
  }
  static __device__ __forceinline__ int value_column(int i) {
    const int vector =
        (int)threadIdx.x / 32 % VALUE_WARPS * (VALUE_COLUMNS / VALUE_VECTOR) + i / VALUE_VECTOR;
    return (vector * 32 + (int)(threadIdx.x & 31)) * VALUE_VECTOR + i % VALUE_VECTOR;
  }

  // The scale of |row| of a block of codes; |codes| points to row 0 of the pass, |place| is its index in the
  // page.
  static __device__ __forceinline__ float scale_of(const u8 *codes, int place, int row) {
    return __uint_as_float(load_relaxed_word(codes + (PAGE - place) * HEAD_DIM + (place + row) * 4));
  }

  static __device__ __forceinline__ float4 load_codes4(const u8 *from, float scale) {
    const u32 codes = load_relaxed_word(from);
    return {(float)(signed char)codes * scale, (float)(signed char)(codes >> 8) * scale,
            (float)(signed char)(codes >> 16) * scale, (float)(signed char)(codes >> 24) * scale};
  }

  static __device__ __forceinline__ float load_code(const u8 *from, float scale) {
    return (float)load_relaxed_s8(from) * scale;
  }

  // Quantizes a row in shared memory to the values that the pool holds. If |pool| is set, also stores codes
  // and scale there. Called by a whole warp.
  static __device__ __forceinline__ void quantize_row(float *row, u8 *pool, int place) {
    const int lane = threadIdx.x & 31;
    float largest = 0;
    for (int i = lane; i < HEAD_DIM; i += 32) largest = fmaxf(largest, fabsf(row[i]));
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes <<= 1)
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lanes));
    const float inverse = largest > 0 ? 127 / largest : 0, scale = largest / 127;
    for (int i = lane; i < HEAD_DIM; i += 32) {
      const int code = __float2int_rn(row[i] * inverse);
      row[i] = (float)code * scale;
      if (pool) pool[i] = (u8)code;
    }
    if (pool && lane == 0) *(float *)(pool + (PAGE - place) * HEAD_DIM + place * 4) = scale;
  }

  // Four numbers of the pool, or one. |scale|: of codes.
  static __device__ __forceinline__ float4 load_four(const T *from, float scale) {
    if constexpr (CODES)
      return load_codes4(from, scale);
    else
      return load_relaxed4(from);
  }
  static __device__ __forceinline__ float load_one(const T *from, float scale) {
    if constexpr (CODES)
      return load_code(from, scale);
    else
      return load_relaxed(from);
  }

  // Loads positions from |first| up to |end|. The newest position is not in the pool yet.
  static __device__ __forceinline__ void load_pass(const Model &m, Pass &pass, int layer, int head, int first,
                                                   int end) {
    const T *from = (const T *)kv_address(m, layer, head, first < end ? page_at(m, layer, first) : 0, first);
    const T *k = from + lane_row() * HEAD_DIM + lane_quad() * 4, *v = from + KV_BLOCK;
    pass.first = first;
    [[maybe_unused]] const int place = first % PAGE;
    float scale[CODES ? PASS : 1];
    if constexpr (CODES) {
#pragma unroll
      for (int i = 0; i < KEY_ROWS; ++i)
        scale[i] =
            first + lane_row() + i * ROW_STEP < end ? scale_of(from, place, lane_row() + i * ROW_STEP) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < KEY_ROWS * KEY_FOURS; ++i) {
      const int row_step = i / KEY_FOURS * ROW_STEP, column = i % KEY_FOURS * KEY_STEP;
      const bool valid = first + lane_row() + row_step < end && has_four(i % KEY_FOURS);
      pass.k[i / KEY_FOURS][i % KEY_FOURS] =
          valid ? load_four(k + row_step * HEAD_DIM + column, CODES ? scale[CODES ? i / KEY_FOURS : 0] : 0)
                : float4{0, 0, 0, 0};
    }
    if constexpr (CODES) {
#pragma unroll
      for (int i = 0; i < PASS; ++i) scale[i] = first + i < end ? scale_of(v, place, i) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < PASS * VALUE_COLUMNS; i += VALUE_VECTOR) {
      const int position = i / VALUE_COLUMNS, column = value_column(i % VALUE_COLUMNS);
      const bool valid = first + position < end && column < HEAD_DIM;
      const T *at = v + position * HEAD_DIM + column;
      float *to = &pass.v[position][i % VALUE_COLUMNS];
      if constexpr (VALUE_VECTOR == 4) {
        const float4 four =
            valid ? load_four(at, CODES ? scale[CODES ? position : 0] : 0) : float4{0, 0, 0, 0};
        to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
      } else {
        *to = valid ? load_one(at, CODES ? scale[CODES ? position : 0] : 0) : 0.0f;
      }
    }
  }

  // Lanes that hold the newest position copy it from shared memory.
  static __device__ __forceinline__ void insert_newest(const Attention *a, Pass &pass, int position) {
    const int nth = position - pass.first;
    if (nth >= PASS) return;
#pragma unroll
    for (int i = 0; i < KEY_ROWS * KEY_FOURS; ++i) {
      if (lane_row() + i / KEY_FOURS * ROW_STEP != nth || !has_four(i % KEY_FOURS)) continue;
      pass.k[i / KEY_FOURS][i % KEY_FOURS] =
          *(const float4 *)(a->k + i % KEY_FOURS * KEY_STEP + lane_quad() * 4);
    }
#pragma unroll
    for (int i = 0; i < PASS * VALUE_COLUMNS; ++i) {
      const int column = value_column(i % VALUE_COLUMNS);
      if (i / VALUE_COLUMNS == nth && column < HEAD_DIM)
        pass.v[i / VALUE_COLUMNS][i % VALUE_COLUMNS] = a->v[column];
    }
  }

  struct OnlineSoftmax {
    float peak, sum;  // of query |quad|; the sum covers this lane's positions
    float acc[QUERIES][VALUE_COLUMNS];
  };

  static __device__ __forceinline__ float dot(float4 a, float4 b, float sum) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
  }

  // Scores of query |quad| at positions |row| + i * ROW_STEP.
  static __device__ __forceinline__ void scores_of(const Pass &pass, const Attention *a, int first_query,
                                                   int queries, Visible visible, float (&score)[KEY_ROWS]) {
#pragma unroll
    for (int q = 0; q < QUERIES; ++q) {
      if (first_query + q >= queries) break;
      float sum[KEY_ROWS] = {};
#pragma unroll
      for (int i = 0; i < KEY_FOURS; ++i) {
        if (!has_four(i)) break;
        const float4 query_data =
            *(const float4 *)(a->query_data[first_query + q] + i * KEY_STEP + lane_quad() * 4);
#pragma unroll
        for (int r = 0; r < KEY_ROWS; ++r) sum[r] = dot(pass.k[r][i], query_data, sum[r]);
      }
#pragma unroll
      for (int r = 0; r < KEY_ROWS; ++r) {
#pragma unroll
        for (int lanes = 1; lanes < KEY_LANES; lanes <<= 1) sum[r] += __shfl_xor_sync(~0u, sum[r], lanes);
        if (lane_quad() == q)
          score[r] = masked_score(visible, pass.first + lane_row() + r * ROW_STEP, sum[r]);
      }
    }
  }

  static __device__ __forceinline__ void accumulate_pass(OnlineSoftmax &softmax, const Pass &pass,
                                                         Attention *a, int first_query, int queries,
                                                         Visible visible) {
    float4 *factors = a->factors[threadIdx.x >> 5];
    float score[KEY_ROWS] = {}, peak = softmax.peak;
    scores_of(pass, a, first_query, queries, visible, score);
#pragma unroll
    for (int r = 0; r < KEY_ROWS; ++r) peak = fmaxf(peak, score[r]);
#pragma unroll
    for (int lanes = KEY_LANES; lanes < 32; lanes <<= 1)
      peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, lanes));
    const float keep = exp_of(softmax.peak - peak);
    softmax.peak = peak;
    softmax.sum *= keep;
#pragma unroll
    for (int r = 0; r < KEY_ROWS; ++r) {
      const float factor = exp_of(score[r] - peak);
      softmax.sum += factor;
      if (KEY_LANES == 4 || lane_quad() < 4)
        ((float *)&factors[lane_row() + r * ROW_STEP])[lane_quad()] = factor;
    }
#pragma unroll
    for (int i = 0; i < QUERIES * VALUE_COLUMNS; ++i)
      softmax.acc[i / VALUE_COLUMNS][i % VALUE_COLUMNS] *= __shfl_sync(~0u, keep, i / VALUE_COLUMNS);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < PASS; ++i) {
      const float4 factor = factors[i];
#pragma unroll
      for (int c = 0; c < VALUE_COLUMNS; ++c) {
#pragma unroll
        for (int q = 0; q < QUERIES; ++q) {
          const float weight = q == 0 ? factor.x : q == 1 ? factor.y : q == 2 ? factor.z : factor.w;
          softmax.acc[q][c] = fmaf(weight, pass.v[i][c], softmax.acc[q][c]);
        }
      }
    }
    __syncwarp();
  }

  // Stores the warp's result for the block.
  static __device__ __forceinline__ void store_warp_result(Attention *a, OnlineSoftmax &softmax, int query,
                                                           int count) {
    const int warp = threadIdx.x / 32 / VALUE_WARPS, quad = lane_quad();
#pragma unroll
    for (int lanes = KEY_LANES; lanes < 32; lanes <<= 1)
      softmax.sum += __shfl_xor_sync(~0u, softmax.sum, lanes);
    if (lane_row() == 0 && quad < count)
      a->peak[warp][query + quad] = softmax.peak, a->sum[warp][query + quad] = softmax.sum;
#pragma unroll
    for (int i = 0; i < QUERIES * VALUE_COLUMNS; ++i) {
      const int column = value_column(i % VALUE_COLUMNS);
      if (i / VALUE_COLUMNS < count && column < HEAD_DIM)
        a->acc[warp][query + i / VALUE_COLUMNS][column] = softmax.acc[i / VALUE_COLUMNS][i % VALUE_COLUMNS];
    }
  }
};
