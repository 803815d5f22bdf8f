// Text: a growing byte buffer for things we write (MLIR, JSON, messages).
//
// Appending never returns a status: the first failure is remembered and mlx_text_finish reports it. So an
// emitter reads as a list of lines, and still nothing is lost.
#ifndef MLXCEL_BASE_TEXT_H_
#define MLXCEL_BASE_TEXT_H_

#include "base/status.h"

typedef struct mlx_text {
  char *data;  // owned; NUL-terminated when not NULL
  size_t length;
  size_t capacity;
  bool failed;
} mlx_text_t;  // zero-initialise to start

void mlx_text_append(mlx_text_t *text, const char *bytes, size_t length);
void mlx_text_puts(mlx_text_t *text, const char *string);
void mlx_text_printf(mlx_text_t *text, const char *fmt, ...) MLX_PRINTF(2, 3);
// Appends |length| bytes as a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD.
void mlx_text_json_string(mlx_text_t *text, const char *bytes, size_t length);
// Fails if any append failed. The text stays owned by |text|.
mlx_status_t mlx_text_finish(mlx_text_t *text) MLX_MUST_USE;
// Gives the buffer to the caller (release with mlx_free) and empties |text|. Fails if any append failed.
mlx_status_t mlx_text_take(mlx_text_t *text, char **out_data, size_t *out_length) MLX_MUST_USE;
void mlx_text_clear(mlx_text_t *text);

// Length in bytes of the UTF-8 character at |bytes|: 0 when malformed (overlong, surrogate, out of range), -1
// when it is a good beginning cut off by |length|.
int mlx_utf8_length(const char *bytes, size_t length);

// The name among |names| (NULL-terminated) that |word| was probably meant to be, or NULL.
const char *mlx_nearest_name(const char *word, const char *const *names);

#endif  // MLXCEL_BASE_TEXT_H_
