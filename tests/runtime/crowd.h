// Random mixes of requests on an engine, through the public API. Each request must get the tokens that a
// session of its own gets. tests/runtime/scheduler_test.c does the same on a simulated module.
#ifndef MLXCEL_TESTS_CROWD_H_
#define MLXCEL_TESTS_CROWD_H_

#include "runtime/mlxcel.h"
#include "tests/support/check.h"

#define CROWD_MOST 12      // requests of a mix
#define CROWD_MANY 256     // requests of crowd_run_many, at most
#define CROWD_CONTEXT 256  // positions of a sequence
#define CROWD_NEAR_TIE 1e-5

typedef struct crowd_job {
  int32_t ids[CROWD_CONTEXT];
  size_t count;
  mlx_generate_options_t options;
  mlx_sampling_t sampling;
  int arrival, cancel;  // numbers of steps; cancel -1: never
  mlx_request_t *request;
  int done;
} crowd_job_t;

typedef struct crowd_totals {
  int64_t requests, tokens, preemptions, prefix_hits, near_ties, diverged, cancelled;
} crowd_totals_t;

static uint64_t crowd_state;
static inline int64_t crowd_random(int64_t limit) {  // splitmix64
  uint64_t x = crowd_state += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return (int64_t)((x ^ x >> 31) % (uint64_t)limit);
}

typedef mlx_status_t (*crowd_open_t)(const void *model, const mlx_engine_options_t *options,
                                     mlx_engine_t **out_engine);

static inline mlx_engine_options_t crowd_options(mlx_device_choice_t device) {
  mlx_engine_options_t options;
  mlx_engine_options_initialize(&options);
  options.device = device;
  options.allow_unsigned = true;
  return options;
}

// Opens |model| with a pool that is too small for all sequences: about 26 pages for 8 sequences of 16 pages.
static inline mlx_engine_t *crowd_open(crowd_open_t open, const void *model, mlx_device_choice_t device) {
  mlx_engine_options_t options = crowd_options(device);
  mlx_engine_t *engine;
  CHECK_OK(open(model, &options, &engine));
  options.memory = 27 * 16 * mlx_engine_info(engine).kv_bytes;
  mlx_engine_close(engine);
  options.context = CROWD_CONTEXT;
  options.sequences = 8;
  mlx_status_t status = open(model, &options, &engine);
  for (int i = 0; i < 4 && mlx_status_code(status) == MLX_OUT_OF_MEMORY; ++i) {  // padded pages are larger
    mlx_status_free(status);
    options.memory *= 2;
    status = open(model, &options, &engine);
  }
  CHECK_OK(status);
  return engine;
}

// Opens |model| with room for |sequences| sequences.
static inline mlx_engine_t *crowd_open_many(crowd_open_t open, const void *model, mlx_device_choice_t device,
                                            int sequences) {
  mlx_engine_options_t options = crowd_options(device);
  mlx_engine_t *engine;
  options.context = CROWD_CONTEXT;
  options.sequences = sequences;
  CHECK_OK(open(model, &options, &engine));
  return engine;
}

static inline void crowd_count_done(void *user, mlx_request_t *request) {
  CHECK(mlx_request_is_done(request));
  ++((crowd_job_t *)user)->done;
}

static inline void crowd_make_job(crowd_job_t *job, int64_t vocab, const mlx_grammar_t *grammar) {
  static const char *const stops[] = {"e", "th", " a"};
  *job = (crowd_job_t){.cancel = -1};
  const uint64_t family = (uint64_t)crowd_random(3), kept = crowd_state;
  const size_t shared = (size_t)crowd_random(60);
  job->count = shared + 1 + (size_t)crowd_random(60);
  crowd_state = family * 77;  // prompts of a family begin alike
  for (size_t i = 0; i < shared; ++i) job->ids[i] = 10 + (int32_t)crowd_random(vocab - 10);
  crowd_state = kept + 5;
  for (size_t i = shared; i < job->count; ++i) job->ids[i] = 10 + (int32_t)crowd_random(vocab - 10);
  mlx_generate_options_initialize(&job->options);
  job->options.max_tokens = 1 + crowd_random(60);
  job->options.ignore_eos = crowd_random(2);
  job->options.priority = crowd_random(3) ? 0 : crowd_random(3);
  job->options.logprobs = crowd_random(5) ? -1 : crowd_random(2) ? crowd_random(4) : 25;
  if (crowd_random(2)) {
    mlx_sampling_initialize(&job->sampling);
    job->sampling.seed = (uint64_t)crowd_random(1000);
    if (!crowd_random(3)) job->sampling.repeat_penalty = 1.2;
    if (!crowd_random(6)) job->sampling.dry_multiplier = 0.8;  // only on the host
    job->options.sampling = &job->sampling;
  }
  if (!crowd_random(6)) job->options.grammar = grammar;
  if (!crowd_random(4)) {
    job->options.stops = stops + crowd_random(2);
    job->options.stop_count = 1 + (size_t)crowd_random(2);
  }
  if (!crowd_random(5)) job->cancel = (int)crowd_random(40);
  job->arrival = crowd_random(3) ? (int)crowd_random(30) : 0;
  job->options.on_done = crowd_count_done;
  job->options.user = job;
}

static inline void crowd_generate_alone(mlx_engine_t *engine, const crowd_job_t *job, int64_t logprobs,
                                        mlx_generation_t *out) {
  mlx_generate_options_t options = job->options;
  mlx_session_t *session;
  options.logprobs = logprobs;
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_OK(mlx_session_generate(session, job->ids, job->count, &options, out));
  mlx_session_free(session);
}

// True if the two best candidates for token |at| are so close that rounding decides between them.
static inline bool crowd_is_near_tie(mlx_engine_t *engine, const crowd_job_t *job, size_t at) {
  mlx_generation_t g;
  crowd_generate_alone(engine, job, 2, &g);
  CHECK(at < g.count);
  const bool near = g.logprobs[at * 3].logprob - g.logprobs[at * 3 + 1].logprob < CROWD_NEAR_TIE;
  mlx_generation_clear(&g);
  return near;
}

static inline void crowd_check_job(mlx_engine_t *engine, const crowd_job_t *job, uint64_t seed, int number,
                                   crowd_totals_t *totals) {
  mlx_generation_t alone;
  crowd_generate_alone(engine, job, job->options.logprobs, &alone);
  const mlx_generation_t *g = mlx_request_generation(job->request);
  CHECK_OK(mlx_request_take_status(job->request));
  CHECK_INT(job->done, 1);
  const bool cancelled = g->finish_reason == MLX_FINISH_CANCELLED;
  CHECK(!cancelled || job->cancel >= 0);
  size_t same = 0;
  while (same < g->count && same < alone.count && g->ids[same] == alone.ids[same]) ++same;
  if (same < g->count && crowd_is_near_tie(engine, job, same)) {
    ++totals->diverged;
  } else if (same < g->count) {
    CHECK_FAIL("mix %llu, request %d: token %zu of %zu is %d, alone %d", (unsigned long long)seed, number,
               same, g->count, g->ids[same], same < alone.count ? alone.ids[same] : -1);
  } else if (!cancelled) {
    CHECK_INT(g->count, alone.count);
    CHECK_INT(g->finish_reason, alone.finish_reason);
    CHECK_TEXT(g->text, alone.text);
  }
  ++totals->requests;
  totals->cancelled += cancelled;
  mlx_generation_clear(&alone);
}

static inline void crowd_run_mix(mlx_engine_t *engine, uint64_t seed, const mlx_grammar_t *grammar,
                                 crowd_totals_t *totals) {
  static crowd_job_t jobs[CROWD_MOST];
  mlx_scheduler_options_t options;
  mlx_scheduler_t *scheduler;
  crowd_state = seed * 7919 + 1;
  mlx_scheduler_options_initialize(&options);
  options.share_prefixes = crowd_random(4) != 0;
  options.max_prompt_chunk = crowd_random(2) ? 0 : 1 + crowd_random(40);
  options.max_batch_tokens = crowd_random(3) ? 0 : 8 + crowd_random(60);
  options.max_running = crowd_random(3) ? 0 : 1 + crowd_random(8);
  options.count_near_ties = crowd_random(2);
  CHECK_OK(mlx_scheduler_create(engine, &options, &scheduler));
  const int count = 2 + (int)crowd_random(CROWD_MOST - 1);
  int arrived = 0;
  for (int i = 0; i < count; ++i) crowd_make_job(&jobs[i], mlx_engine_info(engine).vocab, grammar);
  bool idle = false;
  for (int now = 0; !idle || arrived < count; ++now) {
    for (int i = 0; i < count; ++i) {
      if (jobs[i].arrival == now) {
        CHECK_OK(
            mlx_scheduler_submit(scheduler, jobs[i].ids, jobs[i].count, &jobs[i].options, &jobs[i].request));
        ++arrived;
      }
      if (jobs[i].cancel == now && jobs[i].request) mlx_request_cancel(jobs[i].request);
    }
    CHECK_OK(mlx_scheduler_step(scheduler, &idle));
  }
  const mlx_scheduler_stats_t stats = mlx_scheduler_stats(scheduler);
  CHECK_INT(stats.pages_used, 0);
  totals->tokens += stats.output_tokens;
  totals->preemptions += stats.preemptions;
  totals->prefix_hits += stats.prefix_hits;
  totals->near_ties += stats.near_ties;
  for (int i = 0; i < count; ++i) crowd_check_job(engine, &jobs[i], seed, i, totals);
  for (int i = 0; i < count; ++i) mlx_request_free(jobs[i].request);
  mlx_scheduler_free(scheduler);
}

// Runs |mixes| mixes and prints what happened in them.
static inline void crowd_run(mlx_engine_t *engine, uint64_t mixes) {
  static const char text[] = "root ::= [a-z]{1,3} (\" \" [a-z]{1,4}){0,8}";
  crowd_totals_t t = {0};
  mlx_grammar_t *grammar;
  CHECK_OK(mlx_grammar_create("grammar", text, sizeof text - 1, &grammar));
  for (uint64_t seed = 0; seed < mixes; ++seed) crowd_run_mix(engine, seed, grammar, &t);
  mlx_grammar_free(grammar);
  fprintf(
      stderr,
      "  %s: %llu mixes, %lld requests, %lld tokens; %lld preemptions, %lld tokens from shared prefixes,\n"
      "  %lld cancelled; %lld near ties counted, %lld requests changed by one\n",
      mlx_engine_info(engine).device, (unsigned long long)mixes, (long long)t.requests, (long long)t.tokens,
      (long long)t.preemptions, (long long)t.prefix_hits, (long long)t.cancelled, (long long)t.near_ties,
      (long long)t.diverged);
  CHECK(t.preemptions > 0 && t.prefix_hits > 0 && t.cancelled > 0);
  CHECK(t.diverged <= t.near_ties);
}

// Runs |count| requests at the same time.
static inline void crowd_run_many(mlx_engine_t *engine, int count) {
  static crowd_job_t jobs[CROWD_MANY];
  crowd_totals_t t = {0};
  mlx_scheduler_options_t options;
  mlx_scheduler_t *scheduler;
  int64_t most = 0;
  mlx_scheduler_options_initialize(&options);
  options.count_near_ties = true;
  CHECK_OK(mlx_scheduler_create(engine, &options, &scheduler));
  crowd_state = (uint64_t)count;
  CHECK(count <= CROWD_MANY);
  for (int i = 0; i < count; ++i) {
    crowd_make_job(&jobs[i], mlx_engine_info(engine).vocab, NULL);
    jobs[i].cancel = -1;
    jobs[i].options.max_tokens += 20;
    CHECK_OK(mlx_scheduler_submit(scheduler, jobs[i].ids, jobs[i].count, &jobs[i].options, &jobs[i].request));
  }
  for (bool idle = false; !idle;) {
    CHECK_OK(mlx_scheduler_step(scheduler, &idle));
    const int64_t running = mlx_scheduler_stats(scheduler).running;
    if (running > most) most = running;
  }
  CHECK(most > count / 2);
  t.near_ties = mlx_scheduler_stats(scheduler).near_ties;
  for (int i = 0; i < count; ++i) crowd_check_job(engine, &jobs[i], (uint64_t)count, i, &t);
  CHECK(t.diverged <= t.near_ties);
  for (int i = 0; i < count; ++i) mlx_request_free(jobs[i].request);
  mlx_scheduler_free(scheduler);
  fprintf(stderr, "  %s: %lld requests, up to %lld at a time; %lld near ties counted, %lld changed by one\n",
          mlx_engine_info(engine).device, (long long)t.requests, (long long)most, (long long)t.near_ties,
          (long long)t.diverged);
}

#endif  // MLXCEL_TESTS_CROWD_H_
