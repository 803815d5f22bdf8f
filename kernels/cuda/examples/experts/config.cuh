// An example configuration of experts.cu, for editors and tests: choosing 8 of 128 experts.
#pragma once

#include "experts_config.cuh"

#define NAME mlx_route
#define ROUTE 1
#define BATCH 1

constexpr Config config = {
    .experts = 128,
    .used = 8,
    .sum_to_one = true,
};

struct Tables : NoTables {};
