// Driver: finds iree-compile, runs it as a child process, keeps everything it says, and names its output.
//
// The compiler is a tool we do not trust to be kind: it may crash, hang, print nothing, or print 10 MB.
// Whatever it does becomes a file or a status that says what happened, where the whole output is, and what to
// do. It does not know what it compiles: MLIR text, flags and objects come from the rest of compiler/.
//
// Threads: no state; a found compiler is read-only and may be shared.
#ifndef MLXCEL_COMPILER_DRIVER_H_
#define MLXCEL_COMPILER_DRIVER_H_

#include "base/digest.h"
#include "base/process.h"
#include "base/report.h"
#include "base/status.h"
#include "cache/cache.h"

// A compiler binary, by everything that can tell it from another one. Release with mlx_iree_compiler_release.
typedef struct mlx_iree_compiler {
  char *path;                   // owned; absolute, links resolved
  char *version;                // owned; "3.13.0rc20261016 @ 89ece87b…", or "of unknown version"
  char digest[MLX_DIGEST_HEX];  // over the executable and the libIREECompiler.so it loads
} mlx_iree_compiler_t;

// The iree-compile this build was configured with, "" for none. Only tests change it.
extern const char *mlx_iree_built_in;

// Looks at |explicit_path| (may be NULL), then $MLXCEL_IREE_COMPILE, then the path this build was configured
// with, then iree-compile beside our own binary and in ../libexec/iree, then on PATH. The first two must work
// when they are given; a name without a slash is looked up on PATH. |cache| remembers digest and version, so
// that a warm run starts no process.
mlx_status_t mlx_iree_compiler_find(mlx_cache_t *cache, const char *explicit_path, const mlx_report_t *report,
                                    mlx_iree_compiler_t *out_compiler) MLX_MUST_USE;
void mlx_iree_compiler_release(mlx_iree_compiler_t *compiler);

// One compilation. The command is: compiler, flags in order, the object folder's flag, mlir_path, -o
// out_path.
typedef struct mlx_iree_job {
  const char *name;          // for progress and messages: "decode for cpu"
  const char *mlir_path;     // in
  const char *out_path;      // out; an older file is removed first
  const char *const *flags;  // may be NULL when flag_count is 0
  size_t flag_count;
  const char *
      object_folder;  // where linked objects are; may be NULL. Not a flag, so that the path is not in the key
  const char *log_path;       // the command line, then all that the compiler prints on both streams
  double time_limit_seconds;  // 0: $MLXCEL_COMPILE_TIMEOUT, or 30 minutes
} mlx_iree_job_t;

// Fails with MLX_TOOL_FAILED or MLX_TIMEOUT, naming the first error line, how the child ended and the log.
// *|out_result| (may be NULL) says how long it took and how much memory; it is set also when the compiler
// failed.
mlx_status_t mlx_iree_compile(const mlx_iree_compiler_t *compiler, const mlx_iree_job_t *job,
                              const mlx_report_t *report, mlx_process_result_t *out_result) MLX_MUST_USE;

// What the output of a compilation depends on. Every part changes the key, and so does the order of flags and
// objects.
typedef struct mlx_iree_object {
  const char *name;  // as the MLIR names it
  const void *bytes;
  size_t length;
} mlx_iree_object_t;

typedef struct mlx_iree_input {
  const char *mlir;
  size_t mlir_length;
  const char *const *flags;  // the job's
  size_t flag_count;
  const char
      *target;  // "cpu:x86-64-v3", "cuda:sm_89". "host" would mean another CPU on another machine: name it
  const mlx_iree_object_t *objects;
  size_t object_count;
} mlx_iree_input_t;

void mlx_iree_key(const mlx_iree_compiler_t *compiler, const mlx_iree_input_t *input,
                  char out_hex[MLX_DIGEST_HEX]);

#endif  // MLXCEL_COMPILER_DRIVER_H_
