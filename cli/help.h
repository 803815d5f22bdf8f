// Help: prints a verb's usage text and flag table, wrapped to the terminal, and owns the exit status table.
#ifndef MLXCEL_CLI_HELP_H_
#define MLXCEL_CLI_HELP_H_

#include <stdio.h>

#include "cli/verb.h"

typedef struct mlx_exit {
  int code;
  const char *meaning, *remedy;  // remedy may be ""
} mlx_exit_t;
// Every exit status, ending with a row whose meaning is NULL. docs/errors.md has the same table.
extern const mlx_exit_t mlx_exits[];

// The flags that every verb has. mlx_command_line_parse handles them itself, so their offsets are unused.
extern const mlx_flag_t mlx_common_flags[];

void mlx_help_print(const mlx_verb_t *verb, bool all);  // on stdout; |all| explains collapsed groups
void mlx_help_print_verbs(const mlx_verb_t *const *verbs, FILE *out);
void mlx_help_print_exits(void);  // on stdout

#endif  // MLXCEL_CLI_HELP_H_
