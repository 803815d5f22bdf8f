// Score: log-probabilities of given tokens, computed in chunks as prefill computes them. For the sources of
// runtime/ only; mlx_session_score is the public function.
#ifndef MLXCEL_RUNTIME_SCORE_H_
#define MLXCEL_RUNTIME_SCORE_H_

#include "runtime/stepper.h"

typedef struct mlx_score {
  int32_t slot, position;  // of the first token; the slot's page table covers all tokens
  const int32_t *ids;      // [count + 1] the tokens to read, and the target of the last one
  size_t count;
  float *logprobs;  // [count] out: of ids[i + 1] after ids[i]
  // If not NULL, called for each token in order with its logits, [vocab].
  mlx_status_t (*on_logits)(void *user, size_t index, const float *logits);
  void *user;
} mlx_score_t;

// Reads |count| tokens and scores each. No other step may be queued. *|out_done| is the number of tokens
// whose results are stored, also after a failure.
mlx_status_t mlx_score_run(mlx_stepper_t *stepper, const mlx_score_t *score, size_t *out_done) MLX_MUST_USE;

#endif  // MLXCEL_RUNTIME_SCORE_H_
