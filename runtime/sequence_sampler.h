// Sequence sampler: how the next token of one sequence is chosen. It decides whether the device samples or
// the host, keeps the state of the sequence's grammar, and turns the result of a step into a token and its
// log-probabilities.
//
// Ownership: the caller owns it. Threads: one thread at a time.
#ifndef MLXCEL_RUNTIME_SEQUENCE_SAMPLER_H_
#define MLXCEL_RUNTIME_SEQUENCE_SAMPLER_H_

#include "grammar/vocabulary.h"
#include "runtime/stepper.h"
#include "tokenizer/tokenizer.h"

// What the scheduler knows about a model. The pointers are borrowed from the engine.
typedef struct mlx_language {
  const mlx_tokenizer_t *tokenizer;
  const int32_t *eos;  // [eos_count]
  size_t eos_count;
  int64_t vocab, context, model_context;  // as in mlx_engine_info_t
  bool raw_embeddings;                    // embeddings keep their norm
  bool is_classifier;                     // an embedding is the scores of a class head
  bool typed;     // a token of an embedding may have an ID plus |vocab|: type 1 (kernels/cpu/layout.h)
  bool headless;  // there is no LM head: only embeddings are exact
  const float
      *score_row;  // [hidden] a decoder's class head, whose product is the embedding's number; or NULL
  // The vocabulary that a grammar matches tokens against (runtime/engine.c).
  mlx_status_t (*vocabulary)(mlx_engine_t *engine, bool first, const mlx_vocabulary_t **out_vocabulary);
  mlx_engine_t *engine;
  uint64_t mask_work;  // for a grammar's mask before its sequence is late; 0: MLX_MASK_WORK. Tests set it
} mlx_language_t;

// Work of mlx_matcher_allow_work: more than ordinary grammars need for a mask, and about 10 ms.
#define MLX_MASK_WORK (UINT64_C(1) << 21)

typedef struct mlx_sequence_sampler mlx_sequence_sampler_t;

// |ids| are all tokens of the sequence so far, for the penalties. |device_samples|: the module samples
// tokens. |near_ties|: the two best candidates of each token are wanted. |options| are copied, except the
// grammar. |language| must outlive the sampler. Release with mlx_sequence_sampler_free.
mlx_status_t mlx_sequence_sampler_create(const mlx_language_t *language,
                                         const mlx_generate_options_t *options, bool device_samples,
                                         bool near_ties, const int32_t *ids, size_t count,
                                         mlx_sequence_sampler_t **out_sampler) MLX_MUST_USE;
void mlx_sequence_sampler_free(mlx_sequence_sampler_t *sampler);  // NULL is fine

// True if the logits must be read to choose a token.
bool mlx_sequence_sampler_reads_logits(const mlx_sequence_sampler_t *sampler);
// True if the host must know a token before the next one can be sampled.
bool mlx_sequence_sampler_is_synchronous(const mlx_sequence_sampler_t *sampler);
// The most tokens of a burst: 0 if the host samples or log-probabilities are wanted, and 1 with a grammar,
// whose mask depends on the token before.
int64_t mlx_sequence_sampler_burst_limit(const mlx_sequence_sampler_t *sampler);
// True if the device looks back on earlier tokens, for penalties.
bool mlx_sequence_sampler_looks_back(const mlx_sequence_sampler_t *sampler);

typedef enum mlx_readiness {
  MLX_SAMPLER_READY,
  MLX_SAMPLER_COMPLETE,  // the grammar allows no further text: there is nothing to compute
  MLX_SAMPLER_LATE       // the grammar's mask is not ready: the sequence misses the step
} mlx_readiness_t;
// What a step must compute for the next token; borrowed until the next call. The first call for a token works
// on the grammar's mask, up to |mask_work|; mlx_sequence_sampler_work goes on with it.
mlx_status_t mlx_sequence_sampler_prepare(mlx_sequence_sampler_t *sampler, mlx_step_sampling_t *out_wanted,
                                          mlx_readiness_t *out_readiness) MLX_MUST_USE;
// Goes on with the mask of a sequence that is late, by an eighth of |mask_work|: about 1 ms.
mlx_status_t mlx_sequence_sampler_work(mlx_sequence_sampler_t *sampler) MLX_MUST_USE;
// The work that was allowed for a mask that is late; 0: it is not.
uint64_t mlx_sequence_sampler_late_work(const mlx_sequence_sampler_t *sampler);

typedef struct mlx_choice {
  int32_t id;
  const mlx_logprob_t *logprobs;  // [options.logprobs + 1], borrowed until the next call; NULL: not requested
  bool near_tie;
} mlx_choice_t;
// The next token, from the result of a step. |logits| has the logits if reads_logits, else it is NULL.
// |length| is the number of tokens before it, for messages.
mlx_status_t mlx_sequence_sampler_choose(mlx_sequence_sampler_t *sampler, size_t length,
                                         const mlx_step_result_t *result, const float *logits,
                                         mlx_choice_t *out_choice) MLX_MUST_USE;
// Turns the result of a step that scored |target| into log-probabilities: |out_row| gets the |count| most
// likely tokens, then |target|. |logits| is NULL if the device scored it. |length| is the number of tokens
// before it, for messages.
mlx_status_t mlx_sequence_sampler_score(const mlx_sequence_sampler_t *sampler, size_t length,
                                        const mlx_step_result_t *result, const float *logits, int32_t target,
                                        size_t count, mlx_logprob_t *out_row) MLX_MUST_USE;

#endif  // MLXCEL_RUNTIME_SEQUENCE_SAMPLER_H_
