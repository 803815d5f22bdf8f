// Reads and writes module records. See module_record.h.
#include "artifact/module_record.h"

#include <string.h>

#include "base/json.h"
#include "base/json_writer.h"

#define FORMAT 1

static bool is_digest(const char *text) {
  return strlen(text) == MLX_DIGEST_HEX - 1 && strspn(text, "0123456789abcdef") == MLX_DIGEST_HEX - 1;
}

// Copies a string that is not empty and fits.
static mlx_status_t read_text(const mlx_json_t *json, const char *key, char *out, size_t size) {
  const char *text;
  MLX_TRY(mlx_json_string(json, json->root, key, &text));
  const size_t length = yyjson_get_len(yyjson_obj_get(json->root, key));
  if (!length || length >= size || strlen(text) != length)
    return mlx_json_error(json, key, "is empty, too long or has a NUL");
  memcpy(out, text, length + 1);
  return NULL;
}

static mlx_status_t read_digest(const mlx_json_t *json, const char *key, char out[MLX_DIGEST_HEX]) {
  MLX_TRY(read_text(json, key, out, MLX_DIGEST_HEX));
  return is_digest(out) ? NULL : mlx_json_error(json, key, "is not a SHA-256");
}

static mlx_status_t read_fields(const mlx_json_t *json, mlx_module_record_t *out) {
  int64_t format, size;
  MLX_TRY(mlx_json_int(json, json->root, "format", FORMAT, FORMAT, &format));
  MLX_TRY(read_digest(json, "key", out->key));
  MLX_TRY(read_text(json, "compiler", out->compiler, sizeof out->compiler));
  MLX_TRY(read_digest(json, "compiler_digest", out->compiler_digest));
  MLX_TRY(read_text(json, "title", out->title, sizeof out->title));
  MLX_TRY(mlx_json_int(json, json->root, "size", 1, (int64_t)MLX_MAX_REMOTE_MODULE, &size));
  out->size = (uint64_t)size;
  return read_digest(json, "sha256", out->sha256);
}

mlx_status_t mlx_module_record_read(const char *name, const char *text, size_t length,
                                    mlx_module_record_t *out) {
  mlx_json_t json;
  *out = (mlx_module_record_t){0};
  if (length > MLX_MAX_MODULE_RECORD)
    return mlx_error(MLX_INVALID_INPUT, "%s: longer than %d bytes", name, MLX_MAX_MODULE_RECORD);
  MLX_TRY(mlx_json_parse(name, text, length, &json));
  mlx_status_t status = read_fields(&json, out);
  mlx_json_close(&json);
  return status;
}

mlx_status_t mlx_module_record_write(const mlx_module_record_t *record, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_object(&json, NULL, MLX_JSON_LINES);
  mlx_json_put_int(&json, "format", FORMAT);
  mlx_json_put_text(&json, "key", record->key);
  mlx_json_put_text(&json, "compiler", record->compiler);
  mlx_json_put_text(&json, "compiler_digest", record->compiler_digest);
  mlx_json_put_text(&json, "title", record->title);
  mlx_json_put_uint(&json, "size", record->size);
  mlx_json_put_text(&json, "sha256", record->sha256);
  mlx_json_end(&json);
  mlx_text_puts(out, "\n");
  return mlx_text_finish(out);
}
