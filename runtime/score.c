// Scores tokens through steps whose every token is wanted. Two steps are queued at a time, unless the caller
// needs the logits, which the next step overwrites.
#include <math.h>

#include "base/memory.h"
#include "runtime/prompt.h"
#include "runtime/session_internal.h"

#include "runtime/score.h"

typedef struct scoring {
  mlx_stepper_t *stepper;
  const mlx_score_t *score;
  size_t chunk;               // tokens of a step
  mlx_step_sampling_t *each;  // owned; [chunk]
  float *logits;              // owned; [vocab]; NULL if the results suffice
  size_t submitted, done;     // tokens
  struct {
    mlx_ticket_t *ticket;
    size_t count;
  } open[MLX_STEPPER_DEPTH];  // queued steps, oldest first
  size_t open_count;
} scoring_t;

// The most tokens of a step of which all are wanted.
static size_t chunk_of(const mlx_stepper_t *stepper) {
  int64_t count = stepper->max_tokens < stepper->max_wanted ? stepper->max_tokens : stepper->max_wanted;
  while (count > 1 && stepper->fits && !stepper->fits(stepper, count, count)) count /= 2;
  return count > 1 ? (size_t)count : 1;
}

static mlx_status_t submit(scoring_t *s) {
  const mlx_score_t *score = s->score;
  const size_t left = score->count - s->submitted, count = left < s->chunk ? left : s->chunk;
  const int32_t *ids = score->ids + s->submitted;
  const mlx_segment_t segment = {.slot = score->slot,
                                 .position = score->position + (int32_t)s->submitted,
                                 .count = (int32_t)count,
                                 .ids = ids,
                                 .each = s->each};
  for (size_t i = 0; i < count; ++i) {
    s->each[i] =
        (mlx_step_sampling_t){.flags = s->stepper->samples ? MLX_SAMPLE_SCORE : 0, .target = ids[i + 1]};
  }
  MLX_TRY(s->stepper->submit(s->stepper, &segment, 1, &s->open[s->open_count].ticket));
  s->open[s->open_count++].count = count;
  s->submitted += count;
  return NULL;
}

static mlx_status_t not_finite(const scoring_t *s) {
  return mlx_status_hint(
      mlx_error(MLX_INVALID_INPUT,
                "the model computes values that are not finite: a logit after %zu tokens of the sequence",
                (size_t)s->score->position + s->done + 1),
      "the weights are damaged, or too large for their type: fetch the model again, or use --dtype f32");
}

// Log-softmax of one logit. NAN if any logit is not finite.
static double logprob_of(const float *logits, int64_t vocab, int32_t target) {
  double largest = -INFINITY, sum = 0;
  for (int64_t i = 0; i < vocab; ++i) {
    if (!isfinite(logits[i])) return NAN;
    if (logits[i] > largest) largest = logits[i];
  }
  for (int64_t i = 0; i < vocab; ++i) sum += exp(logits[i] - largest);
  return logits[target] - largest - log(sum);
}

// Stores the result of token |row| of the last step.
static mlx_status_t store(scoring_t *s, size_t row, const mlx_step_result_t *result) {
  const mlx_score_t *score = s->score;
  double logprob = result->logprob;
  if (result->not_finite) return not_finite(s);
  if (s->logits) MLX_TRY(s->stepper->read_logits(s->stepper, row, s->logits));
  if (!s->stepper->samples) logprob = logprob_of(s->logits, s->stepper->vocab, score->ids[s->done + 1]);
  if (isnan(logprob)) return not_finite(s);
  score->logprobs[s->done] = (float)logprob;
  if (score->on_logits) MLX_TRY(score->on_logits(score->user, s->done, s->logits));
  ++s->done;
  return NULL;
}

// Waits for the oldest step and stores its results.
static mlx_status_t finish_oldest(scoring_t *s) {
  const mlx_step_result_t *results;
  size_t count;
  const size_t expected = s->open[0].count;
  mlx_ticket_t *ticket = s->open[0].ticket;
  --s->open_count;
  for (size_t i = 0; i < s->open_count; ++i) s->open[i] = s->open[i + 1];
  MLX_TRY(s->stepper->wait(s->stepper, ticket, &results, &count));
  if (count != expected)
    return mlx_error(MLX_INTERNAL, "a step returned %zu results, expected %zu", count, expected);
  for (size_t i = 0; i < count; ++i) MLX_TRY(store(s, i, &results[i]));
  return NULL;
}

static mlx_status_t run(scoring_t *s) {
  const size_t depth = s->logits ? 1 : MLX_STEPPER_DEPTH;
  while (s->done < s->score->count) {
    if (s->submitted < s->score->count && s->open_count < depth) {
      MLX_TRY(submit(s));
    } else {
      MLX_TRY(finish_oldest(s));
    }
  }
  return NULL;
}

mlx_status_t mlx_score_run(mlx_stepper_t *stepper, const mlx_score_t *score, size_t *out_done) {
  scoring_t s = {.stepper = stepper, .score = score, .chunk = chunk_of(stepper)};
  const bool needs_logits = score->on_logits || !stepper->samples;
  const mlx_step_result_t *results;
  size_t count;
  mlx_status_t status = mlx_alloc(s.chunk, sizeof *s.each, &s.each);
  if (!status && needs_logits) status = mlx_alloc((size_t)stepper->vocab, sizeof *s.logits, &s.logits);
  if (!status) status = run(&s);
  for (size_t i = 0; i < s.open_count; ++i)  // after a failure
    status = mlx_status_join(status, stepper->wait(stepper, s.open[i].ticket, &results, &count));
  *out_done = s.done;
  mlx_free(s.each);
  mlx_free(s.logits);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Sessions

mlx_status_t mlx_session_score(mlx_session_t *session, const int32_t *ids, size_t count, float *out_logprobs,
                               mlx_status_t (*on_logits)(void *user, size_t index, const float *logits),
                               void *user) {
  const mlx_engine_info_t info = mlx_engine_info(session->engine);
  mlx_score_t score = {.position = (int32_t)session->length,
                       .ids = ids,
                       .count = count - 1,
                       .logprobs = out_logprobs,
                       .on_logits = on_logits,
                       .user = user};
  size_t done;
  if (count < 2) return mlx_error(MLX_USAGE, "scoring needs at least two tokens, not %zu", count);
  MLX_TRY(mlx_prompt_check(ids, count - 1, session->length, info.context, info.vocab));
  MLX_TRY(mlx_prompt_check(ids + count - 1, 1, 0, info.context, info.vocab));  // a target only
  MLX_TRY(mlx_session_prepare(session, count - 1, &score.slot));
  mlx_status_t status = mlx_score_run(session->engine->stepper, &score, &done);
  mlx_session_append(session, ids, done);
  return status;
}
