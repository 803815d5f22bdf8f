// See gguf.h. All reads go through reader_t, which checks bounds and names the failing part in its errors.
#include "models/import/gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "models/import/name.h"

#define MAX_DIMS 4           // of a tensor; the format's limit
#define MAX_KEY 65535        // the format's limit
#define MAX_TENSOR_NAME 256  // the format's limit is 64, but some writers allow more
#define MAX_ARCHITECTURE 64
#define MAX_PARTS 65535      // of a split model; split.no has 16 bits
#define MIN_FIELD_BYTES 14   // length, key of one byte, type, value of one byte
#define MIN_TENSOR_BYTES 33  // length, name of one byte, one dimension, type, offset
#define DEFAULT_ALIGNMENT 32
#define TRUNCATED_HINT "the download may be incomplete: download the file again"

// ----------------------------------------------------------------------------------------------------------
// Reading bytes

typedef struct reader {
  const char *name;  // the file
  const uint8_t *bytes;
  size_t size, at;
  const char *part;   // for messages: "header", "field" or "tensor"
  uint64_t index;     // of the field or tensor
  const char *label;  // its name; NULL until it is read
} reader_t;

// The error "FILE: tensor 'NAME': MESSAGE", or "FILE: tensor 12: MESSAGE" before the name is read.
static mlx_status_t fail(const reader_t *reader, mlx_code_t code, const char *fmt, ...)
    MLX_PRINTF(3, 4) MLX_MUST_USE;
static mlx_status_t fail(const reader_t *reader, mlx_code_t code, const char *fmt, ...) {
  char message[512];
  va_list args;
  va_start(args, fmt);
  vsnprintf(message, sizeof message, fmt, args);
  va_end(args);
  if (reader->label)
    return mlx_error(code, "%s: %s '%s': %s", reader->name, reader->part, reader->label, message);
  if (!strcmp(reader->part, "header")) return mlx_error(code, "%s: %s", reader->name, message);
  return mlx_error(code, "%s: %s %llu: %s", reader->name, reader->part, (unsigned long long)reader->index,
                   message);
}

static size_t left(const reader_t *reader) { return reader->size - reader->at; }

static mlx_status_t ends_early(const reader_t *reader) {
  mlx_status_t status =
      fail(reader, MLX_INVALID_INPUT,
           "the file ends inside it (the file has %zu bytes; more are needed at offset %zu)", reader->size,
           reader->at);
  return mlx_status_hint(status, TRUNCATED_HINT);
}

static uint64_t load(const uint8_t *bytes, size_t width) {
  uint64_t value = 0;
  for (size_t i = 0; i < width; ++i) value |= (uint64_t)bytes[i] << 8 * i;
  return value;
}

static mlx_status_t read_uint(reader_t *reader, size_t width, uint64_t *out) {
  *out = 0;
  if (left(reader) < width) return ends_early(reader);
  *out = load(reader->bytes + reader->at, width);
  reader->at += width;
  return NULL;
}

static mlx_status_t read_string(reader_t *reader, const char **out_bytes, size_t *out_length) {
  *out_bytes = NULL;
  *out_length = 0;
  uint64_t length;
  MLX_TRY(read_uint(reader, 8, &length));
  if (length > left(reader)) return ends_early(reader);
  *out_bytes = (const char *)reader->bytes + reader->at;
  *out_length = (size_t)length;
  reader->at += (size_t)length;
  return NULL;
}

static mlx_status_t read_name(reader_t *reader, size_t max_length, char **out_name) {
  const char *bytes;
  size_t length;
  MLX_TRY(read_string(reader, &bytes, &length));
  if (!length || length > max_length) {
    return fail(reader, MLX_INVALID_INPUT, "its name has %zu bytes; 1 to %zu are allowed", length,
                max_length);
  }
  if (!mlx_name_is_plain(bytes, length)) {
    return fail(reader, MLX_INVALID_INPUT, "its name has control characters or is not UTF-8");
  }
  return mlx_copy_text(bytes, length, out_name);
}

// ----------------------------------------------------------------------------------------------------------
// Header

static mlx_status_t read_header(reader_t *reader, uint64_t *out_tensors, uint64_t *out_fields) {
  *out_tensors = *out_fields = 0;
  uint64_t version;
  if (reader->size < 4 || memcmp(reader->bytes, "GGUF", 4)) {
    MLX_TRY(mlx_lfs_check(reader->name, reader->bytes, reader->size));
    return fail(reader, MLX_INVALID_INPUT, "not a GGUF file: it does not start with 'GGUF'");
  }
  reader->at = 4;
  MLX_TRY(read_uint(reader, 4, &version));
  if (version > 0xffff && !(version & 0xffff)) {
    return mlx_status_hint(
        fail(reader, MLX_UNSUPPORTED, "big-endian GGUF file; only little-endian files are supported"),
        "download the little-endian file of this model");
  }
  if (version < 2) {
    return mlx_status_hint(
        fail(reader, MLX_UNSUPPORTED, "GGUF version %llu is not supported; versions 2 and 3 are",
             (unsigned long long)version),
        "the file predates August 2023: download a newer file of this model");
  }
  if (version > 3) {
    return mlx_status_hint(
        fail(reader, MLX_UNSUPPORTED, "GGUF version %llu is not supported; versions 2 and 3 are",
             (unsigned long long)version),
        "a newer version of mlxcel may support it");
  }
  MLX_TRY(read_uint(reader, 8, out_tensors));
  MLX_TRY(read_uint(reader, 8, out_fields));
  // The arrays grow as entries are read, so these counts allocate nothing. The check only gives a clear error
  // early.
  if (*out_fields > left(reader) / MIN_FIELD_BYTES || *out_tensors > left(reader) / MIN_TENSOR_BYTES) {
    mlx_status_t status =
        fail(reader, MLX_INVALID_INPUT,
             "the header declares %llu fields and %llu tensors, which do not fit in %zu bytes",
             (unsigned long long)*out_fields, (unsigned long long)*out_tensors, reader->size);
    return mlx_status_hint(status, TRUNCATED_HINT);
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Fields

static const uint8_t type_widths[MLX_GGUF_TYPE_COUNT] = {
    [MLX_GGUF_U8] = 1,  [MLX_GGUF_I8] = 1,  [MLX_GGUF_U16] = 2, [MLX_GGUF_I16] = 2,
    [MLX_GGUF_U32] = 4, [MLX_GGUF_I32] = 4, [MLX_GGUF_F32] = 4, [MLX_GGUF_BOOL] = 1,
    [MLX_GGUF_U64] = 8, [MLX_GGUF_I64] = 8, [MLX_GGUF_F64] = 8,
};

static mlx_status_t read_type(reader_t *reader, mlx_gguf_type_t *out_type) {
  uint64_t type;
  MLX_TRY(read_uint(reader, 4, &type));
  if (type >= MLX_GGUF_TYPE_COUNT)
    return fail(reader, MLX_INVALID_INPUT, "unknown value type %llu", (unsigned long long)type);
  *out_type = (mlx_gguf_type_t)type;
  return NULL;
}

// Skips the elements of |field| and checks them, so that later readers need no checks.
static mlx_status_t skip_elements(reader_t *reader, const mlx_gguf_field_t *field) {
  if (field->type == MLX_GGUF_STRING) {
    const char *bytes;
    size_t length;
    if (field->count > left(reader) / 8) return ends_early(reader);
    for (uint64_t i = 0; i < field->count; ++i) MLX_TRY(read_string(reader, &bytes, &length));
    return NULL;
  }
  size_t width = type_widths[field->type];
  if (field->count > left(reader) / width) return ends_early(reader);
  reader->at += (size_t)field->count * width;
  if (field->type != MLX_GGUF_BOOL) return NULL;
  for (uint64_t i = 0; i < field->count; ++i) {
    if (field->data[i] > 1)
      return fail(reader, MLX_INVALID_INPUT, "a bool is %d, not 0 or 1", field->data[i]);
  }
  return NULL;
}

static mlx_status_t read_field(reader_t *reader, mlx_gguf_field_t *field) {
  MLX_TRY(read_name(reader, MAX_KEY, &field->key));
  reader->label = field->key;
  // In our lookups a leading dot stands for the architecture, so this key could never be found.
  if (field->key[0] == '.') return fail(reader, MLX_INVALID_INPUT, "its name starts with a dot");
  MLX_TRY(read_type(reader, &field->type));
  field->count = 1;
  if (field->type == MLX_GGUF_ARRAY) {
    field->is_array = true;
    MLX_TRY(read_type(reader, &field->type));
    if (field->type == MLX_GGUF_ARRAY) return fail(reader, MLX_UNSUPPORTED, "an array of arrays");
    MLX_TRY(read_uint(reader, 8, &field->count));
  }
  field->data = reader->bytes + reader->at;
  MLX_TRY(skip_elements(reader, field));
  field->size = (size_t)(reader->bytes + reader->at - field->data);
  if (field->is_array || field->type != MLX_GGUF_STRING) return NULL;
  const uint8_t *cursor = field->data;
  size_t length;
  const char *text = mlx_gguf_next_string(&cursor, &length);
  return mlx_copy_text(text, length, &field->text);
}

static int compare_fields(const void *a, const void *b) {
  return strcmp(((const mlx_gguf_field_t *)a)->key, ((const mlx_gguf_field_t *)b)->key);
}

static mlx_status_t read_fields(reader_t *reader, uint64_t count, mlx_gguf_t *gguf) {
  size_t capacity = 0;
  reader->part = "field";
  for (reader->index = 0; reader->index < count; ++reader->index) {
    reader->label = NULL;
    MLX_TRY(mlx_reserve(gguf->field_count + 1, sizeof *gguf->fields, &capacity, &gguf->fields));
    mlx_gguf_field_t *field = &gguf->fields[gguf->field_count++];
    *field = (mlx_gguf_field_t){0};
    MLX_TRY(read_field(reader, field));
  }
  if (gguf->field_count) qsort(gguf->fields, gguf->field_count, sizeof *gguf->fields, compare_fields);
  for (size_t i = 1; i < gguf->field_count; ++i) {
    if (strcmp(gguf->fields[i - 1].key, gguf->fields[i].key)) continue;
    return mlx_gguf_error(gguf, gguf->fields[i].key, MLX_INVALID_INPUT, "is given twice");
  }
  return NULL;
}

// Reads the split.* fields: the index of this part, the number of parts, and the number of tensors in all
// parts.
static mlx_status_t check_split(mlx_gguf_t *gguf) {
  int64_t part = 0, part_count = 1;
  bool found;
  gguf->part_count = 1;
  MLX_TRY(mlx_gguf_int(gguf, "split.count", 0, MAX_PARTS, &part_count, &found));
  if (part_count <= 1) return NULL;
  MLX_TRY(mlx_gguf_int(gguf, "split.no", 0, part_count - 1, &part, NULL));
  MLX_TRY(mlx_gguf_int(gguf, "split.tensors.count", 0, INT64_MAX, &gguf->model_tensors, NULL));
  gguf->part = (int)part;
  gguf->part_count = (int)part_count;
  return NULL;
}

static mlx_status_t check_architecture(mlx_gguf_t *gguf) {
  bool found = true;
  MLX_TRY(mlx_gguf_string(gguf, "general.architecture", &gguf->architecture, gguf->part ? &found : NULL));
  if (!found) return NULL;
  size_t length = strlen(gguf->architecture);
  if (length && length <= MAX_ARCHITECTURE && mlx_name_is_plain(gguf->architecture, length)) return NULL;
  gguf->architecture = NULL;
  return mlx_gguf_error(gguf, "general.architecture", MLX_INVALID_INPUT,
                        "must be a name of 1 to %d characters", MAX_ARCHITECTURE);
}

// Checks the fields that decide how to read the rest of the file.
static mlx_status_t check_general(mlx_gguf_t *gguf, size_t *out_alignment) {
  int64_t alignment = DEFAULT_ALIGNMENT;
  bool found;
  MLX_TRY(check_split(gguf));
  MLX_TRY(mlx_gguf_int(gguf, "general.alignment", 1, UINT32_MAX, &alignment, &found));
  if (alignment < 8 || alignment & (alignment - 1)) {
    return mlx_gguf_error(gguf, "general.alignment", MLX_INVALID_INPUT,
                          "is %lld; it must be a power of two, at least 8", (long long)alignment);
  }
  *out_alignment = (size_t)alignment;
  return check_architecture(gguf);
}

// ----------------------------------------------------------------------------------------------------------
// Tensors

// Known types without dequantization, so that the error can name the type.
static const struct {
  int type;
  const char *name;
} unsupported_types[] = {
    {9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
    {21, "IQ3_S"}, {22, "IQ2_S"}, {24, "I8"},      {25, "I16"},    {26, "I32"},     {27, "I64"},
    {28, "F64"},   {29, "IQ1_M"}, {34, "TQ1_0"},   {35, "TQ2_0"},  {40, "NVFP4"},   {41, "Q1_0"},
};

static mlx_status_t unsupported_type(const reader_t *reader, uint64_t type) {
  mlx_text_t known = {0};
  for (int i = 0; i < MLX_DTYPE_COUNT; ++i) {
    const mlx_dtype_info_t *info = mlx_dtype_info((mlx_dtype_t)i);
    if (info->gguf_type >= 0 && info->to_f32)
      mlx_text_printf(&known, "%s%s", known.length ? ", " : "", info->name);
  }
  mlx_status_t status = NULL;
  for (size_t i = 0; i < sizeof unsupported_types / sizeof *unsupported_types && !status; ++i) {
    if ((uint64_t)unsupported_types[i].type != type) continue;
    status = fail(reader, MLX_UNSUPPORTED, "its type %s is not supported", unsupported_types[i].name);
  }
  if (!status)
    status = fail(reader, MLX_UNSUPPORTED, "its type number %llu is unknown", (unsigned long long)type);
  status = mlx_status_hint(status, "download this model in one of the supported types: %s",
                           known.data ? known.data : "");
  mlx_text_clear(&known);
  return status;
}

static mlx_status_t read_dtype(reader_t *reader, mlx_dtype_t *out_dtype) {
  uint64_t type;
  MLX_TRY(read_uint(reader, 4, &type));
  for (int i = 0; i < MLX_DTYPE_COUNT; ++i) {
    const mlx_dtype_info_t *info = mlx_dtype_info((mlx_dtype_t)i);
    if (info->gguf_type < 0 || (uint64_t)info->gguf_type != type || !info->to_f32) continue;
    *out_dtype = (mlx_dtype_t)i;
    return NULL;
  }
  return unsupported_type(reader, type);
}

static mlx_status_t read_tensor(reader_t *reader, mlx_tensor_t *tensor, uint64_t *out_offset) {
  char *name;
  MLX_TRY(read_name(reader, MAX_TENSOR_NAME, &name));
  tensor->name = reader->label = name;
  uint64_t rank, extent;
  MLX_TRY(read_uint(reader, 4, &rank));
  if (rank < 1 || rank > MAX_DIMS) {
    return fail(reader, MLX_INVALID_INPUT, "it has %llu dimensions; 1 to %d are allowed",
                (unsigned long long)rank, MAX_DIMS);
  }
  tensor->rank = (int)rank;
  for (int i = tensor->rank - 1; i >= 0; --i) {  // the file stores the innermost first
    MLX_TRY(read_uint(reader, 8, &extent));
    if (!extent || extent > INT64_MAX) {
      return fail(reader, MLX_INVALID_INPUT, "an extent is %llu", (unsigned long long)extent);
    }
    tensor->dims[i] = (int64_t)extent;
  }
  MLX_TRY(read_dtype(reader, &tensor->dtype));
  const mlx_dtype_info_t *info = mlx_dtype_info(tensor->dtype);
  if (!mlx_dtype_tensor_bytes(tensor->dtype, tensor->rank, tensor->dims, &tensor->size)) {
    return fail(reader, MLX_INVALID_INPUT,
                "its rows of %lld elements are not whole blocks of %zu (%s), or its size overflows",
                (long long)tensor->dims[tensor->rank - 1], info->block_elements, info->name);
  }
  return read_uint(reader, 8, out_offset);
}

static mlx_status_t locate_tensor(reader_t *reader, size_t start, size_t alignment, uint64_t offset,
                                  mlx_tensor_t *tensor) {
  reader->label = tensor->name;
  if (offset % alignment) {
    return fail(reader, MLX_INVALID_INPUT, "its offset %llu is not a multiple of %zu",
                (unsigned long long)offset, alignment);
  }
  if (start > reader->size || !mlx_range_ok(offset, tensor->size, reader->size - start)) {
    mlx_status_t status = fail(reader, MLX_INVALID_INPUT,
                               "its data, %zu bytes at %zu + %llu, lies outside the file (%zu bytes)",
                               tensor->size, start, (unsigned long long)offset, reader->size);
    return mlx_status_hint(status, TRUNCATED_HINT);
  }
  tensor->data = reader->bytes + start + (size_t)offset;
  return NULL;
}

static mlx_status_t read_tensors(reader_t *reader, uint64_t count, size_t alignment, mlx_gguf_t *gguf,
                                 uint64_t **inout_offsets) {
  size_t capacity = 0, offset_capacity = 0, start;
  reader->part = "tensor";
  for (reader->index = 0; reader->index < count; ++reader->index) {
    reader->label = NULL;
    MLX_TRY(mlx_reserve(gguf->tensor_count + 1, sizeof *gguf->tensors, &capacity, &gguf->tensors));
    MLX_TRY(mlx_reserve(gguf->tensor_count + 1, sizeof **inout_offsets, &offset_capacity, inout_offsets));
    mlx_tensor_t *tensor = &gguf->tensors[gguf->tensor_count++];
    *tensor = (mlx_tensor_t){0};
    MLX_TRY(read_tensor(reader, tensor, &(*inout_offsets)[gguf->tensor_count - 1]));
  }
  if (!mlx_align_up(reader->at, alignment, &start)) return ends_early(reader);
  for (size_t i = 0; i < gguf->tensor_count; ++i) {
    MLX_TRY(locate_tensor(reader, start, alignment, (*inout_offsets)[i], &gguf->tensors[i]));
  }
  return NULL;
}

static int compare_offsets(const void *a, const void *b) {
  const uint8_t *left_data = (*(const mlx_tensor_t *const *)a)->data,
                *right_data = (*(const mlx_tensor_t *const *)b)->data;
  return (left_data > right_data) - (left_data < right_data);
}

// Refuses tensors that share bytes or a name, and builds the index by name.
static mlx_status_t index_tensors(mlx_gguf_t *gguf) {
  size_t count = gguf->tensor_count;
  if (!count) return NULL;
  MLX_TRY(mlx_alloc(count, sizeof *gguf->by_name, &gguf->by_name));
  const mlx_tensor_t **sorted = gguf->by_name;
  for (size_t i = 0; i < count; ++i) sorted[i] = &gguf->tensors[i];
  qsort(sorted, count, sizeof *sorted, compare_offsets);
  for (size_t i = 1; i < count; ++i) {
    if (sorted[i - 1]->size <= (size_t)(sorted[i]->data - sorted[i - 1]->data)) continue;
    return mlx_error(MLX_INVALID_INPUT, "%s: tensor '%s': its data overlaps the data of '%s'", gguf->name,
                     sorted[i]->name, sorted[i - 1]->name);
  }
  qsort(sorted, count, sizeof *sorted, mlx_tensor_compare);
  for (size_t i = 1; i < count; ++i) {
    if (strcmp(sorted[i - 1]->name, sorted[i]->name)) continue;
    return mlx_error(MLX_INVALID_INPUT, "%s: tensor '%s' is given twice", gguf->name, sorted[i]->name);
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// The whole file

static mlx_status_t parse_into(reader_t *reader, mlx_gguf_t *gguf) {
  uint64_t tensors, fields, *offsets = NULL;
  size_t alignment = 0;
  MLX_TRY(read_header(reader, &tensors, &fields));
  MLX_TRY(read_fields(reader, fields, gguf));
  MLX_TRY(check_general(gguf, &alignment));
  mlx_status_t status = read_tensors(reader, tensors, alignment, gguf, &offsets);
  mlx_free(offsets);
  return status ? status : index_tensors(gguf);
}

mlx_status_t mlx_gguf_parse(const char *name, const uint8_t *bytes, size_t size, mlx_gguf_t **out_gguf) {
  *out_gguf = NULL;
  mlx_gguf_t *gguf;
  MLX_TRY(mlx_alloc(1, sizeof *gguf, &gguf));
  reader_t reader = {.name = name, .bytes = bytes, .size = size, .part = "header"};
  mlx_status_t status = mlx_copy_text(name, strlen(name), &gguf->name);
  if (!status) status = parse_into(&reader, gguf);
  if (status) {
    mlx_gguf_close(gguf);
    return status;
  }
  *out_gguf = gguf;
  return NULL;
}

void mlx_gguf_close(mlx_gguf_t *gguf) {
  if (!gguf) return;
  for (size_t i = 0; i < gguf->field_count; ++i) {
    mlx_free(gguf->fields[i].key);
    mlx_free(gguf->fields[i].text);
  }
  for (size_t i = 0; i < gguf->tensor_count; ++i) mlx_free((void *)(uintptr_t)gguf->tensors[i].name);
  mlx_free(gguf->fields);
  mlx_free(gguf->tensors);
  mlx_free(gguf->by_name);
  mlx_free(gguf->name);
  mlx_free(gguf);
}

// ----------------------------------------------------------------------------------------------------------
// Lookups

#define FULL_KEY (MAX_ARCHITECTURE + 256)

// |key| with a leading dot replaced by the architecture. Returns "", which is in no file, if it does not fit.
static const char *full_key(const mlx_gguf_t *gguf, const char *key, char buffer[FULL_KEY]) {
  if (key[0] != '.') return key;
  int length = snprintf(buffer, FULL_KEY, "%s%s", gguf->architecture ? gguf->architecture : "", key);
  return length < FULL_KEY ? buffer : "";
}

const mlx_gguf_field_t *mlx_gguf_find(const mlx_gguf_t *gguf, const char *key) {
  char buffer[FULL_KEY];
  mlx_gguf_field_t search_key = {.key = (char *)(uintptr_t)full_key(gguf, key, buffer)};
  if (!gguf->field_count) return NULL;
  return bsearch(&search_key, gguf->fields, gguf->field_count, sizeof *gguf->fields, compare_fields);
}

const mlx_tensor_t *mlx_gguf_tensor(const mlx_gguf_t *gguf, const char *name) {
  return mlx_tensor_find(gguf->by_name, gguf->tensor_count, name);
}

mlx_status_t mlx_gguf_error(const mlx_gguf_t *gguf, const char *key, mlx_code_t code, const char *fmt, ...) {
  char message[512], buffer[FULL_KEY];
  va_list args;
  va_start(args, fmt);
  vsnprintf(message, sizeof message, fmt, args);
  va_end(args);
  return mlx_error(code, "%s: field '%s' %s", gguf->name, full_key(gguf, key, buffer), message);
}

// *|out_field| is NULL if the field is missing and optional.
static mlx_status_t find_scalar(const mlx_gguf_t *gguf, const char *key, const char *expected,
                                const mlx_gguf_field_t **out_field, bool *out_found) {
  const mlx_gguf_field_t *field = mlx_gguf_find(gguf, key);
  if (out_found) *out_found = field != NULL;
  *out_field = field;
  if (!field && !out_found) return mlx_gguf_error(gguf, key, MLX_INVALID_INPUT, "is missing");
  if (field && field->is_array)
    return mlx_gguf_error(gguf, key, MLX_INVALID_INPUT, "must be %s, but is an array", expected);
  return NULL;
}

bool mlx_gguf_int_at(const mlx_gguf_field_t *field, uint64_t index, int64_t *out) {
  size_t width = type_widths[field->type];
  uint64_t bits;
  switch (field->type) {
    case MLX_GGUF_U8:
    case MLX_GGUF_U16:
    case MLX_GGUF_U32:
    case MLX_GGUF_U64:
      bits = load(field->data + index * width, width);
      if (bits > INT64_MAX) return false;
      *out = (int64_t)bits;
      return true;
    case MLX_GGUF_I8:
    case MLX_GGUF_I16:
    case MLX_GGUF_I32:
    case MLX_GGUF_I64: {
      bits = load(field->data + index * width, width);
      uint64_t sign = UINT64_C(1) << (8 * width - 1);
      *out = (int64_t)((bits ^ sign) - sign);
      return true;
    }
    default: return false;
  }
}

mlx_status_t mlx_gguf_int(const mlx_gguf_t *gguf, const char *key, int64_t min, int64_t max, int64_t *out,
                          bool *out_found) {
  const mlx_gguf_field_t *field;
  int64_t value;
  MLX_TRY(find_scalar(gguf, key, "an integer", &field, out_found));
  if (!field) return NULL;
  bool is_integer = mlx_gguf_int_at(field, 0, &value);
  if (!is_integer && field->type != MLX_GGUF_U64)
    return mlx_gguf_error(gguf, key, MLX_INVALID_INPUT, "must be an integer");
  if (!is_integer || value < min || value > max) {
    return mlx_gguf_error(gguf, key, MLX_INVALID_INPUT, "must be between %lld and %lld", (long long)min,
                          (long long)max);
  }
  *out = value;
  return NULL;
}

bool mlx_gguf_number_at(const mlx_gguf_field_t *field, uint64_t index, double *out) {
  const size_t width = type_widths[field->type];
  int64_t integer;
  if (field->type == MLX_GGUF_F32) {
    const uint32_t bits = (uint32_t)load(field->data + index * width, width);
    float narrow;
    memcpy(&narrow, &bits, sizeof narrow);
    *out = narrow;
  } else if (field->type == MLX_GGUF_F64 || field->type == MLX_GGUF_U64) {
    const uint64_t bits = load(field->data + index * width, width);
    if (field->type == MLX_GGUF_F64)
      memcpy(out, &bits, sizeof *out);
    else
      *out = (double)bits;
  } else if (mlx_gguf_int_at(field, index, &integer)) {
    *out = (double)integer;
  } else {
    return false;
  }
  return true;
}

mlx_status_t mlx_gguf_number(const mlx_gguf_t *gguf, const char *key, double *out, bool *out_found) {
  const mlx_gguf_field_t *field;
  double value;
  MLX_TRY(find_scalar(gguf, key, "a number", &field, out_found));
  if (!field) return NULL;
  if (!mlx_gguf_number_at(field, 0, &value))
    return mlx_gguf_error(gguf, key, MLX_INVALID_INPUT, "must be a number");
  if (!isfinite(value)) return mlx_gguf_error(gguf, key, MLX_INVALID_INPUT, "must be finite");
  *out = value;
  return NULL;
}

mlx_status_t mlx_gguf_bool(const mlx_gguf_t *gguf, const char *key, bool *out, bool *out_found) {
  const mlx_gguf_field_t *field;
  MLX_TRY(find_scalar(gguf, key, "true or false", &field, out_found));
  if (!field) return NULL;
  if (field->type != MLX_GGUF_BOOL)
    return mlx_gguf_error(gguf, key, MLX_INVALID_INPUT, "must be true or false");
  *out = field->data[0];
  return NULL;
}

mlx_status_t mlx_gguf_string(const mlx_gguf_t *gguf, const char *key, const char **out, bool *out_found) {
  const mlx_gguf_field_t *field;
  MLX_TRY(find_scalar(gguf, key, "a string", &field, out_found));
  if (!field) return NULL;
  if (field->type != MLX_GGUF_STRING) return mlx_gguf_error(gguf, key, MLX_INVALID_INPUT, "must be a string");
  const uint8_t *cursor = field->data;
  size_t length;
  mlx_gguf_next_string(&cursor, &length);
  if (strlen(field->text) != length)
    return mlx_gguf_error(gguf, key, MLX_INVALID_INPUT, "contains a NUL character");
  *out = field->text;
  return NULL;
}

const char *mlx_gguf_next_string(const uint8_t **inout_cursor, size_t *out_length) {
  size_t length = (size_t)load(*inout_cursor, 8);
  const char *bytes = (const char *)*inout_cursor + 8;
  *inout_cursor += 8 + length;
  *out_length = length;
  return bytes;
}
