// The experts that tokens are routed to: those of Hugging Face, in any batch.
#include "tests/support/architectures.h"
#include "tests/support/compiled.h"
#include "tests/support/golden.h"

#define MOST 128
#define MANY 6  // requests at the same time

static mlx_engine_t *open_fixture(const char *name, int64_t sequences, int64_t pages) {
  char folder[] = "/tmp/mlxcel-routes-XXXXXX";
  mlx_engine_options_t options;
  mlx_engine_t *engine;
  CHECK(mkdtemp(folder));
  link_model(name, folder);
  mlx_engine_options_initialize(&options);
  options.device = MLX_USE_CPU;
  options.context = MOST;
  options.sequences = sequences;
  CHECK_OK(try_open_compiled(folder, &(mlx_compile_options_t){0}, NULL, &options, &engine));
  if (pages) {
    options.memory = (uint64_t)pages * 16 * mlx_engine_info(engine).kv_bytes;
    mlx_engine_close(engine);
    CHECK_OK(try_open_compiled(folder, &(mlx_compile_options_t){0}, NULL, &options, &engine));
  }
  CHECK_OK(mlx_remove_tree(folder));
  return engine;
}

static mlx_scheduler_t *schedule(mlx_engine_t *engine, int64_t batch_tokens) {
  mlx_scheduler_options_t options;
  mlx_scheduler_t *scheduler;
  mlx_scheduler_options_initialize(&options);
  options.max_batch_tokens = batch_tokens;
  CHECK_OK(mlx_scheduler_create(engine, &options, &scheduler));
  return scheduler;
}

static mlx_request_t *submit(mlx_scheduler_t *scheduler, const int32_t *ids, size_t count, int64_t tokens,
                             size_t from) {
  mlx_generate_options_t options;
  mlx_request_t *request;
  mlx_generate_options_initialize(&options);
  options.max_tokens = tokens;
  options.ignore_eos = true;
  options.routes = true;
  options.routes_from = from;
  CHECK_OK(mlx_scheduler_submit(scheduler, ids, count, &options, &request));
  return request;
}

// ----------------------------------------------------------------------------------------------------------
// Hugging Face

static int compare(const void *a, const void *b) { return *(const int16_t *)a - *(const int16_t *)b; }

// |expected|: [tokens][used] sorted; null: the layer has no experts.
static void check_layer(const mlx_generation_t *g, int64_t layer, yyjson_val *expected) {
  for (size_t token = 0; token < g->route_count; ++token) {
    int16_t experts[64];
    yyjson_val *row = yyjson_arr_get(expected, token);
    const int16_t *routes = g->routes + ((int64_t)token * g->route_layers + layer) * g->route_used;
    memcpy(experts, routes, (size_t)g->route_used * sizeof *experts);
    qsort(experts, (size_t)g->route_used, sizeof *experts, compare);
    for (int64_t i = 0; i < g->route_used; ++i) {
      const int64_t want = row ? yyjson_get_sint(yyjson_arr_get(row, (size_t)i)) : -1;
      if (experts[i] != want)
        CHECK_FAIL("layer %lld, token %zu: expert %d, expected %lld", (long long)layer, token, experts[i],
                   (long long)want);
    }
  }
}

static void check_golden(const char *name) {
  char path[256];
  char *text;
  size_t length;
  mlx_json_t json;
  int32_t ids[MOST];
  snprintf(path, sizeof path, MLXCEL_SOURCE_DIR "/tests/goldens/routes/%s.json", name);
  CHECK_OK(mlx_read_file(path, 1 << 20, &text, &length));
  CHECK_OK(mlx_json_parse(path, text, length, &json));
  const size_t count = golden_read_ids(yyjson_obj_get(json.root, "ids"), ids, MOST),
               prompt = (size_t)yyjson_get_uint(yyjson_obj_get(json.root, "prompt"));
  yyjson_val *layers = yyjson_obj_get(json.root, "layers"), *layer;
  mlx_engine_t *engine = open_fixture(name, 1, 0);
  mlx_scheduler_t *scheduler = schedule(engine, 0);
  mlx_request_t *request = submit(scheduler, ids, prompt, (int64_t)(count - prompt), 0);
  CHECK_OK(mlx_scheduler_run(scheduler));
  const mlx_generation_t *g = mlx_request_generation(request);
  CHECK_INT((int64_t)g->count, (int64_t)(count - prompt));
  CHECK(!memcmp(g->ids, ids + prompt, g->count * sizeof *ids));
  CHECK_INT((int64_t)g->route_count, (int64_t)count - 1);
  CHECK_INT(g->route_layers, (int64_t)yyjson_arr_size(layers));
  CHECK_INT(g->route_layers, mlx_engine_info(engine).route_layers);
  size_t index, max;
  yyjson_arr_foreach(layers, index, max, layer) { check_layer(g, (int64_t)index, layer); }
  mlx_request_free(request);
  mlx_scheduler_free(scheduler);
  mlx_engine_close(engine);
  mlx_json_close(&json);
  mlx_free(text);
}

TEST(routes_are_those_of_hugging_face) {
  const char *const names[] = {"mixtral",     "qwen3_moe", "glm4_moe-groups",
                               "deepseek_v3", "gpt_oss",   "nemotron_h-experts"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) check_golden(names[i]);
}

// ----------------------------------------------------------------------------------------------------------
// Batches

typedef struct reference {
  int16_t *routes;
  size_t count, width;  // tokens, numbers of each
} reference_t;

static void check_routes(const mlx_generation_t *g, const reference_t *reference, size_t from) {
  CHECK_INT((int64_t)g->route_count, (int64_t)(reference->count - from));
  CHECK(!memcmp(g->routes, reference->routes + from * reference->width,
                g->route_count * reference->width * sizeof *g->routes));
}

static reference_t alone(mlx_engine_t *engine, const int32_t *ids, size_t count, int64_t tokens) {
  mlx_scheduler_t *scheduler = schedule(engine, 0);
  mlx_request_t *request = submit(scheduler, ids, count, tokens, 0);
  CHECK_OK(mlx_scheduler_run(scheduler));
  const mlx_generation_t *g = mlx_request_generation(request);
  reference_t out = {.count = g->route_count, .width = (size_t)(g->route_layers * g->route_used)};
  CHECK_OK(mlx_alloc(out.count * out.width, sizeof *out.routes, &out.routes));
  memcpy(out.routes, g->routes, out.count * out.width * sizeof *out.routes);
  for (size_t i = 0; i < out.count * out.width; ++i) CHECK(out.routes[i] >= 0);
  mlx_request_free(request);
  mlx_scheduler_free(scheduler);
  return out;
}

// Prompts that begin alike, in chunks of a few tokens, and a pool that is too small for all sequences.
TEST(routes_depend_on_no_other_request_on_no_chunk_and_on_no_preemption) {
  enum { PROMPT = 40, SHARED = 24, TOKENS = 50 };
  mlx_engine_t *engine = open_fixture("qwen3_moe", MANY, 20);
  int32_t ids[MANY][PROMPT];
  reference_t references[MANY];
  mlx_request_t *requests[MANY];
  for (int i = 0; i < MANY; ++i) {
    for (int k = 0; k < PROMPT; ++k) ids[i][k] = 10 + (k < SHARED ? k * 7 : k * 5 + i * 31) % 300;
    references[i] = alone(engine, ids[i], PROMPT, TOKENS);
    CHECK_INT((int64_t)references[i].count, PROMPT + TOKENS - 1);
  }
  mlx_scheduler_t *scheduler = schedule(engine, 13);
  for (int i = 0; i < MANY; ++i)
    requests[i] = submit(scheduler, ids[i], PROMPT, TOKENS, i % 2 ? SHARED - 2 : 0);
  CHECK_OK(mlx_scheduler_run(scheduler));
  CHECK(mlx_scheduler_stats(scheduler).preemptions > 0);
  for (int i = 0; i < MANY; ++i) {
    check_routes(mlx_request_generation(requests[i]), &references[i], i % 2 ? SHARED - 2 : 0);
    mlx_request_free(requests[i]);
  }
  // The pages of these prompts are cached now, but only tokens whose routes are not wanted are taken from
  // them.
  mlx_request_t *whole = submit(scheduler, ids[1], PROMPT, TOKENS, 0),
                *later = submit(scheduler, ids[2], PROMPT, TOKENS, SHARED - 2);
  CHECK_OK(mlx_scheduler_run(scheduler));
  CHECK_INT(mlx_request_generation(whole)->cached_tokens, 0);
  CHECK(mlx_request_generation(later)->cached_tokens > 0 &&
        mlx_request_generation(later)->cached_tokens <= SHARED - 2);
  check_routes(mlx_request_generation(whole), &references[1], 0);
  check_routes(mlx_request_generation(later), &references[2], SHARED - 2);
  mlx_request_free(whole);
  mlx_request_free(later);
  mlx_scheduler_free(scheduler);
  for (int i = 0; i < MANY; ++i) mlx_free(references[i].routes);
  mlx_engine_close(engine);
}

// A text is scored: its routes need no generated token.
TEST(a_given_text_has_routes_too) {
  const int32_t ids[] = {11, 12, 13, 14, 15, 16, 17};
  mlx_engine_t *engine = open_fixture("qwen3_moe", 1, 0);
  mlx_scheduler_t *scheduler = schedule(engine, 0);
  mlx_generate_options_t options;
  mlx_request_t *request;
  mlx_generate_options_initialize(&options);
  options.max_tokens = 0;
  options.prompt_logprobs = 0;
  options.routes = true;
  CHECK_OK(mlx_scheduler_submit(scheduler, ids, 7, &options, &request));
  CHECK_OK(mlx_scheduler_run(scheduler));
  CHECK_INT((int64_t)mlx_request_generation(request)->route_count, 6);
  mlx_request_free(request);
  mlx_scheduler_free(scheduler);
  mlx_engine_close(engine);
}

TEST(a_model_without_experts_has_no_routes) {
  mlx_engine_t *engine = open_fixture("qwen3", 1, 0);
  mlx_scheduler_t *scheduler = schedule(engine, 0);
  mlx_generate_options_t options;
  mlx_request_t *request;
  mlx_generate_options_initialize(&options);
  options.routes = true;
  CHECK_INT(mlx_engine_info(engine).route_used, 0);
  mlx_status_t status = mlx_scheduler_submit(scheduler, (int32_t[]){11}, 1, &options, &request);
  CHECK_INT(mlx_status_code(status), MLX_UNSUPPORTED);
  CHECK_CONTAINS(mlx_status_message(status), "has no experts");
  mlx_status_free(status);
  mlx_scheduler_free(scheduler);
  mlx_engine_close(engine);
}

TEST_MAIN(CASE(routes_are_those_of_hugging_face),
          CASE(routes_depend_on_no_other_request_on_no_chunk_and_on_no_preemption),
          CASE(a_given_text_has_routes_too), CASE(a_model_without_experts_has_no_routes))
