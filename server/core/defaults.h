// Defaults: what a request gets that it does not ask for, as the user of the server chose.
#ifndef MLXCEL_SERVER_CORE_DEFAULTS_H_
#define MLXCEL_SERVER_CORE_DEFAULTS_H_

#include "server/api/call.h"

typedef struct mlx_request_defaults {
  const mlx_sampling_t *sampling;  // borrowed; its seed is not used. NULL: llama.cpp's
  // "on", "off", or an effort (none, minimal, low, medium, high, xhigh, max); borrowed; NULL: the template's.
  const char *reasoning;
} mlx_request_defaults_t;

// Fails with MLX_USAGE if |reasoning| is none of these words.
mlx_status_t mlx_request_defaults_check(const char *reasoning) MLX_MUST_USE;
// Before a request is parsed into |call|, which is initialized.
void mlx_request_defaults_begin(const mlx_request_defaults_t *defaults, mlx_api_call_t *call);
// Afterwards: sets the template variables of reasoning, if the request says nothing about it.
mlx_status_t mlx_request_defaults_end(const mlx_request_defaults_t *defaults,
                                      mlx_api_call_t *call) MLX_MUST_USE;

#endif  // MLXCEL_SERVER_CORE_DEFAULTS_H_
