// mlxcel list: lists the pulled models, the compiled modules and the prepared weights on this machine.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "artifact/bundle.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/meter.h"
#include "base/text.h"
#include "cache/cache.h"
#include "cli/parse.h"
#include "cli/stored_models.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "compiler/compile.h"
#include "models/model.h"
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

// Replaces control characters: names come from untrusted files.
static void put_plain(mlx_text_t *out, const char *text) {
  for (; *text; ++text) mlx_text_append(out, (unsigned char)*text < 0x20 || *text == 0x7f ? "?" : text, 1);
}

static void put_row(mlx_text_t *out, const item_t *item, int width) {
  char when[32] = "-", context[32] = "-";
  const time_t used = (time_t)item->used;
  struct tm parts;
  if (used && localtime_r(&used, &parts)) strftime(when, sizeof when, "%Y-%m-%d %H:%M", &parts);
  if (item->context) snprintf(context, sizeof context, "%lld", (long long)item->context);
  mlx_text_printf(out, "%-8s  ", item->kind);
  put_plain(out, item->name);
  const int pad = width - (int)strlen(item->name);
  mlx_text_printf(out, "%*s  %-7s  %-18s  %8s  %9s  %s\n", pad > 0 ? pad : 0, "", item->dtype,
                  item->target[0] ? item->target : "-", context, mlx_bytes_show(item->bytes).text, when);
}

static void put_table(mlx_text_t *out, const list_t *list) {
  int width = 5;
  for (size_t i = 0; i < list->count; ++i) {
    const int length = (int)strlen(list->items[i].name);
    if (length > width) width = length;
  }
  if (list->count)
    mlx_text_printf(out, "%-8s  %-*s  %-7s  %-18s  %8s  %9s  %s\n", "kind", width, "model", "dtype", "target",
                    "context", "size", "last used");
  for (size_t i = 0; i < list->count; ++i) put_row(out, &list->items[i], width);
}

static void put_field(mlx_text_t *out, const char *name, const char *value) {
  mlx_text_printf(out, "\"%s\": ", name);
  if (value[0]) {
    mlx_text_json_string(out, value, strlen(value));
  } else {
    mlx_text_puts(out, "null");
  }
  mlx_text_puts(out, ", ");
}

static void put_json(mlx_text_t *out, const list_t *list) {
  mlx_text_puts(out, "[");
  for (size_t i = 0; i < list->count; ++i) {
    const item_t *item = &list->items[i];
    mlx_text_puts(out, i ? ",\n  {" : "\n  {");
    put_field(out, "kind", item->kind);
    put_field(out, "model", item->name);
    put_field(out, "path", item->path);
    put_field(out, "format", item->format);
    put_field(out, "dtype", item->dtype);
    put_field(out, "target", item->target);
    if (item->context) mlx_text_printf(out, "\"context\": %lld, ", (long long)item->context);
    if (!item->context) mlx_text_puts(out, "\"context\": null, ");
    mlx_text_printf(out, "\"bytes\": %llu, \"last_used\": %lld}", (unsigned long long)item->bytes,
                    (long long)item->used);
  }
  mlx_text_puts(out, list->count ? "\n]\n" : "]\n");
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
  mlx_text_printf(out, "%-19s  %-8s  %-17s  %s\n", "model", "download", "license", "hub name");
  for (size_t i = 0; (row = mlx_short_name(i)); ++i)
    mlx_text_printf(out, "%-19s  %8s  %-17s  %s\n", row->name, row->size, row->license, row->ref);
}

static void put_available_json(mlx_text_t *out) {
  const mlx_short_name_t *row;
  mlx_text_puts(out, "[");
  for (size_t i = 0; (row = mlx_short_name(i)); ++i) {
    mlx_text_puts(out, i ? ",\n  {" : "\n  {");
    put_field(out, "model", row->name);
    put_field(out, "hub", row->ref);
    put_field(out, "download", row->size);
    put_field(out, "license", row->license);
    mlx_text_printf(out, "\"default\": %s}", row->is_default ? "true" : "false");
  }
  mlx_text_puts(out, "\n]\n");
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
