// Reads modules.json and the files of its modules, as sentence-transformers does.
#include "models/import/sentence.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "models/import/classifier.h"
#include "models/import/hf.h"
#include "models/import/side_file.h"

static bool is_true(yyjson_val *object, const char *key) {
  return yyjson_is_true(yyjson_obj_get(object, key));
}

// ----------------------------------------------------------------------------------------------------------
// Pooling

static const struct {
  const char *flag, *name;  // of older files, and of pooling_mode in newer ones
  int pooling;              // -1: not supported
} poolings[] = {{"pooling_mode_cls_token", "cls", MLX_POOL_CLS},
                {"pooling_mode_mean_tokens", "mean", MLX_POOL_MEAN},
                {"pooling_mode_max_tokens", "max", MLX_POOL_MAX},
                {"pooling_mode_lasttoken", "lasttoken", MLX_POOL_LAST},
                {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", -1},
                {"pooling_mode_weightedmean_tokens", "weightedmean", -1}};

static mlx_status_t read_pooling(const mlx_json_t *json, mlx_sentence_t *out) {
  const char *mode = yyjson_get_str(yyjson_obj_get(json->root, "pooling_mode"));
  int found = 0;
  out->skips_prompts = yyjson_is_false(yyjson_obj_get(json->root, "include_prompt"));
  for (size_t i = 0; i < sizeof poolings / sizeof *poolings; ++i) {
    if (mode ? strcmp(mode, poolings[i].name) != 0 : !is_true(json->root, poolings[i].flag)) continue;
    if (poolings[i].pooling < 0)
      return mlx_json_error(json, poolings[i].flag, "is true, which is not supported");
    out->pooling = (mlx_pooling_t)poolings[i].pooling;
    ++found;
  }
  if (found == 1) return NULL;
  return mlx_json_error(json, "pooling_mode", "must be one of cls, mean, max and lasttoken");
}

// Reads config.json of a module's folder with |read|.
static mlx_status_t read_folder(const mlx_source_t *source, const char *folder,
                                mlx_status_t (*read)(const mlx_json_t *json, mlx_sentence_t *out),
                                mlx_sentence_t *out) {
  mlx_side_file_t file;
  mlx_status_t status = mlx_side_file_read(source, folder, "config.json", &file);
  if (!status && !file.json.root) status = mlx_error(MLX_NOT_FOUND, "%s is missing", file.path);
  if (!status) status = read(&file.json, out);
  mlx_side_file_close(&file);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// The other files

static mlx_status_t read_limit(const mlx_json_t *json, mlx_sentence_t *out) {
  if (mlx_json_find(json->root, "max_seq_length"))
    MLX_TRY(mlx_json_int(json, json->root, "max_seq_length", 1, 1 << 30, &out->max_tokens));
  if (!is_true(json->root, "do_lower_case")) return NULL;
  return mlx_json_error(json, "do_lower_case", "is true; only the tokenizer can lowercase texts");
}

static mlx_status_t read_limits(const mlx_source_t *source, mlx_sentence_t *out) {
  static const char *const names[] = {"sentence_bert_config.json", "sentence_roberta_config.json",
                                      "sentence_distilbert_config.json", "sentence_xlm-roberta_config.json",
                                      "sentence_mpnet_config.json"};
  mlx_status_t status = NULL;
  bool found = false;
  for (size_t i = 0; i < sizeof names / sizeof *names && !status && !found; ++i) {
    mlx_side_file_t file;
    status = mlx_side_file_read(source, "", names[i], &file);
    found = file.json.root;
    if (!status && found) status = read_limit(&file.json, out);
    mlx_side_file_close(&file);
  }
  return status;
}

static mlx_status_t add_prompt(const mlx_json_t *json, const char *name, const char *text,
                               mlx_sentence_t *out) {
  if (out->prompt_count == MLX_MODEL_PROMPTS)
    return mlx_json_error(json, "prompts", "has more prompts than the 32 supported");
  if (strlen(name) >= MLX_MAX_PROMPT_NAME || strlen(text) >= MLX_MAX_PROMPT)
    return mlx_json_error(json, "prompts", "has a prompt or a name that is too long");
  mlx_named_prompt_t *prompt = &out->prompts[out->prompt_count++];
  snprintf(prompt->name, sizeof prompt->name, "%s", name);
  snprintf(prompt->text, sizeof prompt->text, "%s", text);
  return NULL;
}

// As in sentence-transformers, the default is a name of |prompts|.
static mlx_status_t read_default(const mlx_json_t *json, mlx_sentence_t *out) {
  const char *name;
  MLX_TRY(mlx_json_string_or(json, json->root, "default_prompt_name", NULL, &name));
  if (!name) return NULL;
  for (size_t i = 0; i < out->prompt_count; ++i) {
    if (strcmp(out->prompts[i].name, name)) continue;
    snprintf(out->default_prompt, sizeof out->default_prompt, "%s", name);
    return NULL;
  }
  return mlx_json_error(json, "default_prompt_name", "is not a name in 'prompts'");
}

static mlx_status_t read_similarity(const mlx_json_t *json, mlx_sentence_t *out) {
  static const char *const names[] = {"cosine", "dot", "euclidean", "manhattan"};
  const char *name;
  MLX_TRY(mlx_json_string_or(json, json->root, "similarity_fn_name", NULL, &name));
  for (size_t i = 0; name && i < sizeof names / sizeof *names; ++i)
    if (!strcmp(names[i], name)) snprintf(out->similarity, sizeof out->similarity, "%s", name);
  if (!name || out->similarity[0]) return NULL;
  return mlx_json_error(json, "similarity_fn_name", "must be cosine, dot, euclidean or manhattan");
}

static mlx_status_t read_texts(const mlx_json_t *json, mlx_sentence_t *out) {
  yyjson_val *name, *prompts = mlx_json_find(json->root, "prompts");
  size_t index, count;
  yyjson_val *text;
  if (!yyjson_is_obj(json->root)) return NULL;
  yyjson_obj_foreach(prompts, index, count, name, text) {
    if (yyjson_is_str(text)) MLX_TRY(add_prompt(json, yyjson_get_str(name), yyjson_get_str(text), out));
  }
  MLX_TRY(read_default(json, out));
  return read_similarity(json, out);
}

// The first and the last token do not depend on which tokens are pooled.
static mlx_status_t check_prompts(const mlx_source_t *source, const mlx_sentence_t *s) {
  if (!s->skips_prompts || s->pooling == MLX_POOL_LAST || s->pooling == MLX_POOL_CLS) return NULL;
  return mlx_error(MLX_UNSUPPORTED, "%s: include_prompt of the pooling is false, which is not supported",
                   mlx_source_path(source));
}

static mlx_status_t read_prompts(const mlx_source_t *source, mlx_sentence_t *out) {
  mlx_side_file_t file;
  bool has_prompt = false;
  mlx_status_t status = mlx_side_file_read(source, "", "config_sentence_transformers.json", &file);
  if (!status && file.json.root) status = read_texts(&file.json, out);
  for (size_t i = 0; i < out->prompt_count; ++i) has_prompt |= out->prompts[i].text[0] != 0;
  if (!status && has_prompt) status = check_prompts(source, out);
  mlx_side_file_close(&file);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Modules

// A class of torch.nn. Without one it is sentence-transformers' default.
static mlx_status_t read_dense_act(const mlx_json_t *json, mlx_dense_act_t *out) {
  static const struct {
    const char *class_name;
    mlx_dense_act_t act;
  } acts[] = {{"Identity", MLX_DENSE_NO_ACT},
              {"Tanh", MLX_DENSE_TANH},
              {"GELU", MLX_DENSE_GELU},
              {"ReLU", MLX_DENSE_RELU},
              {"SiLU", MLX_DENSE_SILU}};
  const char *name, *dot;
  MLX_TRY(
      mlx_json_string_or(json, json->root, "activation_function", "torch.nn.modules.activation.Tanh", &name));
  dot = strrchr(name, '.');
  for (size_t i = 0; i < sizeof acts / sizeof *acts; ++i) {
    if (strcmp(dot ? dot + 1 : name, acts[i].class_name)) continue;
    *out = acts[i].act;
    return NULL;
  }
  return mlx_json_error(json, "activation_function", "must be Identity, Tanh, GELU, ReLU or SiLU");
}

// A Dense module. Its weights are among the tensors (models/import/hf_modules.c).
static mlx_status_t read_dense(const mlx_json_t *json, mlx_sentence_t *out) {
  yyjson_val *bias = mlx_json_find(json->root, "bias");
  const char *input = yyjson_get_str(yyjson_obj_get(json->root, "module_input_name"));
  const char *output = yyjson_get_str(yyjson_obj_get(json->root, "module_output_name"));
  if (out->dense_count == MLX_MAX_DENSE)
    return mlx_error(MLX_UNSUPPORTED, "%s: is one dense layer more than the %d supported", json->name,
                     MLX_MAX_DENSE);
  mlx_dense_t *dense = &out->dense[out->dense_count++];
  MLX_TRY(read_dense_act(json, &dense->act));
  if (bias && !yyjson_is_bool(bias)) return mlx_json_error(json, "bias", "must be true or false");
  dense->bias = !bias || yyjson_get_bool(bias);
  if (is_true(json->root, "use_residual"))
    return mlx_json_error(json, "use_residual", "is true, which is not supported");
  if ((input && strcmp(input, "sentence_embedding")) || (output && strcmp(output, "sentence_embedding")))
    return mlx_json_error(json, "module_input_name", "and the output must be sentence_embedding");
  return mlx_json_int(json, json->root, "out_features", 1, 1 << 20, &dense->width);
}

static mlx_status_t read_module(const mlx_source_t *source, const mlx_json_t *json, yyjson_val *module,
                                mlx_sentence_t *out) {
  const char *name = mlx_hf_module_class(module), *path = yyjson_get_str(yyjson_obj_get(module, "path"));
  if (!strcmp(name, "Transformer") && path && !path[0]) return NULL;
  if (!strcmp(name, "Normalize")) {
    out->normalize = true;
    return NULL;
  }
  const bool is_folder = mlx_hf_is_module_folder(path);
  if (!strcmp(name, "Pooling") && is_folder && !out->dense_count && !out->normalize)
    return read_folder(source, path, read_pooling, out);
  if (!strcmp(name, "Dense") && is_folder && !out->normalize)
    return read_folder(source, path, read_dense, out);
  if (!strcmp(name, "LogitScore")) return NULL;  // models/import/classifier.c reads it
  return mlx_status_hint(
      mlx_json_error(json, "type", "names a module that is not supported here"),
      "supported modules, in this order: Transformer (in the folder itself), Pooling, Dense, "
      "Normalize");
}

static mlx_status_t read_modules(const mlx_source_t *source, const mlx_json_t *json, mlx_sentence_t *out) {
  yyjson_val *module;
  size_t index, count;
  out->found = true;
  out->normalize = false;
  if (!yyjson_is_arr(json->root)) return mlx_error(MLX_INVALID_INPUT, "%s: must be a list", json->name);
  yyjson_arr_foreach(json->root, index, count, module) MLX_TRY(read_module(source, json, module, out));
  MLX_TRY(read_limits(source, out));
  return read_prompts(source, out);
}

// GGUF has the numbers of the modules in the names of its layers.
static mlx_status_t read_gguf_dense(const mlx_source_t *source, mlx_sentence_t *out) {
  static const char *const keys[][2] = {{".dense_2_feat_in", ".dense_2_feat_out"},
                                        {".dense_3_feat_in", ".dense_3_feat_out"}};
  int64_t ignored;
  bool found;
  for (int i = 0; i < MLX_MAX_DENSE; ++i) {
    MLX_TRY(mlx_source_int(source, NULL, keys[i][0], 1, 1 << 20, &ignored, &found));  // the tensor shows it
    MLX_TRY(mlx_source_int(source, NULL, keys[i][1], 1, 1 << 20, &out->dense[i].width, &found));
    if (!found) return NULL;
    out->dense_count = (size_t)i + 1;
  }
  return NULL;
}

static mlx_status_t read_gguf(const mlx_source_t *source, mlx_sentence_t *out) {
  static const mlx_pooling_t types[] = {MLX_POOL_MEAN, MLX_POOL_MEAN, MLX_POOL_CLS, MLX_POOL_LAST};
  int64_t type = 0;
  MLX_TRY(mlx_source_int(source, NULL, ".pooling_type", 0, MLX_GGUF_RANK, &type, &out->found));
  if (type == MLX_GGUF_RANK) return NULL;  // a classifier
  if (out->found && !type)
    return mlx_source_field_error(source, NULL, ".pooling_type", MLX_UNSUPPORTED,
                                  "is 0: the model has no pooling, so a text has no single vector");
  out->pooling = types[type];
  return read_gguf_dense(source, out);
}

mlx_status_t mlx_sentence_read(const mlx_source_t *source, mlx_sentence_t *out) {
  mlx_side_file_t file;
  *out = (mlx_sentence_t){.pooling = MLX_POOL_MEAN, .normalize = true};
  if (mlx_source_is_gguf(source)) return read_gguf(source, out);
  mlx_status_t status = mlx_side_file_read(source, "", "modules.json", &file);
  if (!status && file.json.root) status = read_modules(source, &file.json, out);
  mlx_side_file_close(&file);
  return status;
}
