// Weights that are made while they are copied to a GPU. The file of the model is their only copy on disk.
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "compiler/compile_job.h"
#include "compiler/weights.h"

#define WORKERS 16  // threads that may pack at the same time

struct mlx_source_weights {
  mlx_model_t *model;
  mlx_packer_t *packer;
  char stamp[MLX_DIGEST_HEX];  // of the source files when they were opened
};

bool mlx_job_makes_weights_at_load(const mlx_compile_job_t *job) {
  return job->options->for_engine && job->only_target && job->target.gpu &&
         mlx_weights_pack_fast(job->model, mlx_module_storage(&job->module));
}

mlx_status_t mlx_job_keep_source(mlx_compile_job_t *job, mlx_compiled_t *out) {
  MLX_TRY(mlx_alloc(1, sizeof *out->source, &out->source));
  snprintf(out->source->stamp, sizeof out->source->stamp, "%s", job->source_stamp);
  MLX_TRY(mlx_packer_create(job->model, mlx_module_storage(&job->module), WORKERS, &out->source->packer));
  out->reader = mlx_packer_reader(out->source->packer);
  out->source->model = job->model;
  job->model = NULL;
  return NULL;
}

void mlx_source_weights_free(mlx_source_weights_t *source) {
  if (!source) return;
  mlx_packer_free(source->packer);
  mlx_model_close(source->model);
  mlx_free(source);
}

mlx_status_t mlx_source_weights_check(const mlx_source_weights_t *source) {
  return mlx_source_check_stamp(source->model->source, source->stamp);
}
