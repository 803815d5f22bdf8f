// Queues steps and bursts, and adds the tokens of those that are done to their requests.
#include "base/clock.h"
#include "base/memory.h"
#include "runtime/scheduler_internal.h"

// Most time of a burst, so that text streams evenly and new requests do not wait long. Text of fast models is
// ahead of its reader, so its pieces may be larger, for fewer launches.
#define BURST_SECONDS 0.04
#define FAST_BURST_SECONDS 0.1
#define FAST_TOKEN_SECONDS 0.002
#define SMOOTH_SECONDS 0.02  // a reader cannot tell a burst of this time from single tokens
#define BURST_GROWTH 4  // tokens of a burst for each token of the output before it, within SMOOTH_SECONDS

// ----------------------------------------------------------------------------------------------------------
// Queueing

// True if |r| is alone and the next call can be a burst.
static bool can_burst(const mlx_scheduler_t *s) {
  const mlx_request_t *r = mlx_request_list_last(&s->running);
  return s->stepper->burst > 1 && s->running.count == 1 && !s->waiting.count && mlx_scheduler_is_decode(r) &&
         mlx_scheduler_can_feed(s, r) && !r->embeds && !r->routes &&
         mlx_sequence_sampler_burst_limit(r->sampler);
}

// True if the logits of the next result of |r| are read, so that no step may be queued before.
static bool is_synchronous(const mlx_scheduler_t *s, const mlx_request_t *r) {
  if (mlx_request_scores(r)) return mlx_scheduler_scores_on_host(s, r) || r->score.on_logits;
  return r->embeds || mlx_sequence_sampler_is_synchronous(r->sampler) ||
         (r->quiet && mlx_output_left(&r->output) <= r->pending);
}

bool mlx_scheduler_may_queue(const mlx_scheduler_t *s) {
  if (!s->flight_count) return true;
  if (s->flight_count == MLX_STEPPER_DEPTH || s->flights[0].burst || can_burst(s)) return false;
  for (size_t i = 0; i < s->flights[0].count; ++i) {
    const mlx_request_t *r = s->flights[0].rows[i];
    if (r && is_synchronous(s, r)) return false;
  }
  return true;
}

// The most tokens of the next burst.
static int64_t burst_limit(const mlx_scheduler_t *s, const mlx_request_t *r) {
  const size_t left = mlx_output_left(&r->output);
  int64_t limit = mlx_sequence_sampler_burst_limit(r->sampler);
  if (limit > s->stepper->burst) limit = s->stepper->burst;
  if (left < (size_t)limit) limit = (int64_t)left;
  return limit < s->positions - (int64_t)r->fed ? limit : s->positions - (int64_t)r->fed;
}

// The size of the next burst: as long as the output before it, or up to BURST_GROWTH times as long if that
// takes at most SMOOTH_SECONDS. The first tokens are streamed soon, and a long output has few launches. A
// quiet output is not streamed.
static int64_t burst_size(const mlx_scheduler_t *s, const mlx_request_t *r) {
  const int64_t limit = burst_limit(s, r);
  int64_t size = (int64_t)r->output.generation.count;
  const double smooth = s->token_seconds > 0 ? SMOOTH_SECONDS / s->token_seconds : 0;  // tokens
  if (r->quiet) return limit > 1 ? limit : 0;
  if ((double)size < smooth)
    size = (double)(size * BURST_GROWTH) < smooth ? size * BURST_GROWTH : (int64_t)smooth;
  if (size > limit) size = limit;
  const double most = s->token_seconds < FAST_TOKEN_SECONDS ? FAST_BURST_SECONDS : BURST_SECONDS;
  if (size > 1 && (double)size * s->token_seconds > most)
    size = s->token_seconds < most ? (int64_t)(most / s->token_seconds) : 1;
  return size;
}

// The next step overwrites the logits on the device: their session gets a copy.
static mlx_status_t keep_logits(mlx_scheduler_t *s) {
  mlx_request_t *r = s->last;
  s->last = NULL;
  if (!r) return NULL;
  if (!r->logits) MLX_TRY(mlx_alloc((size_t)s->language.vocab, sizeof *r->logits, &r->logits));
  MLX_TRY(s->stepper->read_logits(s->stepper, s->last_row, r->logits));
  r->logits_kept = true;
  return NULL;
}

static mlx_status_t queue_burst(mlx_scheduler_t *s, bool *out_queued) {
  mlx_request_t *r = mlx_request_list_last(&s->running);
  mlx_flight_t *flight = &s->flights[0];
  mlx_step_sampling_t wanted;
  mlx_readiness_t readiness;
  bool ok;
  int64_t size = burst_size(s, r);
  *out_queued = false;
  if (size < 1) return NULL;
  MLX_TRY(mlx_request_grow(r, &s->pages, r->fed + (size_t)size, &ok));
  if (!ok) size = (int64_t)(r->page_count * MLX_KV_PAGE - r->fed);
  if (size < 1) return NULL;
  mlx_status_t status = mlx_sequence_sampler_prepare(r->sampler, &wanted, &readiness);
  if (status) mlx_scheduler_finish(s, r, MLX_FINISH_ERROR, status);
  if (status || readiness != MLX_SAMPLER_READY) return NULL;  // mlx_scheduler_fill_step ends a complete one
  const mlx_segment_t segment = {
      .slot = r->slot, .position = (int32_t)r->fed, .count = 1, .ids = r->ids + r->fed, .wanted = &wanted};
  size_t eos_count = r->output.ignore_eos ? 0 : s->language.eos_count;
  if (eos_count > MLX_STEP_MAX_EOS) eos_count = MLX_STEP_MAX_EOS;
  MLX_TRY(keep_logits(s));
  MLX_TRY(s->stepper->submit_burst(s->stepper, &segment, (int32_t)size, s->language.eos, eos_count,
                                   &flight->ticket));
  flight->rows[0] = r;
  flight->count = 1;
  flight->routed_count = 0;
  flight->burst = (int32_t)size;
  flight->start = mlx_seconds();
  flight->queued = s->now();
  s->flight_count = 1;
  r->fed += (size_t)size;
  r->pending += (size_t)size;
  ++s->stats.steps;
  ++s->stats.step_sequences;
  *out_queued = true;
  return mlx_request_note_state(r, &s->pages);
}

// Counts the decodes and the prompt tokens of the step that is queued.
static void note_budget(mlx_scheduler_t *s, mlx_flight_t *flight) {
  int64_t running = 0, decodes = 0, prompt = 0;
  for (size_t i = 0; i < s->running.count; ++i) {
    const mlx_request_t *r = s->running.items[i];
    running += mlx_scheduler_is_decode(r) && mlx_scheduler_can_feed(s, r);
  }
  for (size_t i = 0; i < s->segment_count; ++i) {
    const bool decode = mlx_scheduler_is_decode(s->members[i]);
    decodes += decode;
    prompt += decode ? 0 : s->segments[i].count;
  }
  flight->queued = s->now();
  mlx_prefill_budget_queue(&s->budget, running, decodes, prompt, &flight->note);
}

// Notes the tokens of the queued step whose routes are wanted.
static void note_routed(const mlx_scheduler_t *s, mlx_flight_t *flight) {
  size_t first = 0;
  flight->routed_count = 0;
  for (size_t i = 0; i < s->segment_count; ++i) {
    const size_t count = (size_t)s->segments[i].count;
    if (s->segments[i].routes)
      flight->routed[flight->routed_count++] = (mlx_routed_t){
          .request = s->members[i], .first = first, .at = (size_t)s->segments[i].position, .count = count};
    first += count;
  }
}

// Notes what the queued step feeds and samples.
static mlx_status_t note_queued(mlx_scheduler_t *s, mlx_ticket_t *ticket) {
  mlx_flight_t *flight = &s->flights[s->flight_count++];
  flight->ticket = ticket;
  flight->count = 0;
  flight->burst = 0;
  flight->start = mlx_seconds();
  note_budget(s, flight);
  note_routed(s, flight);
  ++s->stats.steps;
  s->stats.step_sequences += (int64_t)s->segment_count;
  for (size_t i = 0; i < s->segment_count; ++i) {
    mlx_request_t *r = s->members[i];
    if (r->fed < r->prompt_count) {
      s->stats.prompt_tokens += s->segments[i].count;
      // The chunks before this one: it has only been queued.
      if (r->on_prompt && r->first <= 0) r->on_prompt(r->output.user, r->fed, r->prompt_count);
    }
    r->fed += (size_t)s->segments[i].count;
    r->last_step = (uint64_t)s->stats.steps;
    for (int32_t k = s->segments[i].unwanted; s->segments[i].each && k < s->segments[i].count; ++k)
      flight->rows[flight->count++] = r;
    mlx_request_next_text(r);
    if (!s->segments[i].wanted) continue;
    ++r->pending;
    flight->rows[flight->count++] = r;
  }
  for (size_t i = 0; i < s->segment_count; ++i) {
    MLX_TRY(mlx_request_publish(s->members[i], &s->pages));
    MLX_TRY(mlx_request_drop_unseen(s->members[i], &s->pages));
    MLX_TRY(mlx_request_note_state(s->members[i], &s->pages));
  }
  return NULL;
}

mlx_status_t mlx_scheduler_queue_step(mlx_scheduler_t *s, bool *out_queued) {
  mlx_ticket_t *ticket;
  s->segment_count = 0;
  s->each_count = 0;
  s->tokens = 0;
  *out_queued = false;
  MLX_TRY(mlx_scheduler_admit(s));
  if (!s->flight_count && can_burst(s)) MLX_TRY(queue_burst(s, out_queued));
  if (*out_queued) return NULL;
  MLX_TRY(mlx_scheduler_fill_step(s));
  if (!s->segment_count) return NULL;
  MLX_TRY(keep_logits(s));
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
  MLX_TRY(mlx_sequence_sampler_choose(r->sampler, r->count, result, logits, &choice));
  MLX_TRY(mlx_request_append(r, choice.id));
  MLX_TRY(mlx_output_add(&r->output, choice.id, choice.logprobs));
  if (r->first <= 0) {
    r->first = mlx_seconds();
    if (r->on_prompt) r->on_prompt(r->output.user, r->prompt_count, r->prompt_count);
  }
  ++s->stats.output_tokens;
  s->stats.near_ties += choice.near_tie;
  return NULL;
}

// Shows the new tokens of |r|, and ends it if they are its last. |row| is that of its last token.
static mlx_status_t show_tokens(mlx_scheduler_t *s, mlx_request_t *r, size_t row) {
  mlx_output_emit(&r->output);
  MLX_TRY(mlx_request_publish(r, &s->pages));
  MLX_TRY(mlx_request_drop_unseen(r, &s->pages));
  if (r->output.ended) {
    if (r->quiet) {
      s->last = r;
      s->last_row = row;
    }
    mlx_scheduler_finish(s, r, MLX_FINISH_STOP, NULL);
  } else if ((int64_t)r->count > s->positions) {
    mlx_scheduler_finish(s, r, MLX_FINISH_CONTEXT, NULL);
  }
  return NULL;
}

// Reads the logits of a row. *out_logits is NULL if they are not |needed|.
static mlx_status_t read_logits(mlx_scheduler_t *s, bool needed, size_t row, const float **out_logits) {
  *out_logits = NULL;
  if (!needed) return NULL;
  if (!s->logits) MLX_TRY(mlx_alloc((size_t)s->language.vocab, sizeof *s->logits, &s->logits));
  *out_logits = s->logits;
  return s->stepper->read_logits(s->stepper, row, s->logits);
}

// Passes log-probability |nth| of a text on to the caller of the session.
static mlx_status_t report_score(const mlx_scoring_t *score, size_t text, size_t nth, double logprob,
                                 const float *logits) {
  const size_t count = score->end - score->from, number = score->first + text;
  score->logprobs[text * count + nth] = (float)logprob;
  if (score->on_logits) MLX_TRY(score->on_logits(score->user, number * count + nth, logits));
  if (nth + 1 == count && score->on_text) score->on_text(score->user, number);
  return NULL;
}

// Adds the next log-probability of |r|. A request that wants no token ends with the last.
static mlx_status_t take_score(mlx_scheduler_t *s, mlx_request_t *r, const mlx_step_result_t *result,
                               size_t row) {
  mlx_scoring_t *score = &r->score;
  const size_t count = score->end - score->from, text = score->done / count, nth = score->done % count,
               at = score->from + nth, length = score->end + 1 - score->start;
  const bool on_host = mlx_scheduler_scores_on_host(s, r);
  const int32_t target = score->ids ? score->ids[text * length + at + 1 - score->start] : r->ids[at + 1];
  mlx_logprob_t one, *out = &one;
  const float *logits;
  if (!score->ids) out = r->output.generation.prompt_logprobs + at * (score->top + 1);
  MLX_TRY(read_logits(s, on_host || score->on_logits, row, &logits));
  mlx_status_t status = mlx_sequence_sampler_score(r->sampler, at + 1, result, on_host ? logits : NULL,
                                                   target, score->top, out);
  if (!status && score->ids) status = report_score(score, text, nth, one.logprob, logits);
  score->done += !status;
  if (status)
    mlx_scheduler_finish(s, r, MLX_FINISH_ERROR, status);
  else if (!mlx_request_scores(r) && !mlx_output_left(&r->output))
    mlx_scheduler_finish(s, r, MLX_FINISH_LENGTH, NULL);
  return NULL;
}

// Reads the hidden state that wanted token |row| has, as the embedding of |r|, and ends the request.
static mlx_status_t take_embedding(mlx_scheduler_t *s, mlx_request_t *r, size_t row) {
  const size_t size = (size_t)s->stepper->hidden;
  float **out = &r->output.generation.embedding;
  MLX_TRY(mlx_alloc(size, sizeof **out, out));
  MLX_TRY(s->stepper->read_hidden(s->stepper, row, *out));
  r->pending = 0;
  r->first = mlx_seconds();
  mlx_status_t status = mlx_embedding_finish(*out, size, r->count, !s->language.raw_embeddings && !r->raw);
  if (s->language.score_row) **out = mlx_embedding_score(*out, s->language.score_row, size);
  mlx_scheduler_finish(s, r, MLX_FINISH_STOP, status);
  return NULL;
}

// |results| are the |count| tokens of a burst. Tokens after the end of the output are dropped.
static mlx_status_t take_burst(mlx_scheduler_t *s, const mlx_flight_t *flight,
                               const mlx_step_result_t *results, size_t count) {
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
  if (!status) return show_tokens(s, r, 0);
  mlx_scheduler_finish(s, r, MLX_FINISH_ERROR, status);
  return NULL;
}

// Before the tokens of the step, which may end a request.
static mlx_status_t take_routes(const mlx_scheduler_t *s, const mlx_flight_t *flight) {
  if (!flight->routed_count) return NULL;
  const int32_t *routes = s->stepper->routes(s->stepper);
  const size_t width = (size_t)(s->stepper->route_layers * s->stepper->route_used);
  for (size_t i = 0; i < flight->routed_count; ++i) {
    const mlx_routed_t *routed = &flight->routed[i];
    if (routed->request)
      MLX_TRY(
          mlx_request_add_routes(routed->request, routes + routed->first * width, routed->at, routed->count));
  }
  return NULL;
}

mlx_status_t mlx_scheduler_read_step(mlx_scheduler_t *s) {
  const mlx_flight_t flight = s->flights[0];
  const mlx_step_result_t *results;
  size_t count;
  s->flights[0] = s->flights[1];
  s->flights[1].rows = flight.rows;  // keeps the memory
  s->flights[1].routed = flight.routed;
  --s->flight_count;
  MLX_TRY(s->stepper->wait(s->stepper, flight.ticket, &results, &count));
  s->step_seconds = mlx_seconds() - flight.start;
  // The device computes steps one after the other.
  const double now = s->now(), begin = flight.queued > s->last_read ? flight.queued : s->last_read;
  s->last_read = now;
  if (flight.burst && count)
    mlx_prefill_budget_measure_burst(&s->budget, (now - begin) / (double)count);
  else if (!flight.burst)
    mlx_prefill_budget_measure(&s->budget, &flight.note, now - begin);
  if (flight.burst) return take_burst(s, &flight, results, count);
  MLX_TRY(take_routes(s, &flight));
  if (count < flight.count)
    return mlx_error(MLX_INTERNAL, "a step returned %zu results, expected %zu", count, flight.count);
  for (size_t i = 0; i < flight.count; ++i) {
    mlx_request_t *r = flight.rows[i];
    const float *logits;
    if (!r || r->state != MLX_REQUEST_RUNNING) continue;  // an earlier row may have ended it
    if (mlx_request_scores(r)) {
      MLX_TRY(take_score(s, r, &results[i], i));
      continue;
    }
    if (r->embeds) {
      MLX_TRY(take_embedding(s, r, i));
      continue;
    }
    MLX_TRY(read_logits(s, mlx_sequence_sampler_reads_logits(r->sampler), i, &logits));
    mlx_status_t status = add_token(s, r, &results[i], logits);
    if (status) {
      mlx_scheduler_finish(s, r, MLX_FINISH_ERROR, status);
    } else {
      MLX_TRY(show_tokens(s, r, i));
    }
  }
  return NULL;
}
