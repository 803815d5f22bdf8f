// When a module links our kernels and when it uses the generic path, the messages about it, and the contents
// of a module with kernels. Needs no GPU.
#include "compiler/kernels.h"

#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

#include "artifact/manifest.h"
#include "base/cpu.h"
#include "base/file.h"
#include "compiler/compile.h"
#include "compiler/emit.h"
#include "compiler/kernel_plan.h"
#include "compiler/kernel_source.h"
#include "tests/compiler/emitted_weight.h"
#include "tests/support/command.h"
#include "tests/support/golden_text.h"
#include "tests/support/quick_nvrtc.h"
#include "tests/support/random_llama.h"

#define GOLDEN MLXCEL_SOURCE_DIR "/tests/goldens/one-layer.kernels.iree.mlir"

static char root[64];
static const random_llama_t one_layer = {64, 96, 4, 2, 16, 1, 320, false, 10000};
static const random_llama_t odd = {200, 328, 5, 5, 48, 3, 1003, false, 10000};
static const random_llama_t blocks_of_32 = {160, 352, 4, 2, 48, 2, 203, true, 10000};
static const random_llama_t wide = {136, 9224, 36, 2, 192, 1, 320, false, 10000};

// ----------------------------------------------------------------------------------------------------------
// Compiling

static char notes[4096];
static void collect(void *user, mlx_report_kind_t kind, const char *text) {
  (void)user;
  if (kind == MLX_REPORT_NOTE) snprintf(notes + strlen(notes), sizeof notes - strlen(notes), "%s\n", text);
}

// Compiles only the module. Collects the notes in |notes|.
static mlx_status_t compile(const char *model, mlx_compile_options_t options, mlx_manifest_t *out_manifest) {
  const mlx_report_t report = {.emit = collect};
  mlx_cache_t *cache;
  mlx_compiled_t compiled;
  options.module_only = true;
  options.report = &report;
  notes[0] = 0;
  MLX_TRY(mlx_cache_open(NULL, &cache));
  mlx_status_t status = mlx_compile(model, &options, cache, &compiled);
  if (!status)
    status = mlx_manifest_read("manifest", compiled.manifest, compiled.manifest_length, out_manifest);
  mlx_compiled_release(&compiled);
  mlx_cache_close(cache);
  return status;
}

static mlx_compile_options_t options_for(const char *target, mlx_dtype_t dtype, mlx_kernel_choice_t kernels) {
  return (mlx_compile_options_t){.target = target, .dtype = dtype, .context = 16, .kernels = kernels};
}

static void check_manifest(const mlx_manifest_t *m, const char *kernels, bool ragged, int64_t burst) {
  const mlx_variant_t *v = &m->variants[0];
  CHECK_TEXT(mlx_variant_kernels_text(v).text, kernels);
  CHECK_INT(v->ragged, ragged);
  CHECK_INT(v->step_count, ragged ? 5 : 3);
  CHECK_INT(v->samples, v->kernel_count > 0);
  CHECK_INT(v->burst, burst);
}

// ----------------------------------------------------------------------------------------------------------
// The generic path

static bool loader_finds(const char *name) {
  void *library = dlopen(name, RTLD_LAZY);
  if (library) dlclose(library);
  return library != NULL;
}

// The second round finds the generic module in the cache.
TEST(without_nvrtc_auto_uses_the_generic_path_with_a_note_and_required_fails) {
  if (loader_finds("libnvrtc.so.13") || loader_finds("libnvrtc.so.12"))
    SKIP("this machine has a CUDA toolkit, so NVRTC is always found");
  const char *built_in = mlx_nvrtc_built_in, *model = random_llama_write(&one_layer, root, "one-layer");
  mlx_manifest_t manifest;
  for (int i = 0; i < 2; ++i) {
    mlx_nvrtc_built_in = "";
    mlx_status_t status = compile(model, options_for("cuda:sm_80", MLX_BF16, MLX_KERNELS_AUTO), &manifest);
    mlx_nvrtc_built_in = built_in;
    CHECK_OK(status);
    check_manifest(&manifest, "none (generic path)", false, 0);
    CHECK_INT(manifest.variants[0].driver, 0);
    CHECK_CONTAINS(notes, "no fast kernels: NVRTC, which compiles the GPU kernels, was not found");
  }
  mlx_nvrtc_built_in = "";
  mlx_status_t refusal = compile(model, options_for("cuda:sm_80", MLX_BF16, MLX_KERNELS_REQUIRED), &manifest);
  mlx_nvrtc_built_in = built_in;
  CHECK_CONTAINS(mlx_status_hint_text(refusal), "pip install --target DIR nvidia-cuda-nvrtc==");
  CHECK_CONTAINS(mlx_status_hint_text(refusal), "--kernels=off");
  CHECK_ERROR(refusal, MLX_UNAVAILABLE, "NVRTC, which compiles the GPU kernels, was not found");
}

// A network with attention heads of 520 numbers, which no kernel supports.
static const char *wide_heads(void) {
  static const random_llama_t shape = {64, 64, 1, 1, 520, 2, 300, true, 10000};
  return random_llama_write(&shape, root, "wide-heads");
}

TEST(required_kernels_fail_with_the_reason_if_unsupported) {
  static const struct {
    const char *target;
    mlx_dtype_t dtype;
    const char *reason;
  } cases[] = {
      {"cpu:x86-64-v3", MLX_BF16,
       "llama has no fast CPU kernel yet (not supported: attention heads of this size)"},
      {"cuda:sm_75", MLX_BF16, "no fast kernels: the kernels need an sm_80 or newer GPU"},
      {"cuda:sm_80", MLX_F32,
       "no fast kernels: the kernels need quantized or 16-bit weights (--dtype bf16 or f16)"},
      {"cuda:sm_90", MLX_F16, "llama has no fast GPU kernel for attention heads of this size"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    mlx_manifest_t manifest;
    mlx_status_t status =
        compile(wide_heads(), options_for(cases[i].target, cases[i].dtype, MLX_KERNELS_REQUIRED), &manifest);
    CHECK_CONTAINS(mlx_status_hint_text(status), "--kernels=auto");
    CHECK_ERROR(status, MLX_UNSUPPORTED, cases[i].reason);
  }
}

TEST(one_note_reports_that_a_whole_network_is_on_the_generic_path) {
  mlx_manifest_t manifest;
  CHECK_OK(compile(wide_heads(), options_for("cuda:sm_80", MLX_F32, MLX_KERNELS_AUTO), &manifest));
  check_manifest(&manifest, "none (generic path)", false, 0);
  CHECK_CONTAINS(
      notes,
      "no fast kernels: the kernels need quantized or 16-bit weights (--dtype bf16 or f16); using the "
      "generic path (slower)\n");
}

TEST(unsupported_attention_is_lowered_by_itself_with_a_note_and_products_keep_their_kernels) {
  mlx_manifest_t manifest;
  CHECK_OK(compile(wide_heads(), options_for("cuda:sm_80", MLX_BF16, MLX_KERNELS_AUTO), &manifest));
  check_manifest(&manifest, "linear, packed, place, sample, rows", false, 0);
  CHECK_CONTAINS(
      notes,
      "llama has no fast GPU kernel for attention heads of this size; using the generic path for it "
      "(slower)");
}

// ----------------------------------------------------------------------------------------------------------
// The kernel path

TEST(manifest_lists_the_linked_kernels_and_functions) {
  const char *model = random_llama_write(&one_layer, root, "one-layer");
  mlx_manifest_t manifest;
  mlx_compile_options_t options = options_for("cuda:sm_90", MLX_BF16, MLX_KERNELS_REQUIRED);
  CHECK_OK(compile(model, options, &manifest));
  check_manifest(&manifest, "decode, linear, attention, attention_f32, place, sample, rows", true, 128);
  CHECK_INT(manifest.variants[0].driver, 13000);  // CUDA version of NVRTC
  options = options_for("cuda:sm_90", MLX_BF16, MLX_KERNELS_OFF);
  CHECK_OK(compile(model, options, &manifest));
  check_manifest(&manifest, "none (generic path)", false, 0);
  CHECK_INT(manifest.variants[0].driver, 0);
}

// Modes of a module: --dtype bf16, 16-bit weights with f32 activations, quantized weights.
typedef enum emit_mode { NARROW, EXACT, QUANTIZED } emit_mode_t;

// The module of |shape| for |gpu| in |mode|, with step_1 and a step of |tokens| tokens. Release the text with
// mlx_free, and clear the kernels.
static char *emit_as(emit_mode_t mode, const random_llama_t *shape, const char *name,
                     const mlx_gpu_kind_t *gpu, int64_t tokens, mlx_kernels_t *out_kernels,
                     mlx_module_options_t *out_options) {
  mlx_model_t *model;
  mlx_graph_t *graph;
  const char *missing;
  char *text;
  CHECK_OK(mlx_model_open(random_llama_write(shape, root, name), &model));
  mlx_module_options_initialize(64, out_options);
  out_options->form = MLX_FORM_IREE;
  out_options->dtype = mode == QUANTIZED ? MLX_F32 : MLX_BF16;
  out_options->kv = mode == NARROW ? MLX_BF16 : MLX_F32;
  out_options->narrow = mode == NARROW;
  if (mode == QUANTIZED) {
    out_options->quantize = MLX_QUANTIZE_Q4_1;
    out_options->layout = MLX_LAYOUT_TILES;
  }
  *out_kernels = (mlx_kernels_t){.gpu = gpu};
  CHECK_OK(mlx_model_build_graph(model, 64, &graph));
  CHECK_OK(mlx_module_use_kernels(model, graph, out_kernels, out_options, &missing));
  CHECK(out_options->kernels == out_kernels);
  mlx_module_options_set_steps((const mlx_step_size_t[]){{1, 1}, {tokens, 16}}, 2, out_options);
  CHECK_OK(mlx_module_emit(model, graph, out_options, &text, NULL));
  mlx_graph_free(graph);
  mlx_model_close(model);
  return text;
}

static char *emit(const random_llama_t *shape, const char *name, const mlx_gpu_kind_t *gpu, int64_t tokens,
                  mlx_kernels_t *out_kernels, mlx_module_options_t *out_options) {
  return emit_as(NARROW, shape, name, gpu, tokens, out_kernels, out_options);
}

TEST(network_too_wide_for_shared_memory_decodes_op_by_op) {
  static const struct {
    int sm;
    bool fits;
  } cases[] = {{80, true}, {86, false}, {89, false}, {90, true}, {100, true}, {120, false}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    mlx_kernels_t kernels;
    mlx_module_options_t options;
    char *text = emit(&wide, "wide", mlx_gpu_kind_find(cases[i].sm), 16, &kernels, &options);
    CHECK_INT(mlx_kernels_use(&kernels, MLX_KERNEL_DECODE), cases[i].fits);
    CHECK(mlx_kernels_use(&kernels, MLX_KERNEL_LINEAR) &&
          mlx_kernels_use(&kernels, MLX_KERNEL_ATTENTION_F32));
    CHECK_INT(strstr(text, "@burst(") != NULL, cases[i].fits);
    CHECK_CONTAINS(text, "@step_1(");
    mlx_free(text);
    mlx_kernels_clear(&kernels);
  }
}

TEST(module_with_kernels_matches_golden_and_iree_compile_parses_it) {
  mlx_kernels_t kernels;
  mlx_module_options_t options;
  char *text = emit(&one_layer, "one-layer", mlx_gpu_kind_find(90), 64, &kernels, &options);
  check_golden_text(text, strlen(text), GOLDEN);
  mlx_free(text);
  mlx_kernels_clear(&kernels);
  command_t parse;
  command_start(&parse, (const char *const[]){MLXCEL_TEST_IREE_COMPILE, "--compile-to=input", GOLDEN, "-o",
                                              "/dev/null", NULL});
  command_wait(&parse);
  if (parse.exit_code) CHECK_FAIL("iree-compile refuses %s: %s", GOLDEN, parse.err);
  command_free(&parse);
}

// The runtime owns all state; the only variable is the scratch memory of the decode kernel.
TEST(module_with_kernels_has_no_state_but_the_scratch_memory) {
  mlx_kernels_t kernels;
  mlx_module_options_t options;
  char *text = emit(&one_layer, "one-layer", mlx_gpu_kind_find(90), 16, &kernels, &options);
  const char *first = strstr(text, "mutable");
  CHECK(first && !strstr(first + 1, "mutable"));
  mlx_free(text);
  mlx_kernels_clear(&kernels);
}

// Logits, hidden states, history and KV pool are bound to the kernels that write them: nothing is copied.
TEST(step_on_the_kernel_path_copies_nothing) {
  command_t compile;
  command_start(&compile, (const char *const[]){MLXCEL_TEST_IREE_COMPILE, "--compile-to=stream",
                                                "--iree-execution-model=async-external",
                                                "--iree-hal-target-device=cuda", "--iree-cuda-target=sm_90",
                                                GOLDEN, "-o", "-", NULL});
  command_wait(&compile);
  if (compile.exit_code) CHECK_FAIL("iree-compile fails on %s: %s", GOLDEN, compile.err);
  CHECK_CONTAINS(compile.out, "@mlx_attend");
  CHECK(!strstr(compile.out, "stream.cmd.copy"));
  command_free(&compile);
}

// ----------------------------------------------------------------------------------------------------------
// Networks of which only some ops have kernels

#define GEMMA3 MLXCEL_SOURCE_DIR "/tests/fixtures/gemma3"  // layer 0 has a window of 12, layer 1 none

static char *emit_fixture(const char *fixture, mlx_quantize_t quantize, int64_t context,
                          mlx_kernels_t *out_kernels, const char **out_missing) {
  mlx_model_t *model;
  mlx_graph_t *graph;
  mlx_module_options_t options;
  char *text;
  CHECK_OK(mlx_model_open(fixture, &model));
  CHECK_OK(mlx_model_build_graph(model, context, &graph));
  mlx_module_options_initialize(context, &options);
  options.form = MLX_FORM_IREE;
  options.dtype = quantize ? MLX_F32 : MLX_BF16;
  options.quantize = quantize;
  if (quantize) options.layout = MLX_LAYOUT_TILES;
  options.kv = options.dtype;
  options.narrow = !quantize;
  *out_kernels = (mlx_kernels_t){.gpu = mlx_gpu_kind_find(90)};
  CHECK_OK(mlx_module_use_kernels(model, graph, out_kernels, &options, out_missing));
  CHECK(options.kernels == out_kernels);
  CHECK_OK(mlx_module_emit(model, graph, &options, &text, NULL));
  mlx_graph_free(graph);
  mlx_model_close(model);
  return text;
}

static size_t count_text(const char *text, const char *part) {
  size_t count = 0;
  for (; (text = strstr(text, part)); ++text) ++count;
  return count;
}

// All layers share the KV pool, which all their kernels read.
TEST(layers_with_and_without_a_window_share_their_kernels) {
  mlx_kernels_t kernels;
  const char *missing;
  char *text = emit_fixture(GEMMA3, MLX_QUANTIZE_NONE, 32, &kernels, &missing);
  CHECK(!missing);
  CHECK_CONTAINS(text, "x32xbf16> {iree.abi.output = 1");  // 2 KV heads of 16
  // Functions of 16, 64, 256 and 512 tokens: 6 products in each of 2 layers (gate and up are one), and the
  // head. The decode kernel computes step_1.
  CHECK_INT(count_text(text, "::@mlx_linear[") + count_text(text, "::@mlx_gemv["), 4 * (6 * 2 + 1));
  // 2 layers; from 256 tokens on a second launch for long segments
  CHECK_INT(count_text(text, "::@mlx_attend["), 2 * 2 + 2 * 2 * 2);
  CHECK(!strstr(text, "by_output"));  // a product on the generic path
  size_t images = 0;
  for (size_t i = 0; i < kernels.count; ++i) images += kernels.images[i].kind == MLX_KERNEL_ATTENTION;
  CHECK_INT(images, 1);
  // The window is a parameter of each launch.
  CHECK_INT(count_text(text, "_constant5 = arith.constant 12 : i32"), 2 + 2 * 2);
  CHECK_INT(count_text(text, "_constant5 = arith.constant 1073741824 : i32"), 2 + 2 * 2);
  mlx_free(text);
  mlx_kernels_clear(&kernels);
}

static bool is_append(const mlx_kernel_image_request_t *image) {
  return strstr(image->definitions, "APPEND=1\n") != NULL;
}

TEST(softcap_and_sinks_reach_the_attention_kernels) {
  mlx_kernels_t kernels;
  const char *missing;
  mlx_free(
      emit_fixture(MLXCEL_SOURCE_DIR "/tests/fixtures/gemma2", MLX_QUANTIZE_NONE, 32, &kernels, &missing));
  for (size_t i = 0; i < kernels.count; ++i) {
    if (kernels.images[i].kind != MLX_KERNEL_ATTENTION_F32 || is_append(&kernels.images[i])) continue;
    CHECK_CONTAINS(kernels.images[i].definitions, "softcap=");
    CHECK_CONTAINS(kernels.images[i].definitions, "SINKS=0\n");
  }
  mlx_kernels_clear(&kernels);
  char *text =
      emit_fixture(MLXCEL_SOURCE_DIR "/tests/fixtures/gpt_oss", MLX_QUANTIZE_NONE, 32, &kernels, &missing);
  CHECK_TEXT(missing, "experts whose number of columns is not a multiple of 32");
  for (size_t i = 0; i < kernels.count; ++i) {
    if (kernels.images[i].kind == MLX_KERNEL_ATTENTION_F32 && !is_append(&kernels.images[i]))
      CHECK_CONTAINS(kernels.images[i].definitions, "SINKS=1\n");
  }
  mlx_free(text);
  mlx_kernels_clear(&kernels);
}

TEST(quantized_products_keep_their_kernels_beside_a_generic_product) {
  mlx_kernels_t kernels;
  const char *missing;
  char *text = emit_fixture(GEMMA3, MLX_QUANTIZE_Q8_0, 32, &kernels, &missing);
  CHECK(mlx_kernels_use(&kernels, MLX_KERNEL_PACKED) && mlx_kernels_use(&kernels, MLX_KERNEL_ATTENTION_F32));
  // down_proj has 48 columns, which is no multiple of 32: it stays f32, and the kernel for routers computes
  // it.
  CHECK(weight_has_type(text, "mlp.down_proj.weight", "tensor<32x48xf32>"));
  CHECK(!mlx_kernels_use(&kernels, MLX_KERNEL_LINEAR));
  CHECK_INT(count_text(text, "::@mlx_packed_linear[") + count_text(text, "::@mlx_packed_gemv["),
            4 * (5 * 2 + 1) + 1);
  CHECK_INT(count_text(text, "::@mlx_token["), 3 * 2);   // one token: q, k and v; o; gate and up
  CHECK_INT(count_text(text, "::@mlx_scores["), 5 * 2);  // per function and layer
  CHECK(!strstr(text, "by_output"));                     // a product on the generic path
  mlx_free(text);
  mlx_kernels_clear(&kernels);
}

// Attention without a kernel takes the whole module off the ragged batch: one segment per step.
TEST(generic_attention_beside_kernels_reads_chunks) {
  mlx_kernels_t kernels;
  const char *missing;
  char *text = emit_fixture(wide_heads(), MLX_QUANTIZE_NONE, 32, &kernels, &missing);
  CHECK_TEXT(missing, "attention heads of this size");
  CHECK_INT(count_text(text, "%chunks: i32"), 3);
  CHECK_INT(count_text(text, "scf.for"), 3 * 2);  // per function and layer
  CHECK_INT(count_text(text, "::@mlx_sample["), 3);
  CHECK(!strstr(text, "mlx_attend") && !strstr(text, "mlx_place\""));
  mlx_free(text);
  mlx_kernels_clear(&kernels);
}

static void check_op(const mlx_variant_t *v, const char *op, const char *decode, const char *prefill,
                     int64_t count, int64_t bytes) {
  for (size_t i = 0; i < v->op_count; ++i) {
    const mlx_variant_op_t *at = &v->ops[i];
    if (strcmp(at->op, op) || strcmp(at->decode, decode) || strcmp(at->prefill, prefill)) continue;
    CHECK_INT(at->count, count);
    CHECK_INT(at->bytes, bytes);
    return;
  }
  CHECK_FAIL("the manifest has no %s with the paths %s and %s", op, decode, prefill);
}

// The fixture in a folder with a tokenizer, which compiling needs.
static const char *gemma3_with_tokenizer(void) {
  static char folder[128];
  char from[160], to[160];
  static const char *const files[] = {"gemma3/config.json", "gemma3/model.safetensors",
                                      "tiny-llama/tokenizer.json"};
  snprintf(folder, sizeof folder, "%s/gemma3", root);
  CHECK_OK(mlx_make_dirs(folder, 0777));
  for (size_t i = 0; i < sizeof files / sizeof *files; ++i) {
    snprintf(from, sizeof from, MLXCEL_SOURCE_DIR "/tests/fixtures/%s", files[i]);
    snprintf(to, sizeof to, "%s%s", folder, strchr(files[i], '/'));
    if (!mlx_is_file(to)) CHECK_OK(mlx_copy_file(from, to));
  }
  return folder;
}

TEST(manifest_and_verbose_notes_list_the_path_and_cost_of_each_kind_of_op) {
  mlx_manifest_t manifest;
  mlx_compile_options_t options = options_for("cuda:sm_90", MLX_BF16, MLX_KERNELS_AUTO);
  options.context = 32;
  options.verbose = true;
  CHECK_OK(compile(gemma3_with_tokenizer(), options, &manifest));
  const mlx_variant_t *v = &manifest.variants[0];
  // Per layer q, k, v, o, gate, up and down; the head. All in bf16.
  const int64_t layer = 64 * 32 + 2 * 32 * 32 + 32 * 64 + 3 * 48 * 32;
  check_op(v, "linear", "decode", "linear", 15, 2 * (2 * layer + 320 * 32));
  // Keys and values of 2 heads of 16, in 2 layers.
  check_op(v, "attention", "decode", "attention", 2, 2 * 2 * 2 * 16 * 2);
  check_op(v, "rope", "decode", "attention", 4, 0);
  check_op(v, "embed", "decode", "rows", 1, 32 * 2);  // one row
  CHECK_CONTAINS(notes,
                 "ops: 15 linear: kernel decode in decode, kernel linear in prefill; 63.5 kB of weights per "
                 "token (98%)\n");
  CHECK_CONTAINS(notes,
                 "ops: 2 attention: kernel decode in decode, kernel attention in prefill; 256 bytes "
                 "of KV per position\n");
  CHECK_CONTAINS(notes, "launches: step_1: 1 decode network: all ops\n");
  CHECK_CONTAINS(notes, "2 linear product gated: layer*.gate, layer*.up, layer*.act\n");
}

TEST(ops_of_the_decode_kernel_have_another_path_in_prefill) {
  mlx_manifest_t manifest;
  const char *model = random_llama_write(&one_layer, root, "one-layer");
  CHECK_OK(compile(model, options_for("cuda:sm_90", MLX_BF16, MLX_KERNELS_REQUIRED), &manifest));
  const mlx_variant_t *v = &manifest.variants[0];
  check_op(v, "attention", "decode", "attention", 1, 2 * 2 * 16 * 2);
  check_op(v, "gated", "decode", "linear", 1, 0);
  check_op(v, "add", "decode", "linear", 2, 0);
  check_op(v, "rmsnorm", "decode", "generic", 3, 3 * 64 * 4);
}

// A router is never quantized, and its product is then not one of the quantized kernels.
TEST(router_stays_f32_in_a_quantized_mixture_of_experts) {
  mlx_kernels_t kernels;
  const char *missing;
  char *text =
      emit_fixture(MLXCEL_SOURCE_DIR "/tests/fixtures/gpt_oss", MLX_QUANTIZE_Q8_0, 32, &kernels, &missing);
  CHECK(weight_has_type(text, "mlp.router.weight", "tensor<6x32xf32>"));
  CHECK_CONTAINS(text, "self_attn.q_proj.weight = flow.tensor.");
  CHECK(!weight_has_type(text, "self_attn.q_proj.weight", "tensor<64x32xf32>"));
  mlx_free(text);
  mlx_kernels_clear(&kernels);
}

// ----------------------------------------------------------------------------------------------------------
// Images and keys

static void key_of(const mlx_kernels_t *kernels, const mlx_nvrtc_t *nvrtc, char out_hex[MLX_DIGEST_HEX]) {
  static const mlx_iree_compiler_t compiler = {.path = "iree-compile", .version = "1"};
  mlx_iree_object_t *objects;
  CHECK_OK(mlx_kernels_objects(kernels, nvrtc, &objects));
  mlx_iree_key(
      &compiler,
      &(mlx_iree_input_t){.mlir = "", .target = "cuda", .objects = objects, .object_count = kernels->count},
      out_hex);
  mlx_kernels_free_objects(kernels, objects);
}

// Key of a module with one image, of |kind| with |definitions|.
static void key_with(const mlx_nvrtc_t *nvrtc, int sm, mlx_kernel_kind_t kind, const char *definitions,
                     char out_hex[MLX_DIGEST_HEX]) {
  mlx_kernels_t kernels = {.gpu = mlx_gpu_kind_find(sm)};
  const char *file;
  CHECK_OK(mlx_kernels_image(&kernels, kind, definitions, (mlx_kernel_build_t){0}, &file));
  key_of(&kernels, nvrtc, out_hex);
  mlx_kernels_clear(&kernels);
}

TEST(every_change_of_a_kernel_changes_the_module_key) {
  mlx_nvrtc_t *nvrtc;
  char keys[7][MLX_DIGEST_HEX];
  CHECK_OK(mlx_nvrtc_open(NULL, &nvrtc));
  key_with(nvrtc, 90, MLX_KERNEL_LINEAR, "M=1\nN=8\n", keys[0]);
  key_with(nvrtc, 90, MLX_KERNEL_LINEAR, "M=1\nN=9\n", keys[1]);
  key_with(nvrtc, 90, MLX_KERNEL_LINEAR, "M=1\n", keys[2]);
  key_with(nvrtc, 90, MLX_KERNEL_LINEAR, "M=1\nN=8\ndtype=Dtype::F16\n", keys[3]);
  key_with(nvrtc, 80, MLX_KERNEL_LINEAR, "M=1\nN=8\n", keys[4]);
  key_with(nvrtc, 90, MLX_KERNEL_ATTENTION, "M=1\nN=8\n", keys[5]);
  key_with(nvrtc, 90, MLX_KERNEL_LINEAR, "M=1\nN=8\n", keys[6]);
  for (int i = 0; i < 6; ++i) {
    for (int k = 0; k < i; ++k) {
      if (!strcmp(keys[i], keys[k])) CHECK_FAIL("keys %d and %d are the same", k, i);
    }
  }
  CHECK_TEXT(keys[6], keys[0]);
  mlx_nvrtc_close(nvrtc);
}

TEST(module_key_covers_source_definitions_and_nvrtc_of_each_image) {
  mlx_nvrtc_t *nvrtc;
  mlx_kernels_t kernels = {.gpu = mlx_gpu_kind_find(90)};
  const char *file;
  char identity[MLX_DIGEST_HEX];
  mlx_iree_object_t *objects;
  CHECK_OK(mlx_nvrtc_open(NULL, &nvrtc));
  mlx_nvrtc_identity(nvrtc, identity);
  for (int kind = 0; kind < MLX_KERNEL_NETWORK; ++kind)
    CHECK_OK(mlx_kernels_image(&kernels, (mlx_kernel_kind_t)kind, "A=1\n", (mlx_kernel_build_t){0}, &file));
  CHECK_OK(mlx_kernels_objects(&kernels, nvrtc, &objects));
  for (int kind = 0; kind < MLX_KERNEL_NETWORK; ++kind) {  // MLX_KERNEL_NETWORK is for CPUs
    char name[32];
    snprintf(name, sizeof name, "%s.cu", mlx_kernel_kind_name((mlx_kernel_kind_t)kind));
    CHECK_TEXT(objects[kind].name, kernels.images[kind].file);
    CHECK_CONTAINS(objects[kind].bytes, identity);
    CHECK_CONTAINS(objects[kind].bytes, "A=1\n");
    CHECK_CONTAINS(objects[kind].bytes, mlx_kernel_source_find(name)->text);
  }
  mlx_kernels_free_objects(&kernels, objects);
  mlx_kernels_clear(&kernels);
  mlx_nvrtc_close(nvrtc);
}

TEST(module_key_for_a_cpu_covers_the_object) {
  mlx_kernels_t kernels = {.cpu_level = "x86-64-v3"};
  const char *file;
  mlx_iree_object_t *objects;
  if (!mlx_kernels_cpu_level("x86-64-v3")) SKIP("this build has no x86-64 kernels");
  CHECK_OK(mlx_kernels_image(&kernels, MLX_KERNEL_NETWORK, "attention.x86-64-v3.o", (mlx_kernel_build_t){0},
                             &file));
  CHECK_OK(mlx_kernels_objects(&kernels, NULL, &objects));
  CHECK_TEXT(objects[0].name, file);
  CHECK(objects[0].length > 1000 && !memcmp(objects[0].bytes, "\177ELF", 4));
  CHECK(objects[0].bytes == mlx_kernel_source_find("attention.x86-64-v3.o")->text);
  CHECK(objects[0].bytes != mlx_kernel_source_find("attention.x86-64-v4.o")->text);
  mlx_kernels_free_objects(&kernels, objects);
  mlx_kernels_clear(&kernels);
}

TEST(every_cpu_level_has_an_object_of_each_source) {
  const char *const levels[] = {"x86-64", "x86-64-v3", "x86-64-v4", "sapphirerapids", "aarch64"};
  const mlx_kernel_source_t *first;
  for (size_t i = 0; (first = mlx_kernel_source_object("x86-64", i)); ++i) {
    for (size_t level = 0; level < sizeof levels / sizeof *levels; ++level) {
      char name[64];
      snprintf(name, sizeof name, "%.*s.%s.o", (int)strcspn(first->name, "."), first->name, levels[level]);
      const mlx_kernel_source_t *object = mlx_kernel_source_object(levels[level], i);
      CHECK(object);
      CHECK_TEXT(object->name, name);
      CHECK(!mlx_kernel_source_object(levels[level], i + 1) == !mlx_kernel_source_object("x86-64", i + 1));
    }
  }
  CHECK(mlx_kernel_source_object("x86-64", 0));
  CHECK(!mlx_kernel_source_object("x86-64-v2", 0));
}

TEST(level_without_an_object_uses_the_next_lower_level_of_its_architecture) {
  if (mlx_kernels_cpu_level("x86-64")) CHECK_TEXT(mlx_kernels_cpu_level("x86-64-v2"), "x86-64");
  if (mlx_kernels_cpu_level("aarch64")) CHECK_TEXT(mlx_kernels_cpu_level("aarch64"), "aarch64");
  CHECK(mlx_kernels_cpu_level("host"));
  CHECK(!mlx_kernels_cpu_level("z80"));
}

TEST(equal_definitions_share_an_image) {
  mlx_kernels_t kernels = {.gpu = mlx_gpu_kind_find(90)};
  const char *file;
  char first[32];
  CHECK_OK(mlx_kernels_image(&kernels, MLX_KERNEL_LINEAR, "M=1\n", (mlx_kernel_build_t){0}, &file));
  snprintf(first, sizeof first, "%s", file);
  CHECK_OK(mlx_kernels_image(&kernels, MLX_KERNEL_LINEAR, "M=2\n", (mlx_kernel_build_t){0}, &file));
  CHECK(strcmp(file, first));
  CHECK_OK(mlx_kernels_image(&kernels, MLX_KERNEL_ATTENTION, "M=1\n", (mlx_kernel_build_t){0}, &file));
  CHECK(strcmp(file, first));
  CHECK_OK(mlx_kernels_image(&kernels, MLX_KERNEL_LINEAR, "M=1\n", (mlx_kernel_build_t){0}, &file));
  CHECK_TEXT(file, first);
  CHECK_INT(kernels.count, 3);
  mlx_kernels_clear(&kernels);
}

static size_t compile_for(const mlx_gpu_kind_t *gpu, const mlx_nvrtc_t *nvrtc, emit_mode_t mode,
                          const random_llama_t *shape, const char *name, int64_t context) {
  mlx_kernels_t kernels;
  mlx_module_options_t options;
  char folder[128];
  mlx_free(emit_as(mode, shape, name, gpu, context, &kernels, &options));
  snprintf(folder, sizeof folder, "%s/%s-sm_%d", root, name, gpu->sm);
  CHECK_OK(mlx_kernels_compile(&kernels, nvrtc, folder, NULL));
  CHECK(mlx_kernels_use(&kernels, MLX_KERNEL_DECODE) || shape == &wide);
  const size_t count = kernels.count;
  mlx_kernels_clear(&kernels);
  return count;
}

static mlx_status_t count_name(void *user, const char *name) {
  (void)name;
  ++*(size_t *)user;
  return NULL;
}

typedef struct progress {
  pthread_t thread;
  size_t count, elsewhere;  // calls, and calls on another thread
  size_t threads;           // most threads of the process in a call
  char last[128];
} progress_t;
static void count_progress(void *user, mlx_report_kind_t kind, const char *text) {
  progress_t *progress = user;
  size_t threads = 0;
  if (kind != MLX_REPORT_PROGRESS || !*text) return;
  progress->count++;
  progress->elsewhere += !pthread_equal(progress->thread, pthread_self());
  CHECK_OK(mlx_list_dir("/proc/self/task", count_name, &threads));
  if (threads > progress->threads) progress->threads = threads;
  if (strstr(text, " left")) snprintf(progress->last, sizeof progress->last, "%s", text);
}

TEST(images_are_compiled_on_several_cpus_and_reported_on_one_thread) {
  mlx_nvrtc_t *nvrtc;
  mlx_kernels_t kernels;
  mlx_module_options_t options;
  char folder[128];
  if (mlx_cpu_count() < 2) SKIP("this machine has one CPU");
  CHECK_OK(mlx_nvrtc_open(NULL, &nvrtc));
  mlx_free(emit_as(NARROW, &one_layer, "threads", mlx_gpu_kind_find(90), 512, &kernels, &options));
  CHECK(kernels.count >= 8);
  snprintf(folder, sizeof folder, "%s/threads-images", root);
  progress_t progress = {.thread = pthread_self()};
  const mlx_report_t report = {.emit = count_progress, .user = &progress};
  CHECK_OK(mlx_kernels_compile(&kernels, nvrtc, folder, &report));
  if (progress.threads < 3 || !strstr(progress.last, "compiling kernels: ") ||
      !strstr(progress.last, " of ") || !strstr(progress.last, " s, "))
    CHECK_FAIL("%zu threads, '%s'", progress.threads, progress.last);
  CHECK_INT(progress.elsewhere, 0);
  for (size_t i = 0; i < kernels.count; ++i) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, kernels.images[i].file);
    CHECK(mlx_is_file(path));
  }
  mlx_kernels_clear(&kernels);
  mlx_nvrtc_close(nvrtc);
}

// The macros of the smallest image.
#define SPLIT_INPUT "NAME=mlx_cut\nSPLIT_INPUT=1\nMIXTURE=0\nGAIN=0\nLAYERNORM=0\nPARTIALS=0\n"

// A second compilation makes the PTX of an image whose cubin is for sm_90a.
TEST(only_images_with_wgmma_are_compiled_twice) {
  static const struct {
    const char *definitions;
    bool wgmma;
    size_t runs;
  } images[] = {{SPLIT_INPUT "bits=16\n", false, 1},
                {"NAME=mlx_packed_linear\nPRODUCT=1\nEPILOGUE=0\nMATRICES=1\nMIXTURE=0\nBIAS=0\nSPLIT=1\n"
                 "bits=16\n",
                 true, 2}};
  mlx_nvrtc_t *nvrtc;
  mlx_kernels_t kernels = {.gpu = mlx_gpu_kind_find(90)};
  const char *files[2];
  char folder[128], path[256], *log;
  CHECK_OK(mlx_nvrtc_open(NULL, &nvrtc));
  for (int i = 0; i < 2; ++i)
    CHECK_OK(mlx_kernels_image(&kernels, MLX_KERNEL_PACKED, images[i].definitions,
                               (mlx_kernel_build_t){.wgmma = images[i].wgmma}, &files[i]));
  snprintf(folder, sizeof folder, "%s/twice", root);
  CHECK_OK(mlx_kernels_compile(&kernels, nvrtc, folder, NULL));
  for (int i = 0; i < 2; ++i) {
    size_t runs = 0;
    snprintf(path, sizeof path, "%s/%s.log", folder, files[i]);
    CHECK_OK(mlx_read_file(path, 1 << 20, &log, NULL));
    for (const char *run = log; (run = strstr(run, "--gpu-architecture=")); ++run) ++runs;
    CHECK_INT(runs, images[i].runs);
    mlx_free(log);
  }
  mlx_kernels_clear(&kernels);
  mlx_nvrtc_close(nvrtc);
}

// Without NVRTC's log of a second compilation, the image came from the cache.
TEST(image_is_compiled_once_for_all_modules) {
  static const char small[] = SPLIT_INPUT, other[] = SPLIT_INPUT "bits=16\n";
  mlx_nvrtc_t *nvrtc;
  mlx_cache_t *cache;
  mlx_kernels_t kernels = {.gpu = mlx_gpu_kind_find(90)};
  const char *file;
  char folder[128], logs[128], path[256], *first, *again;
  size_t length, again_length, log_count = 0;
  CHECK_OK(mlx_nvrtc_open(NULL, &nvrtc));
  snprintf(folder, sizeof folder, "%s/images-cache", root);
  CHECK_OK(mlx_cache_open(folder, &cache));
  snprintf(logs, sizeof logs, "%s/images-cache/logs", root);
  kernels.cache = cache;
  CHECK_OK(mlx_kernels_image(&kernels, MLX_KERNEL_PACKED, small, (mlx_kernel_build_t){0}, &file));
  snprintf(folder, sizeof folder, "%s/images-first", root);
  CHECK_OK(mlx_kernels_compile(&kernels, nvrtc, folder, NULL));
  snprintf(path, sizeof path, "%s/%s", folder, file);
  CHECK_OK(mlx_read_file(path, 1 << 20, &first, &length));
  CHECK_OK(mlx_remove_tree(logs));
  CHECK_OK(mlx_kernels_image(&kernels, MLX_KERNEL_PACKED, other, (mlx_kernel_build_t){0},
                             &file));  // another module with a common image
  snprintf(folder, sizeof folder, "%s/images-second", root);
  CHECK_OK(mlx_kernels_compile(&kernels, nvrtc, folder, NULL));
  snprintf(path, sizeof path, "%s/%s", folder, kernels.images[0].file);
  CHECK_OK(mlx_read_file(path, 1 << 20, &again, &again_length));
  CHECK(length == again_length && !memcmp(first, again, length));
  CHECK_OK(mlx_list_dir(logs, count_name, &log_count));
  CHECK_INT(log_count, 1);
  mlx_free(first);
  mlx_free(again);
  mlx_kernels_clear(&kernels);
  mlx_cache_close(cache);
  mlx_nvrtc_close(nvrtc);
}

TEST(image_that_does_not_compile_is_an_error_whichever_thread_compiles_it) {
  mlx_nvrtc_t *nvrtc;
  mlx_kernels_t kernels = {.gpu = mlx_gpu_kind_find(90)};
  const char *file;
  char folder[128], wrong[64];
  CHECK_OK(mlx_nvrtc_open(NULL, &nvrtc));
  for (int i = 0; i < 12; ++i) {  // no EPILOGUE: no image compiles
    snprintf(wrong, sizeof wrong, "NAME=wrong%d\n", i);
    CHECK_OK(mlx_kernels_image(&kernels, MLX_KERNEL_LINEAR, wrong, (mlx_kernel_build_t){0}, &file));
  }
  snprintf(folder, sizeof folder, "%s/wrong", root);
  mlx_status_t status = mlx_kernels_compile(&kernels, nvrtc, folder, NULL);
  CHECK_INT(mlx_status_code(status), MLX_TOOL_FAILED);
  CHECK_CONTAINS(mlx_status_message(status), "linear12.fatbin.log");  // the image that is claimed first
  mlx_status_free(status);
  mlx_kernels_clear(&kernels);
  mlx_nvrtc_close(nvrtc);
}

static bool is_first_of_family(size_t kind) {
  return kind == 0 || strcmp(mlx_gpu_kind_at(kind)->family, mlx_gpu_kind_at(kind - 1)->family);
}

// The first shape uses the smallest tiles, the second the largest. The second takes long, so only one GPU per
// family compiles it. Only sm_90's images have all optimizations.
TEST(every_kernel_compiles_for_every_supported_gpu) {
  mlx_nvrtc_t *nvrtc;
  const mlx_gpu_kind_t *gpu;
  CHECK_OK(mlx_nvrtc_open(NULL, &nvrtc));
  for (size_t i = 0; (gpu = mlx_gpu_kind_at(i)); ++i) {
    if (!gpu->kernel_sm) continue;
    const double started = command_now();
    compile_quickly(gpu->kernel_sm != 90);
    size_t count = compile_for(gpu, nvrtc, NARROW, &odd, "odd", 16);
    if (is_first_of_family(i)) count += compile_for(gpu, nvrtc, NARROW, &wide, "wide", 512);
    if (is_first_of_family(i)) {
      count += compile_for(gpu, nvrtc, QUANTIZED, &blocks_of_32, "quantized", 16);
      count += compile_for(gpu, nvrtc, EXACT, &blocks_of_32, "exact", 16);
    }
    fprintf(stderr, "  sm_%d: %zu images in %.1f s\n", gpu->sm, count, command_now() - started);
  }
  compile_quickly(true);
  mlx_nvrtc_close(nvrtc);
}

int main(int argc, char **argv) {
  strcpy(root, "/tmp/mlxcel-kernels-XXXXXX");
  if (!mkdtemp(root)) return 1;
  unsetenv("MLXCEL_NVRTC");
  compile_quickly(true);
  static const check_case_t cases[] = {
      // First the cases without NVRTC: once opened, the library stays loaded and the loader finds it.
      CASE(without_nvrtc_auto_uses_the_generic_path_with_a_note_and_required_fails),
      CASE(required_kernels_fail_with_the_reason_if_unsupported),
      CASE(one_note_reports_that_a_whole_network_is_on_the_generic_path),
      CASE(unsupported_attention_is_lowered_by_itself_with_a_note_and_products_keep_their_kernels),
      CASE(manifest_lists_the_linked_kernels_and_functions),
      CASE(network_too_wide_for_shared_memory_decodes_op_by_op),
      CASE(module_with_kernels_matches_golden_and_iree_compile_parses_it),
      CASE(module_with_kernels_has_no_state_but_the_scratch_memory),
      CASE(step_on_the_kernel_path_copies_nothing),
      CASE(layers_with_and_without_a_window_share_their_kernels),
      CASE(softcap_and_sinks_reach_the_attention_kernels),
      CASE(quantized_products_keep_their_kernels_beside_a_generic_product),
      CASE(generic_attention_beside_kernels_reads_chunks),
      CASE(router_stays_f32_in_a_quantized_mixture_of_experts),
      CASE(manifest_and_verbose_notes_list_the_path_and_cost_of_each_kind_of_op),
      CASE(ops_of_the_decode_kernel_have_another_path_in_prefill),
      CASE(every_change_of_a_kernel_changes_the_module_key),
      CASE(module_key_covers_source_definitions_and_nvrtc_of_each_image),
      CASE(module_key_for_a_cpu_covers_the_object),
      CASE(every_cpu_level_has_an_object_of_each_source),
      CASE(level_without_an_object_uses_the_next_lower_level_of_its_architecture),
      CASE(equal_definitions_share_an_image),
      CASE(images_are_compiled_on_several_cpus_and_reported_on_one_thread),
      CASE(only_images_with_wgmma_are_compiled_twice),
      CASE(image_is_compiled_once_for_all_modules),
      CASE(image_that_does_not_compile_is_an_error_whichever_thread_compiles_it),
      CASE(every_kernel_compiles_for_every_supported_gpu),
  };
  int failed = check_run(cases, sizeof cases / sizeof *cases, argc, argv);
  mlx_status_free(mlx_remove_tree(root));
  return failed;
}
