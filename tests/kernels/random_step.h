// Random steps for tests of sampling: a batch as kernels/step.h defines it, with logits and history. The
// options, masks, biases and windows cover all that a device knows, often with ties and numbers that are not
// finite.
#ifndef MLXCEL_TESTS_RANDOM_STEP_H_
#define MLXCEL_TESTS_RANDOM_STEP_H_

#include <math.h>

#include "kernels/sample_row.h"
#include "tests/support/check.h"
#include "tests/support/random_numbers.h"

#define STEP_WIDTH 4096  // of the history
#define STEP_BIASES 40   // most biases of a row

typedef struct random_step {
  int32_t rows, vocab;
  size_t words;
  int32_t *batch;    // [words] owned, as all arrays
  float *logits;     // [rows][vocab]
  int32_t *history;  // [rows][STEP_WIDTH] one slot per row
  int32_t *results;  // [rows][MLX_RESULT_WORDS]
} random_step_t;

static inline int32_t step_float(double x) { return (int32_t)mlx_float_bits((float)x); }

static inline int32_t *step_sampling(const random_step_t *step, int32_t row) {
  return step->batch + step->batch[MLX_STEP_AT_SAMPLING] + row * MLX_SAMPLING_WORDS;
}

// Position of the token that row |row| samples.
static inline int32_t step_position(const random_step_t *step, int32_t row) {
  return step->batch[step->batch[MLX_STEP_AT_POSITIONS] + row] + 1;
}

static inline int32_t *step_history(const random_step_t *step, int32_t row) {
  return step->history + step->batch[step->batch[MLX_STEP_AT_SLOTS] + row] * STEP_WIDTH;
}

static inline void random_step_free(random_step_t *step) {
  free(step->batch);
  free(step->logits);
  free(step->history);
  free(step->results);
}

// Bell-shaped logits. Every third row has many ties, and some rows have numbers that are not finite.
static inline void random_row(float *logits, int32_t vocab, uint64_t *random) {
  const double spread = pow(10, random_unit(random) * 3 - 1.5);
  const bool ties = random_next(random) % 3 == 0;
  for (int32_t i = 0; i < vocab; ++i) {
    double sum = 0;
    for (int j = 0; j < 6; ++j) sum += random_unit(random) - 0.5;
    logits[i] = (float)(sum * spread);
    if (ties) logits[i] = roundf(logits[i] * 2) / 2;  // both 0 and -0
  }
  static const float special[] = {INFINITY, -INFINITY, NAN, 3e38f, -3e38f, 1e-45f};
  if (random_next(random) % 4 == 0) {
    for (int i = 0; i < 12; ++i)
      logits[random_next(random) % (uint32_t)vocab] = special[i % (random_next(random) % 8 ? 3 : 6)];
  }
  for (int32_t i = 0; i < vocab && random_next(random) % 40 == 0; ++i) logits[i] = NAN;
}

// |mask| has a bit per token: few, none or half of them are set.
static inline void random_mask(int32_t *mask, int32_t words, uint64_t *random) {
  const uint64_t kind = random_next(random) % 8;
  for (int32_t i = 0; i < words; ++i) {
    const int32_t bits = (int32_t)random_next(random);
    mask[i] = kind == 0 ? 0 : kind < 3 ? (random_next(random) % 40 ? 0 : bits) : bits;
  }
}

static inline void random_options(int32_t *w, int32_t vocab, uint64_t *random) {
  static const int32_t windows[] = {0, 0, 0, 1, 64, 2000, 1 << 30}, flags[] = {1, 1, 1, 1, 3, 3, 4, 0},
                       top_k[] = {0, 0, 1, 5, 40, 40, 64, 300, 700, 3000, 1 << 30};
  static const double temperatures[] = {0, 1e-3, 0.5, 0.8, 0.8, 1, 2, 1e6};
  const uint64_t kinds = random_next(random);
  w[MLX_SAMPLING_FLAGS] = flags[kinds % 8];
  w[MLX_SAMPLING_WINDOW] = windows[(kinds >> 8) % 7];
  w[MLX_SAMPLING_REPEAT] = step_float(0.5 + random_unit(random));
  w[MLX_SAMPLING_FREQUENCY] = step_float(random_unit(random) - 0.5);
  w[MLX_SAMPLING_PRESENCE] = step_float(random_unit(random) - 0.5);
  w[MLX_SAMPLING_TOP_K] = top_k[(kinds >> 16) % 11];
  w[MLX_SAMPLING_TYPICAL_P] = step_float((kinds >> 24) % 3 ? 1 : random_unit(random));
  w[MLX_SAMPLING_TOP_P] = step_float((kinds >> 32) % 3 == 0   ? 1
                                     : (kinds >> 32) % 10 < 9 ? random_unit(random)
                                                              : 0);
  w[MLX_SAMPLING_MIN_P] = step_float((kinds >> 40) % 2 ? 0 : pow(random_unit(random), 4));
  w[MLX_SAMPLING_TEMPERATURE] = step_float(temperatures[(kinds >> 48) % 8]);
  w[MLX_SAMPLING_SEED_LOW] = (int32_t)random_next(random);
  w[MLX_SAMPLING_SEED_HIGH] = (int32_t)random_next(random);
  w[MLX_SAMPLING_TARGET] = (int32_t)(random_next(random) % (uint32_t)(vocab + 1));
  w[MLX_SAMPLING_TOP_LOGPROBS] = (int32_t)(random_next(random) % (MLX_TOP_LOGPROBS + 1));
}

// Row i wants token i. Each row has a mask and biases of its own; most are not used.
static inline random_step_t random_step(int32_t rows, int32_t vocab, uint64_t *random) {
  const int32_t mask_words = (vocab + 31) / 32, row_words = mask_words + 2 * STEP_BIASES;
  const int32_t extra_at = MLX_STEP_PAGES_AT(rows, rows) + rows;
  random_step_t step = {.rows = rows, .vocab = vocab, .words = (size_t)(extra_at + rows * row_words)};
  step.batch = calloc(step.words, sizeof *step.batch);
  step.logits = malloc((size_t)rows * (size_t)vocab * sizeof *step.logits);
  step.history = malloc((size_t)rows * STEP_WIDTH * sizeof *step.history);
  step.results = calloc((size_t)rows * MLX_RESULT_WORDS, sizeof *step.results);
  CHECK(step.batch && step.logits && step.history && step.results);
  int32_t *b = step.batch;
  b[MLX_STEP_TOKEN_COUNT] = b[MLX_STEP_WANTED_COUNT] = b[MLX_STEP_SEGMENT_COUNT] = rows;
  b[MLX_STEP_SLOT_COUNT] = rows;
  b[MLX_STEP_SLOT_PAGES] = 1;
  b[MLX_STEP_HISTORY_WIDTH] = STEP_WIDTH;
  b[MLX_STEP_AT_TOKENS] = MLX_STEP_TOKENS_AT;
  b[MLX_STEP_AT_SLOTS] = MLX_STEP_SLOTS_AT(rows);
  b[MLX_STEP_AT_POSITIONS] = MLX_STEP_POSITIONS_AT(rows);
  b[MLX_STEP_AT_SEGMENTS] = MLX_STEP_SEGMENTS_AT(rows);
  b[MLX_STEP_AT_WANTED] = MLX_STEP_WANTED_AT(rows);
  b[MLX_STEP_AT_SAMPLING] = MLX_STEP_SAMPLING_AT(rows, rows);
  b[MLX_STEP_AT_PAGES] = MLX_STEP_PAGES_AT(rows, rows);
  for (int32_t i = 0; i < rows * STEP_WIDTH; ++i)
    step.history[i] =
        (int32_t)(random_next(random) % (uint32_t)(random_next(random) % 2 ? vocab : vocab / 20 + 1));
  for (int32_t i = 0; i < rows; ++i) {
    int32_t *w = step_sampling(&step, i);
    const int32_t extra = extra_at + i * row_words;
    random_row(step.logits + (size_t)i * (size_t)vocab, vocab, random);
    random_options(w, vocab, random);
    b[b[MLX_STEP_AT_SLOTS] + i] = rows - 1 - i;
    b[b[MLX_STEP_AT_POSITIONS] + i] =
        (int32_t)(random_next(random) % (random_next(random) % 2 ? 100 : STEP_WIDTH + 8));
    b[b[MLX_STEP_AT_WANTED] + i] = i;
    random_mask(b + extra, mask_words, random);
    if (random_next(random) % 3 == 0) w[MLX_SAMPLING_MASK_AT] = extra;
    w[MLX_SAMPLING_BIAS_AT] = extra + mask_words;
    w[MLX_SAMPLING_BIAS_COUNT] = random_next(random) % 3 ? 0 : (int32_t)(random_next(random) % STEP_BIASES);
    for (int32_t j = 0; j < STEP_BIASES; ++j) {
      const uint32_t range = random_next(random) % 2 ? 10 : (uint32_t)vocab + 2;  // duplicates, and too large
      b[extra + mask_words + 2 * j] = (int32_t)(random_next(random) % range);
      b[extra + mask_words + 2 * j + 1] =
          step_float(random_next(random) % 5 ? random_unit(random) * 6 - 3 : -INFINITY);
    }
  }
  return step;
}

#endif  // MLXCEL_TESTS_RANDOM_STEP_H_
