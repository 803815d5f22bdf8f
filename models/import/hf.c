// Opens a Hugging Face model directory and reads its JSON fields; see hf.h.
#include "models/import/hf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/budget.h"
#include "base/memory.h"
#include "models/import/encoder.h"
#include "models/import/hf_vocab.h"
#include "models/import/name.h"

#define MAX_CONFIG ((size_t)16 << 20)
#define MAX_INDEX ((size_t)100 << 20)
#define MAX_TOKENIZER ((size_t)256 << 20)
#define MAX_SHARDS 4096

#define CONFIG_NAME "config.json"
#define GENERATION_NAME "generation_config.json"
#define TOKENIZER_NAME "tokenizer.json"
#define TOKENIZER_CONFIG_NAME "tokenizer_config.json"
#define WEIGHTS_NAME "model.safetensors"
#define INDEX_NAME "model.safetensors.index.json"

// ----------------------------------------------------------------------------------------------------------
// Files of the folder

// Joins folder and |name| and adds the path to the list of files that were read.
static mlx_status_t add_file(mlx_hf_t *hf, const char *name, const char **out_path) {
  MLX_TRY(mlx_reserve(hf->file_count + 1, sizeof *hf->files, &hf->file_capacity, &hf->files));
  MLX_TRY(mlx_join_path(hf->folder, name, &hf->files[hf->file_count]));
  *out_path = hf->files[hf->file_count++];
  return NULL;
}

static mlx_status_t has_file(const mlx_hf_t *hf, const char *name, bool *out_found) {
  char *path;
  MLX_TRY(mlx_join_path(hf->folder, name, &path));
  *out_found = mlx_is_file(path);
  mlx_free(path);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Configs

static mlx_status_t parse_config(mlx_hf_t *hf, const char *path, const char *bytes, size_t length) {
  MLX_TRY(mlx_json_parse_python(path, bytes, length, &hf->config));
  MLX_TRY(mlx_json_string(&hf->config, hf->config.root, "model_type", &hf->architecture));
  MLX_TRY(mlx_hf_select_text(hf));
  size_t name_length = strlen(hf->architecture);
  if (!name_length || !mlx_name_is_plain(hf->architecture, name_length))
    return mlx_json_error(&hf->config, "model_type", "must be a name");
  return mlx_encoder_refuse(hf->folder, hf->architecture);
}

static mlx_status_t no_config(const char *folder) {
  const char *ending = strrchr(folder, '.');
  mlx_status_t status =
      mlx_error(MLX_NOT_FOUND, "'%s' has no config.json: is it a Hugging Face model directory?", folder);
  if (!ending || strcmp(ending, ".gguf")) return status;
  return mlx_status_hint(status, "it is a folder: pass the path of the GGUF file in it");
}

static mlx_status_t read_configs(mlx_hf_t *hf) {
  const char *path;
  char *bytes;
  size_t length;
  bool found;
  MLX_TRY(add_file(hf, CONFIG_NAME, &path));
  mlx_status_t status = mlx_read_file(path, MAX_CONFIG, &bytes, &length);
  if (mlx_status_code(status) == MLX_NOT_FOUND) {
    mlx_status_free(status);
    return no_config(hf->folder);
  }
  MLX_TRY(status);
  status = parse_config(hf, path, bytes, length);
  mlx_free(bytes);
  if (!status) status = has_file(hf, GENERATION_NAME, &found);
  if (status || !found) return status;
  MLX_TRY(add_file(hf, GENERATION_NAME, &path));
  MLX_TRY(mlx_read_file(path, MAX_CONFIG, &bytes, &length));
  status = mlx_json_parse(path, bytes, length, &hf->generation);
  mlx_free(bytes);
  return status;
}

static mlx_status_t new_hf(const char *folder, mlx_hf_t **out_hf) {
  MLX_TRY(mlx_alloc(1, sizeof **out_hf, out_hf));
  return mlx_copy_text(folder, strlen(folder), &(*out_hf)->folder);
}

mlx_status_t mlx_hf_parse(const char *folder, const char *config, size_t config_length,
                          const char *generation, size_t generation_length, mlx_hf_t **out_hf) {
  *out_hf = NULL;
  mlx_hf_t *hf = NULL;
  const char *path;
  mlx_status_t status = new_hf(folder, &hf);
  if (!status) status = add_file(hf, CONFIG_NAME, &path);
  if (!status) status = parse_config(hf, path, config, config_length);
  if (!status && generation) status = add_file(hf, GENERATION_NAME, &path);
  if (!status && generation) status = mlx_json_parse(path, generation, generation_length, &hf->generation);
  if (status) {
    mlx_hf_close(hf);
    return status;
  }
  *out_hf = hf;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Weights

mlx_status_t mlx_hf_open_shard(mlx_hf_t *hf, const char *name, mlx_hf_shard_t **out_shard) {
  const char *path;
  if (hf->shard_count == MAX_SHARDS) {
    return mlx_error(MLX_UNSUPPORTED, "'%s' has more than %d weight files", hf->folder, MAX_SHARDS);
  }
  MLX_TRY(mlx_reserve(hf->shard_count + 1, sizeof *hf->shards, &hf->shard_capacity, &hf->shards));
  MLX_TRY(add_file(hf, name, &path));
  mlx_hf_shard_t *shard = &hf->shards[hf->shard_count++];
  *shard = (mlx_hf_shard_t){.name = name};
  MLX_TRY(mlx_map_file(path, &shard->map));
  *out_shard = shard;
  return mlx_safetensors_parse(path, shard->map.data, shard->map.size, &shard->file);
}

// Finds or opens the shard |name|. Tensors are grouped by shard, so the search starts at the last one.
static mlx_status_t find_shard(mlx_hf_t *hf, const char *name, mlx_budget_t *budget,
                               mlx_hf_shard_t **out_shard) {
  for (size_t i = hf->shard_count; i-- > 0;) {
    MLX_TRY(mlx_budget_step(budget, 1));
    if (strcmp(hf->shards[i].name, name)) continue;
    *out_shard = &hf->shards[i];
    return NULL;
  }
  return mlx_status_hint(mlx_hf_open_shard(hf, name, out_shard),
                         "the download may be incomplete: download this file, which " INDEX_NAME " lists");
}

static mlx_status_t open_single(mlx_hf_t *hf) {
  mlx_hf_shard_t *shard;
  MLX_TRY(mlx_hf_open_shard(hf, WEIGHTS_NAME, &shard));
  MLX_TRY(mlx_alloc(shard->file->tensor_count, sizeof *hf->tensors, &hf->tensors));
  for (size_t i = 0; i < shard->file->tensor_count; ++i) hf->tensors[i] = &shard->file->tensors[i];
  hf->tensor_count = shard->file->tensor_count;
  return NULL;
}

// A shard must be in the folder of the index. Names that could point elsewhere are refused.
static bool is_file_name(yyjson_val *value) {
  const char *name = yyjson_get_str(value);
  if (!name || !name[0] || strlen(name) > 255 || strpbrk(name, "/\\") || strstr(name, "..")) return false;
  return strcmp(name, ".") && mlx_name_is_plain(name, yyjson_get_len(value));
}

mlx_status_t mlx_hf_check_index(const mlx_json_t *index) {
  yyjson_val *map, *key, *value;
  size_t i, count;
  MLX_TRY(mlx_json_need(index, index->root, "weight_map", &map));
  if (!yyjson_is_obj(map) || !yyjson_obj_size(map))
    return mlx_json_error(index, "weight_map", "must be an object with tensors");
  yyjson_obj_foreach(map, i, count, key, value) {
    if (!mlx_name_is_plain(yyjson_get_str(key), yyjson_get_len(key))) {
      return mlx_json_error(index, "weight_map", "has a tensor name with control characters");
    }
    if (is_file_name(value)) continue;
    return mlx_error(MLX_INVALID_INPUT,
                     "%s: field 'weight_map': tensor '%s' must name a file in the same folder", index->name,
                     yyjson_get_str(key));
  }
  return NULL;
}

// Every tensor of the weight map must be in its shard. Tensors outside the map are ignored, as in Hugging
// Face.
static mlx_status_t open_sharded(mlx_hf_t *hf) {
  yyjson_val *map = mlx_json_find(hf->index.root, "weight_map"), *key, *value;
  size_t i, count;
  mlx_hf_shard_t *shard;
  mlx_budget_t budget;
  mlx_budget_begin_file(&budget, hf->index.name, yyjson_doc_get_read_size(hf->index.doc));
  MLX_TRY(mlx_hf_check_index(&hf->index));
  MLX_TRY(mlx_alloc(yyjson_obj_size(map), sizeof *hf->tensors, &hf->tensors));
  yyjson_obj_foreach(map, i, count, key, value) {
    const char *name = yyjson_get_str(key);
    MLX_TRY(find_shard(hf, yyjson_get_str(value), &budget, &shard));
    hf->tensors[i] = mlx_safetensors_tensor(shard->file, name);
    if (!hf->tensors[i]) {
      return mlx_error(MLX_INVALID_INPUT, "%s: tensor '%s' is not in '%s', where the index lists it",
                       hf->index.name, name, shard->name);
    }
  }
  hf->tensor_count = count;
  qsort(hf->tensors, hf->tensor_count, sizeof *hf->tensors, mlx_tensor_compare);
  return NULL;
}

static mlx_status_t read_index(mlx_hf_t *hf) {
  const char *path;
  char *bytes;
  size_t length;
  MLX_TRY(add_file(hf, INDEX_NAME, &path));
  MLX_TRY(mlx_read_file(path, MAX_INDEX, &bytes, &length));
  mlx_status_t status = mlx_json_parse(path, bytes, length, &hf->index);
  mlx_free(bytes);
  return status;
}

static mlx_status_t no_weights(const mlx_hf_t *hf) {
  bool single, sharded;
  MLX_TRY(has_file(hf, "pytorch_model.bin", &single));
  MLX_TRY(has_file(hf, "pytorch_model.bin.index.json", &sharded));
  mlx_status_t status =
      mlx_error(MLX_NOT_FOUND, "'%s' has neither " WEIGHTS_NAME " nor " INDEX_NAME, hf->folder);
  return mlx_status_hint(
      status, single || sharded
                  ? "its weights are pickled PyTorch files, which can run code: convert them to safetensors"
                  : "the download may be incomplete: download the weights too");
}

// If both exist, the single file wins, as in Hugging Face.
static mlx_status_t open_weights(mlx_hf_t *hf) {
  bool found;
  MLX_TRY(has_file(hf, WEIGHTS_NAME, &found));
  if (found) return open_single(hf);
  MLX_TRY(has_file(hf, INDEX_NAME, &found));
  if (!found) return no_weights(hf);
  MLX_TRY(read_index(hf));
  return open_sharded(hf);
}

// ----------------------------------------------------------------------------------------------------------
// The directory

static mlx_status_t open_into(mlx_hf_t *hf) {
  const char *path;
  bool found;
  MLX_TRY(read_configs(hf));
  MLX_TRY(has_file(hf, TOKENIZER_NAME, &found));
  if (found) MLX_TRY(add_file(hf, TOKENIZER_NAME, &path));
  MLX_TRY(open_weights(hf));
  return mlx_hf_select_text_tensors(hf);
}

mlx_status_t mlx_hf_open(const char *folder, mlx_hf_t **out_hf) {
  *out_hf = NULL;
  mlx_hf_t *hf = NULL;
  mlx_status_t status = new_hf(folder, &hf);
  if (!status) status = open_into(hf);
  if (status) {
    mlx_hf_close(hf);
    return status;
  }
  *out_hf = hf;
  return NULL;
}

void mlx_hf_close(mlx_hf_t *hf) {
  if (!hf) return;
  for (size_t i = 0; i < hf->shard_count; ++i) {
    mlx_safetensors_close(hf->shards[i].file);
    mlx_unmap(&hf->shards[i].map);
  }
  mlx_json_close(&hf->config);
  mlx_json_close(&hf->generation);
  mlx_json_close(&hf->index);
  mlx_json_close(&hf->defaults);
  for (size_t i = 0; i < hf->name_count; ++i) mlx_free(hf->names[i]);
  mlx_free(hf->names);
  for (size_t i = 0; i < hf->module_tensor_count; ++i) mlx_free(hf->module_tensors[i].name);
  mlx_free(hf->renamed);
  mlx_free(hf->skipped);
  for (size_t i = 0; i < hf->file_count; ++i) mlx_free(hf->files[i]);
  mlx_free(hf->files);
  mlx_free(hf->shards);
  mlx_free(hf->tensors);
  mlx_free(hf->folder);
  mlx_free(hf);
}

const mlx_tensor_t *mlx_hf_tensor(const mlx_hf_t *hf, const char *name) {
  return mlx_tensor_find(hf->tensors, hf->tensor_count, name);
}

mlx_status_t mlx_hf_tokenizer_path(const mlx_hf_t *hf, char **out_path) {
  return mlx_join_path(hf->folder, TOKENIZER_NAME, out_path);
}

// The tokenizer of the directory's vocab.txt and tokenizer_config.json.
static mlx_status_t read_vocabulary(const mlx_hf_t *hf, char **out_json, size_t *out_length) {
  mlx_json_t config = {0};
  char *path = NULL, *settings = NULL, *text = NULL, *bytes = NULL;
  size_t length, config_length;
  mlx_status_t status = mlx_join_path(hf->folder, MLX_VOCAB_NAME, &path);
  if (!status) status = mlx_read_file(path, MAX_TOKENIZER, &text, &length);
  if (!status) status = mlx_join_path(hf->folder, TOKENIZER_CONFIG_NAME, &settings);
  if (!status && mlx_is_file(settings)) {
    status = mlx_read_file(settings, MAX_TOKENIZER, &bytes, &config_length);
    if (!status) status = mlx_json_parse_any(settings, bytes, config_length, &config);
  }
  if (!status) status = mlx_hf_vocab_tokenizer(path, text, length, &config, out_json, out_length);
  mlx_json_close(&config);
  mlx_free(bytes);
  mlx_free(text);
  mlx_free(settings);
  mlx_free(path);
  return status;
}

mlx_status_t mlx_hf_tokenizer_json(const mlx_hf_t *hf, char **out_json, size_t *out_length) {
  char *path;
  *out_json = NULL;
  MLX_TRY(mlx_hf_tokenizer_path(hf, &path));
  mlx_status_t status = mlx_read_file(path, MAX_TOKENIZER, out_json, out_length);
  if (mlx_status_code(status) == MLX_NOT_FOUND) {
    mlx_status_free(status);
    status = read_vocabulary(hf, out_json, out_length);
  }
  if (mlx_status_code(status) == MLX_NOT_FOUND) {
    mlx_status_free(status);
    status =
        mlx_status_hint(mlx_error(MLX_NOT_FOUND, "'%s' has neither tokenizer.json nor vocab.txt", hf->folder),
                        "tokenizer.model and vocab.json are not supported: download tokenizer.json, or "
                        "create it with transformers");
  }
  mlx_free(path);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Fields

// The object that |key| is looked up in. A default applies only to a field that is missing, not to null.
static yyjson_val *object_of(const mlx_hf_t *hf, const char *key) {
  const size_t length = strcspn(key, ".");
  if (!strncmp(key, "quantization", 12)) return hf->config.root;
  return yyjson_obj_getn(hf->fields, key, length) ? hf->fields : hf->defaults.root;
}

yyjson_val *mlx_hf_find(const mlx_hf_t *hf, const char *key) {
  yyjson_val *value = object_of(hf, key);
  for (;;) {
    size_t length = strcspn(key, ".");
    value = yyjson_obj_getn(value, key, length);
    if (!key[length]) return yyjson_is_null(value) ? NULL : value;
    key += length + 1;
  }
}

static mlx_status_t find_field(const mlx_hf_t *hf, const char *key, yyjson_val **out_value, bool *out_found) {
  *out_value = mlx_hf_find(hf, key);
  if (out_found) *out_found = *out_value != NULL;
  return *out_value || out_found ? NULL : mlx_json_error(&hf->config, key, "is missing");
}

mlx_status_t mlx_hf_int(const mlx_hf_t *hf, const char *key, int64_t min, int64_t max, int64_t *out,
                        bool *out_found) {
  yyjson_val *value;
  MLX_TRY(find_field(hf, key, &value, out_found));
  return value ? mlx_json_check_int(&hf->config, value, key, min, max, out) : NULL;
}

mlx_status_t mlx_hf_number(const mlx_hf_t *hf, const char *key, double *out, bool *out_found) {
  yyjson_val *value;
  MLX_TRY(find_field(hf, key, &value, out_found));
  if (!value) return NULL;
  if (!yyjson_is_num(value)) return mlx_json_error(&hf->config, key, "must be a number");
  double number = yyjson_get_num(value);
  if (!isfinite(number)) return mlx_json_error(&hf->config, key, "must be finite");
  *out = number;
  return NULL;
}

mlx_status_t mlx_hf_bool(const mlx_hf_t *hf, const char *key, bool *out, bool *out_found) {
  yyjson_val *value;
  MLX_TRY(find_field(hf, key, &value, out_found));
  if (!value) return NULL;
  if (!yyjson_is_bool(value)) return mlx_json_error(&hf->config, key, "must be true or false");
  *out = yyjson_get_bool(value);
  return NULL;
}

mlx_status_t mlx_hf_string(const mlx_hf_t *hf, const char *key, const char **out, bool *out_found) {
  yyjson_val *value;
  MLX_TRY(find_field(hf, key, &value, out_found));
  if (!value) return NULL;
  if (!yyjson_is_str(value)) return mlx_json_error(&hf->config, key, "must be a string");
  if (strlen(yyjson_get_str(value)) != yyjson_get_len(value))
    return mlx_json_error(&hf->config, key, "contains a NUL character");
  *out = yyjson_get_str(value);
  return NULL;
}

static mlx_status_t add_eos(const mlx_json_t *json, yyjson_val *value, int32_t *ids, size_t capacity,
                            size_t *inout_count) {
  int64_t id = 0;
  MLX_TRY(mlx_json_check_int(json, value, "eos_token_id", 0, INT32_MAX, &id));
  for (size_t i = 0; i < *inout_count; ++i) {
    if (ids[i] == id) return NULL;
  }
  if (*inout_count == capacity) return mlx_json_error(json, "eos_token_id", "has too many ids");
  ids[(*inout_count)++] = (int32_t)id;
  return NULL;
}

mlx_status_t mlx_hf_eos_ids(const mlx_hf_t *hf, int32_t *out_ids, size_t capacity, size_t *out_count) {
  const mlx_json_t *json = &hf->generation;
  yyjson_val *ids = mlx_json_find(json->root, "eos_token_id"), *id;
  size_t index, max;
  *out_count = 0;
  if (!ids) {
    json = &hf->config;
    ids = mlx_json_find(json->root, "eos_token_id");
  }
  if (!ids) ids = mlx_json_find(hf->fields, "eos_token_id");
  if (!ids) return NULL;
  if (!yyjson_is_arr(ids)) return add_eos(json, ids, out_ids, capacity, out_count);
  yyjson_arr_foreach(ids, index, max, id) { MLX_TRY(add_eos(json, id, out_ids, capacity, out_count)); }
  return NULL;
}
