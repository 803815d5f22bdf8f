// An example configuration of linear.cu, for editors and tests: the output projection of 512 tokens of Llama
// 3.2 1B, added to the residual.
#pragma once

#include "linear_config.cuh"

#define NAME mlx_linear
#define EPILOGUE 1
#define MATRICES 1
#define SPLIT 1

constexpr Config config = {
    .m = 512,
    .n = 2048,
    .k = 2048,
    .warps = 4,
    .bm = 64,
    .bn = 128,
    .stages = 8,
    .threads = 256,
    .dtype = Dtype::BF16,
};

struct Tables : NoTables {};
