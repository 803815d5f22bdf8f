// kernels/cuda/sample.cu, emulated on a CPU, against kernels/sample_row.h. tests/kernels/sample_emulated.sh
// compiles both for a vocabulary of VOCAB tokens.
#include "tests/kernels/random_step.h"

#define ROWS 64

void emulate_sample(const int32_t *batch, const float *logits, int32_t *history, int32_t *results,
                    int32_t row);

int main(void) {
  uint64_t random = VOCAB;
  random_step_t step = random_step(ROWS, VOCAB, &random);
  const size_t history_size = (size_t)ROWS * STEP_WIDTH * 4,
               results_size = (size_t)ROWS * MLX_RESULT_WORDS * 4;
  int32_t *history = malloc(history_size), *results = malloc(results_size);
  void *scratch = malloc(MLX_SAMPLE_SCRATCH_BYTES(VOCAB));
  step.batch[MLX_STEP_WANTED_COUNT] = ROWS - 1;  // the last row must not be written
  memset(results, 0x55, results_size);
  memcpy(history, step.history, history_size);
  memcpy(step.results, results, results_size);
  int differing = 0;
  for (int32_t row = 0; row < ROWS; ++row) {
    emulate_sample(step.batch, step.logits, history, results, row);
    if (row == ROWS - 1) break;
    mlx_sample_row(step.batch, step.words, step_sampling(&step, row), step.logits + (size_t)row * VOCAB,
                   VOCAB, step_history(&step, row), STEP_WIDTH, step_position(&step, row),
                   step.results + row * MLX_RESULT_WORDS, scratch);
  }
  for (int32_t i = 0; i < ROWS * MLX_RESULT_WORDS; ++i) {
    if (results[i] == step.results[i]) continue;
    printf("row %d: word %d is %d, expected %d\n", i / MLX_RESULT_WORDS, i % MLX_RESULT_WORDS, results[i],
           step.results[i]);
    ++differing;
  }
  if (memcmp(history, step.history, history_size)) ++differing;
  printf("vocabulary of %d: %d rows, %s\n", VOCAB, ROWS, differing ? "failed" : "equal");
  return differing != 0;
}
