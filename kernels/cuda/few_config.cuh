// Few tokens: the configuration of an image. compiler/lower_cuda_few.c sets the fields in this order.
#pragma once

#include "decode_weight.cuh"

struct Config {
  int hidden, ffn, q_width, kv_width, head_dim, vocab;
  int slices;  // of ffn
  int shared_bytes;
  int scratch_at, scratch_words;  // of the two Buffers, in words
  float norm_eps;
  Dtype kv = Dtype::F32;  // of the KV pool
  WEIGHT_FIELDS
};

struct NoTables {};
