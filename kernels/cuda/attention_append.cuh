// Attention: how tokens come into the pool, and where they lie there. Who includes it says what the pool
// holds: pool_t, and store4(pool_t*, float4) for four neighbours of it.

#ifndef APPEND_NAME
#define APPEND_NAME append
#endif
#ifndef ATTEND_NAME
#define ATTEND_NAME attend
#endif

constexpr int PAGE = 16;
constexpr float SCALE2 = SCALE * 1.4426950408889634f;  // scores as powers of two

__device__ __forceinline__ float power2(float x) {  // what underflows is zero
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Where a position's key lies in the pool, or false; its value is PAGE * HEAD_DIM further. A wrong page table
// may give wrong numbers, but never an access outside the pool.
__device__ __forceinline__ bool find(u64 &offset, const int *pages, int row, int position, int layer,
                                     int head) {
  if ((u32)position >= (u32)ROW_PAGES * PAGE) return false;
  const int page = pages[row * ROW_PAGES + position / PAGE];
  offset = ((((u64)layer * POOL_PAGES + page) * KV_HEADS + head) * 2 * PAGE + position % PAGE) * HEAD_DIM;
  return (u32)page < POOL_PAGES;
}

__device__ __forceinline__ float4 turn(float4 a, float4 c, float4 b,
                                       float4 s) {  // a*c + b*s, rounded as separate products
  return make_float4(__fadd_rn(__fmul_rn(a.x, c.x), __fmul_rn(b.x, s.x)),
                     __fadd_rn(__fmul_rn(a.y, c.y), __fmul_rn(b.y, s.y)),
                     __fadd_rn(__fmul_rn(a.z, c.z), __fmul_rn(b.z, s.z)),
                     __fadd_rn(__fmul_rn(a.w, c.w), __fmul_rn(b.w, s.w)));
}

// A thread has four numbers of a head's lower half and the four of its upper half that turn with them.
extern "C" __global__ void __launch_bounds__(256)
    APPEND_NAME(const float *__restrict__ q, const float *__restrict__ k, const float *__restrict__ v,
#if TURN
                const float *__restrict__ cosine, const float *__restrict__ sine,
#endif
                const int *__restrict__ start, const int *__restrict__ count, const int *__restrict__ pages,
                pool_t *__restrict__ pool, float *__restrict__ turned, int layer) {
  constexpr int HALF = HEAD_DIM / 2, QUADS = HALF / 4;  // of one head
  constexpr int EACH = HEADS + 2 * KV_HEADS;            // heads of a token: of q, k and v
  const u64 index = (u64)blockIdx.x * 256 + threadIdx.x;
  const int token = index / (EACH * QUADS), head = index / QUADS % EACH, at = index % QUADS * 4;
  const int row = token / TOKENS, t = token % TOKENS;
  if (row >= ROWS) return;
  const bool asks = head < HEADS, value = head >= HEADS + KV_HEADS;
  const int nth = asks ? head : value ? head - HEADS - KV_HEADS : head - HEADS;
  const u64 from = ((u64)token * (asks ? HEADS : KV_HEADS) + nth) * HEAD_DIM + at;
  const float *source = (asks ? q : value ? v : k) + from;
  float4 low = *(const float4 *)source, high = *(const float4 *)(source + HALF);
#if TURN
  if (!value) {
    const float4 c = *(const float4 *)(cosine + (u64)token * HALF + at),
                 s = *(const float4 *)(sine + (u64)token * HALF + at);
    const float4 l = low;
    low = turn(low, c, make_float4(-high.x, -high.y, -high.z, -high.w), s);
    high = turn(high, c, l, s);
  }
#endif
  if (asks) {
    *(float4 *)(turned + from) = low;
    *(float4 *)(turned + from + HALF) = high;
    return;
  }
  u64 to;
  if (t >= count[row] || !find(to, pages, row, start[row] + t, layer, nth)) return;
  to += (value ? PAGE * HEAD_DIM : 0) + at;
  store4(pool + to, low);
  store4(pool + to + HALF, high);
}
