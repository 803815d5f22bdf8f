// Scoring the tokens of a session: chunks, two steps in the queue, logits for the caller, and failures.
#include <math.h>

#include "base/file.h"
#include "base/memory.h"
#include "runtime/rooms.h"
#include "runtime/scheduler.h"
#include "runtime/session.h"
#include "tests/support/check.h"

#define TOKENIZER MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama/tokenizer.json"
#define VOCAB 7
#define MAX 512
#define CONTEXT 256
#define BEFORE 100  // tokens of the session

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
  const int32_t unwanted = segments->each ? segments->unwanted : segments->count - (segments->wanted != NULL);
  if (count != 1 || ticket->open || segments->slot) return mlx_error(MLX_INTERNAL, "a wrong segment");
  *ticket = (struct mlx_ticket){
      .position = segments->position + unwanted, .count = segments->count - unwanted, .open = true};
  for (int32_t i = 0; i < ticket->count; ++i) {
    ticket->flags = segments->each ? segments->each[i].flags : MLX_SAMPLE_TOKEN;
    ticket->ids[i] = segments->ids[unwanted + i];
    ticket->targets[i] = segments->each ? segments->each[i].target : 0;
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
        (mlx_step_result_t){.token = ticket->flags == MLX_SAMPLE_TOKEN ? 0 : -1,
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

static mlx_status_t set_page(mlx_stepper_t *stepper, int32_t slot, int32_t nth, int32_t page) {
  CHECK(!slot && nth < stepper->slot_pages && page < stepper->pool_pages);
  return NULL;
}

static fake_t make_fake(void) {
  return (fake_t){.stepper = {.max_tokens = 32,
                              .max_wanted = 32,
                              .slots = 1,
                              .slot_pages = CONTEXT / MLX_KV_PAGE,
                              .pool_pages = 1 + CONTEXT / MLX_KV_PAGE,
                              .vocab = VOCAB,
                              .samples = true,
                              .fits = fits,
                              .set_page = set_page,
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
    if (logits[i] != logit_of(seen->ids[index], BEFORE + (int32_t)index, i)) seen->wrong = true;
  }
  return seen->count == seen->stop_at ? mlx_error(MLX_IO, "the disk is full") : NULL;
}

// ----------------------------------------------------------------------------------------------------------
// A session of BEFORE tokens on the stepper

typedef struct rig {
  mlx_pool_t *pool;
  mlx_scheduler_t *scheduler;
  mlx_session_t *session;
} rig_t;

static int32_t ids[61];
static float logprobs[60];

static mlx_tokenizer_t *tokenizer(void) {
  static mlx_tokenizer_t *tokenizer;
  char *json;
  size_t length;
  if (tokenizer) return tokenizer;
  CHECK_OK(mlx_read_file(TOKENIZER, 1 << 24, &json, &length));
  CHECK_OK(mlx_tokenizer_create(TOKENIZER, json, length, &tokenizer));
  mlx_free(json);
  return tokenizer;
}

static rig_t start(fake_t *fake) {
  rig_t rig;
  int32_t before[BEFORE], next;
  const size_t fail_submit = fake->fail_submit, fail_wait = fake->fail_wait;
  for (size_t i = 0; i < 61; ++i) ids[i] = (int32_t)(i * i % VOCAB);
  for (size_t i = 0; i < 60; ++i) logprobs[i] = 1;
  for (size_t i = 0; i < BEFORE; ++i) before[i] = (int32_t)(i % VOCAB);
  CHECK_OK(mlx_pool_create(fake->stepper.pool_pages, 0, 1, &rig.pool));
  const mlx_scheduler_parts_t parts = {
      .stepper = &fake->stepper,
      .pool = rig.pool,
      .language = {.tokenizer = tokenizer(), .vocab = VOCAB, .context = CONTEXT, .model_context = CONTEXT},
      .prompt_chunk = 1};
  CHECK_OK(mlx_scheduler_create_on(&parts, &(mlx_scheduler_options_t){0}, &rig.scheduler));
  CHECK_OK(mlx_session_create_on(rig.scheduler, &rig.session));
  fake->fail_submit = fake->fail_wait = 0;
  CHECK_OK(mlx_session_read(rig.session, before, BEFORE, &next));
  fake->fail_submit = fail_submit;
  fake->fail_wait = fail_wait;
  fake->most_open = fake->steps = fake->waited = fake->largest = fake->read = 0;
  return rig;
}

static void stop(rig_t *rig) {
  mlx_session_free(rig->session);
  mlx_scheduler_delete(rig->scheduler);
  CHECK_INT(mlx_pool_counts(rig->pool).used, 0);
  mlx_pool_free(rig->pool);
}

static size_t done_of(const rig_t *rig) { return (size_t)mlx_session_length(rig->session) - BEFORE; }

static void check_logprobs(size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const double expected = logprob_of(ids[i], BEFORE + (int32_t)i, ids[i + 1]);
    if (!(fabs(logprobs[i] - expected) < 1e-6))
      CHECK_FAIL("token %zu: %f, expected %f", i, (double)logprobs[i], expected);
  }
}

TEST(every_token_is_scored_in_the_largest_steps_that_fit) {
  static const size_t counts[] = {1, 7, 8, 9, 60};
  for (size_t i = 0; i < sizeof counts / sizeof *counts; ++i) {
    fake_t fake = make_fake();
    rig_t rig = start(&fake);
    CHECK_OK(mlx_session_score(rig.session, ids, counts[i] + 1, logprobs, NULL, NULL));
    CHECK_INT(done_of(&rig), counts[i]);
    CHECK_INT(fake.steps, (counts[i] + 7) / 8);
    CHECK_INT(fake.largest, counts[i] < 8 ? counts[i] : 8);
    CHECK_INT(fake.most_open, fake.steps < 2 ? fake.steps : 2);
    check_logprobs(counts[i]);
    CHECK_ERROR(mlx_session_score(rig.session, ids, 1, logprobs, NULL, NULL), MLX_USAGE,
                "at least two tokens");
    stop(&rig);
  }
}

typedef struct texts_seen {
  mlx_texts_t texts;
  size_t ended;
} texts_seen_t;

static void on_text(void *user, size_t index) {
  texts_seen_t *seen = user;
  const mlx_texts_t *texts = &seen->texts;
  const size_t scored = texts->length - 1 - texts->context;
  CHECK_INT(index, seen->ended++);
  for (size_t i = 0; i < scored; ++i) {
    const int32_t *at = ids + index * texts->length + texts->context + i;
    const double expected = logprob_of(at[0], BEFORE + (int32_t)(texts->context + i), at[1]);
    CHECK(fabs(logprobs[index * scored + i] - expected) < 1e-6);
  }
}

static void score_texts(rig_t *rig, size_t count, size_t length, size_t context) {
  texts_seen_t seen = {.texts = {.ids = ids,
                                 .count = count,
                                 .length = length,
                                 .context = context,
                                 .logprobs = logprobs,
                                 .on_text = on_text,
                                 .user = &seen}};
  CHECK_OK(mlx_session_score_texts(rig->session, &seen.texts));
  CHECK_INT(seen.ended, count);
  CHECK_INT(done_of(rig), 0);
}

// Three texts of 20 tokens. With |fits|, a step has at most 2 wanted tokens beside the 11 of the context.
TEST(texts_are_queued_one_after_the_other_and_their_contexts_are_not_scored) {
  for (int limited = 0; limited < 2; ++limited) {
    fake_t fake = make_fake();
    if (!limited) fake.stepper.fits = NULL;
    rig_t rig = start(&fake);
    score_texts(&rig, 3, 20, 11);
    CHECK_INT(fake.read, 3 * 19);
    CHECK_INT(fake.steps, limited ? 6 : 3);
    CHECK_INT(fake.most_open, 2);
    stop(&rig);
  }
  fake_t fake = make_fake();  // a context of several steps, of which some have no scored token
  fake.stepper.max_tokens = 19;
  rig_t rig = start(&fake);
  score_texts(&rig, 1, 60, 57);
  CHECK_INT(fake.read, 59);
  CHECK_INT(fake.steps, 4);
  stop(&rig);
}

TEST(logits_are_passed_before_the_next_step_overwrites_them) {
  for (int samples = 0; samples < 2; ++samples) {
    fake_t fake = make_fake();
    seen_t seen = {.ids = ids};
    fake.stepper.samples = samples;
    rig_t rig = start(&fake);
    CHECK_OK(mlx_session_score(rig.session, ids, 61, logprobs, on_logits, &seen));
    CHECK_INT(seen.count, 60);
    CHECK(!seen.wrong);
    CHECK_INT(fake.most_open, 1);
    check_logprobs(60);
    stop(&rig);
  }
}

TEST(a_stepper_that_cannot_sample_is_scored_from_its_logits) {
  fake_t fake = make_fake();
  fake.stepper.samples = false;
  fake.stepper.fits = NULL;
  rig_t rig = start(&fake);
  CHECK_OK(mlx_session_score(rig.session, ids, 61, logprobs, NULL, NULL));
  CHECK_INT(fake.largest, 32);
  check_logprobs(60);
  stop(&rig);
}

static void check_failure(fake_t *fake, seen_t *seen, mlx_code_t code, const char *part, size_t *out_done) {
  rig_t rig = start(fake);
  CHECK_ERROR(mlx_session_score(rig.session, ids, 61, logprobs, seen ? on_logits : NULL, seen), code, part);
  CHECK_INT(fake->open, 0);
  *out_done = done_of(&rig);
  check_logprobs(*out_done);
  stop(&rig);
}

TEST(a_failure_closes_the_queue_and_keeps_what_is_done) {
  fake_t fake;
  size_t done;
  for (size_t step = 1; step <= 8; ++step) {
    fake = make_fake();
    fake.fail_submit = step;
    check_failure(&fake, NULL, MLX_UNAVAILABLE, "submit failed", &done);
    CHECK(done <= 8 * (step - 1));
    fake = make_fake();
    fake.fail_wait = step;
    check_failure(&fake, NULL, MLX_UNAVAILABLE, "wait failed", &done);
    CHECK_INT(done, 8 * (step - 1));
  }
  fake = make_fake();
  fake.bad_position = 120;
  check_failure(&fake, NULL, MLX_INVALID_INPUT, "not finite: after 121 tokens", &done);
  CHECK_INT(done, 20);
  fake = make_fake();
  seen_t seen = {.ids = ids, .stop_at = 11};
  check_failure(&fake, &seen, MLX_IO, "the disk is full", &done);
  CHECK_INT(done, 10);
}

TEST_MAIN(CASE(every_token_is_scored_in_the_largest_steps_that_fit),
          CASE(texts_are_queued_one_after_the_other_and_their_contexts_are_not_scored),
          CASE(logits_are_passed_before_the_next_step_overwrites_them),
          CASE(a_stepper_that_cannot_sample_is_scored_from_its_logits),
          CASE(a_failure_closes_the_queue_and_keeps_what_is_done))
