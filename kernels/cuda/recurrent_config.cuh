// Recurrent: the configuration of an image of recurrent.cu. compiler/lower_cuda_recurrent.c sets the fields
// in this order.
#pragma once

#include "config_types.cuh"

struct Config {
  int taps = 4;          // CONVOLVE: 2 to 16
  int groups = 8;        // CONVOLVE: 1 or 8 groups of threads, which divide the rows of a segment
  bool biased = false;   // CONVOLVE: adds a bias
  bool silu = false;     // CONVOLVE: SiLU of the result
  int key_dim = 128;     // DELTA, SCAN: at most 256
  bool log_rate = true;  // DELTA, SCAN: the rates are logarithms
  bool tiled = false;    // DELTA: value head i has key head i % key heads, not i / (value heads / key heads)
  float scale = 1;       // DELTA: of q
  float eps = 1e-6f;     // DELTA
  float beta_scale = 1;  // DELTA: of sigmoid(beta)
  float min_step = 0;    // SCAN: limits of dt
  float max_step = 3.4e38f;  // SCAN
  bool state_rates = false;  // SCAN: Mamba 1, see recurrent.cu
};

constexpr int THREADS = 256;  // of a block

struct NoTables {};
