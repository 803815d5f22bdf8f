// 16-bit products: the configuration of an image of linear.cu. compiler/lower_cuda.c sets the fields in this
// order.
#pragma once

#include "config_types.cuh"

struct Config {
  Activation act = Activation::SILU;  // EPILOGUE 2
  int m = 1, n = 64, k = 64;          // y[m, n] = x[m, k] . w[n, k]^T; k % 8 == 0
  int n2 = 0, n3 = 0;                 // EPILOGUE 3: rows of the other matrices; 0: there is no third one
  int gemv_rows = 1, warps = 4;       // GEMV: rows of a warp; warps of a block that multiply
  int bm = 64, bn = 64, stages = 4;   // a block's part of y; buffers of a chunk of columns
  int threads = 128;                  // of a block
  Dtype dtype = Dtype::BF16;          // of x and w
};

struct NoTables {};
