// Line limit: ends an answer at the end of a line, as an editor wants it that fills a gap: llama.cpp's
// n_indent and t_max_predict_ms.
#ifndef MLXCEL_SERVER_CORE_LINE_LIMIT_H_
#define MLXCEL_SERVER_CORE_LINE_LIMIT_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mlx_line_limit {  // zero-initialize with the two limits
  int64_t
      least_indent;  // a line after the first one that begins with fewer spaces and tabs ends the text; 0: off
  double most_seconds;  // since the first call; then the next line break ends the text; 0: off
  bool began, in_indent, ended;
  double start;
  int64_t indent;
} mlx_line_limit_t;

// Takes new text at the time |now|. Returns how many of its bytes belong to the answer; then |ended| says
// whether it ends there.
size_t mlx_line_limit_take(mlx_line_limit_t *limit, double now, const char *text, size_t length);

#endif  // MLXCEL_SERVER_CORE_LINE_LIMIT_H_
