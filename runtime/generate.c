// The generate loop: reads a prompt, then decodes and streams text until a limit or an end-of-text token.
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "runtime/host_sampler.h"
#include "runtime/session_internal.h"

#define CHECK_TOKENS 32  // output tokens between two checks of the logits

void mlx_generate_options_initialize(mlx_generate_options_t *out_options) {
  *out_options = (mlx_generate_options_t){.max_tokens = -1, .logprobs = -1};
}

const char *mlx_finish_reason_name(mlx_finish_reason_t reason) {
  static const char *const names[] = {"stop", "length", "context", "cancelled", "error"};
  return names[reason];
}

void mlx_generation_clear(mlx_generation_t *generation) {
  mlx_free(generation->ids);
  mlx_free(generation->logprobs);
  mlx_free(generation->text);
  *generation = (mlx_generation_t){0};
}

static bool is_eos(const mlx_manifest_t *manifest, int32_t id) {
  for (size_t i = 0; i < manifest->eos_count; ++i) {
    if (manifest->eos[i] == id) return true;
  }
  return false;
}

// The state of the loop.
typedef struct writer {
  const mlx_generate_options_t *options;
  mlx_host_sampler_t *sampler;  // NULL: use the device's argmax
  size_t logprob_capacity;
  mlx_detokenizer_t detokenizer;
  mlx_text_t text;
  size_t capacity;
  bool cancelled;
  float *logits;      // [vocab] for check_logits; NULL before the first check
  size_t next_check;  // number of output tokens at which the logits are checked again
  int64_t checked;    // length of the session at the last check
} writer_t;

// Passes the text from |from| on to the callback.
static mlx_status_t emit_text(writer_t *writer, size_t from) {
  if (writer->text.failed) return mlx_text_finish(&writer->text);
  const mlx_generate_options_t *options = writer->options;
  if (options->on_text && !options->on_text(options->user, writer->text.data ? writer->text.data + from : "",
                                            writer->text.length - from)) {
    writer->cancelled = true;
  }
  return NULL;
}

// The number of tokens that belong to the output: all, or those up to the first end-of-text token.
static size_t count_kept(const mlx_session_t *session, const mlx_generate_options_t *options,
                         const int32_t *ids, size_t count, bool *out_ended) {
  *out_ended = false;
  for (size_t i = 0; i < count && !options->ignore_eos; ++i) {
    if (!is_eos(&session->engine->manifest, ids[i])) continue;
    *out_ended = true;
    return i + 1;
  }
  return count;
}

// Adds a group of tokens to the output. Tokens after an end-of-text token are dropped, also from the session.
static mlx_status_t add_group(mlx_session_t *session, writer_t *writer, const int32_t *ids, size_t count,
                              mlx_generation_t *out, bool *out_ended) {
  const size_t kept = count_kept(session, writer->options, ids, count, out_ended), from = writer->text.length;
  MLX_TRY(mlx_reserve(out->count + kept, sizeof *out->ids, &writer->capacity, &out->ids));
  for (size_t i = 0; i < kept; ++i) {
    out->ids[out->count++] = ids[i];
    mlx_detokenizer_push(session->engine->tokenizer, &writer->detokenizer, ids[i], true, &writer->text);
  }
  MLX_TRY(mlx_session_rewind(session, session->length - (int64_t)(count - kept)));
  return emit_text(writer, from);
}

// A group is never longer than the output before it. So the first tokens are streamed one by one, and no
// group takes longer than all the output before it.
size_t mlx_decode_group_next(const mlx_variant_t *variant, size_t written, size_t left) {
  return mlx_decode_group_largest(variant, written < left ? written : left);
}

// Samples the next token on the host. *out_ended is true, and no token is chosen, if the grammar's text is
// complete.
static mlx_status_t sample(mlx_session_t *session, writer_t *writer, mlx_generation_t *out, int32_t *out_id,
                           bool *out_ended) {
  const int64_t best = writer->options->logprobs;
  const size_t width = best < 0 ? 0 : (size_t)best + 1;
  if (best >= 0)
    MLX_TRY(mlx_reserve((out->count + 1) * width, sizeof *out->logprobs, &writer->logprob_capacity,
                        &out->logprobs));
  return mlx_host_sampler_next(writer->sampler, session, out_id, out_ended,
                               out->logprobs ? out->logprobs + out->count * width : NULL);
}

// Appends the last output token to the session and decodes |count| more. |argmax| is the device's choice for
// that token: if the host sampled another one, the session must read it.
static mlx_status_t decode_group(mlx_session_t *session, const writer_t *writer, int32_t argmax,
                                 int32_t *inout_ids, size_t count) {
  if (!writer->sampler || *inout_ids == argmax) return mlx_session_steps(session, inout_ids, count);
  const int32_t sampled = *inout_ids;
  return mlx_session_read(session, &sampled, 1, inout_ids);
}

// Argmax runs on the device, and gives some token even if all logits are NaN. So the logits are read and
// checked before the first token is printed, then every CHECK_TOKENS tokens. NaN stays in the KV cache, so it
// is found by the next check.
static mlx_status_t check_logits(mlx_session_t *session, writer_t *writer, const mlx_generation_t *out) {
  const size_t vocab = (size_t)session->engine->manifest.vocab;
  if (writer->sampler || writer->checked == session->length) return NULL;  // checked already
  writer->checked = session->length;
  if (!writer->logits) MLX_TRY(mlx_alloc(vocab, sizeof *writer->logits, &writer->logits));
  writer->next_check = out->count + CHECK_TOKENS;
  return mlx_session_logits(session, writer->logits, vocab);
}

static mlx_status_t decode_loop(mlx_session_t *session, writer_t *writer, int32_t next,
                                mlx_generation_t *out) {
  const mlx_engine_t *engine = session->engine;
  const size_t max_tokens = writer->options->max_tokens < 0 ? SIZE_MAX : (size_t)writer->options->max_tokens;
  int32_t group[MLX_MAX_GROUP] = {next}, argmax;
  size_t count = 1;
  bool ended = false;
  out->finish_reason = MLX_FINISH_LENGTH;
  if (!max_tokens) return NULL;
  for (;;) {
    argmax = group[0];
    if (out->count >= writer->next_check) MLX_TRY(check_logits(session, writer, out));
    if (writer->sampler) MLX_TRY(sample(session, writer, out, group, &ended));
    out->finish_reason = MLX_FINISH_STOP;
    if (ended) return NULL;
    MLX_TRY(add_group(session, writer, group, count, out, &ended));
    out->finish_reason = writer->cancelled ? MLX_FINISH_CANCELLED : MLX_FINISH_STOP;
    if (writer->cancelled || ended) return NULL;
    out->finish_reason = MLX_FINISH_LENGTH;
    const size_t left = max_tokens - out->count, room = (size_t)(engine->context - session->length);
    if (!left) return NULL;
    out->finish_reason = MLX_FINISH_CONTEXT;
    if (!room) return NULL;
    count =
        writer->sampler ? 1 : mlx_decode_group_next(engine->variant, out->count, left < room ? left : room);
    MLX_TRY(decode_group(session, writer, argmax, group, count));
  }
}

// The sampler's history is the whole sequence, not only the new |ids|. So a resumed session samples the same
// tokens as a new one.
static mlx_status_t create_sampler(const mlx_session_t *session, const mlx_generate_options_t *options,
                                   const int32_t *ids, size_t count, mlx_host_sampler_t **out) {
  const size_t held = (size_t)session->length;
  size_t total;
  int32_t *all;
  if (!held) return mlx_host_sampler_create(session->engine, options, ids, count, out);
  if (!mlx_add(held, count, &total)) return mlx_error(MLX_USAGE, "a prompt of %zu tokens is too long", count);
  MLX_TRY(mlx_alloc(total, sizeof *all, &all));
  memcpy(all, session->ids, held * sizeof *all);
  memcpy(all + held, ids, count * sizeof *all);
  mlx_status_t status = mlx_host_sampler_create(session->engine, options, all, total, out);
  mlx_free(all);
  return status;
}

mlx_status_t mlx_session_generate(mlx_session_t *session, const int32_t *ids, size_t count,
                                  const mlx_generate_options_t *options, mlx_generation_t *out) {
  *out = (mlx_generation_t){0};
  writer_t writer = {.options = options};
  int32_t next;
  double start = mlx_seconds();
  if (mlx_host_sampler_is_needed(options))
    MLX_TRY(create_sampler(session, options, ids, count, &writer.sampler));
  mlx_status_t status = mlx_session_read(session, ids, count, &next);
  double read = mlx_seconds();
  if (!status) status = decode_loop(session, &writer, next, out);
  if (!status && out->count && session->has_next) status = check_logits(session, &writer, out);
  mlx_free(writer.logits);
  mlx_host_sampler_free(writer.sampler);
  out->prompt_seconds = read - start;
  out->decode_seconds = mlx_seconds() - read;
  size_t from = writer.text.length;
  if (!status) mlx_detokenizer_flush(session->engine->tokenizer, &writer.detokenizer, &writer.text);
  if (!status && writer.text.length > from) status = emit_text(&writer, from);
  if (writer.cancelled) out->finish_reason = MLX_FINISH_CANCELLED;
  if (!status) status = mlx_text_take(&writer.text, &out->text, &out->text_length);
  mlx_text_clear(&writer.text);
  if (status) mlx_generation_clear(out);
  return status;
}
