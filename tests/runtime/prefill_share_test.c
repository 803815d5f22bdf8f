// Prompts and running sequences share the time of the device. The module is simulated: its steps take the
// time that a function of their tokens gives, on a clock of the test.
#include "runtime/prefill_budget.h"
#include "tests/runtime/scheduler_rig.h"

#define PROMPT 380  // tokens of the prompt that arrives

// The machine of the figures in issue 40: a decode of one sequence takes 61 ms, a chunk of 64 tokens 0.77 s.
static double two_cores(int64_t tokens) { return 0.05 + 0.011 * (double)tokens; }

static double many_weights(int64_t tokens) { return tokens < 64 ? 0.05 : 0.05 + 0.001 * (double)tokens; }

// Functions of 16, 64 and 256 tokens.
static double gpu(int64_t size) { return size == 16 ? 0.003 : size == 64 ? 0.0034 : 0.0085; }

// Every function with room for a prompt takes longer than its share of a step.
static double coarse_gpu(int64_t size) { return size == 16 ? 0.003 : 0.025; }

static double stall_at;  // the clock at which a step takes 10 s more
static double with_a_stall(int64_t tokens) {
  if (rig_now < stall_at) return two_cores(tokens);
  stall_at = INFINITY;
  return 10;
}

typedef struct share_case {
  double (*seconds)(int64_t tokens);
  bool has_sizes, one_segment;
  int streams;
  double share;
  int64_t chunk;
} share_case_t;

typedef struct measured {
  double before, during;  // seconds per token of the first stream, the rest and while the prompt is read
  double prompt;          // seconds until the prompt's first token
  int longest;            // steps in a row that had no prompt tokens
  int64_t largest;        // prompt tokens of a step beside decodes
} measured_t;

static double seconds_per_token(rig_t *rig, const job_t *job, double start, size_t first) {
  (void)rig;
  return (rig_now - start) / (double)(mlx_request_generation(job->request)->count - first);
}

static void read_prompt(rig_t *rig, const job_t *jobs, int streams, measured_t *out) {
  const double start = rig_now;
  const size_t first = mlx_request_generation(jobs[0].request)->count;
  int64_t read = mlx_scheduler_stats(rig->scheduler).prompt_tokens;
  for (int idle = 0; !mlx_request_generation(jobs[streams].request)->count;) {
    step(rig);
    const int64_t now = mlx_scheduler_stats(rig->scheduler).prompt_tokens;
    idle = now == read ? idle + 1 : 0;
    if (idle > out->longest) out->longest = idle;
    read = now;
  }
  out->prompt = rig_now - start;
  out->during = seconds_per_token(rig, &jobs[0], start, first);
  out->largest = rig->fake.largest_chunk;
}

// Streams run, then a long prompt arrives.
static measured_t run_case(const share_case_t *c) {
  static job_t jobs[10];
  mlx_scheduler_options_t options;
  measured_t m = {0};
  rig_t rig = plain_rig(c->streams + 1, 400);
  rig.fake.base.slot_pages = 40;
  rig.fake.base.max_tokens = 256;
  rig.fake.base.ragged = !c->one_segment;
  rig.fake.seconds = c->seconds;
  rig.fake.has_sizes = c->has_sizes;
  for (int i = 0; c->has_sizes && i < 3; ++i) rig.fake.buckets[i][0] = rig.fake.buckets[i][1] = 16 << 2 * i;
  if (c->has_sizes) rig.fake.buckets[2][1] = 64;
  mlx_scheduler_options_initialize(&options);
  options.max_prompt_chunk = c->chunk;
  options.prefill_share = c->share;
  start(&rig, LONGEST * 2, &options);
  for (int i = 0; i <= c->streams; ++i) {
    make_job(&jobs[i], (uint64_t)i, 0, i < c->streams ? 5 : PROMPT, 0);
    jobs[i].options.max_tokens = i < c->streams ? 380 : 3;
    jobs[i].options.ignore_eos = true;
    if (i < c->streams) submit(&rig, &jobs[i]);
  }
  for (int i = 0; i < 8; ++i) step(&rig);
  const double begin = rig_now;
  const size_t first = mlx_request_generation(jobs[0].request)->count;
  for (int i = 0; i < 10 * (c->one_segment ? c->streams : 1); ++i) step(&rig);
  m.before = seconds_per_token(&rig, &jobs[0], begin, first);
  rig.fake.largest_chunk = 0;
  submit(&rig, &jobs[c->streams]);
  read_prompt(&rig, jobs, c->streams, &m);
  CHECK_OK(mlx_scheduler_run(rig.scheduler));
  for (int i = 0; i <= c->streams; ++i) check_job(&jobs[i], &rig, i);
  for (int i = 0; i <= c->streams; ++i) release(&jobs[i]);
  stop(&rig);
  return m;
}

static void check_at_most(const char *what, double value, double most) {
  if (value > most) CHECK_FAIL("%s is %g, expected at most %g", what, value, most);
}

TEST(streams_keep_a_third_of_their_speed_beside_a_long_prompt) {
  for (int streams = 1; streams <= 8; streams *= 2) {
    const measured_t m = run_case(&(share_case_t){.seconds = two_cores, .streams = streams, .chunk = 64});
    check_at_most("time per token", m.during, 3 * m.before * 1.03);
    // The prompt gets two thirds of the time: 11 ms for each token, and half as much for the streams.
    check_at_most("time of the prompt", m.prompt, PROMPT * 0.011 * 1.5 * 1.1 + 0.5);
  }
}

TEST(without_a_limit_a_prompt_is_read_in_the_largest_chunks) {
  const measured_t m = run_case(&(share_case_t){.seconds = two_cores, .streams = 1, .chunk = 64, .share = 1});
  CHECK_INT(m.largest, 64);
  CHECK(m.during > 10 * m.before);
}

TEST(the_share_can_be_chosen) {
  const measured_t m =
      run_case(&(share_case_t){.seconds = two_cores, .streams = 4, .chunk = 64, .share = 0.5});
  check_at_most("time per token", m.during, 2 * m.before * 1.03);
  CHECK(m.during > 1.8 * m.before);
}

// Eight tokens cost as much as fifty: the budget finds that out.
TEST(chunks_grow_where_prompt_tokens_are_cheap) {
  const measured_t m = run_case(&(share_case_t){.seconds = many_weights, .streams = 2, .chunk = 64});
  CHECK(m.largest >= 48);
  check_at_most("time per token", m.during, 3 * m.before * 1.03);
}

TEST(chunks_fill_the_functions_of_a_module) {
  const measured_t m =
      run_case(&(share_case_t){.seconds = gpu, .has_sizes = true, .streams = 8, .chunk = 256});
  CHECK_INT(m.largest, 248);  // with the 8 decodes, the function of 256 tokens
  check_at_most("time per token", m.during, 3 * m.before * 1.03);
}

// With 9 decodes, the function of 16 tokens has no room for the fewest prompt tokens. After a chunk, the
// streams have steps of their own; those after the last chunk are not part of the figure.
TEST(a_chunk_that_is_too_dear_is_paid_for_by_steps_without_prompts) {
  const measured_t m =
      run_case(&(share_case_t){.seconds = coarse_gpu, .has_sizes = true, .streams = 9, .chunk = 40});
  check_at_most("time per token", m.during, 3 * m.before * 1.1);
  CHECK(m.longest > 1 && m.longest < 8);
}

TEST(streams_of_a_module_with_one_segment_keep_a_third_too) {
  const measured_t m =
      run_case(&(share_case_t){.seconds = two_cores, .one_segment = true, .streams = 4, .chunk = 64});
  check_at_most("time per token", m.during, 3 * m.before * 1.1);
  check_at_most("time of the prompt", m.prompt, PROMPT * (0.011 + 0.05 / 8) * 1.5 * 1.1 + 1);
}

TEST(a_stall_of_the_machine_does_not_starve_prompts) {
  stall_at = 4;
  const measured_t m = run_case(&(share_case_t){.seconds = with_a_stall, .streams = 1, .chunk = 64});
  CHECK(isinf(stall_at));
  CHECK(m.longest <= MLX_MOST_WITHHELD + 2);  // and two steps that are queued
}

TEST_MAIN(CASE(streams_keep_a_third_of_their_speed_beside_a_long_prompt),
          CASE(without_a_limit_a_prompt_is_read_in_the_largest_chunks), CASE(the_share_can_be_chosen),
          CASE(chunks_grow_where_prompt_tokens_are_cheap), CASE(chunks_fill_the_functions_of_a_module),
          CASE(a_chunk_that_is_too_dear_is_paid_for_by_steps_without_prompts),
          CASE(streams_of_a_module_with_one_segment_keep_a_third_too),
          CASE(a_stall_of_the_machine_does_not_starve_prompts))
