// See model_path.h.
#include "server/core/model_path.h"

#include <limits.h>
#include <string.h>
#include <uv.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "server/core/models.h"

#define PART_LENGTH 15  // of "-00001-of-00003"

int mlx_model_part_number(const char *path, size_t *out_start) {
  const size_t length = strlen(path), ending = strlen(".gguf");
  int number = 0;
  if (!mlx_ends_with_nocase(path, ".gguf") || length < PART_LENGTH + ending) return 0;
  const char *part = path + length - ending - PART_LENGTH;
  for (size_t i = 0; i < PART_LENGTH; ++i) {
    const char pattern = "-00000-of-00000"[i];
    if (pattern == '0' ? part[i] < '0' || part[i] > '9' : part[i] != pattern) return 0;
    if (i >= 1 && i <= 5) number = number * 10 + (part[i] - '0');
  }
  *out_start = (size_t)(part - path);
  return number;
}

static bool is_separator(char c) { return c == '/' || c == '\\'; }

mlx_status_t mlx_model_end_of_path(const char *path, int parts, char **out_name) {
  static const char *const endings[] = {".gguf", ".mlxb"};
  size_t end = strlen(path), part_start = end, start;
  if (mlx_model_part_number(path, &part_start)) end = part_start;
  while (end > 1 && is_separator(path[end - 1])) --end;
  for (start = end; start > 0; --start) {
    if (is_separator(path[start - 1]) && start < end && !--parts) break;
  }
  MLX_TRY(mlx_copy_text(path + start, end - start, out_name));
  for (char *at = *out_name; *at; ++at) {
    if (*at == '\\') *at = '/';
  }
  for (size_t i = 0; i < sizeof endings / sizeof *endings; ++i) {
    if (mlx_ends_with_nocase(*out_name, endings[i])) (*out_name)[strlen(*out_name) - strlen(endings[i])] = 0;
  }
  return NULL;
}

bool mlx_model_is_hub(const char *path) { return !strncmp(path, "hf:", 3); }

mlx_status_t mlx_models_default_name(const char *path, char **out_name) {
  return mlx_model_is_hub(path) ? mlx_model_end_of_path(path + 3, INT_MAX, out_name)
                                : mlx_model_end_of_path(path, 1, out_name);
}

typedef struct folder_size {
  const char *folder;
  uint64_t bytes;
} folder_size_t;

static mlx_status_t add_size(void *user, const char *name) {
  folder_size_t *sum = user;
  mlx_file_stamp_t stamp;
  char *path;
  MLX_TRY(mlx_join_path(sum->folder, name, &path));
  mlx_status_t status = mlx_is_file(path) ? mlx_file_stamp(path, &stamp) : NULL;
  if (!status && mlx_is_file(path)) sum->bytes += stamp.size;
  mlx_free(path);
  mlx_status_free(status);  // the size is only an estimate
  return NULL;
}

void mlx_model_measure(const char *path, int64_t *out_created, uint64_t *out_size) {
  mlx_file_stamp_t stamp;
  folder_size_t sum = {.folder = path};
  uv_fs_t request;
  if (!uv_fs_stat(NULL, &request, path, NULL)) *out_created = request.statbuf.st_mtim.tv_sec;
  uv_fs_req_cleanup(&request);
  if (mlx_is_dir(path)) {
    mlx_status_free(mlx_list_dir(path, add_size, &sum));
    *out_size = sum.bytes;
  } else if (mlx_is_file(path)) {
    mlx_status_t status = mlx_file_stamp(path, &stamp);
    if (!status) *out_size = stamp.size;
    mlx_status_free(status);
  }
}
