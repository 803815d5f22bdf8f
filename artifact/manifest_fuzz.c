// Reads arbitrary bytes as a manifest; an accepted manifest must name only valid bundle files.
#include <stdlib.h>

#include "artifact/manifest.h"
#include "base/memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  mlx_manifest_t manifest;
  mlx_status_t status = mlx_manifest_read("fuzz.json", (const char *)data, size, &manifest);
  char *json = NULL;
  if (!status) status = mlx_manifest_write(&manifest, &json, NULL);
  for (size_t i = 0; !status && i < manifest.variant_count; ++i) {
    const mlx_variant_t *variant = &manifest.variants[i];
    if (!mlx_is_bundle_file(variant->module) || !mlx_is_bundle_file(variant->weights)) abort();
    for (size_t j = 0; j < variant->level_count; ++j) {  // becomes part of a file name
      if (!mlx_is_bundle_file(mlx_bundle_module(variant->levels[j]).text)) abort();
    }
    mlx_variant_kernels_text(variant);
    mlx_variant_levels_text(variant);
  }
  if (!status) mlx_manifest_targets_text(&manifest);
  mlx_manifest_origin((const char *)data, size);
  mlx_free(json);
  mlx_status_free(status);
  return 0;
}
