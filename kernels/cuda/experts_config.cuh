// Mixture of experts: the configuration of an image of experts.cu. compiler/lower_cuda_experts.c sets the
// fields in this order.
#pragma once

#include "config_types.cuh"

struct Config {
  int experts = 8, used = 2;  // of a layer, at most 1024; of a token, at most 32
  bool sum_to_one = false;    // ROUTE: the weights of the used experts add up to 1
  bool sigmoid = false;       // ROUTE: see experts_weigh.cuh
  float sum_eps = 0, weight_scale = 1, spread = 0;
  int expert_groups = 1, groups_used = 1;
  bool groups_by_best = false;
  int tile = 16;     // GROUP, COMBINE: tokens of a tile
  int n = 4, k = 4;  // COMBINE: columns; SCORES: rows and columns of a matrix
  // SCORES: numbers of the matrices, F32 or of 16 bits; how many matrices there are, one for each head of x
  Dtype matrix = Dtype::F32;
  int heads = 1;
  int x_dim = 0, x_start = 0;  // SCORES: numbers of a head of x, 0: K; the first of those that are multiplied
};

struct NoTables {};
