// The GPU kernels do not depend on pages that left the sliding window: the scheduler frees them, and the
// tokens are those of Hugging Face. window_test.c does the same on the CPU.
#include "base/memory.h"
#include "tests/gpu.h"
#include "tests/window.h"

static void prepare(void) {
  char folder[] = "/tmp/mlxcel-window-XXXXXX";
  CHECK(mkdtemp(folder));
  write_wide_model("mistral", folder);
  gpu_compile(folder,
              &(mlx_compile_options_t){.target = "cuda:sm_90",
                                       .weights = MLX_WEIGHTS_AUTO,
                                       .context = CONTEXT,
                                       .kernels = MLX_KERNELS_REQUIRED},
              "window.mlxb");
  gpu_copy(WIDE_GOLDENS "mistral.json", "window.json");
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(pages_that_leave_the_window_are_freed_on_the_gpu) {
  if (!gpu_runs("window.mlxb", 90)) return;
  mlx_engine_t *engine = gpu_open("window.mlxb");
  for (int i = 0; i < 2; ++i) {  // the second time the first pages come from the cache
    const int64_t pages = run_golden(engine, gpu_file("window.json"));
    if (pages > 4) CHECK_FAIL("%lld pages are in use", (long long)pages);
  }
  mlx_engine_close(engine);
}

GPU_TEST_MAIN(prepare, CASE(pages_that_leave_the_window_are_freed_on_the_gpu))
