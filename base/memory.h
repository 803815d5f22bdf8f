// Memory: allocations go through a table of functions, so that a test can make the Nth one fail. Sizes use
// checked arithmetic, so that a count from a file cannot overflow. Two parts allocate directly: statuses,
// because they must work when memory is exhausted, and the POSIX calls of base/windows/.
#ifndef MLXCEL_BASE_MEMORY_H_
#define MLXCEL_BASE_MEMORY_H_

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct mlx_memory_calls {
  void *(*resize)(void *ptr, size_t size);  // realloc's contract; ptr may be NULL, size is never 0
  void (*release)(void *ptr);
} mlx_memory_calls_t;

// Replaces the table; NULL restores the system's functions. For tests, before any thread starts.
void mlx_memory_set_calls(const mlx_memory_calls_t *calls);

// Allocates |count| zeroed elements of |size| bytes into *|out_ptr| (a pointer to any object pointer).
// Release with mlx_free. A count of 0 gives a valid pointer.
mlx_status_t mlx_alloc(size_t count, size_t size, void *out_ptr) MLX_MUST_USE;

// Resizes *|inout_ptr| to |count| elements. On failure the old block is unchanged. New elements are not
// zeroed.
mlx_status_t mlx_resize(size_t count, size_t size, void *inout_ptr) MLX_MUST_USE;

// Grows an array (*inout_ptr of *inout_capacity elements) to at least |needed| elements, by doubling.
mlx_status_t mlx_reserve(size_t needed, size_t size, size_t *inout_capacity, void *inout_ptr) MLX_MUST_USE;

// Copies |length| bytes of |text| and appends a NUL.
mlx_status_t mlx_copy_text(const char *text, size_t length, char **out_text) MLX_MUST_USE;

// printf into a new string. Release with mlx_free.
mlx_status_t mlx_format(char **out_text, const char *fmt, ...) MLX_PRINTF(2, 3) MLX_MUST_USE;

void mlx_free(void *ptr);

// Gives freed memory back to the system, where the allocator keeps it otherwise (glibc). Takes milliseconds:
// call it after much was freed.
void mlx_memory_trim(void);

uint64_t mlx_physical_memory(void);  // bytes of RAM; UINT64_MAX if unknown

// Checked arithmetic: false on overflow; *out is then meaningless.
static inline bool mlx_mul(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool mlx_add(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }
// Rounds up to a multiple of |alignment|, a power of two.
static inline bool mlx_align_up(size_t value, size_t alignment, size_t *out) {
  size_t padded;
  if (!mlx_add(value, alignment - 1, &padded)) return false;
  *out = padded & ~(alignment - 1);
  return true;
}
// True if [offset, offset + length) lies inside [0, size).
static inline bool mlx_range_ok(uint64_t offset, uint64_t length, uint64_t size) {
  return offset <= size && length <= size - offset;
}

#endif  // MLXCEL_BASE_MEMORY_H_
