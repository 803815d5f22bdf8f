// Errands that answer on the worker.
#include "server/texts.h"

#include <string.h>

#include "base/memory.h"
#include "server/api_messages.h"
#include "server/api_ollama.h"
#include "server/fields.h"
#include "server/prompt.h"
#include "server/respond.h"
#include "server/shape.h"
#include "server/splice.h"
#include "server/texts_input.h"

typedef struct errand {
  mlx_errand_t base;
  mlx_text_endpoint_t endpoint;
  mlx_text_input_t input;  // of MLX_TEXT_TOKENIZE and MLX_TEXT_DETOKENIZE
  char *shown;             // owned: the model of MLX_TEXT_SHOW
  const char *model;
  const mlx_shape_t *shape;  // that parsed |call|; NULL: there is no call
  mlx_call_t call;
} errand_t;

static errand_t *cast(mlx_errand_t *base) { return (errand_t *)(void *)base; }

// ----------------------------------------------------------------------------------------------------------
// Parse

static mlx_status_t parse_text(errand_t *e) {
  size_t length;
  const char *body = mlx_exchange_body(e->base.exchange, &length);
  mlx_status_t status = e->endpoint == MLX_TEXT_TOKENIZE ? mlx_tokenize_parse(body, length, &e->input)
                                                         : mlx_detokenize_parse(body, length, &e->input);
  e->model = e->input.model;
  return status;
}

typedef mlx_status_t (*parse_t)(const char *body, size_t length, const char *query, mlx_call_t *inout_call);

static mlx_status_t parse_call(errand_t *e, const mlx_shape_t *shape, parse_t parse_body) {
  size_t length;
  const char *body = mlx_exchange_body(e->base.exchange, &length);
  e->shape = shape;
  MLX_TRY(mlx_call_initialize(&e->call));
  MLX_TRY(parse_body(body, length, mlx_exchange_query(e->base.exchange), &e->call));
  e->model = e->call.model;
  return NULL;
}

static mlx_status_t parse_show(errand_t *e) {
  size_t length;
  const char *body = mlx_exchange_body(e->base.exchange, &length);
  MLX_TRY(mlx_ollama_parse_show(body, length, &e->shown));
  e->model = e->shown;
  return NULL;
}

static mlx_status_t parse(mlx_errand_t *base, const char **out_model) {
  errand_t *e = cast(base);
  mlx_status_t status = NULL;
  switch (e->endpoint) {
    case MLX_TEXT_TOKENIZE:
    case MLX_TEXT_DETOKENIZE: status = parse_text(e); break;
    case MLX_TEXT_TEMPLATE: status = parse_call(e, &mlx_shape_chat, mlx_shape_chat.parse); break;
    case MLX_TEXT_COUNT: status = parse_call(e, &mlx_shape_messages, mlx_messages_parse_count); break;
    case MLX_TEXT_SHOW: status = parse_show(e); break;
    case MLX_TEXT_PROPS:
    case MLX_TEXT_MODEL_INFO: break;
  }
  *out_model = e->model;
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Tokens

static mlx_status_t put_piece(const mlx_engine_t *engine, int32_t id, mlx_text_t *out) {
  char *bytes;
  size_t length;
  MLX_TRY(mlx_engine_token_bytes(engine, id, &bytes, &length));
  mlx_text_printf(out, "{\"id\":%d,\"piece\":", id);
  size_t at = 0;
  while (at < length) {
    const int size = mlx_utf8_length(bytes + at, length - at);
    if (size <= 0) break;
    at += (size_t)size;
  }
  if (at == length) {
    mlx_text_json_string(out, bytes, length);
  } else {  // llama.cpp: a list of bytes if the piece is not UTF-8
    for (size_t i = 0; i < length; ++i)
      mlx_text_printf(out, "%s%u", i ? "," : "[", (unsigned)(unsigned char)bytes[i]);
    mlx_text_puts(out, "]");
  }
  mlx_text_puts(out, "}");
  mlx_free(bytes);
  return NULL;
}

static mlx_status_t put_tokens(const mlx_engine_t *engine, const int32_t *ids, size_t count, bool pieces,
                               mlx_text_t *out) {
  mlx_text_puts(out, "{\"tokens\":[");
  for (size_t i = 0; i < count; ++i) {
    if (i) mlx_text_puts(out, ",");
    if (pieces)
      MLX_TRY(put_piece(engine, ids[i], out));
    else
      mlx_text_printf(out, "%d", ids[i]);
  }
  mlx_text_puts(out, "]");
  mlx_put_int(out, "count", (int64_t)count);
  mlx_put_int(out, "max_model_len", mlx_engine_info(engine).context);
  mlx_text_puts(out, "}");
  return NULL;
}

static mlx_status_t run_tokenize(errand_t *e, const mlx_engine_t *engine, mlx_text_t *out) {
  int32_t *ids;
  size_t count;
  MLX_TRY((e->input.special ? mlx_engine_tokenize : mlx_engine_tokenize_chat)(engine, e->input.text,
                                                                              e->input.length, &ids, &count));
  mlx_status_t status = put_tokens(engine, ids, count, e->input.pieces, out);
  mlx_engine_free_ids(ids);
  return status;
}

static mlx_status_t run_detokenize(errand_t *e, const mlx_engine_t *engine, mlx_text_t *out) {
  const size_t count = e->input.count;
  char *text = NULL;
  size_t length = 0;
  int32_t *ids;
  MLX_TRY(mlx_alloc(count, sizeof *ids, &ids));
  mlx_status_t status = mlx_detokenize_ids(&e->input, mlx_engine_info(engine).vocab, ids);
  if (!status) status = mlx_engine_detokenize(engine, ids, count, true, &text, &length);
  if (!status) {
    mlx_text_puts(out, "{");
    mlx_put_key(out, "content");
    mlx_text_json_string(out, text, length);
    mlx_put_key(out, "prompt");
    mlx_text_json_string(out, text, length);
    mlx_text_puts(out, "}");
  }
  mlx_free(text);
  mlx_free(ids);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Templates

static mlx_input_tools_t tools_of(const errand_t *e) {
  return (mlx_input_tools_t){.serving = mlx_model_serving(e->base.model),
                             .model = mlx_model_name(e->base.model),
                             .memory = e->base.service->memory};
}

static mlx_status_t run_template(errand_t *e, mlx_text_t *out) {
  const mlx_input_tools_t tools = tools_of(e);
  mlx_answer_spans_t spans;
  char *text;
  size_t length;
  MLX_TRY(mlx_input_render(&e->call, &tools, &text, &length, &spans));
  mlx_answer_spans_clear(&spans);
  mlx_text_puts(out, "{");
  mlx_put_key(out, "prompt");
  mlx_text_json_string(out, text, length);
  mlx_text_puts(out, "}");
  mlx_free(text);
  return NULL;
}

static mlx_status_t run_count(errand_t *e, const mlx_serving_t *serving, mlx_text_t *out) {
  const mlx_input_tools_t tools = tools_of(e);
  mlx_answer_spans_t spans;
  char *text;
  size_t length, count;
  int32_t *ids;
  MLX_TRY(mlx_input_render(&e->call, &tools, &text, &length, &spans));
  mlx_status_t status = mlx_splice_tokenize(mlx_serving_engine(serving), text, length, &spans, &ids, &count);
  mlx_free(text);
  mlx_answer_spans_clear(&spans);
  if (status) return status;
  mlx_engine_free_ids(ids);
  mlx_messages_write_count((int64_t)count, out);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Properties

// A model, loaded or not.
typedef struct subject {
  const mlx_model_t *model;
  const mlx_chat_t *chat;         // NULL: it has no template
  const mlx_engine_info_t *info;  // NULL: it is not loaded
} subject_t;

static const char *template_of(const subject_t *subject) {
  const char *source = subject->chat ? mlx_chat_source(subject->chat, NULL, false) : NULL;
  return source ? source : "";
}

static void write_info(const subject_t *subject, mlx_text_t *out) {
  const mlx_engine_info_t *info = subject->info;
  mlx_text_puts(out, "{");
  mlx_put_text(out, "model", mlx_model_name(subject->model));
  mlx_put_text(out, "model_path", mlx_model_path(subject->model));
  mlx_put_bool(out, "is_loaded", info != NULL);
  if (info) {
    mlx_put_text(out, "architecture", info->architecture);
    mlx_put_text(out, "device", info->device);
    mlx_put_text(out, "gpu", info->gpu);
    mlx_put_text(out, "dtype", info->dtype);
    mlx_put_text(out, "kv_cache_dtype", info->kv);
    mlx_put_text(out, "kernels", info->kernels);
    mlx_put_int(out, "context_length", info->context);
    mlx_put_int(out, "vocab_size", info->vocab);
    mlx_put_int(out, "embedding_length", info->hidden);
    mlx_put_int(out, "max_running_requests", info->sequences);
    mlx_put_int(out, "weight_bytes", (int64_t)info->weight_bytes);
  }
  mlx_put_bool(out, "is_generation", true);
  mlx_text_puts(out, "}");
}

static void write_props(const subject_t *subject, mlx_text_t *out) {
  const mlx_engine_info_t *info = subject->info;
  mlx_text_puts(out, "{\"default_generation_settings\":{");
  if (info) mlx_text_printf(out, "\"n_ctx\":%lld,", (long long)info->context);
  mlx_text_puts(
      out, "\"params\":{\"temperature\":0.8,\"top_k\":40,\"top_p\":0.95,\"min_p\":0.05,\"n_predict\":-1}}");
  if (info) mlx_put_int(out, "total_slots", info->sequences);
  mlx_put_text(out, "model_alias", mlx_model_name(subject->model));
  mlx_put_text(out, "model_path", mlx_model_path(subject->model));
  mlx_put_bool(out, "is_loaded", info != NULL);
  mlx_put_text(out, "chat_template", template_of(subject));
  mlx_text_puts(out, ",\"modalities\":{\"vision\":false,\"audio\":false}");
  mlx_put_text(out, "build_info", "mlxcel");
  mlx_text_puts(out, "}");
}

// Ollama's /api/show.
static void write_show(const subject_t *subject, mlx_text_t *out) {
  const mlx_engine_info_t *info = subject->info;
  const char *source = template_of(subject), *path = mlx_model_path(subject->model);
  const mlx_ollama_model_t model = {
      .name = mlx_model_name(subject->model),
      .family = info ? info->architecture : NULL,
      .format = strstr(path, ".gguf")   ? "gguf"
                : strstr(path, ".mlxb") ? "mlxb"
                                        : "safetensors",
      .quantization = info ? info->dtype : NULL,
      .template_source = source,
      .size = mlx_model_size(subject->model),
      .context = info ? info->context : 0,
      .modified = mlx_model_created(subject->model),
      .is_loaded = info != NULL,
      .has_tools = strstr(source, "tools") != NULL,
      .has_thinking = mlx_output_format_reasons(mlx_output_format_find(source))};
  mlx_ollama_write_show(&model, out);
}

static void write_subject(mlx_text_endpoint_t endpoint, const subject_t *subject, mlx_text_t *out) {
  if (endpoint == MLX_TEXT_SHOW)
    write_show(subject, out);
  else if (endpoint == MLX_TEXT_PROPS)
    write_props(subject, out);
  else
    write_info(subject, out);
}

static void drop_loaded(void *user, mlx_model_t *model, mlx_serving_t *serving) {
  mlx_model_t **wanted = user;
  (void)serving;
  if (*wanted == model) *wanted = NULL;
}

// The model that mlx_models_get would give, if it is not loaded; else NULL.
static mlx_model_t *find_unloaded(mlx_models_t *models, const char *name) {
  const bool is_first = !name || !*name || mlx_models_count(models) == 1;
  mlx_model_t *wanted = is_first ? mlx_models_at(models, 0) : mlx_models_find(models, name);
  if (wanted) mlx_models_visit_loaded(models, drop_loaded, &wanted);
  return wanted;
}

// Properties of a model that is not loaded: loading it could unload another one.
static bool answer(mlx_errand_t *base, const char *name) {
  const errand_t *e = cast(base);
  const mlx_service_t *service = base->service;
  if (e->endpoint != MLX_TEXT_SHOW && e->endpoint != MLX_TEXT_PROPS && e->endpoint != MLX_TEXT_MODEL_INFO)
    return false;
  const mlx_model_t *model = find_unloaded(service->models, name);
  mlx_chat_t *chat = NULL;
  mlx_text_t body = {0};
  if (!model) return false;
  if (service->find_chat) mlx_status_free(service->find_chat(service->user, mlx_model_path(model), &chat));
  write_subject(e->endpoint, &(subject_t){.model = model, .chat = chat}, &body);
  mlx_respond_json(base->exchange, 200, &body);
  mlx_chat_free(chat);
  return true;
}

// ----------------------------------------------------------------------------------------------------------

static mlx_status_t write_body(errand_t *e, mlx_text_t *out) {
  const mlx_serving_t *serving = mlx_model_serving(e->base.model);
  const mlx_engine_t *engine = mlx_serving_engine(serving);
  switch (e->endpoint) {
    case MLX_TEXT_TOKENIZE: return run_tokenize(e, engine, out);
    case MLX_TEXT_DETOKENIZE: return run_detokenize(e, engine, out);
    case MLX_TEXT_TEMPLATE: return run_template(e, out);
    case MLX_TEXT_COUNT: return run_count(e, serving, out);
    case MLX_TEXT_PROPS:
    case MLX_TEXT_SHOW:
    case MLX_TEXT_MODEL_INFO: {
      const mlx_engine_info_t info = mlx_engine_info(engine);
      const subject_t subject = {.model = e->base.model, .chat = mlx_serving_chat(serving), .info = &info};
      write_subject(e->endpoint, &subject, out);
      return NULL;
    }
  }
  return mlx_error(MLX_INTERNAL, "unknown endpoint %d", (int)e->endpoint);
}

static mlx_status_t run(mlx_errand_t *base, bool *out_kept) {
  mlx_text_t body = {0};
  *out_kept = false;
  mlx_status_t status = write_body(cast(base), &body);
  if (!status) mlx_respond_json(base->exchange, 200, &body);
  mlx_text_clear(&body);
  return status;
}

static void clear(mlx_errand_t *base) {
  errand_t *e = cast(base);
  mlx_text_input_clear(&e->input);
  mlx_free(e->shown);
  if (!e->shape) return;
  if (e->call.details && e->shape->free_details) e->shape->free_details(e->call.details);
  mlx_call_clear(&e->call);
}

static const mlx_errand_kind_t text_kind = {
    .size = sizeof(errand_t), .parse = parse, .answer = answer, .run = run, .clear = clear};

mlx_status_t mlx_text_start(mlx_service_t *service, mlx_text_endpoint_t endpoint, mlx_exchange_t *exchange) {
  mlx_errand_t *errand;
  MLX_TRY(mlx_errand_create(&text_kind, service, exchange, &errand));
  cast(errand)->endpoint = endpoint;
  if (endpoint == MLX_TEXT_COUNT) errand->error = mlx_shape_messages.error;
  if (endpoint == MLX_TEXT_SHOW) errand->error = mlx_shape_ollama_chat.error;
  mlx_errand_start(errand);
  return NULL;
}
