// Scheduler: fills each step with tokens of the requests that run, queues it, and reads the step before it.
//
//   waiting   requests without pages, in order of priority and arrival
//   running   requests with a slot and pages, in the same order: the last one is preempted first
//   flights   queued steps, oldest first. A step is queued before the tokens of the last one are read, as
//   long
//             as every sequence in it can go on without the host: the device feeds the token that it sampled
//   done      requests whose on_done is to be called
//
// docs/internals/scheduler.md explains the rules.
#include "runtime/scheduler.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "runtime/prompt.h"
#include "runtime/request.h"

#define BURST_SECONDS 0.1  // most time of a burst, so that text and new requests do not wait longer
#define SMALL_CHUNK 32     // prompt tokens of a step; fewer are not worth a step

typedef struct list {
  mlx_request_t **items;
  size_t count, capacity;
} list_t;

typedef struct flight {
  mlx_ticket_t *ticket;
  mlx_request_t **rows;  // [max_wanted] the request of each wanted token; NULL: it has left
  size_t count;
  int32_t burst;  // tokens of a burst; 0: a step
  double start;
} flight_t;

struct mlx_scheduler {
  mlx_scheduler_options_t options;  // without zeros
  mlx_language_t language;
  mlx_request_pages_t pages;
  mlx_stepper_t *stepper;
  int64_t positions;  // most positions of a sequence
  list_t waiting, running, done;
  size_t live;  // requests that are not freed
  uint64_t arrivals;
  flight_t flights[MLX_STEPPER_DEPTH];
  size_t flight_count;
  // The step that is being filled: segment i belongs to members[i].
  mlx_segment_t *segments;      // [max_batch_tokens]
  mlx_step_sampling_t *wanted;  // [max_batch_tokens] of segment i
  mlx_request_t **members;      // [max_batch_tokens]
  size_t segment_count;
  int64_t tokens, wanted_count, prompt_left;
  bool starved;          // the last step had no room for prompts
  float *logits;         // [vocab] scratch; NULL before the first use
  double token_seconds;  // time of one token of the last burst; 0: unknown
  mlx_scheduler_stats_t stats;
};

// ----------------------------------------------------------------------------------------------------------
// Lists. submit reserves room in all lists for all requests, so adding to a list cannot fail

static void insert(list_t *list, mlx_request_t *request) {
  size_t at = list->count++;
  for (; at > 0 && mlx_request_is_before(request, list->items[at - 1]); --at)
    list->items[at] = list->items[at - 1];
  list->items[at] = request;
}

static void erase(list_t *list, const mlx_request_t *request) {
  size_t at = 0;
  while (at < list->count && list->items[at] != request) ++at;
  if (at == list->count) return;
  --list->count;
  memmove(list->items + at, list->items + at + 1, (list->count - at) * sizeof *list->items);
}

static mlx_request_t *last(const list_t *list) { return list->count ? list->items[list->count - 1] : NULL; }

// ----------------------------------------------------------------------------------------------------------
// Leaving

// Drops what queued steps sample for |request|, and its part of the step that is being filled.
static void leave_steps(mlx_scheduler_t *s, const mlx_request_t *request) {
  for (size_t i = 0; i < s->flight_count; ++i) {
    for (size_t row = 0; row < s->flights[i].count; ++row) {
      if (s->flights[i].rows[row] == request) s->flights[i].rows[row] = NULL;
    }
  }
  size_t kept = 0;
  for (size_t i = 0; i < s->segment_count; ++i) {
    if (s->members[i] == request) {
      s->tokens -= s->segments[i].count;
      s->wanted_count -= s->segments[i].wanted != NULL;
      continue;
    }
    s->members[kept] = s->members[i];
    s->segments[kept] = s->segments[i];
    s->wanted[kept] = s->wanted[i];
    if (s->segments[kept].wanted) s->segments[kept].wanted = &s->wanted[kept];
    ++kept;
  }
  s->segment_count = kept;
}

// Ends a request. With a |status|, which it takes, the request has failed.
static void finish(mlx_scheduler_t *s, mlx_request_t *r, mlx_finish_reason_t reason, mlx_status_t status) {
  leave_steps(s, r);
  erase(&s->running, r);
  erase(&s->waiting, r);
  mlx_request_detach(r, &s->pages, !status);
  r->state = MLX_REQUEST_DONE;
  const double now = mlx_seconds();
  r->output.generation.prompt_seconds = (r->first > 0 ? r->first : now) - r->submitted;
  r->output.generation.decode_seconds = r->first > 0 ? now - r->first : 0;
  if (status) {
    r->output.ended = true;
    r->output.generation.finish_reason = MLX_FINISH_ERROR;
  }
  r->status = mlx_status_join(status, mlx_output_finish(&r->output, reason));
  if (r->status) r->output.generation.finish_reason = MLX_FINISH_ERROR;
  s->done.items[s->done.count++] = r;
}

// Takes the pages of a running request. Its tokens are kept, and read again when it is admitted next time.
static void preempt(mlx_scheduler_t *s, mlx_request_t *r) {
  leave_steps(s, r);
  erase(&s->running, r);
  mlx_request_detach(r, &s->pages, true);
  r->state = MLX_REQUEST_WAITING;
  insert(&s->waiting, r);
  ++s->stats.preemptions;
}

static mlx_status_t copy_status(mlx_status_t status) {
  mlx_status_t copy = mlx_error(mlx_status_code(status), "%s", mlx_status_message(status));
  return mlx_status_code(status) && mlx_status_hint_text(status)[0]
             ? mlx_status_hint(copy, "%s", mlx_status_hint_text(status))
             : copy;
}

// After a failed step nothing is known about the pages: all running requests end.
static void fail_running(mlx_scheduler_t *s, mlx_status_t status) {
  const mlx_step_result_t *results;
  size_t count;
  for (size_t i = 0; i < s->flight_count; ++i)
    mlx_status_free(s->stepper->wait(s->stepper, s->flights[i].ticket, &results, &count));
  s->flight_count = s->segment_count = 0;
  while (s->running.count) finish(s, last(&s->running), MLX_FINISH_ERROR, copy_status(status));
  mlx_pool_forget(s->pages.pool);
}

// Ends the requests that were cancelled, or that want no tokens.
static void finish_cancelled(mlx_scheduler_t *s, list_t *list) {
  for (size_t i = list->count; i-- > 0;) {
    mlx_request_t *r = list->items[i];
    if (r->cancelled) {
      finish(s, r, MLX_FINISH_CANCELLED, NULL);
    } else if (!mlx_output_left(&r->output)) {
      finish(s, r, MLX_FINISH_LENGTH, NULL);
    }
  }
}

// ----------------------------------------------------------------------------------------------------------
// Joining

static mlx_status_t no_room_error(const mlx_scheduler_t *s) {
  const mlx_pool_counts_t counts = mlx_pool_counts(s->pages.pool);
  return mlx_status_hint(
      mlx_error(MLX_OUT_OF_MEMORY,
                "the KV pool has no room for the request: sessions hold %lld of its %lld pages",
                (long long)counts.used, (long long)(counts.used + counts.cached + counts.free)),
      "free a session, or use a larger pool (--memory) or more sequences (--parallel)");
}

// Moves requests from waiting to running, in order, as long as slots and pages last. A request of higher
// priority takes them from one of lower priority.
static mlx_status_t admit(mlx_scheduler_t *s) {
  while (s->waiting.count) {
    mlx_request_t *r = s->waiting.items[0], *victim = last(&s->running);
    bool attached = false;
    if ((int64_t)s->running.count < s->options.max_running)
      MLX_TRY(mlx_request_attach(r, &s->pages, s->positions, (int64_t)s->running.count, &attached));
    if (attached) {
      erase(&s->waiting, r);
      r->state = MLX_REQUEST_RUNNING;
      insert(&s->running, r);
      s->stats.prefix_hits += (int64_t)r->fed;
    } else if (victim && victim->priority < r->priority) {
      preempt(s, victim);
    } else if (s->running.count) {
      return NULL;
    } else {
      finish(s, r, MLX_FINISH_ERROR, no_room_error(s));  // no request will leave room for it
    }
  }
  return NULL;
}

// Takes the pages for |length| positions, from other requests if need be. *out_ok is false if |r| had to
// leave.
static mlx_status_t make_room(mlx_scheduler_t *s, mlx_request_t *r, size_t length, bool *out_ok) {
  for (;;) {
    MLX_TRY(mlx_request_grow(r, &s->pages, length, out_ok));
    if (*out_ok) return NULL;
    if (s->running.count == 1) {
      finish(s, r, MLX_FINISH_ERROR, no_room_error(s));
      return NULL;
    }
    mlx_request_t *victim = last(&s->running);
    preempt(s, victim);
    if (victim == r) return NULL;
  }
}

// ----------------------------------------------------------------------------------------------------------
// Filling a step

static bool is_decode(const mlx_request_t *r) { return mlx_request_unfed(r) == 1; }

// True if a step may feed tokens of |r|: it still wants a token, and the positions last.
static bool can_feed(const mlx_scheduler_t *s, const mlx_request_t *r) {
  return r->state == MLX_REQUEST_RUNNING && (int64_t)r->fed < s->positions &&
         mlx_output_left(&r->output) > r->pending;
}

static bool fits(const mlx_scheduler_t *s, int64_t tokens, int64_t wanted) {
  return tokens <= s->options.max_batch_tokens && wanted <= s->stepper->max_wanted &&
         (!s->stepper->fits || s->stepper->fits(s->stepper, tokens, wanted));
}

// Adds the next |count| tokens of |r| to the step. If they are all it has, a token is sampled after them.
static mlx_status_t add_segment(mlx_scheduler_t *s, mlx_request_t *r, int64_t count) {
  bool ok, complete = false;
  MLX_TRY(make_room(s, r, r->fed + (size_t)count, &ok));
  if (!ok) return NULL;
  mlx_step_sampling_t wanted;
  const bool samples = mlx_request_unfed(r) == (size_t)count;
  mlx_status_t status = samples ? mlx_sequence_sampler_prepare(r->sampler, &wanted, &complete) : NULL;
  if (status || complete) {
    finish(s, r, MLX_FINISH_STOP, status);
    return NULL;
  }
  const size_t at = s->segment_count++;
  s->members[at] = r;
  if (samples) s->wanted[at] = wanted;
  s->segments[at] = (mlx_segment_t){.slot = r->slot,
                                    .position = (int32_t)r->fed,
                                    .count = (int32_t)count,
                                    .ids = r->fed < r->count ? r->ids + r->fed : NULL,
                                    .wanted = samples ? &s->wanted[at] : NULL};
  s->tokens += count;
  s->wanted_count += samples;
  return NULL;
}

// Adds as many tokens of |r| as the step has room for.
static mlx_status_t add_request(mlx_scheduler_t *s, mlx_request_t *r) {
  if (!can_feed(s, r)) return NULL;
  const int64_t unfed = (int64_t)mlx_request_unfed(r);
  int64_t count = unfed;
  if (!is_decode(r) && count > s->prompt_left) count = s->prompt_left;
  const int64_t useful = count < SMALL_CHUNK ? count : SMALL_CHUNK;
  while (count && !fits(s, s->tokens + count, s->wanted_count + 1)) --count;
  if (!is_decode(r)) {
    s->starved |= count < useful;
    s->prompt_left -= count;
  }
  return count ? add_segment(s, r, count) : NULL;
}

static int compare_turn(const void *left, const void *right) {
  const mlx_request_t *a = *(mlx_request_t *const *)left, *b = *(mlx_request_t *const *)right;
  if (a->priority != b->priority) return a->priority > b->priority ? -1 : 1;
  if (a->last_step != b->last_step) return a->last_step < b->last_step ? -1 : 1;
  return a->arrival < b->arrival ? -1 : 1;
}

// Fills the step: decodes first, then chunks of prompts. If there was no room for prompts in the last step,
// prompts come first. Requests that a full step left out come first in the next one.
static mlx_status_t fill_step(mlx_scheduler_t *s) {
  const bool prompts_first = s->starved;
  const size_t count = s->running.count;
  mlx_request_t **turns;
  bool decodes = false;
  s->starved = false;
  if (!count) return NULL;
  MLX_TRY(mlx_alloc(count, sizeof *turns, &turns));
  memcpy(turns, s->running.items, count * sizeof *turns);
  qsort(turns, count, sizeof *turns, compare_turn);
  for (size_t i = 0; i < count; ++i)
    decodes |= turns[i]->count > turns[i]->prompt_count || is_decode(turns[i]);
  s->prompt_left = decodes ? s->options.max_prompt_chunk : INT64_MAX;
  mlx_status_t status = NULL;
  for (int pass = 0; pass < 2; ++pass) {
    for (size_t i = 0; i < count && !status; ++i) {
      if (!s->stepper->ragged && s->segment_count) break;
      if (s->stepper->ragged ? is_decode(turns[i]) == ((pass == 0) != prompts_first) : pass == 0)
        status = add_request(s, turns[i]);
    }
  }
  mlx_free(turns);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Queueing

// True if |r| is alone and the next call can be a burst.
static bool can_burst(const mlx_scheduler_t *s) {
  const mlx_request_t *r = last(&s->running);
  return s->stepper->burst > 1 && s->running.count == 1 && !s->waiting.count && is_decode(r) &&
         can_feed(s, r) && mlx_sequence_sampler_can_burst(r->sampler);
}

// True if the next step may be queued now: no queued step samples a token that the host must see first. A
// burst is queued alone.
static bool may_queue(const mlx_scheduler_t *s) {
  if (!s->flight_count) return true;
  if (s->flight_count == MLX_STEPPER_DEPTH || s->flights[0].burst || can_burst(s)) return false;
  for (size_t i = 0; i < s->flights[0].count; ++i) {
    const mlx_request_t *r = s->flights[0].rows[i];
    if (r && mlx_sequence_sampler_is_synchronous(r->sampler)) return false;
  }
  return true;
}

// The size of the next burst. It is never longer than the output before it: the first tokens are streamed one
// by one, and no burst takes longer than all the output before it.
static int64_t burst_size(const mlx_scheduler_t *s, const mlx_request_t *r) {
  int64_t size = (int64_t)r->output.generation.count;
  const size_t left = mlx_output_left(&r->output);
  if (size > s->stepper->burst) size = s->stepper->burst;
  if (size > MLX_BURST_TOKENS) size = MLX_BURST_TOKENS;
  if (left < (size_t)size) size = (int64_t)left;
  if (size > s->positions - (int64_t)r->fed) size = s->positions - (int64_t)r->fed;
  if (s->token_seconds > 0 && (double)size * s->token_seconds > BURST_SECONDS)
    size = (int64_t)(BURST_SECONDS / s->token_seconds);
  return size;
}

static mlx_status_t queue_burst(mlx_scheduler_t *s, bool *out_queued) {
  mlx_request_t *r = last(&s->running);
  flight_t *flight = &s->flights[0];
  mlx_step_sampling_t wanted;
  bool ok, complete;
  int64_t size = burst_size(s, r);
  *out_queued = false;
  if (size < 2) return NULL;
  MLX_TRY(mlx_request_grow(r, &s->pages, r->fed + (size_t)size, &ok));
  if (!ok) size = (int64_t)(r->page_count * MLX_KV_PAGE - r->fed);
  if (size < 2) return NULL;
  MLX_TRY(mlx_sequence_sampler_prepare(r->sampler, &wanted, &complete));
  const mlx_segment_t segment = {
      .slot = r->slot, .position = (int32_t)r->fed, .count = 1, .ids = r->ids + r->fed, .wanted = &wanted};
  size_t eos_count = r->output.ignore_eos ? 0 : s->language.eos_count;
  if (eos_count > MLX_STEP_MAX_EOS) eos_count = MLX_STEP_MAX_EOS;
  MLX_TRY(s->stepper->submit_burst(s->stepper, &segment, (int32_t)size, s->language.eos, eos_count,
                                   &flight->ticket));
  flight->rows[0] = r;
  flight->count = 1;
  flight->burst = (int32_t)size;
  flight->start = mlx_seconds();
  s->flight_count = 1;
  r->fed += (size_t)size;
  r->pending += (size_t)size;
  ++s->stats.steps;
  *out_queued = true;
  return NULL;
}

// Notes what the queued step feeds and samples.
static mlx_status_t note_queued(mlx_scheduler_t *s, mlx_ticket_t *ticket) {
  flight_t *flight = &s->flights[s->flight_count++];
  flight->ticket = ticket;
  flight->count = 0;
  flight->burst = 0;
  ++s->stats.steps;
  for (size_t i = 0; i < s->segment_count; ++i) {
    mlx_request_t *r = s->members[i];
    if (r->fed < r->prompt_count) s->stats.prompt_tokens += s->segments[i].count;
    r->fed += (size_t)s->segments[i].count;
    r->last_step = (uint64_t)s->stats.steps;
    if (!s->segments[i].wanted) continue;
    ++r->pending;
    flight->rows[flight->count++] = r;
  }
  for (size_t i = 0; i < s->segment_count; ++i) MLX_TRY(mlx_request_publish(s->members[i], &s->pages));
  return NULL;
}

// Queues one step. *out_queued is false if there is nothing to compute.
static mlx_status_t queue_step(mlx_scheduler_t *s, bool *out_queued) {
  mlx_ticket_t *ticket;
  s->segment_count = 0;
  s->tokens = s->wanted_count = 0;
  *out_queued = false;
  MLX_TRY(admit(s));
  if (!s->flight_count && can_burst(s)) MLX_TRY(queue_burst(s, out_queued));
  if (*out_queued) return NULL;
  MLX_TRY(fill_step(s));
  if (!s->segment_count) return NULL;
  MLX_TRY(s->stepper->submit(s->stepper, s->segments, s->segment_count, &ticket));
  *out_queued = true;
  mlx_status_t status = note_queued(s, ticket);
  s->segment_count = 0;
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Results

// Adds the token of |result| to |r|.
static mlx_status_t add_token(mlx_scheduler_t *s, mlx_request_t *r, const mlx_step_result_t *result,
                              const float *logits) {
  mlx_choice_t choice;
  --r->pending;
  MLX_TRY(mlx_sequence_sampler_choose(r->sampler, result, logits, &choice));
  MLX_TRY(mlx_request_append(r, choice.id));
  MLX_TRY(mlx_output_add(&r->output, choice.id, choice.logprobs));
  if (r->first <= 0) r->first = mlx_seconds();
  ++s->stats.output_tokens;
  s->stats.near_ties += choice.near_tie;
  return NULL;
}

// Shows the new tokens of |r|, and ends it if they are its last.
static mlx_status_t show_tokens(mlx_scheduler_t *s, mlx_request_t *r) {
  mlx_output_emit(&r->output);
  MLX_TRY(mlx_request_publish(r, &s->pages));
  if (r->output.ended) {
    finish(s, r, MLX_FINISH_STOP, NULL);
  } else if ((int64_t)r->count > s->positions) {
    finish(s, r, MLX_FINISH_CONTEXT, NULL);
  }
  return NULL;
}

// Reads the logits that |r| was sampled from. *out_logits is NULL if the request does not need them.
static mlx_status_t read_logits(mlx_scheduler_t *s, const mlx_request_t *r, size_t row,
                                const float **out_logits) {
  *out_logits = NULL;
  if (!mlx_sequence_sampler_reads_logits(r->sampler)) return NULL;
  if (!s->logits) MLX_TRY(mlx_alloc((size_t)s->language.vocab, sizeof *s->logits, &s->logits));
  *out_logits = s->logits;
  return s->stepper->read_logits(s->stepper, row, s->logits);
}

// |results| are the |count| tokens of a burst. Tokens after the end of the output are dropped.
static mlx_status_t take_burst(mlx_scheduler_t *s, const flight_t *flight, const mlx_step_result_t *results,
                               size_t count) {
  mlx_request_t *r = flight->rows[0];
  mlx_status_t status = NULL;
  if (!r) return NULL;
  if (!count || count > (size_t)flight->burst)
    return mlx_error(MLX_INTERNAL, "a burst of %d tokens returned %zu", flight->burst, count);
  s->token_seconds = (mlx_seconds() - flight->start) / (double)count;
  r->fed -= (size_t)flight->burst - count;
  r->pending = count;
  for (size_t i = 0; i < count && !r->output.ended && !status; ++i)
    status = add_token(s, r, &results[i], NULL);
  r->pending = 0;
  if (!status) return show_tokens(s, r);
  finish(s, r, MLX_FINISH_ERROR, status);
  return NULL;
}

// Waits for the oldest queued step and adds its tokens to their requests.
static mlx_status_t read_step(mlx_scheduler_t *s) {
  const flight_t flight = s->flights[0];
  const mlx_step_result_t *results;
  size_t count;
  s->flights[0] = s->flights[1];
  s->flights[1].rows = flight.rows;  // keeps the memory
  --s->flight_count;
  MLX_TRY(s->stepper->wait(s->stepper, flight.ticket, &results, &count));
  if (flight.burst) return take_burst(s, &flight, results, count);
  if (count < flight.count)
    return mlx_error(MLX_INTERNAL, "a step returned %zu results, expected %zu", count, flight.count);
  for (size_t i = 0; i < flight.count; ++i) {
    mlx_request_t *r = flight.rows[i];
    const float *logits;
    if (!r) continue;
    MLX_TRY(read_logits(s, r, i, &logits));
    mlx_status_t status = add_token(s, r, &results[i], logits);
    if (status) {
      finish(s, r, MLX_FINISH_ERROR, status);
    } else {
      MLX_TRY(show_tokens(s, r));
    }
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// The public calls

static mlx_status_t advance(mlx_scheduler_t *s) {
  bool queued = true;
  finish_cancelled(s, &s->running);
  finish_cancelled(s, &s->waiting);
  while (queued && may_queue(s)) MLX_TRY(queue_step(s, &queued));
  if (s->flight_count) MLX_TRY(read_step(s));
  while (!s->running.count && s->flight_count) MLX_TRY(read_step(s));  // steps without requests
  return NULL;
}

mlx_status_t mlx_scheduler_step(mlx_scheduler_t *s, bool *out_idle) {
  mlx_status_t status = advance(s);
  if (status) fail_running(s, status);
  while (s->done.count) {
    mlx_request_t *r = s->done.items[0];
    erase(&s->done, r);
    if (r->on_done) r->on_done(r->output.user, r);
  }
  *out_idle = !s->running.count && !s->waiting.count;
  return status;
}

mlx_status_t mlx_scheduler_run(mlx_scheduler_t *scheduler) {
  for (bool idle = false; !idle;) MLX_TRY(mlx_scheduler_step(scheduler, &idle));
  return NULL;
}

mlx_scheduler_stats_t mlx_scheduler_stats(const mlx_scheduler_t *s) {
  const mlx_pool_counts_t counts = mlx_pool_counts(s->pages.pool);
  mlx_scheduler_stats_t stats = s->stats;
  stats.running = (int64_t)s->running.count;
  stats.waiting = (int64_t)s->waiting.count;
  stats.pages_used = counts.used;
  stats.pages_cached = counts.cached;
  stats.pages_free = counts.free;
  return stats;
}

static mlx_status_t fill_request(mlx_scheduler_t *s, mlx_request_t *r, const int32_t *ids, size_t count,
                                 const mlx_generate_options_t *options) {
  const mlx_language_t *language = &s->language;
  list_t *const lists[] = {&s->waiting, &s->running, &s->done};
  MLX_TRY(mlx_output_initialize(options, language->tokenizer, language->eos, language->eos_count,
                                language->vocab, &r->output));
  MLX_TRY(mlx_sequence_sampler_create(language, options, s->stepper->samples, s->options.count_near_ties, ids,
                                      count, &r->sampler));
  MLX_TRY(mlx_reserve(count, sizeof *r->ids, &r->id_capacity, &r->ids));
  memcpy(r->ids, ids, count * sizeof *ids);
  r->count = r->prompt_count = count;
  for (int i = 0; i < 3; ++i)
    MLX_TRY(mlx_reserve(s->live + 1, sizeof *lists[i]->items, &lists[i]->capacity, &lists[i]->items));
  return NULL;
}

mlx_status_t mlx_scheduler_submit(mlx_scheduler_t *s, const int32_t *ids, size_t count,
                                  const mlx_generate_options_t *options, mlx_request_t **out_request) {
  mlx_request_t *r;
  *out_request = NULL;
  MLX_TRY(mlx_prompt_check(ids, count, 0, s->language.context, s->language.vocab));
  if (count > (size_t)s->positions)
    return mlx_status_hint(mlx_error(MLX_OUT_OF_MEMORY, "the prompt has %zu tokens; the KV pool holds %lld",
                                     count, (long long)s->positions),
                           "shorten the prompt, or use a larger pool (--memory)");
  MLX_TRY(mlx_alloc(1, sizeof *r, &r));
  mlx_status_t status = fill_request(s, r, ids, count, options);
  if (status) {
    mlx_request_release(r);
    return status;
  }
  r->scheduler = s;
  r->slot = -1;
  r->priority = options->priority;
  r->arrival = s->arrivals++;
  r->on_done = options->on_done;
  r->submitted = mlx_seconds();
  insert(&s->waiting, r);
  ++s->live;
  *out_request = r;
  return NULL;
}

void mlx_request_free(mlx_request_t *r) {
  if (!r) return;
  mlx_scheduler_t *s = r->scheduler;
  leave_steps(s, r);
  erase(&s->running, r);
  erase(&s->waiting, r);
  erase(&s->done, r);
  mlx_request_detach(r, &s->pages, true);
  mlx_request_release(r);
  --s->live;
}

// ----------------------------------------------------------------------------------------------------------
// Creating

void mlx_scheduler_options_initialize(mlx_scheduler_options_t *out_options) {
  *out_options = (mlx_scheduler_options_t){.share_prefixes = true};
}

static int64_t choose(int64_t wanted, int64_t most) { return wanted > 0 && wanted < most ? wanted : most; }

static mlx_status_t fill_scheduler(mlx_scheduler_t *s, const mlx_scheduler_parts_t *parts,
                                   const mlx_scheduler_options_t *options) {
  const mlx_stepper_t *stepper = parts->stepper;
  s->options = *options;
  s->options.max_batch_tokens = choose(options->max_batch_tokens, stepper->max_tokens);
  s->options.max_running = choose(options->max_running, stepper->slots);
  if (options->max_prompt_chunk <= 0) s->options.max_prompt_chunk = parts->prompt_chunk;
  s->language = parts->language;
  s->stepper = parts->stepper;
  s->pages = (mlx_request_pages_t){parts->stepper, parts->pool, options->share_prefixes};
  s->positions = choose(parts->language.context, (stepper->pool_pages - 1) * MLX_KV_PAGE);
  s->positions = choose(s->positions, stepper->slot_pages * MLX_KV_PAGE);
  const size_t size = (size_t)s->options.max_batch_tokens;
  MLX_TRY(mlx_alloc(size, sizeof *s->segments, &s->segments));
  MLX_TRY(mlx_alloc(size, sizeof *s->wanted, &s->wanted));
  MLX_TRY(mlx_alloc(size, sizeof *s->members, &s->members));
  for (int i = 0; i < MLX_STEPPER_DEPTH; ++i)
    MLX_TRY(mlx_alloc(size, sizeof *s->flights[i].rows, &s->flights[i].rows));
  return NULL;
}

mlx_status_t mlx_scheduler_create_on(const mlx_scheduler_parts_t *parts,
                                     const mlx_scheduler_options_t *options,
                                     mlx_scheduler_t **out_scheduler) {
  mlx_scheduler_t *s;
  *out_scheduler = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *s, &s));
  mlx_status_t status = fill_scheduler(s, parts, options);
  if (status) {
    mlx_scheduler_free(s);
    return status;
  }
  *out_scheduler = s;
  return NULL;
}

void mlx_scheduler_free(mlx_scheduler_t *s) {
  if (!s) return;
  while (s->flight_count) mlx_status_free(read_step(s));
  for (int i = 0; i < MLX_STEPPER_DEPTH; ++i) mlx_free(s->flights[i].rows);
  mlx_free(s->waiting.items);
  mlx_free(s->running.items);
  mlx_free(s->done.items);
  mlx_free(s->segments);
  mlx_free(s->wanted);
  mlx_free(s->members);
  mlx_free(s->logits);
  mlx_free(s);
}
