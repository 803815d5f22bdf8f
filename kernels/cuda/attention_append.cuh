// append: stores keys and values of new tokens in the KV pool (attention_pages.cuh).
//
// Macros:  NAME, HEAD_DIM, TURN (1: applies RoPE to q and k), HEAD_NORM_EPS (q and k are normalized first;
//          undefined: not)
// Operands q f32 [N, heads, HEAD_DIM], k and v f32 [N, kv_heads, HEAD_DIM]; with HEAD_NORM_EPS gains of q and
//          k f32 [HEAD_DIM]; with TURN cosine and sine f32 [N, HEAD_DIM/2]; batch (kernels/step.h); pool
//          in/out; rotated q f32, without TURN a copy; int layer, layers, before (Layer), heads, kv_heads
// Launch   grid (ceil((heads + 2 * kv_heads) * HEAD_DIM / 1024), N, 1), block (128, 1, 1), no dynamic shared
//          memory. Rows of padding tokens are not written.

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

__device__ __forceinline__ float4 rotate4(float4 a, float4 c, float4 b, float4 s) {
  return make_float4(rotate(a.x, c.x, b.x, s.x), rotate(a.y, c.y, b.y, s.y), rotate(a.z, c.z, b.z, s.z),
                     rotate(a.w, c.w, b.w, s.w));
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
  return {rotate4(low, c, make_float4(-high.x, -high.y, -high.z, -high.w), s), rotate4(high, c, low, s)};
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

// A thread processes the numbers of one Pair4.
extern "C" __global__ void __launch_bounds__(128)
    NAME(const float *__restrict__ q, const float *__restrict__ k, const float *__restrict__ v,
#ifdef HEAD_NORM_EPS
         const float *__restrict__ q_gain, const float *__restrict__ k_gain,
#endif
#if TURN
         const float *__restrict__ cosine, const float *__restrict__ sine,
#endif
         const int *__restrict__ batch, pool_t *__restrict__ pool, float *__restrict__ rotated, int layer,
         int layers, int before, int heads, int kv_heads) {
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
  const int token = blockIdx.y, index = blockIdx.x * 128 + threadIdx.x;
  const int head = index / QUADS, at = index % QUADS * 4;  // heads of a token: q, k and v
  const int slots = batch[MLX_STEP_AT_SLOTS], positions = batch[MLX_STEP_AT_POSITIONS];
  if (token >= batch[MLX_STEP_TOKEN_COUNT] || token >= positions - slots) return;  // n, and N
  if (head >= heads + 2 * kv_heads) return;
  const bool is_query = head < heads, value = head >= heads + kv_heads;
  const int nth = is_query ? head : value ? head - heads - kv_heads : head - heads;
  const u64 from = ((u64)token * (is_query ? heads : kv_heads) + nth) * HEAD_DIM;
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
  const Pages pages(batch, batch[slots + token], {layer, layers, before, kv_heads});
  if (!pages.find_key(to, batch[positions + token], nth)) return;
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
