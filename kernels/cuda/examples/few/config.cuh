// An example for editors and tests: Llama 3.2 1B with bf16 weights on an H200.
#pragma once

#include "few_config.cuh"

constexpr Config config = {
    .hidden = 2048,
    .ffn = 8192,
    .q_width = 2048,
    .kv_width = 512,
    .head_dim = 64,
    .vocab = 128256,
    .slices = 4,
    .shared_bytes = 232448,
    .scratch_at = 259456,
    .scratch_words = 327680,
    .norm_eps = 1.0e-05f,
    .kv = Dtype::F32,
    .embed = {.at = 0ull, .step = 0ull},
    .attn_norm = {.at = 525336576ull, .step = 121651200ull},
    .q = {.at = 525344768ull, .step = 121651200ull},
    .k = {.at = 533733376ull, .step = 121651200ull},
    .v = {.at = 535830528ull, .step = 121651200ull},
    .o = {.at = 537927680ull, .step = 121651200ull},
    .mlp_norm = {.at = 546316288ull, .step = 121651200ull},
    .gate = {.at = 546324480ull, .step = 121651200ull},
    .up = {.at = 579878912ull, .step = 121651200ull},
    .down = {.at = 613433344ull, .step = 121651200ull},
    .final_norm = {.at = 2471755776ull, .step = 0ull},
    .head = {.at = 0ull, .step = 0ull},
};

struct Tables : NoTables {};
