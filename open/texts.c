// Opens tokenizers and chat templates of models that are not loaded. See texts.h.
#include "open/texts.h"

#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "open/replacement.h"
#include "runtime/rooms.h"
#include "tokenizer/open.h"

#define MAX_TEMPLATE ((size_t)4 << 20)  // bytes

// ----------------------------------------------------------------------------------------------------------
// Tokenizers

static mlx_status_t read_tokenizer(void *user, char **out_json, size_t *out_length) {
  return mlx_model_tokenizer_read(user, out_json, out_length);
}

mlx_status_t mlx_open_model_tokenizer(const mlx_model_tokenizer_t *model, mlx_cache_t *cache,
                                      const mlx_report_t *report, mlx_tokenizer_t **out_tokenizer) {
  mlx_model_tokenizer_t source = *model;
  const mlx_tokenizer_text_t text = {.name = source.name,
                                     .model = source.model.text,
                                     .key = source.key,
                                     .read = read_tokenizer,
                                     .user = &source,
                                     .report = report};
  return mlx_tokenizer_open(cache, &text, out_tokenizer);
}

static mlx_status_t open_source_tokenizer(const char *path, mlx_tokenizer_t **out) {
  mlx_model_tokenizer_t tokenizer;
  mlx_cache_t *cache = NULL;
  mlx_status_free(mlx_cache_open(NULL, &cache));  // without a cache the vocabulary is parsed each time
  mlx_status_t status = mlx_model_tokenizer_open(path, cache, &tokenizer);
  if (!status) status = mlx_open_model_tokenizer(&tokenizer, cache, NULL, out);
  mlx_model_tokenizer_close(&tokenizer);
  mlx_cache_close(cache);
  return status;
}

mlx_status_t mlx_open_tokenizer(const char *path, mlx_tokenizer_t **out_tokenizer) {
  *out_tokenizer = NULL;
  return mlx_engine_is_bundle(path) ? mlx_engine_open_tokenizer(path, out_tokenizer)
                                    : open_source_tokenizer(path, out_tokenizer);
}

// ----------------------------------------------------------------------------------------------------------
// Chat templates

static mlx_status_t no_format(const char *name) {
  mlx_text_t names = {0};
  for (const char *const *known = mlx_chat_format_names(); *known; ++known)
    mlx_text_printf(&names, "%s%s", names.length ? ", " : "", *known);
  mlx_status_t status = mlx_text_finish(&names);
  if (!status) {
    status = mlx_status_hint(mlx_error(MLX_NOT_FOUND, "'%s' is neither a chat format nor a file", name),
                             "known formats: %s; or give a file with a Jinja template", names.data);
  }
  mlx_text_clear(&names);
  return status;
}

// |chat_template| is the name of a known format, or a file.
static mlx_status_t read_template(const char *chat_template, const char *json, size_t length,
                                  mlx_chat_t **out_chat) {
  const char *format = mlx_chat_format(chat_template);
  char *source;
  size_t source_length;
  if (format)
    return mlx_chat_create_from_source(chat_template, format, strlen(format), json, length, out_chat);
  if (!mlx_is_file(chat_template)) return no_format(chat_template);
  MLX_TRY(mlx_read_file(chat_template, MAX_TEMPLATE, &source, &source_length));
  mlx_status_t status =
      mlx_chat_create_from_source(chat_template, source, source_length, json, length, out_chat);
  mlx_free(source);
  return status;
}

// If the bundle will be compiled again, reads the template of its source model.
static mlx_status_t read_bundle_chat(const char *bundle, const mlx_engine_options_t *options, char **out_json,
                                     size_t *out_length) {
  char *source;
  mlx_status_t status =
      mlx_find_replacement(bundle, options, mlx_chat_read_bundle(bundle, out_json, out_length), &source);
  if (source) {
    mlx_status_free(status);
    status = mlx_compile_chat(source, out_json, out_length);
  }
  mlx_free(source);
  return status;
}

mlx_status_t mlx_find_chat(const char *model, const mlx_engine_options_t *options, const char *chat_template,
                           mlx_chat_t **out_chat) {
  char *json;
  size_t length;
  *out_chat = NULL;
  MLX_TRY(mlx_engine_is_bundle(model) ? read_bundle_chat(model, options, &json, &length)
                                      : mlx_compile_chat(model, &json, &length));
  mlx_status_t status = chat_template ? read_template(chat_template, json, length, out_chat)
                        : json        ? mlx_chat_create(model, json, length, out_chat)
                                      : NULL;
  mlx_free(json);
  return status;
}
