// Chooses which variant of a compiled model runs on this machine. A variant is the code for one target.
#ifndef MLXCEL_RUNTIME_VARIANT_H_
#define MLXCEL_RUNTIME_VARIANT_H_

#include "runtime/engine_internal.h"

bool mlx_variant_is_cpu(const mlx_variant_t *variant);
// Set engine->variant, and engine->level of a portable variant, for this machine's CPU or GPU. |name| is the
// model's name in error messages. |level| is the CPU level that the user requested, or NULL.
mlx_status_t mlx_variant_choose_cpu(mlx_engine_t *engine, const char *name, const char *level) MLX_MUST_USE;
mlx_status_t mlx_variant_choose_gpu(mlx_engine_t *engine, const char *name,
                                    const mlx_gpu_info_t *gpu) MLX_MUST_USE;
// Fails, with the reason, if |gpu| or its driver cannot run |variant|.
mlx_status_t mlx_variant_check_gpu(const char *name, const mlx_variant_t *variant,
                                   const mlx_gpu_info_t *gpu) MLX_MUST_USE;

#endif  // MLXCEL_RUNTIME_VARIANT_H_
