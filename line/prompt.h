// Prompt: reads lines from a terminal, with editing if the terminal supports it. Keys come from stdin; output
// goes to stderr, because stdout carries the model's text.
//
// A process can have one prompt. While it is open, it changes the terminal's mode and handles SIGWINCH,
// SIGINT and the signals that end the process; closing it restores both.
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
// True if stdin has data or has ended. Waits for up to |milliseconds|.
bool mlx_prompt_input_is_ready(int milliseconds);
// |history| and |words|, the completions of the first word, are borrowed. Release with mlx_prompt_close.
mlx_status_t mlx_prompt_open(const mlx_history_t *history, const char *const *words,
                             mlx_prompt_t **out_prompt) MLX_MUST_USE;
void mlx_prompt_close(mlx_prompt_t *prompt);  // NULL is fine

// Shows |text| and reads a line; |more| is the prompt of its later rows. *|out_line| is borrowed until the
// next read and "" unless the result is MLX_PROMPT_LINE. MLX_PROMPT_INTERRUPTED is Ctrl-C; *|out_had_text|
// is true if it discarded text.
mlx_status_t mlx_prompt_read(mlx_prompt_t *prompt, const char *text, const char *more,
                             mlx_prompt_result_t *out_result, const char **out_line, size_t *out_length,
                             bool *out_had_text) MLX_MUST_USE;

// The next read starts with |text| in the line, to be edited. False if the terminal cannot edit a line.
bool mlx_prompt_prefill(mlx_prompt_t *prompt, const char *text, size_t length);

// Shows |text| and reads a hidden line into |size| bytes, NUL included. Ctrl-C gives MLX_CANCELLED.
mlx_status_t mlx_prompt_read_secret(mlx_prompt_t *prompt, const char *text, char *out,
                                    size_t size) MLX_MUST_USE;

// True if Ctrl-C was pressed after the last read; clears that state. While a prompt is open, Ctrl-C does not
// end the process.
bool mlx_prompt_was_interrupted(void);

#endif  // MLXCEL_LINE_PROMPT_H_
