// The registry of models (server/core/models.h): names, requests that wait for a model, and unloading. The
// models are simulated (tests/support/fake_stepper.h).
#include "server/core/models.h"

#include <stdlib.h>
#include <unistd.h>
#include <uv.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "runtime/scheduler.h"
#include "tests/support/check.h"
#include "tests/support/fake_stepper.h"

#define TOKENIZER MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama/tokenizer.json"
#define MOST_LOADS 16
#define MODEL_BYTES 100

static struct {
  mlx_models_t *models;
  mlx_tokenizer_t *tokenizer;
  uv_sem_t gate;  // a load waits for it
  bool is_gated;
  fake_t fakes[MOST_LOADS];
  mlx_pool_t *pools[MOST_LOADS];
  size_t count;
} rig;

static mlx_status_t make(void *user, const char *path, mlx_serving_t **out_serving, uint64_t *out_bytes) {
  static const int32_t eos[] = {2};
  mlx_scheduler_options_t options;
  mlx_scheduler_t *scheduler;
  (void)user, (void)path;
  if (rig.is_gated) uv_sem_wait(&rig.gate);
  CHECK(rig.count < MOST_LOADS);
  fake_t *fake = &rig.fakes[rig.count];
  *fake = (fake_t){.base = {.max_tokens = 64,
                            .max_wanted = 64,
                            .slots = 1,
                            .slot_pages = 16,
                            .pool_pages = 32,
                            .vocab = FAKE_VOCAB,
                            .ragged = true,
                            .samples = true}};
  fake_start(fake);
  CHECK_OK(mlx_pool_create(32, 0, 1, &rig.pools[rig.count]));
  const mlx_scheduler_parts_t parts = {.stepper = &fake->base,
                                       .pool = rig.pools[rig.count++],
                                       .language = {.tokenizer = rig.tokenizer,
                                                    .eos = eos,
                                                    .eos_count = 1,
                                                    .vocab = FAKE_VOCAB,
                                                    .context = 256},
                                       .prompt_chunk = 16};
  mlx_scheduler_options_initialize(&options);
  CHECK_OK(mlx_scheduler_create_on(&parts, &options, &scheduler));
  *out_bytes = MODEL_BYTES;
  return mlx_serving_create(&(mlx_serving_options_t){.scheduler = scheduler, .parallel = 1, .queue = 1},
                            out_serving);
}

// The names of the models that a scan finds; NULL: no scan. The path of "a" is "/a".
static const char *rig_stored;

static mlx_status_t scan(void *user, mlx_models_found_fn_t found, void *found_user) {
  (void)user;
  for (const char *at = rig_stored; *at; ++at)
    MLX_TRY(found(found_user, (const char[]){'/', *at, 0}, (const char[]){*at, 0}));
  return *rig_stored == '?' ? mlx_error(MLX_IO, "the folder cannot be read") : NULL;
}

// "stored-a" means the model "a".
static mlx_status_t locate(void *user, const char *name, char **out_path) {
  (void)user;
  *out_path = NULL;
  return strncmp(name, "stored-", 7) ? NULL : mlx_format(out_path, "/%s", name + 7);
}

static double rig_keep = -1;  // seconds

static void start(int64_t queue, uint64_t memory) {
  char *json;
  size_t length;
  memset(&rig, 0, sizeof rig);
  CHECK_OK(mlx_read_file(TOKENIZER, 1 << 24, &json, &length));
  CHECK_OK(mlx_tokenizer_create(TOKENIZER, json, length, &rig.tokenizer));
  mlx_free(json);
  uv_sem_init(&rig.gate, 0);
  CHECK_OK(mlx_models_create(&(mlx_models_options_t){.queue = queue,
                                                     .memory = memory,
                                                     .keep_seconds = rig_keep,
                                                     .make = make,
                                                     .scan = rig_stored ? scan : NULL,
                                                     .locate = rig_stored ? locate : NULL},
                             &rig.models));
}

static void stop(void) {
  mlx_models_free(rig.models);
  for (size_t i = 0; i < rig.count; ++i) {
    mlx_pool_free(rig.pools[i]);
    fake_clear(&rig.fakes[i]);
  }
  mlx_tokenizer_free(rig.tokenizer);
  uv_sem_destroy(&rig.gate);
}

// A request.
typedef struct request {
  mlx_model_waiter_t waiter;
  mlx_served_model_t *model;
  mlx_status_t status;
  int order;  // of the answer, from 1; 0: none
  uv_sem_t done;
} request_t;

static atomic_int answers;

static void on_ready(mlx_model_waiter_t *waiter, mlx_served_model_t *model, mlx_status_t status) {
  request_t *request = (request_t *)(void *)waiter;
  request->model = model;
  request->status = status;
  request->order = atomic_fetch_add(&answers, 1) + 1;
  uv_sem_post(&request->done);
}

static void ask(request_t *request, const char *name) {
  *request = (request_t){.waiter = {.ready = on_ready}};
  uv_sem_init(&request->done, 0);
  mlx_models_get(rig.models, name, &request->waiter);
}

static void wait_for(request_t *request) {
  const double end = mlx_seconds() + 20;
  while (uv_sem_trywait(&request->done)) {
    if (mlx_seconds() > end) CHECK_FAIL("the request got no answer");
    mlx_sleep_ms(1);
  }
  uv_sem_destroy(&request->done);
}

static mlx_served_model_t *get(const char *name) {
  request_t request;
  ask(&request, name);
  wait_for(&request);
  CHECK_OK(request.status);
  return request.model;
}

static void put(mlx_served_model_t *model) { mlx_models_put(rig.models, model); }

static void add(const char *path) { CHECK_OK(mlx_models_add(rig.models, path, NULL)); }

static void list_loaded(void *user, mlx_served_model_t *model, mlx_servings_t *servings) {
  (void)servings;
  strcat(user, mlx_served_model_name(model));
}

static void wait_for_loaded(const char *expected) {
  char names[64] = "?";
  for (int i = 0; i < 5000 && strcmp(names, expected); ++i) {
    if (i) mlx_sleep_ms(1);
    names[0] = 0;
    mlx_models_visit_loaded(rig.models, list_loaded, names);
  }
  CHECK_TEXT(names, expected);
}

// ----------------------------------------------------------------------------------------------------------

TEST(requests_that_wait_for_a_model_are_limited_and_answered_in_order) {
  request_t requests[5];
  start(2, 0);
  rig.is_gated = true;
  add("a");
  atomic_store(&answers, 0);
  for (int i = 0; i < 3; ++i) ask(&requests[i], "a");
  ask(&requests[3], "a");
  CHECK(requests[3].waiter.is_full);
  CHECK_INT(requests[3].order, 1);
  CHECK_ERROR(requests[3].status, MLX_UNAVAILABLE, "too many requests are waiting for the model a");
  CHECK(mlx_models_cancel(rig.models, &requests[1].waiter));  // its client has left
  CHECK(!mlx_models_cancel(rig.models, &requests[1].waiter));
  ask(&requests[4], "a");  // takes its place
  CHECK_INT(requests[4].order, 0);
  uv_sem_post(&rig.gate);
  wait_for(&requests[0]);
  wait_for(&requests[2]);
  wait_for(&requests[4]);
  CHECK_INT(requests[0].order, 2);
  CHECK_INT(requests[2].order, 3);
  CHECK_INT(requests[4].order, 4);
  CHECK_INT(requests[1].order, 0);
  for (int i = 0; i < 5; i += 2) put(requests[i].model);
  uv_sem_destroy(&requests[1].done);
  uv_sem_destroy(&requests[3].done);
  stop();
}

TEST(the_last_and_the_only_waiter_can_leave) {
  request_t requests[3];
  start(8, 0);
  rig.is_gated = true;
  add("a");
  add("b");
  for (int i = 0; i < 2; ++i) ask(&requests[i], i ? "b" : "a");  // b waits for the load of a
  CHECK(mlx_models_cancel(rig.models, &requests[1].waiter));
  uv_sem_post(&rig.gate);
  wait_for(&requests[0]);
  put(requests[0].model);
  mlx_sleep_ms(20);
  wait_for_loaded("a");  // b is not loaded for nothing
  ask(&requests[1], "b");
  ask(&requests[2], "b");
  CHECK(mlx_models_cancel(rig.models, &requests[2].waiter));
  uv_sem_destroy(&requests[2].done);
  ask(&requests[2], "b");
  uv_sem_post(&rig.gate);
  wait_for(&requests[1]);
  wait_for(&requests[2]);
  put(requests[1].model);
  put(requests[2].model);
  stop();
}

TEST(a_request_that_was_cancelled_before_it_waits_gets_an_error) {
  request_t request = {.waiter = {.ready = on_ready}};
  start(8, 0);
  add("a");
  uv_sem_init(&request.done, 0);
  CHECK(!mlx_models_cancel(rig.models, &request.waiter));
  mlx_models_get(rig.models, "a", &request.waiter);
  wait_for(&request);
  CHECK_ERROR(request.status, MLX_CANCELLED, "cancelled");
  stop();
}

TEST(a_model_without_requests_is_unloaded_before_a_busy_one) {
  start(8, 2 * MODEL_BYTES);
  add("a");
  add("b");
  add("c");
  mlx_served_model_t *a = get("a");  // is used longest ago, but has a request
  put(get("b"));
  put(get("c"));
  wait_for_loaded("ac");
  put(a);
  put(get("b"));
  wait_for_loaded("ab");  // a was used after c
  stop();
}

TEST(requests_of_a_loaded_model_do_not_wait_until_another_is_unloaded) {
  start(8, 2 * MODEL_BYTES);
  add("a");
  add("b");
  add("c");
  mlx_served_model_t *a = get("a"), *b = get("b");
  mlx_served_model_t *c = get("c");  // a must go, but has a request
  wait_for_loaded("abc");
  put(a);
  wait_for_loaded("bc");
  put(b);
  put(c);
  stop();
}

TEST(models_are_loaded_in_the_order_of_their_first_requests) {
  static const char *const names[] = {"c", "b", "a", "b"};
  request_t requests[4];
  start(8, 0);
  rig.is_gated = true;
  add("a");
  add("b");
  add("c");
  atomic_store(&answers, 0);
  for (int i = 0; i < 4; ++i) ask(&requests[i], names[i]);
  for (int i = 0; i < 3; ++i) uv_sem_post(&rig.gate);
  for (int i = 0; i < 4; ++i) {
    wait_for(&requests[i]);
    put(requests[i].model);
  }
  CHECK_INT(requests[0].order, 1);
  CHECK_INT(requests[1].order, 2);
  CHECK_INT(requests[3].order, 3);
  CHECK_INT(requests[2].order, 4);
  stop();
}

static void check_names(const char *const *expected) {
  size_t count = 0;
  while (expected[count]) ++count;
  CHECK_INT((int64_t)mlx_models_count(rig.models), (int64_t)count);
  for (size_t i = 0; i < count; ++i)
    CHECK_TEXT(mlx_served_model_name(mlx_models_at(rig.models, i)), expected[i]);
}

TEST(a_name_that_another_model_has_gets_its_folder) {
  start(8, 0);
  add("x/model.gguf");
  add("y/model.gguf");
  add("z\\model.MLXB");
  add("hf:org/model");
  add("big-00001-of-00003.gguf");
  check_names((const char *const[]){"model", "y/model", "z/model", "org/model", "big", NULL});
  CHECK_ERROR(mlx_models_add(rig.models, "x/model.gguf", NULL), MLX_USAGE, "was given twice");
  mlx_status_t status = mlx_models_add(rig.models, "w/y/model.gguf", NULL);
  CHECK_CONTAINS(mlx_status_hint_text(status), "ln -s 'w/y/model.gguf' another-name.gguf");
  CHECK_ERROR(status, MLX_USAGE, "two models are called 'y/model'");
  stop();
}

TEST(an_alias_that_another_model_has_is_refused) {
  start(8, 0);
  add("x/a.gguf");
  add("x/b.gguf");
  CHECK_OK(mlx_models_alias(rig.models, "best", "a"));
  CHECK_OK(mlx_models_alias(rig.models, "best", "x/a.gguf"));  // the same again
  CHECK_ERROR(mlx_models_alias(rig.models, "best", "b"), MLX_USAGE, "the model 'x/a.gguf' has that name");
  CHECK_ERROR(mlx_models_alias(rig.models, "B", "a"), MLX_USAGE, "the model 'x/b.gguf' has that name");
  CHECK_ERROR(mlx_models_alias(rig.models, "c", "d"), MLX_USAGE, "there is no such model");
  CHECK_INT((int64_t)mlx_served_model_alias_count(mlx_models_at(rig.models, 0)), 1);
  CHECK_TEXT(mlx_served_model_alias(mlx_models_at(rig.models, 0), 0), "best");
  stop();
}

TEST(parts_and_projectors_in_a_folder_are_no_models) {
  static const char *const files[] = {"a.gguf",
                                      "m-00001-of-00002.gguf",
                                      "m-00002-of-00002.gguf",
                                      "mmproj-a-f16.gguf",
                                      "n-0002-of-0002.gguf",
                                      "notes.txt"};
  char folder[] = "/tmp/mlxcel-models-XXXXXX";
  CHECK(mkdtemp(folder));
  for (size_t i = 0; i < sizeof files / sizeof *files; ++i) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, files[i]);
    CHECK_OK(mlx_replace_file(path, "x", 1));
  }
  start(8, 0);
  CHECK_OK(mlx_models_add_folder(rig.models, folder));
  CHECK_INT((int64_t)mlx_models_count(rig.models), 3);
  CHECK(mlx_models_find(rig.models, "a") && mlx_models_find(rig.models, "m"));
  CHECK(mlx_models_find(rig.models, "n-0002-of-0002"));
  stop();
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(a_model_without_requests_is_unloaded_after_a_time) {
  int64_t loads, unloads;
  rig_keep = 0.05;
  start(8, 0);
  add("/a");
  add("/b");
  mlx_served_model_t *a = get("a");
  put(get("b"));
  wait_for_loaded("a");
  mlx_sleep_ms(100);
  wait_for_loaded("a");  // it has a request
  put(a);
  wait_for_loaded("");
  put(get("a"));
  mlx_models_counts(rig.models, &loads, &unloads);
  CHECK_INT(loads, 3);
  wait_for_loaded("");
  stop();
  rig_keep = 0;
  start(8, 0);
  add("/a");
  put(get("a"));
  wait_for_loaded("");
  stop();
  rig_keep = -1;
}

static void check_missing(const char *name, const char *hint) {
  request_t request;
  ask(&request, name);
  wait_for(&request);
  CHECK(mlx_status_code(request.status) == MLX_NOT_FOUND);
  CHECK_CONTAINS(mlx_status_hint_text(request.status), hint);
  mlx_status_free(request.status);
}

TEST(a_scan_adds_models_and_leaves_out_those_that_are_gone) {
  rig_stored = "";
  start(8, 0);
  check_missing(NULL, "mlxcel pull NAME");
  check_missing("a", "mlxcel pull NAME");
  rig_stored = "a";
  mlx_served_model_t *a = get("a");  // an unknown name causes a scan
  CHECK(get("stored-a") == a && get("A:latest") == a && get(NULL) == a);
  check_missing("b", "the models are: a");  // although there is one model only
  rig_stored = "bc";
  CHECK(mlx_models_find(rig.models, "a") == a);
  CHECK_OK(mlx_models_scan(rig.models));
  check_missing("a", "the models are: b, c");
  check_missing("stored-a", "the models are: b, c");
  CHECK_INT((int64_t)mlx_models_count(rig.models), 2);
  CHECK_TEXT(mlx_served_model_name(mlx_models_at(rig.models, 1)), "c");
  CHECK(!mlx_models_at(rig.models, 2));
  CHECK(mlx_servings_at(mlx_served_model_servings(a), 0));  // its requests still run
  for (int i = 0; i < 4; ++i) put(a);
  rig_stored = "?";  // a scan that fails changes nothing
  mlx_status_t status = mlx_models_scan(rig.models);
  CHECK_ERROR(status, MLX_IO, "the folder cannot be read");
  CHECK(mlx_models_find(rig.models, "b") && mlx_models_find(rig.models, "c"));
  rig_stored = "ca";
  CHECK(mlx_models_find(rig.models, "a") == a);  // it came back
  rig_stored = "abcdefghijkl";
  CHECK_OK(mlx_models_scan(rig.models));
  check_missing("x", ", and those of GET /v1/models");
  stop();
  rig_stored = NULL;
}

TEST(an_unknown_name_means_the_only_model_that_was_given) {
  start(8, 0);
  add("/a");
  put(get("gpt-4"));
  add("/b");
  check_missing("gpt-4", "the models are: a, b");
  stop();
}

TEST_MAIN(CASE(requests_that_wait_for_a_model_are_limited_and_answered_in_order),
          CASE(the_last_and_the_only_waiter_can_leave),
          CASE(a_request_that_was_cancelled_before_it_waits_gets_an_error),
          CASE(a_model_without_requests_is_unloaded_before_a_busy_one),
          CASE(requests_of_a_loaded_model_do_not_wait_until_another_is_unloaded),
          CASE(models_are_loaded_in_the_order_of_their_first_requests),
          CASE(a_name_that_another_model_has_gets_its_folder),
          CASE(an_alias_that_another_model_has_is_refused),
          CASE(parts_and_projectors_in_a_folder_are_no_models),
          CASE(a_model_without_requests_is_unloaded_after_a_time),
          CASE(a_scan_adds_models_and_leaves_out_those_that_are_gone),
          CASE(an_unknown_name_means_the_only_model_that_was_given))
