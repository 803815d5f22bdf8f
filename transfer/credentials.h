// Credentials for registries, from where docker keeps them: $DOCKER_CONFIG/config.json, else
// ~/.docker/config.json, and the docker-credential-* programs that names. Nothing is ever printed but what
// such a program says when it fails.
#ifndef MLXCEL_TRANSFER_CREDENTIALS_H_
#define MLXCEL_TRANSFER_CREDENTIALS_H_

#include "base/status.h"

// What such a file says of |host|: *|out_auth| is base64 of "user:password", *|out_identity| an identity
// token, *|out_helper| the program to ask
// ("pass" for docker-credential-pass) before either is used; each may be NULL. |name| is for errors. Release
// them with mlx_free.
mlx_status_t mlx_docker_config_read(const char *name, const char *json, size_t length, const char *host,
                                    char **out_auth, char **out_identity, char **out_helper) MLX_MUST_USE;

// For |host|: "Basic ..." in *|out_authorization|, or an identity token, which is sent to a token server
// alone, in *|out_identity|. Both are NULL where there is nothing. Release with mlx_free.
mlx_status_t mlx_registry_credentials(const char *host, char **out_authorization,
                                      char **out_identity) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_CREDENTIALS_H_
