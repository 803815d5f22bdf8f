// Products: the configuration of an image of packed.cu. compiler/lower_cuda_quantized.c, lower_cuda_token.c
// and lower_cuda_experts.c set the fields in this order.
#pragma once

#include "config_types.cuh"

struct Config {
  int experts = 0, used = 1;  // EXPERTS_GEMV: experts of a layer, and of a token
  bool sum_to_one = false;    // the weights of the used experts add up to 1
  bool sigmoid = false;       // EXPERTS_GEMV: see experts_weigh.cuh
  float sum_eps = 0, weight_scale = 1, spread = 0;
  int expert_groups = 1, groups_used = 1;
  bool groups_by_best = false;
  // Sizes of y[m, n] = x[m, k] . w[n, k]^T, for kernels whose sizes are constants. k % 32 == 0. TOKEN: rows
  // of the second and of the third matrix; 0: there is none.
  int n = 16, k = 128;
  // Weights of 2 to 8 bits are tiles: the arguments of TileFormat (tile_format.cuh). Of 16 and of 32 bits
  // they are rows of numbers of |dtype|.
  int bits = 4, numbers = 0, offset = 0;
  bool halves = false;
  int center = 0;
  Dtype dtype = Dtype::BF16;
  int m = 1, n2 = 0, n3 = 0;

  bool whole_runs = false;  // PRODUCT, FEW: k % 128 is 0 for all products of the image
  // The function between gate and up. With a limit (gpt-oss) gate and up are clamped, and the sigmoid has the
  // factor |slope|; |act| is not used.
  Activation act = Activation::SILU;
  float limit = 0, slope = 0;
  bool y_parts = false;    // EPILOGUE 2: y is stored as parts of x of the next product
  bool sorted = false;     // SPLIT_INPUT with MIXTURE: x has the rows of the parts
  float norm_eps = 1e-5f;  // with GAIN
  // PRODUCT: a block's part of y, and buffers of a chunk of columns. GEMV: warps that share groups of rows.
  int bm = 16, bn = 64, stages = 4, warps = 4;
  // GEMV, FEW: groups of 16 rows of a tile. FEW: tiles of a cluster, warps of a tile, pieces of 32 columns in
  // flight. PRODUCT with rows: |depth| chunks of a group in registers; 0: as many as fit.
  int groups = 1, tall = 1, along = 1, depth = 0;
  int each = 1,
      resident = 2;  // EXPERTS_GEMV: groups of a block, one after the other; blocks of a multiprocessor
};

struct NoTables {};
