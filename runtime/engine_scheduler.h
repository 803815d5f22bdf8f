// What the schedulers of an engine run on, for the sources of runtime/ only.
#ifndef MLXCEL_RUNTIME_ENGINE_SCHEDULER_H_
#define MLXCEL_RUNTIME_ENGINE_SCHEDULER_H_

#include "runtime/engine_internal.h"
#include "runtime/scheduler.h"

// Borrowed from the engine.
mlx_scheduler_parts_t mlx_engine_scheduler_parts(mlx_engine_t *engine);

#endif  // MLXCEL_RUNTIME_ENGINE_SCHEDULER_H_
