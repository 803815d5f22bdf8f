// mlxcel rm: which files it removes, and when it asks.
#include <sys/stat.h>

#include "cache/cache.h"
#include "tests/support/command.h"
#include "tests/support/folder.h"
#include "tests/support/pty.h"

#define TINY_GGUF MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama.gguf"
#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define OTHER_COMMIT "abcdef0123456789abcdef0123456789abcdef01"
#define REPOSITORY "cache/models/acme/tiny-GGUF"

static void clean_up(void) { mlx_status_free(mlx_remove_tree(folder)); }

static void put(const char *name) {
  char *parent;
  CHECK_OK(mlx_folder_of(in_folder(name), &parent));
  CHECK_OK(mlx_make_dirs(parent, 0700));
  mlx_free(parent);
  CHECK_OK(mlx_copy_file(TINY_GGUF, in_folder(name)));
}

// Makes a cache with two quantizations of one model, as a pull leaves them.
static void begin(void) {
  if (!folder[0] || !mlx_is_dir(folder)) {
    strcpy(folder, "/tmp/mlxcel-rm-XXXXXX");
    CHECK(mkdtemp(folder));
    atexit(clean_up);
  }
  CHECK_OK(mlx_remove_tree(in_folder("cache")));
  CHECK_OK(mlx_make_dirs(in_folder("cache"), 0700));
  setenv("MLXCEL_CACHE", in_folder("cache"), 1);
  setenv("MLXCEL_STATE", in_folder("state"), 1);
  put(REPOSITORY "/" COMMIT "/tiny-A.gguf");
  put(REPOSITORY "/" COMMIT "/tiny-B.gguf");
  put(REPOSITORY "/refs/main+A.json");
  put(REPOSITORY "/.lock");
}

static void check_rm(const char *name, const char *out) {
  command_t run;
  RUN(&run, "rm", name, "--yes");
  if (run.exit_code) CHECK_FAIL("rm %s: %s", name, run.err);
  CHECK_CONTAINS(run.err, out);
  command_free(&run);
}

static void check_refused(const char *name, const char *message, const char *hint) {
  command_t run;
  RUN(&run, "rm", name, "--yes");
  CHECK(run.exit_code);
  CHECK_CONTAINS(run.err, message);
  CHECK_CONTAINS(run.err, hint);
  command_free(&run);
}

static mlx_status_t fill_entry(void *user, const char *path, const char *log_path) {
  char file[512];
  (void)user, (void)log_path;
  snprintf(file, sizeof file, "%s/file", path);
  return mlx_write_file(file, "tables", 6);
}

// Tiny models have tokenizers that are too small to be stored.
static void put_tokenizer(const char *title, char digit) {
  mlx_cache_t *cache;
  mlx_cache_entry_t entry;
  char key[MLX_DIGEST_HEX] = "";
  memset(key, digit, sizeof key - 1);
  const mlx_cache_request_t request = {.kind = "tokenizer", .key = key, .title = title, .fill = fill_entry};
  CHECK_OK(mlx_cache_open(NULL, &cache));
  CHECK_OK(mlx_cache_get(cache, &request, NULL, &entry));
  mlx_cache_release(&entry);
  mlx_cache_close(cache);
}

TEST(one_model_and_what_was_compiled_from_it_go) {
  command_t run;
  begin();
  put_tokenizer("tokenizer of tiny-B.gguf", 'b');
  put_tokenizer("tokenizer of tiny-B.gguf.old", 'c');
  RUN(&run, "compile", in_folder(REPOSITORY "/" COMMIT "/tiny-A.gguf"), "-o", in_folder("a.mlxb"));
  command_done(&run);
  RUN(&run, "compile", in_folder(REPOSITORY "/" COMMIT "/tiny-B.gguf"), "--quantize", "q8", "-o",
      in_folder("b.mlxb"));
  command_done(&run);
  check_rm("acme/tiny-GGUF/tiny-A.gguf", "removed; freed ");
  CHECK(!mlx_is_file(in_folder(REPOSITORY "/" COMMIT "/tiny-A.gguf")));
  CHECK(mlx_is_file(in_folder(REPOSITORY "/" COMMIT "/tiny-B.gguf")));
  RUN(&run, "list");
  CHECK(!strstr(run.out, "tiny-A"));
  CHECK_CONTAINS(run.out, "\ncompiled  tiny-B.gguf");
  CHECK_CONTAINS(run.out, "\nweights   tiny-B.gguf");
  command_free(&run);
  RUN(&run, "run", "-m", in_folder("a.mlxb"), "-p", "the", "-n", "1");  // the user's own bundle
  command_done(&run);
  check_rm("tiny-b", "3 cache entries compiled from a file named tiny-B.gguf: ");
  CHECK(!mlx_is_dir(in_folder("cache/models/acme")));  // with records and the lock
  RUN(&run, "cache", "list");
  CHECK_CONTAINS(run.out, "tokenizer of tiny-B.gguf.old\n");
  CHECK(!strstr(run.out, "tokenizer of tiny-B.gguf\n"));
  command_free(&run);
  RUN(&run, "list");
  CHECK_TEXT(run.out, "");
  command_free(&run);
}

TEST(all_parts_of_a_split_model_go) {
  begin();
  put("cache/models/acme/big/" COMMIT "/Q8/big-00001-of-00002.gguf");
  put("cache/models/acme/big/" COMMIT "/Q8/big-00002-of-00002.gguf");
  check_rm("acme/big", "big-00001-of-00002.gguf: 327.0 kB");
  CHECK(!mlx_is_dir(in_folder("cache/models/acme/big")));
  CHECK(mlx_is_dir(in_folder("cache/models/acme/tiny-GGUF")));
}

TEST(named_bundle_in_the_models_folder_goes) {
  command_t run;
  begin();
  RUN(&run, "compile", TINY, "-o", in_folder("cache/models/mine.mlxb"));
  command_done(&run);
  check_rm("mine", "removed; freed ");
  CHECK(!mlx_is_dir(in_folder("cache/models/mine.mlxb")));
}

// Two models with the same file name have the same titles in the cache.
TEST(modules_of_a_model_with_the_same_file_name_stay) {
  command_t run;
  begin();
  put("cache/models/other/tiny/" COMMIT "/tiny-A.gguf");
  RUN(&run, "compile", in_folder(REPOSITORY "/" COMMIT "/tiny-A.gguf"), "-o", in_folder("same.mlxb"));
  command_done(&run);
  check_rm("other/tiny", "another stored model has the same file name");
  RUN(&run, "list");
  CHECK_CONTAINS(run.out, "\ncompiled  tiny-A.gguf");
  command_free(&run);
}

TEST(files_of_the_user_and_unclear_names_are_refused) {
  begin();
  put("own.gguf");
  check_refused(in_folder("own.gguf"), "is your own file", "remove the file yourself");
  CHECK(mlx_is_file(in_folder("own.gguf")));
  check_refused(in_folder("cache/models/acme"), "is your own file", "");
  check_refused("no-such", "no stored model 'no-such'", "`mlxcel list` shows the stored models");
  check_refused("hf:acme/none", "no stored model 'hf:acme/none'", "");
  check_refused("acme/tiny-GGUF", "matches 2 models", "tiny-A.gguf, acme/tiny-GGUF/tiny-B.gguf");
  check_refused("hf:acme/tiny-GGUF", "matches 2 models", "");
  CHECK(mlx_is_file(in_folder(REPOSITORY "/" COMMIT "/tiny-B.gguf")));
}

TEST(without_a_terminal_yes_is_needed) {
  command_t run;
  begin();
  RUN(&run, "rm", "tiny-A");
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err, "stdin or stderr is not a terminal\nhint: pass --yes");
  command_free(&run);
  CHECK(mlx_is_file(in_folder(REPOSITORY "/" COMMIT "/tiny-A.gguf")));
  RUN(&run, "rm", "-f", "tiny-A");
  command_done(&run);
  CHECK(!mlx_is_file(in_folder(REPOSITORY "/" COMMIT "/tiny-A.gguf")));
}

TEST(rm_asks_at_a_terminal) {
  pty_t pty;
  begin();
  for (int i = 0; i < 2; ++i) {
    pty_start(&pty, (const char *const[]){MLXCEL_BINARY, "rm", "tiny-A", NULL}, NULL, "xterm");
    pty_wait_for(&pty, "remove acme/tiny-GGUF/tiny-A.gguf and free 163.5 kB? [y/N] ");
    pty_send(&pty, i ? "y\n" : "\n");
    pty_wait_for(&pty, i ? "removed; freed 163.5 kB" : "nothing was removed");
    CHECK_INT(pty_end(&pty), 0);
    CHECK_INT(mlx_is_file(in_folder(REPOSITORY "/" COMMIT "/tiny-A.gguf")), !i);
  }
}

TEST(cache_clear_asks_at_a_terminal) {
  command_t run;
  pty_t pty;
  begin();
  RUN(&run, "compile", TINY, "-o", in_folder("c.mlxb"));
  command_done(&run);
  for (int i = 0; i < 2; ++i) {
    pty_start(&pty, (const char *const[]){MLXCEL_BINARY, "cache", "clear", NULL}, NULL, "xterm");
    pty_wait_for(&pty, "models are compiled again when they are used [y/N] ");
    pty_send(&pty, i ? "yes\n" : "no\n");
    pty_wait_for(&pty, i ? "removed " : "nothing was removed");
    CHECK_INT(pty_end(&pty), 0);
  }
  CHECK(mlx_is_file(in_folder(REPOSITORY "/" COMMIT "/tiny-A.gguf")));  // pulled models stay
  RUN(&run, "compile", TINY, "-o", in_folder("d.mlxb"));
  command_done(&run);
  // stderr is a file: no question is possible.
  char script[256];
  snprintf(script, sizeof script, MLXCEL_BINARY " cache clear 2>%s; echo status $?", in_folder("log"));
  pty_start(&pty, (const char *const[]){"/bin/sh", "-c", script, NULL}, NULL, "xterm");
  pty_wait_for(&pty, "status 2");
  CHECK_INT(pty_end(&pty), 0);
  RUN(&run, "cache", "clear");
  CHECK(!strstr(run.err, "removed 0"));
  CHECK(!strstr(run.err, "MiB"));
  CHECK_CONTAINS(run.err, "B\n");
  command_free(&run);
}

// A pull of a whole repository and one of a GGUF file of the same commit share a folder.
TEST(gguf_files_in_a_model_folder_are_models_of_their_own) {
  command_t run;
  begin();
  put(REPOSITORY "/" COMMIT "/config.json");
  put(REPOSITORY "/" COMMIT "/model.safetensors");
  RUN(&run, "list");
  CHECK_CONTAINS(run.out, "model     acme/tiny-GGUF  ");
  CHECK_CONTAINS(run.out, "model     acme/tiny-GGUF/tiny-A.gguf");
  CHECK_CONTAINS(run.out, "327.0 kB");  // without the GGUF files
  command_free(&run);
  check_rm("acme/tiny-GGUF/tiny-B.gguf", "tiny-B.gguf: 163.5 kB");
  check_rm("acme/tiny-GGUF", "keeps 1 GGUF file in its folder");  // the whole name wins
  CHECK(!mlx_is_file(in_folder(REPOSITORY "/" COMMIT "/config.json")));
  CHECK(!mlx_is_file(in_folder(REPOSITORY "/" COMMIT "/model.safetensors")));
  check_rm("acme/tiny-GGUF", "tiny-A.gguf: 163.5 kB");
  CHECK(!mlx_is_dir(in_folder("cache/models/acme")));
}

TEST(equal_names_of_two_commits_are_told_apart_by_their_paths) {
  begin();
  put(REPOSITORY "/" OTHER_COMMIT "/tiny-A.gguf");
  check_refused("tiny-A", "'tiny-A' matches 2 models", "/" COMMIT "/tiny-A.gguf, /");
  check_refused("tiny-A", "'tiny-A' matches 2 models", "/" OTHER_COMMIT "/tiny-A.gguf");
  check_rm(in_folder(REPOSITORY "/" OTHER_COMMIT "/tiny-A.gguf"), "removed; freed ");
  CHECK(mlx_is_file(in_folder(REPOSITORY "/" COMMIT "/tiny-A.gguf")));
  CHECK(!mlx_is_file(in_folder(REPOSITORY "/" OTHER_COMMIT "/tiny-A.gguf")));
}

TEST_MAIN(CASE(one_model_and_what_was_compiled_from_it_go), CASE(all_parts_of_a_split_model_go),
          CASE(named_bundle_in_the_models_folder_goes), CASE(modules_of_a_model_with_the_same_file_name_stay),
          CASE(files_of_the_user_and_unclear_names_are_refused), CASE(without_a_terminal_yes_is_needed),
          CASE(rm_asks_at_a_terminal), CASE(cache_clear_asks_at_a_terminal),
          CASE(gguf_files_in_a_model_folder_are_models_of_their_own),
          CASE(equal_names_of_two_commits_are_told_apart_by_their_paths))
