// mlx_parallel does each piece once, gives each thread its own number, and stops after a failure.
#include "base/parallel.h"

#include <stdatomic.h>

#include "tests/support/check.h"

#define PIECES 1000

typedef struct counts {
  _Atomic int done[PIECES], busy[32], all, shared;  // shared: calls of two threads with the same number
  int64_t fails_at;                                 // -1: no piece fails
} counts_t;

static mlx_status_t count(void *user, int worker, uint64_t index) {
  counts_t *counts = user;
  if (atomic_fetch_add(&counts->busy[worker], 1)) atomic_fetch_add(&counts->shared, 1);
  atomic_fetch_add(&counts->done[index], 1);
  atomic_fetch_add(&counts->all, 1);
  atomic_fetch_add(&counts->busy[worker], -1);
  return (int64_t)index >= counts->fails_at && counts->fails_at >= 0
             ? mlx_error(MLX_INVALID_INPUT, "piece %d failed", (int)index)
             : NULL;
}

TEST(each_piece_is_done_once) {
  for (int threads = 1; threads <= 40; threads += 13) {
    static counts_t counts;
    counts = (counts_t){.fails_at = -1};
    const int workers = mlx_parallel_workers(PIECES, threads);
    CHECK_INT(workers, threads < 32 ? threads : 32);
    CHECK_OK(mlx_parallel(PIECES, workers, count, &counts));
    CHECK_INT(atomic_load(&counts.shared), 0);
    for (int i = 0; i < PIECES; ++i) CHECK_INT(atomic_load(&counts.done[i]), 1);
  }
  CHECK_INT(mlx_parallel_workers(3, 8), 3);
  CHECK_INT(mlx_parallel_workers(0, 8), 1);
  CHECK_OK(mlx_parallel(0, 1, count, NULL));
}

TEST(a_failure_is_returned_and_no_piece_begins_after_it) {
  static counts_t counts;
  counts = (counts_t){.fails_at = 10};
  CHECK_ERROR(mlx_parallel(PIECES, 4, count, &counts), MLX_INVALID_INPUT, "failed");
  CHECK(atomic_load(&counts.all) >= 11 && atomic_load(&counts.all) <= 14);
}

TEST_MAIN(CASE(each_piece_is_done_once), CASE(a_failure_is_returned_and_no_piece_begins_after_it))
