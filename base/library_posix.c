// Shared libraries through dlopen.
#include <dlfcn.h>
#include <link.h>
#include <string.h>

#include "base/library.h"
#include "base/memory.h"

mlx_status_t mlx_library_open(const char *name, void **out_library) {
  *out_library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (*out_library) return NULL;
  const char *reason = dlerror();
  if (!reason) reason = "dlopen failed without a reason";
  return mlx_error(strstr(reason, "No such file") ? MLX_NOT_FOUND : MLX_UNAVAILABLE, "%s", reason);
}

void *mlx_library_symbol(void *library, const char *name) { return dlsym(library, name); }

void mlx_library_close(void *library) { dlclose(library); }

mlx_status_t mlx_library_path(void *library, char **out_path) {
  struct link_map *map;
  *out_path = NULL;
  return dlinfo(library, RTLD_DI_LINKMAP, &map) ? NULL
                                                : mlx_copy_text(map->l_name, strlen(map->l_name), out_path);
}
