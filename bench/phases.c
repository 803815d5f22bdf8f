// Measures each phase of the CPU kernel on random weights in the shape of SmolLM2-135M. bench/phases builds
// and runs it.
//
// It includes the kernel's source and runs its phases one by one. Each thread computes its share of the
// items, and all threads wait at a barrier after each phase. The table has the shortest time of each kind of
// phase, so other load on the machine hardly changes it.
#define _GNU_SOURCE
#include "../kernels/cpu/network.c"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PROMPT 512
#define STEPS 32
#define REPEATS 4
#define MAX_THREADS 64
#define MAX_KINDS 8

static const mlx_network_t shape = {.hidden = 576,
                                    .ffn = 1536,
                                    .heads = 9,
                                    .kv_heads = 3,
                                    .head_dim = 64,
                                    .layers = 30,
                                    .vocab = 49152,
                                    .sequences = 1,
                                    .sequence_pages = 33,
                                    .pool_pages = 34,
                                    .max_tokens = PROMPT,
                                    .tiles = HAS_TILES,
                                    .norm_eps = 1e-5f,
                                    .scale = 0.125f};
static const char *const names[3][MAX_KINDS] = {
    {"list", "embed"},
    {"norm", "q, k, v", "append", "attention", "o", "norm", "gate, up", "down"},
    {"norm", "head", "sample"}};

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void *zeroed(size_t bytes) {
  void *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (!memory) exit(1);
  return memset(memory, 0, bytes);
}

// ----------------------------------------------------------------------------------------------------------
// A network with random weights

static uint8_t *weights;
static uint64_t weight_bytes;

// Fills a matrix with random codes. 16-bit floats, including scales, get a small exponent, so that no value
// is infinite.
static mlx_network_weight_t matrix(mlx_panel_format_t format, int rows, int columns) {
  static uint64_t random = 88172645463325252u;
  const mlx_network_weight_t weight = {.at = weight_bytes, .format = (int32_t)format};
  const int64_t block = mlx_panel_block_bytes(weight.format),
                bytes = rows / MLX_PANEL_ROWS * mlx_panel_bytes(weight.format, columns);
  const int64_t halves = is_quantized(weight.format) ? scale_bytes(weight.format) / 2 : block / 2;
  for (int64_t i = 0; i < bytes; i += 8) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    memcpy(weights + weight_bytes + i, &random, 8);
  }
  for (int64_t i = 0; i < bytes; i += block) {
    uint16_t *numbers = (void *)(weights + weight_bytes + i);
    for (int64_t k = 0; k < halves; ++k)
      numbers[k] =
          is_quantized(weight.format) ? (numbers[k] & 0x83ff) | 0x1c00 : (numbers[k] & 0x80ff) | 0x3c00;
  }
  weight_bytes = (uint64_t)mlx_round_up((int64_t)weight_bytes + bytes, 64);
  return weight;
}

static mlx_network_weight_t ones(int columns) {
  const mlx_network_weight_t weight = {.at = weight_bytes};
  for (int i = 0; i < columns; ++i) ((float *)(void *)(weights + weight_bytes))[i] = 1;
  weight_bytes = (uint64_t)mlx_round_up((int64_t)weight_bytes + 4 * columns, 64);
  return weight;
}

static mlx_network_t *make_plan(mlx_panel_format_t body, mlx_panel_format_t head) {
  const int width = shape.hidden, q = q_width(&shape), kv = kv_width(&shape), ffn = shape.ffn;
  mlx_network_t *n = zeroed(sizeof *n + (size_t)mlx_network_frequency_words(&shape) * 4 +
                            (size_t)shape.layers * sizeof(mlx_network_layer_t));
  float *frequencies = (float *)(n + 1);
  mlx_network_layer_t *layers = (void *)(frequencies + mlx_network_frequency_words(&shape));
  *n = shape;
  weights = zeroed(300 << 20);
  n->kv_format = body == MLX_PANEL_BF16 ? MLX_PANEL_BF16 : MLX_PANEL_F32;
  n->embed = n->head = matrix(head, shape.vocab, width);
  n->final_norm = ones(width);
  for (int i = 0; i < shape.head_dim / 2; ++i) frequencies[i] = 1.0f / (float)(i + 1);
  for (int i = 0; i < shape.layers; ++i) {
    layers[i] = (mlx_network_layer_t){.attn_norm = ones(width),
                                      .q = matrix(body, q, width),
                                      .k = matrix(body, kv, width),
                                      .v = matrix(body, kv, width),
                                      .o = matrix(body, width, q),
                                      .mlp_norm = ones(width),
                                      .gate = matrix(body, ffn, width),
                                      .up = matrix(body, ffn, width),
                                      .down = matrix(body, width, ffn)};
  }
  return n;
}

static call_t make_call(const mlx_network_t *n) {
  static int32_t tokens[PROMPT], start[1], count[1], pages[33], token[1], position[1], result[PROMPT];
  const mlx_network_scratch_t s = mlx_network_scratch(n);
  float *floats = zeroed((size_t)s.words * 4);
  int32_t *slots = (int32_t *)(void *)floats + s.slots;
  const float *frequencies = (const float *)(n + 1);
  for (int i = 0; i < PROMPT; ++i) tokens[i] = i * 7919 % n->vocab;
  for (int i = 0; i < n->sequence_pages; ++i) pages[i] = i + 1;
  return (call_t){.n = n,
                  .frequencies = frequencies,
                  .layers = (const void *)(frequencies + mlx_network_frequency_words(n)),
                  .weights = weights,
                  .tokens = tokens,
                  .start = start,
                  .count = count,
                  .pages = pages,
                  .kv = zeroed((size_t)(n->layers * n->pool_pages * kv_page_bytes(n))),
                  .token = token,
                  .position = position,
                  .result = result,
                  .logits = zeroed((size_t)n->vocab * 4),
                  .control = (void *)floats,
                  .sequence_of = slots,
                  .position_of = slots + n->max_tokens,
                  .id_of = slots + 2 * n->max_tokens,
                  .last_of = slots + 3 * n->max_tokens,
                  .active_sequences = slots + 4 * n->max_tokens,
                  .rope_table = floats + s.rope_table,
                  .x = floats + s.x,
                  .h = floats + s.h,
                  .qkv = floats + s.qkv,
                  .attended = floats + s.attended,
                  .act = floats + s.act,
                  .best = floats + s.best,
                  .h_parts = (uint16_t *)(void *)(floats + s.h_parts),
                  .act_parts = (uint16_t *)(void *)(floats + s.act_parts)};
}

// ----------------------------------------------------------------------------------------------------------
// Running the phases

static struct {
  _Alignas(64) uint64_t phase;
} arrived[MAX_THREADS];
static int threads = 1;
static call_t call;
static double shortest[3][MAX_KINDS];  // seconds: [0] before, [1] in, [2] after the layers

static void barrier(int me, uint64_t phase) {
  __atomic_store_n(&arrived[me].phase, phase, __ATOMIC_RELEASE);
  for (int i = 0; i < threads; ++i)
    while (__atomic_load_n(&arrived[i].phase, __ATOMIC_ACQUIRE) < phase) _mm_pause();
}

static void *run_phases(void *argument) {
  const int me = (int)(intptr_t)argument;
  const uint64_t end = phases_of_step(&call) * call.steps;
  worker_t *worker = zeroed(sizeof *worker);
  worker->vector_phase = IDLE;
  for (uint64_t number = 0; number < end; ++number) {
    const phase_t phase = phase_at(&call, number);
    double *best_time = &shortest[phase.in_layer ? 1 : phase.layer < 0 ? 0 : 2][phase.kind];
    const double begin = seconds();
    const int64_t items = item_count(&call, number), from = items * me / threads,
                  to = items * (me + 1) / threads;
    if (from < to) run_items(&call, worker, number, (int)from, (int)to);
    barrier(me, number + 1);
    const double time = seconds() - begin;
    if (me == 0 && (*best_time == 0 || time < *best_time)) *best_time = time;
  }
  free(worker);
  return NULL;
}

static void run(int width, uint32_t steps) {
  pthread_t others[MAX_THREADS];
  call.width = width;
  call.steps = steps;
  memset(arrived, 0, sizeof arrived);
  *(int32_t *)(uintptr_t)call.count = width ? width : 1;
  for (intptr_t i = 1; i < threads; ++i) pthread_create(&others[i], NULL, run_phases, (void *)i);
  run_phases(NULL);
  for (int i = 1; i < threads; ++i) pthread_join(others[i], NULL);
}

static double time_of(int part, int kind) { return shortest[part][kind] * (part == 1 ? shape.layers : 1); }

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

int main(int argc, char **argv) {
  threads = argc > 1 ? atoi(argv[1]) : 2;
  const bool bf16 = argc > 2 && !strcmp(argv[2], "bf16");
  if (threads < 1 || threads > MAX_THREADS) return 2;
  if (HAS_TILES) syscall(SYS_arch_prctl, 0x1023, 18);  // ARCH_REQ_XCOMP_PERM: request AMX tile data
  call = make_call(make_plan(bf16 ? MLX_PANEL_BF16 : MLX_PANEL_Q4_1, bf16 ? MLX_PANEL_BF16 : MLX_PANEL_Q8_0));
  for (int i = 0; i < REPEATS; ++i) run(PROMPT, 1);
  print_table("prefill of 512", PROMPT);
  for (int i = 0; i < REPEATS; ++i) {
    *call.position = 0;
    run(0, STEPS);
  }
  print_table("decode, one token", 1);
  return 0;
}
