// Products (packed.cu): how the weights of an image are stored.
#pragma once

#include "config.cuh"
#include "ptx.cuh"

constexpr bool ROWS16 = config.bits == 16, ROWS32 = config.bits == 32, ROWS = ROWS16 || ROWS32;
constexpr bool IS_F16 = config.dtype == Dtype::F16;
// Rows have no tiles: any format makes functions valid that are not used.
constexpr int BITS = ROWS ? 4 : config.bits, NUMBERS = config.numbers, OFFSET = config.offset,
              HALVES = config.halves, CENTER = config.center;
constexpr bool SUMS = !ROWS && OFFSET == 1;  // the kernel needs the sums of x over 32 columns
