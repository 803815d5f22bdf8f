// Every architecture compiles for sm_90 with --kernels=required: every product, attention and experts node
// has a kernel, NVRTC compiles the images, and iree-compile links them into a module. Two step sizes instead
// of five keep it short: decode, and prefill. Needs no GPU; arch_gpu_test.c runs the whole modules on one.
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "compiler/compile_job.h"
#include "compiler/emit.h"
#include "tests/wide_fixtures.h"

// Kernels compute all norms. Of some architectures, which have LayerNorm, biases, MLPs without a gate, or
// RoPE of a part of each head or of adjacent numbers, they compute everything.
static void check_small_ops(const char *name, const char *text) {
  static const char *const whole[] = {"starcoder2", "gpt_neox", "qwen2", "glm4"};
  static const char *const ops[] = {"stablehlo.add", "stablehlo.multiply", "stablehlo.concatenate"};
  CHECK(!strstr(text, "stablehlo.rsqrt"));
  for (size_t i = 0; i < sizeof whole / sizeof *whole; ++i) {
    if (strcmp(name, whole[i])) continue;
    for (size_t j = 0; j < sizeof ops / sizeof *ops; ++j)
      if (strstr(text, ops[j])) CHECK_FAIL("%s has %s", name, ops[j]);
  }
}

static void compile_module(const char *name, mlx_compile_job_t *job) {
  static const mlx_step_size_t sizes[] = {{1, 1}, {16, 16}};
  mlx_cache_entry_t entry;
  mlx_module_options_set_steps(sizes, 2, &job->module);
  CHECK_OK(mlx_module_emit(job->model, job->graph, &job->module, &job->mlir, &job->mlir_length));
  check_small_ops(name, job->mlir);
  CHECK_OK(mlx_iree_compiler_find(job->cache, NULL, NULL, &job->compiler));
  CHECK_OK(mlx_job_get_module(job, &entry));
  mlx_cache_release(&entry);
  mlx_iree_compiler_release(&job->compiler);
  mlx_free(job->mlir);
}

static mlx_status_t check_wide(void *user, const char *file) {
  static const mlx_compile_options_t options = {.target = "cuda:sm_90",
                                                .weights = MLX_WEIGHTS_AUTO,
                                                .context = CONTEXT,
                                                .kernels = MLX_KERNELS_REQUIRED};
  char folder[] = "/tmp/mlxcel-wide-XXXXXX", name[64];
  size_t *compiled = user;
  mlx_compile_job_t job = {.options = &options};
  if (!wide_name(file, name)) return NULL;
  CHECK(mkdtemp(folder));
  write_wide_model(name, folder);
  CHECK_OK(mlx_cache_open(NULL, &job.cache));
  CHECK_OK(mlx_model_open(folder, &job.model));
  CHECK_OK(mlx_target_parse(options.target, &job.target));
  CHECK_OK(mlx_job_module_options(job.model, &options, MLX_FORM_IREE, &job.module));
  CHECK_OK(mlx_model_build_graph(job.model, job.module.context, &job.graph));
  snprintf(job.title, sizeof job.title, "%s for %s", name, options.target);
  mlx_status_t status = mlx_job_choose_kernels(&job);
  if (status) CHECK_FAIL("%s: %s", name, mlx_status_message(status));
  compile_module(name, &job);
  ++*compiled;
  mlx_kernels_clear(&job.kernels);
  mlx_nvrtc_close(job.nvrtc);
  mlx_graph_free(job.graph);
  mlx_model_close(job.model);
  mlx_cache_close(job.cache);
  CHECK_OK(mlx_remove_tree(folder));
  return NULL;
}

TEST(every_architecture_compiles_for_sm_90_with_kernels_required) {
  size_t compiled = 0;
  CHECK_OK(mlx_list_dir(WIDE_FIXTURES, check_wide, &compiled));
  fprintf(stderr, "  %zu fixtures compiled\n", compiled);
  CHECK(compiled > 0);
}

TEST_MAIN(CASE(every_architecture_compiles_for_sm_90_with_kernels_required))
