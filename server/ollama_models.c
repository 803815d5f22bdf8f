// Ollama's lists of models.
#include <string.h>

#include "base/digest.h"
#include "base/json.h"
#include "base/memory.h"
#include "server/api_ollama.h"
#include "server/fields.h"
#include "server/ollama_text.h"

static void put_details(const mlx_ollama_model_t *model, mlx_text_t *out) {
  mlx_text_puts(out, "{\"parent_model\":\"\",\"format\":");
  mlx_ollama_put_string(model->format, out);
  mlx_text_puts(out, ",\"family\":");
  mlx_ollama_put_string(model->family, out);
  mlx_text_puts(out, ",\"families\":[");
  mlx_ollama_put_string(model->family, out);
  mlx_text_puts(out, "],\"parameter_size\":");
  mlx_ollama_put_string(model->parameter_size, out);
  mlx_text_puts(out, ",\"quantization_level\":");
  mlx_ollama_put_string(model->quantization, out);
  mlx_text_puts(out, "}");
}

// Clients show the first 12 digits, so that an empty digest is an error in some of them. Models have no
// digest of their own: hashing their weights would take too long.
static void put_digest(const mlx_ollama_model_t *model, mlx_text_t *out) {
  const uint64_t size = model->size;
  const int64_t modified = model->modified;
  char hex[MLX_DIGEST_HEX];
  mlx_digest_t digest;
  mlx_digest_begin(&digest);
  mlx_digest_field(&digest, "name", model->name, strlen(model->name));
  mlx_digest_field(&digest, "size", &size, sizeof size);
  mlx_digest_field(&digest, "modified", &modified, sizeof modified);
  mlx_digest_end(&digest, hex);
  mlx_ollama_put_string(hex, out);
}

// The members that all lists have.
static void put_model(const mlx_ollama_model_t *model, mlx_text_t *out) {
  mlx_text_puts(out, "\"name\":");
  mlx_ollama_put_string(model->name, out);
  mlx_text_puts(out, ",\"model\":");
  mlx_ollama_put_string(model->name, out);
  mlx_text_printf(out, ",\"size\":%llu,\"digest\":", (unsigned long long)model->size);
  put_digest(model, out);
  mlx_text_puts(out, ",\"details\":");
  put_details(model, out);
}

void mlx_ollama_write_tags(const mlx_ollama_model_t *models, size_t count, mlx_text_t *out) {
  mlx_text_puts(out, "{\"models\":[");
  for (size_t i = 0; i < count; ++i) {
    mlx_text_puts(out, i ? ",{" : "{");
    put_model(&models[i], out);
    mlx_text_puts(out, ",\"modified_at\":");
    mlx_ollama_put_time(models[i].modified, out);
    mlx_text_puts(out, "}");
  }
  mlx_text_puts(out, "]}");
}

void mlx_ollama_write_ps(const mlx_ollama_model_t *models, size_t count, mlx_text_t *out) {
  const char *comma = "";
  mlx_text_puts(out, "{\"models\":[");
  for (size_t i = 0; i < count; ++i) {
    if (!models[i].is_loaded) continue;
    mlx_text_printf(out, "%s{", comma);
    comma = ",";
    put_model(&models[i], out);
    // The server keeps a model until it needs its memory: the latest time that Go and Python can read.
    mlx_text_printf(out,
                    ",\"expires_at\":\"9999-12-31T23:59:59Z\",\"size_vram\":%llu,\"context_length\":%lld}",
                    (unsigned long long)models[i].size_vram, (long long)models[i].context);
  }
  mlx_text_puts(out, "]}");
}

void mlx_ollama_write_show(const mlx_ollama_model_t *model, mlx_text_t *out) {
  const char *family = model->family ? model->family : "unknown";
  mlx_text_t key = {0};
  mlx_text_puts(out, "{\"modelfile\":\"\",\"parameters\":\"\",\"license\":\"\",\"template\":");
  mlx_ollama_put_string(model->template_source, out);
  mlx_text_puts(out, ",\"details\":");
  put_details(model, out);
  mlx_text_puts(out, ",\"model_info\":{\"general.architecture\":");
  mlx_ollama_put_string(family, out);
  if (model->parameter_count)
    mlx_text_printf(out, ",\"general.parameter_count\":%llu", (unsigned long long)model->parameter_count);
  if (model->context) {
    mlx_text_printf(&key, "%s.context_length", family);
    mlx_text_puts(out, ",");
    mlx_ollama_put_string(key.data, out);
    mlx_text_printf(out, ":%lld", (long long)model->context);
  }
  out->failed |= key.failed;
  mlx_text_clear(&key);
  mlx_text_printf(out, "},\"capabilities\":[\"completion\"%s%s],\"modified_at\":",
                  model->has_tools ? ",\"tools\"" : "", model->has_thinking ? ",\"thinking\"" : "");
  mlx_ollama_put_time(model->modified, out);
  mlx_text_puts(out, "}");
}

void mlx_ollama_write_version(const char *version, mlx_text_t *out) {
  mlx_text_puts(out, "{\"version\":");
  mlx_ollama_put_string(version, out);
  mlx_text_puts(out, "}");
}

// Go clients send every field of their struct, most of them empty.
mlx_status_t mlx_ollama_parse_show(const char *body, size_t length, char **out_model) {
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
  const mlx_place_t root = mlx_place_root(doc), place = mlx_place_key(&root, "model");
  mlx_status_t status = mlx_fields_check(&root, fields, false);
  if (!status) status = mlx_field_text(&root, "name", &name);
  if (!status) status = mlx_field_text(&root, "model", &model);
  if (!*model) model = name;
  if (!status && !*model) status = mlx_field_error(&place, MLX_INVALID_INPUT, "missing; it is required");
  if (!status) status = mlx_copy_text(model, strlen(model), out_model);
  yyjson_doc_free(doc);
  return status;
}
