// Credentials: reads the registry credentials that docker stores.
//
// They are in $DOCKER_CONFIG/config.json, else in ~/.docker/config.json, or come from the docker-credential-*
// helper programs that this file names. No credential is ever printed; an error quotes the output of a helper
// only if the helper failed.
#ifndef MLXCEL_TRANSFER_CREDENTIALS_H_
#define MLXCEL_TRANSFER_CREDENTIALS_H_

#include "base/status.h"

// Reads the entry for |host| from the text of config.json. |name| appears in error messages.
//   *|out_auth|      base64 of "user:password"
//   *|out_identity|  an identity token
//   *|out_helper|    the helper to try before those two: "pass" for docker-credential-pass
// Each may be NULL. Release with mlx_free.
mlx_status_t mlx_docker_config_read(const char *name, const char *json, size_t length, const char *host,
                                    char **out_auth, char **out_identity, char **out_helper) MLX_MUST_USE;

// Finds the credentials for |host|: "Basic ..." in *|out_authorization|, or an identity token in
// *|out_identity|. An identity token may only be sent to a token server. Both are NULL if there are none.
// Release with mlx_free.
mlx_status_t mlx_registry_credentials(const char *host, char **out_authorization,
                                      char **out_identity) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_CREDENTIALS_H_
