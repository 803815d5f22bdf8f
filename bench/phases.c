// Measures each phase of the CPU kernel on random weights in the shape of a model. bench/phases builds and
// runs it: THREADS SHAPE FORMAT PROMPT.
//
// It runs the kernel's phases one by one. Each thread computes its share of the items, and all threads wait
// at a barrier after each phase. The table has the shortest time of each kind of phase, so other load on the
// machine hardly changes it. A single thread is measured in CPU time.
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

#define STEPS 32
#define REPEATS 4
#define MAX_THREADS 64
#define MAX_KINDS 8

static const char *const names[3][MAX_KINDS] = {
    {"list", "embed"},
    {"norm", "q, k, v", "append", "attention", "o", "norm", "gate, up", "down"},
    {"norm", "head", "sample"}};

static int threads = 1;

static double seconds(void) {
  struct timespec now;
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
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

static void run_prompt(int prompt) {
  char title[64];
  clear_tokens(&arguments);
  for (int i = 0; i < prompt; ++i)
    add_token(&arguments, 0, i, i * 7919 % network->shape.vocab, i == prompt - 1);
  for (int i = 0; i < REPEATS; ++i) run();
  snprintf(title, sizeof title, "prefill of %d", prompt);
  print_table(title, prompt);
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

// Shapes of models. Large ones have a few layers and a small vocabulary: the time of a phase is that of any
// layer.
typedef struct named_shape {
  const char *name;
  shape_t shape;
} named_shape_t;
#define SHAPE(HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCAB) \
  {.hidden = HIDDEN,                                                 \
   .ffn = FFN,                                                       \
   .heads = HEADS,                                                   \
   .kv_heads = KV_HEADS,                                             \
   .head_dim = HEAD_DIM,                                             \
   .layers = LAYERS,                                                 \
   .vocab = VOCAB,                                                   \
   .head = MLX_PANEL_Q8_0}
static const named_shape_t shapes[] = {{"smollm2-135m", SHAPE(576, 1536, 9, 3, 64, 30, 49152)},
                                       {"qwen2.5-1.5b", SHAPE(1536, 8960, 12, 2, 128, 4, 8192)},
                                       {"qwen3-4b", SHAPE(2560, 9728, 32, 8, 128, 3, 8192)},
                                       {"llama-1b", SHAPE(2048, 8192, 32, 8, 64, 4, 8192)},
                                       {"llama-8b", SHAPE(4096, 14336, 32, 8, 128, 2, 8192)}};
#undef SHAPE

static const char *const formats[] = {
#define NAME(format, ...) [MLX_PANEL_##format] = #format,
    MLX_PANEL_TABLE(NAME)
#undef NAME
};

static bool find_shape(const char *name, const char *format, shape_t *out) {
  bool found = false;
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i) {
    if (strcmp(shapes[i].name, name)) continue;
    *out = shapes[i].shape;
    found = true;
  }
  for (int i = 0; found && i < MLX_PANEL_FORMATS; ++i) {
    if (strcmp(formats[i], format)) continue;
    out->body = (mlx_panel_format_t)i;
    if (!is_quantized(i)) out->head = out->body;
    return true;
  }
  return false;
}

int main(int argc, char **argv) {
  shape_t shape;
  if (argc != 5 || !find_shape(argv[2], argv[3], &shape)) return 2;
  threads = atoi(argv[1]);
  const int prompt = atoi(argv[4]);
  if (threads < 1 || threads > MAX_THREADS || prompt < 1 || prompt > MLX_CPU_STEP_TOKENS) return 2;
  if (HAS_TILES) syscall(SYS_arch_prctl, 0x1023, 18);  // ARCH_REQ_XCOMP_PERM: request AMX tile data
  const size_t layer = (size_t)shape.ffn * 3 + (size_t)shape.heads * 4 * (size_t)shape.head_dim;
  network = make_network(
      shape, ((size_t)shape.layers * layer + 2 * (size_t)shape.vocab) * (size_t)shape.hidden * 4 + (1 << 20));
  arguments = make_arguments(network);
  run_prompt(prompt);
  for (int sequences = 1; sequences <= 64; sequences *= 8) run_decode(sequences);
  return 0;
}
