// Interrupt: Ctrl-C while a verb generates text, and signals that end the process.
#ifndef MLXCEL_CLI_INTERRUPT_H_
#define MLXCEL_CLI_INTERRUPT_H_

#include <stdbool.h>

#define MLX_EXIT_INTERRUPTED 130  // exit status after Ctrl-C: 128 + SIGINT

// From now on SIGINT, SIGTERM and SIGHUP remove unfinished files (base/unfinished.h) before they end the
// process: weights are large. A signal that is ignored stays so.
void mlx_interrupt_clean_up(void);

// From now on the first Ctrl-C is a request, and the second one ends the process. Before this call, and if
// SIGINT is ignored, the system's action stays.
void mlx_interrupt_watch(void);
bool mlx_interrupt_requested(void);
// Ends the process as SIGINT does, so that a shell ends its loop too. On a system without signals it returns
// MLX_EXIT_INTERRUPTED.
int mlx_interrupt_end(void);

#endif  // MLXCEL_CLI_INTERRUPT_H_
