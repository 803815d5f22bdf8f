// Pages: large memory of which the system backs only the part that is used. Reserving takes address space;
// memory is taken by the first access to each page.
//
// Threads: functions may be called from any thread; each range belongs to its owner.
#ifndef MLXCEL_BASE_PAGES_H_
#define MLXCEL_BASE_PAGES_H_

#include <stddef.h>

#include "base/status.h"

// Reserves |size| bytes, at least 1, aligned to a page of the system. Release with mlx_pages_release.
mlx_status_t mlx_pages_reserve(size_t size, void **out_pages) MLX_MUST_USE;
// Makes the first |size| bytes accessible. They are zero until they are written.
mlx_status_t mlx_pages_commit(void *pages, size_t size) MLX_MUST_USE;
// Gives the memory of the first |size| committed bytes back to the system. They stay accessible; each is zero
// or as before.
void mlx_pages_discard(void *pages, size_t size);
void mlx_pages_release(void *pages, size_t size);  // |size| as reserved; NULL is fine

#endif  // MLXCEL_BASE_PAGES_H_
