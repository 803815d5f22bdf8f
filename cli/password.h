// Password: reads the password of a secret key from the environment, the terminal or stdin.
#ifndef MLXCEL_CLI_PASSWORD_H_
#define MLXCEL_CLI_PASSWORD_H_

#include "artifact/sign.h"

// Reads $MLXCEL_PASSWORD, else a hidden line from the terminal, else the first line of stdin. A terminal
// shows |prompt| and, if |again| is not NULL, prompts a second time with |again|; both lines must be equal.
// The caller must zero |out_password| after use.
mlx_status_t mlx_cli_password(const char *prompt, const char *again,
                              char out_password[MLX_MAX_PASSWORD]) MLX_MUST_USE;

#endif  // MLXCEL_CLI_PASSWORD_H_
