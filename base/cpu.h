// CPU: which machine this is, as far as compiled code cares.
#ifndef MLXCEL_BASE_CPU_H_
#define MLXCEL_BASE_CPU_H_

#include "base/digest.h"

// A name for exactly this CPU's features: code compiled for one runs on every machine that has the same.
void mlx_cpu_identity(char out_hex[MLX_DIGEST_HEX]);

// Levels a portable artifact can be compiled for ("x86-64-v3"), by the names LLVM has for them; NULL past the last.
const char *mlx_cpu_level(size_t index);
// True when this machine runs code of that level.
bool mlx_cpu_has_level(const char *level);

// Lets this process use AMX tiles, on threads started from now on too; false when the machine has none or gives none.
bool mlx_cpu_enable_tiles(void);

// Logical CPUs this process may use.
int mlx_cpu_count(void);

#endif  // MLXCEL_BASE_CPU_H_
