// libFuzzer target for the safetensors reader. Every tensor of a parsed file must be found and readable.
#include <stdint.h>
#include <stdlib.h>

#include "models/import/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  mlx_safetensors_t *file;
  mlx_status_t status = mlx_safetensors_parse("fuzz.safetensors", data, size, &file);
  if (status) {
    mlx_status_free(status);
    return 0;
  }
  size_t total = 0, sum = 0;
  for (size_t i = 0; i < file->tensor_count; ++i) {
    const mlx_tensor_t *tensor = &file->tensors[i];
    if (mlx_safetensors_tensor(file, tensor->name) != tensor) abort();
    for (size_t j = 0; j < tensor->size; ++j) sum += tensor->data[j];
    total += tensor->size;
  }
  if (total > size || sum > 255 * size) abort();  // no byte belongs to two tensors
  mlx_safetensors_close(file);
  return 0;
}
