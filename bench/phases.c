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

enum { HIDDEN = 576, FFN = 1536, HEADS = 9, KV_HEADS = 3, HEAD_DIM = 64, LAYERS = 30, VOCAB = 49152 };
enum { Q_WIDTH = HEADS * HEAD_DIM, KV_WIDTH = KV_HEADS * HEAD_DIM };
#define BEFORE_LAYERS 2  // phases: list; embedding and RoPE table
#define IN_LAYER 8
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
static mlx_program_weight_t matrix(mlx_panel_format_t format, int rows, int columns) {
  static uint64_t random = 88172645463325252u;
  const mlx_program_weight_t weight = {.at = weight_bytes, .format = (int32_t)format};
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

static mlx_program_weight_t ones(int columns) {
  const mlx_program_weight_t weight = {.at = weight_bytes};
  for (int i = 0; i < columns; ++i) ((float *)(void *)(weights + weight_bytes))[i] = 1;
  weight_bytes = (uint64_t)mlx_round_up((int64_t)weight_bytes + 4 * columns, 64);
  return weight;
}

// The program, as compiler/cpu_program.c writes it for this shape.
static mlx_program_t header = {.vocab = VOCAB,
                               .sequences = 1,
                               .sequence_pages = 33,
                               .pool_pages = 34,
                               .max_tokens = PROMPT,
                               .tiles = HAS_TILES};
static mlx_phase_t phases[BEFORE_LAYERS + IN_LAYER * LAYERS + 3];
static mlx_instruction_t code[4 + 12 * LAYERS + 3];
static float frequencies[HEAD_DIM / 2];
static bool parts_always;  // the matrices are not quantized

static mlx_program_buffer_t buffer(int columns, bool parts, bool plain) {
  mlx_program_buffer_t out = {.at = header.words,
                              .stride = columns,
                              .parts_from = parts_always ? 1 : MLX_CPU_MIN_TILED_ROWS,
                              .plain_below = plain          ? 1 << 30
                                             : parts_always ? 1
                                                            : MLX_CPU_MIN_TILED_ROWS};
  header.words += mlx_round_up((int64_t)PROMPT * columns, 16);
  if (parts && HAS_TILES) {
    out.parts = header.words;
    header.words += mlx_parts_words(PROMPT, columns);
  }
  return out;
}

static mlx_instruction_t *add(int kind, int rows, bool new_phase) {
  const mlx_program_weight_t none = {.at = MLX_NO_WEIGHT};
  mlx_instruction_t *i = &code[header.instructions++];
  *i = (mlx_instruction_t){.kind = kind,
                           .rows = rows,
                           .weight = none,
                           .up = none,
                           .bias = none,
                           .up_bias = none,
                           .act = MLX_RUN_NO_ACT,
                           .heads = HEADS,
                           .kv_heads = KV_HEADS,
                           .head_dim = HEAD_DIM,
                           .dims = HEAD_DIM};
  if (new_phase) phases[header.phases++] = (mlx_phase_t){.first = header.instructions - 1};
  ++phases[header.phases - 1].count;
  return i;
}

static void add_norm(int rows, mlx_program_buffer_t from, mlx_program_buffer_t to) {
  mlx_instruction_t *i = add(MLX_RUN_NORM, rows, true);
  i->a = from, i->out = to;
  i->width = HIDDEN, i->heads = 1, i->dims = 0;
  i->weight = ones(HIDDEN);
  i->numbers[0] = 1e-5f;
}

static mlx_instruction_t *add_product(mlx_panel_format_t format, int rows, mlx_program_buffer_t from,
                                      mlx_program_buffer_t to, bool new_phase) {
  mlx_instruction_t *i = add(MLX_RUN_PRODUCT, MLX_ROWS_TOKENS, new_phase);
  i->a = from, i->out = i->b = to;
  i->width = from.stride, i->out_rows = rows;
  i->weight = matrix(format, rows, from.stride);
  return i;
}

static void add_rope(int heads, mlx_program_buffer_t x, mlx_program_buffer_t table, bool new_phase) {
  mlx_instruction_t *i = add(MLX_RUN_ROPE, MLX_ROWS_TOKENS, new_phase);
  i->a = i->out = x, i->b = table, i->heads = heads;
}

static void add_layer(mlx_panel_format_t body, int layer, mlx_program_buffer_t x,
                      mlx_program_buffer_t table) {
  static mlx_program_buffer_t h, q, k, v, attended, act;
  if (layer == 0) {
    h = buffer(HIDDEN, true, false), q = buffer(Q_WIDTH, false, true), k = buffer(KV_WIDTH, false, true);
    v = buffer(KV_WIDTH, false, true), attended = buffer(Q_WIDTH, true, false),
    act = buffer(FFN, true, false);
  }
  add_norm(MLX_ROWS_TOKENS, x, h);
  add_product(body, Q_WIDTH, h, q, true);
  add_product(body, KV_WIDTH, h, k, false);
  add_product(body, KV_WIDTH, h, v, false);
  add_rope(HEADS, q, table, true);
  add_rope(KV_HEADS, k, table, false);
  mlx_instruction_t *i = add(MLX_RUN_APPEND, MLX_ROWS_TOKENS, false);
  i->a = k, i->b = v;
  i->kv_at = layer * header.pool_pages * mlx_kv_page_bytes(header.kv_format, KV_HEADS, HEAD_DIM);
  const int64_t kv_at = i->kv_at;
  i = add(MLX_RUN_ATTEND, MLX_ROWS_TOKENS, true);
  i->a = q, i->out = attended, i->kv_at = kv_at, i->numbers[0] = 0.125f;
  add_product(body, HIDDEN, attended, x, true)->adds = 1;
  add_norm(MLX_ROWS_TOKENS, x, h);
  i = add_product(body, FFN, h, act, true);
  i->up = matrix(body, FFN, HIDDEN), i->act = MLX_RUN_SILU;
  add_product(body, HIDDEN, act, x, true)->adds = 1;
}

static void make_program(mlx_panel_format_t body, mlx_panel_format_t head) {
  weights = zeroed(300 << 20);
  parts_always = body == MLX_PANEL_BF16;
  header.slots = MLX_CPU_CONTROL_WORDS;
  header.best = mlx_round_up(header.slots + 5 * PROMPT, 16);
  header.words = mlx_round_up(header.best + 2 * VOCAB / MLX_PANEL_ROWS, 16);
  const mlx_program_weight_t table_weight = matrix(head, VOCAB, HIDDEN);
  const mlx_program_buffer_t x = buffer(HIDDEN, false, true), table = buffer(HEAD_DIM, false, true);
  for (int i = 0; i < HEAD_DIM / 2; ++i) frequencies[i] = 1.0f / (float)(i + 1);
  add(MLX_RUN_LIST, MLX_ROWS_TOKENS, true);
  mlx_instruction_t *i = add(MLX_RUN_EMBED, MLX_ROWS_TOKENS, true);
  i->weight = table_weight, i->out = x, i->out_rows = VOCAB, i->width = HIDDEN;
  i = add(MLX_RUN_ROPE_TABLE, MLX_ROWS_TOKENS, false);
  i->out = table, i->numbers[0] = 1;
  for (int layer = 0; layer < LAYERS; ++layer) add_layer(body, layer, x, table);
  const mlx_program_buffer_t last = buffer(HIDDEN, parts_always, true);
  add_norm(MLX_ROWS_LAST, x, last);
  i = add(MLX_RUN_PRODUCT, MLX_ROWS_WANTED, true);
  i->a = last, i->width = HIDDEN, i->out_rows = VOCAB, i->weight = table_weight, i->logits = 1;
  add(MLX_RUN_SAMPLE, MLX_ROWS_TOKENS, true);
}

static call_t make_call(void) {
  static int32_t tokens[PROMPT], start[1], count[1], pages[33], token[1], position[1], result[PROMPT];
  float *floats = zeroed((size_t)header.words * 4);
  int32_t *slots = (int32_t *)(void *)floats + header.slots;
  for (int i = 0; i < PROMPT; ++i) tokens[i] = i * 7919 % VOCAB;
  for (int i = 0; i < header.sequence_pages; ++i) pages[i] = i + 1;
  const int64_t layer_bytes = header.pool_pages * mlx_kv_page_bytes(header.kv_format, KV_HEADS, HEAD_DIM);
  return (call_t){.n = &header,
                  .phases = phases,
                  .code = code,
                  .floats = frequencies,
                  .weights = weights,
                  .tokens = tokens,
                  .start = start,
                  .count = count,
                  .pages = pages,
                  .kv = zeroed((size_t)(LAYERS * layer_bytes)),
                  .token = token,
                  .position = position,
                  .result = result,
                  .logits = zeroed((size_t)VOCAB * 4),
                  .control = (void *)floats,
                  .scratch = floats,
                  .sequence_of = slots,
                  .position_of = slots + PROMPT,
                  .id_of = slots + 2 * PROMPT,
                  .last_of = slots + 3 * PROMPT,
                  .active_sequences = slots + 4 * PROMPT,
                  .best = floats + header.best};
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
    const int at = (int)(number % (uint64_t)header.phases), in = at - BEFORE_LAYERS,
              after = in - IN_LAYER * LAYERS;
    double *best_time = in < 0      ? &shortest[0][at]
                        : after < 0 ? &shortest[1][in % IN_LAYER]
                                    : &shortest[2][after];
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

static double time_of(int part, int kind) { return shortest[part][kind] * (part == 1 ? LAYERS : 1); }

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
  make_program(bf16 ? MLX_PANEL_BF16 : MLX_PANEL_Q4_1, bf16 ? MLX_PANEL_BF16 : MLX_PANEL_Q8_0);
  call = make_call();
  for (int i = 0; i < REPEATS; ++i) run(PROMPT, 1);
  print_table("prefill of 512", PROMPT);
  for (int i = 0; i < REPEATS; ++i) {
    *call.position = 0;
    run(0, STEPS);
  }
  print_table("decode, one token", 1);
  return 0;
}
