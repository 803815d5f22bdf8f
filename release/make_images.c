// Writes the store of common kernel images for one GPU (cache/image_store.h).
//
//   make_images TARGET OUT MODEL...
//
// A MODEL is a shape of release/image_shapes.py: a file without data. The images that a compilation for
// TARGET ("cuda:sm_90") requests and that name no size of the model are compiled, and written to OUT. Images
// are kept in MLXCEL_CACHE, so that a second run is short. With - for OUT, they are only listed.
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "cache/cache.h"
#include "compiler/common_images.h"
#include "compiler/target.h"

static mlx_status_t collect(const char *target, char **models, int count, mlx_kernels_t *common) {
  const mlx_compile_options_t options = {.target = target, .weights = MLX_WEIGHTS_AUTO, .dtype = MLX_F32};
  for (int i = 0; i < count; ++i) MLX_TRY(mlx_common_images_add(models[i], &options, common));
  return NULL;
}

static void list(const mlx_kernels_t *common) {
  for (size_t i = 0; i < common->count; ++i) {
    printf("%s ", mlx_kernel_kind_name(common->images[i].kind));
    for (const char *at = common->images[i].definitions; *at; ++at) putchar(*at == '\n' ? ' ' : *at);
    putchar('\n');
  }
}

static mlx_status_t compile(const mlx_kernels_t *common, const char *out) {
  mlx_nvrtc_t *nvrtc;
  char *folder;
  MLX_TRY(mlx_format(&folder, "%s.parts", out));
  mlx_status_t status = mlx_nvrtc_open(NULL, &nvrtc);
  if (!status) status = mlx_common_images_write(common, nvrtc, folder, NULL, out);
  mlx_nvrtc_close(nvrtc);
  mlx_status_free(mlx_remove_tree(folder));
  mlx_free(folder);
  if (!status) printf("%s: %zu images\n", out, common->count);
  return status;
}

static mlx_status_t make(const char *name, const char *out, char **models, int count) {
  mlx_target_t target;
  MLX_TRY(mlx_target_parse(name, &target));
  if (!target.gpu) return mlx_error(MLX_USAGE, "%s is not a GPU", name);
  mlx_kernels_t common = {.gpu = target.gpu};
  mlx_cache_t *cache = NULL;
  mlx_status_t status = collect(name, models, count, &common);
  if (!status && !strcmp(out, "-")) {
    list(&common);
  } else if (!status) {
    status = mlx_cache_open(NULL, &cache);
    common.cache = cache;
    if (!status) status = compile(&common, out);
  }
  mlx_kernels_clear(&common);
  mlx_cache_close(cache);
  return status;
}

int main(int argc, char **argv) {
  if (argc < 4) {
    fprintf(stderr, "use: make_images TARGET OUT MODEL...\n");
    return 2;
  }
  mlx_status_t status = make(argv[1], argv[2], argv + 3, argc - 3);
  if (!status) return 0;
  fprintf(stderr, "make_images: %s\n", mlx_status_message(status));
  mlx_status_free(status);
  return 1;
}
