// Pages with VirtualAlloc. A reserved page must be committed before it is accessed; Windows then counts it
// against the memory of the system, and backs it when it is first accessed.
#include "base/pages.h"
#include "base/windows/internal.h"

mlx_status_t mlx_pages_reserve(size_t size, void **out_pages) {
  *out_pages = VirtualAlloc(NULL, size, MEM_RESERVE, PAGE_READWRITE);
  if (*out_pages) return NULL;
  return mlx_error(MLX_OUT_OF_MEMORY, "out of memory: could not reserve %zu bytes (error %lu)", size,
                   GetLastError());
}

mlx_status_t mlx_pages_commit(void *pages, size_t size) {
  if (!size || VirtualAlloc(pages, size, MEM_COMMIT, PAGE_READWRITE)) return NULL;
  return mlx_error(MLX_OUT_OF_MEMORY, "out of memory: could not commit %zu bytes (error %lu)", size,
                   GetLastError());
}

void mlx_pages_discard(void *pages, size_t size) {
  if (size) VirtualAlloc(pages, size, MEM_RESET, PAGE_READWRITE);
}

void mlx_pages_release(void *pages, size_t size) {
  (void)size;
  if (pages) VirtualFree(pages, 0, MEM_RELEASE);
}
