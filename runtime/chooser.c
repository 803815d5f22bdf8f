#include "runtime/chooser.h"

#include "base/memory.h"
#include "runtime/sampler.h"

struct mlx_chooser {
  const mlx_engine_t *engine;  // borrowed
  mlx_sampler_t *sampler;
  float *logits;     // [vocab]
  size_t vocab;
  int64_t logprobs;  // as in the options
  mlx_text_t piece;  // scratch
};

bool mlx_chooser_is_needed(const mlx_generate_options_t *options) {
  return options->logprobs >= 0 || (options->sampling && !mlx_sampling_is_argmax(options->sampling));
}

static mlx_status_t accept(mlx_chooser_t *chooser, int32_t id) {
  chooser->piece.length = 0;
  mlx_tokenizer_piece(chooser->engine->tokenizer, id, false, false, &chooser->piece);
  MLX_TRY(mlx_text_finish(&chooser->piece));
  return mlx_sampler_accept(chooser->sampler, id, chooser->piece.data ? chooser->piece.data : "", chooser->piece.length);
}

static mlx_status_t fill(mlx_chooser_t *chooser, const mlx_generate_options_t *options, const int32_t *ids, size_t count) {
  mlx_sampling_t greedy;
  mlx_sampling_initialize_greedy(&greedy);
  MLX_TRY(mlx_sampler_create(options->sampling ? options->sampling : &greedy, chooser->vocab, chooser->engine->context, &chooser->sampler));
  MLX_TRY(mlx_alloc(chooser->vocab, sizeof *chooser->logits, &chooser->logits));
  if (options->logprobs > (int64_t)chooser->vocab) {
    return mlx_error(MLX_USAGE, "--logprobs %lld: the model has %zu tokens only", (long long)options->logprobs, chooser->vocab);
  }
  MLX_TRY(mlx_check_prompt(ids, count, 0, chooser->engine->context, (int64_t)chooser->vocab));
  for (size_t i = 0; i < count; ++i) MLX_TRY(accept(chooser, ids[i]));
  return NULL;
}

mlx_status_t mlx_chooser_create(mlx_engine_t *engine, const mlx_generate_options_t *options, const int32_t *ids, size_t count,
                                mlx_chooser_t **out) {
  *out = NULL;
  mlx_chooser_t *chooser;
  MLX_TRY(mlx_alloc(1, sizeof *chooser, &chooser));
  chooser->engine = engine;
  chooser->vocab = (size_t)engine->manifest.vocab;
  chooser->logprobs = options->logprobs;
  mlx_status_t status = fill(chooser, options, ids, count);
  if (status) {
    mlx_chooser_free(chooser);
    return status;
  }
  *out = chooser;
  return NULL;
}

void mlx_chooser_free(mlx_chooser_t *chooser) {
  if (!chooser) return;
  mlx_sampler_free(chooser->sampler);
  mlx_free(chooser->logits);
  mlx_text_clear(&chooser->piece);
  mlx_free(chooser);
}

mlx_status_t mlx_chooser_next(mlx_chooser_t *chooser, mlx_session_t *session, int32_t *inout_id, bool *out_complete,
                              mlx_logprob_t *out_logprobs) {
  *out_complete = false;
  MLX_TRY(mlx_session_logits(session, chooser->logits, chooser->vocab));
  MLX_TRY(mlx_sampler_choose(chooser->sampler, chooser->logits, NULL, inout_id));
  if (out_logprobs) MLX_TRY(mlx_logprobs(chooser->logits, chooser->vocab, *inout_id, (size_t)chooser->logprobs, out_logprobs));
  return accept(chooser, *inout_id);
}
