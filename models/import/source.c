// Dispatches each function to the reader of the source's format: hf.h or gguf.h. Nothing here depends on the
// details of a format.
#include "models/import/source.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "models/import/chat.h"
#include "models/import/encoder.h"
#include "models/import/gguf_split.h"
#include "models/import/gguf_tokenizer.h"
#include "models/import/hf.h"
#include "models/import/name.h"

struct mlx_source {
  char *path;                    // owned
  mlx_gguf_model_t *gguf_model;  // owned; NULL for a Hugging Face directory
  mlx_hf_t *hf;                  // owned; NULL for GGUF
  const mlx_gguf_t *gguf;        // borrowed from gguf_model: the part with the metadata
  bool *was_read;                // owned: one per field of gguf, for mlx_source_check_unread
};

// ----------------------------------------------------------------------------------------------------------
// Opening

static mlx_status_t no_model(const char *path) {
  mlx_status_t status = mlx_error(
      MLX_INVALID_INPUT, "'%s' is not a model: expected a GGUF file or a Hugging Face model directory", path);
  const char *suffix = strrchr(path, '.');
  if (suffix && !strcmp(suffix, ".safetensors")) {
    return mlx_status_hint(status, "pass the folder that contains it and its config.json");
  }
  if (suffix && !strcmp(suffix, ".vmfb")) {
    return mlx_status_hint(
        status,
        "a .vmfb module has no weights and no tokenizer: compile without --emit and pass the .mlxb bundle");
  }
  return mlx_status_hint(
      status, "a GGUF file starts with the letters GGUF; the download may have failed: download it again");
}

static mlx_status_t open_file(mlx_source_t *source) {
  mlx_map_t map;
  MLX_TRY(mlx_status_hint(mlx_map_file(source->path, &map),
                          "pass a GGUF file or a Hugging Face model directory; mlxcel run also accepts a "
                          "compiled bundle (.mlxb)"));
  bool is_gguf = map.size >= 4 && !memcmp(map.data, "GGUF", 4);
  mlx_status_t status = is_gguf ? NULL : mlx_lfs_check(source->path, map.data, map.size);
  if (!status)
    status = is_gguf ? mlx_gguf_model_open(source->path, &map, &source->gguf_model) : no_model(source->path);
  if (!status) source->gguf = source->gguf_model->parts[0].file;
  mlx_unmap(&map);
  if (!status) status = mlx_encoder_refuse(source->path, source->gguf->architecture);
  if (!status && source->gguf->field_count)
    status = mlx_alloc(source->gguf->field_count, sizeof *source->was_read, &source->was_read);
  return status;
}

mlx_status_t mlx_source_open(const char *path, mlx_source_t **out_source) {
  *out_source = NULL;
  mlx_source_t *source;
  MLX_TRY(mlx_alloc(1, sizeof *source, &source));
  mlx_status_t status = mlx_named_path(path, &source->path);
  if (!status) status = mlx_is_dir(path) ? mlx_hf_open(path, &source->hf) : open_file(source);
  if (!status && source->hf) status = mlx_hf_open_modules(source->hf);
  if (status) {
    mlx_source_close(source);
    return status;
  }
  *out_source = source;
  return NULL;
}

void mlx_source_close(mlx_source_t *source) {
  if (!source) return;
  mlx_gguf_model_close(source->gguf_model);
  mlx_hf_close(source->hf);
  mlx_free(source->was_read);
  mlx_free(source->path);
  mlx_free(source);
}

bool mlx_source_is_gguf(const mlx_source_t *source) { return source->gguf != NULL; }
const char *mlx_source_path(const mlx_source_t *source) { return source->path; }
const char *mlx_source_architecture(const mlx_source_t *source) {
  return source->gguf ? source->gguf->architecture : source->hf->architecture;
}

const char *mlx_source_multimodal(const mlx_source_t *source) {
  return source->hf ? source->hf->multimodal : NULL;
}

const char *mlx_source_skipped(const mlx_source_t *source, size_t index) {
  return source->hf && index < source->hf->skipped_count ? source->hf->skipped[index] : NULL;
}

const char *mlx_source_file(const mlx_source_t *source, size_t index) {
  const mlx_gguf_model_t *gguf = source->gguf_model;
  if (gguf) return index < gguf->part_count ? gguf->parts[index].path : NULL;
  return index < source->hf->file_count ? source->hf->files[index] : NULL;
}

const char *mlx_source_file_name(const mlx_source_t *source, size_t index) {
  const char *path = mlx_source_file(source, index);
  if (!path) return NULL;
  if (source->gguf_model) return path + strlen(path) - strlen(mlx_file_name(path).text);
  path += strlen(source->hf->folder);
  return path + strspn(path, "/\\");
}

// ----------------------------------------------------------------------------------------------------------
// Fields

// The key or name of the source's format.
static const char *pick(const mlx_source_t *source, const char *hf_key, const char *gguf_key) {
  return source->gguf ? gguf_key : hf_key;
}

// The same, and records that the field was read.
static const char *pick_to_read(const mlx_source_t *source, const char *hf_key, const char *gguf_key) {
  const mlx_gguf_field_t *field = source->gguf && gguf_key ? mlx_gguf_find(source->gguf, gguf_key) : NULL;
  if (field) source->was_read[field - source->gguf->fields] = true;
  return pick(source, hf_key, gguf_key);
}

mlx_status_t mlx_source_field_error(const mlx_source_t *source, const char *hf_key, const char *gguf_key,
                                    mlx_code_t code, const char *fmt, ...) {
  char message[512];
  va_list args;
  va_start(args, fmt);
  vsnprintf(message, sizeof message, fmt, args);
  va_end(args);
  const char *key = pick(source, hf_key, gguf_key);
  if (!key) key = hf_key ? hf_key : gguf_key;  // the format has no name for it: show the other one
  if (source->gguf) return mlx_gguf_error(source->gguf, key ? key : "", code, "%s", message);
  return mlx_error(code, "%s: field '%s' %s", source->hf->config.name, key ? key : "", message);
}

// The format has no name for the field: an error only if the field is required.
static mlx_status_t no_such_field(const mlx_source_t *source, const char *hf_key, const char *gguf_key,
                                  bool *out_found) {
  if (!out_found)
    return mlx_source_field_error(source, hf_key, gguf_key, MLX_INTERNAL, "has no name in this format");
  *out_found = false;
  return NULL;
}

mlx_status_t mlx_source_int(const mlx_source_t *source, const char *hf_key, const char *gguf_key, int64_t min,
                            int64_t max, int64_t *out, bool *out_found) {
  const char *key = pick_to_read(source, hf_key, gguf_key);
  if (!key) return no_such_field(source, hf_key, gguf_key, out_found);
  return source->gguf ? mlx_gguf_int(source->gguf, key, min, max, out, out_found)
                      : mlx_hf_int(source->hf, key, min, max, out, out_found);
}

mlx_status_t mlx_source_number(const mlx_source_t *source, const char *hf_key, const char *gguf_key,
                               double *out, bool *out_found) {
  const char *key = pick_to_read(source, hf_key, gguf_key);
  if (!key) return no_such_field(source, hf_key, gguf_key, out_found);
  return source->gguf ? mlx_gguf_number(source->gguf, key, out, out_found)
                      : mlx_hf_number(source->hf, key, out, out_found);
}

mlx_status_t mlx_source_bool(const mlx_source_t *source, const char *hf_key, const char *gguf_key, bool *out,
                             bool *out_found) {
  const char *key = pick_to_read(source, hf_key, gguf_key);
  if (!key) return no_such_field(source, hf_key, gguf_key, out_found);
  return source->gguf ? mlx_gguf_bool(source->gguf, key, out, out_found)
                      : mlx_hf_bool(source->hf, key, out, out_found);
}

mlx_status_t mlx_source_string(const mlx_source_t *source, const char *hf_key, const char *gguf_key,
                               const char **out, bool *out_found) {
  const char *key = pick_to_read(source, hf_key, gguf_key);
  if (!key) return no_such_field(source, hf_key, gguf_key, out_found);
  return source->gguf ? mlx_gguf_string(source->gguf, key, out, out_found)
                      : mlx_hf_string(source->hf, key, out, out_found);
}

bool mlx_source_has(const mlx_source_t *source, const char *hf_key, const char *gguf_key) {
  const char *key = pick_to_read(source, hf_key, gguf_key);
  if (!key) return false;
  return source->gguf ? mlx_gguf_find(source->gguf, key) != NULL : mlx_hf_find(source->hf, key) != NULL;
}

size_t mlx_source_array_length(const mlx_source_t *source, const char *hf_key, const char *gguf_key) {
  const char *key = pick_to_read(source, hf_key, gguf_key);
  if (!key) return 0;
  if (!source->gguf) return yyjson_arr_size(mlx_hf_find(source->hf, key));
  const mlx_gguf_field_t *field = mlx_gguf_find(source->gguf, key);
  return field && field->is_array ? (size_t)field->count : 0;
}

static yyjson_val *element_at(const mlx_source_t *source, const char *key, size_t index) {
  return source->hf && key ? yyjson_arr_get(mlx_hf_find(source->hf, key), index) : NULL;
}

// Leaves *|out| as it is if a GGUF file has no such number.
static void read_gguf_number(const mlx_source_t *source, const char *gguf_key, size_t index, double *out) {
  const mlx_gguf_field_t *field =
      source->gguf && gguf_key ? mlx_gguf_find(source->gguf, pick_to_read(source, NULL, gguf_key)) : NULL;
  if (field && field->is_array && index < field->count) (void)mlx_gguf_number_at(field, index, out);
}

mlx_status_t mlx_source_number_at(const mlx_source_t *source, const char *hf_key, const char *gguf_key,
                                  size_t index, double *out) {
  yyjson_val *value = element_at(source, hf_key, index);
  double number = yyjson_is_num(value) ? yyjson_get_num(value) : NAN;
  read_gguf_number(source, gguf_key, index, &number);
  if (isfinite(number)) {
    *out = number;
    return NULL;
  }
  return mlx_source_field_error(source, hf_key, gguf_key, MLX_INVALID_INPUT,
                                "must be a list of finite numbers");
}

mlx_status_t mlx_source_limit_at(const mlx_source_t *source, const char *hf_key, const char *gguf_key,
                                 size_t index, double *out) {
  yyjson_val *value = element_at(source, hf_key, index);
  const char *text = yyjson_get_str(yyjson_obj_get(value, "__float__"));
  *out = yyjson_is_num(value) ? yyjson_get_num(value) : text && !strcmp(text, "Infinity") ? INFINITY : NAN;
  read_gguf_number(source, gguf_key, index, out);
  if (!isnan(*out)) return NULL;
  return mlx_source_field_error(source, hf_key, gguf_key, MLX_INVALID_INPUT, "must be a list of numbers");
}

mlx_status_t mlx_source_string_at(const mlx_source_t *source, const char *hf_key, size_t index,
                                  const char **out) {
  yyjson_val *value = element_at(source, hf_key, index);
  if (!yyjson_is_str(value))
    return mlx_source_field_error(source, hf_key, NULL, MLX_INVALID_INPUT, "must be a list of strings");
  *out = mlx_name_printable(yyjson_get_str(value));
  return NULL;
}

mlx_status_t mlx_source_int_at(const mlx_source_t *source, const char *gguf_key, size_t index, int64_t *out) {
  const mlx_gguf_field_t *field =
      source->gguf ? mlx_gguf_find(source->gguf, pick_to_read(source, NULL, gguf_key)) : NULL;
  if (field && field->is_array && index < field->count && field->type == MLX_GGUF_BOOL) {
    *out = field->data[index] != 0;
    return NULL;
  }
  if (field && field->is_array && index < field->count && mlx_gguf_int_at(field, index, out)) return NULL;
  return mlx_source_field_error(source, NULL, gguf_key, MLX_INVALID_INPUT,
                                "must be a list of whole numbers or bools");
}

bool mlx_source_mentions(const mlx_source_t *source, const char *hf_key) {
  yyjson_val *value = source->hf ? source->hf->fields : NULL;
  for (;;) {
    const size_t length = strcspn(hf_key, ".");
    value = yyjson_obj_getn(value, hf_key, length);
    if (!hf_key[length]) return value != NULL;
    hf_key += length + 1;
  }
}

// Fields that do not change the computation, or repeat what the tensors show. An architecture reads the
// epsilon of its kind of norm, so the other one is unused. The first converters wrote use_parallel_residual =
// true for every architecture. Fields of a vision encoder do not affect the text model.
static bool is_harmless(const char *name) {
  static const char *const names[] = {"vocab_size",
                                      "tensor_data_layout",
                                      "rope.scaling.finetuned",
                                      "rope.scaling.original_context_length",
                                      "attention.layer_norm_epsilon",
                                      "attention.layer_norm_rms_epsilon",
                                      "use_parallel_residual",
                                      NULL};
  for (const char *const *known = names; *known; ++known) {
    if (!strcmp(name, *known)) return true;
  }
  return !strncmp(name, "vision.", 7) || !strncmp(name, "mm.", 3);
}

// 0 and false mean that the feature is off.
static bool is_zero(const mlx_gguf_field_t *field) {
  bool zero = !field->is_array && field->type != MLX_GGUF_STRING;
  for (size_t i = 0; zero && i < field->size; ++i) zero = !field->data[i];
  return zero;
}

mlx_status_t mlx_source_check_unread(const mlx_source_t *source) {
  const size_t length = source->gguf ? strlen(source->gguf->architecture) : 0;
  for (size_t i = 0; source->gguf && i < source->gguf->field_count; ++i) {
    const mlx_gguf_field_t *field = &source->gguf->fields[i];
    if (source->was_read[i] || strncmp(field->key, source->gguf->architecture, length) ||
        field->key[length] != '.')
      continue;
    if (is_harmless(field->key + length + 1) || is_zero(field)) continue;
    return mlx_status_hint(
        mlx_gguf_error(source->gguf, field->key, MLX_UNSUPPORTED,
                       "is not supported for this architecture and may change the computation"),
        "use the model's Hugging Face directory, if mlxcel supports its model_type");
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Tensors

const mlx_tensor_t *mlx_source_tensor(const mlx_source_t *source, const char *hf_name,
                                      const char *gguf_name) {
  const char *name = pick(source, hf_name, gguf_name);
  if (!name) return NULL;
  const mlx_gguf_model_t *gguf = source->gguf_model;
  return gguf ? mlx_tensor_find(gguf->tensors, gguf->tensor_count, name) : mlx_hf_tensor(source->hf, name);
}

size_t mlx_source_tensor_count(const mlx_source_t *source) {
  return source->gguf_model ? source->gguf_model->tensor_count : source->hf->tensor_count;
}

const mlx_tensor_t *mlx_source_tensor_at(const mlx_source_t *source, size_t index) {
  if (index >= mlx_source_tensor_count(source)) return NULL;
  return source->gguf_model ? source->gguf_model->tensors[index] : source->hf->tensors[index];
}

mlx_status_t mlx_source_packing(const mlx_source_t *source, const char *hf_name, int64_t stack, int64_t rows,
                                int64_t columns, mlx_packing_t *out_packing) {
  *out_packing = (mlx_packing_t){0};
  return source->gguf ? NULL : mlx_hf_packing(source->hf, hf_name, stack, rows, columns, out_packing);
}

// ----------------------------------------------------------------------------------------------------------
// Tokenizer

mlx_status_t mlx_source_tokenizer_json(const mlx_source_t *source, char **out_json, size_t *out_length) {
  return source->gguf ? mlx_gguf_tokenizer_json(source->gguf, out_json, out_length)
                      : mlx_hf_tokenizer_json(source->hf, out_json, out_length);
}

mlx_status_t mlx_source_tokenizer_bytes(const mlx_source_t *source, char **out_path, uint64_t *out_size) {
  *out_path = NULL;
  *out_size = 0;
  if (!source->gguf) {
    mlx_file_stamp_t stamp = {0};
    MLX_TRY(mlx_hf_tokenizer_path(source->hf, out_path));
    mlx_status_t status = mlx_file_stamp(*out_path, &stamp);
    *out_size = stamp.size;
    if (!status) return NULL;
    mlx_free(*out_path);
    *out_path = NULL;
    return status;
  }
  const uint8_t *start = source->gguf_model->parts[0].map.data;
  for (size_t i = 0; i < source->gguf->field_count; ++i) {
    const mlx_gguf_field_t *field = &source->gguf->fields[i];
    const uint64_t end = (uint64_t)(field->data + field->size - start);
    if (end > *out_size) *out_size = end;
  }
  const char *path = source->gguf_model->parts[0].path;
  return mlx_copy_text(path, strlen(path), out_path);
}

mlx_status_t mlx_source_chat_files(const mlx_source_t *source, mlx_visit_fn_t visit, void *user) {
  return source->hf ? mlx_hf_chat_files(source->hf, visit, user) : NULL;
}

mlx_status_t mlx_source_chat_json(const mlx_source_t *source, char **out_json, size_t *out_length) {
  return source->gguf ? mlx_gguf_chat_json(source->gguf, out_json, out_length)
                      : mlx_hf_chat_json(source->hf, out_json, out_length);
}

mlx_status_t mlx_source_eos_ids(const mlx_source_t *source, int32_t *out_ids, size_t capacity,
                                size_t *out_count) {
  return source->gguf ? mlx_gguf_eos_ids(source->gguf, out_ids, capacity, out_count)
                      : mlx_hf_eos_ids(source->hf, out_ids, capacity, out_count);
}
