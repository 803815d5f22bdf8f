// Opens the parts of a model as one engine. The first engine owns the others and has the scheduler, which
// runs on the stepper of all ranks.
#include <string.h>

#include "runtime/engine_internal.h"
#include "runtime/rooms.h"
#include "runtime/scheduler.h"

static mlx_status_t join(mlx_engine_t *first, size_t count) {
  mlx_stepper_t *steppers[MLX_MOST_RANK_ENGINES] = {first->stepper};
  for (size_t i = 1; i < count; ++i) steppers[i] = first->others[i]->stepper;
  MLX_TRY(mlx_ranks_create(steppers, count, &first->ranks));
  mlx_scheduler_delete(first->scheduler);
  first->scheduler = NULL;
  return mlx_engine_create_scheduler(first);
}

mlx_status_t mlx_engine_open_ranks(const mlx_model_parts_t *parts, size_t count,
                                   const mlx_engine_options_t *options, mlx_engine_t **out_engine) {
  mlx_engine_t *first;
  *out_engine = NULL;
  MLX_TRY(mlx_engine_open(&parts[0], options, &first));
  mlx_status_t status = NULL;
  if (count < 2 || count > MLX_MOST_RANK_ENGINES)
    status = mlx_error(MLX_USAGE, "%zu ranks are not possible", count);
  for (size_t i = 1; i < count && !status; ++i)
    status = mlx_engine_open(&parts[i], options, &first->others[i]);
  if (!status) status = join(first, count);
  if (status)
    mlx_engine_close(first);
  else
    *out_engine = first;
  return status;
}
