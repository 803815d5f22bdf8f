// Products (packed.cu): sizes of kernels whose sizes are constants of the image.
#pragma once

#include "packed_weights.cuh"

constexpr int M = config.m, N = config.n, K = config.k, N2 = config.n2, N3 = config.n3;
constexpr int RUNS = (K + 127) / 128;  // tiles along K
constexpr int TILES = (N + 7) / 8;     // tiles along N
static_assert(K % 32 == 0 && M <= 8, "blocks of 32 columns; one fragment of tokens");
