// CUDA on a CPU for tests/kernels/decode_network_emulated.py: all threads of all blocks are fibers of one thread, so that a whole grid of blocks that wait for each
// other runs. The order in which blocks proceed is random, with a fixed seed: a word that is read before it is written, or kept too long, shows up as a
// difference or as a deadlock.
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static float2 make_float2(float x, float y) { return {x, y}; }
struct Index { int x, y, z; };

static Index threadIdx, gridDim;

struct Group {  // threads that wait for each other
  int arrived;
  unsigned generation;
};
struct Block {
  Group all, consumers, warps[16];
  std::vector<char> memory;
  unsigned words[16 * 192];  // exchanged by the lanes of a warp: 6 per thread
  float numbers[16][32][12];  // operands of a matrix product
};
struct Fiber {
  ucontext_t context;
  jmp_buf state;
  bool started, ended;
  int thread;
  Block *block;
  const Group *waits_for;  // until its generation is not |generation|; null: for nothing
  unsigned generation;
};
static Block *block;
static Fiber *running;
static jmp_buf scheduler;
static const std::function<void()> *kernel_of_launch;
static int ended_fibers;

static void yield() {
  if (!_setjmp(running->state)) _longjmp(scheduler, 1);
}
static void run_fiber() {
  (*kernel_of_launch)();
  running->ended = true, ++ended_fibers;
  _longjmp(scheduler, 1);
}
static void resume(Fiber *fiber) {
  if (fiber->ended || (fiber->waits_for && fiber->waits_for->generation == fiber->generation)) return;
  running = fiber, block = fiber->block, threadIdx = {fiber->thread, 0, 0};
  if (_setjmp(scheduler)) return;
  if (fiber->started) _longjmp(fiber->state, 1);
  fiber->started = true;
  setcontext(&fiber->context);
}

#define STACK_BYTES (256 << 10)
// |blocks| of |threads| threads with |bytes| of shared memory.
static void launch(int blocks, int threads, size_t bytes, const std::function<void()> &kernel) {
  static std::mt19937 random(11);
  std::vector<Block> memory(blocks);
  std::vector<Fiber> fibers(blocks * threads);
  const size_t stacks_bytes = (size_t)STACK_BYTES * blocks * threads;
  char *stacks = (char *)mmap(nullptr, stacks_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  gridDim = {blocks, 1, 1}, kernel_of_launch = &kernel;
  for (Block &one : memory) one.all = one.consumers = {}, memset(one.warps, 0, sizeof one.warps), one.memory.assign(bytes + 1024, 0x7f);
  for (int i = 0; i < blocks * threads; ++i) {
    Fiber &f = fibers[i];
    f.started = f.ended = false, f.waits_for = nullptr, f.thread = i % threads, f.block = &memory[i / threads];
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = stacks + (size_t)STACK_BYTES * i, f.context.uc_stack.ss_size = STACK_BYTES, f.context.uc_link = nullptr;
    makecontext(&f.context, run_fiber, 0);
  }
  ended_fibers = 0;
  int stopped = 0;  // a block that does not proceed, for a while
  long until = 0;
  for (long round = 0;; ++round) {
    if (round >= until) stopped = random() % (blocks + 1), until = round + random() % 256;
    if (ended_fibers == blocks * threads) break;
    if (round > 400000000 / threads) printf("the kernel does not end\n"), exit(1);
    for (int b = 0; b < blocks; ++b) {
      if (b == stopped || random() % 2) continue;
      const int first = random() % threads;
      for (int t = 0; t < threads; ++t) resume(&fibers[b * threads + (first + t) % threads]);
    }
  }
  munmap(stacks, stacks_bytes);
}

static void wait_for(Group &group, int count) {
  const unsigned generation = group.generation;
  if (++group.arrived == count) {
    group.arrived = 0, ++group.generation;
    return;
  }
  running->waits_for = &group, running->generation = generation;
  yield();
  running->waits_for = nullptr;
}
static char *shared() { return (char *)(((uintptr_t)block->memory.data() + 1023) / 1024 * 1024); }
static void __syncthreads() { wait_for(block->all, 288); }
static void sync_warp() { wait_for(block->warps[threadIdx.x / 32], 32); }
static void __syncwarp() { sync_warp(); }
static unsigned *warp_words() { return block->words + threadIdx.x / 32 * 192; }

#include "warp_emulated.hpp"

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
static void exchange(uint4 a, uint2 b) {
  const unsigned mine[6] = {a.x, a.y, a.z, a.w, b.x, b.y};
  memcpy(warp_words() + threadIdx.x % 32 * 6, mine, sizeof mine);
  sync_warp();
}
// mma.m16n8k16: each lane stores its 8 numbers of a and 4 of b, then adds the products of its 2 rows and 2 columns.
static void multiply_bf16(float (&sum)[4], uint4 a, uint2 b) {
  const int lane = threadIdx.x % 32;
  float (*const numbers)[12] = block->numbers[threadIdx.x / 32], *const mine = numbers[lane];
  const unsigned words[6] = {a.x, a.y, a.z, a.w, b.x, b.y};
  for (int i = 0; i < 12; i++) mine[i] = half_of(words[i / 2], i % 2);
  sync_warp();
  double total[4] = {sum[0], sum[1], sum[2], sum[3]};
  for (int quad = 0; quad < 4; quad++) {
    const float *rows = numbers[lane / 4 * 4 + quad], *first = numbers[lane % 4 * 8 + quad] + 8, *second = numbers[lane % 4 * 8 + 4 + quad] + 8;
    for (int i = 0; i < 4; i++) {
      const double upper = rows[i / 2 * 4 + i % 2], lower = rows[i / 2 * 4 + 2 + i % 2];
      total[0] += upper * first[i], total[1] += upper * second[i], total[2] += lower * first[i], total[3] += lower * second[i];
    }
  }
  for (int e = 0; e < 4; e++) sum[e] = (float)total[e];
  sync_warp();
}
static void multiply_signed(int (&sum)[4], uint4 a, uint2 b) {
  const int lane = threadIdx.x % 32;
  const unsigned *words = warp_words();
  exchange(a, b);
  for (int e = 0; e < 4; e++) {
    sum[e] = 0;
    for (int k = 0; k < 32; k++) {
      const int quad = k % 16 / 4, column = lane % 4 * 2 + e % 2;
      const unsigned left = words[(lane / 4 * 4 + quad) * 6 + e / 2 + k / 16 * 2], right = words[(column * 4 + quad) * 6 + 4 + k / 16];
      sum[e] += (signed char)(left >> k % 4 * 8) * (signed char)(right >> k % 4 * 8);
    }
  }
  sync_warp();
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
