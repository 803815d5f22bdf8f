// Compile job: the state of one compilation, shared by compile.c and the compile_*.c files that implement its
// steps. Internal to compiler/.
#ifndef MLXCEL_COMPILER_COMPILE_JOB_H_
#define MLXCEL_COMPILER_COMPILE_JOB_H_

#include "compiler/compile.h"
#include "compiler/driver.h"
#include "compiler/module_facts.h"
#include "compiler/module_options.h"
#include "compiler/source_digest.h"
#include "compiler/target.h"

typedef struct mlx_weights_thread mlx_weights_thread_t;
typedef struct mlx_compiler_thread mlx_compiler_thread_t;

typedef struct mlx_compile_job {
  const mlx_compile_options_t *options;
  mlx_cache_t *cache;
  mlx_model_t *model;
  mlx_graph_t *graph;   // its network
  mlx_target_t target;  // the target being compiled
  mlx_gpu_kind_t gpu;   // of |target|, with options->shared_bytes; empty for a CPU
  mlx_module_options_t module;
  mlx_iree_compiler_t compiler;            // empty until mlx_job_get_compiler
  mlx_status_t no_compiler;                // owned: why there is none; modules may be in a cache
  mlx_compiler_thread_t *compiler_thread;  // identifies it; may be NULL
  mlx_nvrtc_t *nvrtc;                      // NULL on the generic path
  mlx_kernels_t kernels;
  char kernels_digest[MLX_DIGEST_HEX];
  char module_key[MLX_DIGEST_HEX];  // of the current module, whichever compiler makes it
  char *mlir;
  size_t mlir_length;
  size_t levels_done;                  // modules made so far for lower CPU levels of the same target
  mlx_module_facts_t facts;            // of this target's modules; the largest state_bytes
  bool only_target;                    // the user gave one target
  bool ran_compiler;                   // at least one module was not in the cache
  mlx_manifest_t manifest;             // grows with each target
  char source_stamp[MLX_DIGEST_HEX];   // of the source files when they were opened
  unsigned long long faults;           // mlx_fault_count at that time
  char source_tree[MLX_DIGEST_HEX];    // mlx_source_tree_digest; empty until mlx_job_get_weights
  mlx_weights_thread_t *weights;       // writes the archive of the current target; may be NULL
  double nvrtc_seconds, iree_seconds;  // CPU time
  double iree_elapsed;                 // seconds
  uint64_t iree_peak;                  // memory, bytes
  char title[192];
} mlx_compile_job_t;

// ---- compile_source.c ----

mlx_status_t mlx_job_open_model(mlx_compile_job_t *job, const char *path) MLX_MUST_USE;
// Fails if a file of |source| changed since mlx_job_open_model took |stamp|.
mlx_status_t mlx_source_check_stamp(const mlx_source_t *source, const char *stamp) MLX_MUST_USE;
// Fails if a source file changed since mlx_job_open_model. The files are mapped, and digests are taken by
// path, so a change during the compilation would mix two versions.
mlx_status_t mlx_job_check_source(const mlx_compile_job_t *job) MLX_MUST_USE;
// The tokenizer of |source|, which must outlive it. |cache| may be NULL. Release with
// mlx_model_tokenizer_close.
mlx_status_t mlx_job_find_tokenizer(mlx_source_t *source, mlx_cache_t *cache,
                                    mlx_model_tokenizer_t *out_tokenizer) MLX_MUST_USE;

// ---- compile_context.c ----

mlx_status_t mlx_job_module_options(const mlx_model_t *model, const mlx_compile_options_t *options,
                                    mlx_form_t form, mlx_module_options_t *out_module) MLX_MUST_USE;
// Bytes of the keys and values of |positions| positions in all layers. False on overflow.
bool mlx_job_kv_bytes(const mlx_compile_job_t *job, int64_t positions, size_t *out_bytes);
// The longest text that the engine will accept if memory allows: options->context, or its default.
int64_t mlx_job_longest_text(const mlx_compile_job_t *job);

// ---- compile_kernels.c ----

mlx_status_t mlx_job_choose_kernels(mlx_compile_job_t *job) MLX_MUST_USE;
// Fails if the user requires quantized weights or a quantized KV cache and this module cannot have them.
mlx_status_t mlx_job_check_quantized(const mlx_compile_job_t *job) MLX_MUST_USE;
// Fails if the user wants an 8-bit KV cache and some attention is on the generic path, which has none.
mlx_status_t mlx_job_check_kv_format(const mlx_compile_job_t *job) MLX_MUST_USE;
// Fails if --quantize conflicts with --dtype, or would change no matrix.
mlx_status_t mlx_job_check_quantize(const mlx_compile_job_t *job) MLX_MUST_USE;
const char *mlx_job_storage_name(const mlx_compile_job_t *job);  // "bf16", "quantized", "q4_1"
// Where to report a note that holds for every CPU level of a target: NULL after the first level.
const mlx_report_t *mlx_job_notes(const mlx_compile_job_t *job);

// ---- compile_size.c ----

// Bytes of the weights as the current module stores them.
mlx_status_t mlx_job_weight_bytes(const mlx_compile_job_t *job, uint64_t *out_bytes) MLX_MUST_USE;
// Reports the size of the model for the current target, with options->show_size. Fails if the weights are
// larger than the memory of the device.
mlx_status_t mlx_job_check_size(const mlx_compile_job_t *job) MLX_MUST_USE;

// ---- compile_ops.c ----

// Fills out->ops: the path of each kind of op of the current module, and what it costs; and out->step_bytes.
mlx_status_t mlx_job_describe_ops(const mlx_compile_job_t *job, mlx_variant_t *out) MLX_MUST_USE;
// Reports the ops as notes.
mlx_status_t mlx_job_explain_ops(const mlx_compile_job_t *job) MLX_MUST_USE;

// ---- compile_module.c ----

// Starts to find and hash iree-compile on another thread. If no thread can be started, mlx_job_get_compiler
// does the work.
mlx_status_t mlx_job_start_compiler(mlx_compile_job_t *job) MLX_MUST_USE;
// Waits for that thread, if there is one, and discards its result.
void mlx_job_stop_compiler(mlx_compile_job_t *job);
// Succeeds also if there is no compiler: then a module that no cache has is the error.
mlx_status_t mlx_job_get_compiler(mlx_compile_job_t *job) MLX_MUST_USE;
void mlx_job_write_title(const mlx_title_t *title, char *out, size_t size);
mlx_status_t mlx_job_get_module(mlx_compile_job_t *job, mlx_cache_entry_t *out_entry) MLX_MUST_USE;

// ---- compile_weights.c ----

void mlx_compiled_file_clear(mlx_compiled_file_t *file);
// Starts to hash the source files and to write the archive on another thread. Until mlx_job_get_weights or
// mlx_job_stop_weights, the caller must not use the model, nor change the module options or the tiles. The
// thread does not call the caller's report. If no thread can be started, mlx_job_get_weights does the work.
mlx_status_t mlx_job_start_weights(mlx_compile_job_t *job) MLX_MUST_USE;
// Waits for that thread, if there is one, and discards its result.
void mlx_job_stop_weights(mlx_compile_job_t *job);
mlx_status_t mlx_job_get_weights(mlx_compile_job_t *job, mlx_compiled_t *out,
                                 const mlx_compiled_file_t **out_archive) MLX_MUST_USE;

// ---- compile_load.c ----

// Whether the weights of the current target are made while loading.
bool mlx_job_makes_weights_at_load(const mlx_compile_job_t *job);
// Sets out->source, which takes over the job's model.
mlx_status_t mlx_job_keep_source(mlx_compile_job_t *job, mlx_compiled_t *out) MLX_MUST_USE;
void mlx_source_weights_free(mlx_source_weights_t *source);  // NULL is fine

// ---- compile_manifest.c ----

mlx_status_t mlx_job_find_licences(const mlx_compile_job_t *job, mlx_compiled_t *out) MLX_MUST_USE;
mlx_status_t mlx_job_describe_model(mlx_compile_job_t *job) MLX_MUST_USE;
// Adds the current target to the manifest. |modules| are the modules compiled for it.
mlx_status_t mlx_job_describe_target(mlx_compile_job_t *job, const mlx_compiled_file_t *modules,
                                     size_t module_count, const mlx_compiled_file_t *weights) MLX_MUST_USE;
mlx_status_t mlx_job_write_manifest(mlx_compile_job_t *job, mlx_compiled_t *out) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_COMPILE_JOB_H_
