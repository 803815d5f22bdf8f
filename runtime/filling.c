// Fills a step with tokens of the requests that run.
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "runtime/scheduler_internal.h"

#define SMALL_CHUNK 32  // prompt tokens of a step; fewer are not worth a step

bool mlx_scheduler_is_decode(const mlx_request_t *r) { return mlx_request_unfed(r) == 1; }

bool mlx_scheduler_scores_logits(const mlx_scheduler_t *s, const mlx_request_t *r) {
  return !s->stepper->samples || r->prompt_logprobs > MLX_TOP_LOGPROBS;
}

// Prompt tokens that are fed to score the token after them. The last one is fed alone, and samples a token.
static int64_t unscored(const mlx_request_t *r) {
  const bool scores = mlx_request_scores(r) && r->fed + 1 < r->prompt_count;
  return scores ? (int64_t)(r->prompt_count - 1 - r->fed) : 0;
}

bool mlx_scheduler_can_feed(const mlx_scheduler_t *s, const mlx_request_t *r) {
  return r->state == MLX_REQUEST_RUNNING && (int64_t)r->fed < s->positions &&
         (mlx_output_left(&r->output) > r->pending || unscored(r));
}

static bool fits(const mlx_scheduler_t *s, int64_t tokens, int64_t wanted) {
  return tokens <= s->options.max_batch_tokens && wanted <= s->stepper->max_wanted &&
         (!s->stepper->fits || s->stepper->fits(s->stepper, tokens, wanted));
}

// What is wanted of the next |count| tokens of |r|: the log-probabilities of the tokens after them.
static const mlx_step_sampling_t *want_scores(mlx_scheduler_t *s, const mlx_request_t *r, int64_t count) {
  mlx_step_sampling_t *each = s->each + s->each_count;
  const bool device = !mlx_scheduler_scores_logits(s, r);
  for (int64_t i = 0; i < count; ++i) {
    each[i] = (mlx_step_sampling_t){.flags = device ? MLX_SAMPLE_SCORE | MLX_SAMPLE_LOGPROB : 0,
                                    .target = r->ids[r->fed + (size_t)i + 1],
                                    .top_logprobs = device ? (int32_t)r->prompt_logprobs : 0};
  }
  s->each_count += (size_t)count;
  return each;
}

// Adds the next |count| tokens of |r| to the step. If they are all it has, a token is sampled after them.
static mlx_status_t add_segment(mlx_scheduler_t *s, mlx_request_t *r, int64_t count) {
  bool ok, complete = false;
  MLX_TRY(mlx_scheduler_make_room(s, r, r->fed + (size_t)count, &ok));
  if (!ok) return NULL;
  mlx_step_sampling_t wanted;
  const bool samples = mlx_request_unfed(r) == (size_t)count;
  mlx_status_t status =
      samples && !r->embeds ? mlx_sequence_sampler_prepare(r->sampler, &wanted, &complete) : NULL;
  if (r->embeds) wanted = (mlx_step_sampling_t){0};
  if (status || complete) {
    mlx_scheduler_finish(s, r, MLX_FINISH_STOP, status);
    return NULL;
  }
  const size_t at = s->segment_count++;
  s->members[at] = r;
  if (samples) s->wanted[at] = wanted;
  s->segments[at] = (mlx_segment_t){.slot = r->slot,
                                    .position = (int32_t)r->fed,
                                    .count = (int32_t)count,
                                    .ids = r->fed < r->count ? r->ids + r->fed : NULL,
                                    .wanted = samples ? &s->wanted[at] : NULL,
                                    .each = unscored(r) ? want_scores(s, r, count) : NULL};
  s->tokens += count;
  return NULL;
}

// Adds as many tokens of |r| as the step has room for.
static mlx_status_t add_request(mlx_scheduler_t *s, mlx_request_t *r) {
  if (!mlx_scheduler_can_feed(s, r)) return NULL;
  const int64_t scores = unscored(r), wanted = (int64_t)(s->segment_count + s->each_count);
  int64_t count = scores ? scores : (int64_t)mlx_request_unfed(r);
  if (!mlx_scheduler_is_decode(r) && count > s->prompt_left) count = s->prompt_left;
  const int64_t useful = count < SMALL_CHUNK ? count : SMALL_CHUNK;
  if (scores && count > s->options.max_batch_tokens - (int64_t)s->each_count)
    count = s->options.max_batch_tokens - (int64_t)s->each_count;
  while (count > 0 && !fits(s, s->tokens + count, wanted + (scores ? count : 1))) --count;
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

mlx_status_t mlx_scheduler_fill_step(mlx_scheduler_t *s) {
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
    decodes |= turns[i]->count > turns[i]->prompt_count || mlx_scheduler_is_decode(turns[i]);
  s->prompt_left = decodes ? s->options.max_prompt_chunk : INT64_MAX;
  mlx_status_t status = NULL;
  for (int pass = 0; pass < 2; ++pass) {
    for (size_t i = 0; i < count && !status; ++i) {
      if (!s->stepper->ragged && s->segment_count) break;
      if (s->stepper->ragged ? mlx_scheduler_is_decode(turns[i]) == ((pass == 0) != prompts_first)
                             : pass == 0)
        status = add_request(s, turns[i]);
    }
  }
  mlx_free(turns);
  return status;
}
