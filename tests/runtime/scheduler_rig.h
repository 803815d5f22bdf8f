// A scheduler on the simulated module of fake_stepper.h, and requests with the tokens that they must get.
#ifndef MLXCEL_TESTS_SCHEDULER_RIG_H_
#define MLXCEL_TESTS_SCHEDULER_RIG_H_

#include "runtime/scheduler.h"

#include "base/file.h"
#include "grammar/grammar.h"
#include "runtime/output.h"
#include "runtime/sampler.h"
#include "tests/support/fake_stepper.h"
#include "tests/support/faults.h"

#define TOKENIZER MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama/tokenizer.json"
#define MOST 16      // requests of a mix
#define LONGEST 400  // tokens of a prompt

static mlx_tokenizer_t *tokenizer;
static mlx_grammar_t *grammar;
static const int32_t eos[] = {2, 77};

static mlx_status_t vocabulary_of(mlx_engine_t *engine, bool first, const mlx_vocabulary_t **out) {
  static mlx_vocabulary_t *made[2];
  (void)engine;
  if (!made[first]) MLX_TRY(mlx_vocabulary_create(tokenizer, FAKE_VOCAB, first, &made[first]));
  *out = made[first];
  return NULL;
}

static mlx_language_t language_of(int64_t context) {
  static const char text[] = "root ::= [a-f]{1,3} (\" \" [a-f]{1,4}){0,6}";
  if (!tokenizer) {
    char *json;
    size_t length;
    CHECK_OK(mlx_read_file(TOKENIZER, 1 << 24, &json, &length));
    CHECK_OK(mlx_tokenizer_create(TOKENIZER, json, length, &tokenizer));
    CHECK_OK(mlx_grammar_create("grammar", text, sizeof text - 1, &grammar));
    mlx_free(json);
  }
  return (mlx_language_t){.tokenizer = tokenizer,
                          .eos = eos,
                          .eos_count = 2,
                          .vocab = FAKE_VOCAB,
                          .context = context,
                          .model_context = context,
                          .vocabulary = vocabulary_of};
}

// ----------------------------------------------------------------------------------------------------------
// A scheduler and its parts

typedef struct rig {
  fake_t fake;
  mlx_pool_t *pool;
  mlx_scheduler_t *scheduler;
  int64_t positions;   // most positions of a sequence
  uint64_t mask_work;  // as in mlx_language_t
} rig_t;

static double rig_now;  // seconds, on the clock that the simulated module advances
static double rig_clock(void) { return rig_now; }

// The caller has set the limits of rig->fake.
static void start(rig_t *rig, int64_t context, const mlx_scheduler_options_t *options) {
  rig->fake.clock = &rig_now;
  rig_now = 0;
  fake_start(&rig->fake);
  CHECK_OK(mlx_pool_create(rig->fake.base.pool_pages, rig->fake.base.window_pages, rig->fake.base.slots,
                           &rig->pool));
  mlx_scheduler_parts_t parts = {.stepper = &rig->fake.base,
                                 .pool = rig->pool,
                                 .language = language_of(context),
                                 .prompt_chunk = 16,
                                 .now = rig_clock};
  parts.language.mask_work = rig->mask_work;
  CHECK_OK(mlx_scheduler_create_on(&parts, options, &rig->scheduler));
  const int64_t pages = rig->fake.base.pool_pages - 1 < rig->fake.base.slot_pages
                            ? rig->fake.base.pool_pages - 1
                            : rig->fake.base.slot_pages;
  rig->positions = context < pages * MLX_KV_PAGE ? context : pages * MLX_KV_PAGE;
}

static void stop(rig_t *rig) {
  const mlx_scheduler_stats_t stats = mlx_scheduler_stats(rig->scheduler);
  CHECK_INT(stats.running, 0);
  CHECK_INT(stats.waiting, 0);
  CHECK_INT(stats.pages_used, 0);
  CHECK_INT(stats.pages_cached + stats.pages_free, rig->fake.base.pool_pages - 1);
  CHECK_INT(stats.window_pages_used, 0);
  for (int32_t slot = 0; slot < rig->fake.base.slots; ++slot) CHECK_INT(mlx_pool_take_slot(rig->pool), slot);
  mlx_scheduler_delete(rig->scheduler);
  CHECK_OK(mlx_pool_check(rig->pool));
  mlx_pool_free(rig->pool);
  fake_clear(&rig->fake);
}

// Calls mlx_scheduler_step and checks the pool.
static bool step(rig_t *rig) {
  bool idle;
  CHECK_OK(mlx_scheduler_step(rig->scheduler, &idle));
  CHECK_OK(mlx_pool_check(rig->pool));
  return idle;
}

static rig_t plain_rig(int64_t slots, int64_t pages) {
  return (rig_t){.fake = {.base = {.max_tokens = 64,
                                   .max_wanted = 64,
                                   .slots = slots,
                                   .slot_pages = 16,
                                   .pool_pages = pages,
                                   .ragged = true,
                                   .samples = true}}};
}

// ----------------------------------------------------------------------------------------------------------
// What a request must give

typedef struct heard {  // what the callbacks got
  mlx_text_t text;
  size_t calls, limit;  // on_text returns false in call number |limit|; 0: never
  int done;
} heard_t;

static bool hear(void *user, const char *text, size_t length) {
  heard_t *heard = user;
  mlx_text_append(&heard->text, text, length);
  return ++heard->calls != heard->limit;
}

static void hear_done(void *user, mlx_request_t *request) {
  CHECK(mlx_request_is_done(request));
  ++((heard_t *)user)->done;
}

typedef struct alone {  // the KV of a sequence
  uint64_t kv[LONGEST * 2], window_kv[LONGEST * 2];
} alone_t;

static uint64_t feed_layer(uint64_t *kv, size_t first, size_t position, int32_t id, uint64_t state) {
  for (size_t i = first; i < position; ++i) state = fake_mix(state, kv[i]);
  kv[position] = fake_kv(state, id, (int64_t)position);
  return fake_mix(state, kv[position]);
}

// The state of a sequence after the token |id| at |position|. |alone| has the entries of the positions before
// it, and |state| is that of the last one.
static uint64_t feed_alone(const mlx_stepper_t *base, int32_t id, size_t position, alone_t *alone,
                           uint64_t state) {
  const size_t first = (size_t)fake_first_seen(base->window, (int64_t)position);
  if (base->window_pages)
    return feed_layer(alone->kv, 0, position, id, feed_layer(alone->window_kv, first, position, id, 0));
  return feed_layer(alone->kv, first ? first : position, position, id, first ? 0 : state);
}

// Generates without scheduler, pages and queue. Returns the error that ends the request.
static mlx_status_t generate_alone(const mlx_generate_options_t *given, const rig_t *rig, const int32_t *ids,
                                   size_t count, mlx_output_t *out) {
  const mlx_language_t language = language_of(LONGEST);
  mlx_generate_options_t options = *given;
  mlx_sequence_sampler_t *sampler;
  int32_t all[LONGEST * 2];
  float logits[FAKE_VOCAB];
  mlx_status_t status = NULL;
  mlx_finish_reason_t reason = MLX_FINISH_LENGTH;
  uint64_t state = 0;
  alone_t alone;
  const int64_t window = rig->fake.base.window;
  options.on_text = NULL;
  memcpy(all, ids, count * sizeof *ids);
  CHECK_OK(
      mlx_sequence_sampler_create(&language, &options, rig->fake.base.samples, false, ids, count, &sampler));
  CHECK_OK(mlx_output_initialize(&options, tokenizer, eos, 2, FAKE_VOCAB, out));
  for (size_t fed = 0; mlx_output_left(out) && !out->ended && !status;) {
    reason = MLX_FINISH_CONTEXT;
    if (count > (size_t)rig->positions) break;
    for (; fed < count; ++fed) state = feed_alone(&rig->fake.base, all[fed], fed, &alone, state);
    mlx_step_sampling_t wanted;
    fake_answer_t answer;
    mlx_choice_t choice;
    mlx_readiness_t readiness;
    reason = MLX_FINISH_STOP;
    status = mlx_sequence_sampler_prepare(sampler, &wanted, &readiness);
    for (; !status && readiness == MLX_SAMPLER_LATE;
         status = status ? status : mlx_sequence_sampler_prepare(sampler, &wanted, &readiness))
      status = mlx_sequence_sampler_work(sampler);
    if (status || readiness == MLX_SAMPLER_COMPLETE) break;
    fake_logits(state, window ? 0 : all[0], all[count - 1], logits);
    fake_sample(logits, state, &wanted, all, (int64_t)count, &answer);
    answer.result.top_ids = answer.top_ids;
    answer.result.top_logprobs = answer.top_logprobs;
    status = mlx_sequence_sampler_choose(sampler, count, &answer.result,
                                         mlx_sequence_sampler_reads_logits(sampler) ? logits : NULL, &choice);
    if (status) break;
    all[count++] = choice.id;
    CHECK_OK(mlx_output_add(out, choice.id, choice.logprobs));
  }
  CHECK_OK(mlx_output_finish(out, reason));
  mlx_sequence_sampler_free(sampler);
  return status;
}

typedef struct job {
  int32_t ids[LONGEST];
  size_t count;
  mlx_generate_options_t options;
  mlx_sampling_t sampling;
  mlx_logit_bias_t bias;
  int arrival, cancel;  // numbers of steps; cancel -1: never
  mlx_request_t *request;
  heard_t heard;
} job_t;

// The log-probabilities of the prompt's tokens are those of the sequence alone.
static void check_prompt_scores(const rig_t *rig, const job_t *job, const mlx_generation_t *g, int number) {
  const size_t count = (size_t)job->options.prompt_logprobs;
  float logits[FAKE_VOCAB];
  mlx_logprob_t expected[64];
  const int64_t window = rig->fake.base.window;
  uint64_t state = 0;
  alone_t alone;
  for (size_t i = 0; i + 1 < job->count; ++i) {
    const mlx_logprob_t *row = g->prompt_logprobs + i * (count + 1);
    state = feed_alone(&rig->fake.base, job->ids[i], i, &alone, state);
    fake_logits(state, window ? 0 : job->ids[0], job->ids[i], logits);
    CHECK_OK(mlx_logprobs(logits, FAKE_VOCAB, job->ids[i + 1], count, expected));
    for (size_t k = 0; k <= count; ++k) {
      if (fabs(row[k].logprob - expected[k].logprob) > 1e-5 || (k == count && row[k].id != job->ids[i + 1]))
        CHECK_FAIL("job %d: prompt token %zu, entry %zu: %d %g, alone %d %g", number, i + 1, k, row[k].id,
                   row[k].logprob, expected[k].id, expected[k].logprob);
    }
  }
}

// |given| and |expected| are from the same request. A request that was cancelled has a prefix of the tokens.
static void check_job(job_t *job, const rig_t *rig, int number) {
  mlx_output_t expected;
  mlx_status_t failed = generate_alone(&job->options, rig, job->ids, job->count, &expected);
  mlx_status_t status = mlx_request_take_status(job->request);
  const mlx_generation_t *g = mlx_request_generation(job->request), *e = &expected.generation;
  const bool cancelled = g->finish_reason == MLX_FINISH_CANCELLED;
  if (g->count > e->count || (!cancelled && g->count != e->count))
    CHECK_FAIL("job %d has %zu tokens (%s), alone %zu (%s): %s", number, g->count,
               mlx_finish_reason_name(g->finish_reason), e->count, mlx_finish_reason_name(e->finish_reason),
               mlx_status_message(status));
  for (size_t i = 0; i < g->count; ++i) {
    if (g->ids[i] != e->ids[i])
      CHECK_FAIL("job %d: token %zu is %d, alone %d", number, i, g->ids[i], e->ids[i]);
  }
  const size_t width = (size_t)(job->options.logprobs + 1);
  if (g->count && width) CHECK(!memcmp(g->logprobs, e->logprobs, g->count * width * sizeof *g->logprobs));
  CHECK_INT(mlx_status_code(status), cancelled ? MLX_OK : mlx_status_code(failed));
  if (!cancelled && !status) {
    CHECK_INT(g->finish_reason, e->finish_reason);
    CHECK_TEXT(g->text, e->text);
    if (job->options.prompt_logprobs >= 0) check_prompt_scores(rig, job, g, number);
  }
  if (status) CHECK_INT(g->finish_reason, MLX_FINISH_ERROR);
  CHECK_TEXT(job->heard.text.data ? job->heard.text.data : "", g->text);
  CHECK_INT(job->heard.done, 1);
  CHECK(!cancelled || job->cancel >= 0 || job->heard.limit);
  mlx_status_free(status);
  mlx_status_free(failed);
  mlx_output_clear(&expected);
}

static void submit(rig_t *rig, job_t *job) {
  job->options.on_text = hear;
  job->options.on_done = hear_done;
  job->options.user = &job->heard;
  CHECK_OK(mlx_scheduler_submit(rig->scheduler, job->ids, job->count, &job->options, &job->request));
}

static void release(job_t *job) {
  mlx_request_free(job->request);
  mlx_text_clear(&job->heard.text);
}

// A job with a prompt of |count| tokens that depend on |family| and, from token |shared| on, on |seed|.
static void make_job(job_t *job, uint64_t family, size_t shared, size_t count, uint64_t seed) {
  *job = (job_t){.count = count, .cancel = -1};
  for (size_t i = 0; i < count; ++i)
    job->ids[i] = (int32_t)(fake_mix(i < shared ? family : family + seed * 1000 + 7, i) % 300) + 10;
  mlx_generate_options_initialize(&job->options);
}

#endif  // MLXCEL_TESTS_SCHEDULER_RIG_H_
