// Rows: the configuration of an image of rows.cu. compiler/lower_cuda_rows.c sets the fields in this order.
#pragma once

#include "config_types.cuh"

struct Config {
  Dtype dtype = Dtype::BF16;  // EMBED: of the table
  float norm_eps = 1e-5f;     // NORM
  int warps = 8;              // NORM: 1 or 8, of a row
  bool ordered = false;       // NORM without LAYERNORM: the columns of y have an order
  int gains = 1;              // NORM without LAYERNORM: row r has gain r % gains; 0: none; 1 with |ordered|
  int half = 1;               // ROPE: numbers of the table |frequencies|
  float scale = 1;            // ROPE: of cosine and sine
};

struct NoTables {
  using frequencies = NoTable<float>;
};
