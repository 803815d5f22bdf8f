// The scheduler on a simulated module: a crowd of requests changes the tokens of none of them.
#include "tests/runtime/scheduler_rig.h"

// ----------------------------------------------------------------------------------------------------------
// Random mixes

static uint64_t random_state;
static int64_t random_below(int64_t limit) {
  random_state = fake_mix(random_state, 1);
  return (int64_t)(random_state % (uint64_t)limit);
}

static void random_sampling(job_t *job) {
  mlx_sampling_initialize(&job->sampling);
  job->sampling.seed = (uint64_t)random_below(100);
  job->options.sampling = &job->sampling;
  if (!random_below(3)) job->sampling.presence_penalty = 0.5;
  if (!random_below(6)) job->sampling.dry_multiplier = 0.8;  // only on the host
  if (!random_below(8)) job->sampling.mirostat = 2;
  if (random_below(3)) return;
  job->bias = (mlx_logit_bias_t){(int32_t)random_below(300) + 10, 1.5};
  job->sampling.biases = &job->bias;
  job->sampling.bias_count = 1;
}

static void random_job(job_t *job, int64_t most_tokens) {
  static const char *const stops[] = {"a", "e t", "ox", "q"};
  const size_t shared = (size_t)random_below(60), wanted = random_below(4)
                                                               ? shared + 1 + (size_t)random_below(25)
                                                               : (size_t)random_below(most_tokens);
  const size_t count = wanted < 1 ? 1 : wanted < (size_t)most_tokens ? wanted : (size_t)most_tokens;
  make_job(job, (uint64_t)random_below(3), shared, count, (uint64_t)random_below(50));
  job->options.max_tokens = random_below(8) ? random_below(40) : -1;
  job->options.ignore_eos = random_below(3) == 0 && job->options.max_tokens >= 0;
  job->options.priority = random_below(3) ? 0 : random_below(4) - 1;
  job->options.logprobs = random_below(4) ? -1 : random_below(5) ? random_below(4) : 25;
  if (random_below(2)) random_sampling(job);
  if (!random_below(6)) job->options.grammar = grammar;
  if (!random_below(3)) {
    job->options.stops = stops + random_below(3);
    job->options.stop_count = 1 + (size_t)random_below(2);
  }
  if (!random_below(5)) job->options.prompt_logprobs = random_below(5) ? random_below(4) : 25;
  const bool fails = job->options.prompt_logprobs < 0 || job->options.max_tokens;
  if (!random_below(20) && fails) job->ids[0] = FAKE_POISON;
  if (!random_below(4)) job->cancel = (int)random_below(40);
  if (!random_below(12)) job->heard.limit = 1 + (size_t)random_below(10);
  job->arrival = random_below(3) ? (int)random_below(25) : 0;
}

// As the next turn of a chat: the prompt is that of |before|, its whole output, and more.
static void continue_job(job_t *job, const job_t *before, const rig_t *rig) {
  mlx_output_t output;
  mlx_status_free(generate_alone(&before->options, rig, before->ids, before->count, &output));
  const mlx_generation_t *g = &output.generation;
  if (before->count + g->count + job->count <= (size_t)rig->positions) {
    memmove(job->ids + before->count + g->count, job->ids, job->count * sizeof *job->ids);
    memcpy(job->ids, before->ids, before->count * sizeof *job->ids);
    if (g->count) memcpy(job->ids + before->count, g->ids, g->count * sizeof *job->ids);
    job->count += before->count + g->count;
    job->arrival = before->arrival + (int)random_below(60);
  }
  mlx_output_clear(&output);
}

// So that the budget of prompts limits their chunks.
static double step_seconds(int64_t tokens) { return 0.01 * (double)(1 + tokens + tokens % 3); }

static void random_rig(rig_t *rig, mlx_scheduler_options_t *options) {
  *rig = plain_rig(1 + random_below(6), 0);
  mlx_stepper_t *base = &rig->fake.base;
  base->max_tokens = 1 + random_below(random_below(2) ? 12 : 64);
  base->max_wanted = 1 + random_below(base->max_tokens);
  base->slot_pages = 3 + random_below(10);
  base->pool_pages = 4 + random_below(random_below(2) ? 10 : 60);
  base->ragged = random_below(4) != 0;
  base->samples = random_below(8) != 0;
  base->burst = random_below(2) ? 0 : 1 + random_below(MLX_BURST_TOKENS);
  base->window = random_below(3) ? 0 : 1 + random_below(random_below(2) ? 8 : 60);
  if (!random_below(3)) {  // as the GPU's functions: few wanted tokens of many, or the reverse
    base->max_tokens = 48;
    base->max_wanted = 16;
    rig->fake.buckets[0][0] = rig->fake.buckets[0][1] = 16;
    rig->fake.buckets[1][0] = 48;
    rig->fake.buckets[1][1] = 2;
  }
  if (base->window && random_below(2)) {
    const int64_t held =
        MLX_WINDOW_PAGES_HELD(base->window, base->max_tokens > base->burst ? base->max_tokens : base->burst);
    base->window_pages =
        1 + (held < base->slot_pages ? held : base->slot_pages) + random_below(random_below(2) ? 6 : 40);
  }
  mlx_scheduler_options_initialize(options);
  options->share_prefixes = random_below(4) != 0;
  options->max_prompt_chunk = random_below(2) ? 0 : 1 + random_below(32);
  options->max_running = random_below(3) ? 0 : 1 + random_below(4);
  options->max_batch_tokens = random_below(3) ? 0 : 1 + random_below(32);
  options->count_near_ties = random_below(4) == 0;
  if (random_below(2))
    rig->mask_work = 200 + (uint64_t)random_below(4000);  // sequences with grammars miss steps
}

typedef struct totals {
  int64_t tokens, requests, mixes, preemptions, prefix_hits, bursts, copies, mixed, deep, near_ties,
      cancelled, failed, stopped;
} totals_t;

static void add_totals(totals_t *totals, const rig_t *rig, const job_t *jobs, int count) {
  const mlx_scheduler_stats_t stats = mlx_scheduler_stats(rig->scheduler);
  totals->tokens += stats.output_tokens;
  totals->requests += count;
  totals->preemptions += stats.preemptions;
  totals->prefix_hits += stats.prefix_hits;
  totals->near_ties += stats.near_ties;
  totals->bursts += rig->fake.bursts;
  totals->copies += rig->fake.copies;
  totals->mixed += rig->fake.mixed;
  totals->deep += rig->fake.most_open == 2;
  ++totals->mixes;
  for (int i = 0; i < count; ++i) {
    const mlx_finish_reason_t reason = mlx_request_generation(jobs[i].request)->finish_reason;
    totals->cancelled += reason == MLX_FINISH_CANCELLED;
    totals->failed += reason == MLX_FINISH_ERROR;
    totals->stopped += reason == MLX_FINISH_STOP;
  }
}

static void run_mix(uint64_t seed, totals_t *totals) {
  static job_t jobs[MOST];
  rig_t rig;
  mlx_scheduler_options_t options;
  language_of(0);
  random_state = seed * 7919 + 1;
  random_rig(&rig, &options);
  options.prefill_share = (double)(seed % 11) / 10;  // 0: the default
  rig.fake.seconds = seed % 2 ? step_seconds : NULL;
  start(&rig, 16 + random_below(200), &options);
  const int count = 1 + (int)random_below(MOST);
  int arrived = 0;
  for (int i = 0; i < count; ++i) {
    random_job(&jobs[i], rig.positions);
    if (i && random_below(2)) continue_job(&jobs[i], &jobs[random_below(i)], &rig);
  }
  bool idle = false;
  for (int now = 0; !idle || arrived < count; ++now) {
    if (now > 20000) CHECK_FAIL("mix %llu does not end", (unsigned long long)seed);
    for (int i = 0; i < count; ++i) {
      if (jobs[i].arrival == now) {
        submit(&rig, &jobs[i]);
        ++arrived;
      }
      if (jobs[i].cancel == now && jobs[i].request) mlx_request_cancel(jobs[i].request);
    }
    idle = step(&rig);
  }
  for (int i = 0; i < count; ++i) check_job(&jobs[i], &rig, i);
  add_totals(totals, &rig, jobs, count);
  for (int i = 0; i < count; ++i) release(&jobs[i]);
  stop(&rig);
}

TEST(a_crowd_changes_the_tokens_of_no_request) {
  totals_t t = {0};
  for (uint64_t seed = 0; seed < (MLXCEL_SANITIZED ? 300 : 1500); ++seed) run_mix(seed, &t);
  fprintf(
      stderr,
      "  %lld mixes: %lld requests, %lld tokens; %lld preemptions, %lld tokens from shared prefixes, %lld "
      "copied pages, %lld bursts,\n  %lld steps with prompts and decodes, %lld mixes with two queued steps, "
      "%lld near ties; %lld stopped, %lld cancelled, %lld failed\n",
      (long long)t.mixes, (long long)t.requests, (long long)t.tokens, (long long)t.preemptions,
      (long long)t.prefix_hits, (long long)t.copies, (long long)t.bursts, (long long)t.mixed,
      (long long)t.deep, (long long)t.near_ties, (long long)t.stopped, (long long)t.cancelled,
      (long long)t.failed);
  CHECK(t.preemptions > 100 && t.prefix_hits > 1000 && t.copies > 100 && t.bursts > 100 && t.mixed > 100);
  CHECK(t.deep > 100 && t.stopped > 100 && t.cancelled > 100 && t.failed > 20);
}

// ----------------------------------------------------------------------------------------------------------
// Single promises

TEST(a_step_is_queued_before_the_last_one_is_read) {
  mlx_scheduler_options_t options;
  mlx_scheduler_options_initialize(&options);
  static job_t jobs[2];
  for (int grammars = 0; grammars < 2; ++grammars) {
    rig_t rig = plain_rig(2, 40);
    start(&rig, 256, &options);
    for (int i = 0; i < 2; ++i) {
      make_job(&jobs[i], 1, 0, 10, (uint64_t)i);
      jobs[i].options.max_tokens = 20;
      jobs[i].options.ignore_eos = true;
      if (grammars && i) jobs[i].options.grammar = grammar;  // the host must see each token
      submit(&rig, &jobs[i]);
    }
    step(&rig);
    CHECK_INT(rig.fake.most_open, grammars ? 1 : 2);
    if (!grammars) {
      // 20 tokens of both in 20 steps: no step is empty, and none is queued after the last token.
      while (!step(&rig)) continue;
      CHECK_INT(mlx_scheduler_stats(rig.scheduler).steps, 20);
    }
    CHECK_OK(mlx_scheduler_run(rig.scheduler));
    for (int i = 0; i < 2; ++i) check_job(&jobs[i], &rig, i);
    for (int i = 0; i < 2; ++i) release(&jobs[i]);
    stop(&rig);
  }
}

// The grammar spells a special token: the token itself matches, and so do tokens that spell it.
TEST(a_grammar_may_require_a_visible_special_token) {
  static const char text[] = "root ::= \"<|im_start|>\" [a-f] \"<|im_end|>\"?";
  static const char *const visible[] = {"<|im_start|>", "<|im_end|>"};
  mlx_scheduler_options_t options;
  mlx_scheduler_options_initialize(&options);
  mlx_grammar_t *special;
  CHECK_OK(mlx_grammar_create("special", text, sizeof text - 1, &special));
  static job_t jobs[32];
  rig_t rig = plain_rig(4, 60);
  start(&rig, 256, &options);
  for (int i = 0; i < 32; ++i) {
    make_job(&jobs[i], 1, 0, 10, (uint64_t)i);
    jobs[i].options.max_tokens = 40;
    jobs[i].options.grammar = special;
    jobs[i].options.visible_tokens = visible;
    jobs[i].options.visible_token_count = i % 2 ? 2 : 0;
    submit(&rig, &jobs[i]);
  }
  CHECK_OK(mlx_scheduler_run(rig.scheduler));
  int used[2] = {0};
  for (int i = 0; i < 32; ++i) {
    const mlx_generation_t *g = mlx_request_generation(jobs[i].request);
    for (size_t n = 0; n < g->count; ++n) used[i % 2] += g->ids[n] == 1;
    CHECK(!strncmp(g->text, "<|im_start|>", 12));
    check_job(&jobs[i], &rig, i);
    release(&jobs[i]);
  }
  CHECK_INT(used[0], 0);
  CHECK(used[1] > 0);
  stop(&rig);
  mlx_grammar_free(special);
}

TEST(long_prompts_do_not_stop_running_requests) {
  mlx_scheduler_options_t options;
  mlx_scheduler_options_initialize(&options);
  options.max_prompt_chunk = 8;
  static job_t jobs[5];
  rig_t rig = plain_rig(5, 80);
  start(&rig, 256, &options);
  for (int i = 0; i < 5; ++i) {
    make_job(&jobs[i], (uint64_t)i, 0, i < 3 ? 5 : 100, 0);
    jobs[i].options.max_tokens = 60;
    jobs[i].options.ignore_eos = true;
  }
  for (int i = 0; i < 3; ++i) submit(&rig, &jobs[i]);
  for (int i = 0; i < 4; ++i) step(&rig);
  for (int i = 3; i < 5; ++i) submit(&rig, &jobs[i]);
  size_t before = mlx_request_generation(jobs[0].request)->count;
  rig.fake.largest_chunk = 0;
  for (int i = 0; i < 20; ++i) {  // each step still gives each running request a token
    step(&rig);
    for (int j = 0; j < 3; ++j) CHECK_INT(mlx_request_generation(jobs[j].request)->count, before + 1);
    ++before;
  }
  CHECK_INT(rig.fake.largest_chunk, 8);
  CHECK_OK(mlx_scheduler_run(rig.scheduler));
  for (int i = 0; i < 5; ++i) check_job(&jobs[i], &rig, i);
  for (int i = 0; i < 5; ++i) release(&jobs[i]);
  stop(&rig);
}

static size_t prompt_calls, prompt_done, prompt_total;

static void on_prompt(void *user, size_t done, size_t total) {
  (void)user;
  CHECK(!prompt_calls || done > prompt_done);
  ++prompt_calls;
  prompt_done = done;
  prompt_total = total;
}

TEST(progress_of_a_long_prompt_is_reported_until_the_first_token) {
  mlx_scheduler_options_t options;
  mlx_scheduler_options_initialize(&options);
  static job_t job;
  rig_t rig = plain_rig(1, 80);
  start(&rig, 256, &options);
  make_job(&job, 1, 0, 100, 0);
  job.options.on_prompt = on_prompt;
  job.options.max_tokens = 3;
  submit(&rig, &job);
  while (!mlx_request_generation(job.request)->count) {
    CHECK(!prompt_calls || prompt_done < prompt_total);
    step(&rig);
  }
  const size_t calls = prompt_calls;
  CHECK(calls > 2);  // at least two chunks, and the end
  CHECK_INT(prompt_done, 100);
  CHECK_INT(prompt_total, 100);
  CHECK_OK(mlx_scheduler_run(rig.scheduler));
  CHECK_INT(prompt_calls, calls);
  release(&job);
  stop(&rig);
}

// 15 decodes leave room for one more token in the first size of step; the second has room for a prompt.
TEST(a_prompt_is_read_even_if_decodes_fill_the_steps) {
  mlx_scheduler_options_t options;
  mlx_scheduler_options_initialize(&options);
  static job_t jobs[16];
  rig_t rig = plain_rig(16, 200);
  rig.fake.base.max_wanted = 16;
  rig.fake.buckets[0][0] = rig.fake.buckets[0][1] = 16;
  rig.fake.buckets[1][0] = 64;
  rig.fake.buckets[1][1] = 4;
  start(&rig, 256, &options);
  for (int i = 0; i < 16; ++i) {
    make_job(&jobs[i], (uint64_t)i, 0, i < 15 ? 2 : 100, 0);
    jobs[i].options.max_tokens = 100;
    jobs[i].options.ignore_eos = true;
  }
  for (int i = 0; i < 15; ++i) submit(&rig, &jobs[i]);
  for (int i = 0; i < 4; ++i) step(&rig);
  submit(&rig, &jobs[15]);
  int steps = 0;
  while (!mlx_request_generation(jobs[15].request)->count) {
    step(&rig);
    ++steps;
  }
  CHECK(steps < 20);  // 100 steps with one token each
  for (int i = 0; i < 15; ++i) CHECK((int)mlx_request_generation(jobs[i].request)->count >= steps / 2);
  CHECK_OK(mlx_scheduler_run(rig.scheduler));
  for (int i = 0; i < 16; ++i) check_job(&jobs[i], &rig, i);
  for (int i = 0; i < 16; ++i) release(&jobs[i]);
  stop(&rig);
}

TEST(a_lone_request_is_decoded_in_growing_bursts) {
  mlx_scheduler_options_t options;
  mlx_scheduler_options_initialize(&options);
  static job_t job;
  rig_t rig = plain_rig(2, 40);
  rig.fake.base.burst = MLX_BURST_TOKENS;
  rig.fake.base.slot_pages = 30;
  start(&rig, 400, &options);
  make_job(&job, 1, 0, 30, 0);
  job.options.max_tokens = 300;
  job.options.ignore_eos = true;
  submit(&rig, &job);
  CHECK_OK(mlx_scheduler_run(rig.scheduler));
  check_job(&job, &rig, 0);
  // 1, 8, 40, 128, 122 tokens after the first one, unless the machine is so slow that bursts are limited.
  CHECK(rig.fake.bursts >= 5 && rig.fake.bursts <= 12 && rig.fake.burst_tokens == 299);
  CHECK(job.heard.calls >= 6 && job.heard.calls < 60);
  release(&job);
  stop(&rig);
}

TEST(equal_prefixes_share_pages_and_the_partial_page_is_copied) {
  mlx_scheduler_options_t options;
  static job_t jobs[3];
  for (int share = 0; share < 2; ++share) {
    rig_t rig = plain_rig(3, 40);
    mlx_scheduler_options_initialize(&options);
    options.share_prefixes = share;
    start(&rig, 256, &options);
    for (int i = 0; i < 3; ++i) {  // 2 full pages and 8 tokens are equal
      make_job(&jobs[i], 5, 40, 45, (uint64_t)i);
      jobs[i].options.max_tokens = 12;
      jobs[i].options.ignore_eos = true;
      submit(&rig, &jobs[i]);
      if (!i) CHECK_OK(mlx_scheduler_run(rig.scheduler));
    }
    step(&rig);
    const mlx_scheduler_stats_t stats = mlx_scheduler_stats(rig.scheduler);
    CHECK_INT(stats.prefix_hits, share ? 80 : 0);
    CHECK_INT(rig.fake.copies, share ? 2 : 0);
    CHECK_INT(stats.pages_used, share ? 4 : 6);
    CHECK_OK(mlx_scheduler_run(rig.scheduler));
    for (int i = 0; i < 3; ++i) check_job(&jobs[i], &rig, i);
    for (int i = 0; i < 3; ++i) release(&jobs[i]);
    stop(&rig);
  }
}

// All tokens but the first get a log-probability, also those whose pages could be shared, and also if no
// token is generated.
TEST(prompt_tokens_are_scored) {
  static job_t jobs[4];
  mlx_scheduler_options_t options;
  mlx_scheduler_options_initialize(&options);
  for (int samples = 0; samples < 2; ++samples) {
    rig_t rig = plain_rig(4, 60);
    rig.fake.base.samples = samples;
    start(&rig, 256, &options);
    for (int i = 0; i < 4; ++i) {
      make_job(&jobs[i], 5, 40, i == 3 ? 1 : 100, (uint64_t)i);
      jobs[i].options.max_tokens = i % 2 ? 0 : 3;
      jobs[i].options.ignore_eos = true;
      jobs[i].options.prompt_logprobs = i == 2 ? 25 : i;
      submit(&rig, &jobs[i]);
      CHECK_OK(mlx_scheduler_run(rig.scheduler));
      const mlx_generation_t *g = mlx_request_generation(jobs[i].request);
      CHECK_INT(g->cached_tokens, 0);
      CHECK_INT(g->finish_reason, MLX_FINISH_LENGTH);
      CHECK_INT(g->count, i % 2 ? 0 : 3);
      check_job(&jobs[i], &rig, i);
    }
    const mlx_scheduler_stats_t stats = mlx_scheduler_stats(rig.scheduler);
    CHECK_INT(stats.prompt_tokens, 100 + 99 + 100);  // the last token of a prompt samples
    for (int i = 0; i < 4; ++i) release(&jobs[i]);
    stop(&rig);
  }
}

// Documents share full steps: no token is decoded, and no step has one text alone while others wait.
TEST(many_texts_are_scored_in_full_steps) {
  static job_t jobs[8];
  mlx_scheduler_options_t options;
  mlx_scheduler_options_initialize(&options);
  for (size_t length = 3; length <= 201; length += 66) {  // 3, 69, 135 and 201 tokens
    rig_t rig = plain_rig(8, 130);
    start(&rig, 256, &options);
    for (int i = 0; i < 8; ++i) {
      make_job(&jobs[i], (uint64_t)i, 0, length, 0);
      jobs[i].options.max_tokens = 0;
      jobs[i].options.prompt_logprobs = 0;
      submit(&rig, &jobs[i]);
    }
    CHECK_OK(mlx_scheduler_run(rig.scheduler));
    const mlx_scheduler_stats_t stats = mlx_scheduler_stats(rig.scheduler);
    CHECK_INT(stats.prompt_tokens, 8 * (int64_t)(length - 1));     // the last token scores nothing
    const int64_t fewest = (8 * (int64_t)(length - 1) + 63) / 64;  // steps of 64 tokens
    CHECK(stats.steps >= fewest && stats.steps <= fewest + 1);     // the last two may share their tokens
    CHECK_INT(stats.output_tokens, 0);
    for (int i = 0; i < 8; ++i) check_job(&jobs[i], &rig, i);
    for (int i = 0; i < 8; ++i) release(&jobs[i]);
    stop(&rig);
  }
}

TEST(a_full_pool_preempts_the_latest_of_the_lowest_priority) {
  mlx_scheduler_options_t options;
  mlx_scheduler_options_initialize(&options);
  static job_t jobs[3];
  rig_t rig = plain_rig(3, 11);
  start(&rig, 128, &options);
  for (int i = 0; i < 3; ++i) {
    make_job(&jobs[i], (uint64_t)i, 0, 20, 0);
    jobs[i].options.max_tokens = 60;
    jobs[i].options.ignore_eos = true;
    jobs[i].options.priority = i == 2;
    submit(&rig, &jobs[i]);
  }
  while (!mlx_scheduler_stats(rig.scheduler).preemptions) CHECK(!step(&rig));
  CHECK_INT(mlx_scheduler_stats(rig.scheduler).waiting, 1);
  const size_t kept = mlx_request_generation(jobs[1].request)->count;
  CHECK(kept > 10);
  step(&rig);
  CHECK(mlx_request_generation(jobs[1].request)->count <= kept + 1);  // it waits
  CHECK_OK(mlx_scheduler_run(rig.scheduler));
  for (int i = 0; i < 3; ++i) check_job(&jobs[i], &rig, i);
  for (int i = 0; i < 3; ++i) release(&jobs[i]);
  stop(&rig);
}

// Runs |job| and returns the most pages that were in use after a step.
static int64_t most_pages(rig_t *rig, job_t *job) {
  int64_t most = 0;
  submit(rig, job);
  for (bool idle = false; !idle;) {
    idle = step(rig);
    const int64_t used = mlx_scheduler_stats(rig->scheduler).pages_used;
    if (used > most) most = used;
  }
  check_job(job, rig, 0);
  release(job);
  return most;
}

// 200 tokens are 13 pages. A window of 20 positions is on at most 3 pages, a step of 16 tokens on 2. With
// shared prefixes the last published page is kept.
TEST(pages_are_freed_when_they_leave_the_window) {
  mlx_scheduler_options_t options;
  static job_t job;
  for (int share = 0; share < 2; ++share) {
    for (int window = 0; window <= 20; window += 20) {
      rig_t rig = plain_rig(1, 40);
      rig.fake.base.max_tokens = 16;
      rig.fake.base.window = window;
      mlx_scheduler_options_initialize(&options);
      options.share_prefixes = share;
      start(&rig, 256, &options);
      make_job(&job, 5, 0, 150, 1);
      job.options.max_tokens = 50;
      job.options.ignore_eos = true;
      const int64_t most = most_pages(&rig, &job);
      if (window ? most > 5 : most != 13) CHECK_FAIL("window %d: %lld pages", window, (long long)most);
      const int64_t cached = mlx_scheduler_stats(rig.scheduler).pages_cached;
      CHECK_INT(cached, share ? 13 : 0);
      make_job(&job, 5, 0, 150, 1);  // the same prompt: its pages are found from the first on
      job.options.max_tokens = 50;
      job.options.ignore_eos = true;
      CHECK(most_pages(&rig, &job) <= most + (share ? 9 : 0));
      CHECK_INT(mlx_scheduler_stats(rig.scheduler).prefix_hits, share ? 149 : 0);
      stop(&rig);
    }
  }
}

TEST(long_sequences_with_a_window_fit_a_pool_that_is_too_small_for_all_their_positions) {
  mlx_scheduler_options_t options;
  static job_t jobs[3];
  for (int window = 0; window <= 24; window += 24) {
    rig_t rig = plain_rig(3, 17);  // 16 pages: one sequence of 250 positions, or three windows
    rig.fake.base.max_tokens = 16;
    rig.fake.base.window = window;
    mlx_scheduler_options_initialize(&options);
    start(&rig, 256, &options);
    for (int i = 0; i < 3; ++i) {
      make_job(&jobs[i], (uint64_t)i, 0, 30, 0);
      jobs[i].options.max_tokens = 220;
      jobs[i].options.ignore_eos = true;
      submit(&rig, &jobs[i]);
    }
    for (bool idle = false; !idle;) idle = step(&rig);
    for (int i = 0; i < 3; ++i) check_job(&jobs[i], &rig, i);
    CHECK((mlx_scheduler_stats(rig.scheduler).preemptions == 0) == (window != 0));
    for (int i = 0; i < 3; ++i) release(&jobs[i]);
    stop(&rig);
  }
}

TEST(a_higher_priority_takes_the_place_of_a_lower_one) {
  mlx_scheduler_options_t options;
  mlx_scheduler_options_initialize(&options);
  static job_t jobs[3];
  rig_t rig = plain_rig(1, 20);
  start(&rig, 128, &options);
  for (int i = 0; i < 3; ++i) {
    make_job(&jobs[i], (uint64_t)i, 0, 20, 0);
    jobs[i].options.max_tokens = 10;
    jobs[i].options.ignore_eos = true;
    jobs[i].options.priority = i;
  }
  submit(&rig, &jobs[0]);
  for (int i = 0; i < 4; ++i) step(&rig);
  submit(&rig, &jobs[1]);
  submit(&rig, &jobs[2]);
  while (!mlx_request_is_done(jobs[2].request)) step(&rig);
  CHECK(!mlx_request_generation(jobs[1].request)->count && !mlx_request_is_done(jobs[0].request));
  while (!mlx_request_is_done(jobs[1].request)) step(&rig);
  CHECK(!mlx_request_is_done(jobs[0].request));
  CHECK_OK(mlx_scheduler_run(rig.scheduler));
  for (int i = 0; i < 3; ++i) check_job(&jobs[i], &rig, i);
  for (int i = 0; i < 3; ++i) release(&jobs[i]);
  stop(&rig);
}

TEST(a_failed_step_ends_running_requests_only) {
  mlx_scheduler_options_t options;
  mlx_scheduler_options_initialize(&options);
  static job_t jobs[3];
  rig_t rig = plain_rig(2, 40);
  rig.fake.fail_at = 5;
  start(&rig, 128, &options);
  for (int i = 0; i < 3; ++i) {
    make_job(&jobs[i], 1, 20, 24, (uint64_t)i);
    jobs[i].options.max_tokens = 10;
    jobs[i].options.ignore_eos = true;
    submit(&rig, &jobs[i]);
  }
  CHECK_ERROR(mlx_scheduler_run(rig.scheduler), MLX_UNAVAILABLE, "the simulated device failed");
  for (int i = 0; i < 2; ++i) {
    CHECK(mlx_request_is_done(jobs[i].request));
    CHECK_INT(jobs[i].heard.done, 1);
    CHECK_INT(mlx_request_generation(jobs[i].request)->finish_reason, MLX_FINISH_ERROR);
    CHECK_ERROR(mlx_request_take_status(jobs[i].request), MLX_UNAVAILABLE, "the simulated device failed");
    CHECK(!mlx_request_take_status(jobs[i].request));
  }
  CHECK(!mlx_request_is_done(jobs[2].request));
  CHECK_INT(mlx_scheduler_stats(rig.scheduler).pages_cached, 0);  // pages of a failed step are not reused
  CHECK_OK(mlx_scheduler_run(rig.scheduler));
  check_job(&jobs[2], &rig, 2);
  for (int i = 0; i < 3; ++i) release(&jobs[i]);
  stop(&rig);
}

TEST(a_request_can_be_freed_while_its_steps_are_queued) {
  mlx_scheduler_options_t options;
  mlx_scheduler_options_initialize(&options);
  static job_t jobs[2];
  rig_t rig = plain_rig(2, 40);
  start(&rig, 128, &options);
  for (int i = 0; i < 2; ++i) {
    make_job(&jobs[i], (uint64_t)i, 0, 24, 0);
    jobs[i].options.max_tokens = 30;
    jobs[i].options.ignore_eos = true;
    submit(&rig, &jobs[i]);
  }
  for (int i = 0; i < 3; ++i) step(&rig);
  CHECK_INT(rig.fake.open, 1);
  release(&jobs[0]);
  CHECK_INT(jobs[0].heard.done, 0);
  CHECK_OK(mlx_scheduler_run(rig.scheduler));
  check_job(&jobs[1], &rig, 1);
  release(&jobs[1]);
  stop(&rig);
}

typedef struct chain {
  rig_t *rig;
  job_t *jobs;
  int next;
} chain_t;

// Frees its own request and submits another.
static void continue_chain(void *user, mlx_request_t *request) {
  chain_t *chain = user;
  mlx_request_free(request);
  if (++chain->next == 3) return;
  job_t *job = &chain->jobs[chain->next];
  CHECK_OK(mlx_scheduler_submit(chain->rig->scheduler, job->ids, job->count, &job->options, &job->request));
}

TEST(a_callback_may_free_its_request_and_submit_another) {
  mlx_scheduler_options_t options;
  mlx_scheduler_options_initialize(&options);
  static job_t jobs[3];
  rig_t rig = plain_rig(2, 40);
  chain_t chain = {&rig, jobs, 0};
  start(&rig, 128, &options);
  for (int i = 0; i < 3; ++i) {
    make_job(&jobs[i], (uint64_t)i, 0, 24, 0);
    jobs[i].options.max_tokens = 5;
    jobs[i].options.on_done = continue_chain;
    jobs[i].options.user = &chain;
  }
  CHECK_OK(mlx_scheduler_submit(rig.scheduler, jobs[0].ids, 24, &jobs[0].options, &jobs[0].request));
  CHECK_OK(mlx_scheduler_run(rig.scheduler));
  CHECK_INT(chain.next, 3);
  stop(&rig);
}

TEST(impossible_requests_are_refused) {
  mlx_scheduler_options_t options;
  mlx_scheduler_options_initialize(&options);
  static job_t job;
  mlx_request_t *request;
  rig_t rig = plain_rig(2, 5);
  start(&rig, 128, &options);
  make_job(&job, 1, 0, 129, 0);
  CHECK_ERROR(mlx_scheduler_submit(rig.scheduler, job.ids, 129, &job.options, &request), MLX_USAGE,
              "the prompt has 129 tokens; the context holds 128");
  CHECK_ERROR(mlx_scheduler_submit(rig.scheduler, job.ids, 65, &job.options, &request), MLX_OUT_OF_MEMORY,
              "the prompt has 65 tokens; the KV pool holds 64");
  CHECK_ERROR(mlx_scheduler_submit(rig.scheduler, job.ids, 0, &job.options, &request), MLX_USAGE,
              "the prompt is empty");
  job.options.logprobs = 1000;
  CHECK_ERROR(mlx_scheduler_submit(rig.scheduler, job.ids, 5, &job.options, &request), MLX_USAGE,
              "the model has only 320 tokens");
  CHECK(!request);
  // Another user of the pool leaves too few pages for the request.
  int32_t taken[4];
  for (int i = 0; i < 4; ++i) taken[i] = mlx_pool_take(rig.pool);
  job.options.logprobs = -1;
  CHECK_OK(mlx_scheduler_submit(rig.scheduler, job.ids, 5, &job.options, &request));
  CHECK_OK(mlx_scheduler_run(rig.scheduler));
  CHECK_ERROR(mlx_request_take_status(request), MLX_OUT_OF_MEMORY, "sessions hold 4 of its 4 pages");
  mlx_request_free(request);
  for (int i = 0; i < 4; ++i) mlx_pool_release(rig.pool, taken[i]);
  stop(&rig);
}

TEST(near_ties_are_counted) {
  mlx_scheduler_options_t options;
  mlx_scheduler_options_initialize(&options);
  options.count_near_ties = true;
  static job_t job;
  rig_t rig = plain_rig(2, 40);
  start(&rig, 128, &options);
  make_job(&job, 1, 0, 24, 0);
  job.ids[23] = FAKE_NEAR_TIE;
  job.options.max_tokens = 5;
  job.options.ignore_eos = true;
  submit(&rig, &job);
  CHECK_OK(mlx_scheduler_run(rig.scheduler));
  CHECK_INT(mlx_scheduler_stats(rig.scheduler).near_ties, 1);
  check_job(&job, &rig, 0);
  release(&job);
  stop(&rig);
}

// Runs three requests. Allocation number |target| fails; 0: none.
static void run_with_fault(long target) {
  static job_t jobs[3];
  mlx_scheduler_options_t options;
  mlx_scheduler_options_initialize(&options);
  rig_t rig = plain_rig(2, 12);
  start(&rig, 128, &options);
  memory.count = memory.live = 0;
  memory.target = target;
  mlx_memory_set_calls(&counting_memory);
  for (int i = 0; i < 3; ++i) {
    make_job(&jobs[i], 1, 30, 40, (uint64_t)i);
    jobs[i].options.max_tokens = 30;
    jobs[i].options.stops = (const char *const[]){"xyzzy"};
    jobs[i].options.stop_count = 1;
    if (i == 0) jobs[i].options.prompt_logprobs = 2;
    if (i == 1) jobs[i].options.grammar = grammar;
    if (i == 2) {
      mlx_sampling_initialize(&jobs[i].sampling);
      jobs[i].sampling.dry_multiplier = 0.8;
      jobs[i].options.sampling = &jobs[i].sampling;
      jobs[i].options.logprobs = 3;
    }
    mlx_status_free(
        mlx_scheduler_submit(rig.scheduler, jobs[i].ids, jobs[i].count, &jobs[i].options, &jobs[i].request));
  }
  for (bool idle = false; !idle;) mlx_status_free(mlx_scheduler_step(rig.scheduler, &idle));
  for (int i = 0; i < 3; ++i) {
    CHECK(!jobs[i].request || mlx_request_is_done(jobs[i].request));
    mlx_request_free(jobs[i].request);
  }
  stop(&rig);
  mlx_memory_set_calls(NULL);
}

TEST(a_failed_allocation_ends_requests_and_leaks_nothing) {
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
  CHECK(target > 50);
}

TEST_MAIN(
    CASE(a_crowd_changes_the_tokens_of_no_request), CASE(a_step_is_queued_before_the_last_one_is_read),
    CASE(a_grammar_may_require_a_visible_special_token), CASE(long_prompts_do_not_stop_running_requests),
    CASE(progress_of_a_long_prompt_is_reported_until_the_first_token),
    CASE(a_prompt_is_read_even_if_decodes_fill_the_steps), CASE(a_lone_request_is_decoded_in_growing_bursts),
    CASE(equal_prefixes_share_pages_and_the_partial_page_is_copied), CASE(prompt_tokens_are_scored),
    CASE(many_texts_are_scored_in_full_steps), CASE(a_full_pool_preempts_the_latest_of_the_lowest_priority),
    CASE(pages_are_freed_when_they_leave_the_window),
    CASE(long_sequences_with_a_window_fit_a_pool_that_is_too_small_for_all_their_positions),
    CASE(a_higher_priority_takes_the_place_of_a_lower_one), CASE(a_failed_step_ends_running_requests_only),
    CASE(a_request_can_be_freed_while_its_steps_are_queued),
    CASE(a_callback_may_free_its_request_and_submit_another), CASE(impossible_requests_are_refused),
    CASE(near_ties_are_counted), CASE(a_failed_allocation_ends_requests_and_leaks_nothing))
