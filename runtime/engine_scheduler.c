// The public calls that take the scheduler of an engine.
#include "runtime/engine_internal.h"
#include "runtime/scheduler.h"

mlx_status_t mlx_scheduler_create(mlx_engine_t *engine, const mlx_scheduler_options_t *options,
                                  mlx_scheduler_t **out_scheduler) {
  mlx_scheduler_configure(engine->scheduler, options);
  *out_scheduler = engine->scheduler;
  return NULL;
}

void mlx_scheduler_free(mlx_scheduler_t *scheduler) {
  if (scheduler)
    mlx_scheduler_configure(scheduler, &(mlx_scheduler_options_t){0});  // sessions go on using it
}
