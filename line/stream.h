// Stream: what a model writes, on its way to stdout. A terminal gets thinking dimmed and nothing that could
// steer it; anything else gets the text as it is.
#ifndef MLXCEL_LINE_STREAM_H_
#define MLXCEL_LINE_STREAM_H_

#include "base/text.h"

typedef struct mlx_stream {
  bool terminal, colours;
  bool thinking;  // between <think> and </think>
  char held[16];  // what may be the beginning of a tag
  size_t held_length;
  mlx_text_t out;  // scratch
} mlx_stream_t;

// For stdout as it is. |thinking|: the prompt ended with <think>, so that the text begins inside.
void mlx_stream_begin(mlx_stream_t *stream, bool thinking);
// Writes a piece, whole characters; false when stdout does not take it.
bool mlx_stream_write(mlx_stream_t *stream, const char *text, size_t length);
// Writes what was held back and leaves the terminal as it was; false as above.
bool mlx_stream_end(mlx_stream_t *stream);

// Whether a text that goes on after |prompt| begins inside thinking: some templates end with <think>.
bool mlx_stream_thinks_after(const char *prompt, size_t length);

// The same without stdout, for tests: appends what a terminal or a file would get.
void mlx_stream_format(mlx_stream_t *stream, const char *text, size_t length, mlx_text_t *out);
void mlx_stream_finish(mlx_stream_t *stream, mlx_text_t *out);

#endif  // MLXCEL_LINE_STREAM_H_
