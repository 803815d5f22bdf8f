// A manifest that passes every check, for tests whose bundles need no real code or weights.
#ifndef MLXCEL_TESTS_SMALL_MANIFEST_H_
#define MLXCEL_TESTS_SMALL_MANIFEST_H_

#include "artifact/manifest.h"

// Lists no files yet.
static inline mlx_manifest_t small_manifest(void) {
  mlx_manifest_t manifest = {.architecture = "llama",
                             .source = "tiny",
                             .compiler = "3.13",
                             .contract = MLX_CONTRACT_VERSION,
                             .vocab = 320,
                             .context = 64,
                             .variant_count = 1};
  manifest.variants[0] = (mlx_variant_t){.target = "cpu:x86-64-v3",
                                         .dtype = "f32",
                                         .module = MLX_BUNDLE_VMFB,
                                         .weights = MLX_BUNDLE_WEIGHTS,
                                         .kv = "f32",
                                         .activations = "f32",
                                         .steps = {{16, 16}},
                                         .step_count = 1,
                                         .ragged = true,
                                         .samples = true,
                                         .page_bytes = 4096,
                                         .hidden = 64};
  return manifest;
}

#endif  // MLXCEL_TESTS_SMALL_MANIFEST_H_
