// A Hugging Face model directory: config.json, generation_config.json, and the weights in model.safetensors
// or in the shards that model.safetensors.index.json names. Code in the directory is never run, and shard
// names cannot point outside it.
//
// Threads: immutable after open, so any number of threads may read.
#ifndef MLXCEL_MODELS_IMPORT_HF_H_
#define MLXCEL_MODELS_IMPORT_HF_H_

#include <stdint.h>

#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "base/text.h"
#include "models/import/packing.h"
#include "models/import/safetensors.h"
#include "models/tensor.h"

typedef struct mlx_hf_shard {
  const char *name;         // file name; borrowed from the index, or a literal
  mlx_map_t map;            // owned
  mlx_safetensors_t *file;  // owned
} mlx_hf_shard_t;

#define MLX_HF_MODULE_TENSORS 8
#define MLX_HF_MODULE_NAME 64  // bytes of a module's folder name, with its NUL

typedef struct mlx_hf_module_tensor {
  char *name;           // owned
  mlx_tensor_t tensor;  // with this name
} mlx_hf_module_tensor_t;

typedef struct mlx_hf {
  char *folder;  // owned
  char **files;  // owned: the paths of all files that were read
  size_t file_count, file_capacity;
  mlx_json_t config;      // owned
  mlx_json_t generation;  // owned; root is NULL if the file does not exist
  mlx_json_t index;       // owned; root is NULL without shards
  const char
      *architecture;       // model_type of the model, for a multimodal directory of its text model; borrowed
  const char *multimodal;  // model_type of a multimodal directory, borrowed from config; NULL otherwise
  yyjson_val *fields;      // borrowed from config: the object with the fields of the (text) model
  mlx_json_t defaults;     // owned: fields that a text_config may omit; root is NULL if there are none
  mlx_hf_shard_t *shards;  // owned
  size_t shard_count, shard_capacity;
  const mlx_tensor_t **tensors;  // owned array: the model's tensors, sorted by name; borrowed from shards
  size_t tensor_count;
  // Only in a multimodal directory. |tensors| points into |renamed|.
  mlx_tensor_t *renamed;  // owned: the text model's tensors under the names of a text directory
  char **names;           // owned: the names of |renamed|; the last ones may be NULL
  const char **skipped;   // owned array: the stored names of all other tensors; borrowed from shards
  size_t name_count, skipped_count;
  mlx_hf_module_tensor_t module_tensors[MLX_HF_MODULE_TENSORS];  // also in |tensors|
  size_t module_tensor_count;
} mlx_hf_t;

// Opens |folder|. Release with mlx_hf_close.
mlx_status_t mlx_hf_open(const char *folder, mlx_hf_t **out_hf) MLX_MUST_USE;
void mlx_hf_close(mlx_hf_t *hf);  // NULL is fine

// The steps of opening that need no files: parsing the two configs (|generation| may be NULL), and checking
// the tensor and shard names of an index. Public for tests and fuzzing.
mlx_status_t mlx_hf_parse(const char *folder, const char *config, size_t config_length,
                          const char *generation, size_t generation_length, mlx_hf_t **out_hf) MLX_MUST_USE;
mlx_status_t mlx_hf_check_index(const mlx_json_t *index) MLX_MUST_USE;

// hf_text.c: the text model of a multimodal directory. The first function runs after config.json was parsed
// and sets |fields|, |architecture|, |multimodal| and |defaults|. The second one runs after the weights were
// opened: it renames the tensors of the text model and drops those of the vision encoder.
mlx_status_t mlx_hf_select_text(mlx_hf_t *hf) MLX_MUST_USE;
mlx_status_t mlx_hf_select_text_tensors(mlx_hf_t *hf) MLX_MUST_USE;
// Writes the name that the tensor |stored| of a multimodal directory has in a directory of its text model.
// False if the tensor belongs to the vision encoder.
bool mlx_hf_text_name(const char *stored, mlx_text_t *out_name);
// The defaults of a text_config with this model_type, as JSON; NULL if it has none. Public for tests.
const char *mlx_hf_text_defaults(const char *text_type);

// hf.c: opens the weights |name|, a path in the folder, which must live as long as the shard.
mlx_status_t mlx_hf_open_shard(mlx_hf_t *hf, const char *name, mlx_hf_shard_t **out_shard) MLX_MUST_USE;

// hf_modules.c: the modules of a sentence-transformers directory. The first function is called after
// mlx_hf_open: it adds the tensors of the modules of kind Dense as "dense.0.linear.weight", "dense.1...".
mlx_status_t mlx_hf_open_modules(mlx_hf_t *hf) MLX_MUST_USE;
// The last part of the Python name of an entry of modules.json: "Pooling" of
// "sentence_transformers.models.Pooling".
const char *mlx_hf_module_class(yyjson_val *module);
// Whether |name| is a folder in the model's folder: one plain name.
bool mlx_hf_is_module_folder(const char *name);

// |key| in config.json; a dot descends into an object. NULL if it is missing or null. In a multimodal
// directory |key| is one of the text model, except the keys of the quantization.
yyjson_val *mlx_hf_find(const mlx_hf_t *hf, const char *key);
const mlx_tensor_t *mlx_hf_tensor(const mlx_hf_t *hf, const char *name);
// hf_packing.c: implements mlx_source_packing of models/import/source.h.
mlx_status_t mlx_hf_packing(const mlx_hf_t *hf, const char *name, int64_t stack, int64_t rows,
                            int64_t columns, mlx_packing_t *out_packing) MLX_MUST_USE;

// Typed scalars. |out_found| works as in models/import/source.h.
mlx_status_t mlx_hf_int(const mlx_hf_t *hf, const char *key, int64_t min, int64_t max, int64_t *out,
                        bool *out_found) MLX_MUST_USE;
mlx_status_t mlx_hf_number(const mlx_hf_t *hf, const char *key, double *out, bool *out_found) MLX_MUST_USE;
mlx_status_t mlx_hf_bool(const mlx_hf_t *hf, const char *key, bool *out, bool *out_found) MLX_MUST_USE;
mlx_status_t mlx_hf_string(const mlx_hf_t *hf, const char *key, const char **out,
                           bool *out_found) MLX_MUST_USE;

// The ids of the end-of-text tokens, from generation_config.json, else from config.json. More than |capacity|
// ids are an error.
mlx_status_t mlx_hf_eos_ids(const mlx_hf_t *hf, int32_t *out_ids, size_t capacity,
                            size_t *out_count) MLX_MUST_USE;
// The text of tokenizer.json. Release with mlx_free.
mlx_status_t mlx_hf_tokenizer_path(const mlx_hf_t *hf, char **out_path) MLX_MUST_USE;
mlx_status_t mlx_hf_tokenizer_json(const mlx_hf_t *hf, char **out_json, size_t *out_length) MLX_MUST_USE;

#endif  // MLXCEL_MODELS_IMPORT_HF_H_
