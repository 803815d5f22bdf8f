// An example configuration of packed.cu, for editors and tests: gate and up of 512 tokens in Q4_1.
#pragma once

#include "packed_config.cuh"

#define NAME mlx_packed_linear
#define PRODUCT 1
#define EPILOGUE 2
#define SPLIT 1
#define MATRICES 1
#define MIXTURE 0
#define BIAS 0
// Headers of other kernels need these.
#define GAIN 0
#define LAYERNORM 0
#define PARTIALS 0
#define RESIDUAL 0
#define BATCH 0
#define PAIR 1

constexpr Config config = {
    .experts = 8,
    .n = 64,
    .k = 128,
    .bits = 4,
    .numbers = 0,
    .offset = 1,
    .whole_runs = true,
    .bm = 128,
    .bn = 64,
    .stages = 4,
    .warps = 8,
    .groups = 2,
    .depth = 4,
};

struct Tables : NoTables {};
