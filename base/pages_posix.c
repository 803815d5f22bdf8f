// Pages with mmap. The kernel backs a page when it is first accessed.
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/pages.h"

mlx_status_t mlx_pages_reserve(size_t size, void **out_pages) {
  *out_pages = NULL;
  void *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED)
    return mlx_error(MLX_OUT_OF_MEMORY, "out of memory: could not reserve %zu bytes (%s)", size,
                     strerror(errno));
  *out_pages = pages;
  return NULL;
}

mlx_status_t mlx_pages_commit(void *pages, size_t size) {
  (void)pages, (void)size;
  return NULL;
}

void mlx_pages_discard(void *pages, size_t size) {
  if (size) (void)!madvise(pages, size, MADV_DONTNEED);
}

void mlx_pages_release(void *pages, size_t size) {
  if (pages) munmap(pages, size);
}
