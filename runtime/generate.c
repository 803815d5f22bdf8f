// The generate loop: tokens in, text out as it comes.
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "runtime/chooser.h"
#include "runtime/engine_internal.h"

void mlx_generate_options_initialize(mlx_generate_options_t *out_options) {
  *out_options = (mlx_generate_options_t){.max_tokens = -1, .logprobs = -1};
}

const char *mlx_finish_reason_name(mlx_finish_reason_t reason) {
  static const char *const names[] = {"stop", "length", "context", "cancelled"};
  return names[reason];
}

void mlx_generation_clear(mlx_generation_t *generation) {
  mlx_free(generation->ids);
  mlx_free(generation->logprobs);
  mlx_free(generation->text);
  *generation = (mlx_generation_t){0};
}

static bool ends_text(const mlx_manifest_t *manifest, int32_t id) {
  for (size_t i = 0; i < manifest->eos_count; ++i) {
    if (manifest->eos[i] == id) return true;
  }
  return false;
}

// What the loop carries from group to group.
typedef struct writer {
  const mlx_generate_options_t *options;
  mlx_chooser_t *chooser;  // NULL: the device's choice is what is wanted
  size_t logprob_capacity;
  mlx_detokenizer_t detokenizer;
  mlx_text_t text;
  size_t capacity;
  bool stopped;
} writer_t;

static mlx_status_t give_text(writer_t *writer, size_t from) {
  if (writer->text.failed) return mlx_text_finish(&writer->text);
  const mlx_generate_options_t *options = writer->options;
  if (options->on_text && !options->on_text(options->user, writer->text.data ? writer->text.data + from : "",
                                            writer->text.length - from)) {
    writer->stopped = true;
  }
  return NULL;
}

// How many of these tokens belong to the text: all, or up to the first that ends it.
static size_t count_kept(const mlx_session_t *session, const mlx_generate_options_t *options,
                         const int32_t *ids, size_t count, bool *out_ended) {
  *out_ended = false;
  for (size_t i = 0; i < count && !options->ignore_eos; ++i) {
    if (!ends_text(&session->engine->manifest, ids[i])) continue;
    *out_ended = true;
    return i + 1;
  }
  return count;
}

// Takes in what the model chose last. What it chose after the end of its text is dropped, from the session
// too.
static mlx_status_t put_group(mlx_session_t *session, writer_t *writer, const int32_t *ids, size_t count,
                              mlx_generation_t *out, bool *out_ended) {
  const size_t kept = count_kept(session, writer->options, ids, count, out_ended), from = writer->text.length;
  MLX_TRY(mlx_reserve(out->count + kept, sizeof *out->ids, &writer->capacity, &out->ids));
  for (size_t i = 0; i < kept; ++i) {
    out->ids[out->count++] = ids[i];
    mlx_detokenizer_push(session->engine->tokenizer, &writer->detokenizer, ids[i], true, &writer->text);
  }
  MLX_TRY(mlx_session_rewind(session, session->length - (int64_t)(count - kept)));
  return give_text(writer, from);
}

// A group is never longer than what was written before it: first words come one by one, and nobody waits for
// a group longer than they have waited already.
size_t mlx_next_group(const mlx_variant_t *variant, size_t written, size_t left) {
  return mlx_largest_group(variant, written < left ? written : left);
}

// Replaces the model's own choice by the chooser's. *out_ended: there is none, the text is complete.
static mlx_status_t choose(mlx_session_t *session, writer_t *writer, mlx_generation_t *out, int32_t *inout_id,
                           bool *out_ended) {
  const int64_t best = writer->options->logprobs;
  const size_t width = best < 0 ? 0 : (size_t)best + 1;
  if (best >= 0)
    MLX_TRY(mlx_reserve((out->count + 1) * width, sizeof *out->logprobs, &writer->logprob_capacity,
                        &out->logprobs));
  return mlx_chooser_next(writer->chooser, session, inout_id, out_ended,
                          out->logprobs ? out->logprobs + out->count * width : NULL);
}

// Takes the last token into the session and lets the model choose the next ones.
static mlx_status_t go_on(mlx_session_t *session, const writer_t *writer, int32_t own_choice,
                          int32_t *inout_ids, size_t count) {
  if (!writer->chooser || *inout_ids == own_choice) return mlx_session_steps(session, inout_ids, count);
  const int32_t chosen = *inout_ids;
  return mlx_session_read(session, &chosen, 1, inout_ids);
}

static mlx_status_t decode_loop(mlx_session_t *session, writer_t *writer, int32_t next,
                                mlx_generation_t *out) {
  const mlx_engine_t *engine = session->engine;
  const size_t most = writer->options->max_tokens < 0 ? SIZE_MAX : (size_t)writer->options->max_tokens;
  int32_t group[MLX_MAX_GROUP] = {next}, own_choice;
  size_t count = 1;
  bool ended = false;
  out->finish_reason = MLX_FINISH_LENGTH;
  if (!most) return NULL;
  for (;;) {
    own_choice = group[0];
    if (writer->chooser) MLX_TRY(choose(session, writer, out, group, &ended));
    out->finish_reason = MLX_FINISH_STOP;
    if (ended) return NULL;
    MLX_TRY(put_group(session, writer, group, count, out, &ended));
    out->finish_reason = writer->stopped ? MLX_FINISH_CANCELLED : MLX_FINISH_STOP;
    if (writer->stopped || ended) return NULL;
    out->finish_reason = MLX_FINISH_LENGTH;
    const size_t left = most - out->count, room = (size_t)(engine->context - session->length);
    if (!left) return NULL;
    out->finish_reason = MLX_FINISH_CONTEXT;
    if (!room) return NULL;
    count = writer->chooser ? 1 : mlx_next_group(engine->variant, out->count, left < room ? left : room);
    MLX_TRY(go_on(session, writer, own_choice, group, count));
  }
}

// The chooser knows all that was read, now and before: a session that was resumed chooses as a fresh one
// does.
static mlx_status_t create_chooser(const mlx_session_t *session, const mlx_generate_options_t *options,
                                   const int32_t *ids, size_t count, mlx_chooser_t **out) {
  const size_t held = (size_t)session->length;
  size_t total;
  int32_t *all;
  if (!held) return mlx_chooser_create(session->engine, options, ids, count, out);
  if (!mlx_add(held, count, &total)) return mlx_error(MLX_USAGE, "a prompt of %zu tokens is too long", count);
  MLX_TRY(mlx_alloc(total, sizeof *all, &all));
  memcpy(all, session->ids, held * sizeof *all);
  memcpy(all + held, ids, count * sizeof *all);
  mlx_status_t status = mlx_chooser_create(session->engine, options, all, total, out);
  mlx_free(all);
  return status;
}

mlx_status_t mlx_session_generate(mlx_session_t *session, const int32_t *ids, size_t count,
                                  const mlx_generate_options_t *options, mlx_generation_t *out) {
  *out = (mlx_generation_t){0};
  writer_t writer = {.options = options};
  int32_t next;
  double start = mlx_seconds();
  if (mlx_chooser_is_needed(options)) MLX_TRY(create_chooser(session, options, ids, count, &writer.chooser));
  mlx_status_t status = mlx_session_read(session, ids, count, &next);
  double read = mlx_seconds();
  if (!status) status = decode_loop(session, &writer, next, out);
  mlx_chooser_free(writer.chooser);
  out->prompt_seconds = read - start;
  out->decode_seconds = mlx_seconds() - read;
  size_t from = writer.text.length;
  if (!status) mlx_detokenizer_flush(session->engine->tokenizer, &writer.detokenizer, &writer.text);
  if (!status && writer.text.length > from) status = give_text(&writer, from);
  if (writer.stopped) out->finish_reason = MLX_FINISH_CANCELLED;
  if (!status) status = mlx_text_take(&writer.text, &out->text, &out->text_length);
  mlx_text_clear(&writer.text);
  if (status) mlx_generation_clear(out);
  return status;
}
