// Creates the scheduler of an engine.
#include "runtime/engine_scheduler.h"

#define GPU_PROMPT_CHUNK 256  // prompt tokens beside decodes: less than 30 ms for a 1B model on an H200
#define CPU_PROMPT_CHUNK 64

mlx_scheduler_parts_t mlx_engine_scheduler_parts(mlx_engine_t *engine) {
  const bool gpu = mlx_device_kind(engine->device) == MLX_DEVICE_CUDA;
  return (mlx_scheduler_parts_t){.stepper = engine->stepper,
                                 .pool = engine->pool,
                                 .language = {.tokenizer = engine->tokenizer,
                                              .eos = engine->manifest.eos,
                                              .eos_count = engine->manifest.eos_count,
                                              .vocab = engine->manifest.vocab,
                                              .context = engine->sizing.context,
                                              .vocabulary = mlx_engine_vocabulary,
                                              .engine = engine},
                                 .prompt_chunk = gpu ? GPU_PROMPT_CHUNK : CPU_PROMPT_CHUNK};
}

mlx_status_t mlx_scheduler_create(mlx_engine_t *engine, const mlx_scheduler_options_t *options,
                                  mlx_scheduler_t **out_scheduler) {
  const mlx_scheduler_parts_t parts = mlx_engine_scheduler_parts(engine);
  return mlx_scheduler_create_on(&parts, options, out_scheduler);
}
