// Fuzz target: the body of a request to mlx_shape_chat.
#include "server/api_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_shape(&mlx_shape_chat, data, size);
  return 0;
}
