// Bench results and their output formats: llama-bench's table, CSV, JSON and JSON lines.
#ifndef MLXCEL_CLI_BENCH_PRINT_H_
#define MLXCEL_CLI_BENCH_PRINT_H_

#include "base/text.h"
#include "cli/open.h"

#define MLX_MAX_REPETITIONS 1000

// One row of the table: prefill, then decode, after |depth| positions that are not timed.
typedef struct mlx_bench_test {
  int64_t prompt, generated, depth;  // tokens; prompt or generated may be 0
  int64_t parallel;                  // sequences at the same time; 0: one, without a scheduler
  int64_t arrival;                   // tokens of a prompt that arrives while the sequences run; 0: none
  char kind[80];                     // "tg128", "pp512+tg128", "tg128 x8"
  char name[112];                    // "tg128 @ d4096"
} mlx_bench_test_t;

typedef struct mlx_bench_result {
  mlx_bench_test_t test;
  double seconds[MLX_MAX_REPETITIONS], tokens[MLX_MAX_REPETITIONS];  // of each run
  double average_seconds;
  double first_token_seconds;  // with several sequences: of the first one, in the last run
  double pause_seconds;  // arrival: the longest time between two tokens of a running sequence, in all runs
  double step_seconds;   // arrival: the time between two tokens before the prompt arrives, in the last run
  double rate, rate_deviation;  // tokens per second, of all sequences
  double microseconds;          // per token
  double bytes;                 // memory read per generated token; 0 for prefill and arrivals
  double share;                 // of the memory bandwidth, 0 to 1; 0 if unknown
  int64_t peak_memory;          // bytes of this process, up to this test
} mlx_bench_result_t;

// The values that are the same for all rows.
typedef struct mlx_bench_run {
  int64_t repetitions;
  double bandwidth;  // bytes per second; 0 if unknown
  mlx_engine_info_t info;
  mlx_open_times_t times;
  double temperature;          // of sampled decode; 0: greedy
  bool has_arrivals;           // the tests have an arrival
  int test_columns;            // of the longest name of a test
  double first_token_seconds;  // the first prefill, with cold caches; 0 before it
} mlx_bench_run_t;

// Functions that append the header of the output, one row, and the footer.
typedef struct mlx_bench_format {
  const char *name;
  void (*begin)(const mlx_bench_run_t *run, mlx_text_t *out);  // may be NULL
  void (*row)(const mlx_bench_run_t *run, const mlx_bench_result_t *result, size_t number, mlx_text_t *out);
  void (*end)(mlx_text_t *out);  // may be NULL
} mlx_bench_format_t;
const mlx_bench_format_t *mlx_bench_format(const char *name);  // a value of -o

#endif  // MLXCEL_CLI_BENCH_PRINT_H_
