// Waiting is explained: what a terminal shows while something takes time, and that a pipe gets none of it.
#include <sys/stat.h>

#include "base/digest.h"
#include "base/meter.h"
#include "line/row.h"
#include "tests/support/command.h"
#include "tests/support/folder.h"
#include "tests/support/pty.h"
#include "tests/support/server.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define TINY_GGUF MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama.gguf"
#define MINILM MLXCEL_MODELS "/all-MiniLM-L6-v2"
#define SMOLLM2 MLXCEL_MODELS "/SmolLM2-135M-Instruct.Q4_1.gguf"

static server_t server;

static void clean_up(void) {
  if (server.port) server_stop(&server);
  mlx_status_free(mlx_remove_tree(folder));
}

static void begin(void) {
  if (!folder[0]) {
    strcpy(folder, "/tmp/mlxcel-progress-XXXXXX");
    CHECK(mkdtemp(folder));
    atexit(clean_up);
  }
  CHECK_OK(mlx_remove_tree(in_folder("cache")));
  setenv("MLXCEL_CACHE", in_folder("cache"), 1);
}

// ----------------------------------------------------------------------------------------------------------
// The meter

static char last[256];
static int reports;

static void keep(void *user, mlx_report_kind_t kind, const char *text) {
  (void)user;
  CHECK_INT(kind, MLX_REPORT_PROGRESS);
  snprintf(last, sizeof last, "%s", text);
  ++reports;
}

TEST(meter_shows_bytes_speed_and_time_left) {
  const mlx_report_t report = {.emit = keep};
  mlx_meter_t meter;
  mlx_meter_begin(&meter, &report, "packing", 4000000);
  mlx_meter_show(&meter, 1);
  CHECK_INT(reports, 0);  // short work shows nothing
  meter.start -= 10;
  meter.when -= 1;
  mlx_meter_show(&meter, 1000000);
  char *rest;
  CHECK(!strncmp(last, "packing: 1.0 MB of 4.0 MB, ", 27));
  CHECK(strtod(last + 27, &rest) > 800);  // about 1 MB in 1 s, less on a busy machine
  CHECK_CONTAINS(rest, "B/s, ");
  CHECK_CONTAINS(rest, " s left");
  mlx_meter_show(&meter, 1500000);
  CHECK_INT(reports, 1);  // too soon after the first
  mlx_meter_show(&meter, 4000000);
  CHECK_INT(reports, 2);  // the end is shown, however soon it comes
  CHECK_TEXT(last, "packing: 4.0 MB");
  mlx_meter_end(&meter);
  CHECK_TEXT(last, "");
}

TEST(meter_counts_things_and_shows_time_left) {
  const mlx_report_t report = {.emit = keep};
  mlx_meter_t meter;
  reports = 0;
  mlx_meter_begin(&meter, &report, "embedding", 400);
  meter.unit = "texts";
  meter.start -= 10;
  meter.when -= 1;
  mlx_meter_show(&meter, 40);
  CHECK_CONTAINS(last, "embedding: 40 of 400 texts, ");
  CHECK(strtod(strstr(last, "texts, ") + 7, NULL) >= 9);  // 40 in about 1 s, more on a busy machine
  CHECK_CONTAINS(last, " s left");
  mlx_meter_show(&meter, 400);
  CHECK_TEXT(last, "embedding: 400 texts");
  mlx_meter_end(&meter);
  CHECK_TEXT(last, "");
}

static void check_row(const char *text, int columns, const char *expected) {
  mlx_text_t row = {0};
  mlx_row_fit(text, columns, &row);
  CHECK_OK(mlx_text_finish(&row));
  CHECK_TEXT(row.data, expected);
  mlx_text_clear(&row);
}

TEST(progress_is_cut_to_the_columns_of_the_row) {
  check_row("packing weights: 1.0 MB of 2.0 MB", 33, "packing weights: 1.0 MB of 2.0 MB");
  check_row("packing weights: 1.0 MB of 2.0 MB", 32, "packing wei...: 1.0 MB of 2.0 MB");
  check_row("packing weights: 1.0 MB of 2.0 MB", 22, "p...: 1.0 MB of 2.0 MB");
  check_row("packing weights: 1.0 MB of 2.0 MB", 21, "packing weights: 1...");
  check_row("reading C:\\x: 5 s", 14, "readin...: 5 s");
  check_row("ab", 1, "");
  // Chinese characters have two columns, combining characters none, and an emoji of three people at most six.
  check_row("\u6a21\u578b\u6587\u4ef6: 5 s", 13, "\u6a21\u578b\u6587\u4ef6: 5 s");
  check_row("\u6a21\u578b\u6587\u4ef6: 5 s", 12, "\u6a21\u578b...: 5 s");
  check_row("\u6a21\u578b\u6587\u4ef6: 5 s", 11, "\u6a21...: 5 s");
  check_row("e\u0301e\u0301e\u0301: 5 s", 8, "e\u0301e\u0301e\u0301: 5 s");
  check_row("\U0001f468\u200d\U0001f469\u200d\U0001f467abcdefgh", 10,
            "\U0001f468\u200d\U0001f469\u200d\U0001f467a...");
  check_row("a\033[2J\nb", 20, "a?[2J");
}

// ----------------------------------------------------------------------------------------------------------
// Compiling

TEST(first_line_of_a_compile_says_that_it_happens_once) {
  static const char line[] = "compiling tiny-llama for cpu: happens once, then cached\n";
  command_t run;
  begin();
  for (int i = 0; i < 2; ++i) {
    RUN(&run, "run", "-m", TINY, "-p", "the", "-n", "1", "--device", "cpu");
    if (run.exit_code) CHECK_FAIL("%s", run.err);
    const char *found = strstr(run.err, line);
    CHECK_INT(found != NULL, !i);
    if (found) CHECK(!strstr(found + 1, line));
    CHECK(!strstr(run.err, " ... "));  // progress is for terminals
    CHECK(!strchr(run.err, '\r'));
    command_free(&run);
  }
}

// ----------------------------------------------------------------------------------------------------------
// Downloads and hashing

static void start_server(void) {
  if (server.port) return;
  plain_environment();
  CHECK_OK(mlx_make_dirs(in_folder("hub/files"), 0755));
  CHECK_OK(mlx_copy_file(TINY_GGUF, in_folder("hub/files/tiny.gguf")));
  server_start(&server,
               (const char *const[]){"python3", MLXCEL_SOURCE_DIR "/tests/support/hub_server.py",
                                     in_folder("hub"), NULL},
               "http");
}

TEST(download_shows_bytes_speed_and_time_left_on_a_terminal_only) {
  static const char slow[] = "{\"tiny.gguf\": {\"drip\": [16000, 0.15]}}";
  char url[128];
  command_t run;
  pty_t pty;
  begin();
  start_server();
  snprintf(url, sizeof url, "%s/plain/files/tiny.gguf", server.url);
  server_control(&server, slow);
  pty_start(&pty, (const char *const[]){MLXCEL_BINARY, "pull", url, NULL}, in_folder("out"), "xterm");
  pty_wait_for(&pty, "pulling tiny.gguf: ");
  pty_wait_for(&pty, " kB of 163.5 kB, ");
  pty_wait_for(&pty, " kB/s, ");
  pty_wait_for(&pty, " s left");
  CHECK_INT(pty_end(&pty), 0);
  CHECK_OK(mlx_remove_tree(in_folder("cache")));
  server_control(&server, slow);
  RUN(&run, "pull", url);
  CHECK_INT(run.exit_code, 0);
  CHECK_TEXT(run.err, "");
  command_free(&run);
}

// The longest run of |text| between line ends, without escape sequences.
static size_t widest_row(const char *text) {
  size_t widest = 0, row = 0;
  for (; *text; ++text) {
    if (*text == '\033') {
      text += strcspn(text, "mK");
    } else if (*text == '\r' || *text == '\n') {
      row = 0;
    } else if (++row > widest) {
      widest = row;
    }
  }
  return widest;
}

TEST(terminal_shows_rows_of_its_width_and_nothing_if_it_is_dumb) {
  static const char slow[] = "{\"tiny.gguf\": {\"drip\": [16000, 0.15]}}";
  char url[128];
  begin();
  start_server();
  snprintf(url, sizeof url, "%s/plain/files/tiny.gguf", server.url);
  for (int dumb = 0; dumb < 2; ++dumb) {
    pty_t pty;
    CHECK_OK(mlx_remove_tree(in_folder("cache")));
    server_control(&server, slow);
    pty_columns = 50;
    pty_start(&pty, (const char *const[]){MLXCEL_BINARY, "pull", url, NULL}, in_folder("out"),
              dumb ? "dumb" : "xterm");
    pty_columns = 80;
    if (!dumb) pty_wait_for(&pty, "...: ");
    while (pty_read(&pty, 100)) continue;
    const char *shown = pty.shown.data ? pty.shown.data : "";
    if (widest_row(shown) >= 50 || (dumb && shown[0])) CHECK_FAIL("%s", shown);
    CHECK_INT(pty_end(&pty), 0);
  }
}

#define BIG ((off_t)2 << 30)  // bytes of a file with a hole; hashing it takes more than 0.3 s on any CPU

// A bundle whose weights are larger than they were, so that their digest does not match.
static void make_big_bundle(void) {
  command_t run;
  struct stat info;
  char script[512];
  RUN(&run, "compile", TINY, "-o", in_folder("big.mlxb"));
  command_done(&run);
  CHECK(!stat(in_folder("big.mlxb/weights.irpa"), &info));
  snprintf(
      script, sizeof script,
      "cp --remove-destination $(readlink -f big.mlxb/weights.irpa) w && mv -f w big.mlxb/weights.irpa && "
      "sed -i 's/\"size\": %lld,/\"size\": %lld,/' big.mlxb/manifest.json && truncate -s %lld "
      "big.mlxb/weights.irpa",
      (long long)info.st_size, (long long)BIG, (long long)BIG);
  command_shell(folder, script);
}

TEST(first_verification_of_a_bundle_shows_its_progress) {
  pty_t pty;
  begin();
  make_big_bundle();
  pty_start(&pty,
            (const char *const[]){MLXCEL_BINARY, "run", "-m", in_folder("big.mlxb"), "-p", "the", "-n", "1",
                                  "--device", "cpu", "--allow-unsigned", NULL},
            NULL, "xterm");
  pty_wait_for(&pty, "checking weights (at first use): ");
  pty_wait_for(&pty, " of 2.1 GB, ");
  pty_wait_for(&pty, "B/s, ");
  pty_wait_for(&pty, " left");
  pty_wait_for(&pty, "does not match the bundle's manifest");
  CHECK_INT(pty_end(&pty), MLX_INVALID_INPUT);
  CHECK_OK(mlx_remove_tree(in_folder("big.mlxb")));
}

TEST(first_reading_of_a_source_model_shows_its_progress) {
  pty_t pty;
  begin();
  CHECK_OK(mlx_make_dirs(in_folder("licensed"), 0755));
  command_shell(folder, "cp " TINY "/* licensed/ && truncate -s 2G licensed/LICENSE.txt");
  pty_start(&pty,
            (const char *const[]){MLXCEL_BINARY, "compile", in_folder("licensed"), "-o",
                                  in_folder("licensed.mlxb"), NULL},
            NULL, "xterm");
  pty_wait_for(&pty, "checking LICENSE.txt: ");
  pty_wait_for(&pty, " of 2.1 GB, ");
  pty_wait_for(&pty, " left");
  pty_end(&pty);
  CHECK_OK(mlx_remove_tree(in_folder("licensed")));
}

// The compiler is a script beside a library of 8 GB, all of it a hole: hashing that takes more than 0.3 s. A
// digest is cached for files that are older than 2 s.
TEST(cold_start_shows_how_much_and_warm_start_nothing) {
  char script[1024], compiler[320];
  begin();
  snprintf(script, sizeof script,
           "mkdir -p tools && printf '#!/bin/sh\\nexec %s \"$@\"\\n' > tools/iree-compile && "
           "chmod +x tools/iree-compile && truncate -s 8G tools/libIREECompiler.so && sleep 2.1",
           MLXCEL_TEST_IREE_COMPILE);
  command_shell(folder, script);
  snprintf(compiler, sizeof compiler, "%s", in_folder("tools/iree-compile"));
  setenv("MLXCEL_IREE_COMPILE", compiler, 1);
  for (int warm = 0; warm < 2; ++warm) {
    pty_t pty;
    pty_start(&pty,
              (const char *const[]){MLXCEL_BINARY, "run", "-m", TINY, "-p", "the", "-n", "1", "--device",
                                    "cpu", NULL},
              in_folder("out"), "xterm");
    if (!warm) {
      pty_wait_for(&pty, "checking libIREECompiler.so: ");
      pty_wait_for(&pty, " of 8.6 GB, ");
      pty_wait_for(&pty, " left");
    }
    while (pty_read(&pty, 100)) continue;
    if (warm && pty.shown.data && strstr(pty.shown.data, "\033")) CHECK_FAIL("%s", pty.shown.data);
    CHECK_INT(pty_end(&pty), 0);
  }
  unsetenv("MLXCEL_IREE_COMPILE");
  CHECK_OK(mlx_remove_tree(in_folder("tools")));
}

// ----------------------------------------------------------------------------------------------------------
// Prompts

TEST(long_prompt_shows_how_much_is_read) {
  pty_t pty;
  mlx_text_t prompt = {0};
  if (!mlx_is_file(SMOLLM2)) SKIP("%s does not exist", SMOLLM2);
  begin();
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
  for (int i = 0; i < 1500; ++i) mlx_text_printf(&prompt, "the %d quick brown foxes ", i);
  CHECK_OK(mlx_text_finish(&prompt));
  CHECK_OK(mlx_write_file(in_folder("prompt"), prompt.data, 8000));
  mlx_text_clear(&prompt);
  const char *const argv[] = {MLXCEL_BINARY,       "run", "-m", SMOLLM2, "--device", "cpu", "-f",
                              in_folder("prompt"), "-n",  "1",  "-c",    "8192",     NULL};
  pty_start(&pty, argv, in_folder("out"), "xterm");
  pty_wait_for(&pty, "reading the prompt: ");
  pty_wait_for(&pty, " tokens, ");
  pty_wait_for(&pty, " left");
  pty_wait_for(&pty, "\r\033[K");  // the line is cleared
  pty_wait_for(&pty, "; prompt ");
  CHECK_INT(pty_end(&pty), 0);
}

// Runs a verb on a file of |lines| lines and waits for the two parts of its progress.
static void check_file_verb(const char *verb, const char *model, int lines, const char *first,
                            const char *second) {
  pty_t pty;
  mlx_text_t text = {0};
  begin();
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
  for (int i = 0; i < lines; ++i) mlx_text_printf(&text, "the %d quick brown foxes jump over a dog\n", i);
  CHECK_OK(mlx_text_finish(&text));
  CHECK_OK(mlx_write_file(in_folder("lines"), text.data, text.length));
  mlx_text_clear(&text);
  const char *const argv[] = {MLXCEL_BINARY, verb, model, "-f", in_folder("lines"), "--device", "cpu", NULL};
  pty_start(&pty, argv, in_folder("out"), "xterm");
  pty_wait_for(&pty, first);
  pty_wait_for(&pty, second);
  pty_wait_for(&pty, " left");
  pty_wait_for(&pty, "\r\033[K");
  while (pty_read(&pty, 100)) continue;
  CHECK_INT(pty_end(&pty), 0);
}

TEST(embeddings_and_perplexity_show_the_time_left) {
  if (!mlx_is_file(MINILM "/config.json")) SKIP("%s does not exist", MINILM);
  check_file_verb("embed", MINILM, 1000, "embedding: ", " of 1000 texts, ");
  if (!mlx_is_file(SMOLLM2)) SKIP("%s does not exist", SMOLLM2);
  check_file_verb("eval", SMOLLM2, 150, "chunk 1 of ", ": perplexity ");
}

// A push reads the weights to check their digest, which does not match here.
TEST(push_shows_how_much_is_read) {
  pty_t pty;
  char destination[320];
  begin();
  make_big_bundle();
  snprintf(destination, sizeof destination, "oci-layout:%s:v1", in_folder("layout"));
  pty_start(&pty, (const char *const[]){MLXCEL_BINARY, "push", in_folder("big.mlxb"), destination, NULL},
            NULL, "xterm");
  pty_wait_for(&pty, "reading weights.irpa: ");
  pty_wait_for(&pty, " of 2.1 GB, ");
  pty_wait_for(&pty, " left");
  pty_wait_for(&pty, "does not match the bundle's manifest");
  pty_end(&pty);
  CHECK_OK(mlx_remove_tree(in_folder("big.mlxb")));
}

TEST(compiler_shows_the_size_of_its_input) {
  pty_t pty;
  begin();
  pty_start(&pty, (const char *const[]){MLXCEL_BINARY, "compile", TINY, "-o", in_folder("slow.mlxb"), NULL},
            NULL, "xterm");
  pty_wait_for(&pty, "compiling tiny-llama as f32 ");
  pty_wait_for(&pty, "B of code, ");
  while (pty_read(&pty, 100)) continue;
  CHECK_INT(pty_end(&pty), 0);
}

TEST_MAIN(CASE(meter_shows_bytes_speed_and_time_left), CASE(meter_counts_things_and_shows_time_left),
          CASE(progress_is_cut_to_the_columns_of_the_row),
          CASE(terminal_shows_rows_of_its_width_and_nothing_if_it_is_dumb),
          CASE(cold_start_shows_how_much_and_warm_start_nothing),
          CASE(first_line_of_a_compile_says_that_it_happens_once),
          CASE(download_shows_bytes_speed_and_time_left_on_a_terminal_only),
          CASE(first_verification_of_a_bundle_shows_its_progress),
          CASE(first_reading_of_a_source_model_shows_its_progress), CASE(long_prompt_shows_how_much_is_read),
          CASE(embeddings_and_perplexity_show_the_time_left), CASE(push_shows_how_much_is_read),
          CASE(compiler_shows_the_size_of_its_input))
