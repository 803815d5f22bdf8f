// Compile: from a model on disk to something the runtime can open. The compiler's public header.
#ifndef MLXCEL_COMPILER_COMPILE_H_
#define MLXCEL_COMPILER_COMPILE_H_

#include <stdint.h>

#include "artifact/manifest.h"
#include "base/report.h"
#include "base/status.h"
#include "cache/cache.h"
#include "compiler/quantize.h"
#include "graph/dtype.h"

#define MLX_CONTEXT_OF_MODEL (-1)

bool mlx_compiler_is_here(
    void);  // false in a runtime-only build (compiler/absent), where everything below is an error
const char *mlx_compiler_elsewhere(void);  // there: the way to a compiler, as a hint; NULL where one is here

typedef struct mlx_compiled mlx_compiled_t;

typedef enum mlx_kernel_choice {
  MLX_KERNELS_AUTO,      // linked where there are any for the model and the target, and for a GPU NVRTC to
                         // compile them
  MLX_KERNELS_REQUIRED,  // it is an error when there are none
  MLX_KERNELS_OFF,
} mlx_kernel_choice_t;
// From "auto", "required" or "off".
mlx_status_t mlx_kernel_choice_parse(const char *text, mlx_kernel_choice_t *out_choice) MLX_MUST_USE;

typedef enum mlx_weights_choice {
  MLX_WEIGHTS_WIDE,    // every matrix in the dtype asked for
  MLX_WEIGHTS_PACKED,  // as the file has them, where a kernel computes with that: an error when none does
  MLX_WEIGHTS_AUTO,    // packed where that is possible
} mlx_weights_choice_t;
// From what --dtype may be: "auto", "packed" (both with f32 for the rest) or a dtype.
mlx_status_t mlx_weights_choice_parse(const char *text, mlx_weights_choice_t *out_choice,
                                      mlx_dtype_t *out_dtype) MLX_MUST_USE;

typedef struct mlx_compile_options {
  const char *target;  // "cpu", "cpu:x86-64-v3", "cpu:portable", "cuda:sm_90", or several with commas
                       // between; NULL: "cpu"
  mlx_dtype_t
      dtype;  // of stored weights and of the KV cache, one that mlx_dtype_parse knows; MLX_F32: parity
  mlx_weights_choice_t weights;
  mlx_quantize_t quantize;  // makes packed weights of wider ones: not with MLX_WEIGHTS_WIDE, and an error
                            // where nothing can be packed
  int64_t
      context;  // positions to make room for; 0: the model's, up to 2048; MLX_CONTEXT_OF_MODEL: the model's
  int64_t sequences;  // sequences decoded together; 0: 1
  mlx_kernel_choice_t kernels;
  const char *iree_compile;    // NULL: found as compiler/driver.h says
  double time_limit_seconds;   // for iree-compile; 0: the driver's default
  const mlx_report_t *report;  // may be NULL
  bool verbose;                // say what becomes of each kind of weight
  uint64_t
      memory;  // bytes the device has, where it is known; 0: this machine's, for what is compiled for its CPU
  bool module_only;  // leave the weights alone: only the module is wanted
  // Called once the model is read and before anything slow, with no more than the tokenizer filled in: a
  // status from it ends the compilation. May be NULL.
  mlx_status_t (*accept)(void *user, const mlx_compiled_t *tokenizer, int64_t context, int64_t vocab);
  void *user;
} mlx_compile_options_t;

// A file that will be in the bundle.
typedef struct mlx_compiled_file {
  char name[MLX_BUNDLE_NAME];  // there
  char *path;                  // where it is now; owned
  const char *level;           // of a portable model's module; else NULL
  mlx_cache_entry_t entry;     // leased; of a licence there is none
} mlx_compiled_file_t;

// A compiled model: its texts and its files in the cache, which stay leased until this is released.
struct mlx_compiled {
  mlx_cache_t *cache;          // borrowed: must live as long
  char *manifest, *tokenizer;  // owned JSON texts
  char *tokenizer_name;        // owned: the file the tokenizer comes from, for messages
  char *chat;  // owned JSON text; NULL when the model has neither a chat template nor special tokens
  size_t manifest_length, tokenizer_length, chat_length;
  mlx_compiled_file_t
      modules[MLX_MAX_TARGETS + MLX_MAX_LEVELS];  // one for each target, of a portable one for each level
  size_t module_count;
  mlx_compiled_file_t weights[MLX_MAX_TARGETS];  // archives; one where all targets store them alike; none
                                                 // when only modules were wanted
  size_t weights_count;
  mlx_compiled_file_t licences[MLX_MAX_LICENCES];
  size_t licence_count;
  const char *vmfb_path, *weights_path;  // the first ones'; weights_path may be NULL
  bool from_cache;                       // every module was in the cache: iree-compile did not run
};

// Compiles |model_path|, or finds what an earlier compile left in |cache|. Release with mlx_compiled_release.
mlx_status_t mlx_compile(const char *model_path, const mlx_compile_options_t *options, mlx_cache_t *cache,
                         mlx_compiled_t *out_compiled) MLX_MUST_USE;
void mlx_compiled_release(mlx_compiled_t *compiled);

typedef struct mlx_write_options {
  bool single_file;  // one file instead of a folder
  bool no_weights;  // leave them out: whoever opens the bundle finds them by the digest that its manifest has
  const mlx_report_t *report;  // may be NULL
} mlx_write_options_t;

// Fails when mlx_compiled_write would refuse |path|: it is there, and it is not a bundle with nothing else in
// it.
mlx_status_t mlx_compiled_check_path(const char *path) MLX_MUST_USE;
// Writes a bundle (artifact/bundle.h) and remembers in the cache that it was made here. Replaces a bundle
// that is there, and nothing else. What killed writers of the same path left behind is removed.
mlx_status_t mlx_compiled_write(const mlx_compiled_t *compiled, const char *path,
                                const mlx_write_options_t *options) MLX_MUST_USE;

// Compiles a module with one function, smoke(4 x i32) -> 4 x i32, which doubles its argument: enough to see
// that a target works. Release the entry when the file at *|out_path| (release with mlx_free) is no longer
// needed.
mlx_status_t mlx_compile_smoke(mlx_cache_t *cache, const char *target, const mlx_report_t *report,
                               mlx_cache_entry_t *out_entry, char **out_path) MLX_MUST_USE;

// The chat.json of a model on disk, without compiling it; *|out_json| is NULL when it has neither a template
// nor special tokens. Release with mlx_free.
mlx_status_t mlx_compile_chat(const char *model_path, char **out_json, size_t *out_length) MLX_MUST_USE;

// The tokenizer.json of a model on disk, without compiling it, and the name of the file it comes from, for
// messages. Release both with mlx_free.
mlx_status_t mlx_compile_tokenizer(const char *model_path, char **out_name, char **out_json,
                                   size_t *out_length) MLX_MUST_USE;

// What a manifest calls the source_digest of a model on disk.
mlx_status_t mlx_compile_source_digest(const char *model_path, const mlx_report_t *report,
                                       char out_hex[MLX_DIGEST_HEX]) MLX_MUST_USE;

// What the title of a module in the cache says ("tiny-llama as f32 for cpu:host, context 2048"); false when
// it is no model's.
typedef struct mlx_title {
  char model[128], dtype[16], target[64];
  int64_t context;
} mlx_title_t;
bool mlx_compiled_title(const char *title, mlx_title_t *out_title);

// The model as a pure StableHLO module, weights and state as arguments. Release with mlx_free.
mlx_status_t mlx_compile_stablehlo(const char *model_path, const mlx_compile_options_t *options,
                                   char **out_text, size_t *out_length) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_COMPILE_H_
