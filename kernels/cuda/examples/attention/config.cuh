// An example configuration of attention.cu, for editors and tests: Llama 3.2 1B with --dtype bf16. TURN, BIAS
// and HEAD_NORM are for attention_append.cuh.
#pragma once

#include "attention_config.cuh"

#define NAME mlx_attend
#define SINKS 0
#define SPLIT 1
#define TURN 1
#define BIAS 1
#define HEAD_NORM 1

constexpr Config config = {
    .head_dim = 64,
    .kv = Dtype::BF16,
    .scale = 0.125f,
    .long_tiles = true,
    .wq = 4,
    .wk = 2,
    .keys = 32,
};

struct Tables : NoTables {};
