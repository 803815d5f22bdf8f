// What the exporter writes: golden text, and text that iree-compile parses.
#include "compiler/emit.h"
#include "compiler/compile.h"
#include "tests/check.h"
#include "tests/command.h"
#include "tests/golden_text.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"

TEST(pure_stablehlo_of_the_tiny_model_is_golden_text) {
  char *text;
  size_t length;
  const mlx_compile_options_t options = {.context = 64};
  CHECK_OK(mlx_compile_stablehlo(TINY, &options, &text, &length));
  CHECK(!strstr(text, "util.") && !strstr(text, "flow."));
  check_golden_text(text, length, MLXCEL_SOURCE_DIR "/tests/goldens/tiny-llama.stablehlo.mlir");
  mlx_free(text);
}

static void emit_for_iree(mlx_dtype_t dtype, char **out_text, size_t *out_length) {
  mlx_model_t *model;
  mlx_module_options_t options;
  CHECK_OK(mlx_model_open(TINY, &model));
  mlx_module_options_initialize(64, &options);
  options.form = MLX_FORM_IREE;
  options.dtype = dtype;
  CHECK_OK(mlx_module_emit(model, &options, out_text, out_length));
  mlx_model_close(model);
}

TEST(what_is_compiled_is_golden_text_and_keeps_weights_outside) {
  char *text;
  size_t length;
  emit_for_iree(MLX_F32, &text, &length);
  CHECK_CONTAINS(text, "#flow.parameter.named<\"model\"::\"model.embed_tokens.weight\">");
  check_golden_text(text, length, MLXCEL_SOURCE_DIR "/tests/goldens/tiny-llama.iree.mlir");
  mlx_free(text);
}

TEST(in_bf16_weights_and_kv_cache_are_bf16_and_the_rest_is_f32) {
  char *text;
  size_t length;
  emit_for_iree(MLX_BF16, &text, &length);
  CHECK_CONTAINS(text, "\"model.embed_tokens.weight\"> : tensor<320x32xbf16>");
  CHECK_CONTAINS(text, "\"model.norm.weight\"> : tensor<32xf32>");
  check_golden_text(text, length, MLXCEL_SOURCE_DIR "/tests/goldens/tiny-llama.bf16.iree.mlir");
  mlx_free(text);
}

// One module serves every file of a shape: what is compiled from a GGUF is what is compiled from safetensors.
// Weights are widened where they are multiplied: a widened copy of one, made at load or at run time, would be
// a tensor of its shape in f32.
TEST(no_widened_copy_of_a_weight_is_ever_made) {
  command_t compile;
  command_start(&compile, (const char *const[]){
                              MLXCEL_TEST_IREE_COMPILE, "--compile-to=flow", "--iree-hal-target-device=local",
                              "--iree-hal-local-target-device-backends=llvm-cpu",
                              MLXCEL_SOURCE_DIR "/tests/goldens/tiny-llama.bf16.iree.mlir", "-o", "-", NULL});
  command_wait(&compile);
  if (compile.exit_code) CHECK_FAIL("iree-compile says: %s", compile.err);
  CHECK_CONTAINS(compile.out, "tensor<320x32xbf16>");
  static const char *const widened[] = {"tensor<320x32xf32>", "tensor<64x32xf32>", "tensor<32x64xf32>",
                                        "tensor<32x32xf32>"};
  for (int i = 0; i < 4; ++i) {
    if (strstr(compile.out, widened[i])) CHECK_FAIL("there is a %s", widened[i]);
  }
  command_free(&compile);
}

TEST(both_formats_of_a_model_give_the_same_module) {
  char *texts[2];
  const mlx_compile_options_t options = {.context = 64};
  CHECK_OK(mlx_compile_stablehlo(TINY, &options, &texts[0], NULL));
  CHECK_OK(mlx_compile_stablehlo(TINY ".gguf", &options, &texts[1], NULL));
  CHECK_TEXT(texts[1], texts[0]);
  mlx_free(texts[0]);
  mlx_free(texts[1]);
}

TEST(both_forms_parse_in_iree_compile) {
  static const char *const goldens[] = {MLXCEL_SOURCE_DIR "/tests/goldens/tiny-llama.stablehlo.mlir",
                                        MLXCEL_SOURCE_DIR "/tests/goldens/tiny-llama.iree.mlir",
                                        MLXCEL_SOURCE_DIR "/tests/goldens/tiny-llama.bf16.iree.mlir"};
  for (int i = 0; i < 3; ++i) {
    command_t parse;
    command_start(&parse, (const char *const[]){MLXCEL_TEST_IREE_COMPILE, "--compile-to=input", goldens[i],
                                                "-o", "/dev/null", NULL});
    command_wait(&parse);
    if (parse.exit_code) CHECK_FAIL("iree-compile refuses %s: %s", goldens[i], parse.err);
    command_free(&parse);
  }
}

static void check_start_values(mlx_dtype_t dtype) {
  char *text, seen[64][64];
  size_t length, count = 0;
  emit_for_iree(dtype, &text, &length);
  for (const char *at = text; (at = strstr(at, "private mutable ")); ++at) {
    const char *value = strstr(at, " = dense<");
    CHECK(value && count < 64);
    snprintf(seen[count], sizeof seen[count], "%.*s", (int)strcspn(value, ">"), value);
    for (size_t i = 0; i < count; ++i) CHECK(strcmp(seen[i], seen[count]));
    ++count;
  }
  CHECK_INT(count, 2 * 2 + 3);
  mlx_free(text);
}

TEST(every_state_starts_from_a_value_of_its_own) {  // IREE merges globals that start alike; see
                                                    // compiler/builder.c
  check_start_values(MLX_F32);
  check_start_values(MLX_BF16);
}

TEST_MAIN(CASE(pure_stablehlo_of_the_tiny_model_is_golden_text),
          CASE(what_is_compiled_is_golden_text_and_keeps_weights_outside),
          CASE(in_bf16_weights_and_kv_cache_are_bf16_and_the_rest_is_f32),
          CASE(no_widened_copy_of_a_weight_is_ever_made), CASE(both_formats_of_a_model_give_the_same_module),
          CASE(both_forms_parse_in_iree_compile), CASE(every_state_starts_from_a_value_of_its_own))
