// Collects the weights that bundles without weights need. See needed.h.
#include "cli/needed.h"

#include <stdio.h>
#include <string.h>

#include "artifact/local.h"
#include "base/memory.h"

static mlx_status_t add_digest(void *user, const char *bundle, const char *sha256) {
  mlx_needed_t *needed = user;
  MLX_TRY(mlx_reserve(needed->count + 1, sizeof *needed->digests, &needed->capacity, &needed->digests));
  snprintf(needed->digests[needed->count++], MLX_DIGEST_HEX, "%s", sha256);
  return needed->bundle ? NULL : mlx_copy_text(bundle, strlen(bundle), &needed->bundle);
}

mlx_status_t mlx_needed_read(mlx_needed_t *out_needed) {
  *out_needed = (mlx_needed_t){0};
  mlx_status_t status = mlx_local_needed_weights(add_digest, out_needed);
  if (status) mlx_needed_clear(out_needed);
  return status;
}

void mlx_needed_clear(mlx_needed_t *needed) {
  mlx_free(needed->digests);
  mlx_free(needed->bundle);
  *needed = (mlx_needed_t){0};
}

static bool needs(const void *user, const char *sha256) {
  const mlx_needed_t *needed = user;
  for (size_t i = 0; i < needed->count; ++i) {
    if (!strcmp(needed->digests[i], sha256)) return true;
  }
  return false;
}

mlx_cache_keep_t mlx_needed_keep(const mlx_needed_t *needed) {
  return (mlx_cache_keep_t){.needs = needs, .user = needed};
}
