#include <stdlib.h>

#include "artifact/manifest.h"
#include "base/memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  mlx_manifest_t manifest;
  mlx_status_t status = mlx_manifest_read("fuzz.json", (const char *)data, size, &manifest);
  char *json = NULL;
  if (!status) status = mlx_manifest_write(&manifest, &json, NULL);
  for (size_t i = 0; !status && i < manifest.level_count; ++i) {  // a level's name makes a file's, of this folder
    if (!mlx_is_bundle_file(mlx_bundle_module(manifest.levels[i]).text)) abort();
  }
  if (!status) {
    mlx_manifest_kernels_text(&manifest);
    mlx_manifest_levels_text(&manifest);
  }
  mlx_free(json);
  mlx_status_free(status);
  return 0;
}
