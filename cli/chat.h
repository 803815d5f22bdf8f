// Chat: a conversation with a user at the terminal.
#ifndef MLXCEL_CLI_CHAT_H_
#define MLXCEL_CLI_CHAT_H_

#include "cli/turn.h"

// Runs until the user ends the chat.
mlx_status_t mlx_cli_chat(const mlx_chat_setup_t *setup) MLX_MUST_USE;

#endif  // MLXCEL_CLI_CHAT_H_
