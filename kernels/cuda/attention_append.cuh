// append: stores keys and values of new tokens in the KV pool (attention_pages.cuh).
//
// Macros:  NAME, and 0 or 1 for parameters that the kernel may have: BIAS (biases are added before all
//          else), HEAD_NORM (q and k are normalized before RoPE; values too, without a gain, if
//          config.value_norm), TURN (applies RoPE to q and k).
//          attention_config.cuh has the other constants.
// Operands q f32 [N, heads, HEAD_DIM], k and v f32 [N, kv_heads, HEAD_DIM]; with BIAS those of q, k and v f32
//          [heads or kv_heads, HEAD_DIM]; with HEAD_NORM gains of q and k f32 [HEAD_DIM]; with TURN
//          cosine and sine f32 [N, ROTARY/2]; batch (kernels/step.h); pool in/out; rotated q f32, without
//          TURN a copy; int layer, page, before (Layer), heads, kv_heads (0: the layer has no keys of its
//          own; k and v are not read); with BIAS the sum of 1 if q has a bias, 2 if k has one, 4 if v has
//          one: the others are not read
// Launch   grid (ceil((heads + 2 * kv_heads) * HEAD_DIM / 1024), N, 1), block (128, 1, 1), no dynamic shared
//          memory. Rows of padding tokens are not written.

#pragma once

#include "attention_pages.cuh"
#include "overlap.cuh"

constexpr int ROTARY = config.rotary ? config.rotary : HEAD_DIM;
// The names of parameters that the kernel may not have. A parameter hides its name here.
constexpr const float *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr, *q_gain = nullptr,
                      *k_gain = nullptr, *cosine = nullptr, *sine = nullptr;
constexpr int biased = 0;

// A key or a value of the pool. Keys or values of a page and head in an 8-bit pool are PAGE rows of HEAD_DIM
// signed codes, then PAGE f32 scales.
struct PoolRow {
  u64 block;                                       // the first byte of the page's keys or values
  int nth;                                         // of the page
  __device__ __forceinline__ u64 number() const {  // the first one, or its code
    return block / sizeof(pool_t) + nth * HEAD_DIM;
  }
  __device__ __forceinline__ u64 scale() const { return block + PAGE * HEAD_DIM + nth * 4; }
};

__device__ __forceinline__ float largest4(float4 f) {
  return fmaxf(fmaxf(fabsf(f.x), fabsf(f.y)), fmaxf(fabsf(f.z), fabsf(f.w)));
}

__device__ __forceinline__ u32 codes_of(float4 f, float inverse) {
  return (u32)(__float2int_rn(f.x * inverse) & 255) | (u32)(__float2int_rn(f.y * inverse) & 255) << 8 |
         (u32)(__float2int_rn(f.z * inverse) & 255) << 16 | (u32)(__float2int_rn(f.w * inverse) & 255) << 24;
}

__device__ __forceinline__ float4 rotate4(float4 a, float4 c, float4 b, float4 s) {
  return make_float4(rotate(a.x, c.x, b.x, s.x), rotate(a.y, c.y, b.y, s.y), rotate(a.z, c.z, b.z, s.z),
                     rotate(a.w, c.w, b.w, s.w));
}

// A head of a token: its numbers, and what comes before RoPE. |bias| is that of the head; NULL: none.
// |factor| is that of the head's RMS norm, 1 without a norm. |gain| NULL: none.
struct Head {
  const float *numbers, *bias, *gain;
  float factor;
  __device__ __forceinline__ float4 load4(int at) const {
    float4 v = *(const float4 *)(numbers + at);
    if (bias) {
      const float4 b = *(const float4 *)(bias + at);
      v = make_float4(v.x + b.x, v.y + b.y, v.z + b.z, v.w + b.w);
    }
    if (!gain) return make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
    const float4 g = *(const float4 *)(gain + at);
    return make_float4(v.x * factor * g.x, v.y * factor * g.y, v.z * factor * g.z, v.w * factor * g.w);
  }
  __device__ __forceinline__ float load(int at) const {
    const float v = bias ? numbers[at] + bias[at] : numbers[at];
    return v * factor * (gain ? gain[at] : 1);
  }
};

// RoPE of the four numbers |v| that start at |at|. The number that one is paired with may be another
// thread's.
__device__ __forceinline__ float4 rotate_any(const Head &head, float4 v, int at, const float *cosine,
                                             const float *sine) {
  constexpr int PAIRS = ROTARY / 2;
  const float from[4] = {v.x, v.y, v.z, v.w};
  float to[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int nth = at + i;
    to[i] = from[i];
    if (nth >= ROTARY) continue;
    const bool first = config.adjacent ? i % 2 == 0 : nth < PAIRS;
    const int pair = config.adjacent ? nth / 2 : first ? nth : nth - PAIRS;
    const float other = config.adjacent ? from[i ^ 1] : head.load(first ? nth + PAIRS : pair);
    to[i] = rotate(from[i], cosine[pair], first ? -other : other, sine[pair]);
  }
  return make_float4(to[0], to[1], to[2], to[3]);
}

// Four numbers of a head's lower half, starting at |at|, and four of the upper half: RoPE of whole heads
// pairs them. |cosine| and |sine| are those of the token; NULL: no rotation.
struct Pair4 {
  float4 low, high;
};
__device__ __forceinline__ Pair4 load_rotated(const Head &head, int at, const float *cosine,
                                              const float *sine) {
  constexpr int HALF = HEAD_DIM / 2;
  const float4 low = head.load4(at), high = head.load4(HALF + at);
  if (!cosine) return {low, high};
  if constexpr (config.adjacent || ROTARY != HEAD_DIM)
    return {rotate_any(head, low, at, cosine, sine), rotate_any(head, high, HALF + at, cosine, sine)};
  const float4 c = *(const float4 *)(cosine + at), s = *(const float4 *)(sine + at);
  return {rotate4(low, c, make_float4(-high.x, -high.y, -high.z, -high.w), s), rotate4(high, c, low, s)};
}

__device__ __forceinline__ float squares_of(const Pair4 &v) {
  const float low = (v.low.x * v.low.x + v.low.y * v.low.y) + (v.low.z * v.low.z + v.low.w * v.low.w);
  return low + ((v.high.x * v.high.x + v.high.y * v.high.y) + (v.high.z * v.high.z + v.high.w * v.high.w));
}

// The threads of a head are consecutive lanes of a warp, or of two warps, of which each adds the numbers of
// both. |at| is the first number of this thread.
__device__ __forceinline__ float head_factor(const Head &head, int at) {
  constexpr bool TWO = HEAD_DIM > 256;
  constexpr int LANES = HEAD_DIM / 8 / (TWO ? 2 : 1);
  static_assert(!HEAD_NORM || (LANES <= 32 && (LANES & LANES - 1) == 0), "a power of two");
  const u32 mask = (LANES == 32 ? ~0u : (1u << LANES % 32) - 1) << (threadIdx.x % 32 & ~(LANES - 1));
  float sum = squares_of(load_rotated(head, at, nullptr, nullptr));
  if constexpr (TWO) sum += squares_of(load_rotated(head, at ^ LANES * 4, nullptr, nullptr));
#pragma unroll
  for (int i = LANES / 2; i; i /= 2) sum += __shfl_xor_sync(mask, sum, i);
  return 1 / sqrtf(sum / HEAD_DIM + config.head_norm_eps);
}

// Stores the numbers of |pair|, which start at |at|. T is pool_t.
template <typename T>
__device__ __forceinline__ void store_pair(T *pool, PoolRow to, const Pair4 &pair, int at, const Head &source,
                                           const float *cosine, const float *sine) {
  constexpr int HALF = HEAD_DIM / 2;
  if constexpr (KV_Q8) {
    float largest = 0;
    for (int i = 0; i < HALF; i += 4) {
      const Pair4 other = load_rotated(source, i, cosine, sine);
      largest = fmaxf(largest, fmaxf(largest4(other.low), largest4(other.high)));
    }
    const float inverse = largest > 0 ? 127 / largest : 0;
    *(u32 *)(pool + to.number() + at) = codes_of(pair.low, inverse);
    *(u32 *)(pool + to.number() + HALF + at) = codes_of(pair.high, inverse);
    if (at == 0) *(float *)(pool + to.scale()) = largest / 127;
  } else {
    const u64 first = to.number() + at;
    store4(pool + first, pair.low);
    store4(pool + first + HALF, pair.high);
  }
}

// A thread processes the numbers of one Pair4.
extern "C" __global__ void __launch_bounds__(128)
    NAME(const float *__restrict__ q, const float *__restrict__ k, const float *__restrict__ v,
#if BIAS
         const float *__restrict__ q_bias, const float *__restrict__ k_bias, const float *__restrict__ v_bias,
#endif
#if HEAD_NORM
         const float *__restrict__ q_gain, const float *__restrict__ k_gain,
#endif
#if TURN
         const float *__restrict__ cosine, const float *__restrict__ sine,
#endif
         const int *__restrict__ batch, pool_t *__restrict__ pool, float *__restrict__ rotated, int layer,
         int page, int before, int heads, int kv_heads
#if BIAS
         ,
         int biased
#endif
    ) {
  start_next_kernel();
  wait_for_previous_kernel();
  q = after_wait(q);
  k = after_wait(k);
  v = after_wait(v);
  batch = after_wait(batch);
  const float *cosines = nullptr, *sines = nullptr;
  if constexpr (TURN) cosines = after_wait(cosine), sines = after_wait(sine);
  constexpr int HALF = HEAD_DIM / 2, QUADS = HALF / 4;  // threads per head
  const int token = blockIdx.y, index = blockIdx.x * 128 + threadIdx.x;
  const int head = index / QUADS, at = index % QUADS * 4;  // heads of a token: q, k and v
  const int slots = batch[MLX_STEP_AT_SLOTS], positions = batch[MLX_STEP_AT_POSITIONS];
  if (token >= batch[MLX_STEP_TOKEN_COUNT] || token >= positions - slots) return;  // n, and N
  if (head >= heads + 2 * kv_heads) return;
  const bool is_query = head < heads, value = head >= heads + kv_heads;
  const int nth = is_query ? head : value ? head - heads - kv_heads : head - heads;
  const u64 from = ((u64)token * (is_query ? heads : kv_heads) + nth) * HEAD_DIM;
  Head source = {(is_query ? q : value ? v : k) + from, nullptr, nullptr, 1};
  if (biased & (is_query ? MLX_HAS_Q_BIAS : value ? MLX_HAS_V_BIAS : MLX_HAS_K_BIAS))
    source.bias = (is_query ? q_bias : value ? v_bias : k_bias) + nth * HEAD_DIM;
  const float *c = !TURN || value ? nullptr : cosines + (u64)token * (ROTARY / 2),
              *s = !TURN || value ? nullptr : sines + (u64)token * (ROTARY / 2);
  if (HEAD_NORM && (!value || config.value_norm)) {
    source.factor = head_factor(source, at);
    source.gain = is_query ? q_gain : value ? nullptr : k_gain;
  }
  const Pair4 pair = load_rotated(source, at, c, s);
  if (is_query) {
    *(float4 *)(rotated + from + at) = pair.low;
    *(float4 *)(rotated + from + HALF + at) = pair.high;
    return;
  }
  u64 keys;
  const int position = batch[positions + token];
  const Pages pages(batch, batch[slots + token], {layer, page, before});
  if (!pages.find_block(keys, position, nth)) return;
  store_pair(pool, PoolRow{keys + (value ? BLOCK : 0), position % PAGE}, pair, at, source, c, s);
}
