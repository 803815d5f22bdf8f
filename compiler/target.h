// Target: what a model is compiled for, from the word on the command line to iree-compile's flags.
#ifndef MLXCEL_COMPILER_TARGET_H_
#define MLXCEL_COMPILER_TARGET_H_

#include "base/digest.h"
#include "base/gpu.h"
#include "base/status.h"

#define MLX_TARGET_FLAGS 8

typedef struct mlx_target {
  char name[64];                        // "cpu:host", "cpu:x86-64-v3", "cpu:portable", "cuda:sm_90"
  char cpu[MLX_DIGEST_HEX];             // for cpu:host, which CPU that is; otherwise empty
  const char *flags[MLX_TARGET_FLAGS];  // for iree-compile, in order; NULL-terminated; point into this struct
                                        // or to constants
  size_t flag_count;
  char arch_flag[96];
  bool portable;  // a module for each level that has kernels: each is a target of its own, this one has no
                  // flags
  const char *cpu_level;      // of a CPU: "host" or a level; NULL for a GPU
  const mlx_gpu_kind_t *gpu;  // NULL for a CPU
} mlx_target_t;

// Parses "cpu" (this machine), "cpu:host", "cpu:LEVEL", "cpu:portable" or "cuda:sm_XX". |out_target| must
// stay where it is: its flags point into it.
mlx_status_t mlx_target_parse(const char *text, mlx_target_t *out_target) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_TARGET_H_
