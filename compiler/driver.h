// Driver: finds iree-compile, runs it as a child process, logs its output, and computes the cache key of its
// result.
//
// iree-compile may crash, hang, print nothing, or print 10 MB. Every outcome becomes an output file or a
// status with the cause, the path of the log and a hint. The driver does not interpret its input: MLIR text,
// flags and objects come from the rest of compiler/.
//
// Threads: no global state. A found compiler is read-only and may be shared.
#ifndef MLXCEL_COMPILER_DRIVER_H_
#define MLXCEL_COMPILER_DRIVER_H_

#include <stdatomic.h>

#include "base/digest.h"
#include "base/process.h"
#include "base/report.h"
#include "base/status.h"
#include "cache/cache.h"

// An iree-compile binary, and what identifies it. Release with mlx_iree_compiler_release.
typedef struct mlx_iree_compiler {
  char *path;                   // owned; absolute, symbolic links resolved
  char *version;                // owned; "3.13.0rc20261016 @ 89ece87b…", or "of unknown version"
  char digest[MLX_DIGEST_HEX];  // of the executable and the libIREECompiler.so that it loads
} mlx_iree_compiler_t;

// The version that this mlxcel needs: "3.13.0".
extern const char *const mlx_iree_needed_version;

// The iree-compile that this build was configured with; "" for none. Only tests change it.
extern const char *mlx_iree_built_in;

// Searches |explicit_path| (may be NULL), $MLXCEL_IREE_COMPILE, the path this build was configured with, the
// folder of our own program or library, ../libexec/iree, and PATH, in this order. Fails if one of the first
// two is given and does not work; a name without a slash is searched on PATH. |cache| stores digest and
// version, so that a warm run starts no process.
mlx_status_t mlx_iree_compiler_find(mlx_cache_t *cache, const char *explicit_path, const mlx_report_t *report,
                                    mlx_iree_compiler_t *out_compiler) MLX_MUST_USE;
void mlx_iree_compiler_release(mlx_iree_compiler_t *compiler);

// One compilation, or a half of it. The command is: compiler, flags in order, the flags for object_folder and
// half, -, -o out_path, with mlir_path as standard input.
//
// iree-compile reads linked objects in its last phases. The first half of a compilation ends before them and
// writes MLIR bytecode, from which the second half makes the module. The module is the same as that of a
// whole compilation.
typedef enum mlx_iree_half { MLX_IREE_WHOLE, MLX_IREE_FIRST_HALF, MLX_IREE_SECOND_HALF } mlx_iree_half_t;

typedef struct mlx_iree_job {
  const char *name;          // for progress and errors: "decode for cpu"
  const char *mlir_path;     // input
  const char *out_path;      // output; an existing file is removed first
  const char *const *flags;  // may be NULL if flag_count is 0
  size_t flag_count;
  // Folder of linked objects; may be NULL. Not one of the flags, so that the path is not in the key.
  const char *object_folder;
  const char *log_path;       // gets the command line, then stdout and stderr of the compiler
  double time_limit_seconds;  // 0: $MLXCEL_COMPILE_TIMEOUT, or 30 minutes
  mlx_iree_half_t half;
  // Another thread sets it to end the compiler: mlx_iree_compile then fails. May be NULL.
  const atomic_bool *cancelled;
} mlx_iree_job_t;

// Fails with MLX_TOOL_FAILED or MLX_TIMEOUT and names the first error line, the exit status and the log.
// *|out_result| (may be NULL) has elapsed time and peak memory; it is set also if the compiler failed.
mlx_status_t mlx_iree_compile(const mlx_iree_compiler_t *compiler, const mlx_iree_job_t *job,
                              const mlx_report_t *report, mlx_process_result_t *out_result) MLX_MUST_USE;

// A linked object.
typedef struct mlx_iree_object {
  const char *name;  // in the MLIR
  const void *bytes;
  size_t length;
} mlx_iree_object_t;

// Everything that the output of a compilation depends on. Every field changes the key; so does the order of
// flags and objects.
typedef struct mlx_iree_input {
  const char *mlir;
  size_t mlir_length;
  const char *const *flags;  // of the job
  size_t flag_count;
  // "cpu:x86-64-v3", "cuda:sm_89". For "host" it includes the identity of the CPU.
  const char *target;
  const mlx_iree_object_t *objects;
  size_t object_count;
} mlx_iree_input_t;

// |compiler| NULL: the key of the module whichever compiler makes it.
void mlx_iree_key(const mlx_iree_compiler_t *compiler, const mlx_iree_input_t *input,
                  char out_hex[MLX_DIGEST_HEX]);

#endif  // MLXCEL_COMPILER_DRIVER_H_
