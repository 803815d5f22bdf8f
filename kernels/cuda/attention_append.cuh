// Attention: storing new tokens in the KV pool, and addresses in the pool. The including file defines pool_t,
// the element type of the pool, and store4(pool_t *, float4), which stores four neighbouring elements.

#ifndef APPEND_NAME
#define APPEND_NAME append
#endif
#ifndef ATTEND_NAME
#define ATTEND_NAME attend
#endif

constexpr int PAGE = 16;
constexpr float SCALE2 = SCALE * 1.4426950408889634f;  // for exp2 instead of exp

__device__ __forceinline__ float power2(float x) {  // results that underflow are zero
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Offset of a position's key in the pool; its value is PAGE * HEAD_DIM later. Returns false for an invalid
// position or page: a wrong page table may give wrong numbers, but never an access outside the pool.
__device__ __forceinline__ bool find_key(u64 &offset, const int *pages, int sequence, int position, int layer,
                                         int head) {
  if ((u32)position >= (u32)ROW_PAGES * PAGE) return false;
  const int page = pages[sequence * ROW_PAGES + position / PAGE];
  offset = ((((u64)layer * POOL_PAGES + page) * KV_HEADS + head) * 2 * PAGE + position % PAGE) * HEAD_DIM;
  return (u32)page < POOL_PAGES;
}

// a*c + b*s, with both products rounded
__device__ __forceinline__ float4 rotate(float4 a, float4 c, float4 b, float4 s) {
  return make_float4(__fadd_rn(__fmul_rn(a.x, c.x), __fmul_rn(b.x, s.x)),
                     __fadd_rn(__fmul_rn(a.y, c.y), __fmul_rn(b.y, s.y)),
                     __fadd_rn(__fmul_rn(a.z, c.z), __fmul_rn(b.z, s.z)),
                     __fadd_rn(__fmul_rn(a.w, c.w), __fmul_rn(b.w, s.w)));
}

// A thread processes four numbers of a head's lower half, and the four of the upper half that RoPE pairs with
// them.
extern "C" __global__ void __launch_bounds__(256)
    APPEND_NAME(const float *__restrict__ q, const float *__restrict__ k, const float *__restrict__ v,
#if TURN
                const float *__restrict__ cosine, const float *__restrict__ sine,
#endif
                const int *__restrict__ start, const int *__restrict__ count, const int *__restrict__ pages,
                pool_t *__restrict__ pool, float *__restrict__ rotated, int layer) {
  constexpr int HALF = HEAD_DIM / 2, QUADS = HALF / 4;  // threads per head
  constexpr int EACH = HEADS + 2 * KV_HEADS;            // heads of a token: q, k and v
  const u64 index = (u64)blockIdx.x * 256 + threadIdx.x;
  const int token = index / (EACH * QUADS), head = index / QUADS % EACH, at = index % QUADS * 4;
  const int sequence = token / TOKENS, t = token % TOKENS;
  if (sequence >= ROWS) return;
  const bool is_query = head < HEADS, value = head >= HEADS + KV_HEADS;
  const int nth = is_query ? head : value ? head - HEADS - KV_HEADS : head - HEADS;
  const u64 from = ((u64)token * (is_query ? HEADS : KV_HEADS) + nth) * HEAD_DIM + at;
  const float *source = (is_query ? q : value ? v : k) + from;
  float4 low = *(const float4 *)source, high = *(const float4 *)(source + HALF);
#if TURN
  if (!value) {
    const float4 c = *(const float4 *)(cosine + (u64)token * HALF + at),
                 s = *(const float4 *)(sine + (u64)token * HALF + at);
    const float4 l = low;
    low = rotate(low, c, make_float4(-high.x, -high.y, -high.z, -high.w), s);
    high = rotate(high, c, l, s);
  }
#endif
  if (is_query) {
    *(float4 *)(rotated + from) = low;
    *(float4 *)(rotated + from + HALF) = high;
    return;
  }
  u64 to;
  if (t >= count[sequence] || !find_key(to, pages, sequence, start[sequence] + t, layer, nth)) return;
  to += (value ? PAGE * HEAD_DIM : 0) + at;
  store4(pool + to, low);
  store4(pool + to + HALF, high);
}
