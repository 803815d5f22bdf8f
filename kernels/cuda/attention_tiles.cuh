// Attention: the tiles of a step, masks and the softmax. Macros: SCALE (of the scores, positive), SOFTCAP (of
// the scores; undefined: none), SINKS (1: the kernel has them), TILES (0: the short tiles, 1: the long ones).

constexpr float LOG2E = 1.4426950408889634f;  // for exp2 instead of exp
#ifdef SOFTCAP
constexpr float SCALE2 = LOG2E;  // cap_score has scaled the scores
#else
constexpr float SCALE2 = SCALE * LOG2E;
#endif
constexpr float NO_SCORE = -1e30f;  // finite: infinity minus itself is NaN

__device__ __forceinline__ float power2(float x) {  // results that underflow are zero
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float cap_score(float score) {
#ifdef SOFTCAP
  return SOFTCAP * tanhf(score * (SCALE / SOFTCAP));
#else
  return score;
#endif
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
#if SINKS
  const float now = __fmul_rn(peak, SCALE2), sink = __fmul_rn(sinks[head], LOG2E), top = fmaxf(now, sink);
  const float factor = power2(now - top);
  return factor / fmaf(weight, factor, power2(sink - top));
#else
  return 1 / weight;
#endif
}

// The work of one block: queries of one segment. kernels/cuda/place.cu writes the tiles of a step.
struct Tile {
  int slot;      // of the sequence; -1: no work, but see |first|
  int first;     // index of the segment's first token; if |slot| is -1, a padding token; -1: none
  int tokens;    // of the segment
  int position;  // of its first token
  int query;     // the tile's first query: token of the segment * queries of a token + nth query
};
__device__ __forceinline__ Tile read_tile(const int *placed, int nth) {
  const int4 *words =
      (const int4 *)(placed + (TILES ? placed[TILES] : 4)) + nth * 2;  // short ones come first
  const int4 a = words[0], b = words[1];
  return {a.x, a.y, a.z, a.w, b.x};
}
