// Attention: the tiles of a step, masks and the softmax.
#pragma once

#include "config.cuh"
#include "ptx.cuh"

// The kernels have the parameter |sinks| if the macro SINKS is 1: C++ cannot leave out a parameter.
#if SINKS
#define SINKS_PARAMETER const float *__restrict__ sinks,
#else
#define SINKS_PARAMETER
constexpr const float *sinks = nullptr;
#endif

constexpr float LOG2E = 1.4426950408889634f;  // for exp2 instead of exp
constexpr bool CAPPED = config.softcap != 0;
constexpr float SCALE2 = CAPPED ? LOG2E : config.scale * LOG2E;  // cap_score scales the scores
constexpr float NO_SCORE = -1e30f;                               // finite: infinity minus itself is NaN

__device__ __forceinline__ float cap_score(float score) {
  if constexpr (CAPPED) return config.softcap * tanhf(score * (config.scale / config.softcap));
  return score;
}

// The positions that a query sees: its own and those before it, or the last |window| of these. Without a
// sliding window, |window| is larger than every position.
__device__ __forceinline__ bool is_masked(int key, int own, int window) {
  return key > own || key <= own - window;
}

// The query heads that share a KV head. |inverse| is 2^32 / share, rounded up; 0 if share is 1.
struct Share {
  int heads;
  u32 inverse;
  __device__ __forceinline__ int divide(int n) const { return inverse ? __umulhi(n, inverse) : n; }
};

// The factor that turns a query's sum of weight * value into its result. A sink adds to the weight: |sinks|
// has one score per head.
__device__ __forceinline__ float final_scale(float peak, float weight, const float *sinks, int head) {
  if constexpr (!SINKS) return 1 / weight;
  const float now = __fmul_rn(peak, SCALE2), sink = __fmul_rn(sinks[head], LOG2E), top = fmaxf(now, sink);
  const float factor = power2(now - top);
  return factor / fmaf(weight, factor, power2(sink - top));
}

// The work of one block: queries of one segment. kernels/cuda/place.cu writes the tiles of a step.
struct Tile {
  int slot;      // of the sequence; -1: no work, but see |first|
  int first;     // index of the segment's first token; if |slot| is -1, a padding token; -1: none
  int tokens;    // of the segment
  int position;  // of its first token
  int query;     // the tile's first query: token of the segment * queries of a token + nth query
};
// Reads memory at each call, never before wait_for_previous_kernel().
__device__ __forceinline__ Tile read_tile(const int *placed, int nth) {
  const int *words = placed + (config.long_tiles ? load_again(placed).y : MLX_PLACED_TILES_AT);
  words += nth * MLX_TILE_WORDS;  // short ones first
  const int4 a = load_again(words), b = load_again(words + 4);
  return {a.x, a.y, a.z, a.w, b.x};
}
