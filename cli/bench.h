// What the files of `mlxcel bench` share: tests, results, and the ways to print them.
#ifndef MLXCEL_CLI_BENCH_H_
#define MLXCEL_CLI_BENCH_H_

#include "base/text.h"
#include "cli/cli.h"

#define MLX_MAX_REPETITIONS 1000

// One row of the table: a prompt is read, then tokens are generated, after |depth| positions that are not
// timed.
typedef struct mlx_bench_test {
  int64_t prompt, generated, depth;  // one of the first two may be 0
  char kind[48];                     // "tg128", "pp512+tg128"
  char name[80];                     // "tg128 @ d4096"
} mlx_bench_test_t;

typedef struct mlx_bench_result {
  mlx_bench_test_t test;
  double seconds[MLX_MAX_REPETITIONS];
  double rate, rate_deviation;  // tokens a second
  double microseconds;          // a token
  double bytes;  // that a generated token reads; 0 where a prompt is read, whose tokens share what is read
  double share;  // of the bandwidth; 0: not known
} mlx_bench_result_t;

// What is the same in every row.
typedef struct mlx_bench_run {
  int64_t repetitions;
  double bandwidth;  // bytes a second; 0: not known
  mlx_engine_info_t info;
  mlx_open_times_t times;
  double first_token_seconds;  // of the first run: the first read, with everything cold; 0: not yet
} mlx_bench_run_t;

int64_t mlx_bench_peak_memory(void);  // bytes this process had at most

// Each appends what opens the output, a row, and what closes it.
typedef struct mlx_bench_format {
  const char *name;
  void (*begin)(const mlx_bench_run_t *run, mlx_text_t *out);  // may be NULL
  void (*row)(const mlx_bench_run_t *run, const mlx_bench_result_t *result, size_t number, mlx_text_t *out);
  void (*end)(mlx_text_t *out);  // may be NULL
} mlx_bench_format_t;
const mlx_bench_format_t *mlx_bench_format(const char *name);  // one of -o's choices

// Bytes a second that |threads| threads together read from memory: the best of several slices of more than
// any cache holds.
mlx_status_t mlx_measure_bandwidth(int threads, double *out_bandwidth) MLX_MUST_USE;

#endif  // MLXCEL_CLI_BENCH_H_
