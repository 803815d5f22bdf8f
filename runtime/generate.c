// The generate loop: reads a prompt, then decodes and streams text until a limit or an end-of-text token.
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "runtime/host_sampler.h"
#include "runtime/output.h"
#include "runtime/session_internal.h"

#define CHECK_TOKENS 32  // output tokens between two checks of the logits

// The state of the loop.
typedef struct writer {
  mlx_output_t output;
  mlx_host_sampler_t *sampler;  // NULL: use the device's argmax
  mlx_logprob_t *logprobs;      // [options.logprobs + 1] of the last sampled token; NULL if not requested
  float *logits;                // [vocab] for check_logits; NULL before the first check
  size_t next_check;            // number of output tokens at which the logits are checked again
  int64_t checked;              // length of the session at the last check
} writer_t;

// Adds a group of tokens to the output. Tokens after its end are dropped, also from the session.
static mlx_status_t add_group(mlx_session_t *session, writer_t *writer, const int32_t *ids, size_t count) {
  size_t kept = 0;
  while (kept < count && !writer->output.ended)
    MLX_TRY(mlx_output_add(&writer->output, ids[kept++], writer->logprobs));
  MLX_TRY(mlx_session_rewind(session, session->length - (int64_t)(count - kept)));
  mlx_output_emit(&writer->output);
  return NULL;
}

// A group is never longer than the output before it. So the first tokens are streamed one by one, and no
// group takes longer than all the output before it.
size_t mlx_decode_group_next(const mlx_variant_t *variant, size_t written, size_t left) {
  return mlx_decode_group_largest(variant, written < left ? written : left);
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
static mlx_status_t check_logits(mlx_session_t *session, writer_t *writer) {
  const size_t vocab = (size_t)session->engine->manifest.vocab;
  if (writer->sampler || writer->checked == session->length) return NULL;  // checked already
  writer->checked = session->length;
  if (!writer->logits) MLX_TRY(mlx_alloc(vocab, sizeof *writer->logits, &writer->logits));
  writer->next_check = writer->output.generation.count + CHECK_TOKENS;
  return mlx_session_logits(session, writer->logits, vocab);
}

// Decodes until the output ends. *out_reason is why, unless the output knows.
static mlx_status_t decode_loop(mlx_session_t *session, writer_t *writer, int32_t next,
                                mlx_finish_reason_t *out_reason) {
  const mlx_engine_t *engine = session->engine;
  const size_t *written = &writer->output.generation.count;
  int32_t group[MLX_MAX_GROUP] = {next}, argmax;
  size_t count = 1;
  bool complete = false;
  *out_reason = MLX_FINISH_LENGTH;
  if (!mlx_output_left(&writer->output)) return NULL;
  for (;;) {
    argmax = group[0];
    if (*written >= writer->next_check) MLX_TRY(check_logits(session, writer));
    if (writer->sampler)
      MLX_TRY(mlx_host_sampler_next(writer->sampler, session, group, &complete, writer->logprobs));
    *out_reason = MLX_FINISH_STOP;
    if (complete) return NULL;
    MLX_TRY(add_group(session, writer, group, count));
    if (writer->output.ended) return NULL;
    const size_t left = mlx_output_left(&writer->output), room = (size_t)(engine->context - session->length);
    *out_reason = MLX_FINISH_CONTEXT;
    if (!room) return NULL;
    count = writer->sampler ? 1 : mlx_decode_group_next(engine->variant, *written, left < room ? left : room);
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

static mlx_status_t generate(mlx_session_t *session, const int32_t *ids, size_t count,
                             const mlx_generate_options_t *options, writer_t *writer) {
  const mlx_manifest_t *manifest = &session->engine->manifest;
  mlx_finish_reason_t reason;
  int32_t next;
  const double start = mlx_seconds();
  MLX_TRY(mlx_output_initialize(options, session->engine->tokenizer, manifest->eos, manifest->eos_count,
                                manifest->vocab, &writer->output));
  if (options->logprobs >= 0)
    MLX_TRY(mlx_alloc((size_t)options->logprobs + 1, sizeof *writer->logprobs, &writer->logprobs));
  if (mlx_host_sampler_is_needed(options))
    MLX_TRY(create_sampler(session, options, ids, count, &writer->sampler));
  MLX_TRY(mlx_session_read(session, ids, count, &next));
  const double read = mlx_seconds();
  MLX_TRY(decode_loop(session, writer, next, &reason));
  if (writer->output.generation.count && session->has_next) MLX_TRY(check_logits(session, writer));
  writer->output.generation.prompt_seconds = read - start;
  writer->output.generation.decode_seconds = mlx_seconds() - read;
  return mlx_output_finish(&writer->output, reason);
}

mlx_status_t mlx_session_generate(mlx_session_t *session, const int32_t *ids, size_t count,
                                  const mlx_generate_options_t *options, mlx_generation_t *out) {
  writer_t writer = {0};
  *out = (mlx_generation_t){0};
  mlx_status_t status = generate(session, ids, count, options, &writer);
  if (!status) {  // the caller owns the generation
    *out = writer.output.generation;
    writer.output.generation = (mlx_generation_t){0};
  }
  mlx_output_clear(&writer.output);
  mlx_free(writer.logprobs);
  mlx_free(writer.logits);
  mlx_host_sampler_free(writer.sampler);
  return status;
}
