// Text, stop strings and limits of one generated sequence.
#include "runtime/output.h"

#include <string.h>

#include "base/memory.h"

void mlx_generate_options_initialize(mlx_generate_options_t *out_options) {
  *out_options = (mlx_generate_options_t){.max_tokens = -1, .logprobs = -1, .prompt_logprobs = -1};
}

const char *mlx_finish_reason_name(mlx_finish_reason_t reason) {
  static const char *const names[] = {"stop", "length", "context", "cancelled", "error"};
  return names[reason];
}

void mlx_generation_clear(mlx_generation_t *generation) {
  mlx_free(generation->ids);
  mlx_free(generation->logprobs);
  mlx_free(generation->prompt_logprobs);
  mlx_free(generation->routes);
  mlx_free(generation->text);
  mlx_free(generation->embedding);
  *generation = (mlx_generation_t){0};
}

static mlx_status_t copy_stops(mlx_output_t *output, const mlx_generate_options_t *options) {
  if (options->stop_count > MLX_MAX_STOPS)
    return mlx_error(MLX_USAGE, "%zu stop strings; at most %d are allowed", options->stop_count,
                     MLX_MAX_STOPS);
  MLX_TRY(mlx_alloc(options->stop_count, sizeof *output->stops, &output->stops));
  for (size_t i = 0; i < options->stop_count; ++i) {
    const size_t length = strlen(options->stops[i]);
    if (!length || length > MLX_MAX_STOP_LENGTH)
      return mlx_error(MLX_USAGE, "a stop string of %zu bytes; 1 to %d are allowed", length,
                       MLX_MAX_STOP_LENGTH);
    MLX_TRY(mlx_copy_text(options->stops[i], length, &output->stops[i]));
    ++output->stop_count;
  }
  return NULL;
}

mlx_status_t mlx_output_initialize(const mlx_generate_options_t *options, const mlx_tokenizer_t *tokenizer,
                                   const int32_t *eos, size_t eos_count, int64_t vocab, mlx_output_t *out) {
  *out = (mlx_output_t){.tokenizer = tokenizer,
                        .eos = eos,
                        .eos_count = eos_count,
                        .max_tokens = options->max_tokens,
                        .logprobs = options->logprobs,
                        .ignore_eos = options->ignore_eos,
                        .on_text = options->on_text,
                        .user = options->user,
                        .generation = {.finish_reason = MLX_FINISH_LENGTH, .stop = -1}};
  if (options->logprobs > vocab)
    return mlx_error(MLX_USAGE, "--logprobs %lld: the model has only %lld tokens",
                     (long long)options->logprobs, (long long)vocab);
  MLX_TRY(mlx_visible_initialize(options, tokenizer, eos, eos_count, &out->visible));
  MLX_TRY(mlx_alloc(options->stop_id_count, sizeof *out->stop_ids, &out->stop_ids));
  if (options->stop_id_count)
    memcpy(out->stop_ids, options->stop_ids, options->stop_id_count * sizeof *out->stop_ids);
  out->stop_id_count = options->stop_id_count;
  return copy_stops(out, options);
}

void mlx_output_clear(mlx_output_t *output) {
  for (size_t i = 0; i < output->stop_count; ++i) mlx_free(output->stops[i]);
  mlx_free(output->stops);
  mlx_free(output->stop_ids);
  mlx_visible_clear(&output->visible);
  if (output->generation.text == output->text.data) output->generation.text = NULL;
  mlx_generation_clear(&output->generation);
  mlx_text_clear(&output->text);
  *output = (mlx_output_t){0};
}

size_t mlx_output_left(const mlx_output_t *output) {
  const size_t count = output->generation.count;
  if (output->max_tokens < 0) return SIZE_MAX;
  return (size_t)output->max_tokens > count ? (size_t)output->max_tokens - count : 0;
}

static void end(mlx_output_t *output, mlx_finish_reason_t reason) {
  if (output->ended) return;
  output->ended = true;
  output->generation.finish_reason = reason;
}

// ----------------------------------------------------------------------------------------------------------
// Stop strings

static bool starts_with(const char *text, size_t length, const char *prefix, size_t prefix_length) {
  return prefix_length <= length && !memcmp(text, prefix, prefix_length);
}

// Looks for the first stop string in the text that is not searched yet, and cuts the text before it. Else
// |searched| becomes the first byte that may begin a stop string.
static void search_stops(mlx_output_t *output) {
  const char *data = output->text.data;
  const size_t length = output->text.length;
  size_t held = length;  // the first byte that may begin a stop string
  for (size_t at = output->searched; at < length && output->stop_count; ++at) {
    for (size_t i = 0; i < output->stop_count; ++i) {
      const size_t size = strlen(output->stops[i]);
      if (starts_with(data + at, length - at, output->stops[i], size)) {
        output->text.length = output->searched = at;
        output->text.data[at] = 0;
        output->cut = true;
        output->generation.stop = (int64_t)i;
        end(output, MLX_FINISH_STOP);
        return;
      }
      if (held == length && starts_with(output->stops[i], size, data + at, length - at)) held = at;
    }
  }
  output->searched = held;
}

// ----------------------------------------------------------------------------------------------------------
// Tokens

static bool is_eos(const mlx_output_t *output, int32_t id) {
  for (size_t i = 0; i < output->eos_count; ++i) {
    if (output->eos[i] == id) return !output->ignore_eos;
  }
  return false;
}

static bool is_stop_id(const mlx_output_t *output, int32_t id) {
  for (size_t i = 0; i < output->stop_id_count; ++i) {
    if (output->stop_ids[i] == id) return true;
  }
  return false;
}

mlx_status_t mlx_output_add(mlx_output_t *output, int32_t id, const mlx_logprob_t *logprobs) {
  mlx_generation_t *g = &output->generation;
  const size_t width = logprobs ? (size_t)output->logprobs + 1 : 0;
  MLX_TRY(mlx_reserve(g->count + 1, sizeof *g->ids, &output->id_capacity, &g->ids));
  if (width) {
    MLX_TRY(
        mlx_reserve((g->count + 1) * width, sizeof *g->logprobs, &output->logprob_capacity, &g->logprobs));
    memcpy(g->logprobs + g->count * width, logprobs, width * sizeof *logprobs);
  }
  g->ids[g->count++] = id;
  const bool stops = is_stop_id(output, id);  // such a token is not part of the text
  if (!stops)
    mlx_detokenizer_push(output->tokenizer, &output->detokenizer, id, !mlx_visible_has(&output->visible, id),
                         &output->text);
  MLX_TRY(mlx_text_finish(&output->text));
  search_stops(output);
  g->text = output->text.data;
  g->text_length = output->text.length;
  if (stops || is_eos(output, id)) end(output, MLX_FINISH_STOP);
  if (!mlx_output_left(output)) end(output, MLX_FINISH_LENGTH);
  return NULL;
}

static void call_on_text(mlx_output_t *output, size_t until) {
  const size_t from = output->emitted;
  output->emitted = until;
  if (!output->on_text) return;
  if (output->on_text(output->user, output->text.data ? output->text.data + from : "", until - from)) return;
  output->ended = true;  // also if the text has ended by itself: the caller interrupted it
  output->generation.finish_reason = MLX_FINISH_CANCELLED;
}

void mlx_output_emit(mlx_output_t *output) { call_on_text(output, output->searched); }

mlx_status_t mlx_output_finish(mlx_output_t *output, mlx_finish_reason_t reason) {
  mlx_generation_t *g = &output->generation;
  g->text = NULL;
  if (!output->cut) {
    mlx_detokenizer_flush(output->tokenizer, &output->detokenizer, &output->text);
    MLX_TRY(mlx_text_finish(&output->text));
    search_stops(output);
  }
  end(output, reason);
  if (output->text.length > output->emitted) call_on_text(output, output->text.length);
  return mlx_text_take(&output->text, &g->text, &g->text_length);
}
