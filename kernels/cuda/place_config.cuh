// Place: the configuration of an image of place.cu. compiler/lower_place.c sets the fields in this order.
#pragma once

#include "config_types.cuh"

struct Config {
  // Queries of a tile of the kernel for short segments, and queries of a token; the same for long segments.
  int short_queries = 16, short_share = 1;
  int long_queries = 64, long_share = 1;
};

struct NoTables {};
