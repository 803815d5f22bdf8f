// Probe: asks a web server for the size of a file before it is downloaded.
#ifndef MLXCEL_TRANSFER_PROBE_H_
#define MLXCEL_TRANSFER_PROBE_H_

#include "transfer/http.h"

typedef struct mlx_probe {
  long status;    // HTTP status; 0 without a response
  uint64_t size;  // bytes, or MLX_SIZE_UNKNOWN
} mlx_probe_t;

// Sends HEAD; if that fails, requests only the first byte. A failed request is not an error here, because the
// download will report it.
mlx_status_t mlx_probe_url(const mlx_http_options_t *options, const char *url,
                           mlx_probe_t *out_probe) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_PROBE_H_
