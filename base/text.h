// Text: a growing byte buffer for output (MLIR, JSON, messages).
//
// Appending returns no status: the buffer records the first failure and mlx_text_finish reports it. So code
// that emits text needs no error check after each line.
#ifndef MLXCEL_BASE_TEXT_H_
#define MLXCEL_BASE_TEXT_H_

#include "base/status.h"

typedef struct mlx_text {
  char *data;  // owned; NUL-terminated when not NULL
  size_t length;
  size_t capacity;
  bool failed;
} mlx_text_t;  // zero-initialize before use

void mlx_text_append(mlx_text_t *text, const char *bytes, size_t length);
void mlx_text_puts(mlx_text_t *text, const char *string);
void mlx_text_printf(mlx_text_t *text, const char *fmt, ...) MLX_PRINTF(2, 3);
// Appends |length| bytes as a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD.
void mlx_text_json_string(mlx_text_t *text, const char *bytes, size_t length);
// Appends a number in |format|, a printf format for one double, or null: JSON has no infinity and no NaN.
void mlx_text_json_number(mlx_text_t *text, const char *format, double value);
// Fails if any append failed. The text stays owned by |text|.
mlx_status_t mlx_text_finish(mlx_text_t *text) MLX_MUST_USE;
// Moves the buffer to the caller (release with mlx_free) and empties |text|. Fails if any append failed;
// |text| is then empty too.
mlx_status_t mlx_text_take(mlx_text_t *text, char **out_data, size_t *out_length) MLX_MUST_USE;
void mlx_text_clear(mlx_text_t *text);

// Length in bytes of the UTF-8 character at |bytes|: 0 if malformed (overlong, surrogate, out of range), -1
// if it is a valid prefix that |length| cuts off.
int mlx_utf8_length(const char *bytes, size_t length);

bool mlx_ends_with(const char *text, const char *end);
bool mlx_ends_with_nocase(const char *text, const char *end);  // ASCII letters in any case

// The name in |names| (NULL-terminated) with the smallest edit distance to |word|: at most 2 edits, and at
// most one for every three letters. NULL if there is none.
const char *mlx_nearest_name(const char *word, const char *const *names);

#endif  // MLXCEL_BASE_TEXT_H_
