// Fuzz target: bodies of POST /completion and POST /infill (llama.cpp). The first byte chooses.
#include "server/api/api_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (!size) return 0;
  fuzz_api(*data == 'i' ? &mlx_api_llama_infill : &mlx_api_llama_completion, data + 1, size - 1);
  return 0;
}
