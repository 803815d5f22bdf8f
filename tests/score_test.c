// Scoring tokens through a stepper: chunks, two steps in the queue, logits for the caller, and failures.
#include "runtime/score.h"

#include <math.h>

#include "base/memory.h"
#include "tests/check.h"

#define VOCAB 7
#define MAX 512

// A stepper without a network. The logit of token t after token x at position p is logit_of(x, p, t).
typedef struct fake {
  mlx_stepper_t stepper;
  struct mlx_ticket {
    int32_t position, count, ids[MAX], targets[MAX];
    uint32_t flags;
    bool open;
  } tickets[MLX_STEPPER_DEPTH];
  size_t next, open, most_open, steps, largest, read;
  size_t fail_submit, fail_wait;  // the step that fails, from 1; 0: none
  size_t waited;
  int32_t bad_position;  // whose logits are not finite; -1: none
  const struct mlx_ticket *last;
  mlx_step_result_t results[MAX];
} fake_t;

static float logit_of(int32_t id, int32_t position, int32_t target) {
  return (float)((id * 5 + position * 3 + target * target) % 11) / 3.0f;
}

static double logprob_of(int32_t id, int32_t position, int32_t target) {
  double sum = 0;
  for (int32_t i = 0; i < VOCAB; ++i) sum += exp(logit_of(id, position, i));
  return logit_of(id, position, target) - log(sum);
}

static bool fits(const mlx_stepper_t *stepper, int64_t tokens, int64_t wanted) {
  (void)stepper;
  return (tokens <= 32 && wanted <= 2) || (tokens <= 8 && wanted <= 8);
}

static mlx_status_t submit(mlx_stepper_t *stepper, const mlx_segment_t *segments, size_t count,
                           mlx_ticket_t **out) {
  fake_t *fake = (fake_t *)stepper;
  *out = NULL;
  if (++fake->steps == fake->fail_submit) return mlx_error(MLX_UNAVAILABLE, "submit failed");
  struct mlx_ticket *ticket = &fake->tickets[fake->next++ % MLX_STEPPER_DEPTH];
  const int32_t unwanted = segments->each ? segments->unwanted : segments->count;
  if (count != 1 || ticket->open || segments->slot != 3 || segments->wanted)
    return mlx_error(MLX_INTERNAL, "a wrong segment");
  *ticket = (struct mlx_ticket){
      .position = segments->position + unwanted, .count = segments->count - unwanted, .open = true};
  for (int32_t i = 0; i < ticket->count; ++i) {
    ticket->flags = segments->each[i].flags;
    ticket->ids[i] = segments->ids[unwanted + i];
    ticket->targets[i] = segments->each[i].target;
  }
  fake->read += (size_t)segments->count;
  if ((size_t)segments->count > fake->largest) fake->largest = (size_t)segments->count;
  if (++fake->open > fake->most_open) fake->most_open = fake->open;
  *out = ticket;
  return NULL;
}

static mlx_status_t wait_for(mlx_stepper_t *stepper, mlx_ticket_t *ticket, const mlx_step_result_t **out,
                             size_t *out_count) {
  fake_t *fake = (fake_t *)stepper;
  --fake->open;
  ticket->open = false;
  if (++fake->waited == fake->fail_wait) return mlx_error(MLX_UNAVAILABLE, "wait failed");
  for (int32_t i = 0; i < ticket->count; ++i) {
    const int32_t position = ticket->position + i;
    fake->results[i] =
        (mlx_step_result_t){.token = -1,
                            .not_finite = position == fake->bad_position,
                            .logprob = ticket->flags == MLX_SAMPLE_SCORE
                                           ? (float)logprob_of(ticket->ids[i], position, ticket->targets[i])
                                           : NAN};
  }
  fake->last = ticket;
  *out = fake->results;
  *out_count = (size_t)ticket->count;
  return NULL;
}

// The logits belong to the step that was queued last.
static mlx_status_t read_logits(mlx_stepper_t *stepper, size_t row, float *out) {
  const fake_t *fake = (fake_t *)stepper;
  if (fake->open || row >= (size_t)fake->last->count) return mlx_error(MLX_INTERNAL, "the logits are gone");
  for (int32_t i = 0; i < VOCAB; ++i)
    out[i] = logit_of(fake->last->ids[row], fake->last->position + (int32_t)row, i);
  return NULL;
}

static fake_t make_fake(void) {
  return (fake_t){.stepper = {.max_tokens = 32,
                              .max_wanted = 32,
                              .vocab = VOCAB,
                              .samples = true,
                              .fits = fits,
                              .submit = submit,
                              .wait = wait_for,
                              .read_logits = read_logits},
                  .bad_position = -1};
}

typedef struct seen {
  size_t count, stop_at;  // calls; the call that fails, from 1; 0: none
  bool wrong;
  const int32_t *ids;
} seen_t;

static mlx_status_t on_logits(void *user, size_t index, const float *logits) {
  seen_t *seen = user;
  if (index != seen->count++) seen->wrong = true;
  for (int32_t i = 0; i < VOCAB; ++i) {
    if (logits[i] != logit_of(seen->ids[index], 100 + (int32_t)index, i)) seen->wrong = true;
  }
  return seen->count == seen->stop_at ? mlx_error(MLX_IO, "the disk is full") : NULL;
}

static int32_t ids[61];
static float logprobs[60];

static mlx_score_t make_score(size_t count) {
  for (size_t i = 0; i < 61; ++i) ids[i] = (int32_t)(i * i % VOCAB);
  for (size_t i = 0; i < 60; ++i) logprobs[i] = 1;
  return (mlx_score_t){
      .slot = 3, .position = 100, .ids = ids, .texts = count > 0, .count = count, .logprobs = logprobs};
}

static void check_logprobs(size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const double expected = logprob_of(ids[i], 100 + (int32_t)i, ids[i + 1]);
    if (!(fabs(logprobs[i] - expected) < 1e-6))
      CHECK_FAIL("token %zu: %f, expected %f", i, (double)logprobs[i], expected);
  }
}

TEST(every_token_is_scored_in_the_largest_steps_that_fit) {
  static const size_t counts[] = {0, 1, 7, 8, 9, 60};
  for (size_t i = 0; i < sizeof counts / sizeof *counts; ++i) {
    fake_t fake = make_fake();
    const mlx_score_t score = make_score(counts[i]);
    size_t done;
    CHECK_OK(mlx_score_run(&fake.stepper, &score, &done));
    CHECK_INT(done, counts[i]);
    CHECK_INT(fake.steps, (counts[i] + 7) / 8);
    CHECK_INT(fake.largest, counts[i] < 8 ? counts[i] : 8);
    CHECK_INT(fake.most_open, fake.steps < 2 ? fake.steps : 2);
    check_logprobs(counts[i]);
  }
}

static size_t texts_ended;
static void on_text(void *user, size_t index) {
  const mlx_score_t *score = user;
  const size_t scored = score->count - score->context;
  CHECK_INT(index, texts_ended++);
  for (size_t i = 0; i < scored; ++i) {
    const int32_t *at = ids + index * (score->count + 1) + score->context + i;
    const double expected = logprob_of(at[0], 100 + (int32_t)(score->context + i), at[1]);
    CHECK(fabs(logprobs[index * scored + i] - expected) < 1e-6);
  }
}

// Three texts of 20 tokens. With |fits|, a step has at most 2 wanted tokens beside the 11 of the context.
TEST(texts_are_queued_one_after_the_other_and_their_contexts_are_not_scored) {
  for (int limited = 0; limited < 2; ++limited) {
    fake_t fake = make_fake();
    mlx_score_t score = make_score(19);
    size_t done;
    score.texts = 3;
    score.context = 11;
    score.on_text = on_text;
    score.user = &score;
    texts_ended = 0;
    if (!limited) fake.stepper.fits = NULL;
    CHECK_OK(mlx_score_run(&fake.stepper, &score, &done));
    CHECK_INT(done, 3 * 8);
    CHECK_INT(texts_ended, 3);
    CHECK_INT(fake.read, 3 * 19);
    CHECK_INT(fake.steps, limited ? 6 : 3);
    CHECK_INT(fake.most_open, 2);
  }
  fake_t fake = make_fake();  // a context of several steps, of which some have no scored token
  mlx_score_t score = make_score(59);
  size_t done;
  score.context = 57;
  score.on_text = on_text;
  score.user = &score;
  fake.stepper.max_tokens = 19;
  texts_ended = 0;
  CHECK_OK(mlx_score_run(&fake.stepper, &score, &done));
  CHECK_INT(done, 2);
  CHECK_INT(texts_ended, 1);
  CHECK_INT(fake.read, 59);
  CHECK_INT(fake.steps, 4);
}

TEST(logits_are_passed_before_the_next_step_overwrites_them) {
  for (int samples = 0; samples < 2; ++samples) {
    fake_t fake = make_fake();
    mlx_score_t score = make_score(60);
    seen_t seen = {.ids = ids};
    size_t done;
    fake.stepper.samples = samples;
    score.on_logits = on_logits;
    score.user = &seen;
    CHECK_OK(mlx_score_run(&fake.stepper, &score, &done));
    CHECK_INT(seen.count, 60);
    CHECK(!seen.wrong);
    CHECK_INT(fake.most_open, 1);
    check_logprobs(60);
  }
}

TEST(a_stepper_that_cannot_sample_is_scored_from_its_logits) {
  fake_t fake = make_fake();
  const mlx_score_t score = make_score(60);
  size_t done;
  fake.stepper.samples = false;
  fake.stepper.fits = NULL;
  CHECK_OK(mlx_score_run(&fake.stepper, &score, &done));
  CHECK_INT(fake.largest, 32);
  check_logprobs(60);
}

TEST(a_failure_closes_the_queue_and_keeps_what_is_done) {
  fake_t fake;
  mlx_score_t score;
  size_t done;
  for (size_t step = 1; step <= 8; ++step) {
    fake = make_fake();
    fake.fail_submit = step;
    score = make_score(60);
    CHECK_ERROR(mlx_score_run(&fake.stepper, &score, &done), MLX_UNAVAILABLE, "submit failed");
    CHECK_INT(fake.open, 0);
    CHECK(done <= 8 * (step - 1));
    check_logprobs(done);
    fake = make_fake();
    fake.fail_wait = step;
    score = make_score(60);
    CHECK_ERROR(mlx_score_run(&fake.stepper, &score, &done), MLX_UNAVAILABLE, "wait failed");
    CHECK_INT(fake.open, 0);
    CHECK_INT(done, 8 * (step - 1));
    check_logprobs(done);
  }
  fake = make_fake();
  fake.bad_position = 120;
  score = make_score(60);
  CHECK_ERROR(mlx_score_run(&fake.stepper, &score, &done), MLX_INVALID_INPUT,
              "not finite: a logit after 121 tokens");
  CHECK_INT(fake.open, 0);
  CHECK_INT(done, 20);
  fake = make_fake();
  seen_t seen = {.ids = ids, .stop_at = 11};
  score = make_score(60);
  score.on_logits = on_logits;
  score.user = &seen;
  CHECK_ERROR(mlx_score_run(&fake.stepper, &score, &done), MLX_IO, "the disk is full");
  CHECK_INT(done, 10);
  CHECK_INT(fake.open, 0);
}

TEST_MAIN(CASE(every_token_is_scored_in_the_largest_steps_that_fit),
          CASE(texts_are_queued_one_after_the_other_and_their_contexts_are_not_scored),
          CASE(logits_are_passed_before_the_next_step_overwrites_them),
          CASE(a_stepper_that_cannot_sample_is_scored_from_its_logits),
          CASE(a_failure_closes_the_queue_and_keeps_what_is_done))
