// CUDA blocks on a CPU: all threads of the blocks that run together are fibers of one thread of the system. The order in which blocks and threads proceed is
// random, with a fixed seed: a word that is read before it is written, or kept too long, shows up as a difference or as a deadlock.
#ifndef FIBERS_HPP
#define FIBERS_HPP
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <functional>
#include <memory>
#include <random>
#include <vector>

struct Index { int x, y, z; };
struct Group {  // threads that wait for each other
  int arrived;
  unsigned generation;
};
#define WARP_WORDS 192  // exchanged by the lanes of a warp: 6 per thread
struct Block {
  Index index;
  int threads;
  Group all, consumers, warps[32];
  std::vector<char> memory;
  Block *first;   // of the cluster
  Group *cluster;
  unsigned words[32][2][WARP_WORDS];
  double numbers[16][2][32][12];  // operands of a matrix product
};
struct Fiber {
  void *state[5];
  ucontext_t context;  // of its start
  bool started, ended;
  int thread;
  Block *block;
  const Group *waits_for;  // until its generation is not |generation|; null: for nothing
  unsigned generation;
};
static Index threadIdx, blockIdx, gridDim;
static Block *block;
static Fiber *running;
static void *scheduler[5];
static const std::function<void()> *kernel_of_launch;
static int ended_fibers;

// The compiler must not join a jump with the place that it leaves.
__attribute__((noinline, noipa)) static void jump(void **to) { __builtin_longjmp(to, 1); }
__attribute__((noinline, noipa)) static void leave() {
  if (!__builtin_setjmp(running->state)) jump(scheduler);
}
static void (*volatile leave_fiber)() = leave;  // the compiler must not know it: other threads change variables
static void yield() { leave_fiber(); }
static void run_fiber() {
  for (;;) {  // once for each launch
    (*kernel_of_launch)();
    running->ended = true, ++ended_fibers;
    yield();
  }
}
__attribute__((noinline, noipa)) static void resume(Fiber *fiber) {
  running = fiber, block = fiber->block, threadIdx = {fiber->thread, 0, 0}, blockIdx = block->index;
  if (__builtin_setjmp(scheduler)) return;
  if (fiber->started) jump(fiber->state);
  fiber->started = true;
  setcontext(&fiber->context);
}

#define STACK_BYTES (256 << 10)
// The |nth| fiber; it keeps its stack after a launch.
static Fiber *fiber_at(size_t nth) {
  static std::vector<std::unique_ptr<Fiber>> fibers;
  while (fibers.size() <= nth) {
    Fiber *f = new Fiber();
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    f->context.uc_stack.ss_size = STACK_BYTES, f->context.uc_link = nullptr;
    makecontext(&f->context, run_fiber, 0);
    fibers.emplace_back(f);
  }
  return fibers[nth].get();
}

static void initialize(Block &one, int threads, size_t bytes, Index index) {
  one.index = index, one.threads = threads, one.all = one.consumers = {}, one.first = &one, one.cluster = nullptr;
  memset(one.warps, 0, sizeof one.warps), one.memory.assign(bytes + 1024, 0x7f);
}

// Runs blocks that may wait for each other.
static void run_blocks(std::vector<Block> &blocks, const std::function<void()> &kernel) {
  static std::mt19937 random(11);
  const int threads = blocks[0].threads, count = (int)blocks.size();
  std::vector<Fiber *> fibers(count * threads);
  kernel_of_launch = &kernel, ended_fibers = 0;
  for (int i = 0; i < count * threads; ++i) {
    Fiber *f = fibers[i] = fiber_at(i);
    f->ended = false, f->waits_for = nullptr, f->thread = i % threads, f->block = &blocks[i / threads];
  }
  int stopped = -1;  // a block that does not proceed, for a while
  long until = 0;
  for (long round = 0; ended_fibers < count * threads; ++round) {
    if (count > 1 && round >= until) stopped = random() % (count + 1), until = round + random() % 256;
    if (round > 400000000 / threads) printf("the kernel does not end\n"), exit(1);
    for (int b = 0; b < count; ++b) {
      if (b == stopped || (count > 1 && random() % 2)) continue;
      Fiber **const of = &fibers[b * threads];
      for (int i = 0, t = random() % threads; i < threads; ++i, t = t + 1 < threads ? t + 1 : 0) {
        Fiber *f = of[t];
        if (!f->ended && (!f->waits_for || f->waits_for->generation != f->generation)) resume(f);
      }
    }
  }
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
static char *shared_of(Block *of) { return (char *)(((uintptr_t)of->memory.data() + 1023) / 1024 * 1024); }
static char *shared() { return shared_of(block); }
static void __syncthreads() { wait_for(block->all, block->threads); }
static void sync_warp() { wait_for(block->warps[threadIdx.x / 32], 32); }
static void __syncwarp() { sync_warp(); }
// A warp has two of these by turns, so that a lane may write before others have read: an exchange waits once.
static unsigned warp_turn() { return block->warps[threadIdx.x / 32].generation % 2; }
static unsigned *warp_words() { return block->words[threadIdx.x / 32][warp_turn()]; }

// The instructions by which the lanes of a warp exchange words, and 16-bit numbers.
template <class T>
static T shuffle(T value, int lane) {
  unsigned *words = warp_words();
  memcpy(words + threadIdx.x % 32, &value, 4);
  sync_warp();
  memcpy(&value, words + lane, 4);
  return value;
}
template <class T>
static T __shfl_xor_sync(unsigned, T value, int bits) {
  return shuffle(value, threadIdx.x % 32 ^ bits);
}
template <class T>
static T __shfl_sync(unsigned, T value, int lane) {
  return shuffle(value, lane % 32);
}
static bool __any_sync(unsigned, bool value) {
  unsigned *words = warp_words();
  words[threadIdx.x % 32] = value;
  sync_warp();
  bool any = false;
  for (int i = 0; i < 32; ++i) any |= words[i] != 0;
  return any;
}

static float __uint_as_float(unsigned word) {
  float value;
  memcpy(&value, &word, 4);
  return value;
}
static float half_of(unsigned pair, int nth) { return __uint_as_float((nth ? pair >> 16 : pair & 0xffff) << 16); }
static unsigned bf16_of(float value) {
  unsigned word;
  memcpy(&word, &value, 4);
  return (word + 0x7fff + (word >> 16 & 1)) >> 16;
}
#endif
