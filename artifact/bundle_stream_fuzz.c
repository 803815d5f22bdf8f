// Feeds arbitrary bytes to a bundle stream, in pieces of two sizes: the result must be the same.
#include "artifact/bundle_stream.h"

#include "base/memory.h"

static bool accepts(const uint8_t *data, size_t size, size_t piece) {
  mlx_bundle_stream_t *stream;
  mlx_status_t status = mlx_bundle_stream_create("fuzz", NULL, NULL, &stream);
  for (size_t at = 0; !status && at < size; at += piece)
    status = mlx_bundle_stream_add(stream, (const char *)data + at, size - at < piece ? size - at : piece);
  const bool accepted = !status;
  mlx_status_free(status);
  mlx_bundle_stream_free(stream);
  return accepted;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (accepts(data, size, 7) != accepts(data, size, size + 1)) __builtin_trap();
  return 0;
}
