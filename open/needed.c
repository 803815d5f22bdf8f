// Collects the weights that bundles without weights need. See needed.h.
#include "open/needed.h"

#include <stdio.h>
#include <string.h>

#include "artifact/local.h"
#include "base/memory.h"

static mlx_status_t add_bundle(mlx_needed_t *needed, const char *path, size_t *out_index) {
  for (*out_index = 0; *out_index < needed->bundle_count; ++*out_index) {
    if (!strcmp(needed->bundles[*out_index], path)) return NULL;
  }
  MLX_TRY(mlx_reserve(needed->bundle_count + 1, sizeof *needed->bundles, &needed->bundle_capacity,
                      &needed->bundles));
  MLX_TRY(mlx_copy_text(path, strlen(path), &needed->bundles[needed->bundle_count]));
  ++needed->bundle_count;
  return NULL;
}

static mlx_status_t add_file(void *user, const char *bundle, const char *tree, bool missing) {
  mlx_needed_t *needed = user;
  size_t index;
  MLX_TRY(add_bundle(needed, bundle, &index));
  MLX_TRY(mlx_reserve(needed->count + 1, sizeof *needed->files, &needed->capacity, &needed->files));
  mlx_needed_file_t *file = &needed->files[needed->count++];
  *file = (mlx_needed_file_t){.missing = missing, .bundle = index};
  snprintf(file->tree, sizeof file->tree, "%s", tree);
  return NULL;
}

mlx_status_t mlx_needed_read(mlx_needed_t *out_needed) {
  *out_needed = (mlx_needed_t){0};
  mlx_status_t status = mlx_local_needed_weights(add_file, out_needed);
  if (status) mlx_needed_clear(out_needed);
  return status;
}

void mlx_needed_clear(mlx_needed_t *needed) {
  for (size_t i = 0; i < needed->bundle_count; ++i) mlx_free(needed->bundles[i]);
  mlx_free(needed->bundles);
  mlx_free(needed->files);
  *needed = (mlx_needed_t){0};
}

// A bundle in its place decides before a missing one.
static bool needs(void *user, const char *tree) {
  mlx_needed_t *needed = user;
  const mlx_needed_file_t *missing = NULL;
  for (size_t i = 0; i < needed->count; ++i) {
    const mlx_needed_file_t *file = &needed->files[i];
    if (strcmp(file->tree, tree)) continue;
    if (!file->missing) {
      needed->kept = needed->bundles[file->bundle];
      return true;
    }
    missing = file;
  }
  if (!missing) return false;
  const char *bundle = needed->bundles[missing->bundle];
  if (needed->drop_missing) {
    needed->dropped = bundle;
  } else {
    needed->kept_missing = bundle;
  }
  return !needed->drop_missing;
}

mlx_cache_keep_t mlx_needed_keep(mlx_needed_t *needed) {
  return (mlx_cache_keep_t){.needs = needs, .user = needed};
}
