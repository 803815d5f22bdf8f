// Render: the state of one render, with its limits and its errors.
#ifndef MLXCEL_TEMPLATE_RENDER_H_
#define MLXCEL_TEMPLATE_RENDER_H_

#include "base/budget.h"
#include "template/sink.h"

#define MLX_MAX_RENDER_DEPTH 600  // nodes inside nodes, or values inside values

typedef enum mlx_flow { MLX_FLOW_ON, MLX_FLOW_BREAK, MLX_FLOW_CONTINUE } mlx_flow_t;

typedef struct mlx_render {
  const char *template_name;                    // borrowed, for errors
  const struct mlx_builtin_registry *registry;  // borrowed: the filters, tests and methods (builtin.h)
  mlx_arena_t arena;                            // of every value that this render makes
  uint64_t steps_left;
  mlx_budget_t budget;  // of time
  int depth;
  int line;     // of the node being evaluated, for errors
  int64_t now;  // of strftime_now, in seconds since 1970; 0: the current time
  mlx_flow_t flow;
  mlx_sink_t *out;                 // where statements write
  const struct mlx_var *captured;  // borrowed: the text that a filter block filters
} mlx_render_t;

mlx_status_t mlx_render_error(const mlx_render_t *r, mlx_code_t code, const char *fmt, ...)
    MLX_PRINTF(3, 4) MLX_MUST_USE MLX_NEVER_NULL;
#define MLX_FAIL(r, ...) return mlx_render_error(r, MLX_INVALID_INPUT, __VA_ARGS__)

// Subtracts |work| (bytes or items processed) from the step budget: 1 step, and 1 for every 64 of them.
mlx_status_t mlx_render_charge(mlx_render_t *r, size_t work) MLX_MUST_USE;
// The same for work that was already done and cannot fail: the next charge fails if no steps are left.
void mlx_render_spend(mlx_render_t *r, size_t work);
#define MLX_ITEM_WORK \
  8  // bytes: the work to look at one item, without the bytes of a string that is compared
// Goes one level deeper. The caller decrements r->depth when it leaves the level.
mlx_status_t mlx_render_enter(mlx_render_t *r) MLX_MUST_USE;

#endif  // MLXCEL_TEMPLATE_RENDER_H_
