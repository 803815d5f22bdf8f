// Parsers and writers of entry.json and digests/*.json.
#include "cache/entry.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/json_writer.h"
#include "base/memory.h"

#define VERSION 2  // of both file formats; any other version is a cache miss

bool mlx_is_digest(const char *text) {
  return strlen(text) == MLX_DIGEST_HEX - 1 && strspn(text, "0123456789abcdef") == MLX_DIGEST_HEX - 1;
}

bool mlx_is_entry_kind(const char *text) {
  static const char *const own[] = {"locks", "tmp", "logs", "digests"};  // folders of the cache itself
  for (size_t i = 0; i < sizeof own / sizeof *own; ++i) {
    if (!strcmp(text, own[i])) return false;
  }
  size_t length = strlen(text);
  return length && length <= 32 && strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_") == length;
}

bool mlx_is_entry_file(const char *name) {
  return *name && !strchr(name, '/') && strcmp(name, ".") && strcmp(name, "..") &&
         strcmp(name, MLX_RECORD_NAME);
}

static mlx_status_t check_version(const mlx_json_t *json) {
  int64_t version;
  return mlx_json_int(json, json->root, "version", VERSION, VERSION, &version);
}

static mlx_status_t read_digest(const mlx_json_t *json, yyjson_val *object, char out_hex[MLX_DIGEST_HEX]) {
  const char *text;
  MLX_TRY(mlx_json_string(json, object, "digest", &text));
  if (!mlx_is_digest(text)) return mlx_json_error(json, "digest", "must be 64 hexadecimal digits");
  memcpy(out_hex, text, MLX_DIGEST_HEX);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Entry record

static mlx_status_t read_file_record(const mlx_json_t *json, yyjson_val *object, mlx_entry_record_t *record) {
  if (!yyjson_is_obj(object)) return mlx_json_error(json, "files", "must contain only objects");
  MLX_TRY(mlx_reserve(record->file_count + 1, sizeof *record->files, &record->file_capacity, &record->files));
  mlx_record_file_t *file = &record->files[record->file_count];
  *file = (mlx_record_file_t){0};
  const char *name;
  int64_t size;
  MLX_TRY(mlx_json_string(json, object, "name", &name));
  if (!mlx_is_entry_file(name)) return mlx_json_error(json, "name", "is not a plain file name");
  MLX_TRY(mlx_json_int(json, object, "size", 0, INT64_MAX, &size));
  MLX_TRY(read_digest(json, object, file->digest));
  file->size = (uint64_t)size;
  MLX_TRY(mlx_copy_text(name, strlen(name), &file->name));
  ++record->file_count;
  return NULL;
}

static mlx_status_t read_record(const mlx_json_t *json, mlx_entry_record_t *record) {
  const char *id, *title;
  yyjson_val *files, *file;
  size_t index, max;
  MLX_TRY(check_version(json));
  MLX_TRY(mlx_json_string(json, json->root, "id", &id));
  MLX_TRY(mlx_json_string(json, json->root, "title", &title));
  MLX_TRY(mlx_json_int(json, json->root, "created", 0, INT64_MAX, &record->created));
  MLX_TRY(mlx_copy_text(id, strlen(id), &record->id));
  MLX_TRY(mlx_copy_text(title, strlen(title), &record->title));
  MLX_TRY(mlx_json_need(json, json->root, "files", &files));
  if (!yyjson_is_arr(files)) return mlx_json_error(json, "files", "must be an array");
  yyjson_arr_foreach(files, index, max, file) { MLX_TRY(read_file_record(json, file, record)); }
  return NULL;
}

mlx_status_t mlx_record_parse(const char *name, const char *bytes, size_t length,
                              mlx_entry_record_t *out_record) {
  *out_record = (mlx_entry_record_t){0};
  mlx_json_t json;
  MLX_TRY(mlx_json_parse(name, bytes, length, &json));
  mlx_status_t status = read_record(&json, out_record);
  if (status) mlx_record_free(out_record);
  mlx_json_close(&json);
  return status;
}

void mlx_record_write(const mlx_entry_record_t *record, mlx_text_t *text) {
  mlx_json_writer_t json = {.out = text};
  mlx_json_begin_object(&json, NULL, MLX_JSON_LINES);
  mlx_json_put_int(&json, "version", VERSION);
  mlx_json_put_text(&json, "id", record->id);
  mlx_json_put_text(&json, "title", record->title);
  mlx_json_put_int(&json, "created", record->created);
  mlx_json_begin_list(&json, "files", MLX_JSON_LINES);
  for (size_t i = 0; i < record->file_count; ++i) {
    const mlx_record_file_t *file = &record->files[i];
    mlx_json_begin_object(&json, NULL, MLX_JSON_ONE_LINE);
    mlx_json_put_text(&json, "name", file->name);
    mlx_json_put_uint(&json, "size", file->size);
    mlx_json_put_text(&json, "digest", file->digest);
    mlx_json_end(&json);
  }
  mlx_json_end(&json);
  mlx_json_end(&json);
  mlx_text_puts(text, "\n");
}

void mlx_record_free(mlx_entry_record_t *record) {
  for (size_t i = 0; i < record->file_count; ++i) mlx_free(record->files[i].name);
  mlx_free(record->files);
  mlx_free(record->id);
  mlx_free(record->title);
  *record = (mlx_entry_record_t){0};
}

// ----------------------------------------------------------------------------------------------------------
// Cached digest

// A stamp is only compared for equality, so it is stored as text: a JSON number may not hold a 64-bit inode.
void mlx_stamp_text(const mlx_file_stamp_t *stamp, char out_text[MLX_STAMP_TEXT]) {
  snprintf(out_text, MLX_STAMP_TEXT, "%" PRIu64 ":%" PRIu64 " %" PRIu64 " %" PRId64 " %" PRId64,
           stamp->device, stamp->inode, stamp->size, stamp->modified_ns, stamp->changed_ns);
}

mlx_status_t mlx_cached_digest_parse(const char *name, const char *bytes, size_t length,
                                     mlx_cached_digest_t *out_cached) {
  mlx_json_t json;
  MLX_TRY(mlx_json_parse(name, bytes, length, &json));
  const char *stamp = "";
  mlx_status_t status = check_version(&json);
  if (!status) status = mlx_json_string(&json, json.root, "stamp", &stamp);
  if (!status && strlen(stamp) >= MLX_STAMP_TEXT) status = mlx_json_error(&json, "stamp", "is too long");
  if (!status) status = read_digest(&json, json.root, out_cached->digest);
  if (!status) memcpy(out_cached->stamp, stamp, strlen(stamp) + 1);
  mlx_json_close(&json);
  return status;
}

void mlx_cached_digest_write(const mlx_cached_digest_t *cached, const char *path, mlx_text_t *text) {
  mlx_json_writer_t json = {.out = text};
  mlx_json_begin_object(&json, NULL, MLX_JSON_LINES);
  mlx_json_put_int(&json, "version", VERSION);
  mlx_json_put_text(&json, "path", path);
  mlx_json_put_text(&json, "stamp", cached->stamp);
  mlx_json_put_text(&json, "digest", cached->digest);
  mlx_json_end(&json);
  mlx_text_puts(text, "\n");
}
