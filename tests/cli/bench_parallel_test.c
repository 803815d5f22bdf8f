// mlxcel bench: several sequences at once, sampled decode, and the pause that an arriving prompt causes.
#include <math.h>

#include "base/json.h"
#include "tests/support/check.h"
#include "tests/support/command.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define BENCH "bench", "-m", TINY, "--device", "cpu", "-t", "1"

static void check_refused(command_t *run, int code, const char *part) {
  if (run->exit_code != code) CHECK_FAIL("exit status %d, expected %d: %s", run->exit_code, code, run->err);
  CHECK_TEXT(run->out, "");
  CHECK_CONTAINS(run->err, part);
  command_free(run);
}

static yyjson_doc *run_json(command_t *run) {
  if (run->exit_code) CHECK_FAIL("exit status %d: %s", run->exit_code, run->err);
  yyjson_doc *doc = yyjson_read(run->out, run->out_length, 0);
  CHECK(doc);
  return doc;
}

static double number(yyjson_val *row, const char *name) { return yyjson_get_num(yyjson_obj_get(row, name)); }

TEST(each_test_is_run_with_each_number_of_sequences) {
  command_t run;
  RUN(&run, BENCH, "-p", "20", "-n", "6", "-pg", "5,3", "--parallel", "1,3", "-r", "2", "-o", "json");
  yyjson_doc *doc = run_json(&run);
  yyjson_val *rows = yyjson_doc_get_root(doc);
  static const char *const names[] = {"pp20 x1", "tg6 x1", "pp5+tg3 x1", "pp20 x3", "tg6 x3", "pp5+tg3 x3"};
  static const int tokens[] = {20, 6, 8, 60, 18, 24};
  CHECK_INT(yyjson_arr_size(rows), 6);
  for (size_t i = 0; i < 6; ++i) {
    yyjson_val *row = yyjson_arr_get(rows, i);
    CHECK_TEXT(yyjson_get_str(yyjson_obj_get(row, "test")), names[i]);
    CHECK_INT(number(row, "n_parallel"), i < 3 ? 1 : 3);
    CHECK_INT(number(row, "n_arrival"), 0);
    CHECK(yyjson_is_null(yyjson_obj_get(row, "longest_pause_ms")));
    CHECK(yyjson_is_null(yyjson_obj_get(row, "temperature")));
    CHECK(number(row, "first_token_seconds") > 0);
    // The rate counts the tokens of all sequences.
    const double us = number(row, "us_per_token"), seconds = number(row, "avg_ns") * 1e-9;
    CHECK(seconds > 0 && fabs(seconds / (us * 1e-6) / tokens[i] - 1) < 0.01);
  }
  // The sequences share the weights, (39072 - 320 x 32) x 4 bytes; each reads its own keys and values.
  yyjson_val *one = yyjson_arr_get(rows, 1), *three = yyjson_arr_get(rows, 4);
  const double weights = (39072 - 320 * 32) * 4;
  CHECK(fabs(number(one, "bytes_per_token") - number(three, "bytes_per_token") - weights * 2 / 3) < 1);
  yyjson_doc_free(doc);
  command_free(&run);
}

TEST(several_sequences_decode_after_a_depth) {
  command_t run;
  RUN(&run, BENCH, "-p", "0", "-n", "5", "-d", "33", "--parallel", "4", "-r", "1");
  if (run.exit_code) CHECK_FAIL("exit status %d: %s", run.exit_code, run.err);
  CHECK_CONTAINS(run.out, "tg5 x4 @ d33 |");
  command_free(&run);
}

TEST(sampled_decode_is_measured) {
  command_t run;
  RUN(&run, BENCH, "-p", "8", "-n", "5", "-pg", "4,2", "--temp", "0.8", "--top-k", "5", "-d", "0,9", "-r",
      "2", "-o", "json");
  yyjson_doc *doc = run_json(&run);
  yyjson_val *rows = yyjson_doc_get_root(doc);
  static const char *const names[] = {"pp8",      "tg5 temp 0.8",      "pp4+tg2 temp 0.8",
                                      "pp8 @ d9", "tg5 temp 0.8 @ d9", "pp4+tg2 temp 0.8 @ d9"};
  CHECK_INT(yyjson_arr_size(rows), 6);
  for (size_t i = 0; i < 6; ++i) {
    yyjson_val *row = yyjson_arr_get(rows, i);
    CHECK_TEXT(yyjson_get_str(yyjson_obj_get(row, "test")), names[i]);
    CHECK(fabs(number(row, "temperature") - 0.8) < 1e-6);
    CHECK(number(row, "avg_ts") > 0);
  }
  yyjson_doc_free(doc);
  command_free(&run);
  RUN(&run, BENCH, "-p", "0", "-n", "5", "--temp", "0.8", "--parallel", "2", "-r", "1");
  if (run.exit_code) CHECK_FAIL("exit status %d: %s", run.exit_code, run.err);
  CHECK_CONTAINS(run.out, "tg5 x2 temp 0.8 |");
  command_free(&run);
}

// MLXCEL_TEMP is meant for run; it must not change what bench measures.
TEST(the_environment_does_not_turn_on_sampling) {
  command_t run;
  setenv("MLXCEL_TEMP", "0.5", 1);
  RUN(&run, BENCH, "-p", "0", "-n", "5", "-r", "1", "-o", "json");
  unsetenv("MLXCEL_TEMP");
  yyjson_doc *doc = run_json(&run);
  yyjson_val *row = yyjson_arr_get(yyjson_doc_get_root(doc), 0);
  CHECK_TEXT(yyjson_get_str(yyjson_obj_get(row, "test")), "tg5");
  CHECK(yyjson_is_null(yyjson_obj_get(row, "temperature")));
  yyjson_doc_free(doc);
  command_free(&run);
}

TEST(the_pause_that_an_arriving_prompt_causes_is_measured) {
  command_t run;
  RUN(&run, BENCH, "--arrival", "300", "--parallel", "3", "-r", "2", "-o", "json");
  yyjson_doc *doc = run_json(&run);
  CHECK_INT(yyjson_arr_size(yyjson_doc_get_root(doc)), 1);  // in place of -p and -n
  yyjson_val *row = yyjson_arr_get(yyjson_doc_get_root(doc), 0);
  CHECK_TEXT(yyjson_get_str(yyjson_obj_get(row, "test")), "arrival300 x3");
  CHECK_INT(number(row, "n_arrival"), 300);
  CHECK(number(row, "step_ms") > 0 && number(row, "longest_pause_ms") > 0);
  // A pause is not longer than the whole measurement.
  CHECK(number(row, "longest_pause_ms") <=
        number(row, "step_ms") + fmax(yyjson_get_num(yyjson_arr_get(yyjson_obj_get(row, "samples_ns"), 0)),
                                      yyjson_get_num(yyjson_arr_get(yyjson_obj_get(row, "samples_ns"), 1))) *
                                     1e-6 * 1.01);
  yyjson_doc_free(doc);
  command_free(&run);
  RUN(&run, BENCH, "--arrival", "40", "--parallel", "2", "-r", "1", "-q");
  CHECK_INT(run.exit_code, 0);
  CHECK_CONTAINS(run.out, "|    step ms | longest pause ms |\n");
  CHECK_CONTAINS(run.out, "arrival40 x2 |");
  command_free(&run);
}

TEST(options_that_do_not_go_together_are_refused) {
  command_t run;
  RUN(&run, BENCH, "--parallel", "0");
  check_refused(&run, MLX_USAGE, "option --parallel expects up to 16 whole numbers from 1 to 1024");
  RUN(&run, BENCH, "-d", "5", "--parallel", "2");
  check_refused(&run, MLX_USAGE, "--parallel cannot measure prefill after a depth");
  RUN(&run, BENCH, "--arrival", "100", "--plot", "/tmp/x.svg");
  check_refused(&run, MLX_USAGE, "--plot cannot draw --arrival");
  RUN(&run, BENCH, "--temp", "-1");
  check_refused(&run, MLX_USAGE, "option --temp expects a number from 0");
  RUN(&run, BENCH, "-p", "0", "-n", "60", "--parallel", "9", "-c", "64");
  check_refused(&run, MLX_USAGE, "it has 64");
}

TEST_MAIN(CASE(each_test_is_run_with_each_number_of_sequences), CASE(several_sequences_decode_after_a_depth),
          CASE(sampled_decode_is_measured), CASE(the_environment_does_not_turn_on_sampling),
          CASE(the_pause_that_an_arriving_prompt_causes_is_measured),
          CASE(options_that_do_not_go_together_are_refused))
