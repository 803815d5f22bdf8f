// Settings of the user's own that name servers, and the secrets for them. Nothing here is written, nothing of
// it is ever printed but the name of where it came from.
#ifndef MLXCEL_TRANSFER_SETTINGS_H_
#define MLXCEL_TRANSFER_SETTINGS_H_

#include "base/status.h"

// The hub's address without a slash at its end: |given|, else $HF_ENDPOINT. None is an error that says how to
// give one.
mlx_status_t mlx_hub_endpoint(const char *given, char **out_url) MLX_MUST_USE;

// "Bearer TOKEN" from $HF_TOKEN or the token file of the hub's own client, or NULL; also NULL where it would
// travel unprotected.
mlx_status_t mlx_hub_authorization(const char *endpoint, char **out_authorization) MLX_MUST_USE;

bool mlx_hub_offline(void);  // $HF_HUB_OFFLINE

// True for an address of this very machine, where plain http may carry a secret.
bool mlx_is_local_host(const char *host, size_t length);

#endif  // MLXCEL_TRANSFER_SETTINGS_H_
