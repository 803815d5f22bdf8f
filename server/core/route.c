// The table of endpoints.
#include "server/core/route.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/clock.h"
#include "server/api/anthropic.h"
#include "server/api/embeddings.h"
#include "server/api/llama_answer.h"
#include "server/api/ollama.h"
#include "server/api/openai_answer.h"
#include "server/core/embed.h"
#include "server/core/generate.h"
#include "server/core/info.h"
#include "server/core/json_response.h"
#include "server/core/library.h"
#include "server/core/origin.h"
#include "server/core/rerank.h"
#include "server/core/sleep.h"
#include "server/core/stored.h"
#include "server/core/texts.h"
#include "server/page/page.h"

typedef struct route {
  const char *method, *path;  // without /v1
  const char *name;           // for the log and the metrics
  // One of these: the functions of the endpoint. Those of |info| answer at once, also while the server
  // drains.
  void (*info)(mlx_site_t *site, mlx_exchange_t *exchange);
  const mlx_api_t *generate;
  const mlx_text_endpoint_t *text;
  const mlx_embeddings_api_t *embed;
  const mlx_rerank_api_t *rerank;
  mlx_status_t (*start)(mlx_job_t *job);
  bool is_open;      // needs no key
  bool is_early;     // answered before the server is ready
  bool is_reserved;  // answered although there are too many connections
} route_t;

#define HEALTH .is_open = true, .is_early = true, .is_reserved = true

static const route_t routes[] = {
    {"POST", "/chat/completions", "chat", .generate = &mlx_api_chat},
    {"POST", "/chat/completions/input_tokens", "chat_input_tokens", .text = &mlx_text_chat_tokens},
    {"POST", "/completions", "completion", .generate = &mlx_api_completion},
    {"POST", "/completion", "llama_completion", .generate = &mlx_api_llama_completion},
    {"POST", "/infill", "infill", .generate = &mlx_api_llama_infill},
    {"GET", "/slots", "slots", .info = mlx_info_slots},
    {"POST", "/responses", "responses", .generate = &mlx_api_responses},
    {"POST", "/responses/input_tokens", "input_tokens", .text = &mlx_text_input_tokens},
    {"POST", "/messages", "messages", .generate = &mlx_api_messages},
    {"POST", "/messages/count_tokens", "count_tokens", .text = &mlx_text_count},
    {"POST", "/embeddings", "embeddings", .embed = &mlx_embeddings_openai},
    {"POST", "/embed", "tei_embed", .embed = &mlx_embeddings_tei},
    {"POST", "/", "tei_embed", .embed = &mlx_embeddings_tei},
    {"GET", "/info", "tei_info", .text = &mlx_text_tei_info},
    {"POST", "/rerank", "rerank", .rerank = &mlx_rerank_cohere},
    {"POST", "/v2/rerank", "rerank", .rerank = &mlx_rerank_cohere},  // of Cohere's client
    {"POST", "/score", "score", .rerank = &mlx_rerank_score},
    {"GET", "/models", "models", .info = mlx_info_models},
    {"POST", "/api/chat", "ollama_chat", .generate = &mlx_api_ollama_chat},
    {"POST", "/api/generate", "ollama_generate", .generate = &mlx_api_ollama_generate},
    {"POST", "/api/embed", "ollama_embed", .embed = &mlx_embeddings_ollama},
    {"POST", "/api/embeddings", "ollama_embeddings", .embed = &mlx_embeddings_ollama_prompt},
    {"POST", "/api/pull", "ollama_pull", .start = mlx_library_start_pull},
    {"DELETE", "/api/delete", "ollama_delete", .start = mlx_library_start_delete},
    {"POST", "/api/copy", "ollama_copy", .info = mlx_library_copy},
    {"GET", "/api/tags", "ollama_tags", .info = mlx_info_tags},
    {"GET", "/api/ps", "ollama_ps", .info = mlx_info_running},
    {"GET", "/api/version", "ollama_version", .info = mlx_info_version},
    {"POST", "/api/show", "ollama_show", .text = &mlx_text_show},
    {"POST", "/tokenize", "tokenize", .text = &mlx_text_tokenize},
    {"POST", "/detokenize", "detokenize", .text = &mlx_text_detokenize},
    {"POST", "/apply-template", "apply_template", .text = &mlx_text_template},
    {"GET", "/props", "props", .text = &mlx_text_props},
    {"GET", "/model_info", "model_info", .text = &mlx_text_model_info},
    {"POST", "/sleep", "sleep", .start = mlx_sleep_start},
    {"POST", "/wake_up", "wake_up", .start = mlx_sleep_start_wake},
    {"GET", "/is_sleeping", "is_sleeping", .info = mlx_sleep_info},
    {"GET", "/version", "version", .info = mlx_info_build},
    {"GET", "/ping", "ping", .info = mlx_info_ping, .is_open = true, .is_reserved = true},
    {"GET", "/server_info", "server_info", .info = mlx_info_server},
    {"GET", "/metrics", "metrics", .info = mlx_info_metrics, .is_early = true, .is_reserved = true},
    {"GET", "/health", "health", .info = mlx_info_health, HEALTH},
    {"GET", "/health/live", "health_live", .info = mlx_info_live, HEALTH},
    {"GET", "/health/ready", "health_ready", .info = mlx_info_ready, HEALTH},
    {"GET", "/v2/health/live", "v2_live", .info = mlx_info_v2_live, HEALTH},
    {"GET", "/v2/health/ready", "v2_ready", .info = mlx_info_v2_ready, HEALTH},
};

// ----------------------------------------------------------------------------------------------------------
// Errors

static const char *without_version(const char *path) { return strncmp(path, "/v1/", 4) ? path : path + 3; }

typedef struct error_form {
  const char *path;  // whose errors have it, and those of the paths below: without /v1
  void (*write)(const mlx_api_error_t *error, mlx_text_t *out);
} error_form_t;

static const error_form_t forms[] = {
    {"/api", mlx_ollama_write_error},
    {"/messages", mlx_anthropic_write_error},
    {"/", mlx_tei_write_error},
    {"/embed", mlx_tei_write_error},
    {"/info", mlx_tei_write_error},
    {"/completion", mlx_llama_write_error},
    {"/infill", mlx_llama_write_error},
    {"/slots", mlx_llama_write_error},
    {"/props", mlx_llama_write_error},
    {"/apply-template", mlx_llama_write_error},
    {"/tokenize", mlx_llama_write_error},
    {"/detokenize", mlx_llama_write_error},
    {"/chat/completions", mlx_openai_put_error},
    {"/completions", mlx_openai_put_error},
    {"/responses", mlx_openai_put_error},
    {"/embeddings", mlx_openai_put_error},
};

// The form that the client of a request understands, also if there is no such endpoint.
static const error_form_t *error_form(const mlx_exchange_t *exchange) {
  static const error_form_t anthropic = {NULL, mlx_anthropic_write_error},
                            openai = {NULL, mlx_openai_put_error};
  const char *path = without_version(mlx_exchange_path(exchange));
  for (size_t i = 0; i < sizeof forms / sizeof *forms; ++i) {
    const size_t length = strlen(forms[i].path);
    if (!strncmp(path, forms[i].path, length) && (!path[length] || path[length] == '/')) return &forms[i];
  }
  return mlx_exchange_header(exchange, "anthropic-version") ? &anthropic : &openai;
}

static void respond_failure(mlx_exchange_t *exchange, mlx_failure_kind_t kind, mlx_status_t status) {
  const mlx_failure_t failure = {.kind = kind, .status = status};
  mlx_failure_respond(&failure, error_form(exchange)->write, exchange);
  mlx_status_free(status);
}

// ----------------------------------------------------------------------------------------------------------
// Ids

// An id of the client's that is safe in a header and in the log is kept, so that both sides find the request.
static bool is_usable_id(const char *id) {
  size_t length = 0;
  for (; id[length]; ++length) {
    if (length == MLX_MAX_REQUEST_ID || id[length] <= ' ' || id[length] > '~') return false;
  }
  return length > 0;
}

static void set_request_id(mlx_job_t *job) {
  const char *given = mlx_exchange_header(job->exchange, "x-request-id");
  uint64_t random[2] = {0};
  if (given && is_usable_id(given)) {
    memcpy(job->request_id, given, strlen(given) + 1);
  } else {
    uv_random(NULL, NULL, random, sizeof random, 0, NULL);
    snprintf(job->request_id, sizeof job->request_id, "req_%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
  }
  mlx_exchange_set_header(job->exchange, "x-request-id", job->request_id);
  mlx_exchange_set_header(job->exchange, "request-id", job->request_id);  // Anthropic's name
}

// ----------------------------------------------------------------------------------------------------------
// Keys

// Compares without stopping at the first difference, so that its time does not depend on where it is.
static bool equal_key(const char *given, const char *key) {
  const size_t given_length = strlen(given), length = strlen(key);
  unsigned difference = given_length != length;
  for (size_t i = 0; i < given_length; ++i)
    difference |= (unsigned)((unsigned char)given[i] ^ (unsigned char)key[i < length ? i : 0]);
  return !difference;
}

static bool is_allowed(const mlx_site_t *site, const mlx_exchange_t *exchange) {
  const char *bearer = mlx_exchange_header(exchange, "authorization");
  const bool has_bearer = bearer && !strncasecmp(bearer, "bearer ", 7);
  // Some clients send both headers, of which one has a placeholder.
  const char *given[] = {has_bearer ? bearer + 7 : NULL, mlx_exchange_header(exchange, "x-api-key")};
  bool allowed = !site->key_count;
  for (size_t i = 0; i < site->key_count; ++i) {
    for (size_t k = 0; k < 2; ++k) allowed |= given[k] && equal_key(given[k], site->keys[i]);
  }
  return allowed;
}

// ----------------------------------------------------------------------------------------------------------
// Finding

// The route of a path and a method. If only the path is known, *|out_allow| is its method.
static const route_t *find_route(const char *path, const char *method, const char **out_allow) {
  const char *wanted = strcmp(method, "HEAD") ? method : "GET";
  *out_allow = NULL;
  for (size_t i = 0; i < sizeof routes / sizeof *routes; ++i) {
    if (strcmp(routes[i].path, path)) continue;
    if (!strcmp(routes[i].method, wanted)) return &routes[i];
    if (path[1]) *out_allow = routes[i].method;  // "/" is also the page, which there may not be
  }
  return NULL;
}

static const mlx_page_file_t *find_page(const mlx_site_t *site, const char *path) {
  for (const mlx_page_file_t *file = mlx_page_files; file->path; ++file) {
    if (strcmp(file->path, path)) continue;
    return site->page || !strcmp(path, "/openapi.json") ? file : NULL;  // it belongs to the API
  }
  return NULL;
}

static void respond_page(const mlx_page_file_t *file, mlx_exchange_t *exchange) {
  mlx_exchange_set_header(exchange, "Content-Security-Policy", mlx_page_policy);
  mlx_exchange_set_header(exchange, "Cache-Control", "no-cache");
  if (file->is_gzip) mlx_exchange_set_header(exchange, "Content-Encoding", "gzip");
  mlx_exchange_set_header(exchange, "X-Content-Type-Options", "nosniff");
  mlx_exchange_set_header(exchange, "Referrer-Policy", "no-referrer");
  mlx_exchange_respond(exchange, 200, file->content_type, file->bytes, file->size);
}

// ----------------------------------------------------------------------------------------------------------
// Requests

static mlx_status_t start(mlx_site_t *site, const route_t *route, mlx_job_t *job) {
  if (route->generate) return mlx_generate_start(job, route->generate);
  if (route->embed) return mlx_embed_start(job, route->embed);
  if (route->rerank) return mlx_rerank_start(job, route->rerank);
  if (route->start) return route->start(job);
  if (route->text) return mlx_text_start(job, route->text);
  route->info(site, job->exchange);
  return NULL;
}

static void handle(mlx_site_t *site, const route_t *route, mlx_job_t *job) {
  mlx_exchange_t *exchange = job->exchange;
  if (!route->is_open && !is_allowed(site, exchange)) {
    respond_failure(exchange, MLX_FAILURE_KEY,
                    mlx_status_hint(mlx_error(MLX_USAGE, "no valid API key"),
                                    "send the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'"));
  } else if (site->draining && (!route->info || route->info == mlx_info_models)) {
    respond_failure(exchange, MLX_FAILURE_DRAIN, mlx_error(MLX_UNAVAILABLE, "the server is shutting down"));
  } else {
    mlx_status_t status = start(site, route, job);
    if (status) respond_failure(exchange, MLX_FAILURE_REQUEST, status);
  }
}

// GET /v1/models/NAME, where NAME may have slashes.
static bool handle_model(mlx_site_t *site, const char *path, mlx_exchange_t *exchange) {
  if (strncmp(path, "/models/", 8) || strcmp(mlx_exchange_method(exchange), "GET")) return false;
  mlx_status_t status = is_allowed(site, exchange) ? mlx_info_model(site, path + 8, exchange)
                                                   : mlx_error(MLX_USAGE, "no valid API key");
  if (status)
    respond_failure(exchange, mlx_status_code(status) == MLX_USAGE ? MLX_FAILURE_KEY : MLX_FAILURE_REQUEST,
                    status);
  return true;
}

static void respond_unknown(mlx_exchange_t *exchange, const char *allow) {
  const char *method = mlx_exchange_method(exchange), *path = mlx_exchange_path(exchange);
  if (allow) {
    mlx_exchange_set_header(exchange, "Allow", allow);
    respond_failure(exchange, MLX_FAILURE_METHOD,
                    mlx_error(MLX_USAGE, "%s is not possible for %s: use %s", method, path, allow));
  } else {
    respond_failure(exchange, MLX_FAILURE_REQUEST,
                    mlx_error(MLX_NOT_FOUND, "there is no endpoint %s %s", method, path));
  }
}

// A stored response: its path has an id.
static bool handle_stored(mlx_site_t *site, const char *path, mlx_job_t *job) {
  mlx_exchange_t *exchange = job->exchange;
  const char *method = mlx_exchange_method(exchange), *allow;
  mlx_status_t status = NULL;
  if (!mlx_stored_is_path(path, &allow)) return false;
  if (!is_allowed(site, exchange)) {
    respond_failure(exchange, MLX_FAILURE_KEY, mlx_error(MLX_USAGE, "no valid API key"));
  } else if (!strcmp(method, "GET") || (!strcmp(method, "DELETE") && strstr(allow, "DELETE"))) {
    if ((status = mlx_stored_start(job, path))) respond_failure(exchange, MLX_FAILURE_REQUEST, status);
  } else {
    respond_unknown(exchange, allow);
  }
  return true;
}

bool mlx_route_is_reserved(const mlx_exchange_t *exchange) {
  const char *allow;
  const route_t *route =
      find_route(without_version(mlx_exchange_path(exchange)), mlx_exchange_method(exchange), &allow);
  return route && route->is_reserved;
}

static const char *name_of(const route_t *route, const mlx_page_file_t *page, const char *path) {
  const char *allow;
  if (route) return route->name;
  if (page) return "page";
  if (!strncmp(path, "/models/", 8)) return "model";
  return mlx_stored_is_path(path, &allow) ? "stored_response" : "unknown";
}

// A job for |exchange|, and the headers that each response has.
static mlx_status_t create_job(mlx_site_t *site, const char *name, mlx_exchange_t *exchange,
                               mlx_job_t **out_job) {
  MLX_TRY(mlx_job_create(&site->service, name, exchange, out_job));
  (*out_job)->error = error_form(exchange)->write;
  set_request_id(*out_job);
  mlx_origin_allow(site, exchange);
  return NULL;
}

void mlx_route_refuse(mlx_site_t *site, mlx_exchange_t *exchange, int http_status, const char *message) {
  const mlx_api_error_t error = {.http_status = http_status,
                                 .type = http_status < 500 ? "invalid_request_error" : "server_error",
                                 .message = message,
                                 .code = mlx_http_status_name(http_status)};
  mlx_job_t *job;
  mlx_text_t body = {0};
  mlx_status_t status = create_job(site, "none", exchange, &job);
  if (!status) job->error(&error, &body);
  if (body.data && !body.failed)
    mlx_exchange_respond(exchange, http_status, "application/json", body.data, body.length);
  mlx_text_clear(&body);
  mlx_status_free(status);  // the HTTP layer answers
}

void mlx_route_request(mlx_site_t *site, mlx_exchange_t *exchange) {
  const char *method = mlx_exchange_method(exchange), *path = without_version(mlx_exchange_path(exchange));
  const char *allow;
  const route_t *route = find_route(path, method, &allow);
  const mlx_page_file_t *page =
      !strcmp(method, "GET") || !strcmp(method, "HEAD") ? find_page(site, mlx_exchange_path(exchange)) : NULL;
  mlx_job_t *job;
  mlx_status_t status = create_job(site, name_of(route, page, path), exchange, &job);
  if (status) {
    respond_failure(exchange, MLX_FAILURE_REQUEST, status);
    return;
  }
  mlx_failure_kind_t kind;
  if ((status = mlx_origin_check(site, exchange, &kind)))
    respond_failure(exchange, kind, status);
  else if (!site->ready && !page && !(route && route->is_early) && strcmp(method, "OPTIONS"))
    respond_failure(exchange, MLX_FAILURE_DRAIN,
                    mlx_status_hint(mlx_error(MLX_UNAVAILABLE, "the server is loading its model"),
                                    "GET /health is 200 when it is ready"));
  else if (!strcmp(method, "OPTIONS"))
    mlx_origin_respond_options(site, exchange);
  else if (route)
    handle(site, route, job);
  else if (page)
    respond_page(page, exchange);
  else if (!handle_model(site, path, exchange) && !handle_stored(site, path, job))
    respond_unknown(exchange, allow);
}

// ----------------------------------------------------------------------------------------------------------
// Log

static void put_times(mlx_json_writer_t *json, const mlx_job_t *job, double seconds) {
  const int64_t first = job ? atomic_load(&job->first_token_us) : 0;
  mlx_json_put_number(json, "seconds", "%.6f", seconds);
  if (!job || !atomic_load(&job->prompt_tokens)) return;
  mlx_json_put_int(json, "prompt_tokens", atomic_load(&job->prompt_tokens));
  mlx_json_put_int(json, "cached_tokens", atomic_load(&job->cached_tokens));
  mlx_json_put_int(json, "output_tokens", atomic_load(&job->output_tokens));
  if (first) mlx_json_put_number(json, "first_token_seconds", "%.6f", (double)first * 1e-6);
}

void mlx_route_ended(mlx_site_t *site, const mlx_exchange_t *exchange, double seconds, uint64_t sent_bytes,
                     bool gone) {
  mlx_job_t *job = mlx_exchange_user(exchange);
  const char *model = job ? atomic_load(&job->model_name) : NULL;
  mlx_metrics_response(site->service.metrics, job ? job->endpoint : NULL, mlx_exchange_status(exchange),
                       seconds, gone);
  if (site->log) {
    mlx_text_t line = {0};
    mlx_json_writer_t json = {.out = &line};
    mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
    mlx_json_put_int(&json, "time", (int64_t)time(NULL));
    mlx_json_put_text(&json, "client", mlx_exchange_remote(exchange));
    mlx_json_put_text(&json, "method", mlx_exchange_method(exchange));
    mlx_json_put_text(&json, "path", mlx_exchange_path(exchange));
    mlx_json_put_int(&json, "status", mlx_exchange_status(exchange));
    mlx_json_put_uint(&json, "bytes", sent_bytes);
    if (job) mlx_json_put_text(&json, "request_id", job->request_id);
    if (model) mlx_json_put_text(&json, "model", model);
    put_times(&json, job, seconds);
    if (gone) mlx_json_put_bool(&json, "disconnected", true);
    mlx_json_end(&json);
    mlx_text_puts(&line, "\n");
    if (!line.failed) mlx_access_log_add(site->log, line.data, line.length);
    mlx_text_clear(&line);
  }
  mlx_job_release(job);
}
