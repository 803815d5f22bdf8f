// base/windows: UTF-8 names, long paths, files that others may rename, locks, child processes, environment.
#include <errno.h>
#include <pthread.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/library.h"
#include "base/memory.h"
#include "base/process.h"
#include "base/user.h"
#include "cache/lock.h"
#include "tests/support/check.h"
#include "tests/support/command.h"

#define MLXCEL_SYSTEM32 "C:/windows/system32"

static char root[512];

static char *in_root(const char *name) {
  static char paths[8][2048];
  static int next;
  char *path = paths[next++ % 8];
  snprintf(path, sizeof paths[0], "%s/%s", root, name);
  return path;
}

static void check_content(const char *path, const char *expected) {
  char *text;
  CHECK_OK(mlx_read_file(path, 1 << 20, &text, NULL));
  CHECK_TEXT(text, expected);
  mlx_free(text);
}

static mlx_status_t find_name(void *user, const char *name) {
  if (!strcmp(name, "Grüße-世界-\xf0\x9f\x98\x80")) *(bool *)user = true;
  return NULL;
}

TEST(names_are_utf8) {
  const char *path = in_root("Grüße-世界-\xf0\x9f\x98\x80");
  bool found = false;
  char *real;
  CHECK_OK(mlx_write_file(path, "one\ntwo\r\n", 9));
  check_content(path, "one\ntwo\r\n");  // line ends are not translated
  CHECK_OK(mlx_list_dir(root, find_name, &found));
  CHECK(found);
  CHECK_OK(mlx_real_path(path, &real));
  CHECK(real[1] == ':' && !strchr(real, '\\'));
  CHECK_CONTAINS(real, "/Grüße-世界-\xf0\x9f\x98\x80");
  mlx_free(real);
  CHECK(unlink(in_root("\xff\xfe")) && errno == EILSEQ);
}

TEST(long_paths_work) {
  char path[2048];
  size_t length = (size_t)snprintf(path, sizeof path, "%s", root);
  for (int i = 0; i < 12; ++i)
    length += (size_t)snprintf(path + length, sizeof path - length, "%s%050d", i % 2 ? "\\" : "/", i);
  CHECK(length > 600);
  CHECK_OK(mlx_make_dirs(path, 0700));
  snprintf(path + length, sizeof path - length, "/file");
  CHECK_OK(mlx_write_file(path, "x", 1));
  CHECK(mlx_is_file(path));
  mlx_map_t map;
  CHECK_OK(mlx_map_file(path, &map));
  CHECK_INT(map.size, 1);
  mlx_unmap(&map);
}

TEST(both_slashes_separate_folders) {
  char *folder;
  CHECK_TEXT(mlx_file_name("C:\\models\\a.gguf").text, "a.gguf");
  CHECK_TEXT(mlx_file_name("C:\\models/b\\").text, "b");
  CHECK_OK(mlx_folder_of("C:\\models\\a.gguf", &folder));
  CHECK_TEXT(folder, "C:\\models");
  mlx_free(folder);
  CHECK(mlx_is_absolute("C:\\x") && mlx_is_absolute("d:/x") && mlx_is_absolute("\\\\server\\share") &&
        !mlx_is_absolute("C:x") && !mlx_is_absolute("x\\y"));
  CHECK(mlx_is_path("x\\y") && mlx_is_path("./x") && !mlx_is_path("x"));
}

static void *close_soon(void *fd) {
  mlx_sleep_ms(100);
  close(*(int *)fd);
  return NULL;
}

TEST(open_file_is_replaced_after_it_is_closed) {
  pthread_t thread;
  CHECK_OK(mlx_write_file(in_root("a"), "old", 3));
  int fd = open(in_root("a"), O_RDONLY);
  CHECK(fd >= 0 && !pthread_create(&thread, NULL, close_soon, &fd));
  CHECK_OK(mlx_write_file(in_root("a"), "new", 3));
  pthread_join(thread, NULL);
  check_content(in_root("a"), "new");
  fd = open(in_root("a"), O_RDONLY);
  CHECK(!unlink(in_root("a")));
  close(fd);
  CHECK(!mlx_is_file(in_root("a")));
}

TEST(errors_match_posix) {
  char *text;
  CHECK_ERROR(mlx_read_file(in_root("nowhere"), 10, &text, NULL), MLX_NOT_FOUND, "No such file or directory");
  CHECK(!mkdir(in_root("folder"), 0700));
  CHECK(mkdir(in_root("folder"), 0700) && errno == EEXIST);
  CHECK(open(in_root("folder"), O_RDONLY) < 0 && errno == EISDIR);
  CHECK_OK(mlx_write_file(in_root("folder/file"), "", 0));
  CHECK(rmdir(in_root("folder")) && errno == ENOTEMPTY);
  CHECK(open(in_root("folder/file"), O_WRONLY | O_CREAT | O_EXCL, 0600) < 0 && errno == EEXIST);
}

TEST(stamp_changes_with_the_file) {
  mlx_file_stamp_t one, two;
  CHECK_OK(mlx_write_file(in_root("s"), "1", 1));
  CHECK_OK(mlx_file_stamp(in_root("s"), &one));
  mlx_sleep_ms(20);
  CHECK_OK(mlx_write_file(in_root("s"), "2", 1));
  CHECK_OK(mlx_file_stamp(in_root("s"), &two));
  CHECK(one.size == 1 && one.modified_ns > INT64_C(1600000000000000000) && one.inode &&
        memcmp(&one, &two, sizeof one));
}

TEST(lock_file_is_exclusive_and_entry_lock_is_shared) {
  mlx_lock_t first, second;
  CHECK_OK(mlx_lock_try(in_root("lock"), &first));
  CHECK(first.fd >= 0);
  CHECK_OK(mlx_lock_try(in_root("lock"), &second));
  CHECK_INT(second.fd, -1);
  mlx_lock_release(&first);
  CHECK_OK(mlx_lock_try(in_root("lock"), &second));
  CHECK(second.fd >= 0);
  mlx_lock_release_and_remove(&second);
  CHECK(!mlx_is_file(in_root("lock")));
  CHECK_OK(mlx_write_file(in_root("record"), "{}", 2));
  int a = mlx_entry_lock_share(in_root("record")), b = mlx_entry_lock_share(in_root("record")), c;
  CHECK(a >= 0 && b >= 0 && mlx_entry_lock_is_current(a, in_root("record")));
  check_content(in_root("record"), "{}");  // a locked file can be read
  CHECK_INT(mlx_entry_lock_try_exclusive(in_root("record"), &c), MLX_ENTRY_LOCK_IN_USE);
  mlx_entry_lock_release(a);
  mlx_entry_lock_release(b);
  CHECK_INT(mlx_entry_lock_try_exclusive(in_root("record"), &c), MLX_ENTRY_LOCK_TAKEN);
  CHECK_INT(mlx_entry_lock_share(in_root("record")), -1);
  mlx_entry_lock_release(c);
}

static mlx_process_options_t program(const char *const *argv, double limit) {
  return (mlx_process_options_t){.argv = argv, .time_limit_seconds = limit};
}

TEST(arguments_reach_a_child_unchanged) {
  static const char *const given[] = {"plain",        "",          "two words", "a\"b", "back\\slash\\",
                                      "both\\\"\\\\", "tab\there", "世界",      "*"};
  const char *argv[16] = {MLXCEL_BINARY, "tokenize"};
  // No test program prints its arguments, but the error for an unknown verb quotes it.
  for (size_t i = 0; i < sizeof given / sizeof *given; ++i) {
    char *text, expected[64];
    mlx_process_result_t result;
    argv[1] = given[i];
    mlx_process_options_t options = program(argv, 60);
    CHECK_OK(mlx_process_capture(&options, 1 << 16, &text, &result));
    CHECK_INT(result.exit_code, MLX_USAGE);
    snprintf(expected, sizeof expected, "unknown verb '%s'",
             strcmp(given[i], "tab\there") ? given[i] : "tab?here");
    CHECK_CONTAINS(text, expected);
    mlx_free(text);
  }
}

TEST(child_ends_at_its_time_limit) {
  const char *argv[] = {MLXCEL_SYSTEM32 "/ping.exe", "-n", "60", "127.0.0.1", NULL};
  mlx_process_result_t result;
  char *text, ending[96];
  mlx_process_options_t options = program(argv, 0.5);
  if (!mlx_is_file(argv[0])) argv[0] = MLXCEL_SYSTEM32 "/cmd.exe", argv[1] = "/k", argv[2] = NULL;
  const double began = mlx_seconds();
  CHECK_OK(mlx_process_capture(&options, 1 << 16, &text, &result));
  CHECK(result.timed_out && mlx_seconds() - began < 30);
  mlx_process_describe(&result, ending, sizeof ending);
  CHECK_CONTAINS(ending, "exit status 0xE0000001");
  mlx_free(text);
}

TEST(child_output_is_in_its_log) {
  const char *argv[] = {MLXCEL_BINARY, "--version", NULL};
  char *log = in_root("child.log");
  mlx_process_result_t result;
  mlx_process_options_t options = {
      .argv = argv, .log_path = log, .log_head = "head\n", .time_limit_seconds = 60};
  CHECK_OK(mlx_process_run(&options, &result));
  CHECK_INT(result.exit_code, 0);
  char *text;
  CHECK_OK(mlx_read_file(log, 1 << 16, &text, NULL));
  CHECK(!strncmp(text, "head\nmlxcel ", 12) && !strchr(text, '\r'));
  mlx_free(text);
  argv[0] = in_root("nowhere.exe");
  CHECK_ERROR(mlx_process_run(&options, &result), MLX_NOT_FOUND, "cannot run '");
}

TEST(the_environment_is_utf8) {
  CHECK(!setenv("MLXCEL_TEST", "Grüße", 1));
  const char *value = getenv("MLXCEL_TEST");
  CHECK_TEXT(value, "Grüße");
  CHECK(!setenv("MLXCEL_TEST", "other", 0));
  CHECK(!setenv("MLXCEL_TEST", "other", 1));
  CHECK_TEXT(value, "Grüße");  // the old value stays valid
  CHECK_TEXT(getenv("MLXCEL_TEST"), "other");
  CHECK(!unsetenv("MLXCEL_TEST") && !getenv("MLXCEL_TEST"));
  CHECK(getenv("HOME"));
}

TEST(user_folders_follow_windows_conventions) {
  static const struct {
    mlx_user_kind_t kind;
    const char *variable, *expected;
  } rows[] = {{MLX_USER_CONFIG, "APPDATA", "C:\\a/mlxcel"},
              {MLX_USER_CACHE, "LOCALAPPDATA", "C:\\a/mlxcel/cache"},
              {MLX_USER_STATE, "LOCALAPPDATA", "C:\\a/mlxcel"}};
  CHECK(!unsetenv("MLXCEL_STATE"));
  for (size_t i = 0; i < 3; ++i) {
    char *folder;
    CHECK(!setenv(rows[i].variable, "C:\\a", 1));
    CHECK_OK(mlx_user_folder(rows[i].kind, &folder));
    CHECK_TEXT(folder, rows[i].expected);
    mlx_free(folder);
    CHECK(!unsetenv(rows[i].variable));
    CHECK_OK(mlx_user_folder(rows[i].kind, &folder));
    CHECK(!folder);
  }
}

TEST(libraries_are_opened_by_name) {
  void *library;
  char *path;
  CHECK_OK(mlx_library_open("kernel32.dll", &library));
  CHECK(mlx_library_symbol(library, "GetLastError") && !mlx_library_symbol(library, "NoSuchFunction"));
  CHECK_OK(mlx_library_path(library, &path));
  CHECK(mlx_is_path(path) && !strchr(path, '\\'));
  mlx_free(path);
  mlx_library_close(library);
  CHECK_ERROR(mlx_library_open("no-such-library.dll", &library), MLX_NOT_FOUND,
              "cannot open library 'no-such-library.dll'");
}

int main(int argc, char **argv) {
  static const check_case_t cases[] = {CASE(names_are_utf8),
                                       CASE(long_paths_work),
                                       CASE(both_slashes_separate_folders),
                                       CASE(open_file_is_replaced_after_it_is_closed),
                                       CASE(errors_match_posix),
                                       CASE(stamp_changes_with_the_file),
                                       CASE(lock_file_is_exclusive_and_entry_lock_is_shared),
                                       CASE(arguments_reach_a_child_unchanged),
                                       CASE(child_ends_at_its_time_limit),
                                       CASE(child_output_is_in_its_log),
                                       CASE(the_environment_is_utf8),
                                       CASE(user_folders_follow_windows_conventions),
                                       CASE(libraries_are_opened_by_name)};
  strcpy(root, "/tmp/mlxcel-windows-test-XXXXXX");
  if (!mkdtemp(root)) return 1;
  const int result = check_run(cases, sizeof cases / sizeof *cases, argc, argv);
  mlx_status_free(mlx_remove_tree(root));
  return result;
}
