// Attention with the accuracy of f32: the work of a block and where its results are stored, for
// attention_f32.cu and attention_warpgroups.cuh.
#pragma once

#include "attention_pages.cuh"
#include "attention_tiles.cuh"
#include "cluster.cuh"
#include "parts.cuh"

// A launch with warpgroups on a GPU without wgmma uses the functions of attention_f32.cu, with one stage and
// 256 of the threads.
constexpr bool WARPGROUPS = HAS_WGMMA && config.warpgroups;
constexpr int QUERIES = config.queries, STEP = config.step,
              STAGES = config.warpgroups && !WARPGROUPS ? 1 : config.stages,
              THREADS = config.warpgroups ? 256 : config.threads;
constexpr int HALVES = QUERIES <= 8 ? 1 : 2, WQ = QUERIES <= 16 ? 1 : QUERIES / 16, WK = THREADS / 32 / WQ;
// Latent attention: values are the first numbers of keys.
constexpr bool LATENT = config.value_dim > 0;
constexpr int VALUE_DIM = LATENT ? config.value_dim : HEAD_DIM;
static_assert(VALUE_DIM <= HEAD_DIM && VALUE_DIM % 4 == 0, "values");
static_assert(QUERIES == 8 || QUERIES == 16 * WQ, "queries");
static_assert(THREADS == 32 * WQ * WK && THREADS % QUERIES == 0, "threads");

__device__ __forceinline__ int lane_row() { return threadIdx.x % 32 / 4; }
__device__ __forceinline__ int lane_quad() { return threadIdx.x % 4; }

// ---- results ----

using out_t = Select<config.out_16, u16, float>::Type;

// Where results are stored: rows of |width| numbers, or their bf16 parts if |part_rows| is not 0.
struct Result {
  out_t *out;
  int part_rows, width;
};
// Stores four columns of a token.
__device__ __forceinline__ void put_result(const Result &to, u32 token, u32 column, float4 f) {
  if (config.out_16 || !to.part_rows) {
    store4(to.out + (u64)token * to.width + column, f);
    return;
  }
  u32 low[3], high[3];
  split_bf16(low, f.x, f.y);
  split_bf16(high, f.z, f.w);
#pragma unroll
  for (int i = 0; i < 3; i++) {
    *part_word(to.out, to.part_rows, i, token, column) = low[i];
    *part_word(to.out, to.part_rows, i, token, column + 2) = high[i];
  }
}

// Stores two columns of a token, the first of them even.
__device__ __forceinline__ void put_pair(const Result &to, u32 token, u32 column, float a, float b) {
  if (!to.part_rows) {
    *(float2 *)((float *)to.out + (u64)token * to.width + column) = make_float2(a, b);
    return;
  }
  u32 parts[3];
  split_bf16(parts, a, b);
#pragma unroll
  for (int i = 0; i < 3; i++) *part_word(to.out, to.part_rows, i, token, column) = parts[i];
}

// ---- work ----

// The work of a block: queries of a tile, and the units of keys that they see.
struct Work {
  Tile tile;
  Share share;
  int window;
  int head, rank, wq, wk;      // KV head, block of the cluster, place of the warp
  int end_query, visible;      // the tile's queries are tile.query .. end_query; keys that they see
  int begin, units;            // first unit, number of units
  int each, rounds;            // units of a round
  bool alone;                  // the first block of the cluster has all units
  int query, lowest, highest;  // the warp's first query, positions of its first and last query
  // |from|, |many|: the warp's queries.
  __device__ __forceinline__ Work(Tile t, Share s, int last, int from, int many)
      : tile(t), share(s), window(last) {
    const int warp = threadIdx.x / 32, count = t.tokens * s.heads;
    head = blockIdx.x, rank = blockIdx.z, wq = warp % WQ, wk = warp / WQ;
    end_query = t.query + QUERIES < count ? t.query + QUERIES : count;
    visible = t.position + s.divide(end_query - 1) + 1;
    const int own = t.position + s.divide(t.query);
    begin = own >= window ? (own - window + 1) / STEP : 0;
    units = (visible + STEP - 1) / STEP - begin;
    alone = SPLIT == 1 || units <= WK;
    each = alone ? WK : WK * SPLIT;
    rounds = (units + each - 1) / each;
    query = t.query + from;
    lowest = position_of(query), highest = position_of(query + many - 1);
  }
  __device__ __forceinline__ int position_of(int nth) const { return tile.position + share.divide(nth); }
  __device__ __forceinline__ int unit_of(int round) const { return round * each + rank * WK + wk; }
  // Whether a query of the warp sees a key of a unit. Merging a unit that it does not see changes nothing.
  __device__ __forceinline__ bool sees(int unit) const {
    const int first = (begin + unit) * STEP;
    return unit < units && query < end_query && first <= highest && first + STEP - 1 > lowest - window;
  }
  // Whether a query of the warp must not see all keys of a unit.
  __device__ __forceinline__ bool is_edge(int unit) const {
    const int first = (begin + unit) * STEP;
    return first + STEP - 1 > lowest || first <= highest - window;
  }
  // Of a query in q and out: its token, its head, and its first column.
  __device__ __forceinline__ int token_of(int nth) const { return tile.first + share.divide(nth); }
  __device__ __forceinline__ int head_of(int nth) const {
    return head * share.heads + nth - share.divide(nth) * share.heads;
  }
  __device__ __forceinline__ u64 offset_of(int nth, int width) const {
    return (u64)token_of(nth) * width + head_of(nth) * HEAD_DIM;
  }
};
