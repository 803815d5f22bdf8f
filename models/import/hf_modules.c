// The weights of sentence-transformers modules: a layer of kind Dense has a folder with its own
// model.safetensors. Its tensors get the names "dense.0.linear.weight", "dense.1.linear.weight", ...
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "models/import/hf.h"
#include "models/import/name.h"

#define MODULES_NAME "modules.json"
#define MAX_MODULES ((size_t)1 << 20)  // bytes of the file

bool mlx_hf_is_module_folder(const char *name) {
  return name && name[0] && strlen(name) < MLX_HF_MODULE_NAME && !strpbrk(name, "/\\") && strcmp(name, ".") &&
         strcmp(name, "..") && mlx_name_is_plain(name, strlen(name));
}

const char *mlx_hf_module_class(yyjson_val *module) {
  const char *type = yyjson_get_str(yyjson_obj_get(module, "type")), *dot = type ? strrchr(type, '.') : NULL;
  return dot ? dot + 1 : type ? type : "";
}

// Adds the tensors of the file to the model's.
static mlx_status_t add_tensors(mlx_hf_t *hf, const mlx_safetensors_t *file, size_t module) {
  size_t capacity = hf->tensor_count;
  MLX_TRY(mlx_reserve(hf->tensor_count + file->tensor_count, sizeof *hf->tensors, &capacity, &hf->tensors));
  for (size_t i = 0; i < file->tensor_count; ++i) {
    if (hf->module_tensor_count == MLX_HF_MODULE_TENSORS)
      return mlx_error(MLX_UNSUPPORTED, "'%s' has modules with more than %d tensors", hf->folder,
                       MLX_HF_MODULE_TENSORS);
    mlx_hf_module_tensor_t *tensor = &hf->module_tensors[hf->module_tensor_count++];
    MLX_TRY(mlx_format(&tensor->name, "dense.%zu.%s", module, file->tensors[i].name));
    tensor->tensor = file->tensors[i];
    tensor->tensor.name = tensor->name;
    hf->tensors[hf->tensor_count++] = &tensor->tensor;
  }
  return NULL;
}

static mlx_status_t open_dense(mlx_hf_t *hf, const char *folder, size_t module) {
  mlx_hf_shard_t *shard;
  char *name;
  MLX_TRY(mlx_format(&name, "%s/model.safetensors", folder));
  mlx_status_t status = mlx_hf_open_shard(hf, name, &shard);
  mlx_free(name);
  MLX_TRY(mlx_status_hint(status, "download this file, which " MODULES_NAME " lists"));
  shard->name = "model.safetensors of a module";
  return add_tensors(hf, shard->file, module);
}

static mlx_status_t open_modules(mlx_hf_t *hf, const mlx_json_t *modules) {
  yyjson_val *module;
  size_t i, count, dense = 0;
  yyjson_arr_foreach(modules->root, i, count, module) {
    const char *path = yyjson_get_str(yyjson_obj_get(module, "path"));
    if (strcmp(mlx_hf_module_class(module), "Dense")) continue;
    if (!mlx_hf_is_module_folder(path))
      return mlx_json_error(modules, "path", "must be the name of a folder in the model's folder");
    MLX_TRY(open_dense(hf, path, dense++));
  }
  qsort(hf->tensors, hf->tensor_count, sizeof *hf->tensors, mlx_tensor_compare);
  return NULL;
}

mlx_status_t mlx_hf_open_modules(mlx_hf_t *hf) {
  char *path, *bytes = NULL;
  size_t length;
  mlx_json_t modules = {0};
  MLX_TRY(mlx_join_path(hf->folder, MODULES_NAME, &path));
  const bool found = mlx_is_file(path);
  mlx_status_t status = found ? mlx_read_file(path, MAX_MODULES, &bytes, &length) : NULL;
  if (!status && found) status = mlx_json_parse_any(path, bytes, length, &modules);
  if (!status && found) status = open_modules(hf, &modules);
  mlx_json_close(&modules);
  mlx_free(bytes);
  mlx_free(path);
  return status;
}
