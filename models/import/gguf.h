// GGUF: reads the metadata and tensor table of one file, version 2 or 3, from bytes that are already in
// memory.
//
// Everything in the file is hostile until checked: every count, length and offset is compared with the bytes
// that are left before it is used or anything is allocated for it. What passes mlx_gguf_parse can be walked
// without further checks.
//
// It is not a writer, reads no big-endian files, and never touches tensor bytes. A file may be one part of a
// split model: the model at the end of this header is all of them.
//
// Threads: immutable after parse, so any number of threads may read.
#ifndef MLXCEL_MODELS_IMPORT_GGUF_H_
#define MLXCEL_MODELS_IMPORT_GGUF_H_

#include <stdint.h>

#include "base/file.h"
#include "base/status.h"
#include "models/model.h"

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
  const uint8_t
      *data;    // borrowed from the file: little-endian, unaligned; a string is a u64 length and its bytes
  size_t size;  // bytes of data
  char *text;   // owned: a scalar string's bytes and a NUL; NULL for everything else
} mlx_gguf_field_t;

typedef struct mlx_gguf {
  char *name;                // owned: the file's path, for messages
  const char *architecture;  // borrowed from the field general.architecture; later parts of a split model may
                             // have none: NULL
  int part, part_count;   // which part of a split model, from 0, and of how many; 0 of 1 when it is not split
  int64_t model_tensors;  // of a split model: tensors in all its parts
  mlx_gguf_field_t *fields;  // owned; sorted by key
  size_t field_count;
  mlx_tensor_t *tensors;  // owned, as are their names; in the file's order
  size_t tensor_count;
  const mlx_tensor_t **by_name;  // owned: tensors sorted by name
} mlx_gguf_t;

// Parses |bytes|, which must outlive the result. |name| is copied. Release with mlx_gguf_close.
mlx_status_t mlx_gguf_parse(const char *name, const uint8_t *bytes, size_t size,
                            mlx_gguf_t **out_gguf) MLX_MUST_USE;
void mlx_gguf_close(mlx_gguf_t *gguf);  // NULL is fine

// In the functions below a key with a leading dot belongs to the architecture: ".block_count" is
// "llama.block_count".
const mlx_gguf_field_t *mlx_gguf_find(const mlx_gguf_t *gguf, const char *key);
const mlx_tensor_t *mlx_gguf_tensor(const mlx_gguf_t *gguf, const char *name);

// Typed scalars, with the contract of mlx_source_int and its family in models/model.h.
mlx_status_t mlx_gguf_int(const mlx_gguf_t *gguf, const char *key, int64_t min, int64_t max, int64_t *out,
                          bool *out_found) MLX_MUST_USE;
mlx_status_t mlx_gguf_number(const mlx_gguf_t *gguf, const char *key, double *out,
                             bool *out_found) MLX_MUST_USE;
mlx_status_t mlx_gguf_bool(const mlx_gguf_t *gguf, const char *key, bool *out, bool *out_found) MLX_MUST_USE;
mlx_status_t mlx_gguf_string(const mlx_gguf_t *gguf, const char *key, const char **out,
                             bool *out_found) MLX_MUST_USE;
// "FILE: field 'KEY' WHAT", with a leading dot spelled out.
mlx_status_t mlx_gguf_error(const mlx_gguf_t *gguf, const char *key, mlx_code_t code, const char *fmt, ...)
    MLX_PRINTF(4, 5) MLX_MUST_USE;

// Element |index| of a field of integers as int64_t; false when the field holds something else or the value
// does not fit.
bool mlx_gguf_int_at(const mlx_gguf_field_t *field, uint64_t index, int64_t *out);

// The strings of an array, in order: start with cursor = field->data and call at most field->count times.
const char *mlx_gguf_next_string(const uint8_t **inout_cursor, size_t *out_length);

// gguf_tokenizer.c: Hugging Face's tokenizer.json from the tokenizer.* fields. Release with mlx_free.
mlx_status_t mlx_gguf_tokenizer_json(const mlx_gguf_t *gguf, char **out_json,
                                     size_t *out_length) MLX_MUST_USE;
// The ids of the end-of-sequence, end-of-turn and end-of-message tokens the file names. More than |capacity|
// is an error.
mlx_status_t mlx_gguf_eos_ids(const mlx_gguf_t *gguf, int32_t *out_ids, size_t capacity,
                              size_t *out_count) MLX_MUST_USE;

// gguf_split.c: a model, in one file or in parts.
typedef struct mlx_gguf_part {
  char *path;        // owned
  mlx_map_t map;     // owned
  mlx_gguf_t *file;  // owned
} mlx_gguf_part_t;

typedef struct mlx_gguf_model {
  mlx_gguf_part_t *parts;  // owned, in their order; the first has the fields
  size_t part_count;
  const mlx_tensor_t **tensors;  // owned: those of all parts, sorted by name; borrowed from the parts
  size_t tensor_count;
} mlx_gguf_model_t;

// Opens the model that |path| is, or is one part of: the others lie beside it. Takes over *|inout_map|, the
// bytes of |path|. Release with mlx_gguf_model_close.
mlx_status_t mlx_gguf_model_open(const char *path, mlx_map_t *inout_map,
                                 mlx_gguf_model_t **out_model) MLX_MUST_USE;
void mlx_gguf_model_close(mlx_gguf_model_t *model);  // NULL is fine

// The part of opening that needs no files: holds the parts, all parsed, against each other and makes the list
// of tensors. For fuzzing; mlx_gguf_model_open goes through it.
mlx_status_t mlx_gguf_model_join(mlx_gguf_model_t *model) MLX_MUST_USE;

#endif  // MLXCEL_MODELS_IMPORT_GGUF_H_
