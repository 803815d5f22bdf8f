// Stubs for the runtime-only package, which has no compiler: the functions of compiler/ and models/ that the
// command line calls. Each fails with a hint where to get a compiler. Running a compiled model does not use
// them.
#include "base/file.h"
#include "base/memory.h"
#include "compiler/common_images.h"
#include "compiler/compile.h"
#include "compiler/driver.h"
#include "compiler/kernels.h"
#include "compiler/nvrtc.h"
#include "models/import/format.h"
#include "models/model.h"

bool mlx_compiler_available(void) { return false; }

const char *mlx_compiler_hint(void) {
  return "install the full package: the archive without '-runtime' in its name, the Debian package mlxcel, "
         "or "
         "pip install mlxcel[compiler]; or compile on another machine: mlxcel compile MODEL --target "
         "cpu:portable (or cuda:sm_XX)";
}

static mlx_status_t no_compiler(void) {
  return mlx_status_hint(
      mlx_error(MLX_UNSUPPORTED,
                "this is the runtime-only package: it runs compiled models (.mlxb) and has no compiler"),
      "%s", mlx_compiler_hint());
}

// Checks first that |model| exists.
static mlx_status_t refuse(const char *model) {
  if (!mlx_is_file(model) && !mlx_is_dir(model))
    return mlx_error(MLX_NOT_FOUND, "'%s' does not exist", model);
  mlx_status_t status = no_compiler();
  mlx_status_t named =
      mlx_error(MLX_UNSUPPORTED, "'%s' is not compiled, and %s", model, mlx_status_message(status));
  named = mlx_status_hint(named, "%s", mlx_status_hint_text(status));
  mlx_status_free(status);
  return named;
}

// ----------------------------------------------------------------------------------------------------------
// Options: accepted, because the engine compares them with the compiled model

mlx_status_t mlx_kernel_choice_parse(const char *text, mlx_kernel_choice_t *out_choice) {
  (void)text;
  *out_choice = MLX_KERNELS_AUTO;
  return NULL;
}

mlx_status_t mlx_weights_choice_parse(const char *text, mlx_weights_choice_t *out_choice,
                                      mlx_dtype_t *out_dtype) {
  (void)text;
  *out_choice = MLX_WEIGHTS_AUTO;
  *out_dtype = MLX_F32;
  return NULL;
}

mlx_status_t mlx_kv_parse(const char *text, mlx_dtype_t *out_dtype) {
  (void)text;
  *out_dtype = MLX_F32;
  return NULL;
}

mlx_status_t mlx_quantize_parse(const char *text, mlx_quantize_t *out_kind) {
  *out_kind = MLX_QUANTIZE_NONE;
  return text ? no_compiler() : NULL;
}

mlx_status_t mlx_rank_check(const mlx_rank_t *rank) {
  (void)rank;
  return no_compiler();
}

// ----------------------------------------------------------------------------------------------------------
// Compiling

mlx_status_t mlx_compile(const char *model, const mlx_compile_options_t *options, mlx_cache_t *cache,
                         mlx_compiled_t *out) {
  (void)options, (void)cache;
  *out = (mlx_compiled_t){0};
  return refuse(model);
}

void mlx_compiled_release(mlx_compiled_t *compiled) { *compiled = (mlx_compiled_t){0}; }

mlx_status_t mlx_source_weights_check(const mlx_source_weights_t *source) {
  (void)source;
  return no_compiler();
}

mlx_status_t mlx_compiled_check_path(const char *path) {
  (void)path;
  return NULL;
}

mlx_status_t mlx_compiled_write(const mlx_compiled_t *compiled, const char *path,
                                const mlx_write_options_t *options) {
  (void)compiled, (void)path, (void)options;
  return no_compiler();
}

mlx_status_t mlx_compile_smoke(mlx_cache_t *cache, const char *target, const mlx_report_t *report,
                               mlx_cache_entry_t *out_entry, char **out_path) {
  (void)cache, (void)target, (void)report;
  *out_entry = (mlx_cache_entry_t){0};
  *out_path = NULL;
  return no_compiler();
}

mlx_status_t mlx_compile_describe_ops(mlx_model_t *model, const char *target, mlx_variant_t *out,
                                      uint64_t *out_weights) {
  (void)out_weights;
  (void)model, (void)target;
  *out = (mlx_variant_t){0};
  return no_compiler();
}

mlx_status_t mlx_compile_describe_launches(mlx_model_t *model, const char *target, mlx_text_t *out) {
  (void)model, (void)target, (void)out;
  return no_compiler();
}

mlx_status_t mlx_compile_chat(const char *model, char **out_json, size_t *out_length) {
  *out_json = NULL;
  *out_length = 0;
  return refuse(model);
}

mlx_status_t mlx_model_tokenizer_open(const char *model, mlx_cache_t *cache, mlx_model_tokenizer_t *out) {
  (void)cache;
  *out = (mlx_model_tokenizer_t){0};
  return refuse(model);
}

mlx_status_t mlx_model_tokenizer_read(const mlx_model_tokenizer_t *tokenizer, char **out_json,
                                      size_t *out_length) {
  (void)tokenizer;
  *out_json = NULL;
  *out_length = 0;
  return no_compiler();
}

void mlx_model_tokenizer_close(mlx_model_tokenizer_t *tokenizer) { *tokenizer = (mlx_model_tokenizer_t){0}; }

mlx_status_t mlx_compile_stablehlo(const char *model, const mlx_compile_options_t *options, char **out_text,
                                   size_t *out_length) {
  (void)options;
  *out_text = NULL;
  *out_length = 0;
  return refuse(model);
}

mlx_status_t mlx_compile_source_digest(const char *model, const mlx_report_t *report,
                                       char out_hex[MLX_DIGEST_HEX]) {
  (void)report;
  out_hex[0] = 0;
  return refuse(model);
}

bool mlx_compiled_title(const char *title, mlx_title_t *out_title) {
  (void)title;
  *out_title = (mlx_title_t){0};
  return false;
}

// ----------------------------------------------------------------------------------------------------------
// Tools of the compiler

mlx_status_t mlx_iree_compiler_find(mlx_cache_t *cache, const char *explicit_path, const mlx_report_t *report,
                                    mlx_iree_compiler_t *out) {
  (void)cache, (void)explicit_path, (void)report;
  *out = (mlx_iree_compiler_t){0};
  return no_compiler();
}

void mlx_iree_compiler_release(mlx_iree_compiler_t *compiler) { *compiler = (mlx_iree_compiler_t){0}; }

mlx_status_t mlx_common_images_check(const mlx_gpu_kind_t *gpu, const mlx_nvrtc_t *nvrtc, size_t *out_count,
                                     bool *out_usable) {
  (void)gpu;
  (void)nvrtc;
  *out_count = 0;
  *out_usable = false;
  return NULL;
}

mlx_status_t mlx_nvrtc_open(const char *explicit_path, mlx_nvrtc_t **out_nvrtc) {
  (void)explicit_path;
  *out_nvrtc = NULL;
  return no_compiler();
}

void mlx_nvrtc_close(mlx_nvrtc_t *nvrtc) { (void)nvrtc; }

const char *mlx_nvrtc_path(const mlx_nvrtc_t *nvrtc) {
  (void)nvrtc;
  return "";
}

const char *mlx_nvrtc_version(const mlx_nvrtc_t *nvrtc) {
  (void)nvrtc;
  return "";
}

bool mlx_nvrtc_makes_ptx(const mlx_nvrtc_t *nvrtc) {
  (void)nvrtc;
  return false;
}

const char *mlx_kernels_cpu_level(const char *level) {
  (void)level;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Models that are not compiled. None can be opened, so the functions about an open one are never called.

mlx_status_t mlx_model_open(const char *path, mlx_model_t **out_model) {
  *out_model = NULL;
  return refuse(path);
}

void mlx_model_close(mlx_model_t *model) { (void)model; }

bool mlx_source_is_gguf(const mlx_source_t *source) {
  (void)source;
  return false;
}

const char *mlx_source_path(const mlx_source_t *source) {
  (void)source;
  return "";
}

const char *mlx_source_multimodal(const mlx_source_t *source) {
  (void)source;
  return NULL;
}

const char *mlx_source_file(const mlx_source_t *source, size_t index) {
  (void)source, (void)index;
  return NULL;
}

mlx_status_t mlx_source_string(const mlx_source_t *source, const char *hf_key, const char *gguf_key,
                               const char **out, bool *out_found) {
  (void)source, (void)hf_key, (void)gguf_key, (void)out, (void)out_found;
  return no_compiler();
}

mlx_status_t mlx_source_licence(const mlx_source_t *source, char *out, size_t size) {
  (void)source, (void)out, (void)size;
  return no_compiler();
}

mlx_status_t mlx_source_chat_json(const mlx_source_t *source, char **out_json, size_t *out_length) {
  (void)source, (void)out_length;
  *out_json = NULL;
  return no_compiler();
}

size_t mlx_source_tensor_count(const mlx_source_t *source) {
  (void)source;
  return 0;
}

const mlx_tensor_t *mlx_source_tensor_at(const mlx_source_t *source, size_t index) {
  (void)source, (void)index;
  return NULL;
}

const mlx_dtype_info_t *mlx_dtype_info(mlx_dtype_t dtype) {
  static const mlx_dtype_info_t none = {.name = ""};
  (void)dtype;
  return &none;
}

void mlx_weight_format(const mlx_weight_t *weight, char out[MLX_FORMAT_NAME]) {
  (void)weight;
  out[0] = 0;
}

void mlx_format_list_add(mlx_format_list_t *list, const char *name, uint64_t bytes) {
  (void)list, (void)name, (void)bytes;
}

void mlx_format_list_sort(mlx_format_list_t *list) { (void)list; }
