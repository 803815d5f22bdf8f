#include "runtime/chooser.h"

#include "base/memory.h"
#include "grammar/matcher.h"
#include "runtime/sampler.h"

struct mlx_chooser {
  mlx_engine_t *engine;  // borrowed
  mlx_sampler_t *sampler;
  mlx_matcher_t *matcher;  // NULL: no grammar
  uint64_t *allowed;       // [vocab / 64] by the grammar
  bool started, ignore_eos;
  float *logits;  // [vocab]
  size_t vocab;
  int64_t logprobs;  // as in the options
  mlx_text_t piece;  // scratch
};

bool mlx_chooser_is_needed(const mlx_generate_options_t *options) {
  return options->logprobs >= 0 || options->grammar ||
         (options->sampling && !mlx_sampling_is_argmax(options->sampling));
}

static mlx_status_t accept(mlx_chooser_t *chooser, int32_t id) {
  chooser->piece.length = 0;
  mlx_tokenizer_piece(chooser->engine->tokenizer, id, false, false, &chooser->piece);
  MLX_TRY(mlx_text_finish(&chooser->piece));
  return mlx_sampler_accept(chooser->sampler, id, chooser->piece.data ? chooser->piece.data : "",
                            chooser->piece.length);
}

static mlx_status_t fill(mlx_chooser_t *chooser, const mlx_generate_options_t *options, const int32_t *ids,
                         size_t count) {
  mlx_sampling_t greedy;
  mlx_sampling_initialize_greedy(&greedy);
  MLX_TRY(mlx_sampler_create(options->sampling ? options->sampling : &greedy, chooser->vocab,
                             chooser->engine->context, &chooser->sampler));
  MLX_TRY(mlx_alloc(chooser->vocab, sizeof *chooser->logits, &chooser->logits));
  if (options->logprobs > (int64_t)chooser->vocab) {
    return mlx_error(MLX_USAGE, "--logprobs %lld: the model has %zu tokens only",
                     (long long)options->logprobs, chooser->vocab);
  }
  MLX_TRY(mlx_check_prompt(ids, count, 0, chooser->engine->context, (int64_t)chooser->vocab));
  for (size_t i = 0; i < count; ++i) MLX_TRY(accept(chooser, ids[i]));
  if (!options->grammar) return NULL;
  MLX_TRY(mlx_alloc((chooser->vocab + 63) / 64, sizeof *chooser->allowed, &chooser->allowed));
  return mlx_matcher_create(options->grammar, &chooser->matcher);
}

mlx_status_t mlx_chooser_create(mlx_engine_t *engine, const mlx_generate_options_t *options,
                                const int32_t *ids, size_t count, mlx_chooser_t **out) {
  *out = NULL;
  mlx_chooser_t *chooser;
  MLX_TRY(mlx_alloc(1, sizeof *chooser, &chooser));
  chooser->engine = engine;
  chooser->vocab = (size_t)engine->manifest.vocab;
  chooser->logprobs = options->logprobs;
  chooser->ignore_eos = options->ignore_eos;
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
  mlx_matcher_free(chooser->matcher);
  mlx_free(chooser->allowed);
  mlx_free(chooser->logits);
  mlx_text_clear(&chooser->piece);
  mlx_free(chooser);
}

// ----------------------------------------------------------------------------------------------------------
// Grammar

// The tokens that may follow; an end of text only where the text is whole. *out_complete: it is whole and
// nothing can follow.
static mlx_status_t mask(mlx_chooser_t *chooser, bool *out_complete) {
  const mlx_manifest_t *manifest = &chooser->engine->manifest;
  const mlx_vocabulary_t *vocabulary;
  MLX_TRY(mlx_engine_vocabulary(chooser->engine, !chooser->started, &vocabulary));
  MLX_TRY(mlx_matcher_mask(chooser->matcher, vocabulary, chooser->allowed));
  const bool complete = mlx_matcher_is_complete(chooser->matcher);
  for (size_t i = 0; i < manifest->eos_count && !chooser->ignore_eos; ++i) {
    const int32_t eos = manifest->eos[i];
    const uint64_t bit = (uint64_t)1 << eos % 64;
    if ((size_t)eos >= chooser->vocab) continue;
    chooser->allowed[eos / 64] =
        complete ? chooser->allowed[eos / 64] | bit : chooser->allowed[eos / 64] & ~bit;
  }
  bool any = false;
  for (size_t i = 0; i < (chooser->vocab + 63) / 64; ++i) any |= chooser->allowed[i] != 0;
  *out_complete = complete && !any;
  if (any || complete) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_UNSUPPORTED, "the grammar wants something here that no token of the model begins with"),
      "the model's vocabulary lacks a character that the grammar asks for");
}

static mlx_status_t follow(mlx_chooser_t *chooser, int32_t id) {
  bool accepted;
  chooser->piece.length = 0;
  mlx_tokenizer_piece(chooser->engine->tokenizer, id, !chooser->started, true, &chooser->piece);
  MLX_TRY(mlx_text_finish(&chooser->piece));
  chooser->started = true;
  for (size_t i = 0; i < chooser->engine->manifest.eos_count && !chooser->ignore_eos; ++i) {
    if (chooser->engine->manifest.eos[i] == id) return NULL;
  }
  MLX_TRY(mlx_matcher_accept(chooser->matcher, chooser->piece.data, chooser->piece.length, &accepted));
  return accepted ? NULL : mlx_error(MLX_INTERNAL, "token %d was allowed and is not", id);
}

mlx_status_t mlx_chooser_next(mlx_chooser_t *chooser, mlx_session_t *session, int32_t *inout_id,
                              bool *out_complete, mlx_logprob_t *out_logprobs) {
  *out_complete = false;
  if (chooser->matcher) MLX_TRY(mask(chooser, out_complete));
  if (*out_complete) return NULL;
  MLX_TRY(mlx_session_logits(session, chooser->logits, chooser->vocab));
  MLX_TRY(mlx_sampler_choose(chooser->sampler, chooser->logits, chooser->matcher ? chooser->allowed : NULL,
                             inout_id));
  if (chooser->matcher) MLX_TRY(follow(chooser, *inout_id));
  if (out_logprobs)
    MLX_TRY(
        mlx_logprobs(chooser->logits, chooser->vocab, *inout_id, (size_t)chooser->logprobs, out_logprobs));
  return accept(chooser, *inout_id);
}
