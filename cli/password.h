// Passwords of secret keys, from the person at the terminal or from whatever stands in for one.
#ifndef MLXCEL_CLI_PASSWORD_H_
#define MLXCEL_CLI_PASSWORD_H_

#include "artifact/sign.h"

// $MLXCEL_PASSWORD, else what is typed at the terminal, which is not shown, else the first line of stdin.
// |prompt| is shown at a terminal only, |again| a second time, where it is not NULL: both must be equal. Zero
// it after use.
mlx_status_t mlx_cli_password(const char *prompt, const char *again,
                              char out_password[MLX_MAX_PASSWORD]) MLX_MUST_USE;

#endif  // MLXCEL_CLI_PASSWORD_H_
