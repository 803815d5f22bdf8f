// Measures each phase of the CPU kernel on random weights in the shape of SmolLM2-135M. bench/phases builds
// and runs it.
//
// It runs the kernel's phases one by one. Each thread computes its share of the items, and all threads wait
// at a barrier after each phase. The table has the shortest time of each kind of phase, so other load on the
// machine hardly changes it.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../kernels/cpu/phases.h"
#include "../tests/kernels/cpu_network.h"

#define PROMPT 512
#define STEPS 32
#define REPEATS 4
#define MAX_THREADS 64
#define MAX_KINDS 8

static const char *const names[3][MAX_KINDS] = {
    {"list", "embed"},
    {"norm", "q, k, v", "append", "attention", "o", "norm", "gate, up", "down"},
    {"norm", "head", "sample"}};

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// ----------------------------------------------------------------------------------------------------------
// Running the phases

static network_t *network;
static arguments_t arguments;

static call_t make_call(void) {
  const mlx_network_arguments_t all = network_arguments(network, &arguments, BATCH_WORDS, false);
  call_t out;
  if (!mlx_network_call(&all, &out)) exit(1);
  return out;
}

static struct {
  _Alignas(64) uint64_t phase;
} arrived[MAX_THREADS];
static int threads = 1;
static call_t call;
static double shortest[3][MAX_KINDS];  // seconds: [0] before, [1] in, [2] after the layers

static void barrier(int me, uint64_t phase) {
  __atomic_store_n(&arrived[me].phase, phase, __ATOMIC_RELEASE);
  for (int i = 0; i < threads; ++i)
    while (__atomic_load_n(&arrived[i].phase, __ATOMIC_ACQUIRE) < phase) spin_pause();
}

static void *run_phases(void *argument) {
  const int me = (int)(intptr_t)argument;
  const uint64_t end = phases_of_step(&call);
  worker_t *worker = network_alloc(sizeof *worker);
  worker->vectors_phase = IDLE;
  worker->tiles = 0;
  for (uint64_t number = 0; number < end; ++number) {
    const int in = (int)number - PHASES_BEFORE_LAYERS, after = in - PHASES_IN_LAYER * network->shape.layers;
    double *best_time = in < 0      ? &shortest[0][number]
                        : after < 0 ? &shortest[1][in % PHASES_IN_LAYER]
                                    : &shortest[2][after];
    const double begin = seconds();
    const int64_t items = mlx_phase_items(&call, number), from = items * me / threads,
                  to = items * (me + 1) / threads;
    if (from < to) mlx_run_phase(&call, worker, number, (int)from, (int)to);
    barrier(me, number + 1);
    const double time = seconds() - begin;
    if (me == 0 && (*best_time == 0 || time < *best_time)) *best_time = time;
  }
  free(worker);
  return NULL;
}

static void run(void) {
  pthread_t others[MAX_THREADS];
  memset(arrived, 0, sizeof arrived);
  call = make_call();
  for (intptr_t i = 1; i < threads; ++i) pthread_create(&others[i], NULL, run_phases, (void *)i);
  run_phases(NULL);
  for (int i = 1; i < threads; ++i) pthread_join(others[i], NULL);
}

static double time_of(int part, int kind) {
  return shortest[part][kind] * (part == 1 ? network->shape.layers : 1);
}

static void print_table(const char *title, int tokens) {
  double total = 0;
  for (int part = 0; part < 3; ++part) {
    for (int kind = 0; kind < MAX_KINDS; ++kind) total += time_of(part, kind);
  }
  printf("\n%s, %d threads: %.0f tok/s\n\n| phase | ms | share |\n| --- | --- | --- |\n", title, threads,
         tokens / total);
  for (int part = 0; part < 3; ++part) {
    for (int kind = 0; kind < MAX_KINDS; ++kind) {
      const double time = time_of(part, kind);
      if (names[part][kind] && time > 0.005 * total)
        printf("| %s | %.3f | %.1f%% |\n", names[part][kind], 1e3 * time, 100 * time / total);
    }
  }
  memset(shortest, 0, sizeof shortest);
}

static void run_prompt(void) {
  clear_tokens(&arguments);
  for (int i = 0; i < PROMPT; ++i)
    add_token(&arguments, 0, i, i * 7919 % network->shape.vocab, i == PROMPT - 1);
  for (int i = 0; i < REPEATS; ++i) run();
  print_table("prefill of 512", PROMPT);
}

static void run_decode(int sequences) {
  char title[64];
  for (int step = 0; step < STEPS; ++step) {
    clear_tokens(&arguments);
    for (int i = 0; i < sequences; ++i) add_token(&arguments, i, step, step ? MLX_TOKEN_SAMPLED : i, true);
    run();
  }
  snprintf(title, sizeof title, "decode, %d sequences", sequences);
  print_table(title, sequences);
}

int main(int argc, char **argv) {
  threads = argc > 1 ? atoi(argv[1]) : 2;
  const bool bf16 = argc > 2 && !strcmp(argv[2], "bf16");
  if (threads < 1 || threads > MAX_THREADS) return 2;
  if (HAS_TILES) syscall(SYS_arch_prctl, 0x1023, 18);  // ARCH_REQ_XCOMP_PERM: request AMX tile data
  const shape_t smollm2 = {.hidden = 576,
                           .ffn = 1536,
                           .heads = 9,
                           .kv_heads = 3,
                           .head_dim = 64,
                           .layers = 30,
                           .vocab = 49152,
                           .body = bf16 ? MLX_PANEL_BF16 : MLX_PANEL_Q4_1,
                           .head = bf16 ? MLX_PANEL_BF16 : MLX_PANEL_Q8_0};
  network = make_network(smollm2, 300 << 20);
  arguments = make_arguments(network);
  run_prompt();
  for (int sequences = 1; sequences <= 64; sequences *= 8) run_decode(sequences);
  return 0;
}
