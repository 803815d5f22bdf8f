// Session: one token sequence. It owns pages of the engine's KV pool, and turns reads and steps into segments
// of the stepper. A session can be rewound to any position, so it keeps all pages; of window pages it has a
// fixed number, which it uses again and again.
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "runtime/prompt.h"
#include "runtime/request.h"
#include "runtime/session_internal.h"

// ----------------------------------------------------------------------------------------------------------
// Pages

static int64_t pages_for(int64_t positions) { return (positions + MLX_KV_PAGE - 1) / MLX_KV_PAGE; }

// The first page of the window of the token after |length| positions.
static int64_t first_seen(const mlx_session_t *session, int64_t length) {
  const int64_t window = session->engine->stepper->window;
  return length < window ? 0 : (length + 1 - window) / MLX_KV_PAGE;
}

static mlx_status_t no_page(void) {
  return mlx_status_hint(mlx_error(MLX_UNAVAILABLE, "the engine's KV pool has no free page"),
                         "use a smaller context (-c) or fewer sequences (--parallel)");
}

// Takes the window pages and fills the slot's table, which never changes after that. Each session has its
// share of the pool, so that it keeps more positions than its window needs.
static mlx_status_t make_ring(mlx_session_t *session) {
  mlx_engine_t *engine = session->engine;
  mlx_stepper_t *stepper = engine->stepper;
  if (!stepper->window_pages) return NULL;
  const int64_t least = (int64_t)mlx_window_pages_held(stepper, (size_t)(stepper->slot_pages * MLX_KV_PAGE)),
                share = (stepper->window_pages - 1) / stepper->slots;
  session->ring_count = share < least ? least : share < stepper->slot_pages ? share : stepper->slot_pages;
  MLX_TRY(mlx_alloc((size_t)session->ring_count, sizeof *session->ring, &session->ring));
  for (; session->ring_held < session->ring_count; ++session->ring_held) {
    const int32_t window = mlx_pool_take_window(engine->pool);
    if (!window) return no_page();
    session->ring[session->ring_held] = window;
  }
  for (int64_t i = 0; i < stepper->slot_pages; ++i)
    MLX_TRY(
        stepper->set_window_page(stepper, session->slot, (int32_t)i, session->ring[i % session->ring_count]));
  return NULL;
}

void mlx_session_note_pages(mlx_session_t *session, int64_t pages) {
  if (session->ring && pages - session->ring_count > session->ring_first)
    session->ring_first = pages - session->ring_count;
}

bool mlx_session_keeps_window(const mlx_session_t *session, int64_t count) {
  if (!session->ring || !session->length) return true;
  return pages_for(session->length + count) - session->ring_count <= first_seen(session, session->length);
}

// Allocates pages until the sequence can hold |length| positions.
static mlx_status_t allocate_pages(mlx_session_t *session, int64_t length) {
  mlx_engine_t *engine = session->engine;
  mlx_stepper_t *stepper = engine->stepper;
  MLX_TRY(mlx_session_restore(session));
  while (session->page_count * MLX_KV_PAGE < length) {
    const int32_t page = mlx_pool_take(engine->pool);
    if (!page) return no_page();
    mlx_status_t status = stepper->set_page(stepper, session->slot, (int32_t)session->page_count, page);
    if (status) {
      mlx_pool_release(engine->pool, page);
      return status;
    }
    session->pages[session->page_count++] = page;
  }
  mlx_session_note_pages(session, pages_for(length));
  return NULL;
}

void mlx_session_release_pages(mlx_session_t *session, int64_t length) {
  mlx_engine_t *engine = session->engine;
  while (session->page_count > 0 && (session->page_count - 1) * MLX_KV_PAGE >= length)
    mlx_pool_release(engine->pool, session->pages[--session->page_count]);
}

// ----------------------------------------------------------------------------------------------------------
// Creating

mlx_status_t mlx_session_create(mlx_engine_t *engine, mlx_session_t **out_session) {
  *out_session = NULL;
  const mlx_sizing_t *sizing = &engine->sizing;
  const int32_t slot = mlx_pool_take_slot(engine->pool);
  if (slot < 0) {
    return mlx_error(MLX_UNAVAILABLE, "all %lld sequences of the engine are in use",
                     (long long)sizing->sequences);
  }
  mlx_session_t *session;
  mlx_status_t status = mlx_alloc(1, sizeof *session, &session);
  if (status) {
    mlx_pool_release_slot(engine->pool, slot);
    return status;
  }
  session->engine = engine;
  session->slot = slot;
  status = mlx_alloc((size_t)sizing->slot_pages, sizeof *session->pages, &session->pages);
  if (!status) status = mlx_alloc((size_t)sizing->context, sizeof *session->ids, &session->ids);
  if (!status) status = make_ring(session);
  if (status) {
    mlx_session_free(session);
    return status;
  }
  *out_session = session;
  return NULL;
}

void mlx_session_free(mlx_session_t *session) {
  if (!session) return;
  mlx_engine_t *engine = session->engine;
  mlx_session_release_pages(session, 0);
  while (session->ring_held)
    mlx_pool_release_window(engine->pool, session->ring[--session->ring_held], false);
  mlx_pool_release_slot(engine->pool, session->slot);
  if (engine->last_session == session) engine->last_session = NULL;
  mlx_free(session->pages);
  mlx_free(session->ring);
  mlx_free(session->ids);
  mlx_free(session->logits);
  mlx_free(session);
}

int64_t mlx_session_length(const mlx_session_t *session) { return session->length; }

// ----------------------------------------------------------------------------------------------------------
// Steps

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

// The logits of the last step are on the device. Before another session steps, the host gets a copy.
static mlx_status_t keep_logits(mlx_session_t *session) {
  mlx_engine_t *engine = session->engine;
  mlx_session_t *last = engine->last_session;
  engine->last_session = NULL;
  session->logits_kept = false;
  if (!last || last == session || !last->has_next) return NULL;
  if (!last->logits) MLX_TRY(mlx_alloc((size_t)engine->manifest.vocab, sizeof *last->logits, &last->logits));
  MLX_TRY(engine->stepper->read_logits(engine->stepper, 0, last->logits));
  last->logits_kept = true;
  return NULL;
}

// A module samples no token if a logit is not finite, or if the arguments do not have the sizes that it
// needs.
static mlx_status_t check_results(mlx_session_t *session, const mlx_step_result_t *results, size_t count,
                                  size_t wanted) {
  mlx_stepper_t *stepper = session->engine->stepper;
  const size_t vocab = (size_t)session->engine->manifest.vocab;
  if (count == wanted && results[count - 1].token >= 0) return NULL;
  if (!session->logits) MLX_TRY(mlx_alloc(vocab, sizeof *session->logits, &session->logits));
  MLX_TRY(stepper->read_logits(stepper, 0, session->logits));
  MLX_TRY(check_finite(session, session->logits, vocab));
  return mlx_status_hint(
      mlx_error(MLX_INVALID_INPUT, "the module sampled %zu of %zu tokens: it does not match its manifest",
                count && results[count - 1].token < 0 ? count - 1 : count, wanted),
      "compile the model again");
}

// Runs one segment that begins at the end of the sequence, or a burst of |burst| tokens. If |out_ids| is not
// NULL, it gets the sampled tokens: one, or |burst|. After a failure it is unknown which positions were
// written, so has_next becomes false.
static mlx_status_t run(mlx_session_t *session, const int32_t *ids, int32_t count, int32_t burst,
                        int32_t *out_ids) {
  static const mlx_step_sampling_t greedy = {.flags = MLX_SAMPLE_TOKEN};
  mlx_engine_t *engine = session->engine;
  mlx_stepper_t *stepper = engine->stepper;
  const mlx_segment_t segment = {.slot = session->slot,
                                 .position = (int32_t)session->length,
                                 .count = count,
                                 .ids = ids,
                                 .wanted = out_ids ? &greedy : NULL};
  const mlx_step_result_t *results;
  mlx_ticket_t *ticket;
  size_t result_count;
  MLX_TRY(keep_logits(session));
  session->has_next = false;
  MLX_TRY(burst ? stepper->submit_burst(stepper, &segment, burst, NULL, 0, &ticket)
                : stepper->submit(stepper, &segment, 1, &ticket));
  MLX_TRY(stepper->wait(stepper, ticket, &results, &result_count));
  session->length += count;
  if (!out_ids) return NULL;
  const size_t wanted = burst ? (size_t)burst : 1;
  MLX_TRY(check_results(session, results, result_count, wanted));
  for (size_t i = 0; i < wanted; ++i) out_ids[i] = results[i].token;
  session->next = out_ids[wanted - 1];
  session->has_next = true;
  engine->last_session = session;
  return NULL;
}

mlx_status_t mlx_session_restore(mlx_session_t *session) {
  const int64_t length = session->length, most = session->engine->stepper->max_tokens;
  if (!length) session->ring_first = 0;
  if (!session->ring || first_seen(session, length) >= session->ring_first) return NULL;
  session->ring_first = 0;
  session->length = 0;
  for (mlx_status_t status = NULL; session->length < length;) {
    const int64_t left = length - session->length, part = left < most ? left : most;
    status = run(session, session->ids + session->length, (int32_t)part, 0, NULL);
    if (!status) continue;
    session->length = 0;  // what follows is not known to be written
    return status;
  }
  mlx_session_note_pages(session, pages_for(length));
  return NULL;
}

mlx_status_t mlx_session_read(mlx_session_t *session, const int32_t *ids, size_t count, int32_t *out_next) {
  const mlx_engine_t *engine = session->engine;
  const size_t most = (size_t)engine->stepper->max_tokens;
  MLX_TRY(mlx_prompt_check(ids, count, session->length, engine->sizing.context, engine->manifest.vocab));
  for (size_t done = 0; done < count;) {
    const int32_t part = (int32_t)(count - done < most ? count - done : most);
    const int64_t start = session->length;
    MLX_TRY(allocate_pages(session, start + part));
    MLX_TRY(run(session, ids + done, part, 0, done + (size_t)part == count ? out_next : NULL));
    memcpy(session->ids + start, ids + done, (size_t)part * sizeof *ids);
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

// The largest group of at most |limit| tokens: a burst, or a step of one token. |burst| is the most tokens of
// a burst; 0: the module has none.
static size_t largest_group(int64_t burst, size_t limit) {
  if (burst < 2) return 1;
  return limit < (size_t)burst ? limit : (size_t)burst;
}

// Decodes |group| tokens with one call. The caller has allocated the pages.
static mlx_status_t decode(mlx_session_t *session, size_t group, int32_t *out_ids) {
  const int32_t first = session->next;
  const int64_t start = session->length;
  MLX_TRY(run(session, &first, 1, group > 1 ? (int32_t)group : 0, out_ids));
  // The sequence grew by the previous next token and by every new token except the last.
  session->ids[start] = first;
  memcpy(session->ids + start + 1, out_ids, (group - 1) * sizeof *out_ids);
  session->length = start + (int64_t)group;
  return NULL;
}

mlx_status_t mlx_session_steps(mlx_session_t *session, int32_t *out_ids, size_t count) {
  const mlx_engine_t *engine = session->engine;
  MLX_TRY(mlx_context_check(count, session->length, engine->sizing.context));
  MLX_TRY(require_next(session));
  MLX_TRY(allocate_pages(session, session->length + (int64_t)count));
  for (size_t done = 0; done < count;) {
    const size_t group = largest_group(engine->stepper->burst, count - done);
    MLX_TRY(decode(session, group, out_ids + done));
    done += group;
  }
  return NULL;
}

mlx_status_t mlx_session_step(mlx_session_t *session, int32_t *out_next) {
  return mlx_session_steps(session, out_next, 1);
}

mlx_status_t mlx_session_prepare(mlx_session_t *session, size_t count, int32_t *out_slot) {
  MLX_TRY(keep_logits(session));
  MLX_TRY(allocate_pages(session, session->length + (int64_t)count));
  session->has_next = false;
  *out_slot = session->slot;
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
  mlx_session_release_pages(session, length);
  return NULL;
}

mlx_status_t mlx_session_resume(mlx_session_t *session, const int32_t *ids, size_t count, size_t *out_kept) {
  size_t kept = 0;
  while (kept + 1 < count && kept < (size_t)session->length && session->ids[kept] == ids[kept]) ++kept;
  // The caller reads all tokens that are not kept. So the session need not read any of them again.
  if (session->ring && first_seen(session, (int64_t)kept) < session->ring_first) kept = 0;
  *out_kept = kept;
  return mlx_session_rewind(session, (int64_t)kept);
}

mlx_status_t mlx_session_logits(mlx_session_t *session, float *out_logits, size_t count) {
  mlx_stepper_t *stepper = session->engine->stepper;
  const size_t vocab = (size_t)session->engine->manifest.vocab;
  if (count != vocab)
    return mlx_error(MLX_USAGE, "the model has %zu logits; the caller requested %zu", vocab, count);
  MLX_TRY(require_next(session));
  if (session->logits_kept) {
    memcpy(out_logits, session->logits, vocab * sizeof *out_logits);
  } else {
    MLX_TRY(stepper->read_logits(stepper, 0, out_logits));
  }
  return check_finite(session, out_logits, vocab);
}
