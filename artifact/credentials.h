// Credentials for registries, from where docker keeps them: $DOCKER_CONFIG/config.json, else ~/.docker/config.json, and the
// docker-credential-* programs that names. Nothing is ever printed.
#ifndef MLXCEL_ARTIFACT_CREDENTIALS_H_
#define MLXCEL_ARTIFACT_CREDENTIALS_H_

#include "base/status.h"

// What such a file says of |host|: *|out_auth| is base64 of "user:password", *|out_helper| the program to ask ("pass" for
// docker-credential-pass); either may be NULL. |name| is for errors. Release both with mlx_free.
mlx_status_t mlx_docker_config_read(const char *name, const char *json, size_t length, const char *host, char **out_auth,
                                    char **out_helper) MLX_MUST_USE;

// "Basic ..." for |host|, or NULL where there is nothing. Release with mlx_free.
mlx_status_t mlx_registry_credentials(const char *host, char **out_authorization) MLX_MUST_USE;

#endif  // MLXCEL_ARTIFACT_CREDENTIALS_H_
