// An example configuration of recurrent.cu, for editors and tests: the gated delta rule of Qwen3.5.
#pragma once

#include "recurrent_config.cuh"

#define NAME mlx_delta
#define DELTA 1

constexpr Config config = {
    .key_dim = 128,
    .scale = 0.0883883476f,
};

struct Tables : NoTables {};
