// Portable models: one bundle with code for every CPU level. The runtime chooses the highest level that this
// machine runs, and refuses code for other CPUs.
#include "artifact/manifest.h"
#include "base/cpu.h"
#include "compiler/kernels.h"
#include "tests/support/golden.h"
#include "tests/support/random_llama.h"

static char root[] = "/tmp/mlxcel-portable-XXXXXX";
static char bundle[64];

static const random_llama_t shape = {96, 160, 3, 1, 32, 2, 330, true, 10000};
#define PROMPT "once upon a time there was a model that ran on every machine"

static const char *in_root(const char *name) {
  static char path[128];
  snprintf(path, sizeof path, "%s/%s", root, name);
  return path;
}

// Compiled once and shared by all tests.
static const char *portable_bundle(void) {
  if (bundle[0]) return bundle;
  command_t run;
  const char *model = random_llama_write(&shape, root, "model");
  snprintf(bundle, sizeof bundle, "%s/portable.mlxb", root);
  RUN(&run, "compile", model, "--target", "cpu:portable", "--ctx", "128", "--kernels", "required", "-v", "-o",
      bundle);
  if (run.exit_code) CHECK_FAIL("%s", run.err);
  CHECK_CONTAINS(run.err, "target: cpu:portable\nkernels: network\nlevels: ");
  command_free(&run);
  return bundle;
}

// Generates with |level| (NULL: the runtime chooses) and returns the output ids as JSON text.
static char *generate(const char *level) {
  command_t run;
  const char *portable = portable_bundle();
  if (level) {
    RUN(&run, "run", "--raw", "-m", portable, "-p", PROMPT, "--temp", "0", "-n", "24", "--ignore-eos",
        "--json", "-v", "--cpu-level", level);
  } else {
    RUN(&run, "run", "--raw", "-m", portable, "-p", PROMPT, "--temp", "0", "-n", "24", "--ignore-eos",
        "--json", "-v");
  }
  if (run.exit_code) CHECK_FAIL("%s", run.err);
  char expected[64], *ids, *from = strstr(run.out, "\"output_ids\": ");
  snprintf(expected, sizeof expected, "cpu level: %s (of ", level ? level : mlx_kernels_cpu_level("host"));
  CHECK_CONTAINS(run.err, expected);
  CHECK(from);
  CHECK_OK(mlx_copy_text(from, (size_t)(strchr(from, ']') - from), &ids));
  command_free(&run);
  return ids;
}

TEST(every_supported_level_generates_the_same_tokens_and_the_best_is_chosen) {
  char *best = generate(NULL);
  const mlx_cpu_level_t *level;
  int tried = 0;
  for (size_t i = 0; (level = mlx_cpu_level(i)); ++i) {
    if (!mlx_kernels_have_level(level->name) || !mlx_cpu_has_level(level->name)) continue;
    char *ids = generate(level->name);
    CHECK_TEXT(ids, best);
    mlx_free(ids);
    fprintf(stderr, "  %s\n", level->name);
    ++tried;
  }
  CHECK(tried > 0);
  mlx_free(best);
}

TEST(bundle_has_one_module_per_level_and_one_weight_archive) {
  const mlx_cpu_level_t *level;
  char path[128];
  for (size_t i = 0; (level = mlx_cpu_level(i)); ++i) {
    snprintf(path, sizeof path, "%s/%s", portable_bundle(), mlx_bundle_module(level->name).text);
    CHECK(mlx_is_file(path) == mlx_kernels_have_level(level->name));
  }
  snprintf(path, sizeof path, "%s/model.vmfb", portable_bundle());
  CHECK(!mlx_is_file(path));
  snprintf(path, sizeof path, "%s/weights.irpa", portable_bundle());
  CHECK(mlx_is_file(path));
}

// A level of another CPU architecture.
static const char *foreign_level(void) {
  return mlx_cpu_level_here()->arch == MLX_AARCH64 ? "x86-64-v3" : "aarch64";
}

TEST(code_for_another_cpu_is_refused_with_both_names_and_a_hint) {
  command_t run;
  char expected[160], target[64];
  const char *model = random_llama_write(&shape, root, "model"), *here = mlx_cpu_level_here()->name;
  snprintf(target, sizeof target, "cpu:%s", foreign_level());
  RUN(&run, "compile", model, "--target", target, "--ctx", "128", "-o", in_root("foreign.mlxb"));
  if (run.exit_code) CHECK_FAIL("%s", run.err);
  command_free(&run);
  RUN(&run, "run", "-m", in_root("foreign.mlxb"), "-p", PROMPT, "-n", "1");
  CHECK_INT(run.exit_code, MLX_UNAVAILABLE);
  snprintf(expected, sizeof expected, "was compiled for %s, which this CPU (%s) does not run", target, here);
  CHECK_CONTAINS(run.err, expected);
  CHECK_CONTAINS(run.err,
                 "hint: compile it here: mlxcel compile MODEL --target cpu; or for every kind of CPU: "
                 "--target cpu:portable");
  command_free(&run);
}

TEST(unsupported_or_unknown_level_is_refused) {
  command_t run;
  char expected[160];
  if (mlx_kernels_have_level(foreign_level())) {
    RUN(&run, "run", "-m", portable_bundle(), "-p", PROMPT, "-n", "1", "--cpu-level", foreign_level());
    CHECK_INT(run.exit_code, MLX_UNAVAILABLE);
    snprintf(expected, sizeof expected, "cannot run code for %s: this CPU is %s", foreign_level(),
             mlx_cpu_level_here()->name);
    CHECK_CONTAINS(run.err, expected);
    command_free(&run);
  }
  RUN(&run, "run", "-m", random_llama_write(&shape, root, "model"), "-p", PROMPT, "-n", "1", "--cpu-level",
      foreign_level());
  CHECK_INT(run.exit_code, MLX_UNAVAILABLE);
  snprintf(expected, sizeof expected, "this CPU (%s) cannot run code for CPU level %s",
           mlx_cpu_level_here()->name, foreign_level());
  CHECK_CONTAINS(run.err, expected);
  command_free(&run);
  RUN(&run, "run", "-m", portable_bundle(), "-p", PROMPT, "-n", "1", "--cpu-level", "x86-64-v2");
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err, "has no code for 'x86-64-v2'");
  command_free(&run);
  RUN(&run, "run", "-m", portable_bundle(), "-p", PROMPT, "-n", "1", "--cpu-level", "z80");
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err, "unknown CPU level 'z80'\nhint: levels: x86-64, ");
  command_free(&run);
  RUN(&run, "compile", in_root("model"), "--target", "cpu:portable", "--emit", "vmfb", "-o",
      in_root("x.vmfb"));
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err, "--emit vmfb writes one module; cpu:portable needs several");
  command_free(&run);
}

// Emulates older CPUs: one with SSE4.2, and one with AVX2.
TEST(older_cpu_chooses_the_highest_level_it_supports) {
  static const struct {
    const char *cpu, *level;
  } machines[] = {{"Nehalem", "x86-64"}, {"Haswell", "x86-64-v3"}};
  static const char emulator[] = "qemu-x86_64-static";
#ifdef __x86_64__
  const bool is_x86 = true;
#else
  const bool is_x86 = false;
#endif
  const char *why_not = !is_x86 ? "this build is for another architecture"
                        : system("command -v qemu-x86_64-static >/dev/null")
                            ? "qemu-x86_64-static is not installed"
                        : !mlx_kernels_have_level("x86-64") ? "this build has no kernel for x86-64"
                        : MLXCEL_SANITIZED                  ? "AddressSanitizer does not run under qemu"
                                                            : NULL;
  if (why_not) SKIP("%s", why_not);
  for (size_t i = 0; i < sizeof machines / sizeof *machines; ++i) {
    command_t run;
    char expected[64];
    // clang-format off
    const char *const argv[] = {emulator, "-cpu", machines[i].cpu, MLXCEL_BINARY, "run", "-m",
                                portable_bundle(), "-p", PROMPT, "--temp", "0", "-n", "1", "-t", "1",
                                "-v", NULL};
    // clang-format on
    command_start(&run, argv);
    command_wait(&run);
    if (run.exit_code) CHECK_FAIL("%s: %s", machines[i].cpu, run.err);
    snprintf(expected, sizeof expected, "cpu level: %s (of ", machines[i].level);
    CHECK_CONTAINS(run.err, expected);
    command_free(&run);
  }
}

TEST(missing_module_is_named_in_the_error) {
  command_t run;
  char path[128], hidden[128];
  snprintf(path, sizeof path, "%s/%s", portable_bundle(),
           mlx_bundle_module(mlx_kernels_cpu_level("host")).text);
  snprintf(hidden, sizeof hidden, "%s/hidden", root);
  CHECK(!rename(path, hidden));
  RUN(&run, "run", "-m", portable_bundle(), "-p", PROMPT, "-n", "1");
  CHECK(run.exit_code);
  CHECK_CONTAINS(run.err, path);
  command_free(&run);
  CHECK(!rename(hidden, path));
}

int main(int argc, char **argv) {
  static const check_case_t cases[] = {
      CASE(every_supported_level_generates_the_same_tokens_and_the_best_is_chosen),
      CASE(bundle_has_one_module_per_level_and_one_weight_archive),
      CASE(code_for_another_cpu_is_refused_with_both_names_and_a_hint),
      CASE(unsupported_or_unknown_level_is_refused),
      POSIX_CASE(older_cpu_chooses_the_highest_level_it_supports),
      CASE(missing_module_is_named_in_the_error)};
  if (!mkdtemp(root)) return 1;
  const int failed = check_run(cases, sizeof cases / sizeof *cases, argc, argv);
  mlx_status_free(mlx_remove_tree(root));
  return failed;
}
