// Status: how every fallible function in mlxcel reports errors.
//
// NULL is success. Anything else is an owned error that the caller must return, or release with
// mlx_status_free. It has a code, a message that says what failed, an optional hint that says what to do, and
// the source line that created it. Code below cli/ never prints errors or exits: it returns a status.
//
// Threads: a status belongs to one thread at a time.
#ifndef MLXCEL_BASE_STATUS_H_
#define MLXCEL_BASE_STATUS_H_

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Each code is also the exit status of the command line (docs/errors.md).
typedef enum mlx_code {
  MLX_OK = 0,
  MLX_INTERNAL = 1,       // a bug in mlxcel: an invariant does not hold
  MLX_USAGE = 2,          // the command line or an option is wrong
  MLX_INVALID_INPUT = 3,  // the content of a file is malformed or inconsistent
  MLX_UNSUPPORTED = 4,    // well formed, but not supported by mlxcel
  MLX_NOT_FOUND = 5,      // a required file, tool or function is missing
  MLX_IO = 6,             // the operating system refused to read, write or lock
  MLX_OUT_OF_MEMORY = 7,  // memory, or another resource such as threads
  MLX_UNAVAILABLE = 8,    // a device or driver cannot be used on this machine
  MLX_TOOL_FAILED = 9,    // iree-compile (or another child process) failed
  MLX_TIMEOUT = 10,
  MLX_CANCELLED = 11,  // a callback requested the stop
} mlx_code_t;

typedef struct mlx_status *mlx_status_t;

#if defined(__GNUC__)
#define MLX_PRINTF(fmt_index, args_index) __attribute__((format(printf, fmt_index, args_index)))
#define MLX_MUST_USE __attribute__((warn_unused_result))
#define MLX_NEVER_NULL __attribute__((returns_nonnull))  // lets the compiler see that MLX_TRY returns
#else
#define MLX_PRINTF(fmt_index, args_index)
#define MLX_MUST_USE
#define MLX_NEVER_NULL
#endif

// mlx_error(code, fmt, ...) creates an error with the current source line. Never returns NULL: if memory is
// exhausted, it returns a static error.
#define mlx_error(...) mlx_error_at(__FILE__, __LINE__, __VA_ARGS__)
mlx_status_t mlx_error_at(const char *file, int line, mlx_code_t code, const char *fmt, ...)
    MLX_PRINTF(4, 5) MLX_MUST_USE MLX_NEVER_NULL;

// Sets the hint of |status| unless it has one already. Returns the same status; NULL passes through.
mlx_status_t mlx_status_hint(mlx_status_t status, const char *fmt, ...) MLX_PRINTF(2, 3) MLX_MUST_USE;

// The same, but replaces an existing hint: for callers that know the cause better.
mlx_status_t mlx_status_rehint(mlx_status_t status, const char *fmt, ...) MLX_PRINTF(2, 3) MLX_MUST_USE;

// Prepends "context: " to the message of |status|. NULL passes through.
mlx_status_t mlx_status_annotate(mlx_status_t status, const char *fmt, ...) MLX_PRINTF(2, 3) MLX_MUST_USE;

mlx_code_t mlx_status_code(mlx_status_t status);        // MLX_OK for NULL
const char *mlx_status_message(mlx_status_t status);    // "" for NULL; valid until the status is freed
const char *mlx_status_hint_text(mlx_status_t status);  // "" if there is none
const char *mlx_status_file(mlx_status_t status);       // source file that created it
int mlx_status_line(mlx_status_t status);
void mlx_status_free(mlx_status_t status);  // NULL is allowed

// Keeps the first failure and frees the other: for cleanup that can fail after the work has failed.
mlx_status_t mlx_status_join(mlx_status_t first, mlx_status_t second) MLX_MUST_USE;

#define MLX_TRY(expr)                            \
  do {                                           \
    mlx_status_t mlx_try_status_ = (expr);       \
    if (mlx_try_status_) return mlx_try_status_; \
  } while (0)

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MLXCEL_BASE_STATUS_H_
