// The version of the library, which the build defines.
#include "runtime/mlxcel.h"

const char *mlx_version(void) { return MLXCEL_VERSION; }
