// Progress: shows that a prompt is being read, if that takes more than 0.3 s.
#ifndef MLXCEL_CLI_PROGRESS_H_
#define MLXCEL_CLI_PROGRESS_H_

#include <stddef.h>

// on_prompt of mlx_generate_options_t; |user| is not used. Reports "reading the prompt: 1234 of 8000 tokens,
// 12 s left" to the terminal. |done| equal to |total| clears the line. For one prompt at a time.
void mlx_cli_show_prompt(void *user, size_t done, size_t total);

#endif  // MLXCEL_CLI_PROGRESS_H_
