// Decode: addresses in the KV pool, and the positions that a query sees.
#pragma once

#include "decode_state.cuh"

// Elements of the keys, or of the values, of a page and head.
constexpr int KV_BLOCK = PAGE * (HEAD_DIM + (KV_Q8 ? 4 : 0));

// The page that has a position in |layer|. M is Model.
template <typename M>
static __device__ __forceinline__ int page_at(const M &m, int layer, int position) {
  if constexpr (config.window_layers > 0)
    return __ldg((is_windowed(layer) ? m.window_pages : m.pages) + position / PAGE);
  else
    return __ldg(m.pages + position / PAGE);
}

// Address of a position's key; its value is KV_BLOCK elements later.
template <typename M>
static __device__ __forceinline__ kv_t *kv_address(const M &m, int layer, int head, int page, int position) {
  if constexpr (config.window_layers > 0) {
    const u64 nth = is_windowed(layer) ? (u64)(u32)page * config.window_layers
                                       : m.before + (u64)(u32)page * (LAYERS - config.window_layers);
    return m.kv + ((nth + constant_at<Tables::page_layers>(layer)) * KV_HEADS + head) * 2 * KV_BLOCK +
           position % PAGE * HEAD_DIM;
  } else if constexpr (RECURRENT) {
    const u64 nth = (u64)(u32)page * ATTENTION_LAYERS + constant_at<Tables::page_layers>(layer);
    return m.kv + (nth * KV_HEADS + head) * 2 * KV_BLOCK + position % PAGE * HEAD_DIM;
  } else {
    return m.kv + (((u64)(u32)page * LAYERS + layer) * KV_HEADS + head) * 2 * KV_BLOCK +
           position % PAGE * HEAD_DIM;
  }
}

struct Visible {  // positions that a query sees
  int start, end;
  __device__ __forceinline__ bool has(int position) const {
    return position < end && (!WINDOW || position >= start);
  }
};

// A score, capped if the network does so; minus infinity if the query does not see the position.
static __device__ __forceinline__ float masked_score(Visible visible, int position, float score) {
  if constexpr (config.softcap != 0) score = softcap(score, config.softcap);
  return visible.has(position) ? score : MINUS_INFINITY;
}
