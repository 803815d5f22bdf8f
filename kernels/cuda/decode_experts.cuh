// Decode: mixtures of experts.
//
// A block computes the scores of some experts, publishes them, and receives those of all experts. Every block
// then chooses the same USED experts for the token. The rows of gate and up of the chosen experts are divided
// among the blocks like the rows of one matrix with USED * FFN rows. The down projections are one product
// over USED * FFN_STRIDE columns: the hidden values of an expert are multiplied by its weight first.
//
// The producer cannot stream the matrices of experts ahead of the choice. It waits for it in
// |wait_for_choice|. A shared expert does not depend on the choice: decode_shared.cuh.

#pragma once

#include "decode_sums.cuh"
#include "experts_choose.cuh"

static_assert(!MIXTURE || (FFN % TILE == 0 && HIDDEN % TILE == 0 && !POST_NORMS && !PARALLEL && GAINS &&
                           !LAYER_NORMS),
              "compiler/plan.c and plan_match.c check it");

// ----------------------------------------------------------------------------------------------------------
// The router

// Four numbers of a row.
static __device__ __forceinline__ float4 load_f32(const u8 *row, int column) {
  return *(const float4 *)(row + column * 4);
}
template <typename T>
static __device__ __forceinline__ float4 load_16(const u8 *row, int column) {
  const uint2 raw = *(const uint2 *)(row + column * 2);
  return {T::low(raw.x), T::high(raw.x), T::low(raw.y), T::high(raw.y)};
}

template <Dtype TYPE>
static __device__ __forceinline__ float4 load_numbers(const u8 *row, int column) {
  if constexpr (TYPE == Dtype::F32)
    return load_f32(row, column);
  else if constexpr (TYPE == Dtype::F16)
    return load_16<F16>(row, column);
  else
    return load_16<Bf16>(row, column);
}

// Four numbers of the row that the score of the shared expert is computed with.
template <TileArguments T = config.shared_score_tiles>
static __device__ __forceinline__ float4 load_shared_score(const u8 *row, int column) {
  if constexpr (T.bits != MLX_DECODE_ROWS)
    return FormatOf<T>::Type::template load4<HIDDEN>(row, 0, column);
  else
    return load_numbers<config.score_dtype>(row, column);
}

constexpr int ROUTER_ROW = HIDDEN * (config.router_dtype == Dtype::F32 ? 4 : 2);  // bytes

template <int = 0>
static __device__ __forceinline__ void load_router_row(const Model &m, int layer, int expert,
                                                       float4 (&row)[Tiling<HIDDEN>::runs]) {
  using C = Tiling<HIDDEN>;
#pragma unroll
  for (int i = 0; i < C::runs; ++i) {
    const int column = C::column(i) + (threadIdx.x & 31) * 4;
    if constexpr (SHARED_EXPERT) {
      if (expert == EXPERTS && C::has(i, column)) {
        row[i] = load_shared_score(weight_at<config.shared_score>(m, layer), column);
        continue;
      }
    }
    row[i] = expert < EXPERTS && C::has(i, column)
                 ? load_numbers<config.router_dtype>(
                       weight_at<config.router>(m, layer) + (u64)expert * ROUTER_ROW, column)
                 : float4{0, 0, 0, 0};
  }
}

// Publishes the scores of this block's experts. |value| is the layer's input times the gain of its norm,
// |row| the router's row of the first of them. The sums of squares are complete afterwards.
template <int = 0>
static __device__ __forceinline__ void publish_scores(const Model &m, Shared *s, int layer, float *scores,
                                                      const float4 (&value)[Tiling<HIDDEN>::runs],
                                                      float4 (&row)[Tiling<HIDDEN>::runs]) {
  using C = Tiling<HIDDEN>;
#pragma unroll 1
  for (int expert = s->block; expert < SCORES || expert == s->block; expert += s->blocks) {
    if (expert != s->block) {
      sync_consumers();  // the last expert's sums have been read
      load_router_row(m, layer, expert, row);
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < C::runs; ++i) {
      sum = fmaf(value[i].x, row[i].x, sum);
      sum = fmaf(value[i].y, row[i].y, sum);
      sum = fmaf(value[i].z, row[i].z, sum);
      sum = fmaf(value[i].w, row[i].w, sum);
    }
    sum = warp_sum(sum);
    if ((threadIdx.x & 31) == 0) s->router_sum[threadIdx.x >> 5] = sum;
    sync_consumers();
    if (threadIdx.x || expert >= SCORES) continue;
    float total = 0;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) total += s->router_sum[i];
    total *= norm_scale(s);
    if constexpr (config.router_bias.present()) {
      if (expert < EXPERTS) total += vector_at<config.router_bias>(m, layer, expert);
    }
    publish(&scores[expert], total);
  }
}

// Warp 0 chooses the experts of the token; returns when all consumers see the choice.
template <int = 0>
static __device__ __forceinline__ void choose_experts(Shared *s, const float *scores) {
  if (threadIdx.x < 32) {
    u32 keys[PER];
    load_keys(keys, [=](int expert) { return receive(scores + expert); });
    __syncwarp();
    const Choice mine = choose_by_keys(keys, USED);
    if (threadIdx.x < USED) s->chosen[threadIdx.x] = mine.expert, s->weight[threadIdx.x] = mine.weight;
    if constexpr (SHARED_EXPERT) {
      if (threadIdx.x == 0) s->shared_weight[0] = 1.0f / (1.0f + expf(-receive(scores + EXPERTS)));
    }
    __threadfence_block();
    __syncwarp();
    if (threadIdx.x == 0) *(volatile int *)&s->choices[0] = s->choices[0] + 1;
  }
  sync_consumers();
}

// Receives the input of the MLP, and publishes the scores of this block's experts.
template <typename A>
static __device__ __forceinline__ void receive_and_score(const Model &m, Shared *s, int layer, int parity,
                                                         A &x) {
  float4 value[Tiling<HIDDEN>::runs], gain[Tiling<HIDDEN>::runs], row[Tiling<HIDDEN>::runs];
  load_gain(optional_weight<BEFORE_MLP>(m, layer), gain);
  load_router_row(m, layer, s->block, row);
  receive_all<HIDDEN>(m.scratch->x1[parity], value);
  multiply_gain(s, value, gain);
  publish_scores(m, s, layer, m.scratch->router[parity], value, row);
  stage_all(s, x, value);
}
