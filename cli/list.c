// mlxcel list: lists the pulled models, the compiled modules and the prepared weights on this machine.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "artifact/bundle.h"
#include "base/file.h"
#include "base/json_writer.h"
#include "base/memory.h"
#include "base/meter.h"
#include "base/text.h"
#include "cache/cache.h"
#include "cli/parse.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "compiler/compile.h"
#include "models/model.h"
#include "open/stored_models.h"
#include "transfer/short_names.h"

typedef struct flags {
  bool available, json, quiet;
} flags_t;

typedef struct item {
  const char *kind;   // "model", "bundle", "compiled" or "weights"
  char *name, *path;  // owned
  char dtype[16], target[64], format[16];
  int64_t context;  // positions; 0 if unknown
  uint64_t bytes;
  int64_t used;  // seconds since 1970
} item_t;

typedef struct list {
  item_t *items;
  size_t count, capacity;
  const char *folder;  // of the cache
} list_t;

static mlx_status_t add_item(list_t *list, const char *kind, const char *name, char *path,
                             item_t **out_item) {
  mlx_status_t status = mlx_reserve(list->count + 1, sizeof *list->items, &list->capacity, &list->items);
  char *copy = NULL;
  if (!status) status = mlx_copy_text(name, strlen(name), &copy);
  if (status) {
    mlx_free(path);
    return status;
  }
  *out_item = &list->items[list->count++];
  **out_item = (item_t){.kind = kind, .name = copy, .path = path};
  return NULL;
}

static void clear_list(list_t *list) {
  for (size_t i = 0; i < list->count; ++i) {
    mlx_free(list->items[i].name);
    mlx_free(list->items[i].path);
  }
  mlx_free(list->items);
}

// ----------------------------------------------------------------------------------------------------------
// Entries of the cache

static mlx_status_t add_entry(void *user, const mlx_cache_item_t *entry) {
  list_t *list = user;
  item_t *item;
  mlx_title_t title;
  static const char weights[] = "weights of ";
  const bool is_weights = !strcmp(entry->kind, "weights");
  if (!entry->title || (!is_weights && strcmp(entry->kind, "vmfb")))
    return NULL;  // only `cache list` shows other kinds
  char *path, text[256];
  snprintf(text, sizeof text, is_weights ? "%s for -, context 0" : "%s",
           entry->title + (is_weights ? strlen(weights) : 0));
  if ((is_weights && strncmp(entry->title, weights, strlen(weights))) || !mlx_compiled_title(text, &title))
    return NULL;
  MLX_TRY(mlx_format(&path, "%s/%s/%s", list->folder, entry->kind, entry->key));
  MLX_TRY(add_item(list, is_weights ? "weights" : "compiled", title.model, path, &item));
  memcpy(item->dtype, title.dtype, sizeof item->dtype);
  if (!is_weights) memcpy(item->target, title.target, sizeof item->target);
  item->context = title.context;
  item->bytes = entry->bytes;
  item->used = entry->used;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Models in the folder of `pull`

typedef struct sum {
  const char *folder;
  uint64_t bytes;
  int64_t used;
} sum_t;

// Adds the size of a regular file. Ignores files that cannot be examined.
static mlx_status_t add_bytes(void *user, const char *name) {
  sum_t *sum = user;
  struct stat info;
  char *path;
  MLX_TRY(mlx_join_path(sum->folder, name, &path));
  if (!stat(path, &info) && S_ISREG(info.st_mode)) {
    sum->bytes += (uint64_t)info.st_size;
    if ((int64_t)info.st_atime > sum->used) sum->used = (int64_t)info.st_atime;
  }
  mlx_free(path);
  return NULL;
}

// Leaves out GGUF files in a model's folder: they are models of their own.
static mlx_status_t add_own_bytes(void *user, const char *name) {
  return mlx_ends_with(name, ".gguf") ? NULL : add_bytes(user, name);
}

// Fills in the context length and the weight type with the most bytes. A model that cannot be opened gets the
// type "?".
static void describe_source(const char *path, item_t *item) {
  mlx_model_t *model;
  uint64_t sizes[64] = {0};
  snprintf(item->format, sizeof item->format, "%s", mlx_ends_with(path, ".gguf") ? "gguf" : "huggingface");
  mlx_status_t status = mlx_model_open(path, &model);
  if (status) {
    mlx_status_free(status);
    snprintf(item->dtype, sizeof item->dtype, "?");
    return;
  }
  size_t best = 0;
  for (size_t i = 0; i < mlx_source_tensor_count(model->source); ++i) {
    const mlx_tensor_t *tensor = mlx_source_tensor_at(model->source, i);
    const size_t type = (size_t)tensor->dtype;
    if (type >= sizeof sizes / sizeof *sizes) continue;
    sizes[type] += tensor->size;
    if (sizes[type] >= sizes[best]) best = type;
  }
  snprintf(item->dtype, sizeof item->dtype, "%s", mlx_dtype_info((mlx_dtype_t)best)->name);
  item->context = model->config.context;
  mlx_model_close(model);
}

static void describe_bundle(const char *path, item_t *item) {
  mlx_bundle_t *bundle;
  mlx_status_t status = mlx_bundle_open(path, &bundle);
  if (!status) {
    const mlx_manifest_t *m = mlx_bundle_manifest(bundle);
    memcpy(item->dtype, m->variants[0].dtype, sizeof item->dtype);
    snprintf(item->target, sizeof item->target, "%.50s%s", m->variants[0].target,
             m->variant_count > 1 ? " ..." : "");
    item->context = m->context;
    mlx_bundle_close(bundle);
  }
  mlx_status_free(status);
}

static mlx_status_t add_model(void *user, const mlx_stored_model_t *model) {
  list_t *list = user;
  item_t *item;
  char *copy;
  sum_t sum = {.folder = model->path};
  MLX_TRY(mlx_copy_text(model->path, strlen(model->path), &copy));
  MLX_TRY(add_item(list, model->is_bundle ? "bundle" : "model", model->name, copy, &item));
  if (mlx_is_dir(model->path)) {
    MLX_TRY(mlx_list_dir(model->path, model->is_bundle ? add_bytes : add_own_bytes, &sum));
  } else {
    char *folder;
    MLX_TRY(mlx_folder_of(model->path, &folder));
    sum.folder = folder;
    mlx_status_t status = add_bytes(&sum, mlx_file_name(model->path).text);
    mlx_free(folder);
    MLX_TRY(status);
  }
  item->bytes = sum.bytes;
  item->used = sum.used;
  if (model->is_bundle) {
    describe_bundle(model->path, item);
  } else {
    describe_source(model->path, item);
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Printing

#define COLUMNS 7

// The cells of a row; the name is the item's own.
typedef struct row {
  const char *cells[COLUMNS];
  char context[32], used[32];
  mlx_bytes_text_t size;
} row_t;

static void fill_row(const item_t *item, row_t *row) {
  const time_t used = (time_t)item->used;
  struct tm parts;
  *row = (row_t){.context = "-", .used = "-", .size = mlx_bytes_show(item->bytes)};
  if (used && localtime_r(&used, &parts)) strftime(row->used, sizeof row->used, "%Y-%m-%d %H:%M", &parts);
  if (item->context) snprintf(row->context, sizeof row->context, "%lld", (long long)item->context);
  const char *const cells[COLUMNS] = {
      item->kind,   item->name,     item->dtype, item->target[0] ? item->target : "-",
      row->context, row->size.text, row->used};
  memcpy(row->cells, cells, sizeof cells);
}

static void put_row(mlx_text_t *out, const char *const cells[COLUMNS], const int widths[COLUMNS]) {
  for (int i = 0; i < COLUMNS; ++i) {
    const bool is_number = i == 4 || i == 5;
    mlx_cell_put(out, cells[i], i + 1 < COLUMNS ? widths[i] : 0, is_number, 0);
    mlx_text_puts(out, i + 1 < COLUMNS ? "  " : "\n");
  }
}

static void put_table(mlx_text_t *out, const list_t *list) {
  static const char *const titles[COLUMNS] = {"kind",    "model", "dtype",    "target",
                                              "context", "size",  "last used"};
  int widths[COLUMNS] = {8, 5, 7, 18, 8, 9, 0};
  row_t row;
  for (size_t i = 0; i < list->count; ++i) {
    fill_row(&list->items[i], &row);
    for (int j = 0; j < COLUMNS; ++j) mlx_cell_widen(row.cells[j], &widths[j]);
  }
  if (list->count) put_row(out, titles, widths);
  for (size_t i = 0; i < list->count; ++i) {
    fill_row(&list->items[i], &row);
    put_row(out, row.cells, widths);
  }
}

// An empty text is unknown.
static void put_field(mlx_json_writer_t *json, const char *name, const char *value) {
  mlx_json_put_text(json, name, value[0] ? value : NULL);
}

static void put_json(mlx_text_t *out, const list_t *list) {
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_list(&json, NULL, MLX_JSON_LINES);
  for (size_t i = 0; i < list->count; ++i) {
    const item_t *item = &list->items[i];
    mlx_json_begin_object(&json, NULL, MLX_JSON_ONE_LINE);
    put_field(&json, "kind", item->kind);
    put_field(&json, "model", item->name);
    put_field(&json, "path", item->path);
    put_field(&json, "format", item->format);
    put_field(&json, "dtype", item->dtype);
    put_field(&json, "target", item->target);
    if (item->context) mlx_json_put_int(&json, "context", item->context);
    if (!item->context) put_field(&json, "context", "");
    mlx_json_put_uint(&json, "bytes", item->bytes);
    mlx_json_put_int(&json, "last_used", item->used);
    mlx_json_end(&json);
  }
  mlx_json_end(&json);
  mlx_text_puts(out, "\n");
}

static int kind_order(const char *kind) {
  return kind[0] == 'm' ? 0 : kind[0] == 'b' ? 1 : kind[0] == 'c' ? 2 : 3;
}

static int compare_items(const void *a, const void *b) {
  const item_t *left = a, *right = b;
  const int order = kind_order(left->kind) - kind_order(right->kind);
  if (order) return order;
  const int names = strcmp(left->name, right->name);
  return names ? names : left->used < right->used ? 1 : left->used > right->used ? -1 : 0;
}

static mlx_status_t print_list(list_t *list, bool json) {
  mlx_text_t out = {0};
  if (list->count) qsort(list->items, list->count, sizeof *list->items, compare_items);
  if (json) {
    put_json(&out, list);
  } else {
    put_table(&out, list);
  }
  mlx_status_t status = mlx_text_finish(&out);
  if (!status && out.length && fwrite(out.data, 1, out.length, stdout) != out.length)
    status = mlx_stdout_error();
  mlx_text_clear(&out);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// The built-in list of short names

static void put_available(mlx_text_t *out) {
  const mlx_short_name_t *row;
  int name = 5, size = 8, license = 7;
  for (size_t i = 0; (row = mlx_short_name(i)); ++i) {
    mlx_cell_widen(row->name, &name);
    mlx_cell_widen(row->size, &size);
    mlx_cell_widen(row->license, &license);
  }
  mlx_text_printf(out, "%-*s  %-*s  %-*s  %s\n", name, "model", size, "download", license, "license",
                  "hub name");
  for (size_t i = 0; (row = mlx_short_name(i)); ++i)
    mlx_text_printf(out, "%-*s  %*s  %-*s  %s\n", name, row->name, size, row->size, license, row->license,
                    row->ref);
}

static void put_available_json(mlx_text_t *out) {
  const mlx_short_name_t *row;
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_list(&json, NULL, MLX_JSON_LINES);
  for (size_t i = 0; (row = mlx_short_name(i)); ++i) {
    mlx_json_begin_object(&json, NULL, MLX_JSON_ONE_LINE);
    put_field(&json, "model", row->name);
    put_field(&json, "hub", row->ref);
    put_field(&json, "download", row->size);
    put_field(&json, "license", row->license);
    mlx_json_put_bool(&json, "default", row->is_default);
    mlx_json_end(&json);
  }
  mlx_json_end(&json);
  mlx_text_puts(out, "\n");
}

static mlx_status_t print_available(bool json) {
  mlx_text_t out = {0};
  if (json) {
    put_available_json(&out);
  } else {
    put_available(&out);
  }
  mlx_status_t status = mlx_text_finish(&out);
  if (!status && fwrite(out.data, 1, out.length, stdout) != out.length) status = mlx_stdout_error();
  mlx_text_clear(&out);
  if (!status && !json)
    mlx_terminal_note("a name without its size is the usual size: `mlxcel run qwen3` is qwen3:8b\n");
  return status;
}

static mlx_status_t run(const mlx_command_line_t *line) {
  flags_t f;
  bool help;
  size_t words;
  MLX_TRY(mlx_command_line_parse(line, &f, NULL, 0, &words, &help));
  if (help) return NULL;
  MLX_TRY(mlx_terminal_set_quiet(f.quiet, false));
  if (f.available) return print_available(f.json);
  mlx_cache_t *cache;
  MLX_TRY(mlx_cache_open(NULL, &cache));
  list_t list = {.folder = mlx_cache_folder(cache)};
  mlx_status_t status = mlx_stored_models_walk(list.folder, add_model, &list);
  if (!status) status = mlx_cache_list(cache, add_entry, &list);
  if (!status) status = print_list(&list, f.json);
  if (!status && !f.json)
    mlx_terminal_note("%zu %s in %s\n", list.count, mlx_plural(list.count, "entry", "entries"), list.folder);
  clear_list(&list);
  mlx_cache_close(cache);
  return status;
}

static const mlx_flag_t flags[] = {
    MLX_SWITCH_FLAG(flags_t, available, "--available", "list the built-in short names of models on the hub"),
    MLX_JSON_FLAG(flags_t, json),
    MLX_QUIET_FLAG(flags_t, quiet),
    {0},
};

const mlx_verb_t mlx_verb_list = {
    .name = "list",
    .summary = "list the models and compiled modules on this machine",
    .usage =
        "usage: mlxcel list [options]\n\n"
        "Lists the models in the folder models/ of the cache, the modules compiled from them with their "
        "target, and the prepared weights. `mlxcel rm NAME` removes a model, `mlxcel cache clear` all "
        "modules and "
        "weights.\n\n"
        "examples:\n"
        "  mlxcel list\n"
        "  mlxcel list --available\n"
        "  mlxcel list --json",
    .flags = flags,
    .options_size = sizeof(flags_t),
    .run = run,
};
