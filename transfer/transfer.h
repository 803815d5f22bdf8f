// Transfer: runs downloads or uploads in parallel.
//
// Worker threads, each with its own HTTP client, take jobs from a list. The caller's thread reports their
// progress. The first failure stops all workers and is returned.
#ifndef MLXCEL_TRANSFER_TRANSFER_H_
#define MLXCEL_TRANSFER_TRANSFER_H_

#include <stdatomic.h>

#include "base/meter.h"
#include "base/report.h"
#include "transfer/http.h"

// Bytes that are done, over all jobs. It decreases when a job starts over.
typedef _Atomic uint64_t mlx_progress_t;

// Runs job |index| on a worker thread and adds its bytes to |progress|.
typedef mlx_status_t (*mlx_transfer_fn_t)(void *user, size_t index, mlx_http_t *http,
                                          mlx_progress_t *progress);

typedef struct mlx_transfer {
  const char *title;  // "pulling org/name"
  size_t count;       // number of jobs
  size_t parallel;    // maximum number of worker threads
  uint64_t bytes;     // of all jobs together; 0 if unknown
  mlx_transfer_fn_t job;
  void *user;
  const mlx_http_options_t *http;
  const mlx_report_t *report;  // may be NULL
} mlx_transfer_t;

mlx_status_t mlx_transfer_run(const mlx_transfer_t *transfer) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_TRANSFER_H_
