// Where the weights of a network are, in the configurations of decode.cu and few.cu.
#pragma once

#include "config_types.cuh"
#include "decode_tables.h"

// Where a weight is in the archive, in bytes.
struct Weight {
  u64 at = ~0ull;  // of layer 0; ~0: the network does not have it
  u64 step = 0;    // from one layer to the next
  int nth = -1;    // its column in the table |layer_offsets|, if layers differ in size
  __host__ __device__ constexpr bool present() const { return at != ~0ull; }
};

#define WEIGHT_FIELD(name, field, in_layers) Weight field;
#define WEIGHT_FIELDS MLX_DECODE_WEIGHT_TABLE(WEIGHT_FIELD)
