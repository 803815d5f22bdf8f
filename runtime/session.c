// Session: a held request. It runs on the scheduler of the engine, which submits its steps, and keeps its
// slot, pages and recurrent state between the calls. A session can be rewound to any position, so it keeps
// all pages; of window pages it has a fixed number, which it uses again and again.
#include "runtime/session.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "runtime/engine_internal.h"
#include "runtime/prompt.h"
#include "runtime/scheduler_internal.h"

// ----------------------------------------------------------------------------------------------------------
// Pages

static size_t pages_for(size_t positions) { return (positions + MLX_KV_PAGE - 1) / MLX_KV_PAGE; }

static mlx_stepper_t *stepper_of(const mlx_session_t *session) {
  return session->request->scheduler->stepper;
}

static mlx_pool_t *pool_of(const mlx_session_t *session) { return session->request->scheduler->pages.pool; }

// The first page of the window of the token after |length| positions.
static size_t first_seen(const mlx_session_t *session, size_t length) {
  const size_t window = (size_t)stepper_of(session)->window;
  return length < window ? 0 : (length + 1 - window) / MLX_KV_PAGE;
}

static mlx_status_t no_page(void) {
  return mlx_status_hint(mlx_error(MLX_UNAVAILABLE, "the engine's KV pool has no free page"),
                         "use a smaller context (-c) or fewer sequences (--parallel)");
}

// Takes the window pages and fills the slot's table, which never changes after that. Each session has its
// share of the pool, so that it keeps more positions than its window needs.
static mlx_status_t make_ring(mlx_session_t *session) {
  mlx_stepper_t *stepper = stepper_of(session);
  if (!stepper->window_pages) return NULL;
  const size_t least = mlx_window_pages_held(stepper, (size_t)(stepper->slot_pages * MLX_KV_PAGE)),
               share = (size_t)((stepper->window_pages - 1) / stepper->slots),
               most = (size_t)stepper->slot_pages;
  session->ring_count = share < least ? least : share < most ? share : most;
  MLX_TRY(mlx_alloc(session->ring_count, sizeof *session->ring, &session->ring));
  for (; session->ring_held < session->ring_count; ++session->ring_held) {
    const int32_t window = mlx_pool_take_window(pool_of(session));
    if (!window) return no_page();
    session->ring[session->ring_held] = window;
  }
  for (size_t i = 0; i < most; ++i)
    MLX_TRY(stepper->set_window_page(stepper, session->request->slot, (int32_t)i,
                                     session->ring[i % session->ring_count]));
  return NULL;
}

static mlx_status_t take_state(mlx_session_t *session) {
  mlx_request_t *r = session->request;
  mlx_stepper_t *stepper = stepper_of(session);
  if (!stepper->states) return NULL;
  r->recurrent = mlx_pool_take_state(pool_of(session));
  if (!r->recurrent)
    return mlx_status_hint(mlx_error(MLX_UNAVAILABLE, "the engine has no free recurrent state"),
                           "use fewer sequences (--parallel), or more memory (--memory)");
  return stepper->set_states(stepper, r->slot, r->recurrent, r->recurrent);
}

static void release_pages(mlx_session_t *session, size_t length) {
  mlx_request_t *r = session->request;
  while (r->page_count > pages_for(length)) mlx_pool_release(pool_of(session), r->pages[--r->page_count]);
}

mlx_status_t mlx_session_grow(mlx_session_t *session, size_t length) {
  mlx_request_t *r = session->request;
  bool ok;
  mlx_status_t status = mlx_request_grow(r, &r->scheduler->pages, length, &ok);
  if (!status && ok) return NULL;
  release_pages(session, r->fed);
  return status ? status : no_page();
}

bool mlx_session_keeps_window(const mlx_session_t *session, size_t count) {
  const size_t length = session->request->fed;
  if (stepper_of(session)->states) return false;  // every step replaces the state
  if (!session->ring || !length) return true;
  return pages_for(length + count) <= first_seen(session, length) + session->ring_count;
}

// Whether the window pages or the recurrent state of the first |length| positions are gone.
static bool needs_restore(const mlx_session_t *session, size_t length) {
  const bool state = length && stepper_of(session)->states && session->state_length != length;
  return state || (session->ring && length && first_seen(session, length) < session->ring_first);
}

// Whether the snapshot of the session has at most |length| tokens, and the window before them is there.
static bool can_return(const mlx_session_t *session, size_t length) {
  const mlx_request_t *r = session->request;
  return r->kept && r->kept_length <= length &&
         !(session->ring && first_seen(session, r->kept_length) < session->ring_first);
}

// ----------------------------------------------------------------------------------------------------------
// Creating

mlx_status_t mlx_session_create_on(mlx_scheduler_t *scheduler, mlx_session_t **out_session) {
  mlx_session_t *session;
  *out_session = NULL;
  MLX_TRY(mlx_scheduler_check_head(scheduler));
  MLX_TRY(mlx_alloc(1, sizeof *session, &session));
  mlx_status_t status = mlx_scheduler_create_request(scheduler, &session->request);
  if (status) {
    mlx_free(session);
    return status;
  }
  session->request->held = true;
  session->request->slot = mlx_pool_take_slot(pool_of(session));
  if (session->request->slot < 0)
    status = mlx_error(MLX_UNAVAILABLE, "all %lld sequences of the engine are in use",
                       (long long)scheduler->stepper->slots);
  if (!status) status = make_ring(session);
  if (!status) status = take_state(session);
  if (status) {
    mlx_session_free(session);
    return status;
  }
  *out_session = session;
  return NULL;
}

mlx_status_t mlx_session_create(mlx_engine_t *engine, mlx_session_t **out_session) {
  return mlx_session_create_on(engine->scheduler, out_session);
}

// The logits of the last step are not needed any more.
static void forget_logits(mlx_request_t *r) {
  if (r->scheduler->last == r) r->scheduler->last = NULL;
  r->logits_kept = false;
}

void mlx_session_free(mlx_session_t *session) {
  if (!session) return;
  mlx_request_t *r = session->request;
  mlx_pool_t *pool = pool_of(session);
  forget_logits(r);
  release_pages(session, 0);
  while (session->ring_held) mlx_pool_release_window(pool, session->ring[--session->ring_held], false);
  mlx_request_drop_kept(r, pool);
  if (r->recurrent) mlx_pool_release_state(pool, r->recurrent);
  if (r->slot >= 0) mlx_pool_release_slot(pool, r->slot);
  mlx_request_free(r);
  mlx_free(session->ring);
  mlx_free(session);
}

int64_t mlx_session_length(const mlx_session_t *session) { return (int64_t)session->request->fed; }

// ----------------------------------------------------------------------------------------------------------
// Running

mlx_status_t mlx_session_run(mlx_session_t *session, const mlx_session_run_t *run) {
  mlx_request_t *r = session->request;
  const size_t length = r->fed;
  const int32_t next = session->has_next ? r->ids[length] : 0;
  if (run->count) r->count = length;  // the next token is not part of the sequence
  r->quiet = run->quiet;
  mlx_status_t status = mlx_scheduler_prepare(r->scheduler, r, run->ids, run->count, run->options);
  if (status) {
    if (session->has_next) r->ids[length] = next;
    r->count = length + session->has_next;
    return status;
  }
  forget_logits(r);
  if (needs_restore(session, length)) {  // the scheduler reads the tokens again
    const bool returns = can_return(session, length);
    if (returns) MLX_TRY(mlx_request_return(r, &r->scheduler->pages));
    if (!returns) r->fed = 0;
  }
  if (!r->fed) session->ring_first = 0;
  if (run->score) r->score = *run->score;
  session->has_next = false;
  session->state_length = SIZE_MAX;
  mlx_scheduler_resume(r->scheduler, r);
  for (bool idle; r->state == MLX_REQUEST_RUNNING;)
    mlx_status_free(mlx_scheduler_step(r->scheduler, &idle));  // if it fails, the request has the error
  if (session->ring && r->page_count > session->ring_first + session->ring_count)
    session->ring_first = r->page_count - session->ring_count;
  return mlx_request_take_status(r);
}

void mlx_session_cut(mlx_session_t *session, size_t length) {
  mlx_request_t *r = session->request;
  if (r->fed != length) session->state_length = SIZE_MAX;
  if (length < r->kept_length) mlx_request_drop_kept(r, pool_of(session));
  r->count = r->fed = length;
  session->has_next = false;
  forget_logits(r);
  release_pages(session, length);
}

static mlx_context_limit_t context_of(const mlx_session_t *session) {
  const mlx_language_t *language = &session->request->scheduler->language;
  return (mlx_context_limit_t){language->context, language->model_context};
}

static mlx_status_t require_next(const mlx_session_t *session) {
  if (session->has_next) return NULL;
  return mlx_error(MLX_USAGE, "the session must read at least one token first");
}

// Appends |ids|, or without ids the next token, and computes |tokens| tokens after them: all but the last one
// become part of the sequence, and that is the next token.
static mlx_status_t append(mlx_session_t *session, const int32_t *ids, size_t count, size_t tokens,
                           int32_t *out_ids) {
  mlx_request_t *r = session->request;
  const size_t length = r->fed;
  mlx_generate_options_t options;
  mlx_generate_options_initialize(&options);
  options.max_tokens = (int64_t)tokens;
  options.ignore_eos = true;
  MLX_TRY(mlx_session_grow(session, length + (count ? count : 1) + tokens - 1));
  mlx_status_t status = mlx_session_run(
      session, &(mlx_session_run_t){.ids = ids, .count = count, .options = &options, .quiet = true});
  if (status) {
    mlx_session_cut(session, length);
    return status;
  }
  memcpy(out_ids, r->output.generation.ids, tokens * sizeof *out_ids);
  session->has_next = true;
  session->state_length = r->fed;
  return NULL;
}

mlx_status_t mlx_session_read(mlx_session_t *session, const int32_t *ids, size_t count, int32_t *out_next) {
  const mlx_request_t *r = session->request;
  MLX_TRY(mlx_prompt_check(ids, count, (int64_t)r->fed, context_of(session), r->scheduler->language.vocab));
  return append(session, ids, count, 1, out_next);
}

mlx_status_t mlx_session_steps(mlx_session_t *session, int32_t *out_ids, size_t count) {
  MLX_TRY(mlx_context_check(count, (int64_t)session->request->fed, context_of(session)));
  MLX_TRY(require_next(session));
  return count ? append(session, NULL, 0, count, out_ids) : NULL;
}

mlx_status_t mlx_session_step(mlx_session_t *session, int32_t *out_next) {
  return mlx_session_steps(session, out_next, 1);
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
  mlx_request_t *r = session->request;
  const size_t start = r->fed;
  mlx_generate_options_t given = *options;
  *out = (mlx_generation_t){0};
  if (!options->max_tokens) return read_only(session, ids, count, out);
  given.on_done = NULL;
  MLX_TRY(mlx_scheduler_check(r->scheduler, start, ids, count, options));
  mlx_status_t status =
      mlx_session_run(session, &(mlx_session_run_t){.ids = ids, .count = count, .options = &given});
  if (status) {
    mlx_session_cut(session, start);
    return status;
  }
  *out = r->output.generation;
  r->output.generation = (mlx_generation_t){0};
  session->state_length = r->fed;
  mlx_session_cut(session, r->fed < r->count ? r->fed : r->count - 1);  // without the last token
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Rewinding

mlx_status_t mlx_session_rewind(mlx_session_t *session, int64_t length) {
  const int64_t present = mlx_session_length(session);
  if (length < 0 || length > present) {
    return mlx_error(MLX_USAGE, "cannot rewind a session of %lld positions to %lld", (long long)present,
                     (long long)length);
  }
  if (length < present) mlx_session_cut(session, (size_t)length);
  return NULL;
}

mlx_status_t mlx_session_resume(mlx_session_t *session, const int32_t *ids, size_t count, size_t *out_kept) {
  const mlx_request_t *r = session->request;
  size_t kept = 0;
  while (kept + 1 < count && kept < r->fed && r->ids[kept] == ids[kept]) ++kept;
  // The caller reads all tokens that are not kept. So the session need not read any of them again.
  if (needs_restore(session, kept)) kept = can_return(session, kept) ? session->request->kept_length : 0;
  *out_kept = kept;
  return mlx_session_rewind(session, (int64_t)kept);
}

// ----------------------------------------------------------------------------------------------------------
// Logits and hidden states

mlx_status_t mlx_session_logits(mlx_session_t *session, float *out_logits, size_t count) {
  const mlx_request_t *r = session->request;
  const mlx_scheduler_t *s = r->scheduler;
  const size_t vocab = (size_t)s->language.vocab;
  size_t i = 0;
  if (count != vocab)
    return mlx_error(MLX_USAGE, "the model has %zu logits; the caller requested %zu", vocab, count);
  MLX_TRY(require_next(session));
  if (s->last == r)
    MLX_TRY(s->stepper->read_logits(s->stepper, s->last_row, out_logits));
  else if (r->logits_kept)
    memcpy(out_logits, r->logits, vocab * sizeof *out_logits);
  else
    return mlx_error(MLX_INTERNAL, "a later step has overwritten the logits");
  while (i < vocab && isfinite(out_logits[i])) ++i;
  if (i == vocab) return NULL;
  return mlx_status_hint(
      mlx_error(
          MLX_INVALID_INPUT,
          "the model computes values that are not finite: after %zu tokens the logit of token %zu is %f",
          r->fed, i, (double)out_logits[i]),
      "the weights are damaged, or too large for their type: fetch the model again, or use --dtype f32");
}

mlx_status_t mlx_session_embed(mlx_session_t *session, const int32_t *ids, size_t count, float *out_embedding,
                               size_t size) {
  const mlx_scheduler_t *s = session->request->scheduler;
  const size_t hidden = (size_t)s->stepper->hidden;
  int32_t next;
  if (s->language.is_classifier) return mlx_classifier_embeds_nothing();
  if (size != hidden)
    return mlx_error(MLX_USAGE, "an embedding of this model has %zu numbers; the caller requested %zu",
                     hidden, size);
  if (count == 0) return mlx_error(MLX_USAGE, "an embedding needs at least one token");
  MLX_TRY(mlx_session_rewind(session, 0));
  MLX_TRY(mlx_session_read(session, ids, count, &next));
  MLX_TRY(s->stepper->read_hidden(s->stepper, s->last_row, out_embedding));
  return mlx_embedding_finish(out_embedding, size, count, !s->language.raw_embeddings);
}
