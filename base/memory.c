// Allocation through a replaceable table of functions.
#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

static const mlx_memory_calls_t system_calls = {.resize = realloc, .release = free};
static const mlx_memory_calls_t *memory_calls = &system_calls;

void mlx_memory_set_calls(const mlx_memory_calls_t *calls) { memory_calls = calls ? calls : &system_calls; }

void mlx_free(void *ptr) {
  if (ptr) memory_calls->release(ptr);
}

void mlx_memory_trim(void) {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

uint64_t mlx_physical_memory(void) {
  long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : UINT64_MAX;
}

mlx_status_t mlx_resize(size_t count, size_t size, void *inout_ptr) {
  size_t bytes;
  if (!mlx_mul(count, size, &bytes)) {
    return mlx_error(MLX_OUT_OF_MEMORY, "out of memory: %zu elements of %zu bytes overflow", count, size);
  }
  void *old;
  memcpy(&old, inout_ptr, sizeof old);
  void *ptr = memory_calls->resize(old, bytes ? bytes : 1);
  if (!ptr) return mlx_error(MLX_OUT_OF_MEMORY, "out of memory: could not allocate %zu bytes", bytes);
  memcpy(inout_ptr, &ptr, sizeof ptr);
  return NULL;
}

mlx_status_t mlx_alloc(size_t count, size_t size, void *out_ptr) {
  void *ptr = NULL;
  memcpy(out_ptr, &ptr, sizeof ptr);
  MLX_TRY(mlx_resize(count, size, &ptr));
  memset(ptr, 0, count * size);
  memcpy(out_ptr, &ptr, sizeof ptr);
  return NULL;
}

mlx_status_t mlx_reserve(size_t needed, size_t size, size_t *inout_capacity, void *inout_ptr) {
  if (needed <= *inout_capacity) return NULL;
  size_t capacity = *inout_capacity ? *inout_capacity : 16;
  while (capacity < needed) {
    if (!mlx_mul(capacity, 2, &capacity))
      return mlx_error(MLX_OUT_OF_MEMORY, "out of memory: array of %zu elements", needed);
  }
  MLX_TRY(mlx_resize(capacity, size, inout_ptr));
  *inout_capacity = capacity;
  return NULL;
}

mlx_status_t mlx_copy_text(const char *text, size_t length, char **out_text) {
  *out_text = NULL;
  size_t bytes;
  if (!mlx_add(length, 1, &bytes))
    return mlx_error(MLX_OUT_OF_MEMORY, "out of memory: text of %zu bytes", length);
  MLX_TRY(mlx_alloc(bytes, 1, out_text));
  if (length) memcpy(*out_text, text, length);
  return NULL;
}

mlx_status_t mlx_format(char **out_text, const char *fmt, ...) {
  *out_text = NULL;
  va_list args, again;
  va_start(args, fmt);
  va_copy(again, args);
  int length = vsnprintf(NULL, 0, fmt, again);
  va_end(again);
  mlx_status_t status = length < 0 ? mlx_error(MLX_INTERNAL, "cannot format '%s'", fmt)
                                   : mlx_alloc((size_t)length + 1, 1, out_text);
  if (!status) vsnprintf(*out_text, (size_t)length + 1, fmt, args);
  va_end(args);
  return status;
}
