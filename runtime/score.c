// Scores tokens through steps of which many tokens are wanted. Two steps are queued at a time, also of two
// texts, unless the caller needs the logits, which the next step overwrites.
#include <math.h>

#include "base/memory.h"
#include "runtime/prompt.h"
#include "runtime/session_internal.h"

#include "runtime/score.h"

typedef struct scoring {
  mlx_stepper_t *stepper;
  const mlx_score_t *score;
  mlx_step_sampling_t *each;  // owned; [max_wanted]
  float *logits;              // owned; [vocab]; NULL if the results suffice
  size_t text, at;            // of the next token to queue
  size_t done;                // scored tokens
  struct {
    mlx_ticket_t *ticket;
    size_t count;             // scored tokens
  } open[MLX_STEPPER_DEPTH];  // queued steps, oldest first
  size_t open_count;
} scoring_t;

static bool step_fits(const mlx_stepper_t *stepper, size_t tokens, size_t wanted) {
  return (int64_t)tokens <= stepper->max_tokens && (int64_t)wanted <= stepper->max_wanted &&
         (!stepper->fits || stepper->fits(stepper, (int64_t)tokens, (int64_t)wanted));
}

// Chooses the tokens of a step: the first *|inout_context| ones are only read, *|inout_scored| are scored.
static void choose_tokens(const mlx_stepper_t *stepper, size_t *inout_context, size_t *inout_scored) {
  const size_t most = (size_t)stepper->max_tokens, wanted = (size_t)stepper->max_wanted;
  if (*inout_context > most) *inout_context = most;
  if (*inout_scored > most - *inout_context) *inout_scored = most - *inout_context;
  if (*inout_scored > wanted) *inout_scored = wanted;
  const size_t least = *inout_context ? 0 : 1;  // of one token at least
  while (*inout_scored > least && !step_fits(stepper, *inout_context + *inout_scored, *inout_scored))
    --*inout_scored;
}

static mlx_status_t submit(scoring_t *s) {
  const mlx_score_t *score = s->score;
  const int32_t *ids = score->ids + s->text * (score->count + 1) + s->at;
  size_t context = s->at < score->context ? score->context - s->at : 0;
  size_t scored = score->count - s->at - context;
  choose_tokens(s->stepper, &context, &scored);
  const mlx_segment_t segment = {.slot = score->slot,
                                 .position = score->position + (int32_t)s->at,
                                 .count = (int32_t)(context + scored),
                                 .ids = ids,
                                 .unwanted = scored ? (int32_t)context : 0,
                                 .each = scored ? s->each : NULL};
  for (size_t i = 0; i < scored; ++i) {
    s->each[i] = (mlx_step_sampling_t){.flags = s->stepper->samples ? MLX_SAMPLE_SCORE : 0,
                                       .target = ids[context + i + 1]};
  }
  MLX_TRY(s->stepper->submit(s->stepper, &segment, 1, &s->open[s->open_count].ticket));
  s->open[s->open_count++].count = scored;
  s->at += context + scored;
  if (s->at == score->count) {
    ++s->text;
    s->at = 0;
  }
  return NULL;
}

static size_t scored_of(const mlx_score_t *score) { return score->count - score->context; }

static mlx_status_t not_finite(const scoring_t *s) {
  return mlx_status_hint(
      mlx_error(MLX_INVALID_INPUT,
                "the model computes values that are not finite: a logit after %zu tokens of the sequence",
                (size_t)s->score->position + s->score->context + s->done % scored_of(s->score) + 1),
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
  const size_t text = s->done / scored_of(score), nth = s->done % scored_of(score);
  double logprob = result->logprob;
  if (result->not_finite) return not_finite(s);
  if (s->logits) MLX_TRY(s->stepper->read_logits(s->stepper, row, s->logits));
  if (!s->stepper->samples)
    logprob = logprob_of(s->logits, s->stepper->vocab,
                         score->ids[text * (score->count + 1) + score->context + nth + 1]);
  if (isnan(logprob)) return not_finite(s);
  score->logprobs[s->done] = (float)logprob;
  const size_t first = score->first_text;
  if (score->on_logits) MLX_TRY(score->on_logits(score->user, first * scored_of(score) + s->done, s->logits));
  ++s->done;
  if (nth + 1 == scored_of(score) && score->on_text) score->on_text(score->user, first + text);
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
  while (s->open_count || s->text < s->score->texts) {
    if (s->text < s->score->texts && s->open_count < depth) {
      MLX_TRY(submit(s));
    } else {
      MLX_TRY(finish_oldest(s));
    }
  }
  return NULL;
}

mlx_status_t mlx_score_run(mlx_stepper_t *stepper, const mlx_score_t *score, size_t *out_done) {
  scoring_t s = {.stepper = stepper, .score = score};
  const bool needs_logits = score->on_logits || !stepper->samples;
  const mlx_step_result_t *results;
  size_t count;
  mlx_status_t status = mlx_alloc((size_t)stepper->max_wanted, sizeof *s.each, &s.each);
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
                       .texts = 1,
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

// Scores the texts together or, if one of them overwrites the window before it, one by one. Then the session
// is read again before each text.
static mlx_status_t score_texts(mlx_session_t *session, mlx_score_t *score) {
  const bool together = mlx_session_keeps_window(session, (int64_t)score->count);
  const size_t texts = score->texts;
  size_t done;
  if (!together) score->texts = 1;
  for (; score->first_text < texts; score->first_text += score->texts) {
    MLX_TRY(mlx_session_prepare(session, score->count, &score->slot));
    MLX_TRY(mlx_score_run(session->engine->stepper, score, &done));
    score->ids += score->texts * (score->count + 1);
    score->logprobs += score->texts * scored_of(score);
  }
  return NULL;
}

mlx_status_t mlx_session_score_texts(mlx_session_t *session, const mlx_texts_t *texts) {
  const mlx_engine_info_t info = mlx_engine_info(session->engine);
  mlx_score_t score = {.position = (int32_t)session->length,
                       .ids = texts->ids,
                       .texts = texts->count,
                       .count = texts->length - 1,
                       .context = texts->context,
                       .logprobs = texts->logprobs,
                       .on_logits = texts->on_logits,
                       .on_text = texts->on_text,
                       .user = texts->user};
  if (texts->length < 2 || texts->context > texts->length - 2)
    return mlx_error(MLX_USAGE, "a text of %zu tokens has none to score after the first %zu", texts->length,
                     texts->context + 1);
  for (size_t i = 0; i < texts->count; ++i) {
    const int32_t *ids = texts->ids + i * texts->length;
    MLX_TRY(mlx_prompt_check(ids, score.count, session->length, info.context, info.vocab));
    MLX_TRY(mlx_prompt_check(ids + score.count, 1, 0, info.context, info.vocab));  // a target only
  }
  mlx_status_t status = score_texts(session, &score);
  mlx_session_release_pages(session, session->length);
  return status;
}
