// Tokenizes texts of options.
#include "server/core/token_options.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "runtime/rooms.h"

static mlx_status_t check_ids(const char *field, const int32_t *ids, size_t count, int64_t vocab) {
  for (size_t i = 0; i < count; ++i) {
    if (ids[i] >= vocab)
      return mlx_error(MLX_INVALID_INPUT, "%s: token id %d is not below %lld", field, ids[i],
                       (long long)vocab);
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Bad words

static mlx_status_t add_word(const mlx_engine_t *engine, const char *word, bool spaced,
                             mlx_token_options_t *out) {
  mlx_text_t text = {0};
  int32_t *ids = NULL;
  size_t count = 0;
  mlx_text_printf(&text, "%s%s", spaced ? " " : "", word + strspn(word, " "));
  mlx_status_t status = mlx_text_finish(&text);
  if (!status) status = mlx_engine_tokenize_chat(engine, text.data, text.length, &ids, &count);
  mlx_text_clear(&text);
  if (!status && count) out->banned[out->count++] = (mlx_token_list_t){ids, count};
  if (status || !count) mlx_engine_free_ids(ids);
  return status;
}

// As vLLM: a word is banned at the beginning of a text and after a space.
static mlx_status_t add_words(const mlx_engine_t *engine, const mlx_api_call_t *call,
                              mlx_token_options_t *out) {
  if (!call->bad_word_count) return NULL;
  MLX_TRY(mlx_alloc(2 * call->bad_word_count, sizeof *out->banned, &out->banned));
  for (size_t i = 0; i < call->bad_word_count; ++i) {
    MLX_TRY(add_word(engine, call->bad_words[i], false, out));
    MLX_TRY(add_word(engine, call->bad_words[i], true, out));
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Biases

static mlx_status_t add_bias(const mlx_engine_t *engine, const mlx_api_bias_text_t *text,
                             mlx_api_call_t *call) {
  int32_t *ids;
  size_t count;
  MLX_TRY(mlx_engine_tokenize_chat(engine, text->text, strlen(text->text), &ids, &count));
  mlx_status_t status =
      mlx_resize(call->sampling.bias_count + count, sizeof *call->biases_storage, &call->biases_storage);
  if (!status) {
    call->sampling.biases = call->biases_storage;
    for (size_t i = 0; i < count; ++i)
      call->biases_storage[call->sampling.bias_count++] = (mlx_logit_bias_t){ids[i], text->bias};
  }
  mlx_engine_free_ids(ids);
  return status;
}

static mlx_status_t check_biases(const mlx_sampling_t *sampling, int64_t vocab) {
  for (size_t i = 0; i < sampling->bias_count; ++i)
    MLX_TRY(check_ids("logit_bias", &sampling->biases[i].id, 1, vocab));
  return NULL;
}

static mlx_status_t forbid_ends(const mlx_engine_t *engine, mlx_api_call_t *call) {
  size_t count;
  const int32_t *ends = mlx_engine_ends(engine, &count);
  if (!count) return NULL;
  MLX_TRY(mlx_resize(call->sampling.bias_count + count, sizeof *call->biases_storage, &call->biases_storage));
  call->sampling.biases = call->biases_storage;
  for (size_t i = 0; i < count; ++i)
    call->biases_storage[call->sampling.bias_count++] = (mlx_logit_bias_t){ends[i], -INFINITY};
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------

mlx_status_t mlx_token_options_prepare(const mlx_engine_t *engine, mlx_api_call_t *call,
                                       mlx_token_options_t *out_options) {
  const int64_t vocab = mlx_engine_info(engine).vocab;
  for (size_t i = 0; i < call->bias_text_count; ++i) MLX_TRY(add_bias(engine, &call->bias_texts[i], call));
  MLX_TRY(check_biases(&call->sampling, vocab));
  if (call->ignore_eos && call->forbids_ends) MLX_TRY(forbid_ends(engine, call));
  MLX_TRY(check_ids("stop_token_ids", call->stop_ids, call->stop_id_count, vocab));
  MLX_TRY(check_ids("allowed_token_ids", call->allowed_ids, call->allowed_id_count, vocab));
  return add_words(engine, call, out_options);
}

void mlx_token_options_clear(mlx_token_options_t *options) {
  for (size_t i = 0; i < options->count; ++i)
    mlx_engine_free_ids((int32_t *)(uintptr_t)options->banned[i].ids);
  mlx_free(options->banned);
  *options = (mlx_token_options_t){0};
}
