// Reads the size of a file from the headers of a HEAD or a range response. See probe.h.
#include "transfer/probe.h"

#include <stdio.h>

#include "transfer/download.h"

static mlx_probe_t read_probe(const mlx_http_response_t *response) {
  mlx_probe_t probe = {.status = response->status, .size = MLX_SIZE_UNKNOWN};
  char text[96];
  unsigned long long size = 0;
  if (response->status == 206 && mlx_http_header(response, "Content-Range", text, sizeof text))
    sscanf(text, "bytes 0-0/%llu", &size);
  if (response->status == 200 && mlx_http_header(response, "Content-Length", text, sizeof text))
    sscanf(text, "%llu", &size);
  if (size) probe.size = size;  // in a HEAD response, 0 often means unknown
  return probe;
}

mlx_status_t mlx_probe_url(const mlx_http_options_t *options, const char *url, mlx_probe_t *out_probe) {
  static const char *const first_byte[] = {"Range: bytes=0-0", NULL};
  mlx_http_t *http;
  MLX_TRY(mlx_http_open(options, &http));
  for (int i = 0; i < 2; ++i) {
    mlx_http_response_t response;
    const mlx_http_request_t request = {.method = i ? NULL : "HEAD",
                                        .url = url,
                                        .headers = i ? first_byte : NULL,
                                        .no_retry = true,
                                        .max_bytes = 1};
    mlx_status_free(mlx_http_send(http, &request, &response));
    *out_probe = read_probe(&response);
    mlx_http_response_clear(&response);
    if (out_probe->status == 200 || out_probe->status == 404 || out_probe->status == 410) break;
  }
  mlx_http_close(http);
  return NULL;
}
