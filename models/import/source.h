// An opened model on disk, Hugging Face directory or GGUF file: fields, tensors and tokenizer under the names
// of its format. Callers pass both names of a field or tensor; the source uses the one of its format.
//
// Threads: reading a field records that it was read, so one thread at a time may read fields. Any number of
// threads may read tensors.
#ifndef MLXCEL_MODELS_IMPORT_SOURCE_H_
#define MLXCEL_MODELS_IMPORT_SOURCE_H_

#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "base/status.h"
#include "models/import/packing.h"
#include "models/tensor.h"

typedef struct mlx_source mlx_source_t;

// Opens a Hugging Face directory (config.json, model.safetensors or its shards with their index,
// tokenizer.json, generation_config.json) or a GGUF file. A part of a split GGUF model opens the whole model:
// the other parts must be in the same folder. Maps the weights without reading them. Release with
// mlx_source_close.
mlx_status_t mlx_source_open(const char *path, mlx_source_t **out_source) MLX_MUST_USE;
void mlx_source_close(mlx_source_t *source);

bool mlx_source_is_gguf(const mlx_source_t *source);
const char *mlx_source_path(const mlx_source_t *source);  // as passed to open; "." and ".." are resolved
const char *mlx_source_architecture(const mlx_source_t *source);  // model_type or general.architecture
// model_type of a multimodal Hugging Face directory, of which only the text model is opened; else NULL.
const char *mlx_source_multimodal(const mlx_source_t *source);
// The names of its tensors that the text model does not use; NULL past the last one.
const char *mlx_source_skipped(const mlx_source_t *source, size_t index);
// The files that were read, for digests: config, tokenizer and weights. NULL past the last file.
const char *mlx_source_file(const mlx_source_t *source, size_t index);
// The name of that file in the model's folder, which may begin with a folder: "2_Dense/model.safetensors".
const char *mlx_source_file_name(const mlx_source_t *source, size_t index);

// ----------------------------------------------------------------------------------------------------------
// Fields

// |hf_key| is the key in config.json; a dot descends into an object ("rope_parameters.rope_theta").
// |gguf_key| is the key in the GGUF metadata; a leading dot stands for the architecture (".block_count" is
// "llama.block_count"). A NULL key means that this format does not have the field.
// |out_found| NULL makes the field required. Otherwise *out_found is set to whether the field exists; if it
// does not, *out is unchanged.
mlx_status_t mlx_source_int(const mlx_source_t *source, const char *hf_key, const char *gguf_key, int64_t min,
                            int64_t max, int64_t *out, bool *out_found) MLX_MUST_USE;
mlx_status_t mlx_source_number(const mlx_source_t *source, const char *hf_key, const char *gguf_key,
                               double *out, bool *out_found) MLX_MUST_USE;
mlx_status_t mlx_source_bool(const mlx_source_t *source, const char *hf_key, const char *gguf_key, bool *out,
                             bool *out_found) MLX_MUST_USE;
mlx_status_t mlx_source_string(const mlx_source_t *source, const char *hf_key, const char *gguf_key,
                               const char **out, bool *out_found) MLX_MUST_USE;

// Length of an array field, 0 if it is missing.
size_t mlx_source_array_length(const mlx_source_t *source, const char *hf_key, const char *gguf_key);
// One element of an array in config.json or GGUF metadata; the last one, in GGUF metadata only, is an integer
// or a bool.
mlx_status_t mlx_source_number_at(const mlx_source_t *source, const char *hf_key, const char *gguf_key,
                                  size_t index, double *out) MLX_MUST_USE;
// An element of an array that may be infinite; in config.json Infinity, or {"__float__": "Infinity"}.
mlx_status_t mlx_source_limit_at(const mlx_source_t *source, const char *hf_key, const char *gguf_key,
                                 size_t index, double *out) MLX_MUST_USE;
mlx_status_t mlx_source_string_at(const mlx_source_t *source, const char *hf_key, size_t index,
                                  const char **out) MLX_MUST_USE;
mlx_status_t mlx_source_int_at(const mlx_source_t *source, const char *gguf_key, size_t index,
                               int64_t *out) MLX_MUST_USE;

// True if the field exists, has any type and is not null.
bool mlx_source_has(const mlx_source_t *source, const char *hf_key, const char *gguf_key);
// True if config.json has the field, even as null; a dot descends into an object. Some Hugging Face classes
// treat null and missing differently.
bool mlx_source_mentions(const mlx_source_t *source, const char *hf_key);
// Refuses GGUF metadata with a field of the architecture that no function above has read and that could
// change the computation. Call it after reading the config.
mlx_status_t mlx_source_check_unread(const mlx_source_t *source) MLX_MUST_USE;
// The error "FILE: field 'KEY' MESSAGE", with the key of the source's format.
mlx_status_t mlx_source_field_error(const mlx_source_t *source, const char *hf_key, const char *gguf_key,
                                    mlx_code_t code, const char *fmt, ...) MLX_PRINTF(5, 6) MLX_MUST_USE;

// ----------------------------------------------------------------------------------------------------------
// Tensors

// The tensor with the name of the source's format, or NULL.
const mlx_tensor_t *mlx_source_tensor(const mlx_source_t *source, const char *hf_name, const char *gguf_name);
size_t mlx_source_tensor_count(const mlx_source_t *source);
const mlx_tensor_t *mlx_source_tensor_at(const mlx_source_t *source, size_t index);  // sorted by name
// How the matrix |hf_name| of shape [rows, columns] is quantized. |stack| matrices may share one name; 0
// means a single matrix. The kind is MLX_NOT_PACKED for a plain tensor, and always for GGUF, whose quantized
// types are dtypes. Unsupported config values and missing, misshapen or inconsistent parts are errors.
mlx_status_t mlx_source_packing(const mlx_source_t *source, const char *hf_name, int64_t stack, int64_t rows,
                                int64_t columns, mlx_packing_t *out_packing) MLX_MUST_USE;

// ----------------------------------------------------------------------------------------------------------
// Tokenizer, chat templates, licence

// Hugging Face's tokenizer.json: the file of the directory, or written from GGUF metadata. Release with
// mlx_free.
mlx_status_t mlx_source_tokenizer_json(const mlx_source_t *source, char **out_json,
                                       size_t *out_length) MLX_MUST_USE;
// The bytes that this text is made from: the first *|out_size| bytes of the file *|out_path|. Release the
// path with mlx_free. In a GGUF file they end with the last field.
mlx_status_t mlx_source_tokenizer_bytes(const mlx_source_t *source, char **out_path,
                                        uint64_t *out_size) MLX_MUST_USE;
// The chat templates and the special tokens they may use, as chat.json (format: runtime/chat.c).
// *|out_json| is NULL if the model has neither. Release with mlx_free.
mlx_status_t mlx_source_chat_json(const mlx_source_t *source, char **out_json,
                                  size_t *out_length) MLX_MUST_USE;
// Calls |visit| with the name of each file of the directory that mlx_source_chat_json reads. GGUF has none:
// the templates are inside the model file.
mlx_status_t mlx_source_chat_files(const mlx_source_t *source, mlx_visit_fn_t visit, void *user) MLX_MUST_USE;
// The ids of the end-of-text tokens: eos_token_id (an integer or a list) of generation_config.json or
// config.json; in GGUF the eos, eot and eom ids. More than |capacity| ids are an error.
mlx_status_t mlx_source_eos_ids(const mlx_source_t *source, int32_t *out_ids, size_t capacity,
                                size_t *out_count) MLX_MUST_USE;
// licence.c: the licence id that the model declares ("apache-2.0"), or "" if it declares none that fits.
mlx_status_t mlx_source_licence(const mlx_source_t *source, char *out, size_t size) MLX_MUST_USE;

#endif  // MLXCEL_MODELS_IMPORT_SOURCE_H_
