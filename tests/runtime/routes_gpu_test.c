// The experts that tokens are routed to on a GPU: those of the CPU, for one sequence and for many, with
// quantized and with 16-bit experts. routes_test.c compares the CPU with Hugging Face.
#include "tests/support/gpu.h"
#include "tests/support/wide_fixtures.h"

#define PROMPTS 12
#define MOST 96

static const struct {
  const char *name, *bundle;  // a wide fixture, and the beginning of its bundles' names
  mlx_quantize_t quantize;
} models[] = {{"qwen3_moe", "qwen3-bf16", 0},
              {"qwen3_moe", "qwen3-q4_0", MLX_QUANTIZE_Q4_0},
              {"glm4_moe", "glm4-bf16", 0},
              {"mixtral", "mixtral-q8_0", MLX_QUANTIZE_Q8_0}};
#define MODELS (sizeof models / sizeof *models)

static const char *bundle_of(size_t model, const char *device) {
  static char name[64];
  snprintf(name, sizeof name, "%s-%s.mlxb", models[model].bundle, device);
  return name;
}

static void prepare(void) {
  for (size_t i = 0; i < MODELS; ++i) {
    char folder[] = "/tmp/mlxcel-routes-XXXXXX";
    CHECK(mkdtemp(folder));
    write_wide_model(models[i].name, folder);
    mlx_compile_options_t options = {.target = "cuda:sm_90",
                                     .weights = MLX_WEIGHTS_AUTO,
                                     .quantize = models[i].quantize,
                                     .kernels = MLX_KERNELS_REQUIRED};
    gpu_compile(folder, &options, bundle_of(i, "gpu"));
    options.target = "cpu:x86-64-v3";
    gpu_compile(folder, &options, bundle_of(i, "cpu"));
    CHECK_OK(mlx_remove_tree(folder));
  }
}

static mlx_engine_t *open_on(mlx_device_choice_t device, const char *name) {
  mlx_engine_t *engine;
  mlx_engine_options_t options;
  mlx_engine_options_initialize(&options);
  options.device = device;
  options.allow_unsigned = true;
  options.context = 256;
  options.sequences = PROMPTS;
  CHECK_OK(mlx_engine_open_bundle(gpu_file(name), &options, &engine));
  return engine;
}

typedef struct run {
  mlx_engine_t *engine;
  mlx_scheduler_t *scheduler;
  mlx_request_t *requests[PROMPTS];
} run_t;

static void start(run_t *run, mlx_device_choice_t device, const char *name) {
  mlx_scheduler_options_t options;
  mlx_scheduler_options_initialize(&options);
  run->engine = open_on(device, name);
  CHECK_OK(mlx_scheduler_create(run->engine, &options, &run->scheduler));
}

static void generate(run_t *run, int first, int count) {
  for (int i = first; i < first + count; ++i) {
    mlx_generate_options_t options;
    int32_t ids[MOST];
    const int length = 3 + 7 * i;  // steps of few and of many tokens
    for (int k = 0; k < length; ++k) ids[k] = 10 + (i * 53 + k * 29) % 300;
    mlx_generate_options_initialize(&options);
    options.max_tokens = 10;
    options.ignore_eos = true;
    options.routes = true;
    CHECK_OK(mlx_scheduler_submit(run->scheduler, ids, (size_t)length, &options, &run->requests[i]));
  }
  CHECK_OK(mlx_scheduler_run(run->scheduler));
}

static void stop(run_t *run) {
  for (int i = 0; i < PROMPTS; ++i) mlx_request_free(run->requests[i]);
  mlx_scheduler_free(run->scheduler);
  mlx_engine_close(run->engine);
}

static void compare(const char *name, const mlx_generation_t *gpu, const mlx_generation_t *cpu, int prompt) {
  CHECK_INT((int64_t)gpu->count, (int64_t)cpu->count);
  if (memcmp(gpu->ids, cpu->ids, cpu->count * sizeof *cpu->ids))
    CHECK_FAIL("%s, prompt %d: other tokens", name, prompt);
  CHECK_INT((int64_t)gpu->route_count, 3 + 7 * prompt + 9);
  CHECK_INT((int64_t)gpu->route_count, (int64_t)cpu->route_count);
  CHECK(gpu->route_layers == cpu->route_layers && gpu->route_used == cpu->route_used);
  const size_t width = (size_t)(cpu->route_layers * cpu->route_used);
  for (size_t i = 0; i < cpu->route_count * width; ++i) {
    if (gpu->routes[i] != cpu->routes[i])
      CHECK_FAIL("%s, prompt %d, token %zu, number %zu: expert %d, on the CPU %d", name, prompt, i / width,
                 i % width, gpu->routes[i], cpu->routes[i]);
  }
}

TEST(routes_on_a_gpu_are_those_of_the_cpu) {
  for (size_t i = 0; i < MODELS; ++i) {
    run_t gpu, cpu;
    start(&gpu, MLX_USE_CUDA, bundle_of(i, "gpu"));
    start(&cpu, MLX_USE_CPU, bundle_of(i, "cpu"));
    CHECK(mlx_engine_info(gpu.engine).route_used > 0);
    generate(&gpu, 0, 1);
    generate(&gpu, 1, PROMPTS - 1);
    generate(&cpu, 0, PROMPTS);
    for (int k = 0; k < PROMPTS; ++k)
      compare(models[i].bundle, mlx_request_generation(gpu.requests[k]),
              mlx_request_generation(cpu.requests[k]), k);
    stop(&gpu);
    stop(&cpu);
  }
}

// The steps of a request for routes and those of others are the same.
TEST(tokens_on_a_gpu_do_not_depend_on_a_request_for_routes) {
  run_t run;
  mlx_generate_options_t options;
  mlx_request_t *plain;
  const int32_t ids[] = {10, 39, 68};
  start(&run, MLX_USE_CUDA, bundle_of(0, "gpu"));
  generate(&run, 0, PROMPTS);
  mlx_generate_options_initialize(&options);
  options.max_tokens = 10;
  options.ignore_eos = true;
  CHECK_OK(mlx_scheduler_submit(run.scheduler, ids, 3, &options, &plain));
  CHECK_OK(mlx_scheduler_run(run.scheduler));
  const mlx_generation_t *a = mlx_request_generation(plain), *b = mlx_request_generation(run.requests[0]);
  CHECK(a->count == b->count && !memcmp(a->ids, b->ids, a->count * sizeof *a->ids));
  CHECK(!a->routes && b->routes);
  mlx_request_free(plain);
  stop(&run);
}

GPU_TEST_MAIN(prepare, CASE(routes_on_a_gpu_are_those_of_the_cpu),
              CASE(tokens_on_a_gpu_do_not_depend_on_a_request_for_routes))
