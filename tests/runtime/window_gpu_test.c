// The GPU kernels do not depend on pages that left the sliding window: the scheduler frees them, and the
// tokens are those of Hugging Face. window_test.c does the same on the CPU.
#include "base/memory.h"
#include "tests/runtime/window.h"
#include "tests/support/gpu.h"

// Both layers of mistral have a window; of the others, one has. Gemma 3 has a decode kernel; gpt-oss has
// sinks and experts.
static const struct {
  const char *fixture, *bundle, *golden;
  bool mixed;
} subjects[] = {
    {"mistral", "window.mlxb", "window.json", false},
    {"gemma3", "window-gemma3.mlxb", "window-gemma3.json", true},
    {"gpt_oss", "window-gpt_oss.mlxb", "window-gpt_oss.json", true},
};
#define SUBJECTS (sizeof subjects / sizeof *subjects)

static void prepare(void) {
  for (size_t i = 0; i < SUBJECTS; ++i) {
    char folder[] = "/tmp/mlxcel-window-XXXXXX", golden[512];
    CHECK(mkdtemp(folder));
    write_wide_model(subjects[i].fixture, folder);
    gpu_compile(folder,
                &(mlx_compile_options_t){.target = "cuda:sm_90",
                                         .weights = MLX_WEIGHTS_AUTO,
                                         .context = CONTEXT,
                                         .kernels = MLX_KERNELS_REQUIRED},
                subjects[i].bundle);
    snprintf(golden, sizeof golden, WIDE_GOLDENS "%s.json", subjects[i].fixture);
    gpu_copy(golden, subjects[i].golden);
    CHECK_OK(mlx_remove_tree(folder));
  }
}

static void check_subject(size_t nth) {
  mlx_engine_t *engine = gpu_open(subjects[nth].bundle);
  for (int i = 0; i < 2; ++i) {  // the second time the first pages come from the cache
    const used_pages_t used = run_golden(engine, gpu_file(subjects[nth].golden));
    const bool mixed = subjects[nth].mixed;
    // The prompt has 10 pages; the last burst adds pages after the last look at them.
    if (mixed ? used.pages < 10 || !used.window_pages || used.window_pages > 5 : used.pages > 4)
      CHECK_FAIL("%s: %lld pages and %lld window pages are in use", subjects[nth].fixture,
                 (long long)used.pages, (long long)used.window_pages);
  }
  mlx_engine_close(engine);
}

TEST(pages_that_leave_the_window_are_freed_on_the_gpu) {
  for (size_t i = 0; i < SUBJECTS; ++i) {
    if (!gpu_runs(subjects[i].bundle, 90)) return;
    check_subject(i);
  }
}

GPU_TEST_MAIN(prepare, CASE(pages_that_leave_the_window_are_freed_on_the_gpu))
