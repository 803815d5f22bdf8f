// The builder: arguments that are updated in place, sizes that are known at run time, and loops.
#include "compiler/builder.h"

#include "base/file.h"
#include "base/memory.h"
#include "tests/support/check.h"
#include "tests/support/command.h"

// state [?, 4], and a loop that adds row 0 of |words| to |total| [4] |count| times.
static char *build(mlx_form_t form) {
  const int64_t rows = form == MLX_FORM_PURE ? 3 : MLX_DIM_RUNTIME;
  mlx_builder_t *b;
  char *text;
  CHECK_OK(mlx_builder_create(form, "test", &b));
  mlx_builder_begin(b, "step", "A test.");
  const mlx_built_t words = mlx_builder_argument(b, "words", MLX_TYPE(MLX_F32, rows));
  mlx_builder_in_place(b, "state", MLX_TYPE(MLX_F32, rows, 4));
  mlx_builder_in_place(b, "other", MLX_TYPE(MLX_F32, rows, 4));
  const mlx_built_t count = mlx_builder_count_argument(b, "count");
  const mlx_built_t part = mlx_build_words(b, "part", words, 1, 2);
  mlx_built_t total[] = {mlx_build_float(b, "start", 0.0, MLX_TYPE(MLX_F32, 2))}, index;
  const mlx_loop_t loop = mlx_build_loop(b, "sum", count, total, 1, &index);
  total[0] = mlx_build_binary(b, "more", "add", total[0], part);
  mlx_build_loop_end(b, &loop, total);
  const mlx_built_t row = mlx_build_broadcast(b, "row", total[0], (int64_t[]){0}, MLX_TYPE(MLX_F32, 2, 4));
  mlx_built_t state = mlx_builder_load(b, "state");
  state = mlx_build_update_rows(b, "new_state", state, row);
  mlx_builder_store(b, "state", state);
  mlx_builder_end(b, NULL, 0);
  CHECK_INT(mlx_builder_state_bytes(b), 0);  // the caller owns them
  CHECK_OK(mlx_builder_finish(b, &text, NULL));
  mlx_builder_free(b);
  return text;
}

TEST(arguments_are_updated_in_place_in_both_forms) {
  char *text = build(MLX_FORM_IREE);
  CHECK_CONTAINS(text, "%words: tensor<?xf32>");
  CHECK_CONTAINS(text, "%state: tensor<?x4xf32> {iree.abi.output = 0 : index}");
  CHECK_CONTAINS(text, "%other: tensor<?x4xf32> {iree.abi.output = 1 : index}");
  CHECK_CONTAINS(text, "%count: i32) -> (tensor<?x4xf32>, tensor<?x4xf32>)");
  CHECK_CONTAINS(text, "scf.for");
  CHECK_CONTAINS(text, "return %new_state, %other : tensor<?x4xf32>, tensor<?x4xf32>");
  mlx_free(text);
  text = build(MLX_FORM_PURE);
  CHECK_CONTAINS(text, "%count: tensor<i32>) -> (tensor<3x4xf32>, tensor<3x4xf32>)");
  CHECK_CONTAINS(text, "stablehlo.while");
  CHECK(!strstr(text, "iree") && !strstr(text, "scf") && !strstr(text, "?x"));
  mlx_free(text);
}

TEST(iree_compile_accepts_both_forms) {
  char path[] = "/tmp/mlxcel-builder-XXXXXX";
  CHECK(mkdtemp(path));
  for (int form = 0; form < 2; ++form) {
    char file[64], *text = build(form ? MLX_FORM_PURE : MLX_FORM_IREE);
    snprintf(file, sizeof file, "%s/%d.mlir", path, form);
    CHECK_OK(mlx_write_file(file, text, strlen(text)));
    mlx_free(text);
    command_t compile;
    command_start(&compile, (const char *const[]){
                                MLXCEL_TEST_IREE_COMPILE, "--compile-to=flow",
                                "--iree-execution-model=async-external", "--iree-hal-target-device=local",
                                "--iree-hal-local-target-device-backends=llvm-cpu", file, "-o", "-", NULL});
    command_wait(&compile);
    if (compile.exit_code) CHECK_FAIL("iree-compile refuses form %d: %s", form, compile.err);
    command_free(&compile);
  }
  mlx_status_free(mlx_remove_tree(path));
}

static void check_refused(mlx_builder_t *b, const char *message) {
  char *text;
  CHECK_ERROR(mlx_builder_finish(b, &text, NULL), MLX_INTERNAL, message);
  mlx_builder_free(b);
}

TEST(parts_outside_an_argument_are_refused) {
  mlx_builder_t *b;
  for (int i = 0; i < 3; ++i) {
    CHECK_OK(mlx_builder_create(MLX_FORM_PURE, "test", &b));
    mlx_builder_begin(b, "step", "A test.");
    const mlx_built_t x = mlx_builder_argument(b, "x", MLX_TYPE(MLX_F32, 4)),
                      m = mlx_builder_argument(b, "m", MLX_TYPE(MLX_F32, 2, 4)),
                      rows = mlx_builder_argument(b, "rows", MLX_TYPE(MLX_F32, 3, 4));
    if (i == 0) mlx_build_words(b, "part", x, 3, 2);
    if (i == 1) mlx_build_words(b, "part", m, 0, 1);
    if (i == 2) mlx_build_update_rows(b, "part", m, rows);
    check_refused(
        b, i < 2 ? "the elements are not a part of the vector" : "the rows are not a part of the matrix");
  }
}

TEST_MAIN(CASE(arguments_are_updated_in_place_in_both_forms), CASE(iree_compile_accepts_both_forms),
          CASE(parts_outside_an_argument_are_refused))
