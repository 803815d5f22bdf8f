// Sliding windows: the compiler writes the window of a network into the manifest if every layer has one, and
// the scheduler frees the pages that leave it. The tokens are those of Hugging Face.
#include "base/file.h"
#include "base/memory.h"
#include "tests/compiled.h"
#include "tests/wide_fixtures.h"

static mlx_engine_t *open_wide(const char *name) {
  char folder[] = "/tmp/mlxcel-window-XXXXXX";
  CHECK(mkdtemp(folder));
  write_wide_model(name, folder);
  const mlx_compile_options_t options = {.context = CONTEXT, .weights = MLX_WEIGHTS_AUTO};
  mlx_engine_t *engine = open_parallel(folder, &options, NULL, 0, 2);
  CHECK_OK(mlx_remove_tree(folder));
  return engine;
}

// Generates the golden output after the longest prompt and returns the pages in use before the last token.
static int64_t run_golden(const char *name) {
  char path[512];
  snprintf(path, sizeof path, WIDE_GOLDENS "%s.json", name);
  golden_t golden = golden_open(path);
  yyjson_val *result = yyjson_arr_get_last(golden.results);
  int32_t ids[CONTEXT], expected[STEPS];
  const size_t count = golden_read_ids(yyjson_obj_get(result, "prompt_ids"), ids, CONTEXT);
  CHECK_INT(golden_read_ids(yyjson_obj_get(result, "output_ids"), expected, STEPS), STEPS);
  golden_close(&golden);
  mlx_engine_t *engine = open_wide(name);
  mlx_scheduler_t *scheduler;
  mlx_scheduler_options_t options;
  mlx_generate_options_t generate;
  mlx_request_t *request;
  mlx_scheduler_options_initialize(&options);
  mlx_generate_options_initialize(&generate);
  generate.max_tokens = STEPS;
  generate.ignore_eos = true;
  CHECK_OK(mlx_scheduler_create(engine, &options, &scheduler));
  CHECK_OK(mlx_scheduler_submit(scheduler, ids, count, &generate, &request));
  int64_t used = 0;
  for (bool idle = false; !idle;) {
    const int64_t now = mlx_scheduler_stats(scheduler).pages_used;
    if (now) used = now;
    CHECK_OK(mlx_scheduler_step(scheduler, &idle));
  }
  CHECK_OK(mlx_request_take_status(request));
  const mlx_generation_t *generation = mlx_request_generation(request);
  CHECK_INT(generation->count, STEPS);
  for (int i = 0; i < STEPS; ++i) CHECK_INT(generation->ids[i], expected[i]);
  mlx_request_free(request);
  mlx_scheduler_free(scheduler);
  mlx_engine_close(engine);
  return used;
}

// 170 tokens of prompt and 47 of output are 14 pages. Both layers of mistral have a window of 12 positions;
// of gemma3's, one sees all positions.
TEST(pages_that_leave_the_window_of_all_layers_are_freed) {
  const int64_t with_window = run_golden("mistral");
  if (with_window > 4) CHECK_FAIL("%lld pages are in use", (long long)with_window);
  CHECK(run_golden("gemma3") >= 13);
}

TEST_MAIN(CASE(pages_that_leave_the_window_of_all_layers_are_freed))
