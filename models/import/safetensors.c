// Parses and checks the header of a safetensors file; see safetensors.h.
#include "models/import/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "models/import/name.h"

#define MAX_HEADER 100000000  // the format's limit
#define MAX_NAME 1024
#define TRUNCATED_HINT "the download may be incomplete: download the file again"

static mlx_status_t tensor_error(const mlx_safetensors_t *file, const char *tensor, mlx_code_t code,
                                 const char *fmt, ...) MLX_PRINTF(4, 5) MLX_MUST_USE;
static mlx_status_t tensor_error(const mlx_safetensors_t *file, const char *tensor, mlx_code_t code,
                                 const char *fmt, ...) {
  char message[512];
  va_list args;
  va_start(args, fmt);
  vsnprintf(message, sizeof message, fmt, args);
  va_end(args);
  return mlx_error(code, "%s: tensor '%s': %s", file->name, tensor, message);
}

// ----------------------------------------------------------------------------------------------------------
// One tensor: {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}

static mlx_status_t read_dtype(const mlx_safetensors_t *file, const char *name, yyjson_val *entry,
                               mlx_dtype_t *out_dtype) {
  yyjson_val *value = mlx_json_find(entry, "dtype");
  if (!yyjson_is_str(value)) return tensor_error(file, name, MLX_INVALID_INPUT, "'dtype' must be a string");
  for (int i = 0; i < MLX_DTYPE_COUNT; ++i) {
    const mlx_dtype_info_t *info = mlx_dtype_info((mlx_dtype_t)i);
    if (!info->safetensors || !yyjson_equals_str(value, info->safetensors)) continue;
    *out_dtype = (mlx_dtype_t)i;
    return NULL;
  }
  mlx_status_t status = tensor_error(file, name, MLX_UNSUPPORTED, "its type %s is not supported",
                                     mlx_name_printable(yyjson_get_str(value)));
  return mlx_status_hint(status, "download this model in F32, F16 or BF16");
}

static mlx_status_t read_shape(const mlx_safetensors_t *file, yyjson_val *entry, mlx_tensor_t *tensor) {
  yyjson_val *shape = mlx_json_find(entry, "shape"), *extent;
  if (!yyjson_is_arr(shape))
    return tensor_error(file, tensor->name, MLX_INVALID_INPUT, "'shape' must be an array");
  if (yyjson_arr_size(shape) > MLX_MAX_RANK) {
    return tensor_error(file, tensor->name, MLX_UNSUPPORTED,
                        "it has %zu dimensions; at most %d are supported", yyjson_arr_size(shape),
                        MLX_MAX_RANK);
  }
  size_t index, max;
  yyjson_arr_foreach(shape, index, max, extent) {
    if (!yyjson_is_uint(extent) || yyjson_get_uint(extent) > INT64_MAX) {
      return tensor_error(file, tensor->name, MLX_INVALID_INPUT,
                          "extent %zu of its 'shape' is not a natural number", index);
    }
    tensor->dims[index] = (int64_t)yyjson_get_uint(extent);
  }
  tensor->rank = (int)max;
  if (mlx_dtype_tensor_bytes(tensor->dtype, tensor->rank, tensor->dims, &tensor->size)) return NULL;
  return tensor_error(file, tensor->name, MLX_INVALID_INPUT, "the size of its 'shape' overflows");
}

static mlx_status_t read_offsets(const mlx_safetensors_t *file, yyjson_val *entry, const uint8_t *data,
                                 size_t data_size, mlx_tensor_t *tensor) {
  yyjson_val *offsets = mlx_json_find(entry, "data_offsets");
  yyjson_val *first = yyjson_arr_get(offsets, 0), *second = yyjson_arr_get(offsets, 1);
  if (yyjson_arr_size(offsets) != 2 || !yyjson_is_uint(first) || !yyjson_is_uint(second)) {
    return tensor_error(file, tensor->name, MLX_INVALID_INPUT, "'data_offsets' must be two natural numbers");
  }
  uint64_t begin = yyjson_get_uint(first), end = yyjson_get_uint(second);
  if (begin > end || end - begin != tensor->size) {
    return tensor_error(file, tensor->name, MLX_INVALID_INPUT,
                        "'data_offsets' [%llu, %llu] do not hold the %zu bytes of its shape",
                        (unsigned long long)begin, (unsigned long long)end, tensor->size);
  }
  if (end > data_size) {
    mlx_status_t status = tensor_error(file, tensor->name, MLX_INVALID_INPUT,
                                       "data range [%llu, %llu] lies outside the file (%zu bytes of data)",
                                       (unsigned long long)begin, (unsigned long long)end, data_size);
    return mlx_status_hint(status, TRUNCATED_HINT);
  }
  tensor->data = data + (size_t)begin;
  return NULL;
}

static mlx_status_t read_tensor(const mlx_safetensors_t *file, yyjson_val *key, yyjson_val *entry,
                                const uint8_t *data, size_t data_size, mlx_tensor_t *tensor) {
  const char *name = yyjson_get_str(key);
  size_t length = yyjson_get_len(key);
  if (!length || length > MAX_NAME || !mlx_name_is_plain(name, length)) {
    return mlx_error(MLX_INVALID_INPUT,
                     "%s: a tensor's name is empty, longer than %d bytes or has control characters",
                     file->name, MAX_NAME);
  }
  tensor->name = name;
  if (!yyjson_is_obj(entry))
    return tensor_error(file, name, MLX_INVALID_INPUT, "its entry must be an object");
  MLX_TRY(read_dtype(file, name, entry, &tensor->dtype));
  MLX_TRY(read_shape(file, entry, tensor));
  return read_offsets(file, entry, data, data_size, tensor);
}

// ----------------------------------------------------------------------------------------------------------
// The whole file

static int compare_offsets(const void *a, const void *b) {
  const mlx_tensor_t *left = a, *right = b;
  if (left->data != right->data) return left->data < right->data ? -1 : 1;
  // At the same offset an empty tensor comes first.
  return (left->size > right->size) - (left->size < right->size);
}

static int compare_names(const void *a, const void *b) {
  return strcmp(((const mlx_tensor_t *)a)->name, ((const mlx_tensor_t *)b)->name);
}

// In order of offset, each tensor must begin where the previous one ends, and the last must end at the end of
// the file.
static mlx_status_t check_cover(mlx_safetensors_t *file, const uint8_t *data, size_t data_size) {
  if (file->tensor_count) qsort(file->tensors, file->tensor_count, sizeof *file->tensors, compare_offsets);
  size_t covered = 0;
  for (size_t i = 0; i < file->tensor_count; ++i) {
    const mlx_tensor_t *tensor = &file->tensors[i];
    size_t begin = (size_t)(tensor->data - data);
    if (begin != covered) {
      return tensor_error(file, tensor->name, MLX_INVALID_INPUT,
                          "its data begins at %zu, but the previous tensor ends at %zu: %s", begin, covered,
                          begin < covered ? "they overlap" : "there is a gap");
    }
    covered += tensor->size;
  }
  if (covered == data_size) return NULL;
  return mlx_error(MLX_INVALID_INPUT, "%s: its tensors end %zu bytes before the end of the file", file->name,
                   data_size - covered);
}

static mlx_status_t check_metadata(const mlx_safetensors_t *file, yyjson_val *metadata) {
  size_t index, max;
  yyjson_val *key, *value;
  if (!yyjson_is_obj(metadata)) return mlx_json_error(&file->header, "__metadata__", "must be an object");
  yyjson_obj_foreach(metadata, index, max, key, value) {
    if (!yyjson_is_str(value)) return mlx_json_error(&file->header, "__metadata__", "must hold strings only");
  }
  return NULL;
}

static mlx_status_t read_tensors(mlx_safetensors_t *file, const uint8_t *data, size_t data_size) {
  size_t index, max;
  yyjson_val *key, *entry;
  MLX_TRY(mlx_alloc(yyjson_obj_size(file->header.root), sizeof *file->tensors, &file->tensors));
  yyjson_obj_foreach(file->header.root, index, max, key, entry) {
    if (yyjson_equals_str(key, "__metadata__")) {
      MLX_TRY(check_metadata(file, entry));
    } else {
      MLX_TRY(read_tensor(file, key, entry, data, data_size, &file->tensors[file->tensor_count]));
      ++file->tensor_count;
    }
  }
  MLX_TRY(check_cover(file, data, data_size));
  if (file->tensor_count) qsort(file->tensors, file->tensor_count, sizeof *file->tensors, compare_names);
  return NULL;
}

static mlx_status_t parse_into(mlx_safetensors_t *file, const uint8_t *bytes, size_t size) {
  MLX_TRY(mlx_lfs_check(file->name, bytes, size));
  if (size < 8) {
    mlx_status_t status =
        mlx_error(MLX_INVALID_INPUT, "%s: not a safetensors file: only %zu bytes long", file->name, size);
    return mlx_status_hint(status, TRUNCATED_HINT);
  }
  uint64_t length = 0;
  for (int i = 0; i < 8; ++i) length |= (uint64_t)bytes[i] << 8 * i;
  if (length > MAX_HEADER) {
    return mlx_error(MLX_INVALID_INPUT,
                     "%s: not a safetensors file: its header has %llu bytes; at most %d are allowed",
                     file->name, (unsigned long long)length, MAX_HEADER);
  }
  if (length > size - 8) {
    mlx_status_t status =
        mlx_error(MLX_INVALID_INPUT, "%s: its header of %llu bytes is longer than the file (%zu bytes)",
                  file->name, (unsigned long long)length, size);
    return mlx_status_hint(status, TRUNCATED_HINT);
  }
  if (!length || bytes[8] != '{') {
    return mlx_error(MLX_INVALID_INPUT, "%s: not a safetensors file: its header does not start with '{'",
                     file->name);
  }
  MLX_TRY(mlx_json_parse(file->name, (const char *)bytes + 8, (size_t)length, &file->header));
  return read_tensors(file, bytes + 8 + (size_t)length, size - 8 - (size_t)length);
}

mlx_status_t mlx_safetensors_parse(const char *name, const uint8_t *bytes, size_t size,
                                   mlx_safetensors_t **out_file) {
  *out_file = NULL;
  mlx_safetensors_t *file;
  MLX_TRY(mlx_alloc(1, sizeof *file, &file));
  mlx_status_t status = mlx_copy_text(name, strlen(name), &file->name);
  if (!status) status = parse_into(file, bytes, size);
  if (status) {
    mlx_safetensors_close(file);
    return status;
  }
  *out_file = file;
  return NULL;
}

void mlx_safetensors_close(mlx_safetensors_t *file) {
  if (!file) return;
  mlx_json_close(&file->header);
  mlx_free(file->tensors);
  mlx_free(file->name);
  mlx_free(file);
}

const mlx_tensor_t *mlx_safetensors_tensor(const mlx_safetensors_t *file, const char *name) {
  mlx_tensor_t key = {.name = name};
  if (!file->tensor_count) return NULL;
  return bsearch(&key, file->tensors, file->tensor_count, sizeof *file->tensors, compare_names);
}
