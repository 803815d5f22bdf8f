// Measures several sequences at once: submits requests to a scheduler, steps it, and counts tokens between
// steps.
#include "cli/bench_parallel.h"

#include "base/clock.h"
#include "base/memory.h"

#define READ_TOKENS 64    // at least so many prompt tokens are read in one step, where that many are left
#define ARRIVAL_CHUNK 16  // the same beside sequences that generate tokens
#define WARM_TOKENS 16    // tokens of each running sequence before a prompt arrives

typedef struct sequence {
  mlx_request_t *request;  // owned
  size_t first;            // tokens that it had when the measurement began
  size_t count;            // tokens after the last step
  double changed;          // when |count| grew
} sequence_t;

typedef struct run {
  const mlx_bench_parallel_t *bench;
  const mlx_bench_test_t *test;
  mlx_scheduler_t *scheduler;
  sequence_t *sequences;  // owned; [test->parallel]
  size_t count;           // submitted
  double longest;         // largest time between two tokens of a sequence, in seconds
} run_t;

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Tokens that the first sequence may generate before the last one has read its prompt.
static int64_t head_start(const mlx_bench_test_t *test, int64_t prompt) {
  return (test->parallel - 1) * divide_up(prompt, READ_TOKENS);
}

static int64_t prompt_of(const mlx_bench_test_t *test) {
  return test->prompt ? test->prompt : test->depth ? test->depth : 1;
}

// Tokens that a sequence may generate at most. The first one comes with the prompt.
static int64_t limit_of(const mlx_bench_test_t *test) {
  const int64_t prompt = prompt_of(test);
  if (test->arrival)
    return head_start(test, prompt) + WARM_TOKENS + divide_up(test->arrival, ARRIVAL_CHUNK) + READ_TOKENS;
  return (test->prompt ? 0 : head_start(test, prompt)) + test->generated + 1;
}

int64_t mlx_bench_parallel_context(const mlx_bench_test_t *test) {
  const int64_t running = prompt_of(test) + limit_of(test);
  return test->arrival + 1 > running ? test->arrival + 1 : running;
}

int64_t mlx_bench_parallel_ids(const mlx_bench_test_t *test) {
  const int64_t prompt = prompt_of(test);
  return (test->arrival > prompt ? test->arrival : prompt) + test->parallel + 1;
}

// ----------------------------------------------------------------------------------------------------------
// Steps

static mlx_status_t submit(const run_t *run, int64_t first, int64_t prompt, int64_t max_tokens,
                           mlx_request_t **out) {
  mlx_generate_options_t options;
  mlx_sampling_t sampling;
  mlx_generate_options_initialize(&options);
  options.max_tokens = max_tokens;
  options.ignore_eos = true;
  if (run->bench->sampling) {
    sampling = *run->bench->sampling;
    sampling.seed += (uint64_t)first;
    options.sampling = &sampling;
  }
  return mlx_scheduler_submit(run->scheduler, run->bench->ids + first, (size_t)prompt, &options, out);
}

static mlx_status_t submit_all(run_t *run) {
  for (; run->count < (size_t)run->test->parallel; ++run->count) {
    sequence_t *sequence = &run->sequences[run->count];
    MLX_TRY(submit(run, (int64_t)run->count, prompt_of(run->test), limit_of(run->test), &sequence->request));
    sequence->changed = mlx_seconds();
  }
  return NULL;
}

// One step, then the token counts of all sequences.
static mlx_status_t step(run_t *run) {
  bool idle;
  MLX_TRY(mlx_scheduler_step(run->scheduler, &idle));
  const double now = mlx_seconds();
  for (size_t i = 0; i < run->count; ++i) {
    sequence_t *sequence = &run->sequences[i];
    const size_t count = mlx_request_generation(sequence->request)->count;
    if (count == sequence->count) continue;
    if (sequence->count && now - sequence->changed > run->longest) run->longest = now - sequence->changed;
    sequence->count = count;
    sequence->changed = now;
  }
  return NULL;
}

// The smallest number of tokens that a sequence has generated since the measurement began.
static size_t least(const run_t *run) {
  size_t smallest = SIZE_MAX;
  for (size_t i = 0; i < run->count; ++i) {
    const size_t count = run->sequences[i].count - run->sequences[i].first;
    if (count < smallest) smallest = count;
  }
  return smallest;
}

static double tokens_since(const run_t *run) {
  double tokens = 0;
  for (size_t i = 0; i < run->count; ++i)
    tokens += (double)(run->sequences[i].count - run->sequences[i].first);
  return tokens;
}

// Steps until every sequence has generated |tokens| tokens since the measurement began.
static mlx_status_t generate(run_t *run, size_t tokens) {
  while (least(run) < tokens) {
    for (size_t i = 0; i < run->count; ++i) {
      if (!mlx_request_is_done(run->sequences[i].request)) continue;
      MLX_TRY(mlx_request_take_status(run->sequences[i].request));
      return mlx_status_hint(
          mlx_error(MLX_UNAVAILABLE, "%lld sequences did not fit into the context or the KV pool at once",
                    (long long)run->test->parallel),
          "reduce --parallel, -d or -n, or set a larger context: -c N");
    }
    MLX_TRY(step(run));
  }
  return NULL;
}

static mlx_status_t finish_all(run_t *run) {
  bool idle = false;
  while (!idle) MLX_TRY(mlx_scheduler_step(run->scheduler, &idle));
  for (size_t i = 0; i < run->count; ++i) MLX_TRY(mlx_request_take_status(run->sequences[i].request));
  return NULL;
}

static void begin(run_t *run) {
  for (size_t i = 0; i < run->count; ++i) run->sequences[i].first = run->sequences[i].count;
  run->longest = 0;
}

// ----------------------------------------------------------------------------------------------------------
// Tests

static mlx_status_t measure_prompts(run_t *run, double *out_seconds, double *out_tokens) {
  const double start = mlx_seconds();
  MLX_TRY(submit_all(run));
  MLX_TRY(finish_all(run));
  *out_seconds = mlx_seconds() - start;
  *out_tokens = (double)run->test->parallel * (double)(run->test->prompt + run->test->generated);
  return NULL;
}

static mlx_status_t measure_decode(run_t *run, double *out_seconds, double *out_tokens) {
  MLX_TRY(submit_all(run));
  MLX_TRY(generate(run, 1));
  begin(run);
  const double start = mlx_seconds();
  MLX_TRY(generate(run, (size_t)run->test->generated));
  *out_seconds = mlx_seconds() - start;
  *out_tokens = tokens_since(run);
  return NULL;
}

static mlx_status_t wait_for_arrival(run_t *run, mlx_request_t *arrival) {
  while (!mlx_request_is_done(arrival)) MLX_TRY(step(run));
  MLX_TRY(mlx_request_take_status(arrival));
  // The step that read the end of the prompt counts as a pause too: wait for the tokens after it.
  size_t most = 0;
  for (size_t i = 0; i < run->count; ++i) {
    const size_t count = run->sequences[i].count - run->sequences[i].first;
    if (count > most) most = count;
  }
  return generate(run, most + 1);
}

// All sequences run, then a long prompt arrives.
static mlx_status_t measure_arrival(run_t *run, mlx_bench_result_t *result, double *out_seconds,
                                    double *out_tokens) {
  mlx_request_t *arrival = NULL;
  MLX_TRY(submit_all(run));
  MLX_TRY(generate(run, 1));
  begin(run);
  const double warm = mlx_seconds();
  MLX_TRY(generate(run, WARM_TOKENS));
  result->step_seconds = (mlx_seconds() - warm) / (double)least(run);
  begin(run);
  const double start = mlx_seconds();
  MLX_TRY(submit(run, run->test->parallel, run->test->arrival, 1, &arrival));
  mlx_status_t status = wait_for_arrival(run, arrival);
  *out_seconds = mlx_seconds() - start;
  *out_tokens = tokens_since(run);
  mlx_request_free(arrival);
  if (run->longest > result->pause_seconds) result->pause_seconds = run->longest;
  return status;
}

mlx_status_t mlx_bench_parallel_run(const mlx_bench_parallel_t *bench, const mlx_bench_test_t *test,
                                    int64_t index, mlx_bench_result_t *result) {
  run_t run = {.bench = bench, .test = test};
  double *seconds = &result->seconds[index], *tokens = &result->tokens[index];
  mlx_scheduler_options_t options;
  mlx_scheduler_options_initialize(&options);
  options.share_prefixes = false;
  // Decode begins when all prompts are read, so they are read as fast as possible. An arrival measures the
  // scheduler's default.
  if (!test->arrival) {
    options.max_prompt_chunk = INT32_MAX;
    options.prefill_share = 1;
  }
  MLX_TRY(mlx_alloc((size_t)test->parallel, sizeof *run.sequences, &run.sequences));
  mlx_status_t status = mlx_scheduler_create(bench->engine, &options, &run.scheduler);
  if (!status) {
    status = test->arrival  ? measure_arrival(&run, result, seconds, tokens)
             : test->prompt ? measure_prompts(&run, seconds, tokens)
                            : measure_decode(&run, seconds, tokens);
  }
  if (!status) result->first_token_seconds = mlx_request_generation(run.sequences[0].request)->prompt_seconds;
  for (size_t i = 0; i < run.count; ++i) mlx_request_free(run.sequences[i].request);
  mlx_scheduler_free(run.scheduler);
  mlx_free(run.sequences);
  return status;
}
