// Session: one token sequence. It owns pages of the engine's KV pool, and turns reads and steps into calls of
// the module's functions prefill_N, decode_N and logits.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "runtime/prompt.h"
#include "runtime/session_internal.h"

// ----------------------------------------------------------------------------------------------------------
// Pages

// Allocates pages until the sequence can hold |length| positions.
static mlx_status_t allocate_pages(mlx_session_t *session, int64_t length) {
  mlx_engine_t *engine = session->engine;
  while (session->page_count * engine->variant->page_size < length) {
    if (!engine->free_page_count) return mlx_error(MLX_UNAVAILABLE, "the engine's KV pool has no free page");
    session->pages[session->page_count++] = engine->free_pages[--engine->free_page_count];
  }
  return NULL;
}

// Frees the pages that a sequence of |length| positions does not need.
static void free_pages_after(mlx_session_t *session, int64_t length) {
  mlx_engine_t *engine = session->engine;
  while (session->page_count > 0 && (session->page_count - 1) * engine->variant->page_size >= length) {
    engine->free_pages[engine->free_page_count++] = session->pages[--session->page_count];
    session->pages[session->page_count] = 0;
  }
}

// ----------------------------------------------------------------------------------------------------------
// Creating

mlx_status_t mlx_session_create(mlx_engine_t *engine, mlx_session_t **out_session) {
  *out_session = NULL;
  int64_t sequence = 0;
  while (sequence < engine->variant->sequences && engine->sequence_taken[sequence]) ++sequence;
  if (sequence == engine->variant->sequences) {
    return mlx_error(MLX_UNAVAILABLE, "all %lld sequences of the engine are in use",
                     (long long)engine->variant->sequences);
  }
  mlx_session_t *session;
  MLX_TRY(mlx_alloc(1, sizeof *session, &session));
  mlx_status_t status =
      mlx_alloc((size_t)engine->variant->sequence_pages, sizeof *session->pages, &session->pages);
  if (!status) status = mlx_alloc((size_t)engine->context, sizeof *session->ids, &session->ids);
  if (status) {
    mlx_free(session->pages);
    mlx_free(session);
    return status;
  }
  session->engine = engine;
  session->sequence = sequence;
  engine->sequence_taken[sequence] = true;
  *out_session = session;
  return NULL;
}

void mlx_session_free(mlx_session_t *session) {
  if (!session) return;
  mlx_engine_t *engine = session->engine;
  free_pages_after(session, 0);
  engine->sequence_taken[session->sequence] = false;
  mlx_free(session->pages);
  mlx_free(session->ids);
  mlx_free(session);
}

int64_t mlx_session_length(const mlx_session_t *session) { return session->length; }

// ----------------------------------------------------------------------------------------------------------
// Module calls. Every tensor has one slot per sequence; a call fills this session's slot and zeros the rest

// Makes a [sequences, width] tensor that is zero except for this session's |values|. With |rank| 1 and
// |width| 1 its shape is [sequences].
static mlx_status_t sequence_tensor(const mlx_session_t *session, int64_t width, const int32_t *values,
                                    size_t count, int rank, mlx_buffer_t **out_buffer) {
  const int64_t sequences = session->engine->variant->sequences;
  int32_t *grid;
  MLX_TRY(mlx_alloc((size_t)(sequences * width), sizeof *grid, &grid));
  memcpy(grid + session->sequence * width, values, count * sizeof *grid);
  mlx_status_t status =
      mlx_buffer_from_i32(session->engine->device, rank, (int64_t[]){sequences, width}, grid, out_buffer);
  mlx_free(grid);
  return status;
}

// Calls |function| and reads this session's |width| tokens from its [sequences, width] result ([sequences] if
// |width| is 1). After a failure it is unknown which next token the device holds, so has_next becomes false.
static mlx_status_t call_for_tokens(mlx_session_t *session, const char *function, mlx_buffer_t **inputs,
                                    size_t input_count, size_t width, int32_t *out_ids) {
  mlx_engine_t *engine = session->engine;
  const size_t total = (size_t)engine->variant->sequences * width;
  mlx_buffer_t *output = NULL;
  int32_t *tokens = NULL;
  session->has_next = false;
  mlx_status_t status = mlx_program_call(engine->program, function, inputs, input_count, &output, 1);
  if (!status) status = mlx_alloc(total, sizeof *tokens, &tokens);
  if (!status) status = mlx_buffer_read(engine->device, output, tokens, total * sizeof *tokens);
  if (!status) memcpy(out_ids, tokens + (size_t)session->sequence * width, width * sizeof *tokens);
  session->has_next = !status;
  if (!status) session->next = out_ids[width - 1];
  mlx_free(tokens);
  mlx_buffer_free(output);
  return status;
}

static mlx_status_t prefill(mlx_session_t *session, int64_t bucket, const int32_t *ids, int32_t count,
                            int32_t *out_next) {
  const int32_t start = (int32_t)session->length;
  char function[32];
  snprintf(function, sizeof function, "prefill_%lld", (long long)bucket);
  mlx_buffer_t *inputs[4] = {NULL, NULL, NULL, NULL};
  mlx_status_t status = allocate_pages(session, session->length + count);
  if (!status) status = sequence_tensor(session, bucket, ids, (size_t)count, 2, &inputs[0]);
  if (!status) status = sequence_tensor(session, 1, &start, 1, 1, &inputs[1]);
  if (!status) status = sequence_tensor(session, 1, &count, 1, 1, &inputs[2]);
  const int64_t width = session->engine->variant->sequence_pages;
  if (!status) status = sequence_tensor(session, width, session->pages, (size_t)width, 2, &inputs[3]);
  if (!status) status = call_for_tokens(session, function, inputs, 4, 1, out_next);
  for (int i = 0; i < 4; ++i) mlx_buffer_free(inputs[i]);
  if (!status) {
    memcpy(session->ids + session->length, ids, (size_t)count * sizeof *ids);
    session->length += count;
  }
  return status;
}

// Chooses the chunk size of the next prefill call: the largest bucket that would be more than half full, else
// the smallest.
static int64_t choose_bucket(const mlx_variant_t *variant, int64_t remaining) {
  for (size_t i = variant->prefill_count; i-- > 1;) {
    if (remaining > variant->prefill[i] / 2) return variant->prefill[i];
  }
  return variant->prefill[0];
}

mlx_status_t mlx_session_read(mlx_session_t *session, const int32_t *ids, size_t count, int32_t *out_next) {
  const mlx_engine_t *engine = session->engine;
  MLX_TRY(mlx_prompt_check(ids, count, session->length, engine->context, engine->manifest.vocab));
  for (size_t done = 0; done < count;) {
    int64_t bucket = choose_bucket(engine->variant, (int64_t)(count - done));
    int32_t part = (int32_t)(count - done < (size_t)bucket ? count - done : (size_t)bucket);
    MLX_TRY(prefill(session, bucket, ids + done, part, out_next));
    done += (size_t)part;
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Decoding

static mlx_status_t require_next(const mlx_session_t *session) {
  if (session->has_next) return NULL;
  return mlx_error(MLX_USAGE, "the session must read at least one token first");
}

size_t mlx_decode_group_largest(const mlx_variant_t *variant, size_t limit) {
  size_t i = variant->decode_count - 1;
  while (i > 0 && (size_t)variant->decode[i] > limit) --i;
  return (size_t)variant->decode[i];
}

// Calls decode_|group|. The caller has allocated the pages.
static mlx_status_t decode(mlx_session_t *session, size_t group, int32_t *out_ids) {
  const int64_t width = session->engine->variant->sequence_pages;
  const int32_t active = 1, first = session->next;
  char function[32];
  snprintf(function, sizeof function, "decode_%zu", group);
  mlx_buffer_t *inputs[2] = {NULL, NULL};
  mlx_status_t status = sequence_tensor(session, 1, &active, 1, 1, &inputs[0]);
  if (!status) status = sequence_tensor(session, width, session->pages, (size_t)width, 2, &inputs[1]);
  if (!status) status = call_for_tokens(session, function, inputs, 2, group, out_ids);
  for (int i = 0; i < 2; ++i) mlx_buffer_free(inputs[i]);
  if (!status) {  // the sequence grew by the previous next token and by every new token except the last
    session->ids[session->length] = first;
    memcpy(session->ids + session->length + 1, out_ids, (group - 1) * sizeof *out_ids);
    session->length += (int64_t)group;
  }
  return status;
}

mlx_status_t mlx_session_steps(mlx_session_t *session, int32_t *out_ids, size_t count) {
  const mlx_engine_t *engine = session->engine;
  MLX_TRY(mlx_context_check(count, session->length, engine->context));
  MLX_TRY(require_next(session));
  MLX_TRY(allocate_pages(session, session->length + (int64_t)count));
  for (size_t done = 0; done < count;) {
    size_t group = mlx_decode_group_largest(engine->variant, count - done);
    MLX_TRY(decode(session, group, out_ids + done));
    done += group;
  }
  return NULL;
}

mlx_status_t mlx_session_step(mlx_session_t *session, int32_t *out_next) {
  return mlx_session_steps(session, out_next, 1);
}

// Modules of contract 1 have no stepper.
mlx_status_t mlx_session_prepare(mlx_session_t *session, size_t count, int32_t *out_slot) {
  if (!session->engine->stepper) {
    return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "the module has no steps that score tokens"),
                           "compile the model again");
  }
  MLX_TRY(allocate_pages(session, session->length + (int64_t)count));
  session->has_next = false;
  *out_slot = (int32_t)session->sequence;
  return NULL;
}

void mlx_session_append(mlx_session_t *session, const int32_t *ids, size_t count) {
  memcpy(session->ids + session->length, ids, count * sizeof *ids);
  session->length += (int64_t)count;
}

mlx_status_t mlx_session_rewind(mlx_session_t *session, int64_t length) {
  if (length < 0 || length > session->length) {
    return mlx_error(MLX_USAGE, "cannot rewind a session of %lld positions to %lld",
                     (long long)session->length, (long long)length);
  }
  if (length == session->length) return NULL;
  session->length = length;
  session->has_next = false;
  free_pages_after(session, length);
  return NULL;
}

mlx_status_t mlx_session_resume(mlx_session_t *session, const int32_t *ids, size_t count, size_t *out_kept) {
  size_t kept = 0;
  while (kept + 1 < count && kept < (size_t)session->length && session->ids[kept] == ids[kept]) ++kept;
  *out_kept = kept;
  return mlx_session_rewind(session, (int64_t)kept);
}

static mlx_status_t check_finite(const mlx_session_t *session, const float *logits, size_t count) {
  size_t i = 0;
  while (i < count && isfinite(logits[i])) ++i;
  if (i == count) return NULL;
  return mlx_status_hint(
      mlx_error(
          MLX_INVALID_INPUT,
          "the model computes values that are not finite: after %lld tokens the logit of token %zu is %f",
          (long long)session->length, i, (double)logits[i]),
      "the weights are damaged, or too large for their type: fetch the model again, or use --dtype f32");
}

mlx_status_t mlx_session_logits(mlx_session_t *session, float *out_logits, size_t count) {
  mlx_engine_t *engine = session->engine;
  const size_t vocab = (size_t)engine->manifest.vocab, total = vocab * (size_t)engine->variant->sequences;
  if (count != vocab)
    return mlx_error(MLX_USAGE, "the model has %zu logits; the caller requested %zu", vocab, count);
  MLX_TRY(require_next(session));
  float *all;
  mlx_buffer_t *output;
  MLX_TRY(mlx_program_call(engine->program, "logits", NULL, 0, &output, 1));
  mlx_status_t status = mlx_alloc(total, sizeof *all, &all);
  if (!status) status = mlx_buffer_read(engine->device, output, all, total * sizeof *all);
  if (!status) memcpy(out_logits, all + (size_t)session->sequence * vocab, vocab * sizeof *all);
  if (!status) status = check_finite(session, out_logits, vocab);
  mlx_free(all);
  mlx_buffer_free(output);
  return status;
}
