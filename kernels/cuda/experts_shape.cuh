// Mixture of experts: sizes, for images whose configuration has the fields experts, used and sum_to_one.
#pragma once

#include "config.cuh"

constexpr int EXPERTS = config.experts ? config.experts : 1, USED = config.used;
constexpr bool SUM_TO_ONE = config.sum_to_one;
static_assert(EXPERTS <= MLX_EXPERTS_MOST && USED <= MLX_EXPERTS_MOST_USED && USED <= EXPERTS, "sizes");
