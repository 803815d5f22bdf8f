// The scheduler thread of a model (server/core/serving.h), on the simulated module of
// tests/support/fake_stepper.h.
#include "server/core/serving.h"

#include <stdlib.h>
#include <uv.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "runtime/scheduler.h"
#include "server/core/worker.h"
#include "tests/support/check.h"
#include "tests/support/fake_stepper.h"

#define TOKENIZER MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama/tokenizer.json"
#define MOST_TASKS 16

static mlx_tokenizer_t *tokenizer;

typedef struct rig {
  fake_t fake;
  mlx_pool_t *pool;
  mlx_serving_t *serving;
  mlx_status_t (*wait)(mlx_stepper_t *, mlx_ticket_t *, const mlx_step_result_t **, size_t *);
  uv_sem_t blocked;
  atomic_bool blocks, fails;
} rig_t;

// A device that blocks or fails on demand.
static mlx_status_t wait_or_block(mlx_stepper_t *stepper, mlx_ticket_t *ticket,
                                  const mlx_step_result_t **results, size_t *count) {
  rig_t *rig = (rig_t *)(void *)stepper;
  if (atomic_load(&rig->blocks)) uv_sem_wait(&rig->blocked);
  mlx_status_t status = rig->wait(stepper, ticket, results, count);
  if (!atomic_load(&rig->fails)) return status;
  mlx_status_free(status);
  return mlx_error(MLX_UNAVAILABLE, "the simulated device is lost");
}

static void start(rig_t *rig, int64_t slots, int64_t pages, int64_t queue) {
  static const int32_t eos[] = {2};
  mlx_scheduler_options_t options;
  mlx_scheduler_t *scheduler;
  if (!tokenizer) {
    char *json;
    size_t length;
    CHECK_OK(mlx_read_file(TOKENIZER, 1 << 24, &json, &length));
    CHECK_OK(mlx_tokenizer_create(TOKENIZER, json, length, &tokenizer));
    mlx_free(json);
  }
  *rig = (rig_t){.fake = {.base = {.max_tokens = 64,
                                   .max_wanted = 64,
                                   .slots = slots,
                                   .slot_pages = 16,
                                   .pool_pages = pages,
                                   .vocab = FAKE_VOCAB,
                                   .ragged = true,
                                   .samples = true}}};
  fake_start(&rig->fake);
  rig->wait = rig->fake.base.wait;
  rig->fake.base.wait = wait_or_block;
  uv_sem_init(&rig->blocked, 0);
  CHECK_OK(mlx_pool_create(pages, 0, slots, &rig->pool));
  const mlx_scheduler_parts_t parts = {
      .stepper = &rig->fake.base,
      .pool = rig->pool,
      .language = {.tokenizer = tokenizer, .eos = eos, .eos_count = 1, .vocab = FAKE_VOCAB, .context = 256},
      .prompt_chunk = 16};
  mlx_scheduler_options_initialize(&options);
  CHECK_OK(mlx_scheduler_create_on(&parts, &options, &scheduler));
  CHECK_OK(mlx_serving_create(
      &(mlx_serving_options_t){.scheduler = scheduler, .parallel = slots, .queue = queue}, &rig->serving));
}

static void stop(rig_t *rig) {
  mlx_serving_free(rig->serving);
  CHECK_INT(mlx_pool_counts(rig->pool).used, 0);
  CHECK_OK(mlx_pool_check(rig->pool));
  mlx_pool_free(rig->pool);
  fake_clear(&rig->fake);
  uv_sem_destroy(&rig->blocked);
}

typedef struct job {
  mlx_task_t task;
  mlx_generate_options_t options;
  int32_t ids[64];
  mlx_generation_t result;  // a copy: ids and embedding are owned
  mlx_status_t status;
  uv_sem_t done;
  atomic_int texts;
} job_t;

static bool on_text(mlx_task_t *task, const char *text, size_t length) {
  (void)text, (void)length;
  atomic_fetch_add(&((job_t *)task->user)->texts, 1);
  return true;
}

static void on_done(mlx_task_t *task, const mlx_generation_t *generation, mlx_status_t status) {
  job_t *job = task->user;
  job->status = status;
  if (generation) {
    job->result = *generation;
    job->result.ids = NULL;
    job->result.embedding = NULL;
    if (generation->count) {
      job->result.ids = malloc(generation->count * sizeof *job->result.ids);
      memcpy(job->result.ids, generation->ids, generation->count * sizeof *job->result.ids);
    }
    if (generation->embedding) {
      job->result.embedding = malloc(FAKE_HIDDEN * sizeof(float));
      memcpy(job->result.embedding, generation->embedding, FAKE_HIDDEN * sizeof(float));
    }
  }
  uv_sem_post(&job->done);
}

// A prompt of |count| tokens, of which the first |shared| are the same for all seeds.
static void make_job(rig_t *rig, job_t *job, size_t shared, size_t count, int seed) {
  *job = (job_t){0};
  mlx_generate_options_initialize(&job->options);
  job->options.max_tokens = 12;
  job->options.ignore_eos = true;
  for (size_t i = 0; i < count; ++i)
    job->ids[i] = (int32_t)(20 + (i < shared ? i : i * 7 + (size_t)seed) % 200);
  uv_sem_init(&job->done, 0);
  job->task = (mlx_task_t){.serving = rig->serving,
                           .ids = job->ids,
                           .count = count,
                           .options = &job->options,
                           .on_text = on_text,
                           .on_done = on_done,
                           .user = job};
}

static void submit(rig_t *rig, job_t *job) {
  bool full;
  CHECK_OK(mlx_serving_submit(rig->serving, &job->task, 1, &full));
  CHECK(!full);
}

static void wait_for(job_t *job) { uv_sem_wait(&job->done); }

static void release(job_t *job) {
  mlx_status_free(job->status);
  free(job->result.ids);
  free(job->result.embedding);
  uv_sem_destroy(&job->done);
}

// Waits until the tasks are gone: on_done comes before the thread publishes its numbers.
static mlx_serving_stats_t settled(rig_t *rig) {
  mlx_serving_stats_t stats = mlx_serving_stats(rig->serving);
  for (int i = 0; i < 30000 && (stats.tasks || stats.scheduler.running); ++i) {
    mlx_sleep_ms(1);
    stats = mlx_serving_stats(rig->serving);
  }
  return stats;
}

// The same, and until |failures| steps in a row have failed.
static mlx_serving_stats_t settled_after_failures(rig_t *rig, int64_t failures) {
  for (int i = 0; i < 30000 && mlx_serving_stats(rig->serving).failures < failures; ++i) mlx_sleep_ms(1);
  return settled(rig);
}

// ----------------------------------------------------------------------------------------------------------

TEST(tasks_of_many_threads_get_the_tokens_that_they_get_alone) {
  rig_t rig;
  static job_t alone[8], together[8];
  start(&rig, 4, 200, 100);
  for (int i = 0; i < 8; ++i) {
    make_job(&rig, &alone[i], 20, 30, i);
    submit(&rig, &alone[i]);
    wait_for(&alone[i]);
    CHECK_INT(alone[i].result.count, 12);
    CHECK(atomic_load(&alone[i].texts) >= 1);
  }
  CHECK_INT(alone[0].result.cached_tokens, 0);
  CHECK_INT(alone[1].result.cached_tokens, 20);  // a page and a copied part of one
  for (int i = 0; i < 8; ++i) make_job(&rig, &together[i], 20, 30, i);
  for (int i = 0; i < 8; ++i) submit(&rig, &together[i]);
  for (int i = 0; i < 8; ++i) {
    wait_for(&together[i]);
    CHECK_INT(together[i].result.count, 12);
    for (int k = 0; k < 12; ++k) CHECK_INT(together[i].result.ids[k], alone[i].result.ids[k]);
    CHECK(together[i].result.queue_seconds >= 0);
    CHECK(together[i].result.queue_seconds <= together[i].result.prompt_seconds);
  }
  CHECK_INT(settled(&rig).scheduler.pages_used, 0);
  for (int i = 0; i < 8; ++i) release(&alone[i]);
  for (int i = 0; i < 8; ++i) release(&together[i]);
  stop(&rig);
}

static struct {
  size_t index, alone;   // of the long task; calls without another task
  int64_t task, others;  // number of the long task; the largest number of another one
} slot_seen;

// On the scheduler thread: the slots as after the last step. The long task has a prompt of 40 tokens.
static bool look_at_slots(mlx_task_t *task, const char *text, size_t length) {
  mlx_slot_t slots[4];
  size_t busy = 0;
  CHECK_INT(mlx_serving_slots(task->serving, slots, 4), 2);
  for (size_t i = 0; i < 2; ++i) {
    busy += slots[i].task > 0;
    if (slots[i].prompt_tokens == 40) {
      if (!slot_seen.task) slot_seen.index = i;
      if (!slot_seen.task) slot_seen.task = slots[i].task;
      CHECK_INT(i, slot_seen.index);
      CHECK_INT(slots[i].task, slot_seen.task);
      CHECK_INT(slots[i].max_tokens, 50);
    } else if (slots[i].task > slot_seen.others) {
      slot_seen.others = slots[i].task;
    }
  }
  slot_seen.alone += busy == 1;
  return on_text(task, text, length);
}

TEST(a_task_keeps_its_slot_while_others_come_and_go) {
  rig_t rig;
  static job_t jobs[4];
  mlx_slot_t slots[2];
  start(&rig, 2, 200, 100);
  atomic_store(&rig.blocks, true);  // until all tasks are there
  for (int i = 0; i < 4; ++i) {
    make_job(&rig, &jobs[i], 0, i ? 10 : 40, i);
    jobs[i].options.max_tokens = i ? 5 : 50;
    jobs[i].task.on_text = i ? on_text : look_at_slots;
    submit(&rig, &jobs[i]);
  }
  atomic_store(&rig.blocks, false);
  uv_sem_post(&rig.blocked);
  for (int i = 0; i < 4; ++i) wait_for(&jobs[i]);
  CHECK(slot_seen.task > 0 && slot_seen.others >= 3 && slot_seen.alone > 0);
  settled(&rig);
  CHECK_INT(mlx_serving_slots(rig.serving, slots, 2), 2);
  CHECK(!slots[0].task && !slots[1].task);
  for (int i = 0; i < 4; ++i) release(&jobs[i]);
  stop(&rig);
}

TEST(an_embedding_beside_decodes_is_the_embedding_alone) {
  rig_t rig;
  static job_t alone, jobs[6];
  start(&rig, 4, 200, 100);
  make_job(&rig, &alone, 20, 30, 3);
  alone.options.embed = true;
  submit(&rig, &alone);
  wait_for(&alone);
  CHECK(!alone.status);
  CHECK_INT(alone.result.count, 0);
  double sum = 0;
  for (int i = 0; i < FAKE_HIDDEN; ++i) sum += alone.result.embedding[i] * alone.result.embedding[i];
  CHECK(sum > 0.9999 && sum < 1.0001);
  for (int i = 0; i < 6; ++i) {
    make_job(&rig, &jobs[i], 20, 30, i);
    jobs[i].options.embed = i == 3;
    submit(&rig, &jobs[i]);
  }
  for (int i = 0; i < 6; ++i) wait_for(&jobs[i]);
  for (int i = 0; i < FAKE_HIDDEN; ++i) CHECK(jobs[3].result.embedding[i] == alone.result.embedding[i]);
  CHECK(jobs[3].result.cached_tokens >= 16);
  for (int i = 0; i < 6; ++i) CHECK_INT(jobs[i].result.count, i == 3 ? 0 : 12);
  for (int i = 0; i < 6; ++i) release(&jobs[i]);
  release(&alone);
  stop(&rig);
}

TEST(an_embedding_that_is_not_finite_is_an_error_of_its_request) {
  rig_t rig;
  static job_t bad, good;
  start(&rig, 4, 200, 100);
  make_job(&rig, &bad, 20, 30, 3);
  bad.ids[0] = FAKE_POISON;
  bad.options.embed = true;
  submit(&rig, &bad);
  make_job(&rig, &good, 20, 30, 3);
  submit(&rig, &good);
  wait_for(&bad);
  wait_for(&good);
  CHECK_ERROR(bad.status, MLX_INVALID_INPUT, "not finite");
  bad.status = NULL;
  CHECK_INT(good.result.count, 12);
  release(&bad);
  release(&good);
  stop(&rig);
}

TEST(choices_of_one_prompt_compute_it_once) {
  rig_t rig;
  static job_t jobs[4];
  mlx_task_t tasks[4];
  bool full;
  start(&rig, 4, 200, 100);
  for (int i = 0; i < 4; ++i) {
    make_job(&rig, &jobs[i], 50, 50, 0);
    tasks[i] = jobs[i].task;
    if (i) tasks[i].after = &tasks[0];
  }
  CHECK_OK(mlx_serving_submit(rig.serving, tasks, 4, &full));
  for (int i = 0; i < 4; ++i) wait_for(&jobs[i]);
  CHECK_INT(jobs[0].result.cached_tokens, 0);
  for (int i = 1; i < 4; ++i) CHECK_INT(jobs[i].result.cached_tokens, 48);  // the full pages
  for (int i = 0; i < 4; ++i) release(&jobs[i]);
  stop(&rig);
}

TEST(a_full_queue_refuses_tasks_and_takes_all_or_none) {
  rig_t rig;
  static job_t jobs[4];
  bool full;
  start(&rig, 1, 200, 2);
  atomic_store(&rig.blocks, true);
  for (int i = 0; i < 3; ++i) {
    make_job(&rig, &jobs[i], 20, 30, i);
    submit(&rig, &jobs[i]);
  }
  make_job(&rig, &jobs[3], 20, 30, 3);
  CHECK_OK(mlx_serving_submit(rig.serving, &jobs[3].task, 1, &full));
  CHECK(full);
  atomic_store(&rig.blocks, false);
  uv_sem_post(&rig.blocked);
  for (int i = 0; i < 3; ++i) wait_for(&jobs[i]);
  CHECK_INT(settled(&rig).tasks, 0);
  submit(&rig, &jobs[3]);
  wait_for(&jobs[3]);
  for (int i = 0; i < 4; ++i) release(&jobs[i]);
  stop(&rig);
}

TEST(a_request_of_many_tasks_takes_one_place_in_the_queue) {
  rig_t rig;
  static job_t first, jobs[8], last[2];
  mlx_task_t tasks[8];
  bool full;
  start(&rig, 1, 200, 2);
  atomic_store(&rig.blocks, true);
  make_job(&rig, &first, 20, 30, 0);
  submit(&rig, &first);
  for (int i = 0; i < 8; ++i) {
    make_job(&rig, &jobs[i], 20, 30, i);
    tasks[i] = jobs[i].task;
  }
  CHECK_OK(mlx_serving_submit(rig.serving, tasks, 8, &full));
  CHECK(!full);
  for (int i = 0; i < 2; ++i) {
    make_job(&rig, &last[i], 20, 30, i);
    CHECK_OK(mlx_serving_submit(rig.serving, &last[i].task, 1, &full));
    CHECK_INT(full, i == 1);
  }
  atomic_store(&rig.blocks, false);
  uv_sem_post(&rig.blocked);
  wait_for(&first);
  for (int i = 0; i < 8; ++i) wait_for(&jobs[i]);
  wait_for(&last[0]);
  CHECK_INT(settled(&rig).tasks, 0);
  submit(&rig, &last[1]);
  wait_for(&last[1]);
  for (int i = 0; i < 8; ++i) release(&jobs[i]);
  for (int i = 0; i < 2; ++i) release(&last[i]);
  release(&first);
  stop(&rig);
}

TEST(a_cancelled_task_frees_its_pages) {
  rig_t rig;
  static job_t jobs[3];
  start(&rig, 2, 200, 10);
  for (int i = 0; i < 3; ++i) {
    make_job(&rig, &jobs[i], 20, 30, i);
    jobs[i].options.max_tokens = -1;
  }
  atomic_store(&rig.blocks, true);
  for (int i = 0; i < 3; ++i) submit(&rig, &jobs[i]);
  for (int i = 0; i < 3; ++i) mlx_serving_cancel(&jobs[i].task);
  atomic_store(&rig.blocks, false);
  uv_sem_post(&rig.blocked);
  for (int i = 0; i < 3; ++i) {
    wait_for(&jobs[i]);
    CHECK(jobs[i].result.count < 4);
  }
  const mlx_serving_stats_t stats = settled(&rig);
  CHECK_INT(stats.tasks, 0);
  CHECK_INT(stats.scheduler.pages_used, 0);
  for (int i = 0; i < 3; ++i) release(&jobs[i]);
  stop(&rig);
}

TEST(a_task_that_was_cancelled_before_it_was_submitted_ends) {
  rig_t rig;
  static job_t job;
  start(&rig, 2, 200, 10);
  make_job(&rig, &job, 20, 30, 0);
  mlx_serving_cancel(&job.task);
  submit(&rig, &job);
  wait_for(&job);
  CHECK_INT(atomic_load(&job.texts), 0);
  release(&job);
  stop(&rig);
}

TEST(a_device_error_ends_running_tasks_and_the_next_ones_work) {
  rig_t rig;
  static job_t jobs[2], next;
  start(&rig, 2, 200, 10);
  atomic_store(&rig.fails, true);
  for (int i = 0; i < 2; ++i) {
    make_job(&rig, &jobs[i], 20, 30, i);
    submit(&rig, &jobs[i]);
  }
  for (int i = 0; i < 2; ++i) {
    wait_for(&jobs[i]);
    CHECK_ERROR(jobs[i].status, MLX_UNAVAILABLE, "the simulated device is lost");
    jobs[i].status = NULL;
  }
  mlx_serving_stats_t stats = settled_after_failures(&rig, 1);
  CHECK(stats.failures >= 1);
  CHECK_TEXT(stats.reason, "the simulated device is lost");
  atomic_store(&rig.fails, false);
  make_job(&rig, &next, 20, 30, 0);
  submit(&rig, &next);
  wait_for(&next);
  CHECK_INT(next.result.count, 12);
  CHECK_INT(settled(&rig).failures, 0);
  for (int i = 0; i < 2; ++i) release(&jobs[i]);
  release(&next);
  stop(&rig);
}

TEST(a_device_that_keeps_failing_refuses_tasks_with_the_reason) {
  rig_t rig;
  static job_t jobs[4];
  bool full;
  start(&rig, 2, 200, 10);
  atomic_store(&rig.fails, true);
  for (int i = 0; i < 3; ++i) {
    make_job(&rig, &jobs[i], 20, 30, i);
    submit(&rig, &jobs[i]);
    wait_for(&jobs[i]);
    // /health reports only a repeated failure.
    CHECK_INT(settled_after_failures(&rig, i + 1).is_failing, i == 2);
  }
  make_job(&rig, &jobs[3], 20, 30, 3);
  CHECK_ERROR(mlx_serving_submit(rig.serving, &jobs[3].task, 1, &full), MLX_UNAVAILABLE,
              "the simulated device is lost");
  for (int i = 0; i < 4; ++i) release(&jobs[i]);
  stop(&rig);
}

TEST(a_stuck_device_shows_as_a_stall) {
  rig_t rig;
  static job_t job;
  start(&rig, 2, 200, 10);
  CHECK(mlx_serving_stats(rig.serving).stalled == 0);
  atomic_store(&rig.blocks, true);
  make_job(&rig, &job, 20, 30, 0);
  submit(&rig, &job);
  for (int i = 0; i < 3000 && mlx_serving_stats(rig.serving).stalled < 0.05; ++i) mlx_sleep_ms(10);
  CHECK(mlx_serving_stats(rig.serving).stalled >= 0.05);
  atomic_store(&rig.blocks, false);
  uv_sem_post(&rig.blocked);
  wait_for(&job);
  CHECK(settled(&rig).stalled == 0);
  release(&job);
  stop(&rig);
}

TEST(freeing_a_serving_ends_its_tasks) {
  rig_t rig;
  static job_t jobs[6];
  start(&rig, 2, 200, 10);
  for (int i = 0; i < 6; ++i) {
    make_job(&rig, &jobs[i], 20, 30, i);
    jobs[i].options.max_tokens = -1;
    submit(&rig, &jobs[i]);
  }
  stop(&rig);
  for (int i = 0; i < 6; ++i) {
    wait_for(&jobs[i]);  // on_done was called
    release(&jobs[i]);
  }
}

// ----------------------------------------------------------------------------------------------------------
// Workers

typedef struct piece {
  mlx_workers_item_t work;
  uv_sem_t *begun, *go, *done;  // |go| may be NULL
  atomic_int *running, *most;
} piece_t;

static void run_piece(mlx_workers_item_t *work) {
  piece_t *piece = (piece_t *)(void *)work;
  const int running = atomic_fetch_add(piece->running, 1) + 1;
  if (running > atomic_load(piece->most)) atomic_store(piece->most, running);
  uv_sem_post(piece->begun);
  if (piece->go) uv_sem_wait(piece->go);
  atomic_fetch_sub(piece->running, 1);
  uv_sem_post(piece->done);
}

// Six pieces of long work, of which none ends before the short one has.
TEST(short_work_overtakes_long_work) {
  enum { LONG = 6 };
  mlx_workers_t *workers;
  piece_t pieces[LONG + 1];
  uv_sem_t begun, go, done, short_begun, short_done;
  atomic_int running = 0, most = 0, short_running = 0, short_most = 0;
  uv_sem_t *const sems[] = {&begun, &go, &done, &short_begun, &short_done};
  for (size_t i = 0; i < sizeof sems / sizeof *sems; ++i) CHECK(!uv_sem_init(sems[i], 0));
  CHECK_OK(mlx_workers_create(4, &workers));
  for (int i = 0; i < LONG; ++i) {
    pieces[i] = (piece_t){{.run = run_piece, .is_long = true}, &begun, &go, &done, &running, &most};
    mlx_workers_push(workers, &pieces[i].work);
  }
  for (int i = 0; i < 2; ++i) uv_sem_wait(&begun);
  pieces[LONG] = (piece_t){{.run = run_piece}, &short_begun, NULL, &short_done, &short_running, &short_most};
  mlx_workers_push(workers, &pieces[LONG].work);
  uv_sem_wait(&short_done);  // while all long work waits for |go|
  for (int i = 0; i < LONG; ++i) uv_sem_post(&go);
  for (int i = 0; i < LONG; ++i) uv_sem_wait(&done);
  CHECK_INT(most, 2);
  mlx_workers_free(workers);
  for (size_t i = 0; i < sizeof sems / sizeof *sems; ++i) uv_sem_destroy(sems[i]);
}

TEST_MAIN(CASE(short_work_overtakes_long_work),
          CASE(tasks_of_many_threads_get_the_tokens_that_they_get_alone),
          CASE(a_task_keeps_its_slot_while_others_come_and_go),
          CASE(an_embedding_beside_decodes_is_the_embedding_alone),
          CASE(an_embedding_that_is_not_finite_is_an_error_of_its_request),
          CASE(choices_of_one_prompt_compute_it_once), CASE(a_full_queue_refuses_tasks_and_takes_all_or_none),
          CASE(a_request_of_many_tasks_takes_one_place_in_the_queue), CASE(a_cancelled_task_frees_its_pages),
          CASE(a_task_that_was_cancelled_before_it_was_submitted_ends),
          CASE(a_device_error_ends_running_tasks_and_the_next_ones_work),
          CASE(a_device_that_keeps_failing_refuses_tasks_with_the_reason),
          CASE(a_stuck_device_shows_as_a_stall), CASE(freeing_a_serving_ends_its_tasks))
