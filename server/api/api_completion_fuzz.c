// Fuzz target: the body of a request to mlx_api_completion.
#include "server/api/api_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_api(&mlx_api_completion, data, size);
  return 0;
}
