// Emitted MLIR equals the golden text, and iree-compile parses it.
#include "compiler/compile.h"
#include "compiler/emit.h"
#include "tests/compiler/emitted_weight.h"
#include "tests/support/check.h"
#include "tests/support/command.h"
#include "tests/support/golden_text.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"

TEST(pure_stablehlo_of_tiny_llama_matches_golden) {
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
  mlx_graph_t *graph;
  mlx_module_options_t options;
  CHECK_OK(mlx_model_open(TINY, &model));
  mlx_module_options_initialize(64, &options);
  options.form = MLX_FORM_IREE;
  options.dtype = options.kv = dtype;
  CHECK_OK(mlx_model_build_graph(model, options.context, &graph));
  CHECK_OK(mlx_module_emit(model, graph, &options, out_text, out_length));
  mlx_graph_free(graph);
  mlx_model_close(model);
}

TEST(iree_form_matches_golden_and_has_the_archive_as_its_only_parameter) {
  char *text;
  size_t length;
  emit_for_iree(MLX_F32, &text, &length);
  const char *parameter = strstr(text, "#flow.parameter.named<\"model\"::\"*\">");
  CHECK(parameter && !strstr(parameter + 1, "#flow.parameter.named"));
  check_golden_text(text, length, MLXCEL_SOURCE_DIR "/tests/goldens/tiny-llama.iree.mlir");
  mlx_free(text);
}

TEST(bf16_module_has_bf16_weights_and_kv_cache_and_f32_activations) {
  char *text;
  size_t length;
  emit_for_iree(MLX_BF16, &text, &length);
  CHECK(weight_has_type(text, "%model.embed_tokens.weight", "tensor<320x32xbf16>"));
  CHECK(weight_has_type(text, "%model.norm.weight", "tensor<32xf32>"));
  check_golden_text(text, length, MLXCEL_SOURCE_DIR "/tests/goldens/tiny-llama.bf16.iree.mlir");
  mlx_free(text);
}

// Weights are converted to f32 inside the product. A separate f32 copy, made at load or at run time, would
// appear as an f32 tensor of the weight's shape.
TEST(module_makes_no_f32_copy_of_a_bf16_weight) {
  command_t compile;
  command_start(&compile, (const char *const[]){
                              MLXCEL_TEST_IREE_COMPILE, "--compile-to=flow", "--iree-hal-target-device=local",
                              "--iree-hal-local-target-device-backends=llvm-cpu",
                              MLXCEL_SOURCE_DIR "/tests/goldens/tiny-llama.bf16.iree.mlir", "-o", "-", NULL});
  command_wait(&compile);
  if (compile.exit_code) CHECK_FAIL("iree-compile failed: %s", compile.err);
  CHECK_CONTAINS(compile.out, "tensor<320x32xbf16>");
  static const char *const copies[] = {"tensor<320x32xf32>", "tensor<32x32xf32>"};
  for (int i = 0; i < 2; ++i) {
    if (strstr(compile.out, copies[i])) CHECK_FAIL("the module has a %s", copies[i]);
  }
  command_free(&compile);
}

// One module serves every file of the same shape.
TEST(gguf_and_safetensors_give_the_same_module) {
  char *texts[2];
  const mlx_compile_options_t options = {.context = 64};
  CHECK_OK(mlx_compile_stablehlo(TINY, &options, &texts[0], NULL));
  CHECK_OK(mlx_compile_stablehlo(TINY ".gguf", &options, &texts[1], NULL));
  CHECK_TEXT(texts[1], texts[0]);
  mlx_free(texts[0]);
  mlx_free(texts[1]);
}

TEST(iree_compile_parses_both_forms) {
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

// The runtime owns all state: a module without kernels has no variables.
TEST(generic_module_keeps_no_state) {
  char *text;
  size_t length;
  emit_for_iree(MLX_F32, &text, &length);
  CHECK(!strstr(text, "mutable"));
  mlx_free(text);
}

static size_t count_text(const char *text, const char *part) {
  size_t count = 0;
  for (; (text = strstr(text, part)); ++text) ++count;
  return count;
}

// History, KV pool, logits and hidden states are updated in place: each function imports them as consumed,
// and no copy reads memory of the caller (a resource of kind external).
TEST(arguments_are_updated_in_place) {
  command_t compile;
  command_start(&compile,
                (const char *const[]){
                    MLXCEL_TEST_IREE_COMPILE, "--compile-to=stream", "--iree-execution-model=async-external",
                    "--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu",
                    MLXCEL_SOURCE_DIR "/tests/goldens/tiny-llama.iree.mlir", "-o", "-", NULL});
  command_wait(&compile);
  if (compile.exit_code) CHECK_FAIL("iree-compile failed: %s", compile.err);
  CHECK_INT(count_text(compile.out, " consume %arg"), 3 * 4);
  for (const char *at = compile.out; (at = strstr(at, "stream.cmd.copy")); ++at) {
    char line[512], *target;
    snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
    CHECK((target = strstr(line, " -> ")));
    *target = 0;
    if (strstr(line, "external")) CHECK_FAIL("the module copies memory of the caller: %s", line);
  }
  command_free(&compile);
}

TEST(facts_describe_the_generic_module) {
  mlx_model_t *model;
  mlx_graph_t *graph;
  mlx_module_options_t options;
  mlx_module_facts_t facts;
  char *text;
  CHECK_OK(mlx_model_open(TINY, &model));
  mlx_module_options_initialize(64, &options);
  options.kv = MLX_BF16;
  CHECK_OK(mlx_model_build_graph(model, options.context, &graph));
  CHECK_OK(mlx_module_emit_sized(model, graph, &options, &text, NULL, &facts));
  CHECK_INT(facts.step_count, 3);
  for (int i = 0; i < 3; ++i) {
    char name[32];
    snprintf(name, sizeof name, "@step_%lld(", (long long)facts.steps[i].tokens);
    CHECK_CONTAINS(text, name);
    CHECK_INT(facts.steps[i].wanted, facts.steps[i].tokens);
  }
  CHECK(!facts.ragged && !facts.samples && !facts.burst);
  CHECK_INT(facts.chunk_positions, 256);
  CHECK_INT(facts.kv_row, 2 * 8);                       // 2 KV heads of 8
  CHECK_INT(facts.page_bytes, 2 * 2 * 16 * 2 * 8 * 2);  // 2 layers, keys and values, 16 positions, in bf16
  CHECK_INT(facts.hidden, 32);
  CHECK_INT(facts.state_bytes, 0);
  mlx_free(text);
  mlx_graph_free(graph);
  mlx_model_close(model);
}

TEST_MAIN(CASE(pure_stablehlo_of_tiny_llama_matches_golden),
          CASE(iree_form_matches_golden_and_has_the_archive_as_its_only_parameter),
          CASE(bf16_module_has_bf16_weights_and_kv_cache_and_f32_activations),
          CASE(module_makes_no_f32_copy_of_a_bf16_weight), CASE(gguf_and_safetensors_give_the_same_module),
          CASE(iree_compile_parses_both_forms), CASE(generic_module_keeps_no_state),
          CASE(arguments_are_updated_in_place), CASE(facts_describe_the_generic_module))
