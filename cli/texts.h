// Texts that a verb reads: words, lines of a file, objects of a JSONL file.
#ifndef MLXCEL_CLI_TEXTS_H_
#define MLXCEL_CLI_TEXTS_H_

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/text.h"

typedef struct mlx_text_item {
  char *id;       // owned; NULL: its number
  char *content;  // owned
  size_t length;
} mlx_text_item_t;

typedef struct mlx_text_list {
  mlx_text_item_t *items;  // owned
  size_t count, capacity;
} mlx_text_list_t;

mlx_status_t mlx_text_list_add(mlx_text_list_t *list, const char *id, const char *content,
                               size_t length) MLX_MUST_USE;
// Adds the lines of the file |path|; of stdin if it is NULL or "-". Empty lines are skipped. With |is_json|,
// and in a file whose name ends with .jsonl, a line is a JSON string, or an object with "text" or "input" and
// perhaps an "id".
mlx_status_t mlx_text_list_read(mlx_text_list_t *list, const char *path, bool is_json) MLX_MUST_USE;
void mlx_text_list_clear(mlx_text_list_t *list);

// Writes |out| to the file |path|, or to stdout if it is NULL. Releases it.
mlx_status_t mlx_text_output(const char *path, mlx_text_t *out) MLX_MUST_USE;

#endif  // MLXCEL_CLI_TEXTS_H_
