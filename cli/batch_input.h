// Batch input: the requests of a file, found and checked before any of them is run.
#ifndef MLXCEL_CLI_BATCH_INPUT_H_
#define MLXCEL_CLI_BATCH_INPUT_H_

#include "base/file.h"
#include "server/api/batch.h"

typedef struct mlx_batch_line {
  uint64_t offset, length;  // in the file
} mlx_batch_line_t;

typedef struct mlx_batch_input {
  const char *path;         // borrowed
  mlx_map_t map;            // owned
  mlx_batch_line_t *lines;  // owned; [count] those that are not blank
  size_t count, capacity;
  bool is_text;                          // each line is a prompt
  char *model;                           // owned: what all requests name; NULL: nothing, or different models
  const mlx_batch_defaults_t *defaults;  // borrowed
} mlx_batch_input_t;

// Maps the file and reads all requests once: an error names the file and the line. Release with
// mlx_batch_input_close, also after a failure.
mlx_status_t mlx_batch_input_open(const char *path, const mlx_batch_defaults_t *defaults,
                                  mlx_batch_input_t *out_input) MLX_MUST_USE;
void mlx_batch_input_close(mlx_batch_input_t *input);

// The text of a request, borrowed; and the request. Release with mlx_batch_request_clear.
const char *mlx_batch_input_line(const mlx_batch_input_t *input, uint64_t index, size_t *out_length);
mlx_status_t mlx_batch_input_read(const mlx_batch_input_t *input, uint64_t index,
                                  mlx_batch_request_t *out_request) MLX_MUST_USE;

#endif  // MLXCEL_CLI_BATCH_INPUT_H_
