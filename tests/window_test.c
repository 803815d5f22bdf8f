// Sliding windows: the compiler writes the window of a network into the manifest if every layer has one, and
// the scheduler frees the pages that leave it. The tokens are those of Hugging Face.
#include "tests/window.h"
#include "base/file.h"
#include "base/memory.h"
#include "tests/compiled.h"

static mlx_engine_t *open_wide(const char *name) {
  char folder[] = "/tmp/mlxcel-window-XXXXXX";
  CHECK(mkdtemp(folder));
  write_wide_model(name, folder);
  const mlx_compile_options_t options = {.context = CONTEXT, .weights = MLX_WEIGHTS_AUTO};
  mlx_engine_t *engine = open_parallel(folder, &options, NULL, 0, 2);
  CHECK_OK(mlx_remove_tree(folder));
  return engine;
}

static int64_t run_wide(const char *name) {
  char path[512];
  snprintf(path, sizeof path, WIDE_GOLDENS "%s.json", name);
  mlx_engine_t *engine = open_wide(name);
  const int64_t pages = run_golden(engine, path);
  mlx_engine_close(engine);
  return pages;
}

// 170 tokens of prompt and 47 of output are 14 pages. Both layers of mistral have a window of 12 positions;
// of gemma3's, one sees all positions.
TEST(pages_that_leave_the_window_of_all_layers_are_freed) {
  const int64_t with_window = run_wide("mistral");
  if (with_window > 4) CHECK_FAIL("%lld pages are in use", (long long)with_window);
  CHECK(run_wide("gemma3") >= 13);
}

TEST_MAIN(CASE(pages_that_leave_the_window_of_all_layers_are_freed))
