// JSON writer: appends JSON to a text. It writes commas, line breaks, indentation and quotes.
//
//   mlx_json_writer_t json = {.out = &text};
//   mlx_json_begin_object(&json, NULL, MLX_JSON_LINES);
//   mlx_json_put_text(&json, "name", name);
//   mlx_json_put_int(&json, "bytes", bytes);
//   mlx_json_end(&json);
//
// Members of an object have a key; elements of a list have none (NULL). Failures are those of the text
// (base/text.h).
#ifndef MLXCEL_BASE_JSON_WRITER_H_
#define MLXCEL_BASE_JSON_WRITER_H_

#include <stdint.h>

#include "base/text.h"

#define MLX_JSON_WRITER_DEPTH 12  // objects and lists inside each other

typedef enum mlx_json_layout {
  MLX_JSON_LINES,     // each member on a line of its own
  MLX_JSON_ONE_LINE,  // all members on one line
  MLX_JSON_COMPACT,   // all members on one line, without spaces
  MLX_JSON_ROWS,  // each member on a line of its own, without other spaces; the end on the last one's line
} mlx_json_layout_t;

typedef struct mlx_json_writer {
  mlx_text_t *out;  // borrowed
  int depth;
  struct {
    uint8_t layout;  // mlx_json_layout_t
    char close;      // '}' or ']'
    bool has_members;
  } levels[MLX_JSON_WRITER_DEPTH];
} mlx_json_writer_t;  // set |out|, and everything else to 0

void mlx_json_begin_object(mlx_json_writer_t *writer, const char *key, mlx_json_layout_t layout);
void mlx_json_begin_list(mlx_json_writer_t *writer, const char *key, mlx_json_layout_t layout);
void mlx_json_end(mlx_json_writer_t *writer);  // of the innermost object or list
// The layout of the next members of the innermost object or list.
void mlx_json_set_layout(mlx_json_writer_t *writer, mlx_json_layout_t layout);

void mlx_json_put_text(mlx_json_writer_t *writer, const char *key, const char *value);  // NULL: null
void mlx_json_put_bytes(mlx_json_writer_t *writer, const char *key, const char *bytes, size_t length);
void mlx_json_put_int(mlx_json_writer_t *writer, const char *key, int64_t value);
void mlx_json_put_uint(mlx_json_writer_t *writer, const char *key, uint64_t value);
void mlx_json_put_number(mlx_json_writer_t *writer, const char *key, const char *format, double value);
void mlx_json_put_bool(mlx_json_writer_t *writer, const char *key, bool value);
void mlx_json_put_ints(mlx_json_writer_t *writer, const char *key, const int32_t *values, size_t count);
void mlx_json_put_null(mlx_json_writer_t *writer, const char *key);
// A string of at most 255 bytes in a printf format.
void mlx_json_put_format(mlx_json_writer_t *writer, const char *key, const char *format, ...)
    MLX_PRINTF(3, 4);
// |json| is written as it is: the text of a value, or for a list of several values with commas between them.
void mlx_json_put_raw(mlx_json_writer_t *writer, const char *key, const char *json, size_t length);
// Begins a value, whose text the caller appends to the text that is returned.
mlx_text_t *mlx_json_put_value(mlx_json_writer_t *writer, const char *key);
// The same for a key that need not end with NUL.
mlx_text_t *mlx_json_put_member(mlx_json_writer_t *writer, const char *key, size_t key_length);

#endif  // MLXCEL_BASE_JSON_WRITER_H_
