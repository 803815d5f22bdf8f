// An example for editors and tests: Llama 3.2 1B with bf16 weights on an H200.
#pragma once

#include "decode_config.cuh"

constexpr Config config = {
    .hidden = 2048,
    .ffn = 8192,
    .heads = 32,
    .kv_heads = 8,
    .head_dim = 64,
    .layers = 16,
    .vocab = 128256,
    .blocks = 132,
    .shared_bytes = 232448,
    .scratch_words = 259456,
    .segment = 1024,
    .norm_eps = 1.0e-05f,
    .scale = 0.125f,
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
    .dtype = Dtype::BF16,
    .kv = Dtype::F32,
};

struct Tables : NoTables {
  struct rope_frequencies {
    static __host__ __device__ constexpr Array<float, 32> values() {
      return {{1.000000000e+00f, 6.636012377e-01f, 4.403666027e-01f, 2.922278226e-01f, 1.939227447e-01f,
               1.286873734e-01f, 8.539710029e-02f, 5.666962145e-02f, 3.760603093e-02f, 2.495540867e-02f,
               1.656044008e-02f, 1.098952853e-02f, 7.292664737e-03f, 4.839421346e-03f, 3.211445995e-03f,
               2.131119537e-03f, 1.414213562e-03f, 9.384738704e-04f, 6.227724219e-04f, 4.132725500e-04f,
               2.742481757e-04f, 1.819914288e-04f, 1.207697374e-04f, 8.014294722e-05f, 5.318295897e-05f,
               3.529227740e-05f, 2.341999896e-05f, 1.554154030e-05f, 1.031338538e-05f, 6.843975301e-06f,
               4.541670481e-06f, 3.013858152e-06f}};
    }
  };
};
