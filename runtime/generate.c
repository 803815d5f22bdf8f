// The generate loop: tokens in, text out as it comes.
#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "runtime/engine_internal.h"

void mlx_generate_options_initialize(mlx_generate_options_t *out_options) {
  *out_options = (mlx_generate_options_t){.max_tokens = -1};
}

const char *mlx_finish_reason_name(mlx_finish_reason_t reason) {
  static const char *const names[] = {"stop", "length", "context", "cancelled"};
  return names[reason];
}

void mlx_generation_clear(mlx_generation_t *generation) {
  mlx_free(generation->ids);
  mlx_free(generation->text);
  *generation = (mlx_generation_t){0};
}

static bool ends_text(const mlx_manifest_t *manifest, int32_t id) {
  for (size_t i = 0; i < manifest->eos_count; ++i) {
    if (manifest->eos[i] == id) return true;
  }
  return false;
}

// What the loop carries from token to token.
typedef struct writer {
  const mlx_generate_options_t *options;
  mlx_detokenizer_t detokenizer;
  mlx_text_t text;
  size_t capacity;
  bool stopped;
} writer_t;

static mlx_status_t give_text(writer_t *writer, size_t from) {
  if (writer->text.failed) return mlx_text_finish(&writer->text);
  const mlx_generate_options_t *options = writer->options;
  if (options->on_text && !options->on_text(options->user, writer->text.data ? writer->text.data + from : "", writer->text.length - from)) {
    writer->stopped = true;
  }
  return NULL;
}

static mlx_status_t put_token(const mlx_session_t *session, writer_t *writer, int32_t id, mlx_generation_t *out) {
  MLX_TRY(mlx_reserve(out->count + 1, sizeof *out->ids, &writer->capacity, &out->ids));
  out->ids[out->count++] = id;
  size_t from = writer->text.length;
  mlx_detokenizer_push(session->engine->tokenizer, &writer->detokenizer, id, true, &writer->text);
  return give_text(writer, from);
}

static mlx_status_t decode_loop(mlx_session_t *session, writer_t *writer, int32_t next, mlx_generation_t *out) {
  const mlx_generate_options_t *options = writer->options;
  for (;;) {
    out->finish_reason = MLX_FINISH_LENGTH;
    if (options->max_tokens >= 0 && (int64_t)out->count >= options->max_tokens) return NULL;
    MLX_TRY(put_token(session, writer, next, out));
    out->finish_reason = MLX_FINISH_CANCELLED;
    if (writer->stopped) return NULL;
    out->finish_reason = MLX_FINISH_STOP;
    if (!options->ignore_eos && ends_text(&session->engine->manifest, next)) return NULL;
    out->finish_reason = MLX_FINISH_LENGTH;
    if (options->max_tokens >= 0 && (int64_t)out->count >= options->max_tokens) return NULL;
    out->finish_reason = MLX_FINISH_CONTEXT;
    if (session->length >= session->engine->context) return NULL;
    MLX_TRY(mlx_session_step(session, &next));
  }
}

mlx_status_t mlx_session_generate(mlx_session_t *session, const int32_t *ids, size_t count,
                                  const mlx_generate_options_t *options, mlx_generation_t *out) {
  *out = (mlx_generation_t){0};
  writer_t writer = {.options = options};
  int32_t next;
  double start = mlx_seconds();
  MLX_TRY(mlx_session_read(session, ids, count, &next));
  double read = mlx_seconds();
  mlx_status_t status = decode_loop(session, &writer, next, out);
  out->prompt_seconds = read - start;
  out->decode_seconds = mlx_seconds() - read;
  size_t from = writer.text.length;
  if (!status) mlx_detokenizer_flush(&writer.detokenizer, &writer.text);
  if (!status && writer.text.length > from) status = give_text(&writer, from);
  if (writer.stopped) out->finish_reason = MLX_FINISH_CANCELLED;
  if (!status) status = mlx_text_take(&writer.text, &out->text, &out->text_length);
  mlx_text_clear(&writer.text);
  if (status) mlx_generation_clear(out);
  return status;
}
