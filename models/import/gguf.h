// Reads the metadata and the tensor table of one GGUF file, version 2 or 3, from bytes in memory.
//
// The file is untrusted: every count, length and offset is checked against the remaining bytes before it is
// used or memory is allocated for it. After mlx_gguf_parse succeeds, callers need no further checks.
//
// This reader does not write files, does not read big-endian files and never reads tensor bytes. A file may
// be one part of a split model; gguf_split.h joins the parts.
//
// Threads: immutable after parse, so any number of threads may read.
#ifndef MLXCEL_MODELS_IMPORT_GGUF_H_
#define MLXCEL_MODELS_IMPORT_GGUF_H_

#include <stdint.h>

#include "base/status.h"
#include "models/tensor.h"

// The numbers are the file format's.
typedef enum mlx_gguf_type {
  MLX_GGUF_U8 = 0,
  MLX_GGUF_I8,
  MLX_GGUF_U16,
  MLX_GGUF_I16,
  MLX_GGUF_U32,
  MLX_GGUF_I32,
  MLX_GGUF_F32,
  MLX_GGUF_BOOL,
  MLX_GGUF_STRING,
  MLX_GGUF_ARRAY,
  MLX_GGUF_U64,
  MLX_GGUF_I64,
  MLX_GGUF_F64,
  MLX_GGUF_TYPE_COUNT,
} mlx_gguf_type_t;

typedef struct mlx_gguf_field {
  char *key;             // owned
  mlx_gguf_type_t type;  // of the value, or of each element; never MLX_GGUF_ARRAY
  bool is_array;
  uint64_t count;  // elements; 1 for a scalar
  // Borrowed from the file: little-endian, unaligned. A string is a u64 length followed by its bytes.
  const uint8_t *data;
  size_t size;  // bytes of data
  char *text;   // owned: a scalar string with a NUL; NULL for other types
} mlx_gguf_field_t;

typedef struct mlx_gguf {
  char *name;  // owned: the file's path, for messages
  // Borrowed from general.architecture; NULL if a later part of a split model has none.
  const char *architecture;
  int part, part_count;      // index of this part and number of parts; 0 and 1 if the model is not split
  int64_t model_tensors;     // split model: number of tensors in all parts
  mlx_gguf_field_t *fields;  // owned; sorted by key
  size_t field_count;
  mlx_tensor_t *tensors;  // owned, as are their names; in the file's order
  size_t tensor_count;
  const mlx_tensor_t **by_name;  // owned: tensors sorted by name
} mlx_gguf_t;

// Parses |bytes|, which must outlive the result. |name| is the file's path and is copied. Release with
// mlx_gguf_close.
mlx_status_t mlx_gguf_parse(const char *name, const uint8_t *bytes, size_t size,
                            mlx_gguf_t **out_gguf) MLX_MUST_USE;
void mlx_gguf_close(mlx_gguf_t *gguf);  // NULL is fine

// In the functions below a leading dot in a key stands for the architecture: ".block_count" is
// "llama.block_count". Both functions return NULL if there is no such field or tensor.
const mlx_gguf_field_t *mlx_gguf_find(const mlx_gguf_t *gguf, const char *key);
const mlx_tensor_t *mlx_gguf_tensor(const mlx_gguf_t *gguf, const char *name);

// Typed scalars. |out_found| works as in models/import/source.h.
mlx_status_t mlx_gguf_int(const mlx_gguf_t *gguf, const char *key, int64_t min, int64_t max, int64_t *out,
                          bool *out_found) MLX_MUST_USE;
mlx_status_t mlx_gguf_number(const mlx_gguf_t *gguf, const char *key, double *out,
                             bool *out_found) MLX_MUST_USE;
mlx_status_t mlx_gguf_bool(const mlx_gguf_t *gguf, const char *key, bool *out, bool *out_found) MLX_MUST_USE;
mlx_status_t mlx_gguf_string(const mlx_gguf_t *gguf, const char *key, const char **out,
                             bool *out_found) MLX_MUST_USE;
// The error "FILE: field 'KEY' MESSAGE", with a leading dot replaced by the architecture.
mlx_status_t mlx_gguf_error(const mlx_gguf_t *gguf, const char *key, mlx_code_t code, const char *fmt, ...)
    MLX_PRINTF(4, 5) MLX_MUST_USE;

// Element |index| of a field of integers. False if the field holds another type or the value does not fit.
bool mlx_gguf_int_at(const mlx_gguf_field_t *field, uint64_t index, int64_t *out);
// Element |index| of a field of integers or floats. False if the field holds another type.
bool mlx_gguf_number_at(const mlx_gguf_field_t *field, uint64_t index, double *out);

// The next string of an array. Start with cursor = field->data and call at most field->count times.
const char *mlx_gguf_next_string(const uint8_t **inout_cursor, size_t *out_length);

#endif  // MLXCEL_MODELS_IMPORT_GGUF_H_
