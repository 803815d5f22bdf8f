// The guarantees of the cache under kills, failing calls, damaged files and concurrent processes.
#include "cache/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "cache/entry.h"
#include "tests/support/breaking.h"
#include "tests/support/check.h"
#include "tests/support/faults.h"

#define KEY_A "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define KEY_B "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100"

static char root[64];  // folder of this run; every test creates its cache below it

static const char *in_root(const char *name) {
  static char paths[4][512];
  static int next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", root, name);
  return path;
}

// ----------------------------------------------------------------------------------------------------------
// An entry with two files

typedef struct fill_options {
  int sleep_ms;
  bool fail;         // fail after writing one file and the log
  const char *flag;  // file that is created when filling begins; may be NULL
  bool waits;        // until the file ROOT/go exists
} fill_options_t;

static mlx_status_t write_in(const char *folder, const char *name, const char *text) {
  char *path;
  MLX_TRY(mlx_join_path(folder, name, &path));
  mlx_status_t status = mlx_write_file(path, text, strlen(text));
  mlx_free(path);
  return status;
}

// Each fill appends a byte to ROOT/fills.
static void count_fill(void) {
  int fd = open(in_root("fills"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd >= 0 && write(fd, "x", 1) == 1) close(fd);
}

static long fill_count(void) {
  struct stat info;
  return stat(in_root("fills"), &info) ? 0 : (long)info.st_size;
}

static mlx_status_t fill(void *user, const char *folder, const char *log_path) {
  const fill_options_t *options = user;
  count_fill();
  if (options->flag) MLX_TRY(mlx_write_file(options->flag, "", 0));
  MLX_TRY(mlx_write_file(log_path, "the tool's output\n", 18));
  MLX_TRY(write_in(folder, "module.vmfb", "the module"));
  if (options->sleep_ms) usleep((useconds_t)options->sleep_ms * 1000);
  for (int i = 0; options->waits && i < 12000 && !mlx_is_file(in_root("go")); ++i) usleep(5000);
  if (options->fail) return mlx_error(MLX_TOOL_FAILED, "the tool failed, see %s", log_path);
  return write_in(folder, "notes.txt", "");
}

static mlx_status_t get(mlx_cache_t *cache, const char *key, fill_options_t *options,
                        const mlx_report_t *report, mlx_cache_entry_t *out_entry) {
  static fill_options_t plain;
  mlx_cache_request_t request = {
      .kind = "vmfb", .key = key, .title = "tiny model", .fill = fill, .user = options ? options : &plain};
  return mlx_cache_get(cache, &request, report, out_entry);
}

// True if the folder has exactly the files that fill writes. Bypasses the call tables, which may inject
// faults.
static bool is_right(const char *folder) {
  char path[512], text[100] = "";
  snprintf(path, sizeof path, "%s/module.vmfb", folder);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  bool right = fd >= 0 && read(fd, text, sizeof text - 1) == 10 && !strcmp(text, "the module");
  if (fd >= 0) close(fd);
  snprintf(path, sizeof path, "%s/notes.txt", folder);
  return right && mlx_is_file(path);
}

static mlx_cache_t *open_cache(void) {
  mlx_cache_t *cache;
  CHECK_OK(mlx_cache_open(in_root("cache"), &cache));
  return cache;
}

static mlx_cache_t *fresh_cache(void) {
  CHECK_OK(mlx_remove_tree(in_root("cache")));
  CHECK_OK(mlx_remove_tree(in_root("fills")));
  return open_cache();
}

static void check_get(mlx_cache_t *cache, const char *key, bool expect_hit) {
  mlx_cache_entry_t entry;
  CHECK_OK(get(cache, key, NULL, NULL, &entry));
  CHECK(is_right(entry.folder));
  CHECK_INT(entry.hit, expect_hit);
  mlx_cache_release(&entry);
}

static bool is_found(mlx_cache_t *cache, const char *key) {
  mlx_cache_entry_t entry;
  CHECK_OK(mlx_cache_find(cache, "vmfb", key, &entry));
  bool found = entry.folder != NULL;
  if (found) CHECK(is_right(entry.folder));
  mlx_cache_release(&entry);
  return found;
}

static mlx_status_t count_name(void *user, const char *name) {
  (void)name;
  ++*(int *)user;
  return NULL;
}

static int names_in(const char *folder) {
  int count = 0;
  if (mlx_is_dir(in_root(folder))) CHECK_OK(mlx_list_dir(in_root(folder), count_name, &count));
  return count;
}

static const char *entry_path(const char *name) {
  char path[256];
  snprintf(path, sizeof path, "cache/vmfb/" KEY_A "/%s", name);
  return in_root(path);
}

// ----------------------------------------------------------------------------------------------------------
// Failing file calls, and processes killed in them

typedef mlx_status_t (*operation_fn_t)(void);

static mlx_status_t open_and_get(void) {
  mlx_cache_t *cache;
  mlx_cache_entry_t entry;
  MLX_TRY(mlx_cache_open(in_root("cache"), &cache));
  mlx_status_t status = get(cache, KEY_A, NULL, NULL, &entry);
  if (!status && !is_right(entry.folder)) status = mlx_error(MLX_INTERNAL, "wrong entry");
  mlx_cache_release(&entry);
  mlx_cache_close(cache);
  return status;
}

static mlx_status_t open_and_clear(void) {
  mlx_cache_t *cache;
  mlx_cache_cleared_t cleared;
  MLX_TRY(mlx_cache_open(in_root("cache"), &cache));
  mlx_status_t status = mlx_cache_clear(cache, NULL, &cleared);
  mlx_cache_close(cache);
  return status;
}

// States of the cache before an operation: the three cases of a get, and a full cache for clear.
enum { EMPTY, VALID, DAMAGED };
static void prepare(int state) {
  mlx_cache_t *cache = fresh_cache();
  if (state != EMPTY) check_get(cache, KEY_A, false);
  if (state == DAMAGED && truncate(entry_path("module.vmfb"), 3)) CHECK_FAIL("cannot damage the entry");
  mlx_cache_close(cache);
}

// After any failure: a found entry is correct, the entry can be created, and clear removes all leftovers.
static void check_recovers(void) {
  mlx_cache_t *cache = open_cache();
  mlx_cache_entry_t entry;
  is_found(cache, KEY_A);
  CHECK_OK(get(cache, KEY_A, NULL, NULL, &entry));
  CHECK(is_right(entry.folder));
  if (!entry.hit) CHECK_INT(names_in("cache/tmp"), 0);
  mlx_cache_release(&entry);
  mlx_cache_cleared_t cleared;
  CHECK_OK(mlx_cache_clear(cache, NULL, &cleared));
  CHECK_INT(cleared.removed, 1);
  CHECK_INT(cleared.in_use, 0);
  CHECK_INT(names_in("cache/tmp") + names_in("cache/vmfb") + names_in("cache/locks") + names_in("cache/logs"),
            0);
  mlx_cache_close(cache);
}

// Kills |operation| at its first file call, then at its second, and so on. Returns its number of file calls.
static long kill_at_every_step(operation_fn_t operation, int state, bool halfway) {
  for (long step = 1;; ++step) {
    prepare(state);
    pid_t pid = fork();
    if (!pid) {
      break_at(step, 0, halfway);
      mlx_status_t status = operation();
      _exit(status ? 1 : 0);
    }
    int ended;
    waitpid(pid, &ended, 0);
    CHECK(WIFSIGNALED(ended) || WEXITSTATUS(ended) == 0);
    check_recovers();
    if (WIFEXITED(ended)) return step - 1;
    CHECK_INT(WTERMSIG(ended), SIGKILL);
  }
}

TEST(cache_survives_kill_at_every_step) {
  for (int halfway = 0; halfway < 2; ++halfway) {
    CHECK(kill_at_every_step(open_and_get, EMPTY, halfway) > 40);
    CHECK(kill_at_every_step(open_and_get, DAMAGED, halfway) > 40);
    CHECK(kill_at_every_step(open_and_get, VALID, halfway) > 5);
    CHECK(kill_at_every_step(open_and_clear, VALID, halfway) > 5);
  }
}

TEST(cache_survives_kill_at_random_moments) {
  unsigned seed = 7;
  mlx_cache_cleared_t cleared;
  for (int i = 0; i < 40; ++i) {
    mlx_cache_t *cache = open_cache();
    CHECK_OK(mlx_cache_clear(cache, NULL, &cleared));
    mlx_cache_close(cache);
    pid_t pid = fork();
    if (!pid) _exit(open_and_get() ? 1 : 0);
    seed = seed * 1103515245 + 12345;
    usleep(seed / 65536 % 12000);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    cache = open_cache();
    mlx_cache_entry_t entry;
    is_found(cache, KEY_A);
    CHECK_OK(get(cache, KEY_A, NULL, NULL, &entry));
    CHECK(is_right(entry.folder));
    mlx_cache_release(&entry);
    mlx_cache_close(cache);
  }
}

static long fail_at_every_step(operation_fn_t operation, int state, int error) {
  for (long step = 1;; ++step) {
    prepare(state);
    break_at(step, error, false);
    mlx_status_t status = operation();
    bool reached = breaking.count >= step;
    break_at(0, 0, false);
    CHECK(mlx_status_code(status) != MLX_INTERNAL);
    const char *hint = mlx_status_hint_text(status);
    if (strstr(mlx_status_message(status), "No space left"))
      CHECK(strstr(hint, "free some space") || strstr(hint, "free space on the disk of the cache folder"));
    CHECK(!status || reached);
    mlx_status_free(status);
    check_recovers();
    if (!reached) return step - 1;
  }
}

TEST(cache_survives_a_failure_of_every_file_call) {
  static const int errors[] = {EIO, ENOSPC, EACCES};
  for (int i = 0; i < 3; ++i) {
    CHECK(fail_at_every_step(open_and_get, EMPTY, errors[i]) > 40);
    CHECK(fail_at_every_step(open_and_get, DAMAGED, errors[i]) > 40);
    CHECK(fail_at_every_step(open_and_get, VALID, errors[i]) > 5);
    CHECK(fail_at_every_step(open_and_clear, VALID, errors[i]) > 5);
  }
}

// ----------------------------------------------------------------------------------------------------------
// Out of memory

static mlx_status_t ignore_item(void *user, const mlx_cache_item_t *item) {
  (void)user;
  return item->title ? NULL : mlx_error(MLX_INTERNAL, "damaged entry");
}

static mlx_status_t open_and_list(void) {
  mlx_cache_t *cache;
  MLX_TRY(mlx_cache_open(in_root("cache"), &cache));
  mlx_status_t status = mlx_cache_list(cache, ignore_item, NULL);
  mlx_cache_close(cache);
  return status;
}

static void exhaust_memory(operation_fn_t operation, int state) {
  for (long step = 1;; ++step) {
    prepare(state);
    memory.count = memory.live = 0;
    memory.target = step;
    mlx_memory_set_calls(&counting_memory);
    mlx_status_t status = operation();
    mlx_memory_set_calls(NULL);
    CHECK(!status || mlx_status_code(status) == MLX_OUT_OF_MEMORY);
    CHECK_INT(memory.live, 0);
    mlx_status_free(status);
    check_recovers();
    if (memory.count < step) return;
  }
}

TEST(cache_survives_a_failure_of_every_allocation) {
  exhaust_memory(open_and_get, EMPTY);
  exhaust_memory(open_and_get, DAMAGED);
  exhaust_memory(open_and_get, VALID);
  exhaust_memory(open_and_list, VALID);
  exhaust_memory(open_and_clear, VALID);
}

// ----------------------------------------------------------------------------------------------------------
// Concurrent processes

static void wait_for_file(const char *path) {
  for (int i = 0; i < 12000 && !mlx_is_file(path); ++i) usleep(5000);
  CHECK(mlx_is_file(path));
}

static pid_t fork_get(fill_options_t options) {
  pid_t pid = fork();
  if (pid) return pid;
  mlx_cache_t *cache;
  mlx_cache_entry_t entry = {0};
  mlx_status_t status = mlx_cache_open(in_root("cache"), &cache);
  if (!status) status = get(cache, KEY_A, &options, NULL, &entry);
  _exit(status ? 1 : !is_right(entry.folder) ? 2 : 0);
}

static void check_ends_well(pid_t pid) {
  int ended;
  waitpid(pid, &ended, 0);
  CHECK_INT(ended, 0);
}

TEST(ten_processes_fill_an_entry_once) {
  pid_t pids[10];
  mlx_cache_close(fresh_cache());
  for (int i = 0; i < 10; ++i) pids[i] = fork_get((fill_options_t){.sleep_ms = 300});
  for (int i = 0; i < 10; ++i) check_ends_well(pids[i]);
  CHECK_INT(fill_count(), 1);
}

TEST(waiting_process_takes_over_from_a_killed_creator) {
  pid_t pids[3];
  mlx_cache_close(fresh_cache());
  pid_t first = fork_get((fill_options_t){.sleep_ms = 60000, .flag = in_root("filling")});
  wait_for_file(in_root("filling"));
  for (int i = 0; i < 3; ++i) pids[i] = fork_get((fill_options_t){.sleep_ms = 10});
  usleep(100000);
  kill(first, SIGKILL);
  waitpid(first, NULL, 0);
  for (int i = 0; i < 3; ++i) check_ends_well(pids[i]);
  CHECK_INT(fill_count(), 2);
  CHECK_INT(names_in("cache/tmp"), 0);
  CHECK_OK(mlx_remove_tree(in_root("filling")));
}

static char reported[4096];
static void record_report(void *user, mlx_report_kind_t kind, const char *text) {
  (void)user;
  size_t length = strlen(reported);
  snprintf(reported + length, sizeof reported - length, "%s%s\n", kind == MLX_REPORT_NOTE ? "note: " : "",
           text);
  if (strstr(text, " ... ")) mlx_status_free(mlx_write_file(in_root("go"), "", 0));  // the holder may end
}

TEST(waiting_process_reports_the_holder) {
  mlx_cache_t *cache = fresh_cache();
  mlx_cache_entry_t entry;
  mlx_report_t report = {.emit = record_report};
  char expected[128];
  reported[0] = 0;
  pid_t pid = fork_get((fill_options_t){.waits = true, .flag = in_root("filling")});
  wait_for_file(in_root("filling"));
  CHECK_OK(get(cache, KEY_A, NULL, &report, &entry));
  CHECK(entry.hit && is_right(entry.folder));
  check_ends_well(pid);
  snprintf(expected, sizeof expected,
           "note: waiting for another mlxcel process (pid %ld) that creates the same tiny model\n",
           (long)pid);
  CHECK_CONTAINS(reported, expected);
  CHECK_CONTAINS(reported, "waiting for another mlxcel process: tiny model ... 0 s\n");
  CHECK_TEXT(reported + strlen(reported) - 2, "\n\n");  // the progress line was cleared
  mlx_cache_release(&entry);
  mlx_cache_close(cache);
  CHECK_OK(mlx_remove_tree(in_root("filling")));
  CHECK_OK(mlx_remove_tree(in_root("go")));
}

TEST(clear_respects_locks) {
  mlx_cache_t *cache = fresh_cache();
  mlx_cache_entry_t entry;
  mlx_cache_cleared_t cleared;
  pid_t pid = fork_get((fill_options_t){.waits = true, .flag = in_root("filling")});
  wait_for_file(in_root("filling"));
  CHECK_OK(mlx_cache_clear(cache, NULL, &cleared));
  CHECK_INT(cleared.in_use, 1);
  CHECK_OK(mlx_write_file(in_root("go"), "", 0));
  check_ends_well(pid);
  CHECK_INT(fill_count(), 1);
  CHECK_OK(mlx_cache_find(cache, "vmfb", KEY_A, &entry));
  CHECK(entry.folder);
  CHECK_OK(mlx_cache_clear(cache, NULL, &cleared));  // while the entry is held
  CHECK_INT(cleared.in_use, 1);
  CHECK_INT(cleared.removed, 0);
  CHECK(is_right(entry.folder));
  mlx_cache_release(&entry);
  CHECK_OK(mlx_cache_clear(cache, NULL, &cleared));
  CHECK_INT(cleared.in_use, 0);
  CHECK_INT(cleared.removed, 1);
  CHECK(cleared.bytes > 100);
  CHECK(!is_found(cache, KEY_A));
  mlx_cache_close(cache);
  CHECK_OK(mlx_remove_tree(in_root("filling")));
  CHECK_OK(mlx_remove_tree(in_root("go")));
}

TEST(clear_never_breaks_an_entry_in_use) {
  pid_t pids[4];
  mlx_cache_cleared_t cleared;
  mlx_cache_t *cache = fresh_cache();
  for (int i = 0; i < 4; ++i) {
    pids[i] = fork();
    if (pids[i]) continue;
    for (int k = 0; k < 60; ++k) {
      mlx_status_t status = open_and_get();
      usleep((useconds_t)(i * 700));  // otherwise the entry would always be in use
      if (!status) continue;
      fprintf(stderr, "  %s\n", mlx_status_message(status));
      _exit(1);
    }
    _exit(0);
  }
  size_t removed = 0;
  for (int running = 4; running;) {
    CHECK_OK(mlx_cache_clear(cache, NULL, &cleared));
    removed += cleared.removed;
    int ended;
    for (; running && waitpid(-1, &ended, WNOHANG) > 0; --running) CHECK_INT(ended, 0);
  }
  CHECK(removed > 3);
  mlx_cache_close(cache);
}

// ----------------------------------------------------------------------------------------------------------
// Damaged entries

static void overwrite(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text)) CHECK_FAIL("cannot write %s", path);
  close(fd);
}

static void flip_a_byte(void) { overwrite(entry_path("module.vmfb"), "T"); }
static void truncate_file(void) { CHECK(!truncate(entry_path("module.vmfb"), 3)); }
static void delete_file(void) { CHECK(!unlink(entry_path("notes.txt"))); }
static void garble_record(void) { overwrite(entry_path("entry.json"), "{\"version\": \"x"); }
static void empty_record(void) { CHECK(!truncate(entry_path("entry.json"), 0)); }
static void delete_record(void) { CHECK(!unlink(entry_path("entry.json"))); }
static void replace_folder_with_file(void) {
  CHECK_OK(mlx_remove_tree(entry_path("")));
  CHECK_OK(mlx_remove_tree(in_root("cache/vmfb/" KEY_A)));
  overwrite(in_root("cache/vmfb/" KEY_A), "not a folder");
}
static void replace_with_another_entry(void) {
  mlx_cache_t *cache = open_cache();
  check_get(cache, KEY_B, false);
  mlx_cache_close(cache);
  CHECK_OK(mlx_remove_tree(in_root("cache/vmfb/" KEY_A)));
  CHECK_OK(mlx_rename(in_root("cache/vmfb/" KEY_B), in_root("cache/vmfb/" KEY_A)));
}

TEST(corrupt_entry_is_created_again) {
  void (*const damages[])(void) = {flip_a_byte,
                                   truncate_file,
                                   delete_file,
                                   garble_record,
                                   empty_record,
                                   delete_record,
                                   replace_folder_with_file,
                                   replace_with_another_entry};
  for (size_t i = 0; i < sizeof damages / sizeof *damages; ++i) {
    mlx_cache_t *cache = fresh_cache();
    check_get(cache, KEY_A, false);
    CHECK(is_found(cache, KEY_A));
    usleep(20000);  // longer than the resolution of file times
    damages[i]();
    CHECK(!is_found(cache, KEY_A));
    check_get(cache, KEY_A, false);
    check_get(cache, KEY_A, true);
    CHECK_INT(names_in("cache/tmp"), 0);
    mlx_cache_close(cache);
  }
}

TEST(damaged_entry_is_replaced_even_in_use) {
  mlx_cache_t *cache = fresh_cache();
  mlx_cache_entry_t held;
  CHECK_OK(get(cache, KEY_A, NULL, NULL, &held));
  truncate_file();
  check_get(cache, KEY_A, false);
  CHECK(is_right(held.folder));
  mlx_cache_release(&held);
  mlx_cache_close(cache);
}

TEST(failed_fill_leaves_only_its_log) {
  mlx_cache_t *cache = fresh_cache();
  mlx_cache_entry_t entry;
  fill_options_t options = {.fail = true};
  char *text;
  CHECK_ERROR(get(cache, KEY_A, &options, NULL, &entry), MLX_TOOL_FAILED, "cache/logs/vmfb-" KEY_A ".log");
  CHECK(!entry.folder);
  mlx_cache_release(&entry);
  CHECK_INT(names_in("cache/tmp") + names_in("cache/vmfb"), 0);
  CHECK_OK(mlx_read_file(in_root("cache/logs/vmfb-" KEY_A ".log"), 100, &text, NULL));
  CHECK_TEXT(text, "the tool's output\n");
  mlx_free(text);
  check_get(cache, KEY_A, false);
  mlx_cache_close(cache);
}

static mlx_status_t fill_badly(void *user, const char *folder, const char *log_path) {
  char *path;
  (void)log_path;
  MLX_TRY(mlx_join_path(folder, user, &path));
  mlx_status_t status = strcmp(user, "folder") ? mlx_write_file(path, "", 0) : mlx_make_dirs(path, 0700);
  mlx_free(path);
  return status;
}

TEST(entry_contains_plain_files_only) {
  mlx_cache_t *cache = fresh_cache();
  mlx_cache_entry_t entry;
  mlx_cache_request_t request = {
      .kind = "vmfb", .key = KEY_A, .title = "bad", .fill = fill_badly, .user = "folder"};
  CHECK_ERROR(mlx_cache_get(cache, &request, NULL, &entry), MLX_INTERNAL, "must not be part");
  request.user = "entry.json";
  CHECK_ERROR(mlx_cache_get(cache, &request, NULL, &entry), MLX_INTERNAL, "must not be part");
  request.kind = "../vmfb";
  CHECK_ERROR(mlx_cache_get(cache, &request, NULL, &entry), MLX_INTERNAL, "not a kind");
  request.kind = "locks";
  CHECK_ERROR(mlx_cache_get(cache, &request, NULL, &entry), MLX_INTERNAL, "not a kind");
  request.kind = "vmfb";
  request.key = "abc";
  CHECK_ERROR(mlx_cache_get(cache, &request, NULL, &entry), MLX_INTERNAL, "not a cache key");
  mlx_cache_close(cache);
}

// ----------------------------------------------------------------------------------------------------------
// The cache folder

TEST(folder_is_chosen_in_the_documented_order) {
  mlx_cache_t *cache;
  char expected[128];
  setenv("MLXCEL_CACHE", in_root("one"), 1);
  setenv("XDG_CACHE_HOME", in_root("two"), 1);
  setenv("HOME", in_root("three"), 1);
  static const char *const parts[] = {"zero", "one", "two/mlxcel", "three/.cache/mlxcel"};
  for (int i = 0; i < 4; ++i) {
    if (i == 2) unsetenv("MLXCEL_CACHE");
    if (i == 3) setenv("XDG_CACHE_HOME", "relative/ignored", 1);
    CHECK_OK(mlx_cache_open(i ? NULL : in_root("zero"), &cache));
    snprintf(expected, sizeof expected, "%s/%s", root, parts[i]);
    CHECK_TEXT(mlx_cache_folder(cache), expected);
    struct stat info;
    CHECK(!stat(expected, &info));
    CHECK_INT(info.st_mode & 0777, 0700);
    mlx_cache_close(cache);
  }
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  mlx_status_t status = mlx_cache_open(NULL, &cache);
  CHECK_CONTAINS(mlx_status_hint_text(status), "MLXCEL_CACHE");
  CHECK_ERROR(status, MLX_NOT_FOUND, "HOME");
}

TEST(world_writable_cache_is_refused) {
  mlx_cache_t *cache = fresh_cache();
  mlx_cache_close(cache);
  static const int modes[] = {0777, 0770, 0702};
  for (int i = 0; i < 3; ++i) {
    CHECK(!chmod(in_root("cache"), (mode_t)modes[i]));
    mlx_status_t status = mlx_cache_open(in_root("cache"), &cache);
    CHECK_CONTAINS(mlx_status_hint_text(status), "chmod -R go-w");
    CHECK_ERROR(status, MLX_IO, "is writable by other users");
  }
  CHECK(!chmod(in_root("cache"), 0755));
  CHECK_OK(mlx_cache_open(in_root("cache"), &cache));
  mlx_cache_close(cache);
  if (geteuid() == 0) {  // only root can change the owner
    CHECK(!chown(in_root("cache"), 12345, 12345));
    CHECK_ERROR(mlx_cache_open(in_root("cache"), &cache), MLX_IO, "belongs to another user");
    CHECK(!chown(in_root("cache"), 0, 0));
  }
}

TEST(read_only_cache_finds_entries) {
  mlx_cache_t *cache = fresh_cache();
  check_get(cache, KEY_A, false);
  mlx_cache_close(cache);
  CHECK_OK(mlx_remove_tree(in_root("cache/digests")));
  bool is_root = geteuid() == 0;
  const char *folders[] = {"",          "cache",     "cache/vmfb", ("cache/vmfb/" KEY_A), "cache/locks",
                           "cache/tmp", "cache/logs"};
  for (size_t i = 0; i < sizeof folders / sizeof *folders; ++i)
    CHECK(!chmod(in_root(folders[i]), is_root ? 0755 : 0555));
  pid_t pid = fork();
  if (!pid) {
    mlx_cache_entry_t entry = {0};
    if (is_root && (setgid(65534) || setuid(65534))) _exit(9);
    mlx_status_t status = mlx_cache_open(in_root("cache"), &cache);
    if (!status) status = get(cache, KEY_A, NULL, NULL, &entry);
    if (status || !entry.hit || !is_right(entry.folder)) _exit(1);
    status = get(cache, KEY_B, NULL, NULL, &entry);
    _exit(mlx_status_code(status) != MLX_IO || !*mlx_status_hint_text(status) ? 2 : 0);
  }
  check_ends_well(pid);
  for (size_t i = 0; i < sizeof folders / sizeof *folders; ++i) CHECK(!chmod(in_root(folders[i]), 0700));
}

static mlx_status_t describe_item(void *user, const mlx_cache_item_t *item) {
  char *text = user;
  snprintf(text + strlen(text), 1000 - strlen(text), "%s %.4s %s %s %s\n", item->kind, item->key,
           item->title ? item->title : "(damaged)", item->bytes > 10 ? "bytes" : "none",
           item->created > 1600000000 ? "dated" : "-");
  return NULL;
}

static mlx_status_t stop_at_item(void *user, const mlx_cache_item_t *item) {
  (void)user, (void)item;
  return mlx_error(MLX_CANCELLED, "enough");
}

TEST(list_shows_every_entry_including_damaged_ones) {
  mlx_cache_t *cache = fresh_cache();
  char text[1000] = "";
  check_get(cache, KEY_A, false);
  check_get(cache, KEY_B, false);
  overwrite(in_root("cache/vmfb/" KEY_B "/entry.json"), "?");
  overwrite(in_root("cache/vmfb/stray"), "?");
  CHECK_OK(mlx_cache_list(cache, describe_item, text));
  CHECK_TEXT(text, "vmfb 0011 tiny model bytes dated\nvmfb ffee (damaged) bytes -\n");
  CHECK_ERROR(mlx_cache_list(cache, stop_at_item, NULL), MLX_CANCELLED, "enough");
  mlx_cache_close(cache);
}

// ----------------------------------------------------------------------------------------------------------
// Cached digests

static void check_digest(mlx_cache_t *cache, const char *path, bool expect_right) {
  char right[MLX_DIGEST_HEX], cached[MLX_DIGEST_HEX];
  CHECK_OK(mlx_digest_file(path, NULL, right));
  CHECK_OK(mlx_cache_digest_file(cache, path, NULL, cached));
  CHECK_INT(!strcmp(right, cached), expect_right);
}

// Makes every cached digest wrong, so that a test can see whether it is used.
static mlx_status_t falsify(void *user, const char *name) {
  char *path, *text, *digest;
  MLX_TRY(mlx_join_path(user, name, &path));
  MLX_TRY(mlx_read_file(path, 10000, &text, NULL));
  digest = strstr(text, "\"digest\": \"");
  memset(digest + 11, 'a', 64);
  MLX_TRY(mlx_write_file(path, text, strlen(text)));
  mlx_free(text);
  mlx_free(path);
  return NULL;
}

static void falsify_cached_digests(void) {
  char folder[128];
  snprintf(folder, sizeof folder, "%s", in_root("cache/digests"));
  CHECK_OK(mlx_list_dir(folder, falsify, folder));
}

TEST(digest_is_cached_until_the_file_changes) {
  mlx_cache_t *cache = fresh_cache();
  char path[128];
  snprintf(path, sizeof path, "%s", in_root("compiler.so"));
  overwrite(path, "first");
  check_digest(cache, path, true);
  CHECK_INT(names_in("cache/digests"), 0);  // too young: a write at the same time would not change the stamp
  usleep(2200000);
  check_digest(cache, path, true);
  CHECK_INT(names_in("cache/digests"), 1);
  falsify_cached_digests();
  check_digest(cache, path, false);  // the cached digest was used
  CHECK(!symlink(path, in_root("link.so")));
  check_digest(cache, in_root("link.so"), false);  // a link to the same file

  struct stat info;
  CHECK(!stat(path, &info));
  overwrite(path, "again");  // same size, and the old modification time is restored
  struct timespec times[2] = {info.st_atim, info.st_mtim};
  CHECK(!utimensat(AT_FDCWD, path, times, 0));
  check_digest(cache, path, true);
  overwrite(in_root("other.so"), "moved");
  CHECK(!rename(in_root("other.so"), path));
  check_digest(cache, path, true);

  CHECK(!unlink(path));
  char hex[MLX_DIGEST_HEX];
  CHECK_ERROR(mlx_cache_digest_file(cache, path, NULL, hex), MLX_NOT_FOUND, "compiler.so");
  mlx_cache_close(cache);
}

TEST(wrong_cached_digest_is_never_a_hit) {
  mlx_cache_t *cache = fresh_cache();
  check_get(cache, KEY_A, false);
  CHECK_INT(names_in("cache/digests"), 2);
  char path[128];
  snprintf(path, sizeof path, "%s", in_root("cache/digests"));
  falsify_cached_digests();
  CHECK(!is_found(cache, KEY_A));  // a cached digest that contradicts the record is a miss
  check_get(cache, KEY_A, false);
  CHECK_OK(mlx_remove_tree(path));
  CHECK(is_found(cache, KEY_A));
  mlx_cache_close(cache);
}

TEST(record_parser_names_the_invalid_field) {
  static const struct {
    const char *text, *message;
  } cases[] = {
      {"", "not valid JSON"},
      {"[]", "must be an object"},
      {"{}", "'version'"},
      {"{\"version\": 3}", "'version'"},
      {"{\"version\": 2, \"id\": \"a\", \"title\": 3}", "'title'"},
      {"{\"version\": 2, \"id\": \"a\", \"title\": \"t\", \"created\": 1, \"files\": {}}", "'files'"},
      {"{\"version\": 2, \"id\": \"a\", \"title\": \"t\", \"created\": 1, \"files\": [1]}", "'files'"},
      {"{\"version\": 2, \"id\": \"a\", \"title\": \"t\", \"created\": 1, \"files\": [{\"name\": \"../x\"}]}",
       "'name'"},
      {"{\"version\": 2, \"id\": \"a\", \"title\": \"t\", \"created\": 1, \"files\": [{\"name\": \"x\", "
       "\"size\": -1}]}",
       "'size'"},
      {"{\"version\": 2, \"id\": \"a\", \"title\": \"t\", \"created\": 1, \"files\": [{\"name\": \"x\", "
       "\"size\": 1, \"digest\": \"00\"}]}",
       "'digest'"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    mlx_entry_record_t record;
    CHECK_ERROR(mlx_record_parse("entry.json", cases[i].text, strlen(cases[i].text), &record),
                MLX_INVALID_INPUT, cases[i].message);
  }
}

int main(int argc, char **argv) {
  const char *base = getenv("TMPDIR");
  char made[64], *real = NULL;
  snprintf(made, sizeof made, "%s/mlxcel-cache-XXXXXX", base && strlen(base) < 30 ? base : "/tmp");
  if (!mkdtemp(made) || !(real = realpath(made, NULL)) || strlen(real) >= sizeof root) return 1;
  strcpy(root, real);
  break_at(0, 0, false);
  free(real);
  static const check_case_t cases[] = {
      CASE(cache_survives_kill_at_every_step),
      CASE(cache_survives_kill_at_random_moments),
      CASE(cache_survives_a_failure_of_every_file_call),
      CASE(cache_survives_a_failure_of_every_allocation),
      CASE(ten_processes_fill_an_entry_once),
      CASE(waiting_process_takes_over_from_a_killed_creator),
      CASE(waiting_process_reports_the_holder),
      CASE(clear_respects_locks),
      CASE(clear_never_breaks_an_entry_in_use),
      CASE(corrupt_entry_is_created_again),
      CASE(damaged_entry_is_replaced_even_in_use),
      CASE(failed_fill_leaves_only_its_log),
      CASE(entry_contains_plain_files_only),
      CASE(folder_is_chosen_in_the_documented_order),
      CASE(world_writable_cache_is_refused),
      CASE(read_only_cache_finds_entries),
      CASE(list_shows_every_entry_including_damaged_ones),
      CASE(digest_is_cached_until_the_file_changes),
      CASE(wrong_cached_digest_is_never_a_hit),
      CASE(record_parser_names_the_invalid_field),
  };
  int failed = check_run(cases, sizeof cases / sizeof *cases, argc, argv);
  mlx_status_free(mlx_remove_tree(root));
  return failed;
}
