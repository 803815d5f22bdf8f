// Shared by the shim's own files only.
#ifndef MLXCEL_SHIM_SHIM_INTERNAL_H_
#define MLXCEL_SHIM_SHIM_INTERNAL_H_

#include "iree/hal/api.h"
#include "iree/vm/api.h"
#include "shim/shim.h"

struct mlx_device {
  mlx_device_kind_t kind;
  int threads;
  iree_hal_driver_registry_t *registry;
  iree_hal_device_t *hal;
};

// Turns |status| into ours and consumes it; NULL for OK.
mlx_status_t mlx_status_from_iree(iree_status_t status) MLX_MUST_USE;
#define MLX_TRY_IREE(expr) MLX_TRY(mlx_status_from_iree(expr))

#endif  // MLXCEL_SHIM_SHIM_INTERNAL_H_
