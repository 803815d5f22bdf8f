// Runs a block of kernels/cuda/sample.cu on a CPU. Each of its 1024 threads is a context of its own, which runs
// until it waits for others. So races within a block are not found, but everything else is.
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

namespace {

typedef unsigned long long wide_t;
constexpr int COUNT = 1024;
constexpr size_t STACK = 65536;

struct Index {
  int x;
} threadIdx, blockIdx;

// ---- threads ----

ucontext_t starts[COUNT];
jmp_buf contexts[COUNT], caller;
bool started[COUNT], finished[COUNT];
char *stacks;

void run_next() {
  for (int i = 1; i <= COUNT; ++i) {
    const int next = (threadIdx.x + i) % COUNT;
    if (finished[next]) continue;
    threadIdx.x = next;
    if (started[next]) _longjmp(contexts[next], 1);
    started[next] = true;
    setcontext(&starts[next]);
  }
  _longjmp(caller, 1);
}

struct Barrier {
  int waiting;
  unsigned passes;
} block_barrier, warp_barriers[COUNT / 32];

void wait(Barrier &barrier, int count) {
  const unsigned pass = barrier.passes;
  if (++barrier.waiting == count) {
    barrier.waiting = 0;
    ++barrier.passes;
  }
  while (barrier.passes == pass) {
    if (!_setjmp(contexts[threadIdx.x])) run_next();
  }
}

// ---- CUDA ----

void __syncthreads() { wait(block_barrier, COUNT); }
void __syncwarp() { wait(warp_barriers[threadIdx.x / 32], 32); }

int counted;
int __syncthreads_count(int is_true) {
  __syncthreads();
  counted = 0;
  __syncthreads();
  counted += is_true != 0;
  __syncthreads();
  return counted;
}
int __syncthreads_or(int is_true) { return __syncthreads_count(is_true) != 0; }

wide_t exchanged[COUNT];
wide_t __shfl_sync(unsigned, wide_t x, int lane) {
  exchanged[threadIdx.x] = x;
  __syncwarp();
  x = exchanged[threadIdx.x / 32 * 32 + lane];
  __syncwarp();
  return x;
}
wide_t __shfl_xor_sync(unsigned mask, wide_t x, int bits) { return __shfl_sync(mask, x, threadIdx.x % 32 ^ bits); }
wide_t __shfl_up_sync(unsigned mask, wide_t x, int by) {
  return __shfl_sync(mask, x, threadIdx.x % 32 < by ? threadIdx.x % 32 : threadIdx.x % 32 - by);
}

template <class T>
T atomicAdd(T *at, T x) {
  const T before = *at;
  *at += x;
  return before;
}
void atomicOr(unsigned *at, unsigned x) { *at |= x; }
struct float4 {
  float x, y, z, w;
};
float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
int min(int a, int b) { return a < b ? a : b; }
int max(int a, int b) { return a > b ? a : b; }

template <class To, class From>
To bits(From from) {
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
unsigned __float_as_uint(float x) { return bits<unsigned>(x); }
float __uint_as_float(unsigned x) { return bits<float>(x); }
long long __double_as_longlong(double x) { return bits<long long>(x); }
double __longlong_as_double(long long x) { return bits<double>(x); }
float __fadd_rn(float a, float b) { return a + b; }
float __fsub_rn(float a, float b) { return a - b; }
float __fmul_rn(float a, float b) { return a * b; }
float __fdiv_rn(float a, float b) { return a / b; }
double __dadd_rn(double a, double b) { return a + b; }
double __dsub_rn(double a, double b) { return a - b; }
double __dmul_rn(double a, double b) { return a * b; }
double __ddiv_rn(double a, double b) { return a / b; }
wide_t __umul64hi(wide_t a, wide_t b) { return (wide_t)((unsigned __int128)a * b >> 64); }

#define __CUDACC__
#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#include "sample.cu"

const int *batch_of;
const float *row_logits;
int *row_history, *row_results;

void run_thread() {
  mlx_sample(batch_of, row_logits, row_history, row_results, VOCAB);
  finished[threadIdx.x] = true;
  run_next();
}

}  // namespace

extern "C" void emulate_sample(const int *batch, const float *logits, int *history, int *results, int row) {
  if (!stacks) stacks = (char *)malloc(COUNT * STACK);
  batch_of = batch;
  row_logits = logits;
  row_history = history;
  row_results = results;
  blockIdx.x = row;
  for (int i = 0; i < COUNT; ++i) {
    started[i] = finished[i] = false;
    getcontext(&starts[i]);
    starts[i].uc_stack.ss_sp = stacks + i * STACK;
    starts[i].uc_stack.ss_size = STACK;
    starts[i].uc_link = nullptr;
    makecontext(&starts[i], run_thread, 0);
  }
  threadIdx.x = COUNT - 1;
  if (!_setjmp(caller)) run_next();
}
