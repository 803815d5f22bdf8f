// An example configuration of rows.cu, for editors and tests: the RMS norm of a wide row.
#pragma once

#include "rows_config.cuh"

#define NAME mlx_rmsnorm
#define NORM 1

constexpr Config config = {
    .norm_eps = 1e-5f,
    .warps = 8,
};

struct Tables : NoTables {};
