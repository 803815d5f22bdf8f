// Generates text in a session: a scheduler with one request, which continues the session's sequence.
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "runtime/engine_scheduler.h"
#include "runtime/request.h"
#include "runtime/session_internal.h"

// Gives the sequence back to the session. The last token of the output is not part of it yet.
static void take_back(mlx_session_t *session, const mlx_request_t *r) {
  const size_t length = r->fed < r->count ? r->fed : r->count - 1;
  session->page_count = (int64_t)r->page_count;
  mlx_session_note_pages(session, session->page_count);
  session->length = (int64_t)length;
  session->has_next = session->logits_kept = false;
  memcpy(session->ids, r->ids, length * sizeof *session->ids);
}

// Moves the result to the caller.
static mlx_status_t take_result(mlx_request_t *r, mlx_generation_t *out) {
  mlx_status_t status = mlx_request_take_status(r);
  if (status) return status;
  *out = r->output.generation;
  r->output.generation = (mlx_generation_t){0};
  return NULL;
}

// After a failure the session has its old length again.
static mlx_status_t run(mlx_session_t *session, mlx_scheduler_t *scheduler, const int32_t *ids, size_t count,
                        const mlx_generate_options_t *options, mlx_generation_t *out) {
  const mlx_held_sequence_t held = {.slot = session->slot,
                                    .pages = session->pages,
                                    .page_count = (size_t)session->page_count,
                                    .page_capacity = (size_t)session->engine->sizing.slot_pages,
                                    .ids = session->ids,
                                    .length = (size_t)session->length};
  const int64_t start = session->length;
  mlx_request_t *request;
  MLX_TRY(mlx_session_restore(session));
  MLX_TRY(mlx_scheduler_submit_held(scheduler, &held, ids, count, options, &request));
  session->engine->last_session = NULL;
  mlx_status_t status = mlx_scheduler_run(scheduler);
  take_back(session, request);
  if (!status) status = take_result(request, out);
  mlx_request_free(request);
  if (status && session->length > start) session->length = start;
  mlx_session_release_pages(session, session->length);
  return status;
}

// Reads the tokens and generates none.
static mlx_status_t read_only(mlx_session_t *session, const int32_t *ids, size_t count,
                              mlx_generation_t *out) {
  const double start = mlx_seconds();
  int32_t next;
  MLX_TRY(mlx_session_read(session, ids, count, &next));
  MLX_TRY(mlx_copy_text("", 0, &out->text));
  out->finish_reason = MLX_FINISH_LENGTH;
  out->prompt_seconds = mlx_seconds() - start;
  return NULL;
}

mlx_status_t mlx_session_generate(mlx_session_t *session, const int32_t *ids, size_t count,
                                  const mlx_generate_options_t *options, mlx_generation_t *out) {
  const mlx_scheduler_parts_t parts = mlx_engine_scheduler_parts(session->engine);
  mlx_scheduler_options_t plain = {0};  // a session's pages are its own
  mlx_scheduler_t *scheduler;
  mlx_generate_options_t given = *options;
  *out = (mlx_generation_t){0};
  if (!options->max_tokens) return read_only(session, ids, count, out);
  given.on_done = NULL;
  MLX_TRY(mlx_scheduler_create_on(&parts, &plain, &scheduler));
  mlx_status_t status = run(session, scheduler, ids, count, &given, out);
  mlx_scheduler_free(scheduler);
  return status;
}
