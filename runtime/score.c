// Scoring: log-probabilities of given tokens, at the speed of prefill. A session's request feeds them and
// wants a result of each; the scheduler queues two steps at a time, also of two texts, unless the caller
// needs the logits.
#include "runtime/prompt.h"
#include "runtime/rooms.h"
#include "runtime/scheduler_internal.h"
#include "runtime/session.h"

// Checks that all tokens but the last, which is only a target, fit after |length| positions.
static mlx_status_t check_text(const mlx_session_t *session, const int32_t *ids, size_t count) {
  const mlx_request_t *r = session->request;
  const mlx_language_t *language = &r->scheduler->language;
  const mlx_context_limit_t context = {language->context, language->model_context};
  MLX_TRY(mlx_prompt_check(ids, count - 1, (int64_t)r->fed, context, language->vocab));
  return mlx_prompt_check(ids + count - 1, 1, 0, context, language->vocab);
}

// Scores texts of |count| tokens after the end of the sequence. The first |context| tokens of each, and the
// one after them, are not scored. The caller has taken the pages.
static mlx_status_t run(mlx_session_t *session, size_t count, size_t context, const mlx_scoring_t *texts) {
  const size_t start = session->request->fed;
  mlx_scoring_t score = *texts;
  mlx_generate_options_t options;
  mlx_generate_options_initialize(&options);
  options.max_tokens = 0;
  score.start = start;
  score.from = start + context;
  score.end = start + count - 1;
  return mlx_session_run(
      session, &(mlx_session_run_t){
                   .ids = score.ids, .count = count, .options = &options, .quiet = true, .score = &score});
}

mlx_status_t mlx_session_score(mlx_session_t *session, const int32_t *ids, size_t count, float *out_logprobs,
                               mlx_status_t (*on_logits)(void *user, size_t index, const float *logits),
                               void *user) {
  const size_t start = session->request->fed;
  const mlx_scoring_t score = {
      .texts = 1, .ids = ids, .logprobs = out_logprobs, .on_logits = on_logits, .user = user};
  if (count < 2) return mlx_error(MLX_USAGE, "scoring needs at least two tokens, not %zu", count);
  MLX_TRY(check_text(session, ids, count));
  MLX_TRY(mlx_session_grow(session, start + count - 1));
  mlx_status_t status = run(session, count, 0, &score);
  if (!status) session->state_length = session->request->fed;
  mlx_session_cut(session, start + session->request->score.done);
  return status;
}

mlx_status_t mlx_session_score_texts(mlx_session_t *session, const mlx_texts_t *texts) {
  const size_t start = session->request->fed, length = texts->length, scored = length - 1 - texts->context;
  if (length < 2 || texts->context > length - 2)
    return mlx_error(MLX_USAGE, "a text of %zu tokens has none to score after the first %zu", length,
                     texts->context + 1);
  for (size_t i = 0; i < texts->count; ++i) MLX_TRY(check_text(session, texts->ids + i * length, length));
  // If a text overwrites the window or the state before it, the sequence is read again before each text.
  const size_t together = mlx_session_keeps_window(session, length - 1) ? texts->count : 1;
  mlx_status_t status = NULL;
  for (size_t i = 0; i < texts->count && !status; i += together) {
    const mlx_scoring_t score = {.texts = together,
                                 .first = i,
                                 .ids = texts->ids + i * length,
                                 .logprobs = texts->logprobs + i * scored,
                                 .on_logits = texts->on_logits,
                                 .on_text = texts->on_text,
                                 .user = texts->user};
    MLX_TRY(mlx_session_grow(session, start + length - 1));
    status = run(session, length, texts->context, &score);
    mlx_session_cut(session, start);
  }
  return status;
}
