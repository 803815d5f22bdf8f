// Bundles of a small random model, for the tests of bundles.
#ifndef MLXCEL_TESTS_BUNDLES_H_
#define MLXCEL_TESTS_BUNDLES_H_

#include "artifact/bundle.h"
#include "artifact/local.h"
#include "tests/support/contract.h"
#include "tests/support/golden.h"
#include "tests/support/random_llama.h"

static char root[] = "/tmp/mlxcel-bundle-XXXXXX";
static char model[128];  // a model directory with a license file

static const random_llama_t shape = {96, 160, 3, 1, 32, 2, 330, true, 10000};
#define PROMPT "once upon a time"

static inline const char *in_root(const char *name) {
  static char paths[4][128];
  static int next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", root, name);
  return path;
}

static inline void run_ok(const char *const *argv) {
  command_t run;
  command_start(&run, argv);
  command_wait(&run);
  if (run.exit_code) CHECK_FAIL("%s %s: %s", argv[0], argv[1], run.err);
  command_free(&run);
}
#define RUN_OK(...) run_ok((const char *const[]){MLXCEL_BINARY, __VA_ARGS__, NULL})
#define SHELL(script) run_ok((const char *const[]){"/bin/sh", "-c", "cd \"$1\" && " script, "sh", root, NULL})

static inline const char *make_model(void) {
  if (model[0]) return model;
  snprintf(model, sizeof model, "%s", random_llama_write(&shape, root, "model"));
  CHECK_OK(mlx_write_file(in_root("model/LICENSE.txt"), "Do as you like.\n", 16));
  static const char readme[] = "---\nlanguage: en\nlicense: \"apache-2.0\"\n---\n# A model\nlicense: mit\n";
  CHECK_OK(mlx_write_file(in_root("model/README.md"), readme, strlen(readme)));
  return model;
}

// Compiles one bundle of each form, once for all tests.
static inline void make_bundles(void) {
  if (mlx_is_bundle(in_root("one.mlxb"))) return;
  RUN_OK("compile", make_model(), "--ctx", "64", "-o", in_root("m.mlxb"));
  RUN_OK("compile", make_model(), "--ctx", "64", "--single-file", "-o", in_root("one.mlxb"));
}

// Returns the generated token ids as JSON text, and stderr in *|out_err|. Release both with mlx_free.
static inline char *generate(const char *bundle, const char *flag, char **out_err) {
  command_t run;
  if (flag) {
    RUN(&run, "run", "--raw", "-m", bundle, "-p", PROMPT, "--temp", "0", "-n", "12", "--ignore-eos", "--json",
        "-v", flag);
  } else {
    RUN(&run, "run", "--raw", "-m", bundle, "-p", PROMPT, "--temp", "0", "-n", "12", "--ignore-eos", "--json",
        "-v");
  }
  if (run.exit_code) CHECK_FAIL("%s: %s", bundle, run.err);
  char *ids, *from = strstr(run.out, "\"output_ids\": ");
  CHECK(from);
  CHECK_OK(mlx_copy_text(from, (size_t)(strchr(from, ']') - from), &ids));
  if (out_err) CHECK_OK(mlx_copy_text(run.err, strlen(run.err), out_err));
  command_free(&run);
  return ids;
}

static inline void check_tokens(const char *bundle, const char *flag, const char *ids) {
  char *actual = generate(bundle, flag, NULL);
  CHECK_TEXT(actual, ids);
  mlx_free(actual);
}

static inline void check_refuses(const char *bundle, const char *flag, mlx_code_t code, const char *part) {
  command_t run;
  if (flag)
    RUN(&run, "run", "-m", bundle, "-p", PROMPT, "-n", "1", flag);
  else
    RUN(&run, "run", "-m", bundle, "-p", PROMPT, "-n", "1");
  CHECK_INT(run.exit_code, code);
  CHECK_CONTAINS(run.err, part);
  CHECK_TEXT(run.out, "");
  command_free(&run);
}

static inline void replace_in(const char *path, const char *old, const char *new) {
  char *text, *at;
  CHECK_OK(mlx_read_file(path, 1 << 20, &text, NULL));
  at = strstr(text, old);
  CHECK(at && strlen(old) == strlen(new));
  memcpy(at, new, strlen(new));
  CHECK_OK(mlx_write_file(path, text, strlen(text)));
  mlx_free(text);
}

// Records a manifest of any version as made on this machine.
static inline void mark_local(const char *manifest) {
  char *text;
  size_t length;
  CHECK_OK(mlx_read_file(manifest, 1 << 20, &text, &length));
  CHECK_OK(mlx_local_add(text, length, NULL));
  mlx_free(text);
}

static inline int run_bundle_cases(const check_case_t *cases, size_t count, int argc, char **argv) {
  if (!mkdtemp(root)) return 1;
  const int failed = check_run(cases, count, argc, argv);
  mlx_status_free(mlx_remove_tree(root));
  return failed;
}

#endif  // MLXCEL_TESTS_BUNDLES_H_
