// NVRTC with few optimizations, which takes half the time or less. For cases that ask whether sources
// compile, or what is compiled. Images that run on a GPU have all optimizations.
#ifndef MLXCEL_TESTS_QUICK_NVRTC_H_
#define MLXCEL_TESTS_QUICK_NVRTC_H_

#include "compiler/nvrtc.h"

// For the compilations of this process from now on.
static inline void compile_quickly(bool quickly) { mlx_nvrtc_added_option = quickly ? "-Ofc=mid" : NULL; }

#endif  // MLXCEL_TESTS_QUICK_NVRTC_H_
