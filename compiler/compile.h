// Compile: turns a model on disk into a bundle for the runtime. The public header of compiler/.
#ifndef MLXCEL_COMPILER_COMPILE_H_
#define MLXCEL_COMPILER_COMPILE_H_

#include <stdint.h>

#include "artifact/manifest.h"
#include "artifact/module_record.h"
#include "base/report.h"
#include "base/status.h"
#include "base/text.h"
#include "base/weight_reader.h"
#include "cache/cache.h"
#include "compiler/quantize.h"
#include "compiler/ranks.h"
#include "graph/dtype.h"
#include "models/model.h"

#define MLX_CONTEXT_OF_MODEL (-1)

// False in a runtime-only build (compiler/absent), where everything below fails.
bool mlx_compiler_available(void);
// In a runtime-only build: a hint where to get a compiler. Else NULL.
const char *mlx_compiler_hint(void);

typedef struct mlx_compiled mlx_compiled_t;
typedef struct mlx_source_weights mlx_source_weights_t;

// The tokenizer of a model on disk. Making its text can take a second, so that happens only if it is needed.
typedef struct mlx_model_tokenizer {
  char *name;             // owned: path of its file, for messages
  mlx_file_name_t model;  // the name of the model
  char key[96];           // a digest of the bytes that the text is made from; "" if they cannot be hashed
  // Private:
  mlx_source_t *source;
  bool owns_source;
  char *hashed;            // owned: the file that |key| is a digest of; NULL if there is no key
  mlx_file_stamp_t stamp;  // of |hashed|, from before it was hashed
} mlx_model_tokenizer_t;
// Its tokenizer.json. Release with mlx_free. Fails if the file changed since |key| was computed.
mlx_status_t mlx_model_tokenizer_read(const mlx_model_tokenizer_t *tokenizer, char **out_json,
                                      size_t *out_length) MLX_MUST_USE;
// Opens the tokenizer of a model on disk, without compiling it. |cache| may be NULL; it remembers digests.
// Release with mlx_model_tokenizer_close.
mlx_status_t mlx_model_tokenizer_open(const char *model_path, mlx_cache_t *cache,
                                      mlx_model_tokenizer_t *out_tokenizer) MLX_MUST_USE;
void mlx_model_tokenizer_close(mlx_model_tokenizer_t *tokenizer);

typedef enum mlx_kernel_choice {
  MLX_KERNELS_AUTO,  // kernel path if our kernels support model and target (and, for a GPU, NVRTC is found)
  MLX_KERNELS_REQUIRED,  // fail if they do not
  MLX_KERNELS_OFF,       // generic path
} mlx_kernel_choice_t;
// Parses "auto", "required" or "off".
mlx_status_t mlx_kernel_choice_parse(const char *text, mlx_kernel_choice_t *out_choice) MLX_MUST_USE;

typedef enum mlx_weights_choice {
  MLX_WEIGHTS_FLOAT,      // every matrix in the given dtype
  MLX_WEIGHTS_QUANTIZED,  // as quantized in the file; fail if no kernel supports that
  MLX_WEIGHTS_AUTO,       // as in the file, quantized or 16-bit floats, if possible; else f32
} mlx_weights_choice_t;
// Parses the value of --dtype: "auto", "quantized" or a dtype.
mlx_status_t mlx_weights_choice_parse(const char *text, mlx_weights_choice_t *out_choice,
                                      mlx_dtype_t *out_dtype) MLX_MUST_USE;

// Parses the value of --kv: "f32", "bf16", "f16" or "q8" (MLX_Q8_0).
mlx_status_t mlx_kv_parse(const char *text, mlx_dtype_t *out_dtype) MLX_MUST_USE;
const char *mlx_kv_name(mlx_dtype_t dtype);

typedef struct mlx_compile_options {
  const char *target;  // "cpu", "cpu:x86-64-v3", "cpu:portable", "cuda:sm_90", or a comma-separated list;
                       // NULL: "cpu"
  mlx_dtype_t dtype;   // with MLX_WEIGHTS_FLOAT: of the weights; 16 bits also round activations. Else MLX_F32
  mlx_weights_choice_t weights;
  mlx_dtype_t kv;  // of the KV cache, if |kv_given|; else |dtype|
  bool kv_given;
  mlx_quantize_t quantize;  // quantizes matrices that have more bits. Fails with MLX_WEIGHTS_FLOAT, or if no
                            // matrix can be quantized
  // Longest text that the module must support; 0: any; MLX_CONTEXT_OF_MODEL: the longest that the model
  // supports. Only a LongRoPE model depends on it: above its original context length it gets the frequencies
  // for long texts. mlx_compile_stablehlo: the context length.
  int64_t context;
  mlx_kernel_choice_t kernels;
  mlx_rank_t rank;             // compile the part of a rank, for a CPU only; count 0: the whole model
  const char *iree_compile;    // NULL: searched as compiler/driver.h describes
  double time_limit_seconds;   // for iree-compile; 0: the driver's default
  const mlx_report_t *report;  // may be NULL
  bool verbose;      // report how each kind of weight is stored and which path each kind of op takes
  bool module_only;  // compile the module and skip the weights
  // The result is opened by this process and not written as a bundle. Then the text of the tokenizer is not
  // made, and the manifest lists no files. If the only target is a GPU and packing is fast
  // (mlx_weights_pack_fast), no archive is written: |reader| of the result packs the weights.
  bool for_engine;
  bool show_size;  // report the size of the weights before anything slow
  // Memory of this machine's GPU, for a target that is this GPU; 0: unknown. Weights that are larger are
  // refused, before anything slow. For the target "cpu" the limit is |host_memory|; 0: the RAM of this
  // machine.
  uint64_t gpu_memory, host_memory;
  // Shared memory per block that the decode kernel may use; 0: as much as the GPU of |target| has. Tests set
  // it to run the code for a GPU with less shared memory on another GPU.
  int shared_bytes;
  // Called after the model is read and before anything slow. A status from it ends the compilation. May be
  // NULL.
  mlx_status_t (*accept)(void *user, const mlx_model_tokenizer_t *tokenizer, int64_t context,
                         int64_t model_context, int64_t vocab);
  void *user;
  // Takes a module that is not in the local cache from another one, to |path|, instead of compiling it
  // (transfer/remote_cache.h). If it fails, the module is compiled. NULL: there is no other cache.
  mlx_status_t (*fetch)(void *remote, const mlx_module_wanted_t *wanted, const char *path,
                        mlx_module_record_t *out_record);
  void *remote;
} mlx_compile_options_t;

// A file that will be written to the bundle.
typedef struct mlx_compiled_file {
  char name[MLX_BUNDLE_NAME];  // in the bundle
  char *path;                  // owned; current path, usually in the cache
  const char *level;           // CPU level of a module of a portable model; else NULL
  mlx_cache_entry_t entry;     // lease on the cache entry; empty for a license file
} mlx_compiled_file_t;

// A compiled model: its texts, and its files in the cache, which stay leased until mlx_compiled_release.
struct mlx_compiled {
  mlx_cache_t *cache;          // borrowed; must outlive this
  char *manifest, *tokenizer;  // owned JSON texts; no tokenizer with for_engine
  char *chat;  // owned JSON text; NULL if the model has neither chat template nor special tokens
  size_t manifest_length, tokenizer_length, chat_length;
  // One module per target; for cpu:portable one per CPU level.
  mlx_compiled_file_t modules[MLX_MAX_TARGETS + MLX_MAX_LEVELS];
  size_t module_count;
  // Archives. Targets that store weights identically share one; none with module_only or if |source| is set.
  mlx_compiled_file_t weights[MLX_MAX_TARGETS];
  size_t weights_count;
  mlx_compiled_file_t licences[MLX_MAX_LICENCES];
  size_t licence_count;
  // Borrowed paths of the first module and archive; weights_path is NULL if there is none.
  const char *vmfb_path, *weights_path;
  mlx_source_weights_t *source;       // owned; NULL unless the weights are made while loading
  const mlx_weight_reader_t *reader;  // of |source|; NULL without it
  bool from_cache;                    // every module came from the cache: iree-compile did not run
  double seconds;                     // that mlx_compile took
};

// Compiles |model_path|, or takes the results of an earlier compile from |cache|. Release with
// mlx_compiled_release.
mlx_status_t mlx_compile(const char *model_path, const mlx_compile_options_t *options, mlx_cache_t *cache,
                         mlx_compiled_t *out_compiled) MLX_MUST_USE;
void mlx_compiled_release(mlx_compiled_t *compiled);

// ---- weights that are made while loading (for_engine) ----

// Fails if a file of the model changed since it was compiled: the weights may be a mix of two versions.
mlx_status_t mlx_source_weights_check(const mlx_source_weights_t *source) MLX_MUST_USE;

typedef struct mlx_write_options {
  bool single_file;            // a single file instead of a folder
  bool no_weights;             // leave the weights out; the runtime finds them by the digest in the manifest
  const mlx_report_t *report;  // may be NULL
} mlx_write_options_t;

// Fails if mlx_compiled_write would refuse |path|: it exists, and is no bundle or contains other files.
mlx_status_t mlx_compiled_check_path(const char *path) MLX_MUST_USE;
// Writes a bundle (artifact/bundle.h) and records in the cache that it was made here. Replaces an existing
// bundle, but no other file. Removes the leftovers of killed processes that wrote the same path.
mlx_status_t mlx_compiled_write(const mlx_compiled_t *compiled, const char *path,
                                const mlx_write_options_t *options) MLX_MUST_USE;

// Compiles a module with one function, smoke(4 x i32), which doubles its argument in place. It shows that a
// target works. Release *|out_path| with mlx_free, and the entry when the file is no longer needed.
mlx_status_t mlx_compile_smoke(mlx_cache_t *cache, const char *target, const mlx_report_t *report,
                               mlx_cache_entry_t *out_entry, char **out_path) MLX_MUST_USE;

// The path of each kind of op of |model| on |target|, as a manifest would have it, without compiling. Fills
// in target, dtype, kv_bytes and ops only. *|out_weights| is the bytes of the weights as |target| stores
// them.
mlx_status_t mlx_compile_describe_ops(mlx_model_t *model, const char *target, mlx_variant_t *out_variant,
                                      uint64_t *out_weights) MLX_MUST_USE;

// Appends the launches of each function of |model| on |target|, a line for each different one, and why the
// decode kernel is not used. Nothing if it has no kernels there.
mlx_status_t mlx_compile_describe_launches(mlx_model_t *model, const char *target,
                                           mlx_text_t *out) MLX_MUST_USE;

// The chat.json of a model on disk, without compiling it. *|out_json| is NULL if the model has neither chat
// template nor special tokens. Release with mlx_free.
mlx_status_t mlx_compile_chat(const char *model_path, char **out_json, size_t *out_length) MLX_MUST_USE;

// The source_digest that a manifest would have for a model on disk.
mlx_status_t mlx_compile_source_digest(const char *model_path, const mlx_report_t *report,
                                       char out_hex[MLX_DIGEST_HEX]) MLX_MUST_USE;

// Parses the title of a cached module ("tiny-llama as f32 for cpu:host, context 2048"). False if it is not
// the title of a model.
typedef struct mlx_title {
  char model[128], dtype[16], target[64];
  int64_t context;
} mlx_title_t;
bool mlx_compiled_title(const char *title, mlx_title_t *out_title);

// The model as a pure StableHLO module: weights and state are arguments. Release with mlx_free.
mlx_status_t mlx_compile_stablehlo(const char *model_path, const mlx_compile_options_t *options,
                                   char **out_text, size_t *out_length) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_COMPILE_H_
