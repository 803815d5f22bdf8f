// Sessions on the simulated module, beside requests: they run in the same steps, and each gets the tokens,
// the logits and the log-probabilities that it gets alone.
#include "runtime/session.h"

#include "tests/runtime/scheduler_rig.h"

#define SESSIONS 3
#define JOBS 10
#define MOST_LENGTH 90  // positions of a session

static uint64_t random_state;
static size_t random_below(size_t limit) {
  random_state = fake_mix(random_state, 1);
  return (size_t)(random_state % limit);
}

typedef struct talk {  // a session, and the tokens that it must have
  mlx_session_t *session;
  int32_t ids[LONGEST], next;
  size_t count;
  bool has_next;
} talk_t;

typedef struct totals {
  size_t calls, beside, failures, restored;  // |beside|: calls while requests ran
} totals_t;

// The logits after |count| tokens, and the most likely token.
static int32_t read_alone(const rig_t *rig, const int32_t *ids, size_t count, float *out_logits) {
  static alone_t alone;
  uint64_t state = 0;
  int32_t best = 0;
  for (size_t i = 0; i < count; ++i) state = feed_alone(&rig->fake.base, ids[i], i, &alone, state);
  fake_logits(state, rig->fake.base.window ? 0 : ids[0], ids[count - 1], out_logits);
  for (int32_t i = 1; i < FAKE_VOCAB; ++i) best = out_logits[i] > out_logits[best] ? i : best;
  return best;
}

static int32_t *add_tokens(talk_t *talk, size_t count) {
  int32_t *ids = talk->ids + talk->count;
  for (size_t i = 0; i < count; ++i) ids[i] = 10 + (int32_t)random_below(300);
  return ids;
}

// Checks that a call failed because requests have all pages, and left the sequence as it was.
static void check_no_page(talk_t *talk, mlx_status_t status, totals_t *totals) {
  const mlx_code_t code = mlx_status_code(status);
  if (code != MLX_UNAVAILABLE && code != MLX_OUT_OF_MEMORY) CHECK_OK(status);
  ++totals->failures;
  talk->has_next = talk->session->has_next;
  mlx_status_free(status);
}

static void read_tokens(const rig_t *rig, talk_t *talk, totals_t *totals) {
  float logits[FAKE_VOCAB];
  int32_t next;
  const size_t count = 1 + random_below(30);
  if (talk->count + count > MOST_LENGTH) return;
  const int32_t *ids = add_tokens(talk, count);
  mlx_status_t status = mlx_session_read(talk->session, ids, count, &next);
  if (status) {
    check_no_page(talk, status, totals);
    return;
  }
  talk->count += count;
  talk->has_next = true;
  talk->next = read_alone(rig, talk->ids, talk->count, logits);
  CHECK_INT(next, talk->next);
}

static void decode(const rig_t *rig, talk_t *talk, totals_t *totals) {
  float logits[FAKE_VOCAB];
  int32_t ids[20];
  const size_t count = random_below(20);
  if (!talk->has_next || talk->count + count > MOST_LENGTH) return;
  mlx_status_t status = mlx_session_steps(talk->session, ids, count);
  if (status) {
    check_no_page(talk, status, totals);
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    talk->ids[talk->count++] = talk->next;
    talk->next = read_alone(rig, talk->ids, talk->count, logits);
    CHECK_INT(ids[i], talk->next);
  }
}

static void generate(const rig_t *rig, talk_t *talk, totals_t *totals) {
  float logits[FAKE_VOCAB];
  mlx_generate_options_t options;
  mlx_generation_t g;
  mlx_generate_options_initialize(&options);
  options.max_tokens = 1 + (int64_t)random_below(12);
  options.ignore_eos = true;
  const size_t count = 1 + random_below(20);
  if (talk->count + count + (size_t)options.max_tokens > MOST_LENGTH) return;
  const int32_t *ids = add_tokens(talk, count);
  mlx_status_t status = mlx_session_generate(talk->session, ids, count, &options, &g);
  if (status) {
    check_no_page(talk, status, totals);
    return;
  }
  CHECK_INT(g.count, options.max_tokens);
  talk->count += count;
  for (size_t i = 0; i < g.count; ++i) {
    const int32_t expected = read_alone(rig, talk->ids, talk->count, logits);
    CHECK_INT(g.ids[i], expected);
    if (i + 1 < g.count) talk->ids[talk->count++] = expected;
  }
  talk->has_next = false;
  mlx_generation_clear(&g);
}

static void score(const rig_t *rig, talk_t *talk, totals_t *totals) {
  float logits[FAKE_VOCAB], logprobs[12];
  const size_t count = 2 + random_below(10);
  mlx_logprob_t expected;
  if (talk->count + count > MOST_LENGTH) return;
  const int32_t *ids = add_tokens(talk, count);
  mlx_status_t status = mlx_session_score(talk->session, ids, count, logprobs, NULL, NULL);
  if (status) {
    check_no_page(talk, status, totals);
    return;
  }
  for (size_t i = 0; i + 1 < count; ++i) {
    read_alone(rig, talk->ids, ++talk->count, logits);
    CHECK_OK(mlx_logprobs(logits, FAKE_VOCAB, ids[i + 1], 0, &expected));
    CHECK(fabs((double)logprobs[i] - expected.logprob) < 1e-5);
  }
  talk->has_next = false;
}

static void check_logits(const rig_t *rig, talk_t *talk) {
  float logits[FAKE_VOCAB], expected[FAKE_VOCAB];
  mlx_status_t status = mlx_session_logits(talk->session, logits, FAKE_VOCAB);
  if (talk->has_next) {
    CHECK_OK(status);
    read_alone(rig, talk->ids, talk->count, expected);
    CHECK(!memcmp(logits, expected, sizeof expected));
  } else {
    CHECK_ERROR(status, MLX_USAGE, "must read at least one token first");
  }
}

static void rewind_session(talk_t *talk, totals_t *totals) {
  const size_t length = random_below(talk->count + 1);
  if (length == talk->count) return;
  CHECK_OK(mlx_session_rewind(talk->session, (int64_t)length));
  totals->restored += talk->session->ring_first > 0;
  talk->count = length;
  talk->has_next = false;
}

static void call_session(const rig_t *rig, talk_t *talk, totals_t *totals) {
  ++totals->calls;
  totals->beside += mlx_scheduler_stats(rig->scheduler).running > 0;
  switch (random_below(6)) {
    case 0: read_tokens(rig, talk, totals); break;
    case 1: decode(rig, talk, totals); break;
    case 2: generate(rig, talk, totals); break;
    case 3: score(rig, talk, totals); break;
    case 4: rewind_session(talk, totals); break;
    default: check_logits(rig, talk); break;
  }
  CHECK_INT(mlx_session_length(talk->session), (int64_t)talk->count);
  CHECK_OK(mlx_pool_check(rig->pool));
}

static rig_t random_rig(void) {
  rig_t rig = plain_rig(SESSIONS + 3, 29 + (int64_t)random_below(6));
  rig.fake.base.ragged = random_below(4) != 0;
  rig.fake.base.samples = random_below(4) != 0;
  rig.fake.base.burst = random_below(2) ? 8 : 0;
  if (!rig.fake.base.samples) rig.fake.base.burst = 0;
  if (random_below(3)) return rig;
  rig.fake.base.max_tokens = 16;  // so that the ring of a session is shorter than the session
  rig.fake.base.window = 5;
  rig.fake.base.window_pages = 1 + (SESSIONS + 3) * MLX_WINDOW_PAGES_HELD(5, 16);
  return rig;
}

static void run_mix(uint64_t seed, totals_t *totals) {
  static job_t jobs[JOBS];
  static talk_t talks[SESSIONS];
  mlx_scheduler_options_t options;
  random_state = seed;
  rig_t rig = random_rig();
  mlx_scheduler_options_initialize(&options);
  options.share_prefixes = random_below(3) != 0;
  options.max_batch_tokens = random_below(2) ? 0 : 8 + (int64_t)random_below(30);
  start(&rig, 256, &options);
  for (int i = 0; i < SESSIONS; ++i) {
    talks[i] = (talk_t){0};
    CHECK_OK(mlx_session_create_on(rig.scheduler, &talks[i].session));
  }
  size_t submitted = 0;
  for (bool idle = true; submitted < JOBS || !idle;) {
    if (submitted < JOBS && !random_below(3)) {
      job_t *job = &jobs[submitted++];
      make_job(job, random_below(3), random_below(40), 1 + random_below(90), random_below(20));
      job->options.max_tokens = (int64_t)random_below(40);
      job->options.priority = (int64_t)random_below(3);
      submit(&rig, job);
    }
    for (size_t i = random_below(4); i > 0; --i) call_session(&rig, &talks[random_below(SESSIONS)], totals);
    idle = step(&rig);
  }
  for (int i = 0; i < JOBS; ++i) check_job(&jobs[i], &rig, i);
  for (int i = 0; i < JOBS; ++i) release(&jobs[i]);
  for (int i = 0; i < SESSIONS; ++i) mlx_session_free(talks[i].session);
  stop(&rig);
}

TEST(sessions_and_requests_share_steps_and_get_the_tokens_that_they_get_alone) {
  totals_t t = {0};
  for (uint64_t seed = 1; seed <= 300; ++seed) run_mix(seed, &t);
  fprintf(stderr,
          "  %zu calls of sessions, %zu of them beside requests; %zu without a free page, %zu rewound\n",
          t.calls, t.beside, t.failures, t.restored);
  CHECK(t.beside > 1000 && t.failures > 0 && t.restored > 0);
}

// All tokens of a call that streams no text are decoded in as few bursts as possible.
TEST(steps_of_a_session_are_decoded_in_the_largest_bursts) {
  rig_t rig = plain_rig(1, 40);
  mlx_scheduler_options_t options = {0};
  mlx_session_t *session;
  int32_t ids[100], next;
  const int32_t prompt[] = {11, 12, 13};
  rig.fake.base.burst = 32;
  start(&rig, 256, &options);
  CHECK_OK(mlx_session_create_on(rig.scheduler, &session));
  CHECK_OK(mlx_session_read(session, prompt, 3, &next));
  CHECK_OK(mlx_session_steps(session, ids, 100));
  CHECK_INT(rig.fake.bursts, 4);
  CHECK_INT(mlx_scheduler_stats(rig.scheduler).steps, 1 + 4);
  CHECK_OK(mlx_session_steps(session, ids, 33));  // a burst and a step
  CHECK_INT(rig.fake.bursts, 5);
  CHECK_INT(mlx_scheduler_stats(rig.scheduler).steps, 1 + 4 + 2);
  mlx_session_free(session);
  stop(&rig);
}

// A failed step ends the call. The session can read on.
TEST(a_session_goes_on_after_a_failed_step) {
  rig_t rig = plain_rig(1, 40);
  mlx_scheduler_options_t options = {0};
  mlx_session_t *session;
  int32_t ids[100], next;
  float logits[FAKE_VOCAB];
  for (int i = 0; i < 100; ++i) ids[i] = 20 + i;
  start(&rig, 256, &options);
  CHECK_OK(mlx_session_create_on(rig.scheduler, &session));
  CHECK_OK(mlx_session_read(session, ids, 10, &next));
  rig.fake.steps = 0;
  rig.fake.fail_at = 1;
  CHECK_ERROR(mlx_session_read(session, ids + 10, 90, &next), MLX_UNAVAILABLE, "the simulated device failed");
  CHECK_INT(mlx_session_length(session), 10);
  CHECK_ERROR(mlx_session_step(session, &next), MLX_USAGE, "must read at least one token first");
  CHECK_OK(mlx_session_read(session, ids + 10, 90, &next));
  CHECK_INT(next, read_alone(&rig, ids, 100, logits));
  mlx_session_free(session);
  stop(&rig);
}

// Two sessions take turns. Allocation number |target| fails; 0: none. Then the first one can go on.
static void run_with_fault(long target) {
  const char *stop_text = "xyzzy";
  mlx_session_t *sessions[2] = {NULL};
  mlx_generate_options_t options;
  mlx_generation_t g;
  int32_t ids[40], next;
  float logits[FAKE_VOCAB], logprobs[9];
  rig_t rig = plain_rig(2, 12);
  for (int i = 0; i < 40; ++i) ids[i] = 20 + i;
  mlx_generate_options_initialize(&options);
  options.max_tokens = 3;
  options.stops = &stop_text;
  options.stop_count = 1;
  start(&rig, 128, &(mlx_scheduler_options_t){0});
  memory.count = memory.live = 0;
  memory.target = target;
  mlx_memory_set_calls(&counting_memory);
  for (int i = 0; i < 2; ++i) mlx_status_free(mlx_session_create_on(rig.scheduler, &sessions[i]));
  for (int i = 0; i < 2 && sessions[i]; ++i) {
    mlx_status_free(mlx_session_read(sessions[i], ids, 17, &next));
    if (!i) mlx_status_free(mlx_session_steps(sessions[i], ids + 20, 9));
  }
  if (sessions[0]) mlx_status_free(mlx_session_logits(sessions[0], logits, FAKE_VOCAB));
  for (int i = 0; i < 2 && sessions[i]; ++i) {
    mlx_status_free(mlx_session_score(sessions[i], ids, 10, logprobs, NULL, NULL));
    mlx_status_free(mlx_session_generate(sessions[i], ids, 5, &options, &g));
    mlx_generation_clear(&g);
  }
  if (sessions[0] && memory.count >= target) {
    CHECK_OK(mlx_session_rewind(sessions[0], 0));
    CHECK_OK(mlx_session_read(sessions[0], ids, 20, &next));
    CHECK_INT(next, read_alone(&rig, ids, 20, logits));
  }
  for (int i = 0; i < 2; ++i) mlx_session_free(sessions[i]);
  stop(&rig);
  mlx_memory_set_calls(NULL);
}

TEST(a_failed_allocation_leaves_a_session_usable_and_leaks_nothing) {
  run_with_fault(0);  // creates what all tests share
  run_with_fault(0);
  const long live = memory.live;  // less than 0: blocks of start, which were not counted
  long target = 1;
  for (;; ++target) {
    run_with_fault(target);
    if (memory.count < target) break;
    CHECK_INT(memory.live, live);
  }
  fprintf(stderr, "  %ld allocations\n", target);
  CHECK(target > 40);
}

TEST_MAIN(CASE(sessions_and_requests_share_steps_and_get_the_tokens_that_they_get_alone),
          CASE(steps_of_a_session_are_decoded_in_the_largest_bursts),
          CASE(a_session_goes_on_after_a_failed_step),
          CASE(a_failed_allocation_leaves_a_session_usable_and_leaks_nothing))
