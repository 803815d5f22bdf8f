// sign, trust add, keygen and pull are killed at every file call. The old or the new result must be there,
// and the next run must leave no temporary file.
#include "base/leftover.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "artifact/bundle.h"
#include "artifact/sign.h"
#include "base/memory.h"
#include "cache/cache.h"
#include "tests/support/breaking.h"
#include "tests/support/command.h"
#include "tests/support/folder.h"
#include "tests/support/server.h"
#include "tests/support/small_manifest.h"
#include "transfer/pull_hub.h"
#include "transfer/pull_url.h"

#define FIXTURES MLXCEL_SOURCE_DIR "/tests/fixtures/minisign/"
#define MAX_CALLS 400

static void write_text(const char *name, const char *text) {
  CHECK_OK(mlx_write_file(in_folder(name), text, strlen(text)));
}

// Writes the bundle m.mlxb and the same as the single file one.mlxb.
static void write_bundles(void) {
  mlx_manifest_t manifest = small_manifest();
  manifest.file_count = 3;
  static const char *const files[][2] = {
      {MLX_BUNDLE_VMFB, "code"}, {MLX_BUNDLE_WEIGHTS, "weights"}, {MLX_BUNDLE_TOKENIZER, "{}"}};
  CHECK_OK(mlx_make_dirs(in_folder("web/m.mlxb"), 0755));
  for (size_t i = 0; i < 3; ++i) {
    char path[64], *json;
    snprintf(path, sizeof path, "web/m.mlxb/%s", files[i][0]);
    write_text(path, files[i][1]);
    mlx_bundle_file_t *file = &manifest.files[i];
    snprintf(file->name, sizeof file->name, "%s", files[i][0]);
    file->size = (int64_t)strlen(files[i][1]);
    CHECK_OK(mlx_digest_file(in_folder(path), NULL, file->sha256));
    if (i < 2) continue;
    CHECK_OK(mlx_manifest_write(&manifest, &json, NULL));
    write_text("web/m.mlxb/manifest.json", json);
    mlx_free(json);
  }
  command_shell(folder,
                "tar cf web/one.mlxb -C web/m.mlxb manifest.json model.vmfb tokenizer.json weights.irpa");
}

static server_t server;

static void begin(void) {
  strcpy(folder, "/tmp/mlxcel-leftover-XXXXXX");
  CHECK(mkdtemp(folder));
  plain_environment();
  setenv("HOME", folder, 1);
  setenv("MLXCEL_CACHE", in_folder("cache"), 1);
  setenv("MLXCEL_TRUSTED", in_folder("trusted"), 1);
  setenv("SOURCE_DATE_EPOCH", "1700000000", 1);
  write_bundles();
}

static void clean_up(void) { CHECK_OK(mlx_remove_tree(folder)); }

// ----------------------------------------------------------------------------------------------------------
// The operations

static mlx_status_t sign(const char *name, const char *comment) {
  mlx_secret_key_t key;
  char *path = NULL;
  mlx_status_t status = mlx_secret_key_load(FIXTURES "plain.key", NULL, NULL, &key);
  const mlx_sign_options_t options = {.key = &key, .trusted_comment = comment};
  if (!status) status = mlx_sign(in_folder(name), &options, &path);
  mlx_free(path);
  return status;
}

static mlx_status_t verify(const char *name) {
  mlx_public_key_t key;
  mlx_signer_t signer;
  MLX_TRY(mlx_public_key_load(FIXTURES "plain.pub", &key));
  const mlx_verify_options_t options = {.key = &key, .key_name = "plain.pub"};
  return mlx_verify(in_folder(name), &options, &signer);
}

static mlx_status_t sign_one(void) { return sign("web/one.mlxb", "a second signature with another length"); }
static mlx_status_t sign_folder(void) { return sign("web/m.mlxb", "second"); }
static mlx_status_t sign_file(void) { return sign("web/m.mlxb/model.vmfb", "second"); }
static mlx_status_t add_key(void) {
  mlx_public_key_t key;
  return mlx_trust_add(FIXTURES "plain.pub", true, &key);
}
static mlx_status_t make_pair(void) {
  mlx_public_key_t key;
  return mlx_key_pair_make(in_folder("pair"), NULL, &mlx_key_cost_default, true, &key);
}

static mlx_status_t pull(const char *name, const char *output) {
  mlx_pull_options_t options;
  char url[128], *path = NULL;
  mlx_pull_options_initialize(&options);
  quick_http(&options.http);
  options.output = in_folder(output);
  snprintf(url, sizeof url, "%s/plain/%s", server.url, name);
  mlx_status_t status = mlx_pull_url(url, &options, &path);
  mlx_free(path);
  return status;
}

static mlx_status_t pull_folder(void) { return pull("m.mlxb", "out.mlxb"); }
static mlx_status_t pull_file(void) { return pull("one.mlxb", "out.mlxb"); }

static mlx_status_t pull_hub(const char *output) {
  mlx_pull_options_t options;
  char *path = NULL;
  mlx_pull_options_initialize(&options);
  quick_http(&options.http);
  options.endpoint = server.url;
  options.output = output;
  mlx_status_t status = mlx_pull_hub("hf:acme/tiny", &options, &path);
  mlx_free(path);
  return status;
}

static mlx_status_t pull_model(void) { return pull_hub(NULL); }
static mlx_status_t pull_model_to_folder(void) { return pull_hub(in_folder("out")); }

// ----------------------------------------------------------------------------------------------------------
// The sweep

static void check_no_temporary_files(long call) {
  command_t run;
  command_start(&run, (const char *const[]){"/usr/bin/find", folder, "-name", "*.tmp.*", "-o", "-name",
                                            "*.part*", NULL});
  command_wait(&run);
  if (run.out[0]) CHECK_FAIL("after a kill at call %ld: left %s", call, run.out);
  command_free(&run);
}

typedef struct killed {
  mlx_status_t (*run)(void);
  void (*check)(void);  // after each kill
  void (*reset)(void);  // before each run; may be NULL
} killed_t;

// Returns false if the operation ended before call |call|.
static bool kill_at(const killed_t *killed, long call, bool halfway) {
  const pid_t pid = fork();
  if (!pid) {
    break_at(call, 0, halfway);
    mlx_status_t status = killed->run();
    if (status) fprintf(stderr, "%s\n", mlx_status_message(status));
    _exit(status ? 1 : 0);
  }
  int how = 0;
  CHECK(waitpid(pid, &how, 0) == pid);
  CHECK(WIFSIGNALED(how) || WEXITSTATUS(how) == 0);
  return WIFSIGNALED(how);
}

// Kills the operation at every file call, before it and in its middle. Then runs it again.
static void sweep(const killed_t *killed) {
  int kills = 0;
  for (int halfway = 0; halfway < 2; ++halfway) {
    for (long call = 1; call < MAX_CALLS; ++call) {
      if (killed->reset) killed->reset();
      if (!kill_at(killed, call, halfway)) break;
      ++kills;
      if (killed->check) killed->check();
      mlx_status_t status = killed->run();
      if (mlx_status_code(status) == MLX_USAGE && strstr(mlx_status_message(status), "already exists")) {
        mlx_status_free(status);  // the kill came after the last step of a pull
      } else {
        CHECK_OK(status);
      }
      if (killed->check) killed->check();
      check_no_temporary_files(call);
    }
  }
  CHECK(kills > 4);
}

static void check_one(void) { CHECK_OK(verify("web/one.mlxb")); }
static void check_folder(void) { CHECK_OK(verify("web/m.mlxb")); }

TEST(signing_a_single_file_again_survives_a_kill) {
  begin();
  CHECK_OK(sign("web/one.mlxb", "first"));
  sweep(&(killed_t){.run = sign_one, .check = check_one});
  CHECK(!chmod(in_folder("web/one.mlxb"), 0640));
  CHECK(!rename(in_folder("web/one.mlxb"), in_folder("target")) &&
        !symlink("../target", in_folder("web/one.mlxb")));
  sweep(&(killed_t){.run = sign_one, .check = check_one});
  struct stat info;
  CHECK(!lstat(in_folder("web/one.mlxb"), &info) && S_ISLNK(info.st_mode));  // the link stays
  CHECK(!stat(in_folder("target"), &info));
  CHECK_INT(info.st_mode & 0777, 0640);  // and so do the permissions
  clean_up();
}

TEST(killed_sign_leaves_nothing_after_the_next_one) {
  begin();
  CHECK_OK(sign("web/m.mlxb", "first"));
  sweep(&(killed_t){.run = sign_folder, .check = check_folder});
  sweep(&(killed_t){.run = sign_file});
  clean_up();
}

TEST(killed_trust_and_keygen_leave_nothing_after_the_next_one) {
  begin();
  sweep(&(killed_t){.run = add_key});
  sweep(&(killed_t){.run = make_pair});
  clean_up();
}

static void remove_output(void) {
  CHECK_OK(mlx_remove_tree(in_folder("out.mlxb")));
  CHECK_OK(mlx_remove_tree(in_folder("out")));
  CHECK_OK(mlx_remove_tree(in_folder("cache")));
}

// A pulled bundle is complete or not there, and contains no other file.
static void check_output(void) {
  if (!mlx_is_dir(in_folder("out.mlxb")) && !mlx_is_file(in_folder("out.mlxb"))) return;
  CHECK_OK(verify("out.mlxb"));
  if (mlx_is_dir(in_folder("out.mlxb"))) command_shell(folder, "diff -r web/m.mlxb out.mlxb");
}

static void check_model(void) {
  if (mlx_is_dir(in_folder("out"))) command_shell(folder, "diff -r web/acme/tiny out");
}

TEST(killed_pull_leaves_nothing_after_the_next_one) {
  begin();
  CHECK_OK(sign("web/m.mlxb", "first"));
  CHECK_OK(sign("web/one.mlxb", "first"));
  command_shell(folder,
                "mkdir -p web/acme/tiny; cd web/acme/tiny; head -c 2000 /dev/urandom > model.safetensors; "
                "echo '{}' > config.json; echo '{}' > tokenizer.json");
  char web[128];
  snprintf(web, sizeof web, "%s/web", folder);
  server_start(&server,
               (const char *const[]){"python3", MLXCEL_SOURCE_DIR "/tests/support/hub_server.py", web, NULL},
               "http");
  sweep(&(killed_t){.run = pull_folder, .check = check_output, .reset = remove_output});
  sweep(&(killed_t){.run = pull_file, .check = check_output, .reset = remove_output});
  sweep(&(killed_t){.run = pull_model_to_folder, .check = check_model, .reset = remove_output});
  sweep(&(killed_t){.run = pull_model, .reset = remove_output});
  server_stop(&server);
  clean_up();
}

TEST(leftovers_of_running_processes_stay) {
  begin();
  char name[64];
  snprintf(name, sizeof name, "x.tmp.%ld.18e837ca-c", (long)getpid());
  write_text(name, "in use");
  write_text("x.tmp.999999999.18e837ca-c", "");
  write_text("x.tmp.999999999.18e837ca-c.tmp.999999999.18e837cb-d", "");
  write_text("y.tmp.999999999.18e837ca-c", "");
  write_text("x.tmp.notes", "mine");
  mlx_leftover_remove(in_folder("x"));
  CHECK(mlx_is_file(in_folder(name)) && mlx_is_file(in_folder("x.tmp.notes")));
  CHECK(!mlx_is_file(in_folder("x.tmp.999999999.18e837ca-c")));
  CHECK(!mlx_is_file(in_folder("x.tmp.999999999.18e837ca-c.tmp.999999999.18e837cb-d")));
  CHECK(mlx_is_file(in_folder("y.tmp.999999999.18e837ca-c")));
  mlx_leftover_remove_in(folder);
  CHECK(!mlx_is_file(in_folder("y.tmp.999999999.18e837ca-c")) && mlx_is_file(in_folder(name)));
  clean_up();
}

// Files that a command writes at the user's request, and digests that any command writes to the cache.
TEST(outputs_and_cached_digests_leave_nothing_after_the_next_write) {
  begin();
  command_t run;
  mlx_cache_t *cache;
  char hex[MLX_DIGEST_HEX];
  CHECK_OK(mlx_make_dirs(in_folder("cache/digests"), 0700));
  write_text("cache/digests/5ea7.json.tmp.999999999.18e837ca-c", "{");
  write_text("out.mlir.tmp.999999999.18e837ca-c", "module");
  RUN(&run, "compile", MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama", "--emit", "stablehlo", "-o",
      in_folder("out.mlir"));
  command_done(&run);
  CHECK(!mlx_is_file(in_folder("out.mlir.tmp.999999999.18e837ca-c")));
  CHECK_OK(mlx_cache_open(in_folder("cache"), &cache));
  CHECK_OK(mlx_cache_digest_file(cache, MLXCEL_BINARY, NULL, hex));
  mlx_cache_close(cache);
  CHECK(!mlx_is_file(in_folder("cache/digests/5ea7.json.tmp.999999999.18e837ca-c")));
  clean_up();
}

#define KEY "00000000000000000000000000000000000000000000000000000000000000aa"
#define OTHER_KEY "00000000000000000000000000000000000000000000000000000000000000bb"

// Creates a folder in tmp/ as a process that makes an entry does. |held|: with its lock, as a live process.
static int make_unfinished(const char *id, bool held) {
  char path[256];
  snprintf(path, sizeof path, "cache/tmp/%s.tmp.999999999.18e837ca-c", id);
  CHECK_OK(mlx_make_dirs(in_folder(path), 0700));
  strcat(path, "/weights.irpa");
  write_text(path, "half of the weights");
  snprintf(path, sizeof path, "cache/locks/%s", id);
  int fd = open(in_folder(path), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  CHECK(fd >= 0 && !flock(fd, LOCK_EX));
  if (held) return fd;
  close(fd);
  return -1;
}

TEST(every_command_removes_unfinished_entries_that_no_process_makes) {
  begin();
  command_t run;
  CHECK_OK(mlx_make_dirs(in_folder("cache/tmp"), 0700));
  CHECK_OK(mlx_make_dirs(in_folder("cache/locks"), 0700));
  CHECK_OK(mlx_make_dirs(in_folder("cache/tmp/of another program"), 0700));
  make_unfinished("weights-" KEY, false);
  const int lock = make_unfinished("weights-" OTHER_KEY, true);
  RUN(&run, "cache", "list");
  command_done(&run);
  CHECK(!mlx_is_dir(in_folder("cache/tmp/weights-" KEY ".tmp.999999999.18e837ca-c")));
  CHECK(mlx_is_dir(in_folder("cache/tmp/weights-" OTHER_KEY ".tmp.999999999.18e837ca-c")));
  CHECK(mlx_is_dir(in_folder("cache/tmp/of another program")));
  close(lock);
  RUN(&run, "cache", "list");
  command_done(&run);
  CHECK(!mlx_is_dir(in_folder("cache/tmp/weights-" OTHER_KEY ".tmp.999999999.18e837ca-c")));
  clean_up();
}

TEST_MAIN(CASE(signing_a_single_file_again_survives_a_kill),
          CASE(every_command_removes_unfinished_entries_that_no_process_makes),
          CASE(killed_sign_leaves_nothing_after_the_next_one),
          CASE(killed_trust_and_keygen_leave_nothing_after_the_next_one),
          CASE(killed_pull_leaves_nothing_after_the_next_one), CASE(leftovers_of_running_processes_stay),
          CASE(outputs_and_cached_digests_leave_nothing_after_the_next_write))
