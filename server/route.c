// The table of endpoints.
#include "server/route.h"

#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/clock.h"
#include "server/embeddings.h"
#include "server/info.h"
#include "server/job.h"
#include "server/page.h"
#include "server/respond.h"
#include "server/texts.h"

typedef struct route {
  const char *method, *path;  // without /v1
  const char *name;           // for the log and the metrics
  const mlx_shape_t *shape;   // generates
  void (*info)(mlx_site_t *site, mlx_exchange_t *exchange);
  int text;       // mlx_text_endpoint_t + 1; 0: none
  int embedding;  // 1: OpenAI's; 2: Ollama's; 0: none
  bool is_open;   // needs no key
} route_t;

static const route_t routes[] = {
    {"POST", "/chat/completions", "chat", .shape = &mlx_shape_chat},
    {"POST", "/completions", "completion", .shape = &mlx_shape_completion},
    {"POST", "/responses", "responses", .shape = &mlx_shape_responses},
    {"POST", "/messages", "messages", .shape = &mlx_shape_messages},
    {"POST", "/messages/count_tokens", "count_tokens", .text = MLX_TEXT_COUNT + 1},
    {"POST", "/embeddings", "embeddings", .embedding = 1},
    {"GET", "/models", "models", .info = mlx_info_models},
    {"POST", "/api/chat", "ollama_chat", .shape = &mlx_shape_ollama_chat},
    {"POST", "/api/generate", "ollama_generate", .shape = &mlx_shape_ollama_generate},
    {"POST", "/api/embed", "ollama_embed", .embedding = 2},
    {"GET", "/api/tags", "ollama_tags", .info = mlx_info_tags},
    {"GET", "/api/ps", "ollama_ps", .info = mlx_info_running},
    {"GET", "/api/version", "ollama_version", .info = mlx_info_version},
    {"POST", "/api/show", "ollama_show", .text = MLX_TEXT_SHOW + 1},
    {"POST", "/tokenize", "tokenize", .text = MLX_TEXT_TOKENIZE + 1},
    {"POST", "/detokenize", "detokenize", .text = MLX_TEXT_DETOKENIZE + 1},
    {"POST", "/apply-template", "apply_template", .text = MLX_TEXT_TEMPLATE + 1},
    {"GET", "/props", "props", .text = MLX_TEXT_PROPS + 1},
    {"GET", "/model_info", "model_info", .text = MLX_TEXT_MODEL_INFO + 1},
    {"GET", "/server_info", "server_info", .info = mlx_info_server},
    {"GET", "/metrics", "metrics", .info = mlx_info_metrics},
    {"GET", "/health", "health", .info = mlx_info_health, .is_open = true},
};

// ----------------------------------------------------------------------------------------------------------
// Errors

static void respond_failure(mlx_exchange_t *exchange, const route_t *route, mlx_failure_kind_t kind,
                            mlx_status_t status) {
  const mlx_failure_t failure = {.kind = kind, .status = status};
  mlx_failure_respond(&failure, route && route->shape ? route->shape->error : NULL, exchange);
  mlx_status_free(status);
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
// CORS

// True if |origin| is one of the origins in |list|.
static bool has_origin(const char *list, const char *origin) {
  const size_t length = strlen(origin);
  for (const char *at = list; *at;) {
    const size_t size = strcspn(at, ",");
    if (size == length && !strncmp(at, origin, length)) return true;
    at += size;
    at += strspn(at, ", ");
  }
  return false;
}

static void add_cors(const mlx_site_t *site, mlx_exchange_t *exchange) {
  const char *origin = mlx_exchange_header(exchange, "origin");
  if (!site->cors || !origin) return;
  const bool any = !strcmp(site->cors, "*");
  if (!any && !has_origin(site->cors, origin)) return;
  mlx_exchange_set_header(exchange, "Access-Control-Allow-Origin", any ? "*" : origin);
  if (!any) mlx_exchange_set_header(exchange, "Vary", "Origin");
}

static void respond_options(const mlx_site_t *site, mlx_exchange_t *exchange) {
  const char *headers = mlx_exchange_header(exchange, "access-control-request-headers");
  mlx_exchange_set_header(exchange, "Allow", "GET, HEAD, POST, OPTIONS");
  if (site->cors) {
    mlx_exchange_set_header(exchange, "Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS");
    mlx_exchange_set_header(exchange, "Access-Control-Allow-Headers",
                            headers ? headers : "Authorization, Content-Type, X-Api-Key");
    mlx_exchange_set_header(exchange, "Access-Control-Max-Age", "86400");
  }
  mlx_exchange_respond(exchange, 204, "text/plain", "", 0);
}

// ----------------------------------------------------------------------------------------------------------
// Finding

static const char *without_version(const char *path) { return strncmp(path, "/v1/", 4) ? path : path + 3; }

// The route of a path and a method. If only the path is known, *|out_allow| is its method.
static const route_t *find_route(const char *path, const char *method, const char **out_allow) {
  const char *wanted = strcmp(method, "HEAD") ? method : "GET";
  *out_allow = NULL;
  for (size_t i = 0; i < sizeof routes / sizeof *routes; ++i) {
    if (strcmp(routes[i].path, path)) continue;
    if (!strcmp(routes[i].method, wanted)) return &routes[i];
    *out_allow = routes[i].method;
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

static mlx_status_t start(mlx_site_t *site, const route_t *route, mlx_exchange_t *exchange) {
  if (route->shape) return mlx_job_start(&site->service, route->shape, exchange);
  if (route->embedding) return mlx_embeddings_start(&site->service, route->embedding == 2, exchange);
  if (route->text) return mlx_text_start(&site->service, (mlx_text_endpoint_t)(route->text - 1), exchange);
  route->info(site, exchange);
  return NULL;
}

static void handle(mlx_site_t *site, const route_t *route, mlx_exchange_t *exchange) {
  if (!route->is_open && !is_allowed(site, exchange)) {
    respond_failure(exchange, route, MLX_FAILURE_KEY,
                    mlx_status_hint(mlx_error(MLX_USAGE, "no valid API key"),
                                    "send the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'"));
  } else if (site->draining && !route->info) {
    respond_failure(exchange, route, MLX_FAILURE_DRAIN,
                    mlx_error(MLX_UNAVAILABLE, "the server is shutting down"));
  } else {
    mlx_status_t status = start(site, route, exchange);
    if (status) respond_failure(exchange, route, MLX_FAILURE_REQUEST, status);
  }
}

// GET /v1/models/NAME, where NAME may have slashes.
static bool handle_model(mlx_site_t *site, const char *path, mlx_exchange_t *exchange) {
  if (strncmp(path, "/models/", 8) || strcmp(mlx_exchange_method(exchange), "GET")) return false;
  mlx_status_t status = is_allowed(site, exchange) ? mlx_info_model(site, path + 8, exchange)
                                                   : mlx_error(MLX_USAGE, "no valid API key");
  if (status)
    respond_failure(exchange, NULL,
                    mlx_status_code(status) == MLX_USAGE ? MLX_FAILURE_KEY : MLX_FAILURE_REQUEST, status);
  return true;
}

static void respond_unknown(mlx_exchange_t *exchange, const char *allow) {
  const char *method = mlx_exchange_method(exchange), *path = mlx_exchange_path(exchange);
  if (allow) {
    mlx_exchange_set_header(exchange, "Allow", allow);
    respond_failure(exchange, NULL, MLX_FAILURE_METHOD,
                    mlx_error(MLX_USAGE, "%s is not possible for %s: use %s", method, path, allow));
  } else {
    respond_failure(exchange, NULL, MLX_FAILURE_REQUEST,
                    mlx_error(MLX_NOT_FOUND, "there is no endpoint %s %s", method, path));
  }
}

static const char *name_of(const route_t *route, const mlx_page_file_t *page, bool is_model) {
  return route ? route->name : page ? "page" : is_model ? "model" : "unknown";
}

void mlx_route_request(mlx_site_t *site, mlx_exchange_t *exchange) {
  const char *method = mlx_exchange_method(exchange), *path = without_version(mlx_exchange_path(exchange));
  const char *allow;
  const route_t *route = find_route(path, method, &allow);
  const mlx_page_file_t *page =
      !strcmp(method, "GET") || !strcmp(method, "HEAD") ? find_page(site, mlx_exchange_path(exchange)) : NULL;
  mlx_record_t *record;
  mlx_status_t status = mlx_record_create(name_of(route, page, !strncmp(path, "/models/", 8)), &record);
  if (status) {
    respond_failure(exchange, route, MLX_FAILURE_REQUEST, status);
    return;
  }
  mlx_exchange_set_user(exchange, record);
  add_cors(site, exchange);
  if (!strcmp(method, "OPTIONS"))
    respond_options(site, exchange);
  else if (route)
    handle(site, route, exchange);
  else if (page)
    respond_page(page, exchange);
  else if (!handle_model(site, path, exchange))
    respond_unknown(exchange, allow);
}

// ----------------------------------------------------------------------------------------------------------
// Log

static void put_times(mlx_text_t *line, const mlx_record_t *record, double seconds) {
  const int64_t first = record ? atomic_load(&record->first_token_us) : 0;
  mlx_text_printf(line, ",\"seconds\":%.6f", seconds);
  if (!record || !atomic_load(&record->prompt_tokens)) return;
  mlx_put_int(line, "prompt_tokens", atomic_load(&record->prompt_tokens));
  mlx_put_int(line, "cached_tokens", atomic_load(&record->cached_tokens));
  mlx_put_int(line, "output_tokens", atomic_load(&record->output_tokens));
  if (first) mlx_text_printf(line, ",\"first_token_seconds\":%.6f", (double)first * 1e-6);
}

void mlx_route_ended(mlx_site_t *site, const mlx_exchange_t *exchange, double seconds, uint64_t sent_bytes,
                     bool gone) {
  mlx_record_t *record = mlx_exchange_user(exchange);
  const char *model = record ? atomic_load(&record->model) : NULL;
  mlx_metrics_response(site->service.metrics, record, mlx_exchange_status(exchange), seconds, gone);
  if (site->log) {
    mlx_text_t line = {0};
    mlx_text_puts(&line, "{");
    mlx_put_int(&line, "time", (int64_t)time(NULL));
    mlx_put_text(&line, "client", mlx_exchange_remote(exchange));
    mlx_put_text(&line, "method", mlx_exchange_method(exchange));
    mlx_put_text(&line, "path", mlx_exchange_path(exchange));
    mlx_put_int(&line, "status", mlx_exchange_status(exchange));
    mlx_put_int(&line, "bytes", (int64_t)sent_bytes);
    if (model) mlx_put_text(&line, "model", model);
    put_times(&line, record, seconds);
    if (gone) mlx_put_bool(&line, "disconnected", true);
    mlx_text_puts(&line, "}\n");
    if (!line.failed) mlx_access_log_add(site->log, line.data, line.length);
    mlx_text_clear(&line);
  }
  mlx_record_release(record);
}
