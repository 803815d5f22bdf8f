// Confirm: asks the user before files are removed.
#ifndef MLXCEL_CLI_CONFIRM_H_
#define MLXCEL_CLI_CONFIRM_H_

#include "base/status.h"

bool mlx_cli_can_ask(void);  // stdin and stderr are terminals

// Prints |question| and reads the answer. Only "y" and "yes" confirm.
bool mlx_cli_ask(const char *question);

#endif  // MLXCEL_CLI_CONFIRM_H_
