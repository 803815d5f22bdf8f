// Errors and limits of a render.
#include "template/render.h"

#include "template/error.h"

#define WORK_PER_STEP 64  // bytes or items

mlx_status_t mlx_render_error(const mlx_render_t *r, mlx_code_t code, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  mlx_status_t status = mlx_template_error_list(r->template_name, r->line, code, fmt, args);
  va_end(args);
  return status;
}

mlx_status_t mlx_render_charge(mlx_render_t *r, size_t work) {
  const uint64_t steps = 1 + work / WORK_PER_STEP;
  if (steps > r->steps_left) return mlx_render_error(r, MLX_UNSUPPORTED, "the template takes too many steps");
  r->steps_left -= steps;
  return mlx_budget_step(&r->budget, steps);
}

void mlx_render_spend(mlx_render_t *r, size_t work) {
  const uint64_t steps = work / WORK_PER_STEP;
  r->steps_left -= steps < r->steps_left ? steps : r->steps_left;
}

mlx_status_t mlx_render_enter(mlx_render_t *r) {
  if (++r->depth <= MLX_MAX_RENDER_DEPTH) return NULL;
  return mlx_render_error(r, MLX_UNSUPPORTED, "nesting is deeper than %d levels", MLX_MAX_RENDER_DEPTH);
}
