// Bench of several sequences at once: runs a test through a scheduler.
#ifndef MLXCEL_CLI_BENCH_PARALLEL_H_
#define MLXCEL_CLI_BENCH_PARALLEL_H_

#include "cli/bench_print.h"

typedef struct mlx_bench_parallel {  // everything is borrowed
  mlx_engine_t *engine;
  const mlx_sampling_t *sampling;  // NULL: greedy
  const int32_t *ids;              // pseudo-random tokens: mlx_bench_parallel_ids of them
} mlx_bench_parallel_t;

// Positions that a sequence of the test needs. Sequences generate tokens while the prompts of others are
// read, so it is more than the tokens that are measured.
int64_t mlx_bench_parallel_context(const mlx_bench_test_t *test);
// Tokens that the test reads: prompts of different sequences begin at different places.
int64_t mlx_bench_parallel_ids(const mlx_bench_test_t *test);

// Runs a test with test->parallel sequences once and stores run |index| of |result|. Prefill is timed from
// the first prompt to the last prompt's end. Decode is timed while all sequences generate tokens. A test with
// an arrival times the running sequences while another prompt is read.
mlx_status_t mlx_bench_parallel_run(const mlx_bench_parallel_t *bench, const mlx_bench_test_t *test,
                                    int64_t index, mlx_bench_result_t *result) MLX_MUST_USE;

#endif  // MLXCEL_CLI_BENCH_PARALLEL_H_
