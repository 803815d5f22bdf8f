#include "artifact/manifest.h"
#include "base/memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  mlx_manifest_t manifest;
  mlx_status_t status = mlx_manifest_read("fuzz.json", (const char *)data, size, &manifest);
  char *json = NULL;
  if (!status) status = mlx_manifest_write(&manifest, &json, NULL);
  mlx_free(json);
  mlx_status_free(status);
  return 0;
}
