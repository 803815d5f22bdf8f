// Batch results: the output files of a batch. The results of a shard are appended to PART.partial as they
// come; when all are there, they are written in order to PART, and PART.partial is removed. PART is OUT if
// there is one shard, else OUT.INDEX-of-COUNT; the shard that ends last joins all parts to OUT.
//
// So a file without the ending .partial is complete, and a process that is killed goes on where it was.
#ifndef MLXCEL_CLI_BATCH_RESULTS_H_
#define MLXCEL_CLI_BATCH_RESULTS_H_

#include "base/line_log.h"
#include "cli/batch_input.h"
#include "cli/batch_shard.h"

typedef struct mlx_batch_results {
  const mlx_batch_input_t *input;  // borrowed
  const char *path;                // borrowed: OUT
  const char *identity;            // borrowed: the digest of all options that responses depend on
  mlx_shard_t shard;
  uint64_t first, end;  // requests of the shard
  char *part;           // owned
  char *partial;        // owned
  mlx_line_log_t log;   // of |partial|, while it is open
  uint8_t *done;        // owned; [end - first] a result is in |partial|
  uint64_t done_count;
  uint64_t failed;  // results whose status is not 200
  bool complete;    // PART, or OUT, is there already
} mlx_batch_results_t;

// Finds what is done. Release with mlx_batch_results_close, also after a failure.
mlx_status_t mlx_batch_results_open(const mlx_batch_input_t *input, const char *path, const char *identity,
                                    const mlx_shard_t *shard, mlx_batch_results_t *out_results) MLX_MUST_USE;
void mlx_batch_results_close(mlx_batch_results_t *results);

// Of a request of the shard.
bool mlx_batch_results_has(const mlx_batch_results_t *results, uint64_t index);
// Appends the response to a request that has none.
mlx_status_t mlx_batch_results_add(mlx_batch_results_t *results, uint64_t index,
                                   const mlx_batch_request_t *request, int status, const char *body,
                                   size_t length) MLX_MUST_USE;
// After the last one: writes PART, and joins the parts if all are there. *|out_joined| is true if OUT is
// complete.
mlx_status_t mlx_batch_results_finish(mlx_batch_results_t *results, bool *out_joined) MLX_MUST_USE;

#endif  // MLXCEL_CLI_BATCH_RESULTS_H_
