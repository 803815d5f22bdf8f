// Prompt: reads lines from a terminal, with editing where the terminal can. Keys come from stdin; everything
// shown goes to stderr, since stdout belongs to the model.
//
// One prompt a process: it changes the terminal's mode and handles SIGWINCH, SIGINT and the signals that end
// us while it is open, and puts everything back when it is closed.
#ifndef MLXCEL_LINE_PROMPT_H_
#define MLXCEL_LINE_PROMPT_H_

#include "line/line.h"

typedef struct mlx_prompt mlx_prompt_t;

typedef enum mlx_prompt_result {
  MLX_PROMPT_LINE,
  MLX_PROMPT_INTERRUPTED,
  MLX_PROMPT_END
} mlx_prompt_result_t;

// True when stdin is a terminal.
bool mlx_prompt_is_possible(void);
// |history| and |words|, which Tab completes to, are borrowed. Release with mlx_prompt_close.
mlx_status_t mlx_prompt_open(const mlx_history_t *history, const char *const *words,
                             mlx_prompt_t **out_prompt) MLX_MUST_USE;
void mlx_prompt_close(mlx_prompt_t *prompt);  // NULL is fine

// Shows |prompt| and reads; |more| stands before later lines of one text. The text is borrowed until the next
// read; it is "" unless the result is a line. MLX_PROMPT_INTERRUPTED is Ctrl-C, *|out_had_text| whether there
// was anything that it dropped.
mlx_status_t mlx_prompt_read(mlx_prompt_t *prompt, const char *text, const char *more,
                             mlx_prompt_result_t *out_result, const char **out_line, size_t *out_length,
                             bool *out_had_text) MLX_MUST_USE;

// Shows |text| and reads a line that is not shown, into |size| bytes with its NUL. Ctrl-C is MLX_CANCELLED.
mlx_status_t mlx_prompt_read_secret(mlx_prompt_t *prompt, const char *text, char *out,
                                    size_t size) MLX_MUST_USE;

// Between lines, Ctrl-C is noted instead of ending the process. Asking forgets it.
bool mlx_prompt_was_interrupted(void);

#endif  // MLXCEL_LINE_PROMPT_H_
