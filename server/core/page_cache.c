// See page_cache.h.
#include "server/core/page_cache.h"

#include "base/memory.h"

#define PAGE_BYTES 4096

static mlx_status_t hold_file(const char *path, mlx_page_cache_t *cache) {
  MLX_TRY(mlx_reserve(cache->count + 1, sizeof *cache->maps, &cache->capacity, &cache->maps));
  mlx_map_t *map = &cache->maps[cache->count];
  MLX_TRY(mlx_map_file(path, map));
  ++cache->count;
  const volatile uint8_t *bytes = map->data;
  for (size_t i = 0; i < map->size; i += PAGE_BYTES) (void)bytes[i];
  return NULL;
}

typedef struct folder {
  const char *path;
  mlx_page_cache_t *cache;
} folder_t;

static mlx_status_t hold_found(void *user, const char *name) {
  const folder_t *folder = user;
  char *path;
  MLX_TRY(mlx_join_path(folder->path, name, &path));
  mlx_status_free(mlx_is_file(path) ? hold_file(path, folder->cache) : NULL);
  mlx_free(path);
  return NULL;
}

void mlx_page_cache_hold(const char *path, mlx_page_cache_t *cache) {
  folder_t folder = {path, cache};
  mlx_status_free(mlx_is_dir(path) ? mlx_list_dir(path, hold_found, &folder) : hold_file(path, cache));
}

void mlx_page_cache_release(mlx_page_cache_t *cache) {
  for (size_t i = 0; i < cache->count; ++i) mlx_unmap(&cache->maps[i]);
  mlx_free(cache->maps);
  *cache = (mlx_page_cache_t){0};
}
