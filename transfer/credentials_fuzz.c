// Reads arbitrary bytes as docker's config.json.
#include "base/memory.h"
#include "transfer/credentials.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *auth, *identity, *helper;
  mlx_status_free(mlx_docker_config_read("config.json", (const char *)data, size, "localhost:5000", &auth,
                                         &identity, &helper));
  mlx_free(auth);
  mlx_free(identity);
  mlx_free(helper);
  return 0;
}
