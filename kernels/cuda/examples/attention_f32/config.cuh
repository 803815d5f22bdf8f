// An example configuration of attention_f32.cu, for editors and tests: gpt-oss, short segments on an H200.
#pragma once

#include "attention_f32_config.cuh"

#define NAME mlx_attend
#define SINKS 1
#define SPLIT 4

constexpr Config config = {
    .head_dim = 64,
    .kv = Dtype::F32,
    .scale = 0.125f,
    .step = 32,
    .queries = 16,
    .stages = 1,
    .threads = 128,
};

struct Tables : NoTables {};
