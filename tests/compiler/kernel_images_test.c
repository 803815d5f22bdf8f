// What NVRTC and iree-compile have to compile for a GPU module: the images of its kernels, and the dispatches
// that are left to IREE.
#include "base/file.h"
#include "compiler/common_images.h"
#include "compiler/cuda_image.h"
#include "compiler/emit.h"
#include "compiler/kernel_plan.h"
#include "compiler/kernels.h"
#include "tests/support/check.h"
#include "tests/support/random_llama.h"
#include "tests/support/wide_fixtures.h"

static char root[64];
static const random_llama_t two_layers = {512, 1024, 8, 4, 64, 2, 320, false, 10000};

// The module with weights of 16 bits or quantized by |quantize|, and 16-bit activations if |narrow|, with
// these steps; count 0: those that the compiler chooses.
static char *emit_quantized(const char *folder, const mlx_step_size_t *steps, size_t count, bool narrow,
                            mlx_quantize_t quantize, mlx_kernels_t *out_kernels) {
  mlx_model_t *model;
  mlx_graph_t *graph;
  mlx_module_options_t options;
  const char *missing;
  char *text;
  CHECK_OK(mlx_model_open(folder, &model));
  mlx_module_options_initialize(64, &options);
  options.form = MLX_FORM_IREE;
  options.dtype = MLX_BF16;
  options.kv = narrow ? MLX_BF16 : MLX_F32;
  options.narrow = narrow;
  options.quantize = quantize;
  if (quantize) options.layout = MLX_LAYOUT_TILES;
  *out_kernels = (mlx_kernels_t){.gpu = mlx_gpu_kind_find(90)};
  CHECK_OK(mlx_model_build_graph(model, 64, &graph));
  CHECK_OK(mlx_module_use_kernels(model, graph, out_kernels, &options, &missing));
  if (count) mlx_module_options_set_steps(steps, count, &options);
  CHECK_OK(mlx_module_emit(model, graph, &options, &text, NULL));
  mlx_graph_free(graph);
  mlx_model_close(model);
  return text;
}

static char *emit_steps(const char *folder, const mlx_step_size_t *steps, size_t count, bool narrow,
                        mlx_kernels_t *out_kernels) {
  return emit_quantized(folder, steps, count, narrow, MLX_QUANTIZE_NONE, out_kernels);
}

// With steps of up to |largest| tokens.
static char *emit_as(const char *folder, int64_t largest, bool narrow, mlx_kernels_t *out_kernels) {
  const mlx_step_size_t steps[] = {{1, 1}, {16, 16}, {64, 64}, {256, 64}, {512, 64}};
  size_t count = 0;
  while (count < 5 && steps[count].tokens <= largest) ++count;
  return emit_steps(folder, steps, count, narrow, out_kernels);
}

// In the default mode.
static char *emit(const char *folder, int64_t largest, mlx_kernels_t *out_kernels) {
  return emit_as(folder, largest, false, out_kernels);
}

static size_t count_images(const mlx_kernels_t *kernels, mlx_kernel_kind_t kind, const char *definition) {
  size_t count = 0;
  for (size_t i = 0; i < kernels->count; ++i)
    count += kernels->images[i].kind == kind && strstr(kernels->images[i].definitions, definition) != NULL;
  return count;
}

TEST(all_steps_share_the_images_whose_tile_is_the_same) {
  const char *folder = random_llama_write(&two_layers, root, "two-layers");
  mlx_kernels_t few, all;
  mlx_free(emit(folder, 64, &few));
  mlx_free(emit(folder, 512, &all));
  static const struct {
    mlx_kernel_kind_t kind;
    const char *definition;
  } shared[] = {{MLX_KERNEL_PACKED, "NAME=mlx_cut\n"},
                {MLX_KERNEL_PLACE, "NAME=mlx_place\n"},
                {MLX_KERNEL_ROWS, "NAME=mlx_rmsnorm\n"},
                {MLX_KERNEL_ROWS, "NAME=mlx_rope\n"},
                {MLX_KERNEL_ROWS, "NAME=mlx_embed_rows\n"}};
  for (size_t i = 0; i < sizeof shared / sizeof *shared; ++i) {
    CHECK_INT(count_images(&few, shared[i].kind, shared[i].definition), 1);
    CHECK_INT(count_images(&all, shared[i].kind, shared[i].definition), 1);
  }
  CHECK_INT(count_images(&few, MLX_KERNEL_PACKED, "NAME=mlx_norm_parts\n"), 1);
  // With more than 64 tokens there is also one that adds the partial sums of a product.
  CHECK_INT(count_images(&all, MLX_KERNEL_PACKED, "NAME=mlx_norm_parts\n"), 2);
  CHECK_INT(count_images(&all, MLX_KERNEL_PACKED, "PARTIALS=1\n"), 1);
  // One per tile: no image of a product has a number of tokens, rows or columns in it, except that of a
  // group.
  for (size_t i = 0; i < all.count; ++i) {
    const char *d = all.images[i].definitions;
    if (!strstr(d, "NAME=mlx_packed_linear\n") || strstr(d, "EPILOGUE=3\n")) continue;
    CHECK(!strstr(d, "\nm=") && !strstr(d, "\nn=") && !strstr(d, "\nk="));
  }
  mlx_kernels_clear(&few);
  mlx_kernels_clear(&all);
}

TEST(products_with_and_without_a_residual_share_an_image) {
  mlx_kernels_t kernels;
  mlx_free(emit(random_llama_write(&two_layers, root, "two-layers"), 16, &kernels));
  // q, k, v, o and down; gate and up; the head has too few rows for a tile of its own.
  CHECK_INT(count_images(&kernels, MLX_KERNEL_PACKED, "EPILOGUE=0\n"), 0);
  CHECK(count_images(&kernels, MLX_KERNEL_PACKED, "EPILOGUE=1\n") >= 1);
  CHECK_INT(count_images(&kernels, MLX_KERNEL_PACKED, "EPILOGUE=2\n"), 1);
  mlx_kernels_clear(&kernels);
}

// A kernel for 9 to 16 tokens computes the norm before gate and up, and splits the input of o and down.
TEST(products_of_few_tokens_split_their_input_themselves) {
  mlx_kernels_t kernels;
  mlx_free(emit(random_llama_write(&two_layers, root, "two-layers"), 16, &kernels));
  size_t few = 0;
  for (size_t i = 0; i < kernels.count; ++i) {
    const char *d = kernels.images[i].definitions;
    if (strstr(d, "FEW=1\n") && strstr(d, "EPILOGUE=1\n")) ++few;
    if (strstr(d, "EPILOGUE=2\n")) CHECK(strstr(d, "FEW=1\n") && strstr(d, "norm_eps="));
  }
  CHECK(few > 0);
  mlx_kernels_clear(&kernels);
}

TEST(q_k_and_v_share_a_launch_in_both_modes) {
  const char *folder = random_llama_write(&two_layers, root, "two-layers");
  for (int narrow = 0; narrow < 2; ++narrow) {
    mlx_kernels_t kernels;
    mlx_free(emit_as(folder, 16, narrow, &kernels));
    CHECK_INT(count_images(&kernels, narrow ? MLX_KERNEL_LINEAR : MLX_KERNEL_PACKED, "EPILOGUE=3\n"), 1);
    CHECK_INT(count_images(&kernels, MLX_KERNEL_LINEAR, "EPILOGUE=0\n"), narrow);  // the LM head
    mlx_kernels_clear(&kernels);
  }
}

static size_t count_text(const char *text, const char *part) {
  size_t count = 0;
  for (const char *at = text; (at = strstr(at, part)); at += strlen(part)) ++count;
  return count;
}

// Between two attentions there is one launch, which also stores keys and values, for q, k and v of the first
// layer and after the last layer one more, and one for the LM head. Without 16-bit weights of one type, or
// with 16-bit activations, there is no such function.
TEST(up_to_8_tokens_have_one_launch_between_two_attentions) {
  const char *folder = random_llama_write(&two_layers, root, "two-layers");
  for (int narrow = 0; narrow < 2; ++narrow) {
    mlx_kernels_t kernels;
    char *text = emit_steps(folder, NULL, 0, narrow, &kernels);
    CHECK((strstr(text, "@step_8(") == NULL) == narrow);
    CHECK_INT(count_images(&kernels, MLX_KERNEL_FEW, "slices=1\n"), !narrow);
    CHECK_INT(count_text(text, "::@mlx_few["), narrow ? 0 : 4);
    CHECK_INT(count_text(text, "::@mlx_append["), 8);  // two layers of step_16 to step_512
    mlx_free(text);
    mlx_kernels_clear(&kernels);
  }
}

static void check_no_dispatch_is_left(const char *text) {
  static const char *const ops[] = {"stablehlo.gather",     "stablehlo.cosine", "stablehlo.sine",
                                    "stablehlo.rsqrt",      "stablehlo.reduce", "stablehlo.multiply",
                                    "stablehlo.dot_general"};
  for (size_t i = 0; i < sizeof ops / sizeof *ops; ++i) {
    if (strstr(text, ops[i])) CHECK_FAIL("IREE has to generate code for %s", ops[i]);
  }
}

// IREE's code generation took half of the time of iree-compile.
TEST(a_llama_leaves_no_dispatch_to_iree) {
  mlx_kernels_t kernels;
  char *text = emit(random_llama_write(&two_layers, root, "two-layers"), 512, &kernels);
  check_no_dispatch_is_left(text);
  mlx_free(text);
  mlx_kernels_clear(&kernels);
}

// Gemma scales the rows of its embedding; the kernel that dequantizes them does it. Its image names no size,
// so that packages contain it.
TEST(a_quantized_gemma_leaves_no_dispatch_to_iree) {
  static const mlx_step_size_t steps[] = {{1, 1}, {16, 16}, {64, 64}};
  char folder[80];
  mlx_kernels_t kernels;
  snprintf(folder, sizeof folder, "%s/gemma3", root);
  CHECK_OK(mlx_make_dirs(folder, 0700));
  write_wide_model("gemma3", folder);
  char *text = emit_quantized(folder, steps, 3, false, MLX_QUANTIZE_Q8_0, &kernels);
  check_no_dispatch_is_left(text);
  CHECK_INT(count_images(&kernels, MLX_KERNEL_PACKED, "NAME=mlx_embed\n"), 1);
  for (size_t i = 0; i < kernels.count; ++i) {
    if (strstr(kernels.images[i].definitions, "NAME=mlx_embed\n"))
      CHECK(mlx_kernel_image_is_common(&kernels.images[i]));
  }
  mlx_free(text);
  mlx_kernels_clear(&kernels);
}

// Packages contain the attention kernels of usual heads, those of long segments too.
TEST(attention_images_of_a_llama_are_common) {
  mlx_kernels_t kernels;
  size_t count = 0;
  mlx_free(emit(random_llama_write(&two_layers, root, "two-layers"), 512, &kernels));
  for (size_t i = 0; i < kernels.count; ++i) {
    const mlx_kernel_image_request_t *image = &kernels.images[i];
    if (image->kind != MLX_KERNEL_ATTENTION_F32) continue;
    ++count;
    if (!mlx_kernel_image_is_common(image)) CHECK_FAIL("not common: %s", image->definitions);
  }
  CHECK(count > 1);
  CHECK_INT(count_images(&kernels, MLX_KERNEL_ATTENTION_F32, "warpgroups=1\n"), 1);
  mlx_kernels_clear(&kernels);
}

// A launch's grid is an operand: launches that differ in it alone share an executable in the module.
TEST(grid_is_an_operand_of_the_launch) {
  mlx_kernels_t kernels;
  char *text = emit(random_llama_write(&two_layers, root, "two-layers"), 16, &kernels);
  CHECK_CONTAINS(text, "count(%device: !hal.device, %x: index, %y: index, %z: index)");
  CHECK(!strstr(text, "count(%device: !hal.device) ->"));
  mlx_free(text);
  mlx_kernels_clear(&kernels);
}

// An executable for each launch made iree-compile compare thousands of equal ones.
TEST(launches_of_a_kernel_share_an_executable) {
  mlx_kernels_t kernels;
  char *text = emit(random_llama_write(&two_layers, root, "two-layers"), 512, &kernels);
  const size_t executables = count_text(text, "hal.executable private @kernel"),
               launches = count_text(text, " = flow.dispatch @kernel");
  CHECK(executables >= kernels.count && executables < 2 * kernels.count);
  CHECK(launches > 2 * executables);
  CHECK(!strstr(text, "hal.dispatch.extern"));
  mlx_free(text);
  mlx_kernels_clear(&kernels);
}

// The longest image must not start last: on two CPUs the other one would wait for it.
TEST(longest_images_are_compiled_first) {
  mlx_kernels_t kernels;
  size_t order[64];
  bool seen[64] = {false};
  mlx_free(emit(random_llama_write(&two_layers, root, "two-layers"), 512, &kernels));
  CHECK(kernels.count <= 64);
  mlx_kernels_order(&kernels, order);
  for (size_t i = 0; i < kernels.count; ++i) {
    CHECK(order[i] < kernels.count && !seen[order[i]]);
    seen[order[i]] = true;
    if (!i) continue;
    const int before = mlx_kernel_image_cost(&kernels.images[order[i - 1]]),
              cost = mlx_kernel_image_cost(&kernels.images[order[i]]);
    CHECK(before > cost || (before == cost && order[i - 1] > order[i]));
  }
  CHECK_INT(kernels.images[order[0]].kind, MLX_KERNEL_DECODE);
  CHECK_INT(kernels.images[order[1]].kind, MLX_KERNEL_SAMPLE);
  mlx_kernels_clear(&kernels);
}

TEST(cost_of_a_product_grows_with_its_tile) {
  static const struct {
    int64_t bm;
    bool pair;
  } ascending[] = {{16, false}, {64, false}, {128, false}, {64, true}, {128, true}};
  for (size_t i = 1; i < sizeof ascending / sizeof *ascending; ++i) {
    const mlx_kernel_image_request_t small = {.kind = MLX_KERNEL_PACKED,
                                              .build = mlx_cuda_tiled_build(ascending[i - 1].bm,
                                                                            ascending[i - 1].pair)},
                                     large = {
                                         .kind = MLX_KERNEL_LINEAR,
                                         .build = mlx_cuda_tiled_build(ascending[i].bm, ascending[i].pair)};
    CHECK(mlx_kernel_image_cost(&small) < mlx_kernel_image_cost(&large));
  }
}

// Splitting x takes the least. Products on tensor cores and attention of long segments have wgmma.
TEST(images_say_how_they_are_compiled) {
  mlx_kernels_t kernels;
  size_t split = 0, tiled = 0, attention = 0;
  mlx_free(emit(random_llama_write(&two_layers, root, "two-layers"), 512, &kernels));
  for (size_t i = 0; i < kernels.count; ++i) {
    const mlx_kernel_image_request_t *image = &kernels.images[i];
    const bool is_split = strstr(image->definitions, "SPLIT_INPUT=1\n") != NULL,
               is_tiled = strstr(image->definitions, "\nbm=") != NULL,
               is_attention = strstr(image->definitions, "\nwarpgroups=1\n") != NULL;
    CHECK_INT(image->build.wgmma, is_tiled || is_attention);
    if (is_split) CHECK_INT(mlx_kernel_image_cost(image), 10);
    split += is_split;
    tiled += is_tiled;
    attention += is_attention;
  }
  CHECK(split > 0 && tiled > 0 && attention > 0);
  mlx_kernels_clear(&kernels);
}

// A launch may request a second image before the file of its first one is written to the module.
TEST(file_of_an_image_stays_valid_while_others_are_requested) {
  mlx_kernels_t kernels = {.gpu = mlx_gpu_kind_find(90)};
  const char *files[100];
  for (int i = 0; i < 100; ++i) {
    char definitions[32];
    snprintf(definitions, sizeof definitions, "NAME=mlx_%d\n", i);
    CHECK_OK(mlx_kernels_image(&kernels, MLX_KERNEL_ROWS, definitions, (mlx_kernel_build_t){0}, &files[i]));
  }
  for (int i = 0; i < 100; ++i) {
    char expected[32];
    snprintf(expected, sizeof expected, "rows%d.fatbin", i + 1);
    CHECK(files[i] == kernels.images[i].file);
    CHECK_TEXT(files[i], expected);
  }
  mlx_kernels_clear(&kernels);
}

int main(int argc, char **argv) {
  snprintf(root, sizeof root, "/tmp/mlxcel-images-XXXXXX");
  if (!mkdtemp(root)) return 1;
  const check_case_t cases[] = {
      CASE(all_steps_share_the_images_whose_tile_is_the_same),
      CASE(products_with_and_without_a_residual_share_an_image),
      CASE(products_of_few_tokens_split_their_input_themselves),
      CASE(q_k_and_v_share_a_launch_in_both_modes),
      CASE(up_to_8_tokens_have_one_launch_between_two_attentions),
      CASE(a_llama_leaves_no_dispatch_to_iree),
      CASE(a_quantized_gemma_leaves_no_dispatch_to_iree),
      CASE(attention_images_of_a_llama_are_common),
      CASE(grid_is_an_operand_of_the_launch),
      CASE(launches_of_a_kernel_share_an_executable),
      CASE(longest_images_are_compiled_first),
      CASE(cost_of_a_product_grows_with_its_tile),
      CASE(images_say_how_they_are_compiled),
      CASE(file_of_an_image_stays_valid_while_others_are_requested),
  };
  const int failed = check_run(cases, sizeof cases / sizeof *cases, argc, argv);
  mlx_status_free(mlx_remove_tree(root));
  return failed;
}
