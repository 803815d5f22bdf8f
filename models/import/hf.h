// A Hugging Face model directory: config.json, generation_config.json, and the weights in model.safetensors
// or in the shards that model.safetensors.index.json names. No code of the directory is ever run, and no name
// in it may leave it.
//
// Threads: immutable after open, so any number of threads may read.
#ifndef MLXCEL_MODELS_IMPORT_HF_H_
#define MLXCEL_MODELS_IMPORT_HF_H_

#include <stdint.h>

#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "models/import/safetensors.h"
#include "models/model.h"

typedef struct mlx_hf_shard {
  const char *name;         // file name; borrowed from the index, or a literal
  mlx_map_t map;            // owned
  mlx_safetensors_t *file;  // owned
} mlx_hf_shard_t;

typedef struct mlx_hf {
  char *folder;  // owned
  char **files;  // owned: every file that was read, with its folder
  size_t file_count, file_capacity;
  mlx_json_t config;         // owned; named by files[0]
  mlx_json_t generation;     // owned; root is NULL when there is none
  mlx_json_t index;          // owned; root is NULL when there are no shards
  const char *architecture;  // borrowed from config
  mlx_hf_shard_t *shards;    // owned
  size_t shard_count, shard_capacity;
  const mlx_tensor_t **tensors;  // owned: the model's tensors, sorted by name; borrowed from the shards
  size_t tensor_count;
} mlx_hf_t;

// Opens |folder|. Release with mlx_hf_close.
mlx_status_t mlx_hf_open(const char *folder, mlx_hf_t **out_hf) MLX_MUST_USE;
void mlx_hf_close(mlx_hf_t *hf);  // NULL is fine

// The parts that need no files: the two configs (|generation| may be NULL), and a weight map, whose tensors
// and shard names are checked for form. For tests and fuzzing; mlx_hf_open goes through the same code.
mlx_status_t mlx_hf_parse(const char *folder, const char *config, size_t config_length,
                          const char *generation, size_t generation_length, mlx_hf_t **out_hf) MLX_MUST_USE;
mlx_status_t mlx_hf_check_index(const mlx_json_t *index) MLX_MUST_USE;

// |key| in config.json, where a dot descends; NULL when it is missing or null.
yyjson_val *mlx_hf_find(const mlx_hf_t *hf, const char *key);
const mlx_tensor_t *mlx_hf_tensor(const mlx_hf_t *hf, const char *name);
// hf_packing.c: with the contract of mlx_source_packing in models/model.h.
mlx_status_t mlx_hf_packing(const mlx_hf_t *hf, const char *name, int64_t stack, int64_t rows,
                            int64_t columns, mlx_packing_t *out_packing) MLX_MUST_USE;

// Typed scalars, with the contract of mlx_source_int and its family in models/model.h.
mlx_status_t mlx_hf_int(const mlx_hf_t *hf, const char *key, int64_t min, int64_t max, int64_t *out,
                        bool *out_found) MLX_MUST_USE;
mlx_status_t mlx_hf_number(const mlx_hf_t *hf, const char *key, double *out, bool *out_found) MLX_MUST_USE;
mlx_status_t mlx_hf_bool(const mlx_hf_t *hf, const char *key, bool *out, bool *out_found) MLX_MUST_USE;
mlx_status_t mlx_hf_string(const mlx_hf_t *hf, const char *key, const char **out,
                           bool *out_found) MLX_MUST_USE;

// The token ids that end a text: generation_config.json's, else config.json's. More than |capacity| is an
// error.
mlx_status_t mlx_hf_eos_ids(const mlx_hf_t *hf, int32_t *out_ids, size_t capacity,
                            size_t *out_count) MLX_MUST_USE;
mlx_status_t mlx_hf_tokenizer_json(const mlx_hf_t *hf, char **out_json, size_t *out_length) MLX_MUST_USE;

#endif  // MLXCEL_MODELS_IMPORT_HF_H_
