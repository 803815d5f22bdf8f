// Goldens: Hugging Face's output in tests/goldens/*.json, and a check of `mlxcel run --json` against it.
#ifndef MLXCEL_TESTS_GOLDEN_H_
#define MLXCEL_TESTS_GOLDEN_H_

#include "base/json.h"
#include "tests/support/check.h"
#include "tests/support/command.h"

typedef struct golden {
  char *text;
  mlx_json_t json;
  yyjson_val *results;  // an array
} golden_t;

static inline golden_t golden_open(const char *path) {
  golden_t golden = {0};
  size_t length;
  CHECK_OK(mlx_read_file(path, 1 << 24, &golden.text, &length));
  CHECK_OK(mlx_json_parse(path, golden.text, length, &golden.json));
  golden.results = yyjson_obj_get(golden.json.root, "results");
  CHECK(yyjson_arr_size(golden.results) > 0);
  return golden;
}

static inline void golden_close(golden_t *golden) {
  mlx_json_close(&golden->json);
  mlx_free(golden->text);
}

static inline size_t golden_read_ids(yyjson_val *list, int32_t *out, size_t capacity) {
  size_t index, count;
  yyjson_val *item;
  CHECK(yyjson_arr_size(list) <= capacity);
  yyjson_arr_foreach(list, index, count, item) { out[index] = (int32_t)yyjson_get_sint(item); }
  return yyjson_arr_size(list);
}

static inline void check_ids(const char *what, size_t number, yyjson_val *actual, yyjson_val *expected) {
  if (yyjson_arr_size(actual) != yyjson_arr_size(expected)) {
    CHECK_FAIL("prompt %zu: %zu %s, expected %zu", number, yyjson_arr_size(actual), what,
               yyjson_arr_size(expected));
  }
  for (size_t i = 0; i < yyjson_arr_size(expected); ++i) {
    int64_t have = yyjson_get_sint(yyjson_arr_get(actual, i)),
            want = yyjson_get_sint(yyjson_arr_get(expected, i));
    if (have != want)
      CHECK_FAIL("prompt %zu: %s[%zu] is %lld, expected %lld", number, what, i, (long long)have,
                 (long long)want);
  }
}

// Runs every prompt of the golden file with `mlxcel run --raw --json --ignore-eos -n 48` and compares prompt
// and output ids. |prompt_key| is the field with the prompt's text. Returns the largest peak memory of a run,
// in KiB.
static inline long check_golden_runs(const char *model, const char *dtype, const char *golden_path,
                                     const char *prompt_key) {
  golden_t golden = golden_open(golden_path);
  long peak = 0;
  size_t number, count;
  yyjson_val *result;
  yyjson_arr_foreach(golden.results, number, count, result) {
    command_t run;
    RUN(&run, "run", "--raw", "--no-escape", "--temp", "0", "-m", model, "--dtype", dtype, "-p",
        yyjson_get_str(yyjson_obj_get(result, prompt_key)), "--json", "--ignore-eos", "-n", "48");
    if (run.exit_code) CHECK_FAIL("prompt %zu: exit status %d: %s", number, run.exit_code, run.err);
    mlx_json_t json;
    CHECK_OK(mlx_json_parse("stdout", run.out, run.out_length, &json));
    check_ids("prompt_ids", number, yyjson_obj_get(json.root, "prompt_ids"),
              yyjson_obj_get(result, "prompt_ids"));
    check_ids("output_ids", number, yyjson_obj_get(json.root, "output_ids"),
              yyjson_obj_get(result, "output_ids"));
    mlx_json_close(&json);
    if (run.peak_kib > peak) peak = run.peak_kib;
    command_free(&run);
  }
  golden_close(&golden);
  return peak;
}

#endif  // MLXCEL_TESTS_GOLDEN_H_
