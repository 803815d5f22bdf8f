// The stages of requests that are answered on the worker.
#include "server/core/texts.h"

#include <string.h>

#include "base/json_writer.h"
#include "base/memory.h"
#include "server/api/anthropic.h"
#include "server/api/api.h"
#include "server/api/embeddings.h"
#include "server/api/ollama.h"
#include "server/api/tokenize_input.h"
#include "server/core/embed.h"
#include "server/core/json_response.h"
#include "server/core/opening.h"
#include "server/core/prompt.h"
#include "server/tools/splice.h"

typedef struct text_job {
  mlx_job_t *job;
  const mlx_text_endpoint_t *endpoint;
  mlx_text_input_t input;  // of /tokenize and /detokenize
  char *shown;             // owned: the model of /api/show
  mlx_api_call_t call;     // of endpoints that render a chat
} text_job_t;

// A model, loaded or not.
typedef struct subject {
  const mlx_served_model_t *model;
  const mlx_chat_t *chat;          // NULL: it has no template
  const mlx_engine_info_t *info;   // NULL: it is not loaded
  const mlx_sampling_t *sampling;  // of requests that give none; NULL: llama.cpp's
} subject_t;

struct mlx_text_endpoint {
  const mlx_api_t *api;  // whose form its errors have, and the chat that it renders
  // Reads the body and names the model. NULL: it has no body.
  mlx_status_t (*parse)(text_job_t *t, const char *body, size_t length, const char **out_model);
  // One of these appends the body of the response. |run| needs a loaded model; |describe| writes properties,
  // also of a model that is not loaded.
  mlx_status_t (*run)(text_job_t *t, const mlx_engine_t *engine, mlx_text_t *out);
  void (*describe)(const subject_t *subject, mlx_text_t *out);
  const char *object;  // of run_input_tokens: the member "object" of the response; NULL: it has none
};

// ----------------------------------------------------------------------------------------------------------
// Parse

static mlx_status_t parse_tokenize(text_job_t *t, const char *body, size_t length, const char **out_model) {
  mlx_status_t status = mlx_tokenize_parse(body, length, t->job->unknown, &t->input);
  *out_model = t->input.model;
  return status;
}

static mlx_status_t parse_detokenize(text_job_t *t, const char *body, size_t length, const char **out_model) {
  mlx_status_t status = mlx_detokenize_parse(body, length, t->job->unknown, &t->input);
  *out_model = t->input.model;
  return status;
}

static mlx_status_t parse_tei_info(text_job_t *t, const char *body, size_t length, const char **out_model) {
  (void)body, (void)length;
  *out_model = mlx_embed_default_model(t->job->service->models);
  return NULL;
}

static mlx_status_t parse_chat(text_job_t *t, const char *body, size_t length, const char **out_model) {
  MLX_TRY(mlx_api_call_initialize(&t->call));
  t->call.unknown = t->job->unknown;
  t->call.stored = t->job->service->stored;
  MLX_TRY(t->endpoint->api->parse(body, length, mlx_exchange_query(t->job->exchange), &t->call));
  MLX_TRY(mlx_request_defaults_end(&t->job->service->defaults, &t->call));
  *out_model = t->call.model;
  return NULL;
}

static mlx_status_t parse_count(text_job_t *t, const char *body, size_t length, const char **out_model) {
  MLX_TRY(mlx_api_call_initialize(&t->call));
  t->call.unknown = t->job->unknown;
  MLX_TRY(mlx_anthropic_parse_count(body, length, mlx_exchange_query(t->job->exchange), &t->call));
  *out_model = t->call.model;
  return NULL;
}

static mlx_status_t parse_show(text_job_t *t, const char *body, size_t length, const char **out_model) {
  MLX_TRY(mlx_ollama_parse_show(body, length, t->job->unknown, &t->shown));
  *out_model = t->shown;
  return NULL;
}

static mlx_status_t parse(mlx_job_t *job, const char **out_model) {
  text_job_t *t = job->state;
  size_t length;
  const char *body = mlx_exchange_body(job->exchange, &length);
  return t->endpoint->parse ? t->endpoint->parse(t, body, length, out_model) : NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Tokens

static mlx_status_t put_piece(mlx_json_writer_t *json, const mlx_engine_t *engine, int32_t id) {
  char *bytes;
  size_t length;
  MLX_TRY(mlx_engine_token_bytes(engine, id, &bytes, &length));
  mlx_json_begin_object(json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_int(json, "id", id);
  size_t at = 0;
  while (at < length) {
    const int size = mlx_utf8_length(bytes + at, length - at);
    if (size <= 0) break;
    at += (size_t)size;
  }
  if (at == length) {
    mlx_json_put_bytes(json, "piece", bytes, length);
  } else {  // llama.cpp: a list of bytes if the piece is not UTF-8
    mlx_json_begin_list(json, "piece", MLX_JSON_COMPACT);
    for (size_t i = 0; i < length; ++i) mlx_json_put_uint(json, NULL, (unsigned char)bytes[i]);
    mlx_json_end(json);
  }
  mlx_json_end(json);
  mlx_free(bytes);
  return NULL;
}

static mlx_status_t put_tokens(const mlx_engine_t *engine, const int32_t *ids, size_t count, bool pieces,
                               mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_begin_list(&json, "tokens", MLX_JSON_COMPACT);
  for (size_t i = 0; i < count; ++i) {
    if (pieces)
      MLX_TRY(put_piece(&json, engine, ids[i]));
    else
      mlx_json_put_int(&json, NULL, ids[i]);
  }
  mlx_json_end(&json);
  mlx_json_put_int(&json, "count", (int64_t)count);
  mlx_json_put_int(&json, "max_model_len", mlx_engine_info(engine).context);
  mlx_json_end(&json);
  return NULL;
}

static mlx_status_t run_tokenize(text_job_t *t, const mlx_engine_t *engine, mlx_text_t *out) {
  int32_t *ids;
  size_t count;
  const mlx_text_input_t *input = &t->input;
  const bool plain = input->plain < 0 ? t->job->service->plain : input->plain;
  if (plain)
    MLX_TRY(mlx_engine_tokenize_plain(engine, input->text, input->length, input->special, SIZE_MAX, &ids,
                                      &count));
  else
    MLX_TRY((input->special ? mlx_engine_tokenize : mlx_engine_tokenize_chat)(engine, input->text,
                                                                              input->length, &ids, &count));
  mlx_status_t status = put_tokens(engine, ids, count, t->input.pieces, out);
  mlx_engine_free_ids(ids);
  return status;
}

static mlx_status_t run_detokenize(text_job_t *t, const mlx_engine_t *engine, mlx_text_t *out) {
  const size_t count = t->input.count;
  char *text = NULL;
  size_t length = 0;
  int32_t *ids;
  MLX_TRY(mlx_alloc(count, sizeof *ids, &ids));
  mlx_status_t status = mlx_detokenize_ids(&t->input, mlx_engine_info(engine).vocab, ids);
  if (!status) status = mlx_engine_detokenize(engine, ids, count, true, &text, &length);
  if (!status) {
    mlx_json_writer_t json = {.out = out};
    mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
    mlx_json_put_bytes(&json, "content", text, length);
    mlx_json_put_bytes(&json, "prompt", text, length);
    mlx_json_end(&json);
  }
  mlx_free(text);
  mlx_free(ids);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Templates

static mlx_status_t run_template(text_job_t *t, const mlx_engine_t *engine, mlx_text_t *out) {
  (void)engine;
  mlx_answer_spans_t spans;
  char *text;
  size_t length;
  t->call.plain = 0;  // the text has no marks
  MLX_TRY(mlx_prompt_render(t->job, &t->call, &text, &length, &spans));
  mlx_answer_spans_clear(&spans);
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_bytes(&json, "prompt", text, length);
  mlx_json_end(&json);
  mlx_free(text);
  return NULL;
}

static mlx_status_t count_tokens(const text_job_t *t, const mlx_engine_t *engine, size_t *out_count) {
  mlx_answer_spans_t spans;
  char *text;
  size_t length;
  int32_t *ids;
  MLX_TRY(mlx_prompt_render(t->job, &t->call, &text, &length, &spans));
  mlx_status_t status = mlx_splice_tokenize(engine, text, length, &spans, SIZE_MAX, &ids, out_count);
  mlx_free(text);
  mlx_answer_spans_clear(&spans);
  if (!status) mlx_engine_free_ids(ids);
  return status;
}

// Anthropic's, OpenAI's of a response, or llama.cpp's of a chat.
static mlx_status_t run_input_tokens(text_job_t *t, const mlx_engine_t *engine, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  size_t count;
  MLX_TRY(count_tokens(t, engine, &count));
  mlx_json_begin_object(&json, NULL, MLX_JSON_ONE_LINE);
  if (t->endpoint->object) mlx_json_put_text(&json, "object", t->endpoint->object);
  mlx_json_put_int(&json, "input_tokens", (int64_t)count);
  mlx_json_end(&json);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Properties

static const char *template_of(const subject_t *subject) {
  const char *source = subject->chat ? mlx_chat_source(subject->chat, NULL, false) : NULL;
  return source ? source : "";
}

static bool is_encoder(const subject_t *subject) {
  return subject->info ? subject->info->is_encoder : mlx_embed_is_sentence_folder(subject->model);
}

static void write_info(const subject_t *subject, mlx_text_t *out) {
  const mlx_engine_info_t *info = subject->info;
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "model", mlx_served_model_name(subject->model));
  mlx_json_put_text(&json, "model_path",
                    mlx_served_model_name(subject->model));  // clients need not know the folder
  mlx_json_put_bool(&json, "is_loaded", info != NULL);
  if (info) {
    mlx_json_put_text(&json, "architecture", info->architecture);
    mlx_json_put_text(&json, "device", info->device);
    mlx_json_put_text(&json, "gpu", info->gpu);
    mlx_json_put_text(&json, "dtype", info->dtype);
    mlx_json_put_text(&json, "kv_cache_dtype", info->kv);
    mlx_json_put_text(&json, "kernels", info->kernels);
    mlx_json_put_int(&json, "context_length", info->context);
    mlx_json_put_int(&json, "vocab_size", info->vocab);
    mlx_json_put_int(&json, "embedding_length", info->hidden);
    mlx_json_put_int(&json, "max_running_requests", info->sequences);
    mlx_json_put_int(&json, "weight_bytes", (int64_t)info->weight_bytes);
  }
  mlx_json_put_bool(&json, "is_generation", !is_encoder(subject));
  mlx_json_end(&json);
}

// /info of text-embeddings-inference.
static void write_tei_info(const subject_t *subject, mlx_text_t *out) {
  const mlx_engine_info_t *info = subject->info;
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "model_id", mlx_served_model_name(subject->model));
  if (info) {
    mlx_json_put_text(&json, "model_dtype", info->dtype);
    mlx_json_begin_object(&json, "model_type", MLX_JSON_COMPACT);
    mlx_json_begin_object(&json, "embedding", MLX_JSON_COMPACT);
    mlx_json_put_text(&json, "pooling", *info->pooling ? info->pooling : "last_token");
    mlx_json_end(&json);
    mlx_json_end(&json);
    mlx_json_put_int(&json, "max_input_length", info->context);
    mlx_json_put_int(&json, "max_batch_requests", info->sequences);
  }
  mlx_json_put_int(&json, "max_client_batch_size", MLX_MAX_EMBEDDINGS);
  mlx_json_put_bool(&json, "auto_truncate", true);
  mlx_json_put_text(&json, "version", mlx_version());
  mlx_json_end(&json);
}

// The sampling options of a request that gives none, as llama.cpp's /props has them.
static void put_defaults(mlx_json_writer_t *json, const mlx_engine_info_t *info,
                         const mlx_sampling_t *given) {
  mlx_sampling_t sampling;
  mlx_sampling_initialize(&sampling);
  if (given) sampling = *given;
  mlx_json_begin_object(json, "default_generation_settings", MLX_JSON_COMPACT);
  if (info) mlx_json_put_int(json, "n_ctx", info->context);
  mlx_json_begin_object(json, "params", MLX_JSON_COMPACT);
  mlx_json_put_number(json, "temperature", "%.9g", sampling.temperature);
  mlx_json_put_int(json, "top_k", sampling.top_k);
  mlx_json_put_number(json, "top_p", "%.9g", sampling.top_p);
  mlx_json_put_number(json, "min_p", "%.9g", sampling.min_p);
  mlx_json_put_number(json, "repeat_penalty", "%.9g", sampling.repeat_penalty);
  mlx_json_put_number(json, "presence_penalty", "%.9g", sampling.presence_penalty);
  mlx_json_put_number(json, "frequency_penalty", "%.9g", sampling.frequency_penalty);
  mlx_json_put_int(json, "n_predict", -1);
  mlx_json_end(json);
  mlx_json_end(json);
}

static void write_props(const subject_t *subject, mlx_text_t *out) {
  const mlx_engine_info_t *info = subject->info;
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  put_defaults(&json, info, subject->sampling);
  if (info) mlx_json_put_int(&json, "total_slots", info->sequences);
  mlx_json_put_text(&json, "model_alias", mlx_served_model_name(subject->model));
  mlx_json_put_text(&json, "model_path", mlx_served_model_name(subject->model));
  mlx_json_put_bool(&json, "is_loaded", info != NULL);
  mlx_json_put_text(&json, "chat_template", template_of(subject));
  mlx_json_begin_object(&json, "modalities", MLX_JSON_COMPACT);
  mlx_json_put_bool(&json, "vision", false);
  mlx_json_put_bool(&json, "audio", false);
  mlx_json_end(&json);
  mlx_json_put_text(&json, "build_info", "mlxcel");
  mlx_json_end(&json);
}

// Ollama's /api/show.
static void write_show(const subject_t *subject, mlx_text_t *out) {
  const mlx_engine_info_t *info = subject->info;
  const char *source = template_of(subject), *path = mlx_served_model_path(subject->model);
  const mlx_ollama_model_t model = {
      .name = mlx_served_model_name(subject->model),
      .family = info ? info->architecture : NULL,
      .format = strstr(path, ".gguf")   ? "gguf"
                : strstr(path, ".mlxb") ? "mlxb"
                                        : "safetensors",
      .quantization = info ? info->dtype : NULL,
      .template_source = source,
      .size = mlx_served_model_size(subject->model),
      .context = info ? info->context : 0,
      .modified = mlx_served_model_created(subject->model),
      .is_loaded = info != NULL,
      .is_encoder = is_encoder(subject),
      .has_tools = strstr(source, "tools") != NULL,
      .has_thinking = mlx_output_format_reasons(mlx_output_format_find(source))};
  mlx_ollama_write_show(&model, out);
}

static void drop_loaded(void *user, mlx_served_model_t *model, mlx_servings_t *servings) {
  mlx_served_model_t **wanted = user;
  (void)servings;
  if (*wanted == model) *wanted = NULL;
}

// The model that mlx_models_get would give, if it is not loaded; else NULL.
static mlx_served_model_t *find_unloaded(mlx_models_t *models, const char *name) {
  mlx_served_model_t *wanted = mlx_models_choose(models, name);
  if (wanted) mlx_models_visit_loaded(models, drop_loaded, &wanted);
  return wanted;
}

// Properties of a model that is not loaded: loading it could unload another one.
static bool answer(mlx_job_t *job, const char *name) {
  const text_job_t *t = job->state;
  const mlx_service_t *service = job->service;
  if (!t->endpoint->describe) return false;
  const mlx_served_model_t *model = find_unloaded(service->models, name);
  mlx_chat_t *chat = NULL;
  mlx_text_t body = {0};
  if (!model) return false;
  mlx_status_free(mlx_opening_find_chat(service->opening, mlx_served_model_path(model), &chat));
  t->endpoint->describe(&(subject_t){.model = model, .chat = chat, .sampling = service->defaults.sampling},
                        &body);
  mlx_respond_json(job->exchange, 200, &body);
  mlx_chat_free(chat);
  return true;
}

// ----------------------------------------------------------------------------------------------------------

static mlx_status_t run(mlx_job_t *job, bool *out_kept) {
  text_job_t *t = job->state;
  mlx_text_t body = {0};
  mlx_status_t status = NULL;
  *out_kept = false;
  if (t->endpoint->run) {
    status = t->endpoint->run(t, job->engine, &body);
  } else {
    mlx_engine_info_t info = mlx_engine_info(job->engine);
    info.sequences *= (int64_t)mlx_servings_count(job->servings);
    t->endpoint->describe(&(subject_t){.model = job->model,
                                       .chat = mlx_serving_chat(job->serving),
                                       .info = &info,
                                       .sampling = job->service->defaults.sampling},
                          &body);
  }
  if (!status) mlx_respond_json(job->exchange, 200, &body);
  mlx_text_clear(&body);
  return status;
}

static void clear(mlx_job_t *job) {
  text_job_t *t = job->state;
  mlx_text_input_clear(&t->input);
  mlx_free(t->shown);
  t->endpoint->api->free_details(t->call.details);
  mlx_api_call_clear(&t->call);
  mlx_free(t);
}

static const mlx_job_kind_t text_kind = {.parse = parse, .answer = answer, .run = run, .clear = clear};

mlx_status_t mlx_text_start(mlx_job_t *job, const mlx_text_endpoint_t *endpoint) {
  text_job_t *t;
  MLX_TRY(mlx_alloc(1, sizeof *t, &t));
  t->job = job;
  t->endpoint = endpoint;
  mlx_job_start(job, &text_kind, t);
  return NULL;
}

const mlx_text_endpoint_t mlx_text_tokenize = {&mlx_api_chat, .parse = parse_tokenize, .run = run_tokenize};
const mlx_text_endpoint_t mlx_text_detokenize = {&mlx_api_chat, .parse = parse_detokenize,
                                                 .run = run_detokenize};
const mlx_text_endpoint_t mlx_text_template = {&mlx_api_chat, .parse = parse_chat, .run = run_template};
const mlx_text_endpoint_t mlx_text_count = {&mlx_api_messages, .parse = parse_count, .run = run_input_tokens};
const mlx_text_endpoint_t mlx_text_input_tokens = {
    &mlx_api_responses, .parse = parse_chat, .run = run_input_tokens, .object = "response.input_tokens"};
const mlx_text_endpoint_t mlx_text_chat_tokens = {&mlx_api_chat, .parse = parse_chat,
                                                  .run = run_input_tokens};
const mlx_text_endpoint_t mlx_text_props = {&mlx_api_chat, .describe = write_props};
const mlx_text_endpoint_t mlx_text_model_info = {&mlx_api_chat, .describe = write_info};
const mlx_text_endpoint_t mlx_text_tei_info = {&mlx_api_chat, .parse = parse_tei_info,
                                               .describe = write_tei_info};
const mlx_text_endpoint_t mlx_text_show = {&mlx_api_ollama_chat, .parse = parse_show, .describe = write_show};
