// Ollama's lists of models.
#include <string.h>

#include "base/digest.h"
#include "base/json.h"
#include "base/memory.h"
#include "server/api/fields.h"
#include "server/api/ollama.h"
#include "server/api/ollama_text.h"

static void put_details(mlx_json_writer_t *json, const mlx_ollama_model_t *model) {
  mlx_json_begin_object(json, "details", MLX_JSON_COMPACT);
  mlx_json_put_text(json, "parent_model", "");
  mlx_ollama_put_text(json, "format", model->format);
  mlx_ollama_put_text(json, "family", model->family);
  mlx_json_begin_list(json, "families", MLX_JSON_COMPACT);
  mlx_ollama_put_text(json, NULL, model->family);
  mlx_json_end(json);
  mlx_ollama_put_text(json, "parameter_size", model->parameter_size);
  mlx_ollama_put_text(json, "quantization_level", model->quantization);
  mlx_json_end(json);
}

// Clients show the first 12 digits, so that an empty digest is an error in some of them. Models have no
// digest of their own: hashing their weights would take too long.
static void put_digest(mlx_json_writer_t *json, const mlx_ollama_model_t *model) {
  const uint64_t size = model->size;
  const int64_t modified = model->modified;
  char hex[MLX_DIGEST_HEX];
  mlx_digest_t digest;
  mlx_digest_begin(&digest);
  mlx_digest_field(&digest, "name", model->name, strlen(model->name));
  mlx_digest_field(&digest, "size", &size, sizeof size);
  mlx_digest_field(&digest, "modified", &modified, sizeof modified);
  mlx_digest_end(&digest, hex);
  mlx_json_put_text(json, "digest", hex);
}

// The members that all lists have.
static void put_model(mlx_json_writer_t *json, const mlx_ollama_model_t *model) {
  mlx_ollama_put_text(json, "name", model->name);
  mlx_ollama_put_text(json, "model", model->name);
  mlx_json_put_uint(json, "size", model->size);
  put_digest(json, model);
  put_details(json, model);
}

void mlx_ollama_write_tags(const mlx_ollama_model_t *models, size_t count, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_begin_list(&json, "models", MLX_JSON_COMPACT);
  for (size_t i = 0; i < count; ++i) {
    mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
    put_model(&json, &models[i]);
    mlx_ollama_put_time(&json, "modified_at", models[i].modified);
    mlx_json_end(&json);
  }
  mlx_json_end(&json);
  mlx_json_end(&json);
}

void mlx_ollama_write_ps(const mlx_ollama_model_t *models, size_t count, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_begin_list(&json, "models", MLX_JSON_COMPACT);
  for (size_t i = 0; i < count; ++i) {
    if (!models[i].is_loaded) continue;
    mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
    put_model(&json, &models[i]);
    if (models[i].expires)
      mlx_ollama_put_time(&json, "expires_at", models[i].expires);
    else  // the latest time that Go and Python can read
      mlx_json_put_text(&json, "expires_at", "9999-12-31T23:59:59Z");
    mlx_json_put_uint(&json, "size_vram", models[i].size_vram);
    mlx_json_put_int(&json, "context_length", models[i].context);
    mlx_json_end(&json);
  }
  mlx_json_end(&json);
  mlx_json_end(&json);
}

static void put_model_info(mlx_json_writer_t *json, const mlx_ollama_model_t *model) {
  const char *family = model->family ? model->family : "unknown";
  mlx_text_t key = {0};
  mlx_json_begin_object(json, "model_info", MLX_JSON_COMPACT);
  mlx_json_put_text(json, "general.architecture", family);
  if (model->parameter_count) mlx_json_put_uint(json, "general.parameter_count", model->parameter_count);
  mlx_text_printf(&key, "%s.context_length", family);
  if (model->context && key.data) mlx_json_put_int(json, key.data, model->context);
  json->out->failed |= key.failed;
  mlx_text_clear(&key);
  mlx_json_end(json);
}

void mlx_ollama_write_show(const mlx_ollama_model_t *model, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "modelfile", "");
  mlx_json_put_text(&json, "parameters", "");
  mlx_json_put_text(&json, "license", "");
  mlx_ollama_put_text(&json, "template", model->template_source);
  put_details(&json, model);
  put_model_info(&json, model);
  mlx_json_begin_list(&json, "capabilities", MLX_JSON_COMPACT);
  mlx_json_put_text(&json, NULL, model->is_encoder ? "embedding" : "completion");
  if (model->has_tools) mlx_json_put_text(&json, NULL, "tools");
  if (model->has_thinking) mlx_json_put_text(&json, NULL, "thinking");
  mlx_json_end(&json);
  mlx_ollama_put_time(&json, "modified_at", model->modified);
  mlx_json_end(&json);
}

void mlx_ollama_write_version(const char *version, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_ollama_put_text(&json, "version", version);
  mlx_json_end(&json);
}

// Go clients send every field of their struct, most of them empty.
mlx_status_t mlx_ollama_parse_show(const char *body, size_t length, mlx_text_t *unknown, char **out_model) {
  static const mlx_field_t fields[] = {MLX_READ("model"),
                                       MLX_READ("name"),
                                       MLX_IGNORE("verbose", "there is one form of the answer"),
                                       MLX_IGNORE("system", "the answer describes the model as it is"),
                                       MLX_IGNORE("template", "the answer describes the model as it is"),
                                       MLX_IGNORE("options", "the answer describes the model as it is"),
                                       MLX_FIELDS_END};
  const char *model = "", *name = "";
  yyjson_doc *doc;
  *out_model = NULL;
  MLX_TRY(mlx_fields_parse(body, length, &doc));
  const mlx_place_t root = mlx_place_root(doc, unknown), place = mlx_place_key(&root, "model");
  mlx_status_t status = mlx_fields_check(&root, fields, false);
  if (!status) status = mlx_field_text(&root, "name", &name);
  if (!status) status = mlx_field_text(&root, "model", &model);
  if (!*model) model = name;
  if (!status && !*model) status = mlx_field_error(&place, MLX_INVALID_INPUT, "missing; it is required");
  if (!status) status = mlx_copy_text(model, strlen(model), out_model);
  yyjson_doc_free(doc);
  return status;
}
