// The CPU kernel with batches of several sequences, against each sequence alone: the logits must have the
// same bits. A separate program, because tests/kernels/cpu_vectors.sh links it with the kernel objects of one
// CPU level and runs it on this machine or under an emulator. It calls the kernel without IREE.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/call.h"
#include "kernels/cpu/panel_codes.h"
#include "tests/kernels/cpu_network.h"

static int failures;
#define EXPECT(condition, ...)       \
  do {                               \
    if (!(condition)) {              \
      printf("line %d: ", __LINE__); \
      printf(__VA_ARGS__);           \
      printf("\n");                  \
      ++failures;                    \
    }                                \
  } while (0)

// ----------------------------------------------------------------------------------------------------------
// Calls

typedef struct run {
  network_t *network;
  arguments_t arguments;
  int64_t batch_words;
  int is_burst, threads;
  int end;   // of positions that calls may have written since the pool was cleared
  int next;  // workgroup
} run_t;

static void *run_workgroups(void *user) {
  run_t *r = user;
  while (__atomic_fetch_add(&r->next, 1, __ATOMIC_RELAXED) < MLX_CPU_WORKGROUPS) {
    const mlx_network_arguments_t arguments =
        network_arguments(r->network, &r->arguments, r->batch_words, r->is_burst);
    mlx_network_run(&arguments);
  }
  return NULL;
}

// Positions that a call may write are before r->end.
static void note_positions(run_t *r) {
  const int32_t *batch = r->arguments.batch, *positions = batch + MLX_STEP_POSITIONS_AT(MLX_CPU_STEP_TOKENS);
  const int burst = r->is_burst ? batch[MLX_STEP_BURST_COUNT] : 0;
  for (int i = 0; i < batch[MLX_STEP_TOKEN_COUNT] && i < MLX_CPU_STEP_TOKENS; ++i) {
    const int64_t end = (int64_t)positions[i] + 1 + burst;
    if (end > r->end) r->end = end < HISTORY_WIDTH ? (int)end : HISTORY_WIDTH;
  }
}

static void call(run_t *r) {
  pthread_t other[4];
  note_positions(r);
  r->next = 0;
  for (int i = 1; i < r->threads; ++i) pthread_create(&other[i], NULL, run_workgroups, r);
  run_workgroups(r);
  for (int i = 1; i < r->threads; ++i) pthread_join(other[i], NULL);
}

typedef enum checks { ALL_CHECKS, ONLY_TOGETHER } checks_t;

static run_t make_run(shape_t shape) {
  network_t *network = make_network(shape, 16 << 20);
  return (run_t){.network = network,
                 .arguments = make_arguments(network),
                 .threads = 1,
                 .batch_words = BATCH_WORDS,
                 .end = HISTORY_WIDTH};
}

static void free_run(run_t *r) {
  network_t *network = r->network;
  void *const memory[] = {r->arguments.plan,    r->arguments.batch,   r->arguments.scratch,
                          r->arguments.history, r->arguments.results, r->arguments.kv,
                          r->arguments.logits,  r->arguments.hidden,  network->weights,
                          network->phases,      network->code,        network};
  for (size_t i = 0; i < sizeof memory / sizeof *memory; ++i) free(memory[i]);
}

static int token_at(int sequence, int position) { return (37 * position + 101 * sequence + 5) % 290; }

// Tokens [from, to) of a sequence.
static void add_segment(const run_t *r, int slot, int sequence, int from, int to, bool all_wanted) {
  for (int i = from; i < to; ++i)
    add_token(&r->arguments, slot, i, token_at(sequence, i), all_wanted || i == to - 1);
}

// NaN: positions that were not written must not be read. The pages of the first positions of all slots are
// first in the pool; the others are still NaN.
static void clear_pool(run_t *r) {
  const int pages = (r->end + MLX_KV_PAGE - 1) / MLX_KV_PAGE;
  memset(r->arguments.kv, 0xff, (size_t)((1 + pages * SLOTS) * r->network->header.page_bytes));
  r->end = 0;
}

static int result_token(const run_t *r, int row) {
  return r->arguments.results[row * MLX_RESULT_WORDS + MLX_RESULT_TOKEN];
}

// ----------------------------------------------------------------------------------------------------------
// Tests

#define SEQUENCES 5
// Each sequence reads a prompt in one chunk, then steps of some tokens.
static const int prompts[SEQUENCES] = {3, 40, 1, 23, 90};
static const int steps[SEQUENCES][4] = {
    {1, 1, 1, 1}, {1, 1, 40, 1}, {1, 5, 1, 1}, {9, 1, 1, 1}, {1, 33, 7, 1}};  // last: all decode
#define ROUNDS 5

static int round_start(int sequence, int round) {
  int start = round ? prompts[sequence] : 0;
  for (int i = 1; i < round; ++i) start += steps[sequence][i - 1];
  return start;
}
static int round_end(int sequence, int round) {
  return round_start(sequence, round) + (round ? steps[sequence][round - 1] : prompts[sequence]);
}

static float *alone[SEQUENCES][ROUNDS], *alone_hidden[SEQUENCES][ROUNDS];

static void run_alone(run_t *r) {
  const size_t vocab = (size_t)r->network->shape.vocab * 4, hidden = (size_t)r->network->shape.hidden * 4;
  for (int s = 0; s < SEQUENCES; ++s) {
    clear_pool(r);
    for (int round = 0; round < ROUNDS; ++round) {
      clear_tokens(&r->arguments);
      add_segment(r, s, s, round_start(s, round), round_end(s, round), false);
      call(r);
      alone[s][round] = memcpy(network_alloc(vocab), r->arguments.logits, vocab);
      alone_hidden[s][round] = memcpy(network_alloc(hidden), r->arguments.hidden, hidden);
    }
  }
}

// All sequences in each step, in other slots than alone.
static void check_together(run_t *r, const char *name) {
  const int vocab = r->network->shape.vocab, hidden = r->network->shape.hidden;
  clear_pool(r);
  for (int round = 0; round < ROUNDS; ++round) {
    clear_tokens(&r->arguments);
    for (int s = 0; s < SEQUENCES; ++s)
      add_segment(r, 9 - s, s, round_start(s, round), round_end(s, round), false);
    call(r);
    for (int s = 0; s < SEQUENCES; ++s) {
      const float *have = r->arguments.logits + (size_t)s * (size_t)vocab;
      EXPECT(!memcmp(have, alone[s][round], (size_t)vocab * 4),
             "%s: round %d: sequence %d has other logits together than alone (%g, %g)", name, round, s,
             (double)have[0], (double)alone[s][round][0]);
      EXPECT(!memcmp(r->arguments.hidden + (size_t)s * (size_t)hidden, alone_hidden[s][round],
                     (size_t)hidden * 4),
             "%s: round %d: sequence %d has other hidden states together than alone", name, round, s);
      int best = 0;
      for (int i = 1; i < vocab; ++i) best = have[i] > have[best] ? i : best;
      EXPECT(result_token(r, s) == best, "%s: token %d sampled, %d is the largest logit", name,
             result_token(r, s), best);
      EXPECT(r->arguments.history[(9 - s) * HISTORY_WIDTH + round_end(s, round)] == best,
             "%s: the history has another token", name);
      EXPECT(r->arguments.history[(9 - s) * HISTORY_WIDTH] == token_at(s, 0), "%s: the history has no prompt",
             name);
    }
  }
}

// Every token of a chunk is wanted, with another sequence before and after it.
static void check_wanted_in_the_middle(run_t *r, const char *name) {
  const size_t vocab = (size_t)r->network->shape.vocab;
  static float *expected;
  free(expected);
  expected = network_alloc(40 * vocab * 4);
  clear_pool(r);
  clear_tokens(&r->arguments);
  add_segment(r, 0, 1, 0, 40, true);
  call(r);
  memcpy(expected, r->arguments.logits, 40 * vocab * 4);
  clear_pool(r);
  clear_tokens(&r->arguments);
  add_segment(r, 3, 0, 0, 3, false);
  add_segment(r, 2, 1, 0, 40, true);
  add_segment(r, 1, 2, 0, 1, false);
  call(r);
  EXPECT(!memcmp(r->arguments.logits + vocab, expected, 40 * vocab * 4),
         "%s: a chunk with wanted tokens has other logits together than alone", name);
}

// A prompt in one chunk, and the same prompt in chunks of 1, 5 and 34 tokens.
static void check_chunks(run_t *r, const char *name) {
  enum { COUNT = 40 };
  static const int ends[] = {1, 6, COUNT};
  const int32_t format = (int32_t)r->network->shape.body;
  // Without integers, and with two scales per block, short and long segments are multiplied in different
  // ways.
  if (is_quantized(format) && (!HAS_INTEGERS || has_two_scales(format))) return;
  const size_t vocab = (size_t)r->network->shape.vocab * 4;
  float *expected = network_alloc(vocab);
  clear_pool(r);
  clear_tokens(&r->arguments);
  add_segment(r, 0, 1, 0, COUNT, false);
  call(r);
  memcpy(expected, r->arguments.logits, vocab);
  clear_pool(r);
  for (int i = 0; i < 3; ++i) {
    clear_tokens(&r->arguments);
    add_segment(r, 2, 1, i ? ends[i - 1] : 0, ends[i], false);
    call(r);
  }
  EXPECT(!memcmp(r->arguments.logits, expected, vocab), "%s: a prompt has other logits in chunks", name);
  free(expected);
}

// A burst gives the tokens of single steps, whose IDs come from the history. It stops at end-of-text.
static void check_burst(run_t *r, const char *name) {
  enum { COUNT = 20, PROMPT = 11 };
  int32_t expected[COUNT + 1];
  clear_pool(r);
  clear_tokens(&r->arguments);
  add_segment(r, 4, 3, 0, PROMPT, false);
  call(r);
  expected[0] = result_token(r, 0);
  for (int i = 1; i <= COUNT; ++i) {
    clear_tokens(&r->arguments);
    add_token(&r->arguments, 4, PROMPT + i - 1, MLX_TOKEN_SAMPLED, true);
    call(r);
    expected[i] = result_token(r, 0);
  }
  for (int stop = 0; stop < 2; ++stop) {
    clear_pool(r);
    clear_tokens(&r->arguments);
    add_segment(r, 5, 3, 0, PROMPT, false);
    call(r);
    clear_tokens(&r->arguments);
    add_token(&r->arguments, 5, PROMPT, MLX_TOKEN_SAMPLED, true);
    r->arguments.batch[MLX_STEP_BURST_COUNT] = COUNT;
    r->arguments.batch[MLX_STEP_EOS_COUNT] = stop;
    r->arguments.batch[MLX_STEP_EOS] = expected[7];
    r->is_burst = 1;
    call(r);
    r->is_burst = 0;
    r->arguments.batch[MLX_STEP_BURST_COUNT] = 0;
    bool stopped = false;
    for (int i = 0; i < COUNT; ++i) {
      const int want = stopped ? -1 : expected[i + 1];
      EXPECT(result_token(r, i) == want, "%s: token %d of a burst is %d, expected %d", name, i,
             result_token(r, i), want);
      stopped = stopped || (stop && want == expected[7]);
    }
  }
}

// Adds sequence |s| with its last token sampled at a temperature, and log-probabilities reported.
static void add_sampled(const run_t *r, int slot, int s) {
  const float temperature = 0.8f;
  add_segment(r, slot, s, 0, prompts[s], false);
  int32_t *sampling = r->arguments.batch + r->arguments.batch[MLX_STEP_AT_SAMPLING] +
                      (r->arguments.batch[MLX_STEP_WANTED_COUNT] - 1) * MLX_SAMPLING_WORDS;
  memcpy(&sampling[MLX_SAMPLING_TEMPERATURE], &temperature, 4);
  sampling[MLX_SAMPLING_FLAGS] = MLX_SAMPLE_TOKEN | MLX_SAMPLE_LOGPROB;
  sampling[MLX_SAMPLING_TOP_K] = 40;
  sampling[MLX_SAMPLING_SEED_LOW] = s + 1;
  sampling[MLX_SAMPLING_TOP_LOGPROBS] = 5;
  if (s % 2) sampling[MLX_SAMPLING_WINDOW] = 16;
}

// Sampled tokens and log-probabilities are those that the sequence gets alone.
static void check_sampling(run_t *r, const char *name) {
  static int32_t expected[SEQUENCES][MLX_RESULT_WORDS];
  for (int s = 0; s < SEQUENCES; ++s) {
    clear_pool(r);
    clear_tokens(&r->arguments);
    add_sampled(r, s, s);
    call(r);
    memcpy(expected[s], r->arguments.results, sizeof expected[s]);
    EXPECT(expected[s][MLX_RESULT_TOKEN] >= 0 && !expected[s][MLX_RESULT_FLAGS], "%s: no token", name);
    EXPECT(expected[s][MLX_RESULT_LOGPROB] <= 0, "%s: the log-probability is positive",
           name);  // sign bit, or 0
  }
  clear_pool(r);
  clear_tokens(&r->arguments);
  for (int s = 0; s < SEQUENCES; ++s) add_sampled(r, s + 7, s);
  call(r);
  EXPECT(!memcmp(r->arguments.results, expected, sizeof expected), "%s: other samples together than alone",
         name);
}

// Wrong batches must not lead out of bounds (an address sanitizer reports it).
static void check_damaged_batches(const shape_t *shape, int rounds) {
  run_t run = make_run(*shape), *r = &run;
  r->threads = 2;

  static int32_t saved[MLX_STEP_PAGES_AT(MLX_CPU_STEP_TOKENS, MLX_CPU_MAX_WANTED) + SLOTS * SLOT_PAGES];
  uint64_t state = 99;
  clear_tokens(&r->arguments);
  add_segment(r, 1, 1, 0, 40, false);
  add_segment(r, 2, 2, 0, 1, false);
  memcpy(saved, r->arguments.batch, sizeof saved);
  for (int round = 0; round < rounds; ++round) {
    memcpy(r->arguments.batch, saved, sizeof saved);
    for (int i = 0; i < 3; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      static const int32_t values[] = {-1, 0, 1, INT32_MAX, INT32_MIN, 4000, 70000, BATCH_WORDS - 1};
      const uint32_t at = (uint32_t)(state >> 33) % (i ? sizeof saved / 4 : 24);
      r->arguments.batch[at] = values[state >> 20 & 7];
    }
    r->is_burst = round % 3 == 0;
    r->batch_words = round % 5 ? BATCH_WORDS : (int64_t)(state >> 40) % 9000;
    call(r);
  }
  free_run(r);
}

static void check_shape(const char *name, shape_t shape, checks_t checks) {
  run_t r = make_run(shape);
  run_alone(&r);
  for (r.threads = 1; r.threads <= 3; r.threads += 2) check_together(&r, name);
  r.threads = 2;
  if (checks == ALL_CHECKS) {
    check_wanted_in_the_middle(&r, name);
    check_chunks(&r, name);
    check_burst(&r, name);
    check_sampling(&r, name);
  }
  for (int s = 0; s < SEQUENCES; ++s) {
    for (int i = 0; i < ROUNDS; ++i) free(alone[s][i]), free(alone_hidden[s][i]);
  }
  free_run(&r);
}

// With an argument: smaller shapes, for an emulator.
int main(int argc, char **argv) {
  (void)argv;
  const bool quick = argc > 1;
  static const char *const names[] = {
#define NAME(format, ...) [MLX_PANEL_##format] = #format,
      MLX_PANEL_TABLE(NAME)
#undef NAME
  };
#if HAS_TILES
  syscall(SYS_arch_prctl, 0x1023, 18);  // ARCH_REQ_XCOMP_PERM: request AMX tile data
#endif
  const int hidden = quick ? 128 : 256;
  const shape_t even = {.hidden = hidden,
                        .ffn = 2 * hidden,
                        .heads = 4,
                        .kv_heads = 2,
                        .head_dim = 64,
                        .layers = 2,
                        .vocab = 299};
  for (int format = 0; format < MLX_PANEL_FORMATS; ++format) {
    if (quick && format != MLX_PANEL_BF16 && format != MLX_PANEL_Q4_1) continue;
    shape_t shape = even;
    shape.body = shape.head = (mlx_panel_format_t)format;
    check_shape(names[format], shape, ALL_CHECKS);
    if (format == MLX_PANEL_Q4_1) check_damaged_batches(&shape, quick ? 20 : 300);
  }
  const shape_t odd = {
      .hidden = 200, .ffn = 328, .heads = 5, .kv_heads = 5, .head_dim = 48, .layers = 2, .vocab = 299};
  if (!quick) check_shape("odd widths", odd, ALL_CHECKS);
  // Query heads that share a KV head, which steps of several sequences compute together.
  shape_t grouped = {.hidden = hidden,
                     .ffn = 2 * hidden,
                     .heads = 6,
                     .kv_heads = 2,
                     .head_dim = 48,
                     .layers = 2,
                     .vocab = 299};
  grouped.body = grouped.head = MLX_PANEL_Q4_1;
  check_shape("three heads of a KV head", grouped, ALL_CHECKS);
  grouped.heads = 5;
  grouped.kv_heads = 1;
  grouped.head_dim = 64;
  check_shape("five heads of a KV head", grouped, ALL_CHECKS);
  // Rows that are too wide to be prepared at once: of down, and of gate and up.
  shape_t wide = even;
  wide.hidden = 256;
  wide.body = wide.head = MLX_PANEL_Q4_K;
  wide.ffn = 6400;
  wide.layers = 1;
  check_shape("wide rows of one matrix", wide, quick ? ONLY_TOGETHER : ALL_CHECKS);
  wide.body = wide.head = MLX_PANEL_Q4_1;
  wide.hidden = 1792;
  wide.ffn = 512;
  if (!quick) check_shape("wide rows of two matrices", wide, ALL_CHECKS);
  shape_t narrow = even;
  narrow.body = narrow.head = MLX_PANEL_Q4_0;
  narrow.kv = MLX_KV_Q8;
  if (!quick) check_shape("KV in q8", narrow, ALL_CHECKS);
  printf("%s\n", failures ? "failed" : "batches: ok");
  return failures > 0;
}
