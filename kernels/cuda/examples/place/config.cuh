// An example configuration of place.cu, for editors and tests: place.
#pragma once

#include "place_config.cuh"

#define NAME mlx_place
#define PLACE 1

constexpr Config config = {
    .short_queries = 16,
    .short_share = 4,
    .long_queries = 64,
    .long_share = 1,
};

struct Tables : NoTables {};
