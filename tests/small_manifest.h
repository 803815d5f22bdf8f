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
                             .variant_count = 1};
  manifest.variants[0] = (mlx_variant_t){.target = "cpu:x86-64-v3",
                                         .dtype = "f32",
                                         .module = MLX_BUNDLE_VMFB,
                                         .weights = MLX_BUNDLE_WEIGHTS,
                                         .context = 64,
                                         .sequences = 1,
                                         .page_size = 16,
                                         .sequence_pages = 4,
                                         .pool_pages = 5,
                                         .prefill = {16},
                                         .prefill_count = 1,
                                         .decode = {1},
                                         .decode_count = 1};
  return manifest;
}

#endif  // MLXCEL_TESTS_SMALL_MANIFEST_H_
