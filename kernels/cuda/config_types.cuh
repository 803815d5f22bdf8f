// Types of the configuration of an image: compiler/kernel_config.c writes "config.cuh", which defines the
// constant |config| of the kernel's struct Config, and its tables as members of struct Tables.
#pragma once

#include "activations.h"
#include "kernel_tables.h"
#include "types.cuh"

// Type of numbers: of weights, or of the KV pool (Q8_0: codes of 8 bits, with a scale for each head of a
// position).
enum class Dtype { F32, BF16, F16, Q8_0 };

#define ACTIVATION_ENUMERATOR(name, text) name,
enum class Activation { MLX_ACTIVATION_TABLE(ACTIVATION_ENUMERATOR) COUNT };
#undef ACTIVATION_ENUMERATOR

template <typename T, int COUNT>
struct Array {
  T values[COUNT];
};

// A table that an image does not have.
template <typename T>
struct NoTable {
  static __host__ __device__ constexpr Array<T, 1> values() { return {}; }
};

// Element |i| of a table, in constant memory. Only tables that are used take space there.
template <typename Table, typename Index>
static __device__ __forceinline__ auto constant_at(Index i) {
  static __constant__ auto table = Table::values();
  return table.values[i];
}
