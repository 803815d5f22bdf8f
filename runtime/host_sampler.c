// Connects a session's logits with the sampler and the grammar's matcher.
#include "runtime/host_sampler.h"

#include "base/memory.h"
#include "grammar/matcher.h"
#include "runtime/prompt.h"
#include "runtime/sampler.h"

struct mlx_host_sampler {
  mlx_engine_t *engine;  // borrowed
  mlx_sampler_t *sampler;
  mlx_matcher_t *matcher;  // NULL if there is no grammar
  uint64_t *allowed;       // [(vocab + 63) / 64] the grammar's mask: one bit per token
  bool started;            // the grammar has accepted a token
  bool ignore_eos;
  float *logits;  // [vocab]
  size_t vocab;
  int64_t logprobs;  // as in the options
  mlx_text_t piece;  // scratch: the text of one token
};

bool mlx_host_sampler_is_needed(const mlx_generate_options_t *options) {
  return options->logprobs >= 0 || options->grammar ||
         (options->sampling && !mlx_sampling_is_argmax(options->sampling));
}

// Adds |id| to the history that the penalties look back on.
static mlx_status_t accept(mlx_host_sampler_t *host, int32_t id) {
  host->piece.length = 0;
  mlx_tokenizer_piece(host->engine->tokenizer, id, false, false, &host->piece);
  MLX_TRY(mlx_text_finish(&host->piece));
  return mlx_sampler_accept(host->sampler, id, host->piece.data ? host->piece.data : "", host->piece.length);
}

static mlx_status_t fill(mlx_host_sampler_t *host, const mlx_generate_options_t *options, const int32_t *ids,
                         size_t count) {
  mlx_sampling_t greedy;
  mlx_sampling_initialize_greedy(&greedy);
  MLX_TRY(mlx_sampler_create(options->sampling ? options->sampling : &greedy, host->vocab,
                             host->engine->sizing.context, &host->sampler));
  MLX_TRY(mlx_alloc(host->vocab, sizeof *host->logits, &host->logits));
  if (options->logprobs > (int64_t)host->vocab) {
    return mlx_error(MLX_USAGE, "--logprobs %lld: the model has only %zu tokens",
                     (long long)options->logprobs, host->vocab);
  }
  MLX_TRY(mlx_prompt_check(ids, count, 0, host->engine->sizing.context, (int64_t)host->vocab));
  for (size_t i = 0; i < count; ++i) MLX_TRY(accept(host, ids[i]));
  if (!options->grammar) return NULL;
  MLX_TRY(mlx_alloc((host->vocab + 63) / 64, sizeof *host->allowed, &host->allowed));
  return mlx_matcher_create(options->grammar, &host->matcher);
}

mlx_status_t mlx_host_sampler_create(mlx_engine_t *engine, const mlx_generate_options_t *options,
                                     const int32_t *ids, size_t count, mlx_host_sampler_t **out) {
  *out = NULL;
  mlx_host_sampler_t *host;
  MLX_TRY(mlx_alloc(1, sizeof *host, &host));
  host->engine = engine;
  host->vocab = (size_t)engine->manifest.vocab;
  host->logprobs = options->logprobs;
  host->ignore_eos = options->ignore_eos;
  mlx_status_t status = fill(host, options, ids, count);
  if (status) {
    mlx_host_sampler_free(host);
    return status;
  }
  *out = host;
  return NULL;
}

void mlx_host_sampler_free(mlx_host_sampler_t *host) {
  if (!host) return;
  mlx_sampler_free(host->sampler);
  mlx_matcher_free(host->matcher);
  mlx_free(host->allowed);
  mlx_free(host->logits);
  mlx_text_clear(&host->piece);
  mlx_free(host);
}

// ----------------------------------------------------------------------------------------------------------
// Grammar

// Fills |allowed|. An end-of-text token is allowed exactly where the text may end. *out_complete is true if
// the text may end and no token can follow.
static mlx_status_t fill_mask(mlx_host_sampler_t *host, bool *out_complete) {
  const mlx_manifest_t *manifest = &host->engine->manifest;
  const mlx_vocabulary_t *vocabulary;
  MLX_TRY(mlx_engine_vocabulary(host->engine, !host->started, &vocabulary));
  MLX_TRY(mlx_matcher_mask(host->matcher, vocabulary, host->allowed));
  const bool complete = mlx_matcher_is_complete(host->matcher);
  for (size_t i = 0; i < manifest->eos_count && !host->ignore_eos; ++i) {
    const int32_t eos = manifest->eos[i];
    const uint64_t bit = (uint64_t)1 << eos % 64;
    if ((size_t)eos >= host->vocab) continue;
    host->allowed[eos / 64] = complete ? host->allowed[eos / 64] | bit : host->allowed[eos / 64] & ~bit;
  }
  bool any = false;
  for (size_t i = 0; i < (host->vocab + 63) / 64; ++i) any |= host->allowed[i] != 0;
  *out_complete = complete && !any;
  if (any || complete) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_UNSUPPORTED, "the grammar requires text that no token of the model begins with"),
      "change the grammar: the model's vocabulary lacks a character that it requires");
}

// Advances the grammar's matcher by the text of |id|.
static mlx_status_t advance_grammar(mlx_host_sampler_t *host, int32_t id) {
  bool accepted;
  host->piece.length = 0;
  mlx_tokenizer_piece(host->engine->tokenizer, id, !host->started, true, &host->piece);
  MLX_TRY(mlx_text_finish(&host->piece));
  host->started = true;
  for (size_t i = 0; i < host->engine->manifest.eos_count && !host->ignore_eos; ++i) {
    if (host->engine->manifest.eos[i] == id) return NULL;
  }
  MLX_TRY(mlx_matcher_accept(host->matcher, host->piece.data, host->piece.length, &accepted));
  return accepted
             ? NULL
             : mlx_error(MLX_INTERNAL, "the grammar's mask allowed token %d, but its matcher refuses it", id);
}

mlx_status_t mlx_host_sampler_next(mlx_host_sampler_t *host, mlx_session_t *session, int32_t *out_id,
                                   bool *out_complete, mlx_logprob_t *out_logprobs) {
  *out_complete = false;
  if (host->matcher) MLX_TRY(fill_mask(host, out_complete));
  if (*out_complete) return NULL;
  MLX_TRY(mlx_session_logits(session, host->logits, host->vocab));
  MLX_TRY(mlx_sampler_sample(host->sampler, host->logits, host->matcher ? host->allowed : NULL, out_id));
  if (host->matcher) MLX_TRY(advance_grammar(host, *out_id));
  if (out_logprobs)
    MLX_TRY(mlx_logprobs(host->logits, host->vocab, *out_id, (size_t)host->logprobs, out_logprobs));
  return accept(host, *out_id);
}
