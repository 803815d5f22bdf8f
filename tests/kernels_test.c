// When kernels are linked and when not, what is said about it, and what a module with them is made of. No GPU
// is needed.
#include "compiler/kernels.h"

#include <dlfcn.h>

#include "artifact/manifest.h"
#include "compiler/compile.h"
#include "compiler/graph.h"
#include "compiler/kernel_source.h"
#include "tests/command.h"
#include "tests/golden_text.h"
#include "tests/random_llama.h"

#define TINY_HEADS MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"  // of 8
#define GOLDEN MLXCEL_SOURCE_DIR "/tests/goldens/one-layer.kernels.iree.mlir"

static char root[64];
static const random_llama_t one_layer = {64, 96, 4, 2, 16, 1, 320, false, 10000};
static const random_llama_t odd = {200, 328, 5, 5, 48, 3, 1003, false, 10000};
static const random_llama_t packed = {160, 352, 4, 2, 48, 2, 203, true, 10000};  // in blocks of 32 columns
static const random_llama_t wide = {136, 9224, 18, 2, 128, 1, 320, false, 10000};

// ----------------------------------------------------------------------------------------------------------
// Compiling

static char notes[1024];
static void collect(void *user, mlx_report_kind_t kind, const char *text) {
  (void)user;
  if (kind == MLX_REPORT_NOTE) snprintf(notes + strlen(notes), sizeof notes - strlen(notes), "%s\n", text);
}

// Only the module; |notes| has what was said.
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

static void check_manifest(const mlx_manifest_t *m, const char *kernels, size_t decode_count) {
  static const int64_t steps[] = {1, 8, 32, 128};
  CHECK_TEXT(mlx_variant_kernels_text(&m->variants[0]).text, kernels);
  CHECK_INT(m->variants[0].decode_count, decode_count);
  for (size_t i = 0; i < decode_count; ++i) CHECK_INT(m->variants[0].decode[i], steps[i]);
}

// ----------------------------------------------------------------------------------------------------------
// Without kernels

static bool loader_finds(const char *name) {
  void *library = dlopen(name, RTLD_LAZY);
  if (library) dlclose(library);
  return library != NULL;
}

// Also when the plain module is in the cache already.
TEST(without_nvrtc_auto_lowers_plainly_and_says_so_and_required_is_an_error) {
  if (loader_finds("libnvrtc.so.13") || loader_finds("libnvrtc.so.12"))
    return;  // a machine with a CUDA toolkit
  const char *built_in = mlx_nvrtc_built_in, *model = random_llama_write(&one_layer, root, "one-layer");
  mlx_manifest_t manifest;
  for (int i = 0; i < 2; ++i) {
    mlx_nvrtc_built_in = "";
    mlx_status_t status = compile(model, options_for("cuda:sm_80", MLX_BF16, MLX_KERNELS_AUTO), &manifest);
    mlx_nvrtc_built_in = built_in;
    CHECK_OK(status);
    check_manifest(&manifest, "none (plain lowering)", 1);
    CHECK_INT(manifest.variants[0].driver, 0);
    CHECK_CONTAINS(notes,
                   "no linked kernels, the plain lowering is used: NVRTC, which compiles our GPU kernels, "
                   "was not found");
  }
  mlx_nvrtc_built_in = "";
  mlx_status_t refusal = compile(model, options_for("cuda:sm_80", MLX_BF16, MLX_KERNELS_REQUIRED), &manifest);
  mlx_nvrtc_built_in = built_in;
  CHECK_CONTAINS(mlx_status_hint_text(refusal), "pip install --target DIR nvidia-cuda-nvrtc==");
  CHECK_CONTAINS(mlx_status_hint_text(refusal), "--kernels=off");
  CHECK_ERROR(refusal, MLX_UNAVAILABLE, "NVRTC, which compiles our GPU kernels, was not found");
}

TEST(required_kernels_that_cannot_be_are_refused_with_the_reason) {
  static const struct {
    const char *target;
    mlx_dtype_t dtype;
    const char *reason;
  } cases[] = {
      {"cpu:x86-64-v3", MLX_BF16, "its network is not of a kind they know"},
      {"cuda:sm_75", MLX_BF16, "they need a GPU from sm_80 on"},
      {"cuda:sm_80", MLX_F32, "they compute with packed or 16-bit weights (--dtype bf16 or f16)"},
      {"cuda:sm_90", MLX_F16, "its attention is not of a kind they know"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    mlx_manifest_t manifest;
    mlx_status_t status =
        compile(TINY_HEADS, options_for(cases[i].target, cases[i].dtype, MLX_KERNELS_REQUIRED), &manifest);
    CHECK_CONTAINS(mlx_status_message(status), "no linked kernels for this model: ");
    CHECK_CONTAINS(mlx_status_hint_text(status), "--kernels=auto");
    CHECK_ERROR(status, MLX_UNSUPPORTED, cases[i].reason);
  }
}

TEST(auto_says_when_a_models_attention_is_of_no_kind_that_kernels_know) {
  mlx_manifest_t manifest;
  CHECK_OK(compile(TINY_HEADS, options_for("cuda:sm_80", MLX_BF16, MLX_KERNELS_AUTO), &manifest));
  check_manifest(&manifest, "none (plain lowering)", 1);
  CHECK_CONTAINS(notes,
                 "no linked kernels, the plain lowering is used: its attention is not of a kind they know");
}

// ----------------------------------------------------------------------------------------------------------
// With kernels

TEST(the_manifest_names_the_kernels_and_the_groups_that_were_linked) {
  const char *model = random_llama_write(&one_layer, root, "one-layer");
  mlx_manifest_t manifest;
  mlx_compile_options_t options = options_for("cuda:sm_90", MLX_BF16, MLX_KERNELS_REQUIRED);
  CHECK_OK(compile(model, options, &manifest));
  check_manifest(&manifest, "decode, linear, attention", 4);
  CHECK_INT(manifest.variants[0].driver, 13000);  // NVRTC's
  options.sequences = 2;                          // the decode kernel has one row
  CHECK_OK(compile(model, options, &manifest));
  check_manifest(&manifest, "linear, attention", 1);
  options = options_for("cuda:sm_90", MLX_BF16, MLX_KERNELS_OFF);
  CHECK_OK(compile(model, options, &manifest));
  check_manifest(&manifest, "none (plain lowering)", 1);
  CHECK_INT(manifest.variants[0].driver, 0);
}

// The module of |shape| for |gpu|, with one prefill function for all of |context|. Release the text with
// mlx_free, and clear the kernels. In bf16, or quantised.
static char *emit_as(mlx_quantize_t quantize, const random_llama_t *shape, const char *name,
                     const mlx_gpu_kind_t *gpu, int64_t context, mlx_kernels_t *out_kernels,
                     mlx_graph_options_t *out_options) {
  mlx_model_t *model;
  char *text;
  CHECK_OK(mlx_model_open(random_llama_write(shape, root, name), &model));
  mlx_graph_options_initialize(context, out_options);
  out_options->form = MLX_FORM_IREE;
  out_options->dtype = quantize ? MLX_F32 : MLX_BF16;
  out_options->quantize = quantize;
  if (quantize) out_options->layout = MLX_LAYOUT_TILES;
  *out_kernels = (mlx_kernels_t){.gpu = gpu, .dtype = out_options->dtype};
  CHECK_OK(mlx_graph_use_kernels(model, out_kernels, out_options));
  CHECK(out_options->kernels == out_kernels);
  out_options->buckets[0] = context;
  out_options->bucket_count = 1;
  CHECK_OK(mlx_graph_emit(model, out_options, &text, NULL));
  mlx_model_close(model);
  return text;
}

static char *emit(const random_llama_t *shape, const char *name, const mlx_gpu_kind_t *gpu, int64_t context,
                  mlx_kernels_t *out_kernels, mlx_graph_options_t *out_options) {
  return emit_as(MLX_QUANTIZE_NONE, shape, name, gpu, context, out_kernels, out_options);
}

TEST(a_network_too_wide_for_a_gpus_shared_memory_is_decoded_op_by_op) {
  static const struct {
    int sm;
    bool fits;
  } cases[] = {{80, true}, {86, false}, {89, false}, {90, true}, {100, true}, {120, false}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    mlx_kernels_t kernels;
    mlx_graph_options_t options;
    char *text = emit(&wide, "wide", mlx_gpu_kind_find(cases[i].sm), 16, &kernels, &options);
    CHECK_INT(options.step_count, cases[i].fits ? 4 : 1);
    CHECK_INT(mlx_kernels_use(&kernels, MLX_KERNEL_DECODE), cases[i].fits);
    CHECK(mlx_kernels_use(&kernels, MLX_KERNEL_LINEAR) && mlx_kernels_use(&kernels, MLX_KERNEL_ATTENTION));
    CHECK_INT(strstr(text, "@decode_32(") != NULL, cases[i].fits);
    CHECK_CONTAINS(text, "@decode_1(");
    mlx_free(text);
    mlx_kernels_clear(&kernels);
  }
}

TEST(a_module_with_kernels_is_golden_text_that_iree_compile_reads) {
  mlx_kernels_t kernels;
  mlx_graph_options_t options;
  char *text = emit(&one_layer, "one-layer", mlx_gpu_kind_find(90), 16, &kernels, &options);
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

// IREE merges globals that start alike (compiler/builder.c).
TEST(with_kernels_too_every_state_starts_from_a_value_of_its_own) {
  mlx_kernels_t kernels;
  mlx_graph_options_t options;
  char *text = emit(&one_layer, "one-layer", mlx_gpu_kind_find(90), 16, &kernels, &options), seen[8][64];
  size_t count = 0;
  for (const char *at = text; (at = strstr(at, "private mutable ")); ++at) {
    const char *value = strstr(at, " = dense<");
    CHECK(value && count < 8);
    snprintf(seen[count], sizeof seen[count], "%.*s", (int)strcspn(value, ">"), value);
    for (size_t i = 0; i < count; ++i) CHECK(strcmp(seen[i], seen[count]));
    ++count;
  }
  CHECK_INT(count, 5);  // pages, scratch, token, position, logits
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

// A module's key when it has one image, of |kind| with |definitions|.
static void key_with(const mlx_nvrtc_t *nvrtc, int sm, mlx_dtype_t dtype, mlx_kernel_kind_t kind,
                     const char *definitions, char out_hex[MLX_DIGEST_HEX]) {
  mlx_kernels_t kernels = {.gpu = mlx_gpu_kind_find(sm), .dtype = dtype};
  const char *file;
  CHECK_OK(mlx_kernels_image(&kernels, kind, definitions, &file));
  key_of(&kernels, nvrtc, out_hex);
  mlx_kernels_clear(&kernels);
}

TEST(whatever_changes_a_kernel_changes_the_modules_key) {
  mlx_nvrtc_t *nvrtc;
  char keys[7][MLX_DIGEST_HEX];
  CHECK_OK(mlx_nvrtc_open(NULL, &nvrtc));
  key_with(nvrtc, 90, MLX_BF16, MLX_KERNEL_LINEAR, "M=1\nN=8\n", keys[0]);
  key_with(nvrtc, 90, MLX_BF16, MLX_KERNEL_LINEAR, "M=1\nN=9\n", keys[1]);
  key_with(nvrtc, 90, MLX_BF16, MLX_KERNEL_LINEAR, "M=1\n", keys[2]);
  key_with(nvrtc, 90, MLX_F16, MLX_KERNEL_LINEAR, "M=1\nN=8\n", keys[3]);
  key_with(nvrtc, 80, MLX_BF16, MLX_KERNEL_LINEAR, "M=1\nN=8\n", keys[4]);
  key_with(nvrtc, 90, MLX_BF16, MLX_KERNEL_ATTENTION, "M=1\nN=8\n", keys[5]);
  key_with(nvrtc, 90, MLX_BF16, MLX_KERNEL_LINEAR, "M=1\nN=8\n", keys[6]);
  for (int i = 0; i < 6; ++i) {
    for (int k = 0; k < i; ++k) {
      if (!strcmp(keys[i], keys[k])) CHECK_FAIL("keys %d and %d are the same", k, i);
    }
  }
  CHECK_TEXT(keys[6], keys[0]);
  mlx_nvrtc_close(nvrtc);
}

TEST(a_modules_key_is_made_from_the_source_and_the_nvrtc_of_each_image) {
  mlx_nvrtc_t *nvrtc;
  mlx_kernels_t kernels = {.gpu = mlx_gpu_kind_find(90), .dtype = MLX_F16};
  const char *file;
  char identity[MLX_DIGEST_HEX];
  mlx_iree_object_t *objects;
  CHECK_OK(mlx_nvrtc_open(NULL, &nvrtc));
  mlx_nvrtc_identity(nvrtc, identity);
  for (int kind = 0; kind < MLX_KERNEL_NETWORK; ++kind)
    CHECK_OK(mlx_kernels_image(&kernels, (mlx_kernel_kind_t)kind, "A=1\n", &file));
  CHECK_OK(mlx_kernels_objects(&kernels, nvrtc, &objects));
  for (int kind = 0; kind < MLX_KERNEL_NETWORK; ++kind) {  // that one is for CPUs
    char name[32];
    snprintf(name, sizeof name, "%s.cu", mlx_kernel_kind_name((mlx_kernel_kind_t)kind));
    CHECK_TEXT(objects[kind].name, kernels.images[kind].file);
    CHECK_CONTAINS(objects[kind].bytes, identity);
    CHECK_CONTAINS(objects[kind].bytes, "A=1\nDTYPE_F16=1\n");
    CHECK_CONTAINS(objects[kind].bytes, mlx_kernel_source_find(name)->text);
  }
  mlx_kernels_free_objects(&kernels, objects);
  mlx_kernels_clear(&kernels);
  mlx_nvrtc_close(nvrtc);
}

TEST(a_modules_key_for_a_cpu_is_made_from_the_object_itself) {
  mlx_kernels_t kernels = {.cpu_level = "x86-64-v3"};
  const char *file;
  mlx_iree_object_t *objects;
  if (!mlx_kernels_cpu_level("x86-64-v3")) return;  // a build for another architecture
  CHECK_OK(mlx_kernels_image(&kernels, MLX_KERNEL_NETWORK, "", &file));
  CHECK_OK(mlx_kernels_objects(&kernels, NULL, &objects));
  CHECK_TEXT(objects[0].name, file);
  CHECK(objects[0].length > 1000 && !memcmp(objects[0].bytes, "\177ELF", 4));
  CHECK(objects[0].bytes == mlx_kernel_source_find("network.x86-64-v3.o")->text);
  CHECK(objects[0].bytes != mlx_kernel_source_find("network.x86-64-v4.o")->text);
  mlx_kernels_free_objects(&kernels, objects);
  mlx_kernels_clear(&kernels);
}

TEST(a_level_without_an_object_takes_the_next_lower_one_of_its_own_kind) {
  if (mlx_kernels_cpu_level("x86-64")) CHECK_TEXT(mlx_kernels_cpu_level("x86-64-v2"), "x86-64");
  if (mlx_kernels_cpu_level("aarch64")) CHECK_TEXT(mlx_kernels_cpu_level("aarch64"), "aarch64");
  CHECK(mlx_kernels_cpu_level("host"));
  CHECK(!mlx_kernels_cpu_level("z80"));
}

TEST(the_same_definitions_share_an_image) {
  mlx_kernels_t kernels = {.gpu = mlx_gpu_kind_find(90), .dtype = MLX_BF16};
  const char *file;
  char first[32];
  CHECK_OK(mlx_kernels_image(&kernels, MLX_KERNEL_LINEAR, "M=1\n", &file));
  snprintf(first, sizeof first, "%s", file);
  CHECK_OK(mlx_kernels_image(&kernels, MLX_KERNEL_LINEAR, "M=2\n", &file));
  CHECK(strcmp(file, first));
  CHECK_OK(mlx_kernels_image(&kernels, MLX_KERNEL_ATTENTION, "M=1\n", &file));
  CHECK(strcmp(file, first));
  CHECK_OK(mlx_kernels_image(&kernels, MLX_KERNEL_LINEAR, "M=1\n", &file));
  CHECK_TEXT(file, first);
  CHECK_INT(kernels.count, 3);
  mlx_kernels_clear(&kernels);
}

static size_t compile_for(const mlx_gpu_kind_t *gpu, const mlx_nvrtc_t *nvrtc, mlx_quantize_t quantize,
                          const random_llama_t *shape, const char *name, int64_t context) {
  mlx_kernels_t kernels;
  mlx_graph_options_t options;
  char folder[128];
  mlx_free(emit_as(quantize, shape, name, gpu, context, &kernels, &options));
  snprintf(folder, sizeof folder, "%s/%s-sm_%d", root, name, gpu->sm);
  CHECK_OK(mlx_kernels_compile(&kernels, nvrtc, folder, NULL));
  CHECK(mlx_kernels_use(&kernels, MLX_KERNEL_DECODE) || shape == &wide);
  const size_t count = kernels.count;
  mlx_kernels_clear(&kernels);
  return count;
}

static bool first_of_its_family(size_t kind) {
  return kind == 0 || strcmp(mlx_gpu_kind_at(kind)->family, mlx_gpu_kind_at(kind - 1)->family);
}

// The smallest tiles are in the first shape, the largest in the second; that one takes long, and is compiled
// for one GPU of a family.
TEST(every_kernel_compiles_for_every_gpu_of_the_table) {
  mlx_nvrtc_t *nvrtc;
  const mlx_gpu_kind_t *gpu;
  CHECK_OK(mlx_nvrtc_open(NULL, &nvrtc));
  for (size_t i = 0; (gpu = mlx_gpu_kind_at(i)); ++i) {
    if (!gpu->kernel_sm) continue;
    const double started = command_now();
    size_t count = compile_for(gpu, nvrtc, MLX_QUANTIZE_NONE, &odd, "odd", 16);
    if (first_of_its_family(i)) count += compile_for(gpu, nvrtc, MLX_QUANTIZE_NONE, &wide, "wide", 512);
    if (first_of_its_family(i)) count += compile_for(gpu, nvrtc, MLX_QUANTIZE_Q4_1, &packed, "packed", 16);
    fprintf(stderr, "  sm_%d: %zu images in %.1f s\n", gpu->sm, count, command_now() - started);
  }
  mlx_nvrtc_close(nvrtc);
}

int main(int argc, char **argv) {
  strcpy(root, "/tmp/mlxcel-kernels-XXXXXX");
  if (!mkdtemp(root)) return 1;
  unsetenv("MLXCEL_NVRTC");
  static const check_case_t cases[] = {
      // First those that miss the library: one that was opened stays, and the loader finds it.
      CASE(without_nvrtc_auto_lowers_plainly_and_says_so_and_required_is_an_error),
      CASE(required_kernels_that_cannot_be_are_refused_with_the_reason),
      CASE(auto_says_when_a_models_attention_is_of_no_kind_that_kernels_know),
      CASE(the_manifest_names_the_kernels_and_the_groups_that_were_linked),
      CASE(a_network_too_wide_for_a_gpus_shared_memory_is_decoded_op_by_op),
      CASE(a_module_with_kernels_is_golden_text_that_iree_compile_reads),
      CASE(with_kernels_too_every_state_starts_from_a_value_of_its_own),
      CASE(whatever_changes_a_kernel_changes_the_modules_key),
      CASE(a_modules_key_is_made_from_the_source_and_the_nvrtc_of_each_image),
      CASE(a_modules_key_for_a_cpu_is_made_from_the_object_itself),
      CASE(a_level_without_an_object_takes_the_next_lower_one_of_its_own_kind),
      CASE(the_same_definitions_share_an_image),
      CASE(every_kernel_compiles_for_every_gpu_of_the_table),
  };
  int failed = check_run(cases, sizeof cases / sizeof *cases, argc, argv);
  mlx_status_free(mlx_remove_tree(root));
  return failed;
}
