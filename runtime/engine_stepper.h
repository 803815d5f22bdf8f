// The engine's stepper: fills the arguments of kernels/step.h and calls the functions of a module.
#ifndef MLXCEL_RUNTIME_ENGINE_STEPPER_H_
#define MLXCEL_RUNTIME_ENGINE_STEPPER_H_

#include "artifact/manifest.h"
#include "runtime/stepper.h"
#include "shim/shim.h"

typedef struct mlx_stepper_options {
  mlx_device_t *device;           // borrowed
  mlx_device_program_t *program;  // borrowed
  const mlx_variant_t *variant;   // borrowed
  const void *weights;            // where they are mapped: after a fault there, steps fail; NULL: not mapped
  bool whole;                     // an encoder
  int64_t vocab;
  int64_t slots, slot_pages, pool_pages, window_pages, states;
} mlx_stepper_options_t;

// Takes the memory of all arguments but the KV pool, of which it reserves the addresses. Window pages and
// states are committed at once, pages when set_page first names them. Release with mlx_engine_stepper_free.
mlx_status_t mlx_engine_stepper_create(const mlx_stepper_options_t *options,
                                       mlx_stepper_t **out_stepper) MLX_MUST_USE;
// Waits for open tickets and releases them. NULL is fine.
void mlx_engine_stepper_free(mlx_stepper_t *stepper);
// The steppers of the ranks of a model, which have equal sizes: gives their tickets results in one memory,
// and behind them the exchange of parts of sums (kernels/step.h). The first one owns it: free it last.
mlx_status_t mlx_engine_steppers_connect(mlx_stepper_t *const *steppers, size_t count) MLX_MUST_USE;
// Of a ticket of the first one: lets calls that wait for other ranks go on. Their results are wrong.
void mlx_engine_stepper_stop_ranks(mlx_stepper_t *stepper, const mlx_ticket_t *ticket);
// After all calls of the tickets are done: whether ranks stopped waiting. Then the exchange starts anew.
bool mlx_engine_stepper_restart_ranks(mlx_stepper_t *stepper, const mlx_ticket_t *ticket);
// Bytes of the arguments but the KV pool; SIZE_MAX on overflow.
size_t mlx_engine_stepper_bytes(const mlx_stepper_options_t *options);

#endif  // MLXCEL_RUNTIME_ENGINE_STEPPER_H_
