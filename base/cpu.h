// CPU: which machine this is, as far as compiled code cares.
#ifndef MLXCEL_BASE_CPU_H_
#define MLXCEL_BASE_CPU_H_

#include "base/digest.h"

// A name for exactly this CPU's features: code compiled for one runs on every machine that has the same.
void mlx_cpu_identity(char out_hex[MLX_DIGEST_HEX]);

// Levels a model can be compiled for, of all architectures that mlxcel runs on; those of one architecture
// ascend.
typedef enum mlx_cpu_arch { MLX_X86_64, MLX_AARCH64 } mlx_cpu_arch_t;
typedef struct mlx_cpu_level {
  const char *name;  // "x86-64-v3", "aarch64"
  mlx_cpu_arch_t arch;
} mlx_cpu_level_t;
const mlx_cpu_level_t *mlx_cpu_level(size_t index);           // NULL past the last
const mlx_cpu_level_t *mlx_cpu_level_find(const char *name);  // NULL for what is none
const mlx_cpu_level_t *mlx_cpu_level_here(void);              // the highest that this machine runs
// True when this machine runs code of that level.
bool mlx_cpu_has_level(const char *level);

// Lets this process use AMX tiles, on threads started from now on too; false when the machine has none or
// gives none.
bool mlx_cpu_enable_tiles(void);
bool mlx_cpu_ask_for_tiles(void);  // its half that asks the system: base/cpu_posix.c, base/cpu_windows.c

// Logical CPUs this process may use.
int mlx_cpu_count(void);

#endif  // MLXCEL_BASE_CPU_H_
