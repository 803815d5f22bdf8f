// Hub settings: the hub's address and access token, read from the environment and from the token file of the
// hub's own client. Nothing here writes a setting or prints a token.
#ifndef MLXCEL_TRANSFER_HUB_SETTINGS_H_
#define MLXCEL_TRANSFER_HUB_SETTINGS_H_

#include "base/status.h"

// The hub's address without a trailing slash: |given| if not NULL or empty, else $HF_ENDPOINT,
// else the public hub. Release with mlx_free.
mlx_status_t mlx_hub_endpoint(const char *given, char **out_url) MLX_MUST_USE;

// "Bearer TOKEN", with the token from $HF_TOKEN or the token file of the hub's own client. NULL if there is
// no token, or if |endpoint| is plain http on another machine. Release with mlx_free.
mlx_status_t mlx_hub_authorization(const char *endpoint, char **out_authorization) MLX_MUST_USE;

bool mlx_hub_is_offline(void);  // $HF_HUB_OFFLINE is set

#endif  // MLXCEL_TRANSFER_HUB_SETTINGS_H_
