// Fills a step with tokens of the requests that run.
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "runtime/scheduler_internal.h"

#define SMALL_CHUNK 32  // prompt tokens of a step; fewer are not worth a step

bool mlx_scheduler_is_decode(const mlx_request_t *r) { return mlx_request_unfed(r) == 1; }

bool mlx_scheduler_scores_on_host(const mlx_scheduler_t *s, const mlx_request_t *r) {
  return !s->stepper->samples || r->score.top > MLX_TOP_LOGPROBS;
}

// Tokens that are fed until the last one is scored. The last token of a prompt is fed alone, and samples a
// token.
static int64_t unscored(const mlx_request_t *r) {
  return mlx_request_scores(r) && r->fed < r->score.end ? (int64_t)(r->score.end - r->fed) : 0;
}

// How many of the next |count| tokens of |r| score the token after them.
static int64_t scored_of(const mlx_request_t *r, int64_t count) {
  const int64_t context = r->score.from > r->fed ? (int64_t)(r->score.from - r->fed) : 0;
  return unscored(r) && count > context ? count - context : 0;
}

// Wanted tokens that a segment of |count| tokens counts for. A step has room for one of each segment.
static int64_t wanted_of(const mlx_request_t *r, int64_t count) {
  const int64_t scored = scored_of(r, count);
  return scored ? scored : 1;
}

bool mlx_scheduler_can_feed(const mlx_scheduler_t *s, const mlx_request_t *r) {
  return r->state == MLX_REQUEST_RUNNING && (int64_t)r->fed < s->positions &&
         (mlx_output_left(&r->output) > r->pending || unscored(r));
}

static bool fits(const mlx_scheduler_t *s, int64_t tokens, int64_t wanted) {
  return tokens <= s->options.max_batch_tokens && wanted <= s->stepper->max_wanted &&
         (!s->stepper->fits || s->stepper->fits(s->stepper, tokens, wanted));
}

// What is wanted of |count| tokens of |r| from |first| on: the log-probabilities of the tokens after them.
static const mlx_step_sampling_t *want_scores(mlx_scheduler_t *s, const mlx_request_t *r, size_t first,
                                              int64_t count) {
  mlx_step_sampling_t *each = s->each + s->each_count;
  const bool device = !mlx_scheduler_scores_on_host(s, r);
  const uint32_t flags = MLX_SAMPLE_SCORE | (r->score.top ? MLX_SAMPLE_LOGPROB : 0);
  for (int64_t i = 0; i < count; ++i) {
    each[i] = (mlx_step_sampling_t){.flags = device ? flags : 0,
                                    .target = r->ids[first + (size_t)i + 1],
                                    .top_logprobs = device ? (int32_t)r->score.top : 0};
  }
  s->each_count += (size_t)count;
  return each;
}

// Adds the next |count| tokens of |r| to the step. If they are all it has, a token is sampled after them.
static mlx_status_t add_segment(mlx_scheduler_t *s, mlx_request_t *r, int64_t count) {
  bool ok;
  mlx_step_sampling_t wanted;
  mlx_readiness_t readiness = MLX_SAMPLER_READY;
  const bool samples = mlx_request_unfed(r) == (size_t)count;
  mlx_status_t status =
      samples && !r->embeds ? mlx_sequence_sampler_prepare(r->sampler, &wanted, &readiness) : NULL;
  if (r->embeds) wanted = (mlx_step_sampling_t){0};
  if (status || readiness == MLX_SAMPLER_COMPLETE) {
    mlx_scheduler_finish(s, r, MLX_FINISH_STOP, status);
    return NULL;
  }
  if (readiness == MLX_SAMPLER_LATE) return NULL;
  MLX_TRY(mlx_scheduler_make_room(s, r, r->fed + (size_t)count, &ok));
  if (!ok) return NULL;
  const size_t at = s->segment_count++;
  const int64_t scored = scored_of(r, count), context = scored ? count - scored : 0;
  s->members[at] = r;
  if (samples) s->wanted[at] = wanted;
  s->segments[at] =
      (mlx_segment_t){.slot = r->slot,
                      .position = (int32_t)r->fed,
                      .count = (int32_t)count,
                      .ids = r->fed < r->count ? r->ids + r->fed : NULL,
                      .wanted = samples ? &s->wanted[at] : NULL,
                      .unwanted = (int32_t)context,
                      .each = scored ? want_scores(s, r, r->fed + (size_t)context, scored) : NULL,
                      .routes = mlx_request_unrouted(r) < r->fed + (size_t)count};
  s->tokens += count;
  return NULL;
}

// Adds as many tokens of |r| as the step has room for.
static mlx_status_t add_request(mlx_scheduler_t *s, mlx_request_t *r) {
  if (!mlx_scheduler_can_feed(s, r)) return NULL;
  const int64_t scores = unscored(r), wanted = (int64_t)(s->segment_count + s->each_count);
  int64_t count = scores ? scores : (int64_t)mlx_request_unfed(r);
  if (!mlx_scheduler_is_decode(r) && count > s->prompt_left) count = s->prompt_left;
  count = (int64_t)mlx_request_until_snapshot(r, &s->pages, (size_t)count);
  const int64_t useful = count < SMALL_CHUNK ? count : SMALL_CHUNK;
  if (scores && count > s->options.max_batch_tokens - (int64_t)s->each_count)
    count = s->options.max_batch_tokens - (int64_t)s->each_count;
  // Short texts share a step of at most MLX_STEP_TOKENS tokens, whose activations stay in the caches.
  if (s->stepper->whole && s->segment_count && s->tokens + (int64_t)mlx_request_unfed(r) > MLX_STEP_TOKENS)
    return NULL;
  if (s->stepper->whole && fits(s, s->tokens + (int64_t)mlx_request_unfed(r), wanted + 1))
    return add_segment(s, r, (int64_t)mlx_request_unfed(r));
  if (s->stepper->whole) return NULL;  // in a later step, which begins with it
  while (count > 0 && !fits(s, s->tokens + count, wanted + wanted_of(r, count))) --count;
  if (!mlx_scheduler_is_decode(r)) {
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

// Adds the requests in their order: decodes, then prompts, or prompts first.
static mlx_status_t add_requests(mlx_scheduler_t *s, mlx_request_t *const *turns, size_t count,
                                 bool prompts_first) {
  for (int pass = 0; pass < 2; ++pass) {
    for (size_t i = 0; i < count; ++i) {
      if (!s->stepper->ragged && s->segment_count) return NULL;
      if (s->stepper->ragged ? mlx_scheduler_is_decode(turns[i]) == ((pass == 0) != prompts_first)
                             : pass == 0)
        MLX_TRY(add_request(s, turns[i]));
    }
  }
  return NULL;
}

// The most prompt tokens of the step.
static int64_t prompt_limit(mlx_scheduler_t *s, mlx_request_t *const *turns, size_t count) {
  int64_t running = 0;
  bool began = false, prompts = false;
  for (size_t i = 0; i < count; ++i) {
    const bool decode = mlx_scheduler_is_decode(turns[i]), feeds = mlx_scheduler_can_feed(s, turns[i]);
    began |= decode || turns[i]->count > turns[i]->prompt_count;
    running += decode && feeds;
    prompts |= !decode && feeds;
  }
  if (!began) return INT64_MAX;
  if (!prompts || !running || s->stepper->whole) return s->options.max_prompt_chunk;
  return mlx_prefill_budget_tokens(&s->budget, running, s->options.max_prompt_chunk);
}

mlx_status_t mlx_scheduler_fill_step(mlx_scheduler_t *s) {
  const bool prompts_first = s->starved;
  const size_t count = s->running.count;
  mlx_request_t **turns;
  s->starved = false;
  if (!count) return NULL;
  MLX_TRY(mlx_alloc(count, sizeof *turns, &turns));
  memcpy(turns, s->running.items, count * sizeof *turns);
  qsort(turns, count, sizeof *turns, compare_turn);
  s->prompt_left = prompt_limit(s, turns, count);
  const bool withheld = !s->prompt_left;
  mlx_status_t status = add_requests(s, turns, count, prompts_first);
  if (!status && withheld && !s->segment_count) {  // no decode could be fed: their masks are late
    s->prompt_left =
        s->options.max_prompt_chunk < MLX_LEAST_PREFILL ? s->options.max_prompt_chunk : MLX_LEAST_PREFILL;
    for (size_t i = 0; i < count && !status && (s->stepper->ragged || !s->segment_count); ++i)
      if (!mlx_scheduler_is_decode(turns[i])) status = add_request(s, turns[i]);
  }
  mlx_free(turns);
  return status;
}
