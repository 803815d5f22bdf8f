// Every architecture compiles for sm_90 with --kernels=required: every product, attention and experts node
// has a kernel, NVRTC compiles the images, and iree-compile links them into a module. Two step sizes instead
// of five keep it short: decode, and prefill. Needs no GPU; arch_gpu_test.c runs the whole modules on one.
// GPUs with 99 KB of shared memory compile one image of each kernel; plan_test.c has their decode kernels.
#include <string.h>

#include "base/file.h"
#include "tests/support/compile_jobs.h"
#include "tests/support/listed.h"
#include "tests/support/packed_model.h"
#include "tests/support/quick_nvrtc.h"
#include "tests/support/wide_fixtures.h"

// ----------------------------------------------------------------------------------------------------------
// Every architecture

// Kernels compute all norms. Of some architectures, which have LayerNorm, biases, MLPs without a gate, RoPE
// of a part of each head or of adjacent numbers, or latent attention, they compute everything.
static void check_small_ops(const char *name, const char *text) {
  static const char *const whole[] = {"starcoder2",  "gpt_neox",    "qwen2",         "glm4",
                                      "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "mistral4"};
  static const char *const ops[] = {"stablehlo.add", "stablehlo.multiply", "stablehlo.concatenate"};
  CHECK(!strstr(text, "stablehlo.rsqrt"));
  for (size_t i = 0; i < sizeof whole / sizeof *whole; ++i) {
    if (strcmp(name, whole[i])) continue;
    for (size_t j = 0; j < sizeof ops / sizeof *ops; ++j)
      if (strstr(text, ops[j])) CHECK_FAIL("%s has %s", name, ops[j]);
  }
}

static void check_folder(const char *folder, const char *name) {
  const mlx_compile_options_t options = {.target = "cuda:sm_90",
                                         .weights = MLX_WEIGHTS_AUTO,
                                         .context = CONTEXT,
                                         .kernels = MLX_KERNELS_REQUIRED};
  mlx_compile_job_t job;
  mlx_cache_entry_t entry;
  compile_quickly(true);
  begin_job(folder, &options, &job);
  emit_job(&job);
  check_small_ops(name, job.mlir);
  CHECK_OK(mlx_iree_compiler_find(job.cache, NULL, NULL, &job.compiler));
  CHECK_OK(mlx_job_get_module(&job, &entry));
  mlx_cache_release(&entry);
  mlx_iree_compiler_release(&job.compiler);
  end_job(&job);
}

static mlx_status_t check_wide(void *user, const char *file) {
  char folder[] = "/tmp/mlxcel-wide-XXXXXX", name[64];
  size_t *compiled = user;
  if (!wide_name(file, name)) return NULL;
  CHECK(mkdtemp(folder));
  write_wide_model(name, folder);
  check_folder(folder, name);
  ++*compiled;
  CHECK_OK(mlx_remove_tree(folder));
  return NULL;
}

TEST(every_architecture_compiles_for_sm_90_with_kernels_required) {
  size_t compiled = 0;
  CHECK_OK(mlx_list_dir(WIDE_FIXTURES, check_wide, &compiled));
  fprintf(stderr, "  %zu fixtures compiled\n", compiled);
  check_compared(compiled, listed_files("fixtures/wide/", ".json"));
}

// Opens the wide fixture |name| and emits its functions of 1 and 16 tokens.
static void emit_wide(const char *name, const mlx_compile_options_t *options, const char *folder,
                      mlx_compile_job_t *job) {
  write_wide_model(name, folder);
  begin_job(folder, options, job);
  emit_job(job);
}

// Constant |nth| of the last launch |name| of |mlir|.
static int constant_of(const char *mlir, const char *name, int nth) {
  char line[96];
  const char *at = NULL, *next = mlir;
  snprintf(line, sizeof line, "%%%s_constant%d = arith.constant ", name, nth);
  while ((next = strstr(next, line))) at = next += strlen(line);
  if (!at) CHECK_FAIL("no launch %s", name);
  return atoi(at);
}

// Layers with a window have 2 KV heads of 256, the others one of 512. The last two read the keys of layers 2
// and 3. A place is counted in lines of 64 bytes: where the layer is in a page, the page, and a window page.
TEST(layers_find_their_keys_in_pages_with_layers_of_other_heads_and_share_them) {
  enum { LAYER = 2 * 2 * 16 * 256 * 4 / 64, PAGE = 2 * LAYER };
  static const int places[][3] = {{0, PAGE, -1},       {0, PAGE, PAGE},   {LAYER, PAGE, -1},
                                  {LAYER, PAGE, PAGE}, {LAYER, PAGE, -1}, {LAYER, PAGE, PAGE}};
  const mlx_compile_options_t options = {.target = "cuda:sm_90",
                                         .weights = MLX_WEIGHTS_AUTO,
                                         .context = CONTEXT,
                                         .kernels = MLX_KERNELS_REQUIRED};
  char folder[] = "/tmp/mlxcel-wide-XXXXXX";
  mlx_compile_job_t job;
  CHECK(mkdtemp(folder));
  emit_wide("gemma4", &options, folder, &job);
  for (int layer = 0; layer < 6; ++layer)
    for (int i = 0; i < 3; ++i) {
      char attended[32], appended[32];
      snprintf(attended, sizeof attended, "layer%d.attended", layer);
      snprintf(appended, sizeof appended, "layer%d.append", layer);
      CHECK_INT(constant_of(job.mlir, attended, i), places[layer][i]);
      CHECK_INT(constant_of(job.mlir, appended, i), places[layer][i]);
      CHECK_INT(constant_of(job.mlir, appended, 4), layer >= 4  ? 0
                                                    : layer % 2 ? 1
                                                                : 2);  // keys that it stores
    }
  end_job(&job);
  CHECK_OK(mlx_remove_tree(folder));
}

// A page has one row of 576 numbers per position and layer: 16 of them are 576 lines.
TEST(latent_attention_stores_one_row_per_position_and_layer) {
  enum { LAYER = 16 * 576 * 4 / 64, PAGE = 3 * LAYER };
  const mlx_compile_options_t options = {.target = "cuda:sm_90",
                                         .weights = MLX_WEIGHTS_AUTO,
                                         .context = CONTEXT,
                                         .kernels = MLX_KERNELS_REQUIRED};
  char folder[] = "/tmp/mlxcel-wide-XXXXXX";
  mlx_compile_job_t job;
  CHECK(mkdtemp(folder));
  emit_wide("deepseek_v3", &options, folder, &job);
  for (int layer = 0; layer < 3; ++layer) {
    static const char *const names[] = {"attended", "append"};
    char launch[32];
    for (int i = 0; i < 2; ++i) {
      snprintf(launch, sizeof launch, "layer%d.%s", layer, names[i]);
      CHECK_INT(constant_of(job.mlir, launch, 0), layer * LAYER);
      CHECK_INT(constant_of(job.mlir, launch, 1), PAGE);
    }
    CHECK_INT(constant_of(job.mlir, launch, 3), 4);   // heads
    CHECK_INT(constant_of(job.mlir, launch, 4), 96);  // numbers of a query before its matrix
    CHECK_INT(constant_of(job.mlir, launch, 5), 32);  // those from here on rotate
  }
  end_job(&job);
  CHECK_OK(mlx_remove_tree(folder));
}

// All layers share one KV pool, so attention is on the kernel path in all of them or in none. Products have
// kernels of their own. Its rows have 28 numbers, which is no multiple of 8.
TEST(latent_attention_of_other_sizes_is_on_the_generic_path_of_a_gpu) {
  mlx_model_t *model;
  mlx_variant_t variant;
  uint64_t weights;
  int attention = 0, products = 0;
  CHECK_OK(mlx_model_open(FIXTURES "deepseek_v2", &model));
  CHECK_OK(mlx_compile_describe_ops(model, "cuda:sm_90", &variant, &weights));
  for (size_t i = 0; i < variant.op_count; ++i) {
    const bool generic = !strcmp(variant.ops[i].decode, "generic");
    attention += !strcmp(variant.ops[i].op, "attention") && generic;
    products += !strcmp(variant.ops[i].op, "linear") && !generic;
  }
  CHECK_INT(attention, 1);
  CHECK(products > 0);
  mlx_model_close(model);
}

TEST(gptq_in_act_order_compiles_for_sm_90_with_kernels_required) {
  static const packed_kind_t kind = {"gptq", MLX_PACKED_GPTQ, 4, 32, MLX_F16, false, ACT_ORDER, false, NULL};
  char folder[] = "/tmp/mlxcel-wide-XXXXXX";
  mlx_model_t *model;
  folder_t packed;
  CHECK(mkdtemp(folder));
  write_wide_model("llama-yarn", folder);
  CHECK_OK(mlx_model_open(folder, &model));
  CHECK(write_packed_model(&kind, folder, model, &packed, NULL) > 0);
  mlx_model_close(model);
  check_folder(packed.path, "GPTQ in act order");
  end(&packed);
  CHECK_OK(mlx_remove_tree(folder));
}

// Rows of fused projections, experts and a corrected router, quantized.
TEST(quantized_recurrent_mixtures_compile_for_sm_90_with_kernels_required) {
  static const packed_kind_t kind = {"mlx", MLX_PACKED_MLX, 4,     32,  MLX_BF16,
                                     true,  ACT_ORDER_NONE, false, NULL};
  static const char *const names[] = {"qwen3_next", "lfm2_moe"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    char folder[] = "/tmp/mlxcel-wide-XXXXXX";
    mlx_model_t *model;
    folder_t packed;
    CHECK(mkdtemp(folder));
    write_wide_model(names[i], folder);
    CHECK_OK(mlx_model_open(folder, &model));
    CHECK(write_packed_model(&kind, folder, model, &packed, NULL) > 0);
    mlx_model_close(model);
    check_folder(packed.path, names[i]);
    end(&packed);
    CHECK_OK(mlx_remove_tree(folder));
  }
}

// ----------------------------------------------------------------------------------------------------------
// GPUs with 99 KB of shared memory

static bool has_16_bit_rows(const mlx_kernel_image_request_t *image) {
  return strstr(image->definitions, "bits=16\n") != NULL;
}

// True if both images have the same function of the same source, for weights of the same kind: the first line
// of their definitions is NAME=FUNCTION, or their source has only one function.
static bool is_same_function(const mlx_kernel_image_request_t *a, const mlx_kernel_image_request_t *b) {
  const size_t line = strcspn(a->definitions, "\n");
  if (a->kind != b->kind || has_16_bit_rows(a) != has_16_bit_rows(b)) return false;
  if (strncmp(a->definitions, "NAME=", 5)) return strncmp(b->definitions, "NAME=", 5) != 0;
  return strcspn(b->definitions, "\n") == line && !strncmp(a->definitions, b->definitions, line);
}

// Adds the functions of |from| that |to| does not have yet. plan_test.c compiles the decode kernel of an 8B
// model.
static void add_images(const mlx_kernels_t *from, mlx_kernels_t *to) {
  for (size_t i = 0; i < from->count; ++i) {
    const mlx_kernel_image_request_t *image = &from->images[i];
    const char *file;
    size_t k = 0;
    while (k < to->count && !is_same_function(image, &to->images[k])) ++k;
    if (k < to->count || image->kind == MLX_KERNEL_DECODE) continue;
    CHECK_OK(mlx_kernels_image(to, image->kind, image->definitions, image->build, &file));
  }
}

static bool has_function(const mlx_kernels_t *kernels, mlx_kernel_kind_t kind, const char *name) {
  char line[64];
  snprintf(line, sizeof line, "NAME=%s\n", name);
  for (size_t i = 0; i < kernels->count; ++i) {
    const mlx_kernel_image_request_t *image = &kernels->images[i];
    if (image->kind == kind && !strncmp(image->definitions, line, strlen(line))) return true;
  }
  return false;
}

// The functions that networks with exact 16-bit weights, quantized weights, and quantized experts call.
static void collect_images(const mlx_gpu_kind_t *gpu, mlx_kernels_t *out) {
  static const struct {
    const char *fixture;
    mlx_quantize_t quantize;
  } networks[] = {{"smollm3", MLX_QUANTIZE_NONE},
                  {"smollm3", MLX_QUANTIZE_Q4_1},
                  {"gpt_oss-mxfp4", MLX_QUANTIZE_NONE},
                  {"deepseek_v3", MLX_QUANTIZE_NONE}};
  char target[16];
  snprintf(target, sizeof target, "cuda:sm_%d", gpu->sm);
  for (size_t i = 0; i < sizeof networks / sizeof *networks; ++i) {
    const mlx_compile_options_t options = {.target = target,
                                           .weights = MLX_WEIGHTS_AUTO,
                                           .quantize = networks[i].quantize,
                                           .context = CONTEXT,
                                           .kernels = MLX_KERNELS_REQUIRED};
    char folder[] = "/tmp/mlxcel-wide-XXXXXX";
    mlx_compile_job_t job;
    CHECK(mkdtemp(folder));
    write_wide_model(networks[i].fixture, folder);
    begin_job(folder, &options, &job);
    emit_job(&job);
    add_images(&job.kernels, out);
    end_job(&job);
    CHECK_OK(mlx_remove_tree(folder));
  }
}

TEST(each_kernel_compiles_for_every_gpu_with_99_kb_of_shared_memory) {
  const mlx_gpu_kind_t *gpu;
  mlx_nvrtc_t *nvrtc;
  size_t gpus = 0;
  compile_quickly(true);
  CHECK_OK(mlx_nvrtc_open(NULL, &nvrtc));
  for (size_t i = 0; (gpu = mlx_gpu_kind_at(i)); ++i) {
    double seconds = 0;
    char folder[] = "/tmp/mlxcel-images-XXXXXX";
    mlx_kernels_t kernels = {.gpu = gpu, .cpu_seconds = &seconds};
    if (!gpu->kernel_sm || gpu->shared_bytes != 99 << 10) continue;
    CHECK(mkdtemp(folder));
    collect_images(gpu, &kernels);
    CHECK(has_function(&kernels, MLX_KERNEL_PACKED, "mlx_packed_linear"));
    CHECK(has_function(&kernels, MLX_KERNEL_PACKED, "mlx_experts_gemm"));
    CHECK(has_function(&kernels, MLX_KERNEL_ATTENTION_F32, "mlx_attend"));
    CHECK_OK(mlx_kernels_compile(&kernels, nvrtc, folder, NULL));
    fprintf(stderr, "  sm_%d: %zu images in %.1f s of CPU time\n", gpu->sm, kernels.count, seconds);
    mlx_kernels_clear(&kernels);
    CHECK_OK(mlx_remove_tree(folder));
    ++gpus;
  }
  CHECK_INT(gpus, 4);  // sm_86, sm_89, sm_120 and sm_121
  mlx_nvrtc_close(nvrtc);
}

TEST_MAIN(CASE(layers_find_their_keys_in_pages_with_layers_of_other_heads_and_share_them),
          CASE(latent_attention_stores_one_row_per_position_and_layer),
          CASE(latent_attention_of_other_sizes_is_on_the_generic_path_of_a_gpu),
          CASE(gptq_in_act_order_compiles_for_sm_90_with_kernels_required),
          CASE(quantized_recurrent_mixtures_compile_for_sm_90_with_kernels_required),
          CASE(every_architecture_compiles_for_sm_90_with_kernels_required),
          CASE(each_kernel_compiles_for_every_gpu_with_99_kb_of_shared_memory))
