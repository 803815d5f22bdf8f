// Creates the scheduler of an engine.
#include "runtime/engine_internal.h"

#undef MLX_CONTRACT_VERSION  // artifact/manifest.h has the version of contract 1
#include "runtime/scheduler.h"

#define GPU_PROMPT_CHUNK 256  // prompt tokens beside decodes: less than 30 ms for a 1B model on an H200
#define CPU_PROMPT_CHUNK 64

mlx_status_t mlx_scheduler_create(mlx_engine_t *engine, const mlx_scheduler_options_t *options,
                                  mlx_scheduler_t **out_scheduler) {
  *out_scheduler = NULL;
  if (!engine->stepper || !engine->pool)
    return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "the module computes one sequence at a time"),
                           "compile the model again");
  const bool gpu = mlx_device_kind(engine->device) == MLX_DEVICE_CUDA;
  const mlx_scheduler_parts_t parts = {.stepper = engine->stepper,
                                       .pool = engine->pool,
                                       .language = {.tokenizer = engine->tokenizer,
                                                    .eos = engine->manifest.eos,
                                                    .eos_count = engine->manifest.eos_count,
                                                    .vocab = engine->manifest.vocab,
                                                    .context = engine->context,
                                                    .vocabulary = mlx_engine_vocabulary,
                                                    .engine = engine},
                                       .prompt_chunk = gpu ? GPU_PROMPT_CHUNK : CPU_PROMPT_CHUNK};
  return mlx_scheduler_create_on(&parts, options, out_scheduler);
}
