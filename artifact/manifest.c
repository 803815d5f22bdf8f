#include "artifact/manifest.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/text.h"

#define FORMAT "mlxcel-bundle"
#define MAX_MANIFEST (1u << 20)

// ---------------------------------------------------------------------------------------------------------------------
// Writing

static void put_text(mlx_text_t *json, const char *key, const char *value) {
  mlx_text_printf(json, "  \"%s\": ", key);
  mlx_text_json_string(json, value, strlen(value));
  mlx_text_puts(json, ",\n");
}

static void put_int(mlx_text_t *json, const char *key, int64_t value) {
  mlx_text_printf(json, "  \"%s\": %lld,\n", key, (long long)value);
}

static void put_numbers(mlx_text_t *json, const char *key, const int64_t *numbers, size_t count) {
  mlx_text_printf(json, "  \"%s\": [", key);
  for (size_t i = 0; i < count; ++i) mlx_text_printf(json, "%s%lld", i ? ", " : "", (long long)numbers[i]);
  mlx_text_puts(json, "],\n");
}

static void put_names(mlx_text_t *json, const char *key, const char names[][16], size_t count) {
  mlx_text_printf(json, "  \"%s\": [", key);
  for (size_t i = 0; i < count; ++i) mlx_text_printf(json, "%s\"%s\"", i ? ", " : "", names[i]);
  mlx_text_puts(json, "],\n");
}

static void put_files(mlx_text_t *json, const mlx_manifest_t *m) {
  mlx_text_puts(json, "  \"files\": [");
  for (size_t i = 0; i < m->file_count; ++i) {
    mlx_text_printf(json, "%s\n    {\"name\": \"%s\", \"size\": %lld, \"sha256\": \"%s\"}", i ? "," : "", m->files[i].name,
                    (long long)m->files[i].size, m->files[i].sha256);
  }
  mlx_text_puts(json, m->file_count ? "\n  ]\n" : "]\n");
}

mlx_status_t mlx_manifest_write(const mlx_manifest_t *m, char **out_json, size_t *out_length) {
  mlx_text_t json = {0};
  mlx_text_puts(&json, "{\n");
  put_text(&json, "format", FORMAT);
  put_int(&json, "contract", m->contract);
  put_text(&json, "architecture", m->architecture);
  put_text(&json, "source", m->source);
  put_text(&json, "dtype", m->dtype);
  put_text(&json, "target", m->target);
  put_text(&json, "cpu", m->cpu);
  put_text(&json, "compiler", m->compiler);
  put_text(&json, "compiler_digest", m->compiler_digest);
  put_int(&json, "vocab", m->vocab);
  put_int(&json, "context", m->context);
  put_int(&json, "rows", m->rows);
  put_int(&json, "page_size", m->page_size);
  put_int(&json, "row_pages", m->row_pages);
  put_int(&json, "pool_pages", m->pool_pages);
  put_numbers(&json, "prefill", m->prefill, m->prefill_count);
  put_numbers(&json, "decode", m->decode, m->decode_count);
  put_names(&json, "kernels", (const char(*)[16])m->kernels, m->kernel_count);
  if (m->level_count) put_names(&json, "levels", (const char(*)[16])m->levels, m->level_count);
  put_int(&json, "driver", m->driver);
  put_int(&json, "state_bytes", m->state_bytes);
  put_int(&json, "kv_bytes", m->kv_bytes);
  mlx_text_puts(&json, "  \"eos\": [");
  for (size_t i = 0; i < m->eos_count; ++i) mlx_text_printf(&json, "%s%d", i ? ", " : "", m->eos[i]);
  mlx_text_puts(&json, "],\n");
  put_files(&json, m);
  mlx_text_puts(&json, "}\n");
  mlx_status_t status = mlx_text_take(&json, out_json, out_length);
  mlx_text_clear(&json);
  return status;
}

// ---------------------------------------------------------------------------------------------------------------------
// Reading

static mlx_status_t read_text(const mlx_json_t *json, const char *key, char *out, size_t size) {
  const char *value;
  MLX_TRY(mlx_json_string(json, json->root, key, &value));
  if (strlen(value) >= size) return mlx_json_error(json, key, "is too long");
  snprintf(out, size, "%s", value);
  return NULL;
}

// Models compiled before there was a choice do not say it.
static mlx_status_t read_dtype(const mlx_json_t *json, mlx_manifest_t *m) {
  if (mlx_json_find(json->root, "dtype")) return read_text(json, "dtype", m->dtype, sizeof m->dtype);
  snprintf(m->dtype, sizeof m->dtype, "f32");
  return NULL;
}

static mlx_status_t read_list(const mlx_json_t *json, const char *key, size_t capacity, int64_t min, int64_t max, int64_t *out,
                              size_t *out_count) {
  yyjson_val *list, *item;
  size_t index, count;
  MLX_TRY(mlx_json_need(json, json->root, key, &list));
  if (!yyjson_is_arr(list) || yyjson_arr_size(list) > capacity) return mlx_json_error(json, key, "must be a short list");
  yyjson_arr_foreach(list, index, count, item) {
    int64_t value = yyjson_is_int(item) ? yyjson_get_sint(item) : -1;
    if (value < min || value > max) return mlx_json_error(json, key, "holds a number out of range");
    out[index] = value;
  }
  *out_count = yyjson_arr_size(list);
  return NULL;
}

// The sizes of a family of functions: ascending, at least one.
static mlx_status_t read_sizes(const mlx_json_t *json, const char *key, int64_t max, int64_t *out, size_t *out_count) {
  MLX_TRY(read_list(json, key, MLX_MAX_BUCKETS, 1, max, out, out_count));
  if (!*out_count) return mlx_json_error(json, key, "is empty");
  for (size_t i = 1; i < *out_count; ++i) {
    if (out[i] <= out[i - 1]) return mlx_json_error(json, key, "must ascend");
  }
  return NULL;
}

// Models compiled before there were longer ones have decode_1 alone and do not say it.
static mlx_status_t read_decode(const mlx_json_t *json, mlx_manifest_t *m) {
  m->decode[0] = 1;
  m->decode_count = 1;
  if (!mlx_json_find(json->root, "decode")) return NULL;
  MLX_TRY(read_sizes(json, "decode", MLX_MAX_GROUP, m->decode, &m->decode_count));
  return m->decode[0] == 1 ? NULL : mlx_json_error(json, "decode", "does not hold 1");
}

// Names are printed, and a level's is part of a file's: they must be plain.
static bool is_plain_name(const char *name) {
  size_t length = name ? strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") : 0;
  return length && !name[length] && length < 16;
}

static mlx_status_t read_names(const mlx_json_t *json, const char *key, size_t capacity, char out[][16], size_t *out_count) {
  yyjson_val *list = mlx_json_find(json->root, key), *item;
  size_t index, count;
  if (!list) return NULL;
  if (!yyjson_is_arr(list) || yyjson_arr_size(list) > capacity) return mlx_json_error(json, key, "must be a short list");
  yyjson_arr_foreach(list, index, count, item) {
    if (!is_plain_name(yyjson_get_str(item))) return mlx_json_error(json, key, "holds something that is not a plain name");
    snprintf(out[index], 16, "%s", yyjson_get_str(item));
  }
  *out_count = yyjson_arr_size(list);
  return NULL;
}

static mlx_status_t read_levels(const mlx_json_t *json, mlx_manifest_t *m) {
  MLX_TRY(read_names(json, "levels", MLX_MAX_LEVELS, m->levels, &m->level_count));
  const bool portable = !strcmp(m->target, MLX_TARGET_PORTABLE);
  if (portable && !m->level_count) return mlx_json_error(json, "levels", "is empty, and the target is " MLX_TARGET_PORTABLE);
  return portable || !m->level_count ? NULL : mlx_json_error(json, "levels", "is for a target of " MLX_TARGET_PORTABLE);
}

static mlx_status_t read_bytes(const mlx_json_t *json, const char *key, int64_t *out) {
  return mlx_json_find(json->root, key) ? mlx_json_int(json, json->root, key, 0, INT64_MAX, out) : NULL;
}

static mlx_status_t read_bundle_file(const mlx_json_t *json, yyjson_val *item, mlx_manifest_t *m) {
  mlx_bundle_file_t *file = &m->files[m->file_count];
  const char *name, *sha256;
  MLX_TRY(mlx_json_string(json, item, "name", &name));
  if (!mlx_is_bundle_file(name) || !strcmp(name, MLX_BUNDLE_MANIFEST)) return mlx_json_error(json, "name", "is not the name of a bundle's file");
  for (size_t i = 0; i < m->file_count; ++i) {
    if (!strcmp(m->files[i].name, name)) return mlx_json_error(json, "name", "is there twice");
  }
  MLX_TRY(mlx_json_int(json, item, "size", 0, INT64_MAX, &file->size));
  MLX_TRY(mlx_json_string(json, item, "sha256", &sha256));
  if (strlen(sha256) != 64 || strspn(sha256, "0123456789abcdef") != 64) return mlx_json_error(json, "sha256", "is not a SHA-256");
  snprintf(file->name, sizeof file->name, "%s", name);
  snprintf(file->sha256, sizeof file->sha256, "%s", sha256);
  ++m->file_count;
  return NULL;
}

static mlx_status_t read_files(const mlx_json_t *json, mlx_manifest_t *m) {
  yyjson_val *list = mlx_json_find(json->root, "files"), *item;
  size_t index, count;
  if (!list) return NULL;
  if (!yyjson_is_arr(list) || yyjson_arr_size(list) > MLX_MAX_BUNDLE_FILES) return mlx_json_error(json, "files", "must be a short list");
  yyjson_arr_foreach(list, index, count, item) MLX_TRY(read_bundle_file(json, item, m));
  return NULL;
}

static mlx_status_t read_format(const mlx_json_t *json, mlx_manifest_t *m) {
  char format[32];
  MLX_TRY(read_text(json, "format", format, sizeof format));
  if (strcmp(format, FORMAT)) return mlx_json_error(json, "format", "is not '" FORMAT "'");
  MLX_TRY(mlx_json_int(json, json->root, "contract", 0, 1 << 20, &m->contract));
  if (m->contract == MLX_CONTRACT_VERSION) return NULL;
  return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "%s: compiled for contract %lld; this mlxcel runs contract %d", json->name,
                                   (long long)m->contract, MLX_CONTRACT_VERSION),
                         "compile the model again with this mlxcel: mlxcel compile MODEL -o OUT");
}

static mlx_status_t read_fields(const mlx_json_t *json, mlx_manifest_t *m) {
  const int64_t most = 1 << 30;
  MLX_TRY(read_format(json, m));
  MLX_TRY(read_text(json, "architecture", m->architecture, sizeof m->architecture));
  MLX_TRY(read_text(json, "source", m->source, sizeof m->source));
  MLX_TRY(read_dtype(json, m));
  MLX_TRY(read_text(json, "target", m->target, sizeof m->target));
  MLX_TRY(read_text(json, "cpu", m->cpu, sizeof m->cpu));
  MLX_TRY(read_text(json, "compiler", m->compiler, sizeof m->compiler));
  MLX_TRY(read_text(json, "compiler_digest", m->compiler_digest, sizeof m->compiler_digest));
  MLX_TRY(mlx_json_int(json, json->root, "vocab", 1, most, &m->vocab));
  MLX_TRY(mlx_json_int(json, json->root, "context", 1, most, &m->context));
  MLX_TRY(mlx_json_int(json, json->root, "rows", 1, MLX_MAX_ROWS, &m->rows));
  MLX_TRY(mlx_json_int(json, json->root, "page_size", 1, 4096, &m->page_size));
  MLX_TRY(mlx_json_int(json, json->root, "pool_pages", 2, most, &m->pool_pages));
  MLX_TRY(mlx_json_int(json, json->root, "row_pages", 1, most, &m->row_pages));
  if (m->row_pages * m->page_size < m->context) return mlx_json_error(json, "row_pages", "cannot hold the context");
  if (m->pool_pages - 1 < m->row_pages) return mlx_json_error(json, "pool_pages", "cannot hold one row");
  MLX_TRY(read_sizes(json, "prefill", 1 << 20, m->prefill, &m->prefill_count));
  MLX_TRY(read_decode(json, m));
  MLX_TRY(read_names(json, "kernels", MLX_MAX_KERNELS, m->kernels, &m->kernel_count));
  MLX_TRY(read_levels(json, m));
  MLX_TRY(read_bytes(json, "driver", &m->driver));
  MLX_TRY(read_bytes(json, "state_bytes", &m->state_bytes));
  MLX_TRY(read_bytes(json, "kv_bytes", &m->kv_bytes));
  int64_t eos[MLX_MAX_EOS];
  MLX_TRY(read_list(json, "eos", MLX_MAX_EOS, 0, most, eos, &m->eos_count));
  for (size_t i = 0; i < m->eos_count; ++i) m->eos[i] = (int32_t)eos[i];
  return read_files(json, m);
}

mlx_status_t mlx_manifest_read(const char *name, const char *text, size_t length, mlx_manifest_t *out_manifest) {
  *out_manifest = (mlx_manifest_t){0};
  mlx_json_t json;
  MLX_TRY(mlx_json_parse(name, text, length, &json));
  mlx_status_t status = read_fields(&json, out_manifest);
  mlx_json_close(&json);
  return status;
}

static void join_names(const char names[][16], size_t count, char *out, size_t size) {
  for (size_t i = 0, length = 0; i < count; ++i) {
    length += (size_t)snprintf(out + length, size - length, "%s%s", i ? ", " : "", names[i]);
  }
}

mlx_kernels_text_t mlx_manifest_kernels_text(const mlx_manifest_t *m) {
  mlx_kernels_text_t out = {"none (plain lowering)"};
  join_names((const char(*)[16])m->kernels, m->kernel_count, out.text, sizeof out.text);
  return out;
}

mlx_levels_text_t mlx_manifest_levels_text(const mlx_manifest_t *m) {
  mlx_levels_text_t out = {""};
  join_names((const char(*)[16])m->levels, m->level_count, out.text, sizeof out.text);
  return out;
}

// ---------------------------------------------------------------------------------------------------------------------
// Files

mlx_module_name_t mlx_bundle_module(const char *level) {
  mlx_module_name_t name = {MLX_BUNDLE_VMFB};
  if (level) snprintf(name.text, sizeof name.text, "model.%.16s.vmfb", level);
  return name;
}

static bool is_module_of_a_level(const char *name) {
  char level[16];
  int end = 0;
  if (sscanf(name, "model.%15[a-z0-9_-].vmfb%n", level, &end) != 1 || !end || name[end]) return false;
  return is_plain_name(level);
}

bool mlx_is_bundle_file(const char *name) {
  static const char *const names[] = {MLX_BUNDLE_MANIFEST, MLX_BUNDLE_TOKENIZER, MLX_BUNDLE_CHAT, MLX_BUNDLE_VMFB, MLX_BUNDLE_WEIGHTS};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    if (!strcmp(name, names[i])) return true;
  }
  return is_module_of_a_level(name);
}

bool mlx_is_bundle(const char *folder) {
  char *path = NULL, *text = NULL;
  size_t length;
  mlx_json_t json = {0};
  const char *format = NULL;
  mlx_status_t status = mlx_join_path(folder, MLX_BUNDLE_MANIFEST, &path);
  if (!status && !mlx_is_file(path)) status = mlx_error(MLX_NOT_FOUND, "no manifest");
  if (!status) status = mlx_read_file(path, MAX_MANIFEST, &text, &length);
  if (!status) status = mlx_json_parse(path, text, length, &json);
  if (!status) status = mlx_json_string(&json, json.root, "format", &format);
  bool is = !status && !strcmp(format, FORMAT);
  mlx_json_close(&json);
  mlx_free(text);
  mlx_free(path);
  mlx_status_free(status);
  return is;
}
