// Target: the device a model is compiled for, from the value of --target to the flags of iree-compile.
#ifndef MLXCEL_COMPILER_TARGET_H_
#define MLXCEL_COMPILER_TARGET_H_

#include "base/digest.h"
#include "base/gpu.h"
#include "base/status.h"

#define MLX_TARGET_FLAGS 8

typedef struct mlx_target {
  char name[64];                        // "cpu:host", "cpu:x86-64-v3", "cpu:portable", "cuda:sm_90"
  char cpu[MLX_DIGEST_HEX];             // for cpu:host, the identity of this CPU; else empty
  const char *flags[MLX_TARGET_FLAGS];  // for iree-compile, in order, NULL-terminated; they point into this
                                        // struct or to constants
  size_t flag_count;
  char arch_flag[96];
  bool portable;  // one module per CPU level that has a kernel; each level is a target, this one has no flags
  const char *cpu_level;      // "host" or a level; NULL for a GPU
  const mlx_gpu_kind_t *gpu;  // NULL for a CPU
} mlx_target_t;

// Parses "cpu" (this machine), "cpu:host", "cpu:LEVEL", "cpu:portable" or "cuda:sm_XX". Do not move or copy
// |out_target|: its flags point into it.
mlx_status_t mlx_target_parse(const char *text, mlx_target_t *out_target) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_TARGET_H_
