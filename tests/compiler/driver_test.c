// The driver with misbehaving compilers. Each is a shell script that the test writes.
#include "compiler/driver.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "tests/support/check.h"
#include "tests/support/faults.h"

static char root[64];

static const char *in_root(const char *name) {
  static char paths[8][256];
  static int next;
  char *path = paths[next++ % 8];
  snprintf(path, sizeof paths[0], "%s/%s", root, name);
  return path;
}

// Writes an executable script. It answers --version like the pinned compiler, and otherwise runs |body|, in
// which $out is the output path.
static const char *write_tool(const char *name, const char *body) {
  char text[2048];
  const char *path = in_root(name);
  int length = snprintf(text, sizeof text,
                        "#!/bin/sh\nif [ \"$1\" = --version ]; then echo queried >> %s/queried; echo 'IREE "
                        "(https://iree.dev):'; "
                        "echo '  IREE compiler version 3.13.0 @ abc'; exit; fi\n"
                        "while [ \"$1\" != -o ]; do shift; done; out=$2\n%s\n",
                        root, body);
  CHECK_OK(mlx_write_file(path, text, (size_t)length));
  CHECK(!chmod(path, 0755));
  return path;
}

static mlx_iree_compiler_t tool(const char *body) {
  mlx_iree_compiler_t compiler = {0};
  const char *path = write_tool("tool", body);
  CHECK_OK(mlx_copy_text(path, strlen(path), &compiler.path));
  CHECK_OK(mlx_copy_text("3.13.0 @ abc", 12, &compiler.version));
  memset(compiler.digest, '0', MLX_DIGEST_HEX - 1);
  return compiler;
}

static const char *const flags[] = {"--one", "--two=it's $HOME"};

static mlx_iree_job_t job(void) {
  static char in[128], out[128], log[128];
  snprintf(in, sizeof in, "%s/in.mlir", root);
  snprintf(out, sizeof out, "%s/out.vmfb", root);
  snprintf(log, sizeof log, "%s/compile.log", root);
  CHECK_OK(mlx_write_file(in, "module\n", 7));
  return (mlx_iree_job_t){
      .name = "tiny",
      .mlir_path = in,
      .out_path = out,
      .flags = flags,
      .flag_count = 2,
      .log_path = log,
      .time_limit_seconds = 30,
  };
}

static mlx_status_t compile_with(const char *body, double limit, mlx_process_result_t *result) {
  mlx_iree_compiler_t compiler = tool(body);
  mlx_iree_job_t one = job();
  one.time_limit_seconds = limit;
  mlx_status_t status = mlx_iree_compile(&compiler, &one, NULL, result);
  mlx_iree_compiler_release(&compiler);
  return status;
}

static void check_file_is(const char *name, const char *expected) {
  char *text;
  CHECK_OK(mlx_read_file(in_root(name), 1 << 20, &text, NULL));
  CHECK_TEXT(text, expected);
  mlx_free(text);
}

static void command_line(char *out_line, size_t size) {
  snprintf(out_line, size,
           "%s/tool --one '--two=it'\\''s $HOME' --verify=false - -o %s/out.vmfb < %s/in.mlir", root, root,
           root);
}

// ----------------------------------------------------------------------------------------------------------
// Compiling

static char reported[2048];
static void collect(void *user, mlx_report_kind_t kind, const char *text) {
  (void)user, (void)kind;
  snprintf(reported + strlen(reported), sizeof reported - strlen(reported), "%s\n", text);
}

static int count_lines(const char *text, const char *start) {
  int count = 0;
  for (; *text; text += strcspn(text, "\n"), text += *text == '\n')
    count += !strncmp(text, start, strlen(start));
  return count;
}

TEST(compile_writes_output_log_and_progress) {
  char line[512], expected[1024];
  mlx_process_result_t result;
  mlx_report_t report = {.emit = collect};
  mlx_iree_compiler_t compiler = tool("echo to stdout; echo warning >&2; cat; sleep 0.4; echo vmfb > $out");
  mlx_iree_job_t one = job();
  one.object_folder = "/objects here";
  reported[0] = 0;
  CHECK_OK(mlx_iree_compile(&compiler, &one, &report, &result));
  check_file_is("out.vmfb", "vmfb\n");
  CHECK(result.elapsed_seconds >= 0.4 && result.peak_bytes);
  CHECK(count_lines(reported, "compiling tiny: ") >= 2);
  CHECK_TEXT(reported + strlen(reported) - 2, "\n\n");
  snprintf(line, sizeof line,
           "%s/tool --one '--two=it'\\''s $HOME' '--iree-hal-executable-object-search-path=/objects here' ",
           root);
  snprintf(expected, sizeof expected,
           "%s--verify=false - -o %s/out.vmfb < %s/in.mlir\nto stdout\nwarning\nmodule\n", line, root, root);
  check_file_is("compile.log", expected);
  mlx_iree_compiler_release(&compiler);
}

TEST(halves_of_a_compilation_stop_and_start_at_the_same_phase) {
  char line[1024];
  mlx_iree_compiler_t compiler = tool("echo half > $out");
  mlx_iree_job_t half = job();
  half.half = MLX_IREE_FIRST_HALF;
  CHECK_OK(mlx_iree_compile(&compiler, &half, NULL, NULL));
  snprintf(line, sizeof line,
           "%s/tool --one '--two=it'\\''s $HOME' --verify=false --compile-to=executable-targets "
           "--emit-mlir-bytecode - -o %s/out.vmfb < %s/in.mlir\n",
           root, root, root);
  check_file_is("compile.log", line);
  half.half = MLX_IREE_SECOND_HALF;
  CHECK_OK(mlx_iree_compile(&compiler, &half, NULL, NULL));
  snprintf(line, sizeof line,
           "%s/tool --one '--two=it'\\''s $HOME' --verify=false --compile-from=executable-targets - -o "
           "%s/out.vmfb < %s/in.mlir\n",
           root, root, root);
  check_file_is("compile.log", line);
  mlx_iree_compiler_release(&compiler);
}

TEST(cancelled_compiler_is_ended) {
  const atomic_bool cancelled = true;
  mlx_process_result_t result;
  mlx_iree_compiler_t compiler = tool("sleep 60");
  mlx_iree_job_t one = job();
  one.cancelled = &cancelled;
  CHECK_ERROR(mlx_iree_compile(&compiler, &one, NULL, &result), MLX_TOOL_FAILED, "compiling tiny");
  CHECK(result.cancelled && result.elapsed_seconds < 30);
  mlx_iree_compiler_release(&compiler);
}

TEST(error_quotes_the_first_error_line_and_names_the_log) {
  mlx_status_t status = compile_with(
      "echo starting; echo; printf 'in.mlir:3:1: \\033[31merror: bad op\\nin.mlir:4:1: error: worse\\n' >&2; "
      "exit 1",
      30, NULL);
  CHECK_CONTAINS(mlx_status_message(status), "in.mlir:3:1:  [31merror: bad op (full output: ");
  CHECK_CONTAINS(mlx_status_message(status), in_root("compile.log"));
  CHECK_CONTAINS(mlx_status_hint_text(status), "run the command in the first line of");
  CHECK_ERROR(status, MLX_TOOL_FAILED, "exit status 1");
  status = compile_with("echo; echo '  no such word here'; echo more; exit 1", 30, NULL);
  CHECK_ERROR(status, MLX_TOOL_FAILED, "exit status 1: no such word here (full output: ");
  status = compile_with("head -c 100000 /dev/zero | tr '\\0' e; exit 1", 30, NULL);
  CHECK(strlen(mlx_status_message(status)) < 800);
  CHECK_ERROR(status, MLX_TOOL_FAILED, "eeee... (full output: ");
}

TEST(error_reports_that_the_compiler_printed_nothing) {
  char line[512];
  mlx_status_t status = compile_with("exit 3", 30, NULL);
  command_line(line, sizeof line);
  CHECK_CONTAINS(mlx_status_message(status), "printed nothing and ended with exit status 3");
  CHECK_CONTAINS(mlx_status_message(status), line);
  CHECK_ERROR(status, MLX_TOOL_FAILED, in_root("compile.log"));
}

TEST(error_names_the_signal_and_hints_at_memory) {
  mlx_status_t status = compile_with("kill -KILL $$", 30, NULL);
  CHECK_CONTAINS(mlx_status_hint_text(status), "memory");
  CHECK_ERROR(status, MLX_TOOL_FAILED, "printed nothing and ended with signal 9 (Killed)");
  status = compile_with("echo 'PLEASE submit a bug report'; kill -ABRT $$", 30, NULL);
  CHECK_ERROR(status, MLX_TOOL_FAILED, "signal 6 (Aborted): PLEASE submit a bug report");
}

// A compiler that is ended before its child has written was too slow, as on a busy machine: it gets twice
// the time.
TEST(hanging_compiler_is_killed_with_its_children) {
  struct stat before = {0}, after = {0};
  for (double limit = 0.4; !before.st_size; limit *= 2) {
    CHECK(limit < 100);
    mlx_process_result_t result;
    mlx_status_t status =
        compile_with("echo working; (while :; do echo x >> $out.grandchild; sleep 0.05; done) & sleep 1000",
                     limit, &result);
    CHECK(result.timed_out && result.elapsed_seconds >= limit);
    CHECK_CONTAINS(mlx_status_hint_text(status), "MLXCEL_COMPILE_TIMEOUT");
    CHECK_ERROR(status, MLX_TIMEOUT, "time limit");
    stat(in_root("out.vmfb.grandchild"), &before);
  }
  usleep(500000);
  CHECK(!stat(in_root("out.vmfb.grandchild"), &after));
  CHECK_INT(after.st_size, before.st_size);
}

TEST(exit_status_0_without_output_file_is_a_failure) {
  CHECK_OK(compile_with("echo old > $out", 30, NULL));
  CHECK_ERROR(compile_with("echo fine", 30, NULL), MLX_TOOL_FAILED,
              "did not write");  // the old file does not count
  CHECK_ERROR(compile_with(": > $out", 30, NULL), MLX_TOOL_FAILED, "left an empty");
}

TEST(unknown_option_hints_at_the_pinned_version) {
  mlx_status_t status =
      compile_with("echo \"iree-compile: Unknown command line argument '--two'.\" >&2; exit 1", 30, NULL);
  CHECK_CONTAINS(mlx_status_hint_text(status), "needs iree-compile 3.13.0");
  CHECK_ERROR(status, MLX_TOOL_FAILED, "Unknown command line argument");
}

TEST(time_limit_is_read_from_the_environment) {
  setenv("MLXCEL_COMPILE_TIMEOUT", "0.3", 1);
  CHECK_ERROR(compile_with("exec sleep 1000", 0, NULL), MLX_TIMEOUT, "printed nothing");
  setenv("MLXCEL_COMPILE_TIMEOUT", "soon", 1);
  CHECK_ERROR(compile_with("exec sleep 1000", 0, NULL), MLX_USAGE, "soon");
  CHECK_OK(compile_with("echo x > $out", 30, NULL));
  unsetenv("MLXCEL_COMPILE_TIMEOUT");
  CHECK_OK(compile_with("echo x > $out", 0, NULL));
}

TEST(every_failing_allocation_is_reported_without_leaks) {
  mlx_cache_t *cache;
  mlx_iree_compiler_t compiler = tool("echo x > $out"), found;
  mlx_iree_job_t one = job();
  write_tool("libIREECompiler.so", "");
  CHECK_OK(mlx_cache_open(in_root("cache"), &cache));
  memory.count = 0;
  for (long step = 1; memory.count >= step - 1; ++step) {
    CHECK_OK(mlx_remove_tree(in_root("cache/compiler")));
    memory.count = memory.live = 0;
    memory.target = step;
    mlx_memory_set_calls(&counting_memory);
    mlx_status_t status = mlx_iree_compiler_find(cache, compiler.path, NULL, &found);
    if (!status) status = mlx_iree_compile(&found, &one, NULL, NULL);
    mlx_iree_compiler_release(&found);
    mlx_memory_set_calls(NULL);
    if (mlx_status_code(status) != MLX_OUT_OF_MEMORY) CHECK_OK(status);
    CHECK_INT(memory.live, 0);
    mlx_status_free(status);
  }
  CHECK(!unlink(in_root("libIREECompiler.so")));
  mlx_iree_compiler_release(&compiler);
  mlx_cache_close(cache);
}

// ----------------------------------------------------------------------------------------------------------
// Finding

static mlx_cache_t *fresh_cache(void) {
  mlx_cache_t *cache;
  CHECK_OK(mlx_remove_tree(in_root("cache")));
  CHECK_OK(mlx_remove_tree(in_root("queried")));
  CHECK_OK(mlx_cache_open(in_root("cache"), &cache));
  return cache;
}

static void find(mlx_cache_t *cache, const char *path, mlx_iree_compiler_t *out_compiler) {
  CHECK_OK(mlx_iree_compiler_find(cache, path, NULL, out_compiler));
  CHECK_TEXT(out_compiler->version, "3.13.0 @ abc");
  CHECK_INT(strlen(out_compiler->digest), 64);
}

TEST(compiler_digest_covers_its_library) {
  mlx_cache_t *cache = fresh_cache();
  mlx_iree_compiler_t compilers[4];
  CHECK_OK(mlx_make_dirs(in_root("wheel"), 0700));
  const char *path = write_tool("wheel/iree-compile", "exit 0");
  char library[128];
  snprintf(library, sizeof library, "%s", in_root("wheel/libIREECompiler.so"));
  find(cache, path, &compilers[0]);
  find(cache, path, &compilers[1]);
  check_file_is("queried", "queried\nqueried\n");  // the version of a launcher may change: queried every time
  CHECK_TEXT(compilers[0].digest, compilers[1].digest);
  CHECK_OK(mlx_write_file(library, "one", 3));
  find(cache, path, &compilers[2]);
  mlx_iree_compiler_release(&compilers[1]);
  find(cache, path, &compilers[1]);
  check_file_is("queried", "queried\nqueried\nqueried\n");  // the digest covers the compiler: queried once
  CHECK_TEXT(compilers[1].digest, compilers[2].digest);
  CHECK_OK(mlx_write_file(library, "two", 3));
  find(cache, path, &compilers[3]);
  CHECK(strcmp(compilers[0].digest, compilers[2].digest));
  CHECK(strcmp(compilers[2].digest, compilers[3].digest));
  for (int i = 0; i < 4; ++i) mlx_iree_compiler_release(&compilers[i]);
  mlx_cache_close(cache);
}

TEST(named_compiler_is_used_or_the_search_fails) {
  mlx_cache_t *cache = fresh_cache();
  mlx_iree_compiler_t compiler;
  char path[128];
  snprintf(path, sizeof path, "%s", write_tool("named", "exit 0"));
  setenv("MLXCEL_IREE_COMPILE", in_root("missing"), 1);
  mlx_status_t status = mlx_iree_compiler_find(cache, NULL, NULL, &compiler);
  CHECK_CONTAINS(mlx_status_hint_text(status), "MLXCEL_IREE_COMPILE");
  CHECK_CONTAINS(mlx_status_message(status), "MLXCEL_IREE_COMPILE");
  CHECK_ERROR(status, MLX_NOT_FOUND, "does not exist");
  find(cache, path, &compiler);  // an explicit path has priority
  CHECK_TEXT(compiler.path, path);
  mlx_iree_compiler_release(&compiler);
  setenv("MLXCEL_IREE_COMPILE", path, 1);
  find(cache, NULL, &compiler);
  CHECK_TEXT(compiler.path, path);
  mlx_iree_compiler_release(&compiler);
  CHECK_ERROR(mlx_iree_compiler_find(cache, root, NULL, &compiler), MLX_NOT_FOUND, "not an executable file");
  CHECK_ERROR(mlx_iree_compiler_find(cache, "no-such-tool", NULL, &compiler), MLX_NOT_FOUND, "not on PATH");
  CHECK(!chmod(path, 0644));
  CHECK_ERROR(mlx_iree_compiler_find(cache, path, NULL, &compiler), MLX_NOT_FOUND, "not an executable file");
  unsetenv("MLXCEL_IREE_COMPILE");
  mlx_cache_close(cache);
}

TEST(tool_without_version_is_identified_by_its_digest) {
  mlx_cache_t *cache = fresh_cache();
  mlx_iree_compiler_t yes, no;
  CHECK_OK(mlx_iree_compiler_find(cache, "/bin/true", NULL, &yes));
  CHECK_OK(mlx_iree_compiler_find(cache, "/bin/false", NULL, &no));
  CHECK_TEXT(yes.version, "of unknown version");
  CHECK_TEXT(no.version, "of unknown version");
  CHECK(strcmp(yes.digest, no.digest));
  mlx_iree_compiler_release(&yes);
  mlx_iree_compiler_release(&no);
  mlx_cache_close(cache);
}

TEST(path_is_searched_last_and_the_error_lists_all_places) {
  mlx_cache_t *cache = fresh_cache();
  mlx_iree_compiler_t compiler;
  char old[4096], path[512];
  snprintf(old, sizeof old, "%s", getenv("PATH"));
  CHECK_OK(mlx_make_dirs(in_root("bin"), 0700));
  CHECK_OK(mlx_remove_tree(in_root("bin/iree-compile")));
  snprintf(path, sizeof path, "/bin:/usr/bin::%s", in_root("bin"));
  setenv("PATH", path, 1);
  const char *built_in = mlx_iree_built_in;
  mlx_iree_built_in = "";
  mlx_status_t status = mlx_iree_compiler_find(cache, NULL, NULL, &compiler);
  CHECK_CONTAINS(mlx_status_message(status), "../libexec/iree/iree-compile");
  CHECK_CONTAINS(mlx_status_hint_text(status), "MLXCEL_IREE_COMPILE");
  CHECK_ERROR(status, MLX_NOT_FOUND, "iree-compile on PATH");
  write_tool("bin/iree-compile", "exit 0");
  find(cache, NULL, &compiler);
  CHECK_TEXT(compiler.path, in_root("bin/iree-compile"));
  mlx_iree_compiler_release(&compiler);
  setenv("PATH", old, 1);
  mlx_iree_built_in = built_in;
  mlx_cache_close(cache);
}

// ----------------------------------------------------------------------------------------------------------
// The cache key

TEST(key_differs_for_every_change_of_compiler_or_input) {
  static const char *const two[] = {"--a", "--b"}, *const swapped[] = {"--b", "--a"},
                           *const joined[] = {"--a--b"};
  static const mlx_iree_object_t objects[] = {{"k.o", "bytes", 5}}, renamed[] = {{"m.o", "bytes", 5}},
                                 changed[] = {{"k.o", "Bytes", 5}};
  mlx_iree_compiler_t compiler = {.path = "/a", .version = "1", .digest = "d"},
                      c[3] = {compiler, compiler, compiler};
  mlx_iree_input_t input = {.mlir = "module {}",
                            .mlir_length = 9,
                            .flags = two,
                            .flag_count = 2,
                            .target = "cpu",
                            .objects = objects,
                            .object_count = 1},
                   in[9];
  char keys[14][MLX_DIGEST_HEX], again[MLX_DIGEST_HEX];
  size_t count = 0;
  c[0].path = "/b";
  c[1].version = "2";
  c[2].digest[0] = 'e';
  for (int i = 0; i < 9; ++i) in[i] = input;
  in[0].mlir = "module {]";
  in[1].mlir_length = 8;
  in[2].flags = swapped;
  in[3].flags = joined, in[3].flag_count = 1;
  in[4].flag_count = 1;
  in[5].target = "cpu:x86-64-v3";
  in[6].objects = renamed;
  in[7].objects = changed;
  in[8].object_count = 0;
  mlx_iree_key(&compiler, &input, keys[count++]);
  for (int i = 0; i < 3; ++i) mlx_iree_key(&c[i], &input, keys[count++]);
  for (int i = 0; i < 9; ++i) mlx_iree_key(&compiler, &in[i], keys[count++]);
  mlx_iree_key(NULL, &input, keys[count++]);
  for (size_t i = 0; i < count; ++i) {
    for (size_t k = 0; k < i; ++k) CHECK(strcmp(keys[i], keys[k]));
  }
  mlx_iree_key(&compiler, &input, again);
  CHECK_TEXT(again, keys[0]);
}

int main(int argc, char **argv) {
  const char *base = getenv("TMPDIR");
  char made[64], *real = NULL;
  snprintf(made, sizeof made, "%s/mlxcel-driver-XXXXXX", base && strlen(base) < 30 ? base : "/tmp");
  if (!mkdtemp(made) || !(real = realpath(made, NULL)) || strlen(real) >= sizeof root) return 1;
  strcpy(root, real);
  free(real);
  unsetenv("MLXCEL_IREE_COMPILE");
  unsetenv("MLXCEL_COMPILE_TIMEOUT");
  static const check_case_t cases[] = {
      CASE(compile_writes_output_log_and_progress),
      CASE(halves_of_a_compilation_stop_and_start_at_the_same_phase),
      CASE(cancelled_compiler_is_ended),
      CASE(error_quotes_the_first_error_line_and_names_the_log),
      CASE(error_reports_that_the_compiler_printed_nothing),
      CASE(error_names_the_signal_and_hints_at_memory),
      CASE(hanging_compiler_is_killed_with_its_children),
      CASE(exit_status_0_without_output_file_is_a_failure),
      CASE(unknown_option_hints_at_the_pinned_version),
      CASE(time_limit_is_read_from_the_environment),
      CASE(every_failing_allocation_is_reported_without_leaks),
      CASE(compiler_digest_covers_its_library),
      CASE(named_compiler_is_used_or_the_search_fails),
      CASE(tool_without_version_is_identified_by_its_digest),
      CASE(path_is_searched_last_and_the_error_lists_all_places),
      CASE(key_differs_for_every_change_of_compiler_or_input),
  };
  int failed = check_run(cases, sizeof cases / sizeof *cases, argc, argv);
  mlx_status_free(mlx_remove_tree(root));
  return failed;
}
