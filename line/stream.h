// Stream: writes generated text to stdout. On a terminal, it dims text between <think> and </think> and
// removes control characters; a file or pipe gets the text unchanged.
#ifndef MLXCEL_LINE_STREAM_H_
#define MLXCEL_LINE_STREAM_H_

#include "base/text.h"

typedef struct mlx_stream {
  bool terminal, colours;
  bool thinking;  // between <think> and </think>
  char held[16];  // a possible start of a tag, not written yet
  size_t held_length;
  mlx_text_t out;  // scratch
  // Word wrap. A word that does not fit is erased and written again on the next row, so that text appears as
  // soon as it is generated. The last column stays free: a terminal's cursor is ambiguous after it.
  bool wraps;       // |columns| is read from stdout
  int columns;      // of the terminal; 0: no wrapping
  int column;       // of the cursor
  mlx_text_t word;  // the word before the cursor; "" after a space
  int word_width;   // its columns
  bool wide;        // the word is a wide character
  bool joined;      // the last character was a zero width joiner
  bool wrapped;     // a space began this row: further spaces are dropped
  bool in_code;     // between two rows that begin with ```, which are not wrapped
  int ticks;        // ` at the start of this row; -1: the row has other text before
} mlx_stream_t;

// Initializes a stream for stdout. |thinking| is true if the prompt ended with <think>.
void mlx_stream_begin(mlx_stream_t *stream, bool thinking);
// Wraps the text at the terminal's width, if stdout is a terminal that can move the cursor.
void mlx_stream_wrap(mlx_stream_t *stream);
// Writes a piece of whole UTF-8 characters. False if writing fails.
bool mlx_stream_write(mlx_stream_t *stream, const char *text, size_t length);
// Writes held text and resets the terminal's colour. False if writing fails.
bool mlx_stream_end(mlx_stream_t *stream);

// True if |prompt| ends with <think>, as some chat templates do.
bool mlx_stream_thinks_after(const char *prompt, size_t length);

// The formatting without stdout: appends the output for a terminal or a file.
void mlx_stream_format(mlx_stream_t *stream, const char *text, size_t length, mlx_text_t *out);
void mlx_stream_finish(mlx_stream_t *stream, mlx_text_t *out);

#endif  // MLXCEL_LINE_STREAM_H_
