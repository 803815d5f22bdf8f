// Lists the files of a model and computes their digests.
#include "compiler/source_digest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "artifact/manifest.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/meter.h"
#include "compiler/compile.h"

// ----------------------------------------------------------------------------------------------------------
// Listing the files

typedef struct file {
  char *name;    // in the model's folder; owned
  bool is_text;  // a chat template, license or README: weights do not depend on it
} file_t;

typedef struct files {
  char *folder;  // owned
  file_t *items;
  size_t count, capacity;
} files_t;

static mlx_status_t add_file(files_t *files, const char *name, bool is_text) {
  MLX_TRY(mlx_reserve(files->count + 1, sizeof *files->items, &files->capacity, &files->items));
  file_t *file = &files->items[files->count];
  *file = (file_t){.is_text = is_text};
  MLX_TRY(mlx_copy_text(name, strlen(name), &file->name));
  ++files->count;
  return NULL;
}

static mlx_status_t add_text(void *user, const char *name) { return add_file(user, name, true); }

// Adds license files, which a bundle copies, and README.md, which names the license.
static mlx_status_t add_licence(void *user, const char *name) {
  files_t *files = user;
  char *path;
  if (!mlx_is_licence_file(name) && strcmp(name, "README.md")) return NULL;
  MLX_TRY(mlx_join_path(files->folder, name, &path));
  mlx_status_t status = mlx_is_file(path) ? add_file(files, name, true) : NULL;
  mlx_free(path);
  return status;
}

static int compare_names(const void *a, const void *b) {
  return strcmp(((const file_t *)a)->name, ((const file_t *)b)->name);
}

static mlx_status_t find_files(const mlx_source_t *source, files_t *files) {
  const char *model = mlx_source_path(source), *name;
  MLX_TRY(mlx_is_dir(model) ? mlx_copy_text(model, strlen(model), &files->folder)
                            : mlx_folder_of(model, &files->folder));
  for (size_t i = 0; (name = mlx_source_file_name(source, i)); ++i) MLX_TRY(add_file(files, name, false));
  MLX_TRY(mlx_source_chat_files(source, add_text, files));
  if (mlx_is_dir(model)) MLX_TRY(mlx_list_dir(model, add_licence, files));
  qsort(files->items, files->count, sizeof *files->items, compare_names);
  return NULL;
}

static void clear_files(files_t *files) {
  for (size_t i = 0; i < files->count; ++i) mlx_free(files->items[i].name);
  mlx_free(files->items);
  mlx_free(files->folder);
}

// ----------------------------------------------------------------------------------------------------------
// Their digests

typedef struct sum {
  mlx_digest_t digest;
  size_t count;
  char *out;  // [MLX_DIGEST_HEX]
} sum_t;

static void add_line(sum_t *sum, const char *name, const char hex[MLX_DIGEST_HEX]) {
  snprintf(sum->out, MLX_DIGEST_HEX, "%s", hex);  // the result if there is only one file
  ++sum->count;
  mlx_digest_add(&sum->digest, hex, strlen(hex));
  mlx_digest_add(&sum->digest, "  ", 2);
  mlx_digest_add(&sum->digest, name, strlen(name));
  mlx_digest_add(&sum->digest, "\n", 1);
}

typedef mlx_status_t (*digest_fn_t)(mlx_cache_t *cache, const char *path, const mlx_digest_watch_t *watch,
                                    char out_hex[MLX_DIGEST_HEX]);

static mlx_status_t digest_file(mlx_cache_t *cache, digest_fn_t digest, const char *folder, const char *name,
                                const mlx_report_t *report, char out_hex[MLX_DIGEST_HEX]) {
  char *path, title[128];
  mlx_meter_t meter;
  MLX_TRY(mlx_join_path(folder, name, &path));
  snprintf(title, sizeof title, "checking %.100s", name);
  mlx_meter_begin(&meter, report, title, 0);
  const mlx_digest_watch_t watch = mlx_meter_watch(&meter);
  mlx_status_t status = digest(cache, path, &watch, out_hex);
  mlx_meter_end(&meter);
  mlx_free(path);
  return status;
}

static mlx_status_t digest_files(mlx_cache_t *cache, digest_fn_t digest, const files_t *files, bool with_text,
                                 const mlx_report_t *report, char out_hex[MLX_DIGEST_HEX]) {
  sum_t sum = {.out = out_hex};
  mlx_digest_begin(&sum.digest);
  for (size_t i = 0; i < files->count; ++i) {
    const file_t *file = &files->items[i];
    char hex[MLX_DIGEST_HEX];
    if (file->is_text && !with_text) continue;
    MLX_TRY(digest_file(cache, digest, files->folder, file->name, report, hex));
    add_line(&sum, file->name, hex);
  }
  if (sum.count > 1) mlx_digest_end(&sum.digest, out_hex);
  return NULL;
}

static mlx_status_t digest_source(mlx_cache_t *cache, digest_fn_t digest, const mlx_source_t *source,
                                  bool with_text, const mlx_report_t *report, char out_hex[MLX_DIGEST_HEX]) {
  files_t files = {0};
  out_hex[0] = 0;
  mlx_status_t status = find_files(source, &files);
  if (!status) status = digest_files(cache, digest, &files, with_text, report, out_hex);
  clear_files(&files);
  return status;
}

mlx_status_t mlx_source_digest(mlx_cache_t *cache, const mlx_source_t *source, const mlx_report_t *report,
                               char out_hex[MLX_DIGEST_HEX]) {
  return digest_source(cache, mlx_cache_digest_file, source, true, report, out_hex);
}

mlx_status_t mlx_source_tree_digest(mlx_cache_t *cache, const mlx_source_t *source,
                                    const mlx_report_t *report, char out_hex[MLX_DIGEST_HEX]) {
  return digest_source(cache, mlx_cache_tree_digest_file, source, false, report, out_hex);
}

mlx_status_t mlx_compile_source_digest(const char *model_path, const mlx_report_t *report,
                                       char out_hex[MLX_DIGEST_HEX]) {
  mlx_source_t *source = NULL;
  mlx_cache_t *cache;
  out_hex[0] = 0;
  MLX_TRY(mlx_cache_open(NULL, &cache));
  mlx_status_t status = mlx_source_open(model_path, &source);
  if (!status) status = mlx_source_digest(cache, source, report, out_hex);
  mlx_source_close(source);
  mlx_cache_close(cache);
  return status;
}
