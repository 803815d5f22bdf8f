// Runs a golden of a wide fixture through a scheduler, for window_test.c and window_gpu_test.c.
#ifndef MLXCEL_TESTS_WINDOW_H_
#define MLXCEL_TESTS_WINDOW_H_

#include "tests/support/wide_fixtures.h"

typedef struct used_pages {
  int64_t pages, window_pages;
} used_pages_t;

// Generates the golden output of |path| after the longest prompt. Returns the pages in use near the end.
static inline used_pages_t run_golden(mlx_engine_t *engine, const char *path) {
  golden_t golden = golden_open(path);
  yyjson_val *result = yyjson_arr_get_last(golden.results);
  int32_t ids[CONTEXT], expected[STEPS];
  const size_t count = golden_read_ids(yyjson_obj_get(result, "prompt_ids"), ids, CONTEXT);
  CHECK_INT(golden_read_ids(yyjson_obj_get(result, "output_ids"), expected, STEPS), STEPS);
  golden_close(&golden);
  mlx_scheduler_t *scheduler;
  mlx_scheduler_options_t options;
  mlx_generate_options_t generate;
  mlx_request_t *request;
  mlx_scheduler_options_initialize(&options);
  mlx_generate_options_initialize(&generate);
  generate.max_tokens = STEPS;
  generate.ignore_eos = true;
  CHECK_OK(mlx_scheduler_create(engine, &options, &scheduler));
  CHECK_OK(mlx_scheduler_submit(scheduler, ids, count, &generate, &request));
  used_pages_t used = {0};
  for (bool idle = false; !idle;) {
    const mlx_scheduler_stats_t now = mlx_scheduler_stats(scheduler);
    if (now.pages_used) used = (used_pages_t){now.pages_used, now.window_pages_used};
    CHECK_OK(mlx_scheduler_step(scheduler, &idle));
  }
  CHECK_OK(mlx_request_take_status(request));
  const mlx_generation_t *generation = mlx_request_generation(request);
  CHECK_INT(generation->count, STEPS);
  for (int i = 0; i < STEPS; ++i) CHECK_INT(generation->ids[i], expected[i]);
  mlx_request_free(request);
  mlx_scheduler_free(scheduler);
  return used;
}

#endif  // MLXCEL_TESTS_WINDOW_H_
