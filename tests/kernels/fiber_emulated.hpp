// CUDA on a CPU for tests/kernels/decode_network_emulated.py: all blocks run together (fibers.hpp), so that a whole grid of blocks that wait for each other runs.
#include <math.h>

#include <algorithm>

#include "fibers.hpp"

struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static float2 make_float2(float x, float y) { return {x, y}; }

// |blocks| of |threads| threads with |bytes| of shared memory.
static void launch(int blocks, int threads, size_t bytes, const std::function<void()> &kernel) {
  std::vector<Block> all(blocks);
  gridDim = {blocks, 1, 1};
  for (int i = 0; i < blocks; ++i) initialize(all[i], threads, bytes, {i, 0, 0});
  run_blocks(all, kernel);
}

template <class T> static T __shfl_up_sync(unsigned, T value, int lanes) { const int lane = threadIdx.x % 32; return shuffle(value, lane < lanes ? lane : lane - lanes); }

template <class To, class From>
static To bits_as(From value) {
  To to;
  static_assert(sizeof to == sizeof value, "");
  memcpy(&to, &value, sizeof to);
  return to;
}
static unsigned __float_as_uint(float x) { return bits_as<unsigned>(x); }
static float __int_as_float(int x) { return bits_as<float>(x); }
static int __float_as_int(float x) { return bits_as<int>(x); }
static long long __double_as_longlong(double x) { return bits_as<long long>(x); }
static double __longlong_as_double(long long x) { return bits_as<double>(x); }
static int __float2int_rn(float x) { return (int)rintf(x); }
static int __ffs(int x) { return __builtin_ffs(x); }
static unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned long long)((unsigned __int128)a * b >> 64); }
static float __fmul_rn(float a, float b) { return a * b; }
static float __fadd_rn(float a, float b) { return a + b; }
static float __fsub_rn(float a, float b) { return a - b; }
static float __fdiv_rn(float a, float b) { return a / b; }
static double __dmul_rn(double a, double b) { return a * b; }
static double __dadd_rn(double a, double b) { return a + b; }
static double __dsub_rn(double a, double b) { return a - b; }
static double __ddiv_rn(double a, double b) { return a / b; }
static float rsqrtf(float x) { return 1 / sqrtf(x); }
static void __threadfence() {}
static void __threadfence_block() {}
static unsigned __reduce_max_sync(unsigned, unsigned x) {
  for (int i = 1; i < 32; i <<= 1) x = std::max(x, __shfl_xor_sync(~0u, x, i));
  return x;
}
static int __reduce_min_sync(unsigned, int x) {
  for (int i = 1; i < 32; i <<= 1) x = std::min(x, __shfl_xor_sync(~0u, x, i));
  return x;
}
template <class T> static T __ldg(const T *at) { return *at; }
static int min(int a, int b) { return a < b ? a : b; }
static int max(int a, int b) { return a > b ? a : b; }
static unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
static unsigned atomicAdd(unsigned *at, unsigned value) { const unsigned old = *at; *at += value; return old; }
static unsigned atomicExch(unsigned *at, unsigned value) { const unsigned old = *at; *at = value; return old; }
static unsigned atomicMin(unsigned *at, unsigned value) { const unsigned old = *at; if (value < old) *at = value; return old; }
static unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const unsigned long long all = (unsigned long long)b << 32 | a;
  unsigned y = 0;
  for (int i = 0; i < 4; i++) y |= (unsigned)(all >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
  return y;
}
static float half_to_float(unsigned bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const float size = exponent ? ldexpf(1024 + mantissa, exponent - 25) : ldexpf(mantissa, -24);
  return bits & 0x8000 ? -size : size;
}

// In the place of an mbarrier: arrivals of a phase, and those and the bytes that it still waits for.
struct MBarrier { short count, pending; int bytes : 31; unsigned parity : 1; };
static_assert(sizeof(MBarrier) == sizeof(unsigned long long), "");
static MBarrier &mbarrier_of(unsigned long long *barrier) { return *(MBarrier *)barrier; }
static void arrive(unsigned long long *barrier, int arrivals, int bytes) {
  MBarrier &b = mbarrier_of(barrier);
  b.bytes += bytes, b.pending -= arrivals;
  if (b.pending || b.bytes) return;
  b.parity ^= 1, b.pending = b.count;
}
static bool passed(unsigned long long *barrier, unsigned parity) {
  if (mbarrier_of(barrier).parity != parity) return true;
  yield();
  return false;
}
static float load_word(const float *word) {  // also yields sometimes if it is not EMPTY: it may be a counter that a thread polls
  static unsigned loads;
  if (__float_as_uint(*(volatile const float *)word) == 0xffffffffu || ++loads % 4096 == 0) yield();
  return *(volatile const float *)word;
}

// The tensor-core instructions. Operands of all lanes are exchanged, then each lane computes its four sums.
// mma.m16n8k16: each lane stores its 8 numbers of a and 4 of b, then adds the products of its 2 rows and 2 columns.
static void multiply_bf16(float (&sum)[4], uint4 a, uint2 b) {
  const int lane = threadIdx.x % 32;
  double (*const numbers)[12] = block->numbers[threadIdx.x / 32][warp_turn()], *const mine = numbers[lane];
  const unsigned words[6] = {a.x, a.y, a.z, a.w, b.x, b.y};
  for (int i = 0; i < 12; i++) mine[i] = half_of(words[i / 2], i % 2);
  sync_warp();
  double total[4] = {sum[0], sum[1], sum[2], sum[3]};
  for (int quad = 0; quad < 4; quad++) {
    const double *rows = numbers[lane / 4 * 4 + quad], *first = numbers[lane % 4 * 8 + quad] + 8, *second = numbers[lane % 4 * 8 + 4 + quad] + 8;
    for (int i = 0; i < 4; i++) {
      const double upper = rows[i / 2 * 4 + i % 2], lower = rows[i / 2 * 4 + 2 + i % 2];
      total[0] += upper * first[i], total[1] += upper * second[i], total[2] += lower * first[i], total[3] += lower * second[i];
    }
  }
  for (int e = 0; e < 4; e++) sum[e] = (float)total[e];
}
static void multiply_signed(int (&sum)[4], uint4 a, uint2 b) {
  const int lane = threadIdx.x % 32;
  const unsigned mine[6] = {a.x, a.y, a.z, a.w, b.x, b.y};
  unsigned *words = warp_words();
  memcpy(words + lane * 6, mine, sizeof mine);
  sync_warp();
  for (int e = 0; e < 4; e++) {
    sum[e] = 0;
    for (int k = 0; k < 32; k++) {
      const int quad = k % 16 / 4, column = lane % 4 * 2 + e % 2;
      const unsigned left = words[(lane / 4 * 4 + quad) * 6 + e / 2 + k / 16 * 2], right = words[(column * 4 + quad) * 6 + 4 + k / 16];
      sum[e] += (signed char)(left >> k % 4 * 8) * (signed char)(right >> k % 4 * 8);
    }
  }
}

#define __CUDACC__
#define __CUDA_ARCH__ 900
#define __host__
#define __device__
#define __global__
#define __constant__
#define __noinline__
#define __forceinline__ inline
#define __align__(n) alignas(n)
#define __launch_bounds__(...)
