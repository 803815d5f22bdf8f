// Attention of long segments with wgmma (sm_90a): part of attention_f32.cu, for config.warpgroups.
//
// A block has 128 queries: two warpgroups of 64, which compute, and two that read keys and values. All
// products are of f16 numbers: a row of queries, keys or values is scaled by a power of two, so that its
// largest number is in [2^14, 2^15), and each number is the sum of two f16 parts of 11 bits. Numbers below
// 2^-16 of the largest have fewer bits, down to an error of 2^-39 of the largest. The product of two low
// parts is below 2^-23 of the result and left out.
//
// Keys are added in units of STEP positions. The softmax weights of a unit are powers of two of
//
//   score * log2(e) - exponent of the scale of the value's row - |top| + WEIGHT_BITS
//
// |top| is the largest of these numbers so far, without WEIGHT_BITS, rounded up to an integer, so that a
// change of |top| rounds nothing. The sum of a unit is added in f32, because tensor cores truncate sums.
//
// The result of a query depends on the keys that it sees, not on its tile: a unit that it does not see
// changes nothing, and the scale of a row depends on that row only.
//
// Not the tiles of attention_f32.cu, which are for every GPU: wgmma reads keys and values from shared memory,
// where two warpgroups put them, and its schedule has nothing in common with the loads of a warp. It is three
// times as fast (docs/lab/2026-11-19-attention.md).
#pragma once

#include "attention_work.cuh"

constexpr int WIDE = config.warpgroups ? (HEAD_DIM + 63) / 64 * 64 : 64,
              COLUMNS64 = WIDE / 64;                // in shared memory
constexpr int TILE_BYTES = 64 * 128;                // 64 rows of 64 columns, with a swizzle of 128 bytes
constexpr int PART_BYTES = COLUMNS64 * TILE_BYTES;  // high or low parts of 64 rows
constexpr int ROWS_BYTES = 2 * PART_BYTES;          // high parts, then low parts
constexpr int COMPUTING = 256, COPYING = 128;       // threads
constexpr float WEIGHT_BITS = 14;
constexpr int MOST_SHIFT = 60;  // of the scale of a row

// Dynamic shared memory, from a multiple of 1024 bytes on: queries [2] ROWS_BYTES, keys and values [STAGES]
// ROWS_BYTES each, the f32 numbers and the barriers. warpgroups_bytes (compiler/cuda_launch.c) has its size.
constexpr int KEYS_AT = 2 * ROWS_BYTES, VALUES_AT = KEYS_AT + STAGES * ROWS_BYTES;
constexpr int NUMBERS_AT = VALUES_AT + STAGES * ROWS_BYTES;
struct Shared {
  unsigned char *base;
  __device__ __forceinline__ explicit Shared(unsigned char *memory)
      : base(memory + -shared_address(memory) % 1024) {}
  __device__ __forceinline__ unsigned char *queries(int group) const { return base + group * ROWS_BYTES; }
  __device__ __forceinline__ unsigned char *keys(u32 stage) const {
    return base + KEYS_AT + stage * ROWS_BYTES;
  }
  __device__ __forceinline__ unsigned char *values(u32 stage) const {
    return base + VALUES_AT + stage * ROWS_BYTES;
  }
  // [QUERIES] inverse scales and positions of queries
  __device__ __forceinline__ float *query_scales() const { return (float *)(base + NUMBERS_AT); }
  __device__ __forceinline__ int *positions() const { return (int *)query_scales() + QUERIES; }
  // [STEP] inverse scales of keys; minus the exponents of the scales of values, and these scales
  __device__ __forceinline__ float *key_scales(u32 stage) const {
    return query_scales() + 2 * QUERIES + stage * 3 * STEP;
  }
  __device__ __forceinline__ float *value_shifts(u32 stage) const { return key_scales(stage) + STEP; }
  __device__ __forceinline__ float *value_scales(u32 stage) const { return key_scales(stage) + 2 * STEP; }
  // Barriers of keys or values
  __device__ __forceinline__ u64 *full(bool values, u32 stage) const {
    return (u64 *)key_scales(STAGES) + values * STAGES + stage;
  }
  __device__ __forceinline__ u64 *empty(bool values, u32 stage) const {
    return full(values, stage) + 2 * STAGES;
  }
};

// ---- rows as two f16 parts ----

// The columns of a row that one of its 8 lanes has: of each 64, four from 4 * (lane % 8) on and those 32
// columns further. They are neighbours in shared memory, for queries, keys and values alike.
struct Piece {
  float x[COLUMNS64][8];
  __device__ __forceinline__ void load(const float *row, bool valid) {
    const int lane = threadIdx.x % 8;
#pragma unroll
    for (int t = 0; t < COLUMNS64; t++) {
#pragma unroll
      for (int i = 0; i < 8; i += 4) {
        const int column = t * 64 + i * 8 + lane * 4;
        uint4 f = make_uint4(0, 0, 0, 0);
        if (valid && column < HEAD_DIM) f = load_once128(row + column);
        x[t][i] = __uint_as_float(f.x), x[t][i + 1] = __uint_as_float(f.y);
        x[t][i + 2] = __uint_as_float(f.z), x[t][i + 3] = __uint_as_float(f.w);
      }
    }
  }
  // The exponent of the scale of the row.
  __device__ __forceinline__ int find_shift() const {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < COLUMNS64 * 8; i++) largest = fmaxf(largest, fabsf(x[i / 8][i % 8]));
#pragma unroll
    for (int other = 1; other < 8; other *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, other));
    return min(127 + 14 - (int)(__float_as_uint(largest) >> 23), MOST_SHIFT);
  }
  // Stores both parts of the row |nth| of 64 at |to|.
  __device__ __forceinline__ void store(unsigned char *to, int nth, int shift) const {
    const float scale = scale_of(shift);
    unsigned char *row = to + nth * 128 + (threadIdx.x % 8 ^ nth % 8) * 16;
#pragma unroll
    for (int t = 0; t < COLUMNS64; t++) {
      u32 high[4], low[4];
#pragma unroll
      for (int i = 0; i < 4; i++) split_f16(high[i], low[i], x[t][2 * i] * scale, x[t][2 * i + 1] * scale);
      *(uint4 *)(row + t * TILE_BYTES) = make_uint4(high[0], high[1], high[2], high[3]);
      *(uint4 *)(row + PART_BYTES + t * TILE_BYTES) = make_uint4(low[0], low[1], low[2], low[3]);
    }
  }
  // The column of a head that has the column |at|, an even number, in shared memory.
  static __device__ __forceinline__ int column_of(int at) {
    return at / 64 * 64 + at % 8 / 4 * 32 + at % 64 / 8 * 4 + at % 4;
  }
  static __device__ __forceinline__ float scale_of(int shift) { return __int_as_float((127 + shift) << 23); }
};

// ---- the third and fourth warpgroup: keys and values ----

// A warp copies a page of each unit: 4 rows at a time, 8 lanes per row. A warpgroup copies keys or values.
static_assert(!config.warpgroups || (STEP == 64 && PAGE == 16), "a warp per page");
template <bool VALUES>
struct Copier {
  const Shared &shared;
  const Pages &pages;
  const float *first;  // row of page 0 that this lane copies first
  u64 page_floats;     // from a page to the next
  int position;        // of the first row of the next unit
  int units, visible;  // as in Work
  Piece pieces[2];

  __device__ __forceinline__ Copier(const Shared &s, const Pages &p, const Work &work, const float *pool)
      : shared(s), pages(p), units(work.units), visible(work.visible) {
    page_floats = pages.page_bytes / 4;
    first =
        pool + pages.start / 4 + (work.head * 2 + VALUES) * PAGE * HEAD_DIM + threadIdx.x % 32 / 8 * HEAD_DIM;
    position = work.begin * STEP + row_of(0);
  }
  static __device__ __forceinline__ int row_of(int nth) {
    return threadIdx.x % 128 / 32 * PAGE + threadIdx.x % 32 / 8 + nth * 4;
  }
  // The first row that this lane copies of the next unit; NULL if there is none.
  __device__ __forceinline__ const float *find() const {
    if (position >= visible || position >= pages.positions) return nullptr;
    const int page = pages.table[position / PAGE];
    return (u32)page < (u32)pages.pool ? first + page * page_floats : nullptr;
  }
  __device__ __forceinline__ void load(int nth, const float *from, int at) {
    pieces[nth % 2].load(from + nth * 4 * HEAD_DIM, from && at + nth * 4 < visible);
  }
  __device__ __forceinline__ void run() {
    const float *from = find();
    load(0, from, position);
    load(1, from, position);
    for (int unit = 0; unit < units; unit++) {
      const u32 stage = (u32)unit % STAGES;
      position += STEP;
      const float *next = find();
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        int shift[2];  // of both rows, before the next loads: a warp waits for all of its loads at once
#pragma unroll
        for (int n = 0; n < 2; n++) shift[n] = pieces[n].find_shift();
        if (i == 0) barrier_wait(shared.empty(VALUES, stage), (u32)unit / STAGES % 2 ^ 1);
#pragma unroll
        for (int n = 0; n < 2; n++) {
          const int row = row_of(i + n);
          pieces[n].store(VALUES ? shared.values(stage) : shared.keys(stage), row, shift[n]);
          load((i + n + 2) % 4, i ? next : from, i ? position : position - STEP);
          if (threadIdx.x % 8) continue;
          if (VALUES) {
            shared.value_shifts(stage)[row] = (float)-shift[n];
            shared.value_scales(stage)[row] = Piece::scale_of(shift[n]);
          } else {
            shared.key_scales(stage)[row] = Piece::scale_of(-shift[n]);
          }
        }
      }
      fence_async_proxy();
      barrier_arrive(shared.full(VALUES, stage));
      from = next;
    }
  }
};

// ---- the other two: products and softmax ----

// Of a lane: rows lane / 4 and lane / 4 + 8 of its warp's 16; columns 8 i + 2 (lane % 4) and the next one of
// fragment i.
struct Attender {
  const Shared &shared;
  int group;                     // warpgroup
  u32 queries;                   // its queries in shared memory, see start_of
  float query_scale[2];          // inverse scales of the queries
  float turn[2];                 // what makes |score| a score in base 2
  float sum[WIDE / 8][4] = {};   // of weight * value
  float top[2], weight[2] = {};  // see above; sums of the weights, in the scale of |sum|

  __device__ __forceinline__ Attender(const Shared &s, int nth) : shared(s), group(nth) {
    queries = start_of(shared_address(s.queries(nth)));
    top[0] = top[1] = NO_SCORE;
  }

  // Reads, splits and stores the queries of the warpgroup.
  __device__ __forceinline__ void load_queries(const Work &work, const float *q, int width) {
    const int warp = threadIdx.x / 32, first = work.tile.query + warp * 16;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int row = i * 4 + threadIdx.x % 32 / 8;
      const bool some = first + row < work.end_query;
      Piece piece;
      piece.load(some ? q + work.offset_of(first + row, width) : q, some);
      const int shift = piece.find_shift();
      piece.store(shared.queries(group), warp % 4 * 16 + row, shift);
      if (threadIdx.x % 8) continue;
      shared.query_scales()[warp * 16 + row] = Piece::scale_of(-shift);
      shared.positions()[warp * 16 + row] = work.position_of(first + row);
    }
    fence_async_proxy();
    sync_group<128>(1 + group);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      query_scale[half] = shared.query_scales()[warp * 16 + lane_row() + half * 8];
      turn[half] = CAPPED ? SCALE2 : SCALE2 * query_scale[half];
    }
  }

  // The low word of the matrix descriptor of a tile, and the descriptor: sums of words are quicker than of
  // descriptors.
  static __device__ __forceinline__ u32 start_of(u32 address) { return (u32)matrix_descriptor(address); }
  static __device__ __forceinline__ u64 tile_of(u32 start) {
    return matrix_descriptor(0) & ~0xffffffffull | start;
  }

  // Scores without the query's scale. |score| sums the products with a low part and those of columns from 64
  // on; |large| those of the first 64 columns, because tensor cores truncate long sums.
  __device__ __forceinline__ void score_keys(float (&score)[8][4], const unsigned char *keys,
                                             const float *scales) {
    float large[8][4];
    const u32 a = queries, b = start_of(shared_address(keys));
    constexpr int LOW = PART_BYTES >> 4;
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < WIDE / 16; i++) {
      const int at = i / 4 * (TILE_BYTES >> 4) + i % 4 * 2;
      if (i == 0)
        wgmma<64, false>(F16(), score, tile_of(a + LOW), tile_of(b));
      else
        wgmma<64>(F16(), score, tile_of(a + at + LOW), tile_of(b + at));
      wgmma<64>(F16(), score, tile_of(a + at), tile_of(b + at + LOW));
    }
#pragma unroll
    for (int i = 0; i < WIDE / 16; i++) {
      const int at = i / 4 * (TILE_BYTES >> 4) + i % 4 * 2;
      if (i == 0)
        wgmma<64, false>(F16(), large, tile_of(a), tile_of(b));
      else
        wgmma<64>(F16(), i / 4 ? score : large, tile_of(a + at), tile_of(b + at));
    }
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const float2 scale = *(const float2 *)(scales + i * 8 + lane_quad() * 2);
#pragma unroll
      for (int e = 0; e < 4; e++) {
        score[i][e] = (score[i][e] + large[i][e]) * (e % 2 ? scale.y : scale.x);
        if constexpr (CAPPED) score[i][e] = cap_score(score[i][e] * query_scale[e / 2]);
      }
    }
  }

  // Minus infinity for the keys from |key| on that a query does not see.
  __device__ __forceinline__ void mask(float (&score)[8][4], int key, int window) const {
    const int *positions = shared.positions() + threadIdx.x / 32 * 16 + lane_row();
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int own = positions[half * 8];
#pragma unroll
      for (int i = 0; i < 16; i++)
        if (is_masked(key + i / 2 * 8 + lane_quad() * 2 + i % 2, own, window))
          score[i / 2][half * 2 + i % 2] = -__int_as_float(0x7f800000);
    }
  }

  // Updates |top|. Returns the factors of the sums so far.
  __device__ __forceinline__ float2 find_top(const float (&score)[8][4], const float *shifts) {
    float peak[2] = {NO_SCORE, NO_SCORE}, factor[2];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const float2 shift = *(const float2 *)(shifts + i * 8 + lane_quad() * 2);
#pragma unroll
      for (int e = 0; e < 4; e++)
        peak[e / 2] = fmaxf(peak[e / 2], fmaf(score[i][e], turn[e / 2], e % 2 ? shift.y : shift.x));
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
      peak[half] = fmaxf(peak[half], __shfl_xor_sync(~0u, peak[half], 1));
      peak[half] = fmaxf(peak[half], __shfl_xor_sync(~0u, peak[half], 2));
      const float now = fmaxf(top[half], ceilf(peak[half]));
      factor[half] = power2(top[half] - now);
      top[half] = now, weight[half] *= factor[half];
    }
    return make_float2(factor[0], factor[1]);
  }

  // Turns scores into two f16 parts of the softmax weights, as rows of a product with values, and adds the
  // weights.
  __device__ __forceinline__ void split_weights(u32 (&high)[4][4], u32 (&low)[4][4],
                                                const float (&score)[8][4], const float *shifts,
                                                const float *scales) {
    const float down[2] = {WEIGHT_BITS - top[0], WEIGHT_BITS - top[1]};
    float unit[2] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const float2 shift = *(const float2 *)(shifts + i * 8 + lane_quad() * 2),
                   scale = *(const float2 *)(scales + i * 8 + lane_quad() * 2);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float a = power2(fmaf(score[i][half * 2], turn[half], down[half] + shift.x)),
                    b = power2(fmaf(score[i][half * 2 + 1], turn[half], down[half] + shift.y));
        unit[half] = fmaf(b, scale.y, fmaf(a, scale.x, unit[half]));
        split_f16(high[i / 2][i % 2 * 2 + half], low[i / 2][i % 2 * 2 + half], a, b);
      }
    }
    weight[0] += unit[0], weight[1] += unit[1];
  }

  __device__ __forceinline__ void add_values(const u32 (&high)[4][4], const u32 (&low)[4][4],
                                             const unsigned char *values, float2 factor) {
    constexpr int LOW = PART_BYTES >> 4;
#pragma unroll
    for (int t = 0; t < COLUMNS64; t++) {
      float unit[8][4];
      const u32 b = start_of(shared_address(values + t * TILE_BYTES));
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; i++) {  // 16 keys
        const int at = i * (16 * 128 >> 4);
        wgmma_columns(unit, low[i], tile_of(b + at), i > 0);
        wgmma_columns(unit, high[i], tile_of(b + at + LOW), true);
      }
#pragma unroll
      for (int i = 0; i < 4; i++) wgmma_columns(unit, high[i], tile_of(b + i * (16 * 128 >> 4)), true);
      wgmma_commit();
      wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < 32; i++) {
        float &s = sum[t * 8 + i / 4][i % 4];
        s = fmaf(s, i % 4 < 2 ? factor.x : factor.y, unit[i / 4][i % 4]);
      }
    }
  }

  // |key|: the first one of a unit that has keys which not every query of the warpgroup sees; -1: of others.
  __device__ __forceinline__ void add_unit(u32 unit, int key, int window) {
    const u32 stage = unit % STAGES;
    const u32 parity = unit / STAGES % 2;
    float score[8][4];
    u32 high[4][4], low[4][4];
    barrier_wait(shared.full(false, stage), parity);
    score_keys(score, shared.keys(stage), shared.key_scales(stage));
    release(shared.empty(false, stage));
    if (key >= 0) mask(score, key, window);
    barrier_wait(shared.full(true, stage), parity);
    const float2 factor = find_top(score, shared.value_shifts(stage));
    split_weights(high, low, score, shared.value_shifts(stage), shared.value_scales(stage));
    add_values(high, low, shared.values(stage), factor);
    release(shared.empty(true, stage));
  }
  __device__ __forceinline__ void skip_unit(u32 unit) {
    for (int values = 0; values < 2; values++) {
      barrier_wait(shared.full(values, unit % STAGES), unit / STAGES % 2);
      release(shared.empty(values, unit % STAGES));
    }
  }
  __device__ __forceinline__ void release(u64 *barrier) {  // once per warp
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
  }
  // The units that the warpgroup sees are a run of all, and so are those that its queries see whole. The
  // compiler must know that its warps take the same path: it makes wgmma wait elsewhere.
  __device__ __forceinline__ void run(const Work &work) {
    const int units = uniform(work.units), begin = uniform(work.begin), lowest = uniform(work.lowest),
              highest = uniform(work.highest), window = work.window;
    const bool some = uniform(work.query < work.end_query);
    const int first = min(lowest < window ? 0 : (lowest - window + 1) / STEP - begin, units);
    const int end = max(first, some ? min(highest / STEP + 1 - begin, units) : 0);
    const int whole = highest < window ? 0 : (highest - window) / STEP + 1 - begin;
    const int whole_end = (lowest + 1) / STEP - begin;
    for (int unit = 0; unit < first; unit++) skip_unit(unit);
    for (int unit = first; unit < end; unit++)
      add_unit(unit, unit < whole || unit >= whole_end ? (begin + unit) * STEP : -1, window);
    for (int unit = end; unit < units; unit++) skip_unit(unit);
  }
  static __device__ __forceinline__ int uniform(int x) { return __shfl_sync(~0u, x, 0); }

  // The sum of the weights over the lanes of a query, and of the sink. |down|: what makes them f32 numbers.
  __device__ __forceinline__ float final_factor(int half, int head, const float *sinks) {
    float total = weight[half];
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    if (!SINKS) return 1 / total;
    const float sink = fmaf(sinks[head], LOG2E, WEIGHT_BITS - top[half]), down = power2(fminf(0, -sink));
    return down / fmaf(total, down, power2(fminf(0, sink)));
  }
};

__device__ __forceinline__ void attend_with_warpgroups(const float *q, const float *pool,
                                                       const Result &result, const Pages &pages,
                                                       const int *placed, const Share &share, int window,
                                                       const float *sinks, unsigned char *memory) {
  const Shared shared(memory);
  const int group = Attender::uniform(threadIdx.x / 128);
  if (threadIdx.x < 2 * STAGES) {
    barrier_init(shared.full(false, 0) + threadIdx.x, COPYING);
    barrier_init(shared.empty(false, 0) + threadIdx.x, COMPUTING / 32);
  }
  __syncthreads();
  const auto work_of = [&]() {  // computed again where it is used, so that it takes no registers elsewhere
    const int nth = Attender::uniform(threadIdx.x / 128);
    return Work(read_tile(placed, blockIdx.y), share, window, nth * 64, 64);
  };
  if (group == COMPUTING / 128) {
    give_registers<88>();
    Copier<false>(shared, pages, work_of(), pool).run();
  } else if (group == COMPUTING / 128 + 1) {
    give_registers<88>();
    Copier<true>(shared, pages, work_of(), pool).run();
  } else {
    take_registers<168>();
    Attender attender(shared, group);
    attender.load_queries(work_of(), q, result.width);
    attender.run(work_of());
    const Work work = work_of();
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int nth = work.query + threadIdx.x % 128 / 32 * 16 + lane_row() + half * 8;
      const bool some = nth < work.end_query;
      const int head = some ? work.head_of(nth) : 0;
      const float factor = attender.final_factor(half, head, sinks);
      const u32 token = some ? work.token_of(nth) : 0;
#pragma unroll
      for (int i = 0; i < WIDE / 8; i++) {
        const int column = Piece::column_of(i * 8 + lane_quad() * 2);
        if (some && (WIDE == HEAD_DIM || column < HEAD_DIM))
          put_pair(result, token, head * HEAD_DIM + column, attender.sum[i][half * 2] * factor,
                   attender.sum[i][half * 2 + 1] * factor);
      }
    }
  }
}
