// Attention: the tiles of a step, addresses in the KV pool, and storing new tokens there. The including file
// defines pool_t, the element type of the pool, and store4(pool_t *, float4), which stores four neighbouring
// elements.

#include "step.h"

#ifndef APPEND_NAME
#define APPEND_NAME append
#endif
#ifndef ATTEND_NAME
#define ATTEND_NAME attend
#endif
// LAYERS counts the layers of a page. If the module has window pages (step.h), WINDOW_LAYERS counts theirs,
// and WINDOW_PAGES is 1 in the kernels of their layers: then LAYERS is the same number.
#ifndef WINDOW_LAYERS
#define WINDOW_LAYERS 0
#endif
#ifndef WINDOW_PAGES
#define WINDOW_PAGES 0
#endif

constexpr int PAGE = MLX_KV_PAGE;
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

// Whether a query at position |own| must not see the key at position |key|.
__device__ __forceinline__ bool is_masked(int key, int own) {
  return key > own || (WINDOW && key <= own - WINDOW);
}

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

// The pages of a sequence. A wrong page table may give wrong numbers, but never an access outside the pool.
struct Pages {
  const int *table;
  int positions;  // that the table has pages for
  int pool;       // pages of the pool
  u64 before;     // layers of the window pages, which are before these pages
  __device__ __forceinline__ Pages(const int *batch, int slot) {
    const int pages = batch[MLX_STEP_SLOT_PAGES];
    const bool valid = (u32)slot < (u32)batch[MLX_STEP_SLOT_COUNT];
    table = batch + batch[WINDOW_PAGES ? MLX_STEP_AT_WINDOW_PAGES : MLX_STEP_AT_PAGES] +
            (valid ? slot * pages : 0);
    positions = valid ? pages * PAGE : 0;
    pool = batch[WINDOW_PAGES ? MLX_STEP_WINDOW_POOL_PAGES : MLX_STEP_POOL_PAGES];
    before = WINDOW_LAYERS && !WINDOW_PAGES ? (u64)batch[MLX_STEP_WINDOW_POOL_PAGES] * WINDOW_LAYERS : 0;
  }
  // Index of the keys of a position's page and head, counted in blocks of PAGE keys; its values are the next
  // block. False for an invalid position or page.
  __device__ __forceinline__ bool find_block(u64 &block, int position, int layer, int head) const {
    if ((u32)position >= (u32)positions) return false;
    const int page = table[position / PAGE];
    block = ((before + (u64)page * LAYERS + layer) * KV_HEADS + head) * 2;
    return (u32)page < (u32)pool;
  }
  // Offset of a position's key in the pool, in numbers; its value is PAGE * HEAD_DIM later. False for an
  // invalid position or page.
  __device__ __forceinline__ bool find_key(u64 &offset, int position, int layer, int head) const {
    u64 block = 0;
    const bool valid = find_block(block, position, layer, head);
    offset = (block * PAGE + position % PAGE) * HEAD_DIM;
    return valid;
  }
};

#ifdef KV_Q8
// Keys or values of a page and head in an 8-bit pool: PAGE rows of HEAD_DIM signed codes, then PAGE f32
// scales. |key| is the offset that Pages::find_key gives, |what| is 0 for the key and 1 for the value.
struct Row8 {
  u64 key;
  int what;
  __device__ __forceinline__ u64 block() const {
    return (key / (PAGE * HEAD_DIM) + what) * (PAGE * (HEAD_DIM + 4));
  }
  __device__ __forceinline__ u64 codes() const { return block() + key % (PAGE * HEAD_DIM); }
  __device__ __forceinline__ u64 scale() const {
    return block() + PAGE * HEAD_DIM + key / HEAD_DIM % PAGE * 4;
  }
};

__device__ __forceinline__ float largest4(float4 f) {
  return fmaxf(fmaxf(fabsf(f.x), fabsf(f.y)), fmaxf(fabsf(f.z), fabsf(f.w)));
}

__device__ __forceinline__ u32 codes_of(float4 f, float inverse) {
  return (u32)(__float2int_rn(f.x * inverse) & 255) | (u32)(__float2int_rn(f.y * inverse) & 255) << 8 |
         (u32)(__float2int_rn(f.z * inverse) & 255) << 16 | (u32)(__float2int_rn(f.w * inverse) & 255) << 24;
}
#endif

// a*c + b*s, with both products rounded
__device__ __forceinline__ float4 rotate(float4 a, float4 c, float4 b, float4 s) {
  return make_float4(__fadd_rn(__fmul_rn(a.x, c.x), __fmul_rn(b.x, s.x)),
                     __fadd_rn(__fmul_rn(a.y, c.y), __fmul_rn(b.y, s.y)),
                     __fadd_rn(__fmul_rn(a.z, c.z), __fmul_rn(b.z, s.z)),
                     __fadd_rn(__fmul_rn(a.w, c.w), __fmul_rn(b.w, s.w)));
}

// The RMS norm of a head, before RoPE: |factor| is that of the head. |gain| NULL: no norm.
struct HeadNorm {
  const float *gain;
  float factor;
};
__device__ __forceinline__ float4 apply_norm(float4 v, const HeadNorm &norm, int at) {
  if (!norm.gain) return v;
  const float4 g = *(const float4 *)(norm.gain + at);
  return make_float4(v.x * norm.factor * g.x, v.y * norm.factor * g.y, v.z * norm.factor * g.z,
                     v.w * norm.factor * g.w);
}

// Four numbers of a head's lower half, starting at |at|, and the four of the upper half that RoPE pairs with
// them. |cosine| and |sine| are those of the token; NULL: no rotation.
struct Pair4 {
  float4 low, high;
};
__device__ __forceinline__ Pair4 load_rotated(const float *head, int at, const HeadNorm &norm,
                                              const float *cosine, const float *sine) {
  constexpr int HALF = HEAD_DIM / 2;
  const float4 low = apply_norm(*(const float4 *)(head + at), norm, at),
               high = apply_norm(*(const float4 *)(head + HALF + at), norm, HALF + at);
  if (!cosine) return {low, high};
  const float4 c = *(const float4 *)(cosine + at), s = *(const float4 *)(sine + at);
  return {rotate(low, c, make_float4(-high.x, -high.y, -high.z, -high.w), s), rotate(high, c, low, s)};
}

#ifdef HEAD_NORM_EPS
// The threads of a head, consecutive lanes of a warp, have the numbers |v| each.
__device__ __forceinline__ float head_factor(const Pair4 &v) {
  constexpr int LANES = HEAD_DIM / 8;
  static_assert(LANES <= 32 && (LANES & LANES - 1) == 0, "a power of two");
  const u32 mask = (LANES == 32 ? ~0u : (1u << LANES % 32) - 1) << (threadIdx.x % 32 & ~(LANES - 1));
  float sum = (v.low.x * v.low.x + v.low.y * v.low.y) + (v.low.z * v.low.z + v.low.w * v.low.w);
  sum += (v.high.x * v.high.x + v.high.y * v.high.y) + (v.high.z * v.high.z + v.high.w * v.high.w);
#pragma unroll
  for (int i = LANES / 2; i; i /= 2) sum += __shfl_xor_sync(mask, sum, i);
  return 1 / sqrtf(sum / HEAD_DIM + HEAD_NORM_EPS);
}
#endif

// A thread processes the numbers of one Pair4. With HEAD_NORM_EPS the heads of q and k are normalized.
extern "C" __global__ void __launch_bounds__(256)
    APPEND_NAME(const float *__restrict__ q, const float *__restrict__ k, const float *__restrict__ v,
#ifdef HEAD_NORM_EPS
                const float *__restrict__ q_gain, const float *__restrict__ k_gain,
#endif
#if TURN
                const float *__restrict__ cosine, const float *__restrict__ sine,
#endif
                const int *__restrict__ batch, pool_t *__restrict__ pool, float *__restrict__ rotated,
                int layer) {
  start_next_kernel();
  wait_for_previous_kernel();
  q = after_wait(q);
  k = after_wait(k);
  v = after_wait(v);
  batch = after_wait(batch);
#if TURN
  cosine = after_wait(cosine);
  sine = after_wait(sine);
#endif
  constexpr int HALF = HEAD_DIM / 2, QUADS = HALF / 4;  // threads per head
  constexpr int EACH = HEADS + 2 * KV_HEADS;            // heads of a token: q, k and v
  const u64 index = (u64)blockIdx.x * 256 + threadIdx.x;
  const int token = index / (EACH * QUADS), head = index / QUADS % EACH, at = index % QUADS * 4;
  const int slots = batch[MLX_STEP_AT_SLOTS], positions = batch[MLX_STEP_AT_POSITIONS];
  if (token >= batch[MLX_STEP_TOKEN_COUNT] || token >= positions - slots) return;  // n, and N
  const bool is_query = head < HEADS, value = head >= HEADS + KV_HEADS;
  const int nth = is_query ? head : value ? head - HEADS - KV_HEADS : head - HEADS;
  const u64 from = ((u64)token * (is_query ? HEADS : KV_HEADS) + nth) * HEAD_DIM;
  const float *source = (is_query ? q : value ? v : k) + from;
#if TURN
  const float *c = value ? nullptr : cosine + (u64)token * HALF,
              *s = value ? nullptr : sine + (u64)token * HALF;
#else
  const float *c = nullptr, *s = nullptr;
#endif
  HeadNorm norm = {nullptr, 1};
#ifdef HEAD_NORM_EPS
  if (!value)
    norm = {is_query ? q_gain : k_gain, head_factor(load_rotated(source, at, norm, nullptr, nullptr))};
#endif
  const Pair4 pair = load_rotated(source, at, norm, c, s);
  if (is_query) {
    *(float4 *)(rotated + from + at) = pair.low;
    *(float4 *)(rotated + from + HALF + at) = pair.high;
    return;
  }
  u64 to;
  const Pages pages(batch, batch[slots + token]);
  if (!pages.find_key(to, batch[positions + token], layer, nth)) return;
#ifdef KV_Q8
  const Row8 row = {to, value};
  float largest = 0;
  for (int i = 0; i < HALF; i += 4) {
    const Pair4 other = load_rotated(source, i, norm, c, s);
    largest = fmaxf(largest, fmaxf(largest4(other.low), largest4(other.high)));
  }
  const float inverse = largest > 0 ? 127 / largest : 0;
  *(u32 *)(pool + row.codes() + at) = codes_of(pair.low, inverse);
  *(u32 *)(pool + row.codes() + HALF + at) = codes_of(pair.high, inverse);
  if (at == 0) *(float *)(pool + row.scale()) = largest / 127;
#else
  to += (value ? PAGE * HEAD_DIM : 0) + at;
  store4(pool + to, pair.low);
  store4(pool + to + HALF, pair.high);
#endif
}
