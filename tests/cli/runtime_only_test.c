// The runtime-only build of mlxcel: it runs compiled models. Every command that needs the compiler fails with
// a hint to the full package.
#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "tests/support/golden.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define TINY_GGUF MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama.gguf"

#define RUN_RUNTIME(command, ...)                                                                 \
  do {                                                                                            \
    command_start(command, (const char *const[]){MLXCEL_RUNTIME_ONLY_BINARY, __VA_ARGS__, NULL}); \
    command_wait(command);                                                                        \
  } while (0)

static char folder[64], bundle[96];

static void compile_tiny(void) {
  strcpy(folder, "/tmp/mlxcel-runtime-XXXXXX");
  CHECK(mkdtemp(folder));
  snprintf(bundle, sizeof bundle, "%s/tiny.mlxb", folder);
  command_t run;
  RUN(&run, "compile", TINY, "-c", "64", "-o", bundle);
  if (run.exit_code) CHECK_FAIL("exit status %d: %s", run.exit_code, run.err);
  command_free(&run);
}

// Makes the bundle claim another IREE version, which only the full package can fix.
static void change_iree_version(void) {
  char path[128], *json, *at;
  size_t length;
  snprintf(path, sizeof path, "%s/manifest.json", bundle);
  CHECK_OK(mlx_read_file(path, 1 << 20, &json, &length));
  CHECK((at = strstr(json, "\"iree\": \"3.13\"")));
  memcpy(strpbrk(at, "3"), "9.99", 4);
  CHECK_OK(mlx_write_file(path, json, length));
  mlx_free(json);
}

TEST(a_compiled_model_runs_without_the_compiler) {
  compile_tiny();
  command_t run;
  RUN_RUNTIME(&run, "run", "-m", bundle, "--temp", "0", "-p", "the quick brown", "-n", "9", "--json",
              "--ignore-eos");
  if (run.exit_code) CHECK_FAIL("exit status %d: %s", run.exit_code, run.err);
  CHECK_CONTAINS(run.out, "\"output_ids\": [142, 218, 177, 4, 129, 92, 159, 114, 218]");
  command_free(&run);
  RUN_RUNTIME(&run, "show", bundle);
  CHECK_INT(run.exit_code, 0);
  CHECK_CONTAINS(run.out, "compiled from ");
  command_free(&run);
  RUN_RUNTIME(&run, "tokenize", "-m", bundle, "-p", "the quick brown", "--show-count");
  CHECK_INT(run.exit_code, 0);
  command_free(&run);
  change_iree_version();
  RUN_RUNTIME(&run, "run", "-m", bundle, "-p", "the");
  CHECK_INT(run.exit_code, MLX_UNSUPPORTED);
  CHECK_CONTAINS(run.err,
                 "compiled for IREE 9.99; this mlxcel runs IREE 3.13\nhint: install the full package");
  command_free(&run);
  CHECK_OK(mlx_remove_tree(folder));
}

static void check_refused(command_t *run, int code, const char *part) {
  if (run->exit_code != code) CHECK_FAIL("exit status %d, expected %d: %s", run->exit_code, code, run->err);
  CHECK_TEXT(run->out, "");
  CHECK_CONTAINS(run->err, part);
  command_free(run);
}

TEST(commands_that_need_the_compiler_point_to_the_full_package) {
  static const char *const verbs[][5] = {{"run", "-m", TINY_GGUF, "-p", "the"},
                                         {"compile", TINY, "-o", "/tmp/nothing.mlxb", NULL},
                                         {"show", TINY, NULL},
                                         {"tokenize", "-m", TINY, "-p", "the"},
                                         {"bench", "-m", TINY_GGUF, NULL},
                                         {"compile", TINY, "--emit", "stablehlo", NULL}};
  for (size_t i = 0; i < sizeof verbs / sizeof *verbs; ++i) {
    command_t run;
    const char *const *v = verbs[i];
    RUN_RUNTIME(&run, v[0], v[1], v[2], v[3], v[4]);
    CHECK_CONTAINS(run.err, "hint: install the full package");
    CHECK_CONTAINS(run.err, "the Debian package mlxcel, or pip install mlxcel[compiler]");
    check_refused(&run, MLX_UNSUPPORTED, "is not compiled, and this is the runtime-only package");
  }
  command_t run;
  RUN_RUNTIME(&run, "compile", TINY, "--quantize", "q4");
  check_refused(&run, MLX_UNSUPPORTED, "this is the runtime-only package");
  RUN_RUNTIME(&run, "run", "-m", "/nowhere/model.gguf", "-p", "the");
  check_refused(&run, MLX_NOT_FOUND, "'/nowhere/model.gguf' does not exist");
}

TEST(doctor_reports_no_problem_without_a_compiler) {
  command_t run;
  RUN_RUNTIME(&run, "doctor");
  if (run.exit_code) CHECK_FAIL("exit status %d: %s%s", run.exit_code, run.out, run.err);
  CHECK_CONTAINS(run.out, "OK    compiler      not in this package, which runs bundles only");
  CHECK(!strstr(run.out, "iree-compile") && !strstr(run.out, "nvrtc"));
  command_free(&run);
}

TEST_MAIN(CASE(a_compiled_model_runs_without_the_compiler),
          CASE(commands_that_need_the_compiler_point_to_the_full_package),
          CASE(doctor_reports_no_problem_without_a_compiler))
