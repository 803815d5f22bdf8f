// Compile jobs that stop before the slow steps: tests look at the images and the MLIR of a module.
#ifndef MLXCEL_TESTS_COMPILE_JOBS_H_
#define MLXCEL_TESTS_COMPILE_JOBS_H_

#include <string.h>

#include "base/memory.h"
#include "compiler/compile_job.h"
#include "compiler/emit.h"
#include "tests/support/check.h"

// A job for the model |path| that has chosen its kernels. |options| must outlive it. Finish with end_job.
static inline void begin_job(const char *path, const mlx_compile_options_t *options, mlx_compile_job_t *job) {
  *job = (mlx_compile_job_t){.options = options};
  CHECK_OK(mlx_cache_open(NULL, &job->cache));
  CHECK_OK(mlx_model_open(path, &job->model));
  CHECK_OK(mlx_target_parse(options->target, &job->target));
  CHECK_OK(mlx_job_module_options(job->model, options, MLX_FORM_IREE, &job->module));
  CHECK_OK(mlx_model_build_graph(job->model, job->module.context, &job->graph));
  snprintf(job->title, sizeof job->title, "%.100s for %s", path, options->target);
  mlx_status_t status = mlx_job_choose_kernels(job);
  if (status) CHECK_FAIL("%s: %s", job->title, mlx_status_message(status));
}

// The functions of one token and of 16 tokens, and the requests for their images in job->kernels.
static inline void emit_job(mlx_compile_job_t *job) {
  static const mlx_step_size_t sizes[] = {{1, 1}, {16, 16}};
  mlx_module_options_set_steps(sizes, 2, &job->module);
  CHECK_OK(mlx_module_emit(job->model, job->graph, &job->module, &job->mlir, &job->mlir_length));
}

static inline void end_job(mlx_compile_job_t *job) {
  mlx_free(job->mlir);
  mlx_kernels_clear(&job->kernels);
  mlx_nvrtc_close(job->nvrtc);
  mlx_graph_free(job->graph);
  mlx_model_close(job->model);
  mlx_cache_close(job->cache);
}

// The definitions of the first image of |kind|; NULL if there is none.
static inline const char *job_definitions(const mlx_compile_job_t *job, mlx_kernel_kind_t kind) {
  for (size_t i = 0; i < job->kernels.count; ++i) {
    if (job->kernels.images[i].kind == kind) return job->kernels.images[i].definitions;
  }
  return NULL;
}

#endif  // MLXCEL_TESTS_COMPILE_JOBS_H_
