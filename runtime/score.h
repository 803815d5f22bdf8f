// Score: log-probabilities of given tokens, computed in chunks as prefill computes them. For the sources of
// runtime/ only; mlx_session_score is the public function.
#ifndef MLXCEL_RUNTIME_SCORE_H_
#define MLXCEL_RUNTIME_SCORE_H_

#include "runtime/stepper.h"

// Texts of the same length. Each of them continues the same sequence and overwrites the one before it: steps
// are computed in the order in which they are queued.
typedef struct mlx_score {
  int32_t slot, position;  // of the first token of each text; the slot's page table covers all tokens
  const int32_t *ids;      // [texts][count + 1] the tokens to read, and the target of the last one
  size_t texts, count;
  size_t first_text;  // number of the first text, for the callbacks
  size_t context;     // first tokens of each text that are read but not scored; less than |count|
  float *logprobs;    // [texts][count - context] out: of the token after each scored one
  // If not NULL, called for each scored token in order with its logits, [vocab].
  mlx_status_t (*on_logits)(void *user, size_t index, const float *logits);
  // If not NULL, called after each text, whose log-probabilities are stored.
  void (*on_text)(void *user, size_t index);
  void *user;
} mlx_score_t;

// Reads the texts and scores their tokens. No other step may be queued. *|out_done| is the number of scored
// tokens whose results are stored, also after a failure.
mlx_status_t mlx_score_run(mlx_stepper_t *stepper, const mlx_score_t *score, size_t *out_done) MLX_MUST_USE;

#endif  // MLXCEL_RUNTIME_SCORE_H_
