// mlxcel bench: llama-bench's table and the other formats, lists, -pg, the measured bandwidth and the plot.
#include <math.h>

#include "base/json.h"
#include "base/text.h"
#include "tests/support/check.h"
#include "tests/support/columns.h"
#include "tests/support/command.h"
#include "tests/support/fixture_copy.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define BENCH TABLE, "-t", "1"
#define TABLE "bench", "-m", TINY, "--device", "cpu", "-c", "64"

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

static void make_folder(void) {
  strcpy(folder, "/tmp/mlxcel-bench-XXXXXX");
  CHECK(mkdtemp(folder));
}

static void remove_folder(void) { CHECK_OK(mlx_remove_tree(folder)); }

// ----------------------------------------------------------------------------------------------------------
// Formats

TEST(bench_prints_the_table_of_llama_bench) {
  command_t run;
  RUN(&run, TABLE, "-p", "20", "-n", "9", "-r", "2", "-d", "0,30", "-v", "--bandwidth", "12.5", "-t", "1");
  if (run.exit_code) CHECK_FAIL("exit status %d: %s", run.exit_code, run.err);
  CHECK_CONTAINS(run.out,
                 "| model                          |       size | dtype | device               |            "
                 "test |                  t/s |   us/token | of 12.5 GB/s |\n");
  static const char *const tests[] = {"pp20 |", "tg9 |", "pp20 @ d30 |", "tg9 @ d30 |"};
  static const char start[] =
      "| tiny-llama                     |   0.15 MiB | f32   | cpu, 1 thread        | ";
  const char *line = strstr(run.out, "| -");
  CHECK(line);
  for (int i = 0; i < 4; ++i) {
    line = strchr(line, '\n') + 1;
    CHECK(!strncmp(line, start, strlen(start)));
    CHECK_CONTAINS(line, tests[i]);
    CHECK_CONTAINS(line, " ± ");
    const char *end = strchr(line, '\n');
    CHECK(end && !strncmp(end - 3, i % 2 ? "% |" : "- |", 3));  // prefill has no bandwidth share
  }
  CHECK_TEXT(strchr(line, '\n'), "\n");
  CHECK_CONTAINS(run.err, "device: cpu, 1 thread, f32\ntarget: cpu:host\nkernels: network\n");
  CHECK_CONTAINS(run.err, "compile ");
  CHECK_CONTAINS(run.err, "; first token ");
  CHECK_CONTAINS(run.err, "; peak memory ");
  command_free(&run);
}

static void check_bench_object(yyjson_val *row, const char *test, int64_t prompt, int64_t generated,
                               int64_t depth) {
  CHECK_TEXT(yyjson_get_str(yyjson_obj_get(row, "test")), test);
  CHECK_TEXT(yyjson_get_str(yyjson_obj_get(row, "model")), "tiny-llama");
  CHECK_TEXT(yyjson_get_str(yyjson_obj_get(row, "kernels")), "network");
  CHECK_INT(yyjson_get_sint(yyjson_obj_get(row, "n_prompt")), prompt);
  CHECK_INT(yyjson_get_sint(yyjson_obj_get(row, "n_gen")), generated);
  CHECK_INT(yyjson_get_sint(yyjson_obj_get(row, "n_depth")), depth);
  CHECK_INT(yyjson_arr_size(yyjson_obj_get(row, "samples_ns")), 3);
  // 39072 weights of 4 bytes; decoding does not read the embedding's 320 x 32. Keys and values are 2 layers
  // of 2 x 8 per position, and on average half of the generated tokens precede a token.
  CHECK_INT(yyjson_get_sint(yyjson_obj_get(row, "model_size")), 39072 * 4);
  const int64_t positions2 = 2 * (depth ? depth : 1) + generated + 1;
  CHECK_INT(yyjson_get_sint(yyjson_obj_get(row, "bytes_per_token")),
            generated ? (39072 - 320 * 32) * 4 + positions2 * (2 * 2 * 16 * 4) / 2 : 0);
  CHECK(yyjson_is_null(yyjson_obj_get(row, "bandwidth_share")));
  static const char *const positive[] = {"avg_ts", "us_per_token", "load_seconds", "first_token_seconds"};
  for (int i = 0; i < 4; ++i) CHECK(yyjson_get_real(yyjson_obj_get(row, positive[i])) > 0);
  CHECK(yyjson_get_sint(yyjson_obj_get(row, "peak_memory_bytes")) > 1 << 20);
}

TEST(bench_aligns_wide_and_long_cells) {
  const char *name = "通义千问-a-model-with-a-name-of-over-30-columns.gguf";
  command_t run;
  make_folder();
  CHECK_OK(mlx_copy_file(TINY ".gguf", in_folder(name)));
  RUN(&run, "bench", "-m", in_folder(name), "--device", "cpu", "-t", "1", "-r", "1", "-p", "0", "-n", "4",
      "-pg", "16,8", "-d", "0,1000");
  if (run.exit_code) CHECK_FAIL("exit status %d: %s", run.exit_code, run.err);
  CHECK_CONTAINS(run.out, "pp16+tg8 @ d1000 |");  // longer than the least width of its column
  check_aligned(run.out, '|');
  command_free(&run);
  remove_folder();
}

TEST(bench_prints_valid_json) {
  command_t run;
  RUN(&run, TABLE, "-p", "8", "-n", "5", "-d", "7", "-r", "3", "-o", "json");
  CHECK_INT(run.exit_code, 0);
  yyjson_doc *doc = yyjson_read(run.out, run.out_length, 0);
  CHECK(doc && yyjson_arr_size(yyjson_doc_get_root(doc)) == 2);
  check_bench_object(yyjson_arr_get(yyjson_doc_get_root(doc), 0), "pp8 @ d7", 8, 0, 7);
  check_bench_object(yyjson_arr_get(yyjson_doc_get_root(doc), 1), "tg5 @ d7", 0, 5, 7);
  yyjson_doc_free(doc);
  command_free(&run);
  RUN(&run, TABLE, "-p", "0", "-n", "5", "-r", "3", "-o", "jsonl");
  CHECK_INT(run.exit_code, 0);
  CHECK_TEXT(strchr(run.out, '\n'), "\n");  // one line
  doc = yyjson_read(run.out, run.out_length, 0);
  check_bench_object(yyjson_doc_get_root(doc), "tg5", 0, 5, 0);
  yyjson_doc_free(doc);
  command_free(&run);
}

TEST(bench_prints_csv_with_a_value_for_each_column) {
  command_t run;
  RUN(&run, TABLE, "-p", "8", "-n", "0", "-r", "1", "-o", "csv");
  CHECK_INT(run.exit_code, 0);
  size_t commas[2] = {0, 0};
  char *line = run.out;
  for (int i = 0; i < 2; ++i) {
    char *end = strchr(line, '\n');
    CHECK(end);
    for (; line < end; ++line) commas[i] += *line == ',';
    ++line;
  }
  CHECK(!*line && commas[0] > 20);
  CHECK_INT(commas[1], commas[0]);
  CHECK_CONTAINS(run.out, "\"pp8\",8,0,0,1,");
  command_free(&run);
}

TEST(quiet_bench_prints_the_table_only) {
  command_t run;
  RUN(&run, TABLE, "-p", "8", "-n", "0", "-r", "1", "-q");
  CHECK_INT(run.exit_code, 0);
  CHECK_CONTAINS(run.out, "pp8 |");
  CHECK_TEXT(run.err, "");
  command_free(&run);
}

TEST(invalid_options_are_refused) {
  command_t run;
  RUN(&run, "bench");
  check_refused(&run, MLX_USAGE, "no model was given");
  RUN(&run, TABLE, "-p", "0", "-n", "0");
  check_refused(&run, MLX_USAGE, "nothing to measure: -p and -n are 0");
  RUN(&run, TABLE, "-p", "60", "-d", "5");
  check_refused(&run, MLX_USAGE, "the tests need a context of 133 tokens; it has 64");
  RUN(&run, TABLE, "-d", "1,,2");
  check_refused(&run, MLX_USAGE, "option -d expects up to 16 whole numbers");
  RUN(&run, TABLE, "-o", "xml");
  check_refused(&run, MLX_USAGE, "option -o expects md, csv, json or jsonl, not 'xml'");
  RUN(&run, TABLE, "--bandwidth", "fast");
  check_refused(&run, MLX_USAGE, "option --bandwidth expects a number of GB/s or measure, not 'fast'");
  RUN(&run, TABLE, "-r", "0");
  check_refused(&run, MLX_USAGE, "option -r expects a whole number from 1");
  RUN(&run, "bench", "-m", TINY, "-d", "2048");
  check_refused(&run, MLX_USAGE, "the model supports 1 to 2048");
  RUN(&run, "bench", "-m", "/nowhere/m.gguf");
  check_refused(&run, MLX_NOT_FOUND, "/nowhere/m.gguf");
}

// The tiny model supports 2048 tokens.
TEST(bench_refuses_a_bundle_with_too_short_a_context) {
  make_folder();
  command_t run;
  RUN(&run, "compile", TINY, "-o", in_folder("m.mlxb"));
  command_free(&run);
  RUN(&run, "bench", "-m", in_folder("m.mlxb"), "-p", "8", "-n", "0", "-r", "1", "-o", "jsonl");
  CHECK_INT(run.exit_code, 0);
  CHECK_CONTAINS(run.out, "\"compile_seconds\": 0.000000");
  command_free(&run);
  RUN(&run, "bench", "-m", in_folder("m.mlxb"), "-p", "4000");
  check_refused(&run, MLX_USAGE, "supports a context of 1 to 2048 tokens, not 4000");
  RUN(&run, "bench", "-m", in_folder("m.mlxb"), "-p", "4000", "-c", "0");
  check_refused(&run, MLX_USAGE, "the tests need a context of 4000 tokens; it has 2048");
  remove_folder();
}

// A model is compiled once; run, bench and eval choose the context when they load it.
TEST(another_context_compiles_nothing) {
  make_folder();
  command_t run;
  setenv("MLXCEL_CACHE", in_folder("cache"), 1);
  RUN(&run, "bench", "-m", TINY, "--device", "cpu", "-p", "8", "-n", "0", "-r", "1");
  CHECK_CONTAINS(run.err, "compiled tiny-llama");
  command_done(&run);
  static const char *const contexts[] = {"64", "300", "0"};
  for (size_t i = 0; i < 3; ++i) {
    RUN(&run, "bench", "-m", TINY, "--device", "cpu", "-p", "8", "-n", "0", "-r", "1", "-c", contexts[i]);
    CHECK(!strstr(run.err, "compiled"));
    command_done(&run);
    RUN(&run, "run", "-m", TINY, "--device", "cpu", "-p", "the", "-n", "2", "-c", contexts[i]);
    CHECK(!strstr(run.err, "compiled"));
    command_done(&run);
  }
  CHECK_OK(mlx_write_file(in_folder("text"), "one two three four five six seven eight nine ten", 48));
  RUN(&run, "eval", "-m", TINY, "--device", "cpu", "-f", in_folder("text"), "-c", "8");
  CHECK(!strstr(run.err, "compiled"));
  command_done(&run);
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
  RUN(&run, "compile", TINY, "-o", in_folder("m.mlxb"));
  command_done(&run);
  RUN(&run, "bench", "-m", in_folder("m.mlxb"), "-p", "8", "-n", "0", "-r", "1", "-o", "jsonl", "-c", "100");
  CHECK_CONTAINS(run.out, "\"compile_seconds\": 0.000000");
  CHECK_CONTAINS(run.out, "\"n_ctx\": 100,");
  command_done(&run);
  RUN(&run, "bench", "-m", in_folder("m.mlxb"), "-d", "2048");
  check_refused(&run, MLX_USAGE, "2048");
  remove_folder();
}

// ----------------------------------------------------------------------------------------------------------
// Lists

TEST(lists_give_a_row_for_each_length_and_depth) {
  command_t run;
  RUN(&run, BENCH, "-p", "4,8", "-n", "0,3", "-pg", "5,2", "-pg", "2,1", "-d", "0,6", "-r", "1", "-o",
      "json");
  yyjson_doc *doc = run_json(&run);
  static const char *const names[] = {"pp4",      "pp8",      "tg3",      "pp5+tg2",      "pp2+tg1",
                                      "pp4 @ d6", "pp8 @ d6", "tg3 @ d6", "pp5+tg2 @ d6", "pp2+tg1 @ d6"};
  yyjson_val *root = yyjson_doc_get_root(doc), *row;
  CHECK_INT(yyjson_arr_size(root), 10);
  for (size_t i = 0; i < 10; ++i)
    CHECK_TEXT(yyjson_get_str(yyjson_obj_get(yyjson_arr_get(root, i), "test")), names[i]);
  row = yyjson_arr_get(root, 3);
  CHECK_INT(yyjson_get_int(yyjson_obj_get(row, "n_prompt")), 5);
  CHECK_INT(yyjson_get_int(yyjson_obj_get(row, "n_gen")), 2);
  // prefill and decode count: seven tokens
  const double seconds = (double)yyjson_get_sint(yyjson_arr_get(yyjson_obj_get(row, "samples_ns"), 0)) * 1e-9;
  CHECK(fabs(yyjson_get_real(yyjson_obj_get(row, "avg_ts")) * seconds - 7) < 0.01);
  CHECK_INT(yyjson_get_sint(yyjson_obj_get(row, "bytes_per_token")), 0);
  yyjson_doc_free(doc);
  command_free(&run);
}

TEST(invalid_lists_are_refused) {
  command_t run;
  RUN(&run, BENCH, "-p", "4,,8");
  check_refused(
      &run, MLX_USAGE,
      "option -p expects up to 16 whole numbers from 0 to 16777216, separated by commas, not '4,,8'");
  RUN(&run, BENCH, "-n", "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17");
  check_refused(&run, MLX_USAGE, "option -n expects up to 16");
  RUN(&run, BENCH, "-pg", "5");
  check_refused(&run, MLX_USAGE,
                "option -pg expects two whole numbers from 1 to 16777216, such as 512,128, not '5'");
  RUN(&run, BENCH, "-pg", "5,0");
  check_refused(&run, MLX_USAGE, "option -pg expects two");
  RUN(&run, BENCH, "-p", "0", "-n", "0,0");
  check_refused(&run, MLX_USAGE, "nothing to measure: -p and -n are 0");
  RUN(&run, BENCH, "-p", "8", "-n", "0", "-pg", "40,24", "-d", "1");
  check_refused(&run, MLX_USAGE, "the tests need a context of 65 tokens; it has 64");
  RUN(&run, BENCH, "--plot", "/nowhere/x.svg");
  check_refused(&run, MLX_NOT_FOUND, "cannot write the plot: folder '/nowhere' does not exist");
}

TEST(bandwidth_is_measured_on_request) {
  command_t run;
  RUN(&run, BENCH, "-p", "0", "-n", "4", "-r", "1", "-o", "json", "--bandwidth", "measure");
  yyjson_doc *doc = run_json(&run);
  yyjson_val *row = yyjson_arr_get(yyjson_doc_get_root(doc), 0);
  const double gigabytes = yyjson_get_real(yyjson_obj_get(row, "bandwidth_gbs")),
               share = yyjson_get_real(yyjson_obj_get(row, "bandwidth_share"));
  CHECK(gigabytes > 0.05 && gigabytes < 10000);  // plausible for any machine
  const double bytes = (double)yyjson_get_sint(yyjson_obj_get(row, "bytes_per_token")),
               us = yyjson_get_real(yyjson_obj_get(row, "us_per_token"));
  CHECK(fabs(share / (bytes / (us * 1e-6) / (gigabytes * 1e9)) - 1) < 0.01);
  if (!MLXCEL_SANITIZED)
    CHECK(yyjson_get_sint(yyjson_obj_get(row, "peak_memory_bytes")) <
          400 << 20);  // excludes the buffer of the measurement
  yyjson_doc_free(doc);
  command_free(&run);
}

// ----------------------------------------------------------------------------------------------------------
// The plot

// Checks the XML that plot.c writes: tags nest and close, quotes pair, and text has no bare < or &.
static void check_well_formed(const char *svg) {
  char open[16][32];
  int depth = 0;
  for (const char *c = svg; *c; ++c) {
    if (*c == '&')
      CHECK(!strncmp(c, "&amp;", 5) || !strncmp(c, "&lt;", 4) || !strncmp(c, "&gt;", 4) ||
            !strncmp(c, "&quot;", 6));
    if (*c != '<') continue;
    const char *end = strchr(c, '>');
    CHECK(end && depth < 16);
    const bool closing = c[1] == '/', whole = end[-1] == '/';
    char name[32];
    CHECK(sscanf(c + 1 + closing, "%31[a-z]", name) == 1);
    if (closing) CHECK(depth > 0 && !strcmp(open[--depth], name));
    if (!closing && !whole) strcpy(open[depth++], name);
    size_t quotes = 0;
    for (const char *q = c; q < end; ++q) quotes += *q == '"';
    CHECK(quotes % 2 == 0);
    c = end;
  }
  CHECK_INT(depth, 0);
}

static double attribute(const char *tag, const char *name) {
  char key[32];
  double value;
  snprintf(key, sizeof key, " %s=\"", name);
  const char *found = strstr(tag, key);
  CHECK(found && found < strchr(tag, '>'));
  CHECK(sscanf(found + strlen(key), "%lf", &value) == 1);
  return value;
}

typedef struct scale {
  double zero, unit;  // pixels
} scale_t;

// From the first two ticks after |from|.
static scale_t read_scale(const char *from, const char *class, const char *name) {
  char key[32];
  snprintf(key, sizeof key, "class=\"tick %s\"", class);
  const char *first = strstr(from, key) - 6, *second = strstr(first + 20, key) - 6;
  CHECK(attribute(first, "data-value") == 0);
  return (scale_t){attribute(first, name),
                   (attribute(second, name) - attribute(first, name)) / attribute(second, "data-value")};
}

// Each mark has the values of a row, at the position that the axes give.
static void check_marks(const char *svg, yyjson_val *rows, const char *panel, const char *test,
                        int expected) {
  const char *start = strstr(svg, panel);
  CHECK(start);
  const char *end = strstr(start, "</g>");
  const scale_t x = read_scale(start, "x", "x"), y = read_scale(start, "y", "y");
  int found = 0;
  for (const char *mark = start; (mark = strstr(mark, "<circle ")) && mark < end; ++mark) {
    char title[64];
    CHECK(sscanf(strstr(mark, "<title>"), "<title>%63[^ ]", title) == 1);
    if (strcmp(title, test)) continue;
    const double depth = attribute(mark, "data-x"), rate = attribute(mark, "data-y");
    yyjson_val *row;
    size_t i, count;
    bool matched = false;
    yyjson_arr_foreach(rows, i, count, row) {
      if (yyjson_get_num(yyjson_obj_get(row, "n_depth")) != depth ||
          strncmp(yyjson_get_str(yyjson_obj_get(row, "test")), test, strlen(test)))
        continue;
      CHECK(fabs(yyjson_get_real(yyjson_obj_get(row, "avg_ts")) - rate) < 1e-5);
      CHECK(fabs(yyjson_get_real(yyjson_obj_get(row, "stddev_ts")) - attribute(mark, "data-error")) < 1e-5);
      matched = true;
    }
    CHECK(matched);
    CHECK(fabs(attribute(mark, "cx") - (x.zero + depth * x.unit)) < 0.2);
    CHECK(fabs(attribute(mark, "cy") - (y.zero + rate * y.unit)) < 0.2);
    ++found;
  }
  CHECK_INT(found, expected);
}

// The dashed line is the bandwidth divided by the bytes per token of the table, at the first and the last
// depth.
static void check_limit(const char *svg, yyjson_val *rows, double bandwidth) {
  const char *path = strstr(svg, "<path class=\"line limit\" d=\"M");
  CHECK(path);
  const scale_t y = read_scale(svg, "y", "y");
  double first_x, first_y, last_x = 0, last_y = 0;
  CHECK(sscanf(path, "<path class=\"line limit\" d=\"M%lf %lf", &first_x, &first_y) == 2);
  for (const char *c = path; (c = strstr(c, " L")) && c < strchr(path, '>'); ++c)
    CHECK(sscanf(c, " L%lf %lf", &last_x, &last_y) == 2);
  yyjson_val *row;
  size_t i, count;
  int compared = 0;
  yyjson_arr_foreach(rows, i, count, row) {
    const double bytes = yyjson_get_num(yyjson_obj_get(row, "bytes_per_token")),
                 depth = yyjson_get_num(yyjson_obj_get(row, "n_depth"));
    if (!bytes || (depth != 0 && depth != 40)) continue;
    const double expected = y.zero + bandwidth / bytes * y.unit;
    CHECK(fabs((depth ? last_y : first_y) - expected) < 0.2);
    ++compared;
  }
  CHECK_INT(compared, 2);
}

TEST(plot_has_the_values_of_the_table) {
  char path[] = "/tmp/mlxcel-plot-XXXXXX";
  const int fd = mkstemp(path);
  CHECK(fd >= 0);
  close(fd);
  command_t run;
  RUN(&run, BENCH, "-p", "4", "-n", "3", "-d", "40,0,20", "-r", "2", "-o", "json", "--bandwidth", "0.4",
      "--plot", path);
  yyjson_doc *doc = run_json(&run);
  yyjson_val *rows = yyjson_doc_get_root(doc);
  char *svg;
  CHECK_OK(mlx_read_file(path, 1 << 20, &svg, NULL));
  check_well_formed(svg);
  CHECK_CONTAINS(svg, "prefers-color-scheme: dark");
  CHECK_CONTAINS(svg, ">limit at 0.4 GB/s</text>");
  check_marks(svg, rows, ">decode</text>", "tg3", 3);
  check_marks(svg, rows, ">prefill</text>", "pp4", 3);
  check_limit(svg, rows, 0.4e9);
  mlx_free(svg);
  yyjson_doc_free(doc);
  command_free(&run);
  command_start(&run,
                (const char *const[]){"/bin/sh", "-c",
                                      "command -v python3 >/dev/null || exit 0; exec python3 -c 'import sys, "
                                      "xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' \"$0\"",
                                      path, NULL});
  command_wait(&run);
  if (run.exit_code) CHECK_FAIL("python's parser: %s", run.err);
  command_free(&run);
  unlink(path);
}

TEST(plot_escapes_names_that_are_not_xml) {
  make_folder();
  const char *model = in_folder("a<b>&\"\x01\xff"), *plot = in_folder("x.svg");
  CHECK(!symlink(TINY, model));
  command_t run;
  RUN(&run, "bench", "-m", model, "--device", "cpu", "-c", "64", "-t", "1", "-p", "4", "-n", "0", "-r", "1",
      "--bandwidth", "1", "--plot", plot);
  if (run.exit_code) CHECK_FAIL("exit status %d: %s", run.exit_code, run.err);
  command_free(&run);
  char *svg;
  CHECK_OK(mlx_read_file(plot, 1 << 20, &svg, NULL));
  check_well_formed(svg);
  CHECK_CONTAINS(svg, "a&lt;b&gt;&amp;&quot;?");
  CHECK(!strstr(svg, ">decode<"));  // there was no decode test
  mlx_free(svg);
  remove_folder();
}

// A layer with a window of 12 positions reads at most those. One of the two layers of gemma3 has a window,
// and both of mistral.
TEST(layers_with_a_window_read_no_more_than_the_window) {
  static const struct {
    const char *model;
    int64_t full, windowed;  // bytes per position of the layers without and with a window
  } models[] = {{"gemma3", 256, 256}, {"mistral", 0, 256}};
  for (int i = 0; i < 2; ++i) {
    command_t run;
    make_folder();
    copy_fixture(models[i].model);
    RUN(&run, "bench", "-m", folder, "--device", "cpu", "-p", "0", "-n", "4", "-d", "7,9,40", "-r", "1", "-o",
        "json");
    yyjson_doc *doc = run_json(&run);
    int64_t bytes[3];
    for (size_t k = 0; k < 3; ++k)
      bytes[k] =
          yyjson_get_sint(yyjson_obj_get(yyjson_arr_get(yyjson_doc_get_root(doc), k), "bytes_per_token"));
    // Positions: 8 to 11, 10 to 13 and 41 to 44. In the window: 8 to 11; 10, 11, 12, 12; 12.
    CHECK_INT((bytes[1] - bytes[0]) * 4, models[i].full * 8 + models[i].windowed * 7);
    CHECK_INT((bytes[2] - bytes[0]) * 4, models[i].full * 132 + models[i].windowed * 10);
    yyjson_doc_free(doc);
    command_free(&run);
    remove_folder();
  }
}

TEST_MAIN(CASE(bench_prints_the_table_of_llama_bench), CASE(bench_aligns_wide_and_long_cells),
          CASE(bench_prints_valid_json), CASE(bench_prints_csv_with_a_value_for_each_column),
          CASE(quiet_bench_prints_the_table_only), CASE(invalid_options_are_refused),
          CASE(bench_refuses_a_bundle_with_too_short_a_context), CASE(another_context_compiles_nothing),
          CASE(lists_give_a_row_for_each_length_and_depth), CASE(invalid_lists_are_refused),
          CASE(layers_with_a_window_read_no_more_than_the_window),
          POSIX_CASE(bandwidth_is_measured_on_request), POSIX_CASE(plot_has_the_values_of_the_table),
          POSIX_CASE(plot_escapes_names_that_are_not_xml))
