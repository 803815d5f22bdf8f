// The placement of requests on the engines of a model (server/core/servings.h), on the simulated module of
// tests/support/fake_stepper.h, and the estimate of what an engine has in its KV cache.
#include "server/core/servings.h"

#include <stdlib.h>
#include <uv.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "runtime/rooms.h"
#include "runtime/scheduler.h"
#include "server/core/prefix_index.h"
#include "tests/support/check.h"
#include "tests/support/fake_stepper.h"

#define TOKENIZER MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama/tokenizer.json"
#define ENGINES 2
#define SLOTS 4
#define PAGES 200

static mlx_tokenizer_t *tokenizer;

typedef struct device {
  fake_t fake;
  mlx_pool_t *pool;
  mlx_status_t (*wait)(mlx_stepper_t *, mlx_ticket_t *, const mlx_step_result_t **, size_t *);
  uv_sem_t gate;
  atomic_bool blocks, fails;
} device_t;

static struct {
  device_t devices[ENGINES];
  mlx_servings_t *servings;
} rig;

// A device that blocks or fails on demand.
static mlx_status_t wait_or_fail(mlx_stepper_t *stepper, mlx_ticket_t *ticket,
                                 const mlx_step_result_t **results, size_t *count) {
  device_t *device = (device_t *)(void *)stepper;
  if (atomic_load(&device->blocks)) uv_sem_wait(&device->gate);
  mlx_status_t status = device->wait(stepper, ticket, results, count);
  if (!atomic_load(&device->fails)) return status;
  mlx_status_free(status);
  return mlx_error(MLX_UNAVAILABLE, "the simulated device is lost");
}

static void add_engine(device_t *device, int64_t queue) {
  static const int32_t eos[] = {2};
  mlx_scheduler_options_t options;
  mlx_scheduler_t *scheduler;
  mlx_serving_t *serving;
  *device = (device_t){.fake = {.base = {.max_tokens = 64,
                                         .max_wanted = 64,
                                         .slots = SLOTS,
                                         .slot_pages = 16,
                                         .pool_pages = PAGES,
                                         .vocab = FAKE_VOCAB,
                                         .ragged = true,
                                         .samples = true}}};
  fake_start(&device->fake);
  device->wait = device->fake.base.wait;
  device->fake.base.wait = wait_or_fail;
  uv_sem_init(&device->gate, 0);
  CHECK_OK(mlx_pool_create(PAGES, 0, SLOTS, &device->pool));
  const mlx_scheduler_parts_t parts = {
      .stepper = &device->fake.base,
      .pool = device->pool,
      .language = {.tokenizer = tokenizer, .eos = eos, .eos_count = 1, .vocab = FAKE_VOCAB, .context = 256},
      .prompt_chunk = 16};
  mlx_scheduler_options_initialize(&options);
  CHECK_OK(mlx_scheduler_create_on(&parts, &options, &scheduler));
  CHECK_OK(mlx_serving_create(
      &(mlx_serving_options_t){.scheduler = scheduler, .parallel = SLOTS, .queue = queue}, &serving));
  CHECK_OK(mlx_servings_add(rig.servings, serving));
}

static void start(int64_t queue) {
  if (!tokenizer) {
    char *json;
    size_t length;
    CHECK_OK(mlx_read_file(TOKENIZER, 1 << 24, &json, &length));
    CHECK_OK(mlx_tokenizer_create(TOKENIZER, json, length, &tokenizer));
    mlx_free(json);
  }
  CHECK_OK(mlx_servings_create(0, &rig.servings));
  for (int i = 0; i < ENGINES; ++i) add_engine(&rig.devices[i], queue);
}

static void stop(void) {
  mlx_servings_free(rig.servings);
  for (int i = 0; i < ENGINES; ++i) {
    CHECK_INT(mlx_pool_counts(rig.devices[i].pool).used, 0);
    mlx_pool_free(rig.devices[i].pool);
    fake_clear(&rig.devices[i].fake);
    uv_sem_destroy(&rig.devices[i].gate);
  }
}

typedef struct job {
  mlx_task_t tasks[2];
  mlx_generate_options_t options;
  int32_t ids[128];
  int64_t cached;
  mlx_status_t status;
  uv_sem_t done;
} job_t;

static void on_done(mlx_task_t *task, const mlx_generation_t *generation, mlx_status_t status) {
  job_t *job = task->user;
  job->status = mlx_status_join(job->status, status);
  if (generation) job->cached = generation->cached_tokens;
  uv_sem_post(&job->done);
}

// A prompt of |count| tokens that begins like all others of this |seed|; the last one is |last|.
static void make_job(job_t *job, size_t count, int seed, int last) {
  *job = (job_t){0};
  mlx_generate_options_initialize(&job->options);
  job->options.max_tokens = 4;
  job->options.ignore_eos = true;
  for (size_t i = 0; i < count; ++i) job->ids[i] = 20 + (int32_t)((i * 7 + (size_t)seed * 31) % 200);
  job->ids[count - 1] = 20 + last;
  uv_sem_init(&job->done, 0);
  job->tasks[0] = (mlx_task_t){
      .ids = job->ids, .count = count, .options = &job->options, .on_done = on_done, .user = job};
}

// The engine that the request was placed on.
static size_t submit(job_t *job) {
  bool full;
  CHECK_OK(mlx_servings_submit(rig.servings, job->tasks, 1, &full));
  CHECK(!full);
  return mlx_serving_index(job->tasks[0].serving);
}

static void finish(job_t *job) {
  uv_sem_wait(&job->done);
  CHECK_OK(job->status);
  uv_sem_destroy(&job->done);
}

// Waits until an engine has no tasks and has published the result of |failures| failed steps.
static void settle(size_t index, int64_t failures) {
  mlx_serving_t *serving = mlx_servings_at(rig.servings, index);
  for (int i = 0; i < 30000; ++i) {
    const mlx_serving_stats_t stats = mlx_serving_stats(serving);
    if (!stats.tasks && !stats.scheduler.running && stats.failures >= failures) return;
    mlx_sleep_ms(1);
  }
  CHECK_FAIL("engine %zu does not settle", index);
}

static size_t run(job_t *job) {
  const size_t index = submit(job);
  finish(job);
  settle(index, 0);
  return index;
}

// ----------------------------------------------------------------------------------------------------------

TEST(a_request_goes_to_the_engine_that_has_its_prefix) {
  job_t job;
  start(10);
  make_job(&job, 100, 1, 0);
  const size_t first = run(&job);
  make_job(&job, 100, 2, 0);
  const size_t second = run(&job);
  CHECK_INT(first + second, 1);  // both engines have none of it: the one with fewer requests
  for (int i = 1; i < 4; ++i) {
    make_job(&job, 100, 1, i);
    CHECK_INT(run(&job), first);
    CHECK_INT(job.cached, 99);
    make_job(&job, 100, 2, i);
    CHECK_INT(run(&job), second);
    CHECK_INT(job.cached, 99);
  }
  make_job(&job, 40, 1, 77);  // 2 whole pages and a part
  CHECK_INT(run(&job), first);
  CHECK_INT(job.cached, 39);
  stop();
}

// A prefix is worth as much as its tokens, a sequence of an engine 32.
TEST(a_prefix_gives_way_to_load) {
  static job_t jobs[16];
  size_t counts[ENGINES] = {0};
  start(100);
  make_job(&jobs[0], 100, 1, 0);  // 6 whole pages: 96 tokens, or 3 sequences
  const size_t owner = run(&jobs[0]);
  for (int i = 0; i < ENGINES; ++i) atomic_store(&rig.devices[i].blocks, true);
  for (int i = 0; i < 4; ++i) {
    make_job(&jobs[i], 100, 1, 10 + i);
    ++counts[submit(&jobs[i])];
  }
  CHECK_INT(counts[owner], 3);  // the fourth would cost 4 + 96 there, and 100 on the other: fewer requests
  CHECK_INT(counts[1 - owner], 1);
  for (int i = 4; i < 16; ++i) {
    make_job(&jobs[i], 100, 1, 10 + i);
    ++counts[submit(&jobs[i])];
  }
  CHECK_INT(counts[0], 8);  // now both have the prefix
  CHECK_INT(counts[1], 8);
  for (int i = 0; i < ENGINES; ++i) {
    atomic_store(&rig.devices[i].blocks, false);
    for (int k = 0; k < 16; ++k) uv_sem_post(&rig.devices[i].gate);
  }
  for (int i = 0; i < 16; ++i) finish(&jobs[i]);
  stop();
}

TEST(a_long_prefix_does_not_load_one_engine_without_limit) {
  static job_t jobs[12];
  size_t counts[ENGINES] = {0};
  start(100);
  make_job(&jobs[0], 128, 1, 0);
  jobs[0].options.max_tokens = 120;  // with the answer 15 pages: 240 tokens
  const size_t owner = run(&jobs[0]);
  for (int i = 0; i < ENGINES; ++i) atomic_store(&rig.devices[i].blocks, true);
  for (int i = 0; i < 5; ++i) {
    make_job(&jobs[i], 128, 1, 0);
    ++counts[submit(&jobs[i])];
  }
  CHECK_INT(counts[owner], 4);
  for (int i = 0; i < ENGINES; ++i) {
    atomic_store(&rig.devices[i].blocks, false);
    for (int k = 0; k < 16; ++k) uv_sem_post(&rig.devices[i].gate);
  }
  for (int i = 0; i < 5; ++i) finish(&jobs[i]);
  stop();
}

TEST(a_request_that_one_engine_refuses_goes_to_another_and_only_then_waits_too_long) {
  static job_t jobs[ENGINES * (SLOTS + 1) + 1];
  size_t counts[ENGINES] = {0};
  bool full;
  const int most = ENGINES * (SLOTS + 1);
  start(1);
  for (int i = 0; i < ENGINES; ++i) atomic_store(&rig.devices[i].blocks, true);
  for (int i = 0; i < most; ++i) {
    make_job(&jobs[i], 20, i, 0);
    ++counts[submit(&jobs[i])];
  }
  CHECK_INT(counts[0], SLOTS + 1);
  CHECK_INT(counts[1], SLOTS + 1);
  make_job(&jobs[most], 20, most, 0);
  CHECK_OK(mlx_servings_submit(rig.servings, jobs[most].tasks, 1, &full));
  CHECK(full);
  uv_sem_destroy(&jobs[most].done);
  for (int i = 0; i < ENGINES; ++i) {
    atomic_store(&rig.devices[i].blocks, false);
    for (int k = 0; k < 16; ++k) uv_sem_post(&rig.devices[i].gate);
  }
  for (int i = 0; i < most; ++i) finish(&jobs[i]);
  stop();
}

// Its pages are lost. The others take its requests; after 5 s it gets one, and works again.
TEST(an_engine_that_fails_gets_no_requests_until_it_is_tried_again) {
  job_t job;
  char problem[256];
  start(10);
  make_job(&job, 100, 1, 0);
  const size_t broken = run(&job);
  atomic_store(&rig.devices[broken].fails, true);
  make_job(&job, 100, 1, 1);
  CHECK_INT(submit(&job), broken);
  uv_sem_wait(&job.done);
  CHECK_ERROR(job.status, MLX_UNAVAILABLE, "the simulated device is lost");
  uv_sem_destroy(&job.done);
  settle(broken, 1);
  const double failed = mlx_seconds();
  mlx_serving_stats_t stats = mlx_serving_stats(mlx_servings_at(rig.servings, broken));
  CHECK(!mlx_servings_works(rig.servings, &stats));
  mlx_servings_problem(rig.servings, "m", problem, sizeof problem);
  CHECK_TEXT(problem, "");  // the model works
  for (int i = 2; i < 8; ++i) {
    make_job(&job, 100, i, 0);
    CHECK_INT(run(&job), 1 - broken);
  }
  atomic_store(&rig.devices[broken].fails, false);
  while (mlx_seconds() < failed + 5.1) mlx_sleep_ms(10);
  make_job(&job, 100, 20, 0);
  CHECK_INT(run(&job), broken);
  stats = mlx_serving_stats(mlx_servings_at(rig.servings, broken));
  CHECK(mlx_servings_works(rig.servings, &stats));
  make_job(&job, 100, 1, 3);
  run(&job);
  CHECK_INT(job.cached, 0);  // its pages were forgotten, also by the placement: no engine has them
  stop();
}

TEST(a_request_is_refused_with_the_reason_if_no_engine_works) {
  job_t job;
  char problem[256];
  bool full;
  start(10);
  for (int i = 0; i < ENGINES; ++i) atomic_store(&rig.devices[i].fails, true);
  for (int i = 0; i < 3 * ENGINES; ++i) {
    make_job(&job, 20, i, 0);
    const size_t index = submit(&job);
    uv_sem_wait(&job.done);
    mlx_status_free(job.status);
    uv_sem_destroy(&job.done);
    settle(index, 1);
  }
  for (size_t i = 0; i < ENGINES; ++i) settle(i, 3);
  make_job(&job, 20, 9, 0);
  CHECK_ERROR(mlx_servings_submit(rig.servings, job.tasks, 1, &full), MLX_UNAVAILABLE,
              "the device failed: the simulated device is lost");
  uv_sem_destroy(&job.done);
  mlx_servings_problem(rig.servings, "m", problem, sizeof problem);
  CHECK_TEXT(problem, "the last 3 steps of m failed: the simulated device is lost");
  stop();
}

// ----------------------------------------------------------------------------------------------------------

static void hash_pages(int seed, size_t count, uint64_t *out) {
  int32_t ids[MLX_PAGE_POSITIONS];
  uint64_t before = 0;
  for (size_t page = 0; page < count; ++page) {
    for (size_t i = 0; i < MLX_PAGE_POSITIONS; ++i) ids[i] = seed + (int32_t)(page * 16 + i);
    out[page] = before = mlx_page_hash(before, ids, MLX_PAGE_POSITIONS);
  }
}

TEST(the_index_finds_whole_prefixes_and_drops_the_oldest_pages_from_their_ends) {
  mlx_prefix_index_t *index;
  uint64_t a[6], b[6], c[6];
  hash_pages(1000, 6, a);
  hash_pages(2000, 6, b);
  hash_pages(3000, 6, c);
  CHECK_OK(mlx_prefix_index_create(10, &index));
  CHECK_INT(mlx_prefix_index_find(index, a, 6), 0);
  mlx_prefix_index_add(index, a, 4);
  CHECK_INT(mlx_prefix_index_find(index, a, 6), 4);
  CHECK_INT(mlx_prefix_index_find(index, a + 1, 3), 3);
  mlx_prefix_index_add(index, b, 6);
  CHECK_INT(mlx_prefix_index_find(index, a, 6), 4);
  mlx_prefix_index_add(index, a, 4);  // b is now the oldest
  mlx_prefix_index_add(index, c, 3);
  CHECK_INT(mlx_prefix_index_find(index, a, 6), 4);
  CHECK_INT(mlx_prefix_index_find(index, b, 6), 3);
  CHECK_INT(mlx_prefix_index_find(index, c, 6), 3);
  mlx_prefix_index_clear(index);
  CHECK_INT(mlx_prefix_index_find(index, a, 6), 0);
  mlx_prefix_index_add(index, a, 6);
  CHECK_INT(mlx_prefix_index_find(index, a, 6), 6);
  mlx_prefix_index_free(index);
  CHECK_OK(mlx_prefix_index_create(0, &index));
  mlx_prefix_index_add(index, a, 6);
  CHECK_INT(mlx_prefix_index_find(index, a, 6), 0);
  mlx_prefix_index_free(index);
}

// Against a list: the pages that were used last, in the order of their use.
TEST(the_index_agrees_with_a_list_of_the_last_pages) {
  enum { CAPACITY = 37, SEEDS = 12, MOST = 9 };
  mlx_prefix_index_t *index;
  uint64_t list[CAPACITY + 1], pages[MOST];
  size_t count = 0;
  uint32_t random = 1;
  CHECK_OK(mlx_prefix_index_create(CAPACITY, &index));
  for (int round = 0; round < 4000; ++round) {
    random = random * 1664525u + 1013904223u;
    const size_t length = 1 + (random >> 8) % MOST;
    hash_pages((int)((random >> 16) % SEEDS) * 100000, length, pages);
    size_t expected = 0;
    for (bool found = true; found && expected < length; expected += found) {
      found = false;
      for (size_t k = 0; k < count; ++k) found |= list[k] == pages[expected];
    }
    CHECK_INT(mlx_prefix_index_find(index, pages, length), expected);
    mlx_prefix_index_add(index, pages, length);
    for (size_t i = length; i-- > 0;) {  // the newest is the last of the list
      size_t at = 0;
      while (at < count && list[at] != pages[i]) ++at;
      if (at < count) memmove(list + at, list + at + 1, (--count - at) * sizeof *list);
      list[count++] = pages[i];
      if (count > CAPACITY) memmove(list, list + 1, --count * sizeof *list);
    }
  }
  mlx_prefix_index_free(index);
}

TEST_MAIN(CASE(a_request_goes_to_the_engine_that_has_its_prefix), CASE(a_prefix_gives_way_to_load),
          CASE(a_long_prefix_does_not_load_one_engine_without_limit),
          CASE(a_request_that_one_engine_refuses_goes_to_another_and_only_then_waits_too_long),
          CASE(an_engine_that_fails_gets_no_requests_until_it_is_tried_again),
          CASE(a_request_is_refused_with_the_reason_if_no_engine_works),
          CASE(the_index_finds_whole_prefixes_and_drops_the_oldest_pages_from_their_ends),
          CASE(the_index_agrees_with_a_list_of_the_last_pages))
