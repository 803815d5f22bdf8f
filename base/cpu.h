// CPU: the levels a model can be compiled for, and the features of this machine.
#ifndef MLXCEL_BASE_CPU_H_
#define MLXCEL_BASE_CPU_H_

#include "base/digest.h"

// A digest of this CPU's features. Code compiled for one identity runs on every machine with the same
// identity.
void mlx_cpu_identity(char out_hex[MLX_DIGEST_HEX]);

// CPU levels that a model can be compiled for, for all architectures that mlxcel supports. The levels of one
// architecture ascend.
typedef enum mlx_cpu_arch { MLX_X86_64, MLX_AARCH64 } mlx_cpu_arch_t;
typedef struct mlx_cpu_level {
  const char *name;  // "x86-64-v3", "aarch64"
  mlx_cpu_arch_t arch;
} mlx_cpu_level_t;
const mlx_cpu_level_t *mlx_cpu_level(size_t index);           // NULL past the last
const mlx_cpu_level_t *mlx_cpu_level_find(const char *name);  // NULL if there is no such level
const mlx_cpu_level_t *mlx_cpu_level_here(void);              // the highest level that this machine runs
// True if this machine runs code of that level.
bool mlx_cpu_has_level(const char *level);

// Enables AMX tiles for this process, including threads started later. False if the CPU has no AMX or the
// system does not grant it.
bool mlx_cpu_enable_tiles(void);
bool mlx_cpu_request_tiles(void);  // the system-specific part: base/cpu_posix.c, base/cpu_windows.c

// Number of logical CPUs that this process may use: the CPUs of its affinity mask, at most the quota of its
// control group, rounded up.
int mlx_cpu_count(void);

#endif  // MLXCEL_BASE_CPU_H_
