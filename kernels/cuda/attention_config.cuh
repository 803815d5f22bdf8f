// Attention: the configuration of an image of attention.cu or attention_f32.cu. compiler/lower_cuda.c sets
// the fields in this order.
#pragma once

#include "config_types.cuh"

struct Config {
  int head_dim = 64;      // multiple of 8, up to 256; or of 64, up to 512
  Dtype kv = Dtype::F32;  // of the pool
  // Latent attention: a value is the first |value_dim| numbers of its key, and the pool has only keys; 0:
  // values are stored. head_dim may then be any multiple of 32 up to 640.
  int value_dim = 0;
  // append
  int rotary = 0;           // numbers of a head that RoPE rotates; 0: all
  bool adjacent = false;    // RoPE pairs number 2i with 2i + 1, not i with i + rotary / 2
  float head_norm_eps = 0;  // of the norms of q and k, with HEAD_NORM; of keys with latent attention
  bool value_norm = false;  // with HEAD_NORM: values have one too, without a gain
  // Latent attention: queries are multiplied by 1 + grow_beta * log(1 + position / grow_period); 0: they are
  // not.
  float grow_beta = 0;
  int grow_period = 0;
  // attend
  float scale = 1;          // of the scores, positive
  float softcap = 0;        // of the scores; 0: none
  bool long_tiles = false;  // of |placed|: the long tiles, not the short ones
  // attend of attention.cu
  int wq = 4, wk = 1, keys = 32;
  // attend of attention_f32.cu
  int step = 32, queries = 16, stages = 1, threads = 128;
  bool warpgroups = false;  // attention_warpgroups.cuh, with |step| 64, |queries| 128 and |threads| 512
  bool out_16 = false;      // the result has the 16-bit type of the pool
};

struct NoTables {};
