// Status: how every fallible function in mlxcel reports.
//
// NULL is success. Anything else is an owned error that must be passed up, or released with mlx_status_free.
// It carries a code, a message naming what was wrong, an optional hint saying what to do about it, and the
// source line that made it. Nothing below cli/ prints or exits: a status is the only way an error travels.
//
// Threads: a status belongs to one thread at a time.
#ifndef MLXCEL_BASE_STATUS_H_
#define MLXCEL_BASE_STATUS_H_

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

// Each code is also the exit status of the command line (docs/errors.md).
typedef enum mlx_code {
  MLX_OK = 0,
  MLX_INTERNAL = 1,       // a bug of ours: an invariant did not hold
  MLX_USAGE = 2,          // the command line or an option is wrong
  MLX_INVALID_INPUT = 3,  // a file's content is malformed or inconsistent
  MLX_UNSUPPORTED = 4,    // well formed, but something mlxcel does not handle
  MLX_NOT_FOUND = 5,      // a file, tool or function that should be there is not
  MLX_IO = 6,             // the operating system refused to read, write or lock
  MLX_OUT_OF_MEMORY = 7,
  MLX_UNAVAILABLE = 8,  // a device or driver cannot be used on this machine
  MLX_TOOL_FAILED = 9,  // iree-compile (or another child) failed
  MLX_TIMEOUT = 10,
  MLX_CANCELLED = 11,  // a callback asked to stop
} mlx_code_t;

typedef struct mlx_status *mlx_status_t;

#if defined(__GNUC__)
#define MLX_PRINTF(fmt_index, args_index) __attribute__((format(printf, fmt_index, args_index)))
#define MLX_MUST_USE __attribute__((warn_unused_result))
#define MLX_NEVER_NULL __attribute__((returns_nonnull))  // lets the compiler see that a failure never goes on
#else
#define MLX_PRINTF(fmt_index, args_index)
#define MLX_MUST_USE
#define MLX_NEVER_NULL
#endif

// mlx_error(code, fmt, ...) makes an error here. Never returns NULL: when memory is out, a static error
// stands in.
#define mlx_error(...) mlx_error_at(__FILE__, __LINE__, __VA_ARGS__)
mlx_status_t mlx_error_at(const char *file, int line, mlx_code_t code, const char *fmt, ...)
    MLX_PRINTF(4, 5) MLX_MUST_USE MLX_NEVER_NULL;

// Sets the hint of |status|, unless a deeper place already gave one. Takes and returns the same status; NULL
// passes through.
mlx_status_t mlx_status_hint(mlx_status_t status, const char *fmt, ...) MLX_PRINTF(2, 3) MLX_MUST_USE;

// The same in the place of a hint that is there: for whoever knows better what to do.
mlx_status_t mlx_status_rehint(mlx_status_t status, const char *fmt, ...) MLX_PRINTF(2, 3) MLX_MUST_USE;

// Puts "context: " before the message of |status|. NULL passes through.
mlx_status_t mlx_status_annotate(mlx_status_t status, const char *fmt, ...) MLX_PRINTF(2, 3) MLX_MUST_USE;

mlx_code_t mlx_status_code(mlx_status_t status);        // MLX_OK for NULL
const char *mlx_status_message(mlx_status_t status);    // "" for NULL; valid until the status is freed
const char *mlx_status_hint_text(mlx_status_t status);  // "" when there is none
const char *mlx_status_file(mlx_status_t status);       // where it was made
int mlx_status_line(mlx_status_t status);
void mlx_status_free(mlx_status_t status);  // NULL is fine

// Of two statuses keeps the first failure and frees the other: for "the work failed, then closing failed
// too".
mlx_status_t mlx_status_join(mlx_status_t first, mlx_status_t second) MLX_MUST_USE;

#define MLX_TRY(expr)                            \
  do {                                           \
    mlx_status_t mlx_try_status_ = (expr);       \
    if (mlx_try_status_) return mlx_try_status_; \
  } while (0)

#endif  // MLXCEL_BASE_STATUS_H_
