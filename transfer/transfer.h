// Several transfers side by side: threads with an HTTP client each take jobs off a list, and the caller's
// thread reports how far all of them are. The first failure stops the others and is what the caller gets.
#ifndef MLXCEL_TRANSFER_TRANSFER_H_
#define MLXCEL_TRANSFER_TRANSFER_H_

#include <stdatomic.h>

#include "base/report.h"
#include "transfer/http.h"

typedef _Atomic uint64_t
    mlx_tally_t;  // bytes that need not be transferred any more; may go back when one starts over

// Does the job numbered |index|, on a thread of its own, and counts in |tally|.
typedef mlx_status_t (*mlx_transfer_fn_t)(void *user, size_t index, mlx_http_t *http, mlx_tally_t *tally);

typedef struct mlx_transfer {
  const char *title;  // "pulling org/name"
  size_t count;       // of jobs
  size_t parallel;    // at most so many at once
  uint64_t bytes;     // of all jobs together; 0: not known
  mlx_transfer_fn_t job;
  void *user;
  const mlx_http_options_t *http;
  const mlx_report_t *report;  // may be NULL
} mlx_transfer_t;

mlx_status_t mlx_transfer_run(const mlx_transfer_t *transfer) MLX_MUST_USE;

// "1.25 GiB", "312 kB": bytes for people.
typedef struct mlx_bytes_text {
  char text[32];
} mlx_bytes_text_t;
mlx_bytes_text_t mlx_bytes_show(uint64_t bytes);

#endif  // MLXCEL_TRANSFER_TRANSFER_H_
