// See sleep.h.
#include "server/core/sleep.h"

#include <string.h>

#include "base/json_writer.h"
#include "server/core/json_response.h"

// The value of |name| in a query without percent codes. False: the query has no such name. A value that is
// too long is cut to |size| - 1 bytes; callers give more than their longest valid value.
static bool query_value(const char *query, const char *name, char *out, size_t size) {
  const size_t length = strlen(name);
  for (const char *at = query; at; at = strchr(at, '&') ? strchr(at, '&') + 1 : NULL) {
    if (strncmp(at, name, length) || at[length] != '=') continue;
    const size_t found = strcspn(at + length + 1, "&"), kept = found < size ? found : size - 1;
    memcpy(out, at + length + 1, kept);
    out[kept] = 0;
    return true;
  }
  return false;
}

static mlx_status_t read_query(const char *query, int *out_level, bool *out_abort) {
  char text[16];
  *out_level = 1;
  *out_abort = true;
  if (query_value(query, "level", text, sizeof text)) {
    if (strcmp(text, "1") && strcmp(text, "2"))
      return mlx_error(MLX_INVALID_INPUT, "level: expected 1 or 2, not '%s'", text);
    *out_level = text[0] - '0';
  }
  if (query_value(query, "mode", text, sizeof text)) {
    if (strcmp(text, "abort") && strcmp(text, "wait"))
      return mlx_error(MLX_INVALID_INPUT, "mode: expected abort or wait, not '%s'", text);
    *out_abort = text[0] == 'a';
  }
  return NULL;
}

static mlx_status_t check_allowed(const mlx_job_t *job) {
  if (job->service->sleep_mode) return NULL;
  return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "clients of this server may not put models to sleep"),
                         "start the server with --enable-sleep-mode");
}

static mlx_status_t parse_sleep(mlx_job_t *job, const char **out_model) {
  int level;
  bool abort;
  *out_model = NULL;
  MLX_TRY(check_allowed(job));
  MLX_TRY(read_query(mlx_exchange_query(job->exchange), &level, &abort));
  MLX_TRY(mlx_models_sleep(job->service->models, level, abort));
  mlx_exchange_respond(job->exchange, 200, "application/json", "{}", 2);
  return NULL;
}

static mlx_status_t parse_wake(mlx_job_t *job, const char **out_model) {
  *out_model = NULL;
  MLX_TRY(check_allowed(job));
  MLX_TRY(mlx_models_wake(job->service->models));
  mlx_exchange_respond(job->exchange, 200, "application/json", "{}", 2);
  return NULL;
}

// parse has responded.
static bool answer(mlx_job_t *job, const char *model) {
  (void)job, (void)model;
  return true;
}

static void clear(mlx_job_t *job) { (void)job; }

static const mlx_job_kind_t sleep_kind = {.parse = parse_sleep, .answer = answer, .clear = clear};
static const mlx_job_kind_t wake_kind = {.parse = parse_wake, .answer = answer, .clear = clear};

mlx_status_t mlx_sleep_start(mlx_job_t *job) {
  mlx_job_start(job, &sleep_kind, NULL);
  return NULL;
}

mlx_status_t mlx_sleep_start_wake(mlx_job_t *job) {
  mlx_job_start(job, &wake_kind, NULL);
  return NULL;
}

void mlx_sleep_info(mlx_site_t *site, mlx_exchange_t *exchange) {
  mlx_text_t out = {0};
  mlx_json_writer_t json = {.out = &out};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_bool(&json, "is_sleeping", mlx_models_sleep_level(site->service.models) > 0);
  mlx_json_end(&json);
  mlx_respond_json(exchange, 200, &out);
}
