// Pulls a model with the report of a download as Ollama's stream, deletes models, and gives names to them.
#include "server/core/library.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/json_writer.h"
#include "base/memory.h"
#include "open/locate.h"
#include "open/removal.h"
#include "server/api/fields.h"
#include "server/api/ollama.h"
#include "server/api/ollama_text.h"
#include "server/core/folders.h"
#include "server/core/json_response.h"
#include "server/core/opening.h"

#define MOST_COPY_BODY 4096  // bytes: it is read on the loop thread
#define MOST_COPIES 256      // names that clients give

struct mlx_library {
  mlx_library_rules_t rules;
  atomic_bool pulling;
  size_t copies;  // loop thread
};

mlx_status_t mlx_library_create(const mlx_library_rules_t *rules, mlx_library_t **out_library) {
  MLX_TRY(mlx_alloc(1, sizeof **out_library, out_library));
  (*out_library)->rules = *rules;
  atomic_init(&(*out_library)->pulling, false);
  return NULL;
}

void mlx_library_free(mlx_library_t *library) { mlx_free(library); }

// ----------------------------------------------------------------------------------------------------------
// Rules

static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c; }

// Remembers the last '*', so that the time is at most the product of both lengths.
static bool matches(const char *pattern, size_t length, const char *text) {
  size_t at = 0, star = SIZE_MAX;
  const char *retry = NULL;
  while (*text) {
    if (at < length && pattern[at] == '*') {
      star = at++;
      retry = text;
    } else if (at < length && lower(pattern[at]) == lower(*text)) {
      ++at;
      ++text;
    } else if (star != SIZE_MAX) {
      at = star + 1;
      text = ++retry;
    } else {
      return false;
    }
  }
  while (at < length && pattern[at] == '*') ++at;
  return at == length;
}

// A copy of |status| for clients, without the folders of this machine. Takes |status|.
static mlx_status_t without_folders(mlx_status_t status) {
  mlx_text_t message = {0}, hint = {0};
  if (!status) return NULL;
  mlx_hide_folders(mlx_status_message(status), &message);
  mlx_hide_folders(mlx_status_hint_text(status), &hint);
  mlx_status_t shown = mlx_error(mlx_status_code(status), "%s", message.data ? message.data : "");
  if (hint.length) shown = mlx_status_hint(shown, "%s", hint.data);
  mlx_text_clear(&message);
  mlx_text_clear(&hint);
  mlx_status_free(status);
  return shown;
}

static bool is_latest(const char *name) { return mlx_ends_with_nocase(name, ":latest"); }

// True if |name| or |ref| matches one of |patterns|. Case does not matter. |ref| may be NULL.
static bool allows(const char *patterns, const char *name, const char *ref) {
  for (const char *at = patterns; at && *at; at += strcspn(at, ","), at += *at == ',') {
    const size_t length = strcspn(at, ",");
    if (length && (matches(at, length, name) || (ref && matches(at, length, ref)))) return true;
  }
  return false;
}

// ----------------------------------------------------------------------------------------------------------
// Pull

typedef struct pull_job {
  mlx_job_t *job;
  char *name, *ref;  // owned: as the client wrote it, without ":latest"; hf:ORG/NAME...
  bool stream, begun;
} pull_job_t;

static void put_line(pull_job_t *p, const mlx_text_t *line) {
  if (!p->stream || line->failed) return;
  if (!p->begun) mlx_exchange_begin(p->job->exchange, 200, mlx_api_ollama_chat.stream_type);
  p->begun = true;
  mlx_exchange_write(p->job->exchange, line->data, line->length);
}

static void put_status(pull_job_t *p, const char *status) {
  mlx_text_t line = {0};
  mlx_json_writer_t json = {.out = &line};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_ollama_put_text(&json, "status", status);
  mlx_json_end(&json);
  mlx_text_puts(&line, "\n");
  put_line(p, &line);
  mlx_text_clear(&line);
}

// "1.2 GB", as base/meter.h writes it.
static bool read_bytes(const char *text, double *out) {
  static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
  char unit[4];
  double scale = 1;
  if (sscanf(text, "%lf %3[kMGTB]", out, unit) != 2) return false;
  for (size_t i = 0; i < sizeof units / sizeof *units; ++i, scale *= 1000) {
    if (strcmp(unit, units[i])) continue;
    *out *= scale;
    return true;
  }
  return false;
}

// A progress text: "pulling org/name: 1.2 GB of 4.6 GB, 310.0 MB/s, 11 s left". Clients show the part that is
// done.
static void on_progress(void *user, mlx_report_kind_t kind, const char *text) {
  pull_job_t *p = user;
  const char *of = strstr(text, " of "), *done = of;
  double completed, total;
  mlx_text_t line = {0};
  mlx_json_writer_t json = {.out = &line};
  if (kind != MLX_REPORT_PROGRESS || !*text) return;
  while (done && done > text && (done[-1] != ' ' || done[-2] != ':')) --done;
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_format(&json, "status", "pulling %.200s", p->name);
  if (of && read_bytes(done, &completed) && read_bytes(of + 4, &total)) {
    mlx_ollama_put_text(&json, "digest", p->ref);
    mlx_json_put_int(&json, "total", (int64_t)total);
    mlx_json_put_int(&json, "completed", (int64_t)completed);
  }
  mlx_json_end(&json);
  mlx_text_puts(&line, "\n");
  put_line(p, &line);
  mlx_text_clear(&line);
}

static mlx_status_t read_pull(const mlx_place_t *root, pull_job_t *p) {
  static const mlx_field_t fields[] = {MLX_READ("model"),
                                       MLX_READ("name"),
                                       MLX_READ("stream"),
                                       MLX_IGNORE("username", "the server's own credentials are used"),
                                       MLX_IGNORE("password", "the server's own credentials are used"),
                                       MLX_REFUSE_VALUE("insecure", "leave it out"),
                                       MLX_FIELDS_END};
  const char *model = "", *name = "";
  const mlx_place_t place = mlx_place_key(root, "model");
  MLX_TRY(mlx_fields_check(root, fields, false));
  MLX_TRY(mlx_field_text(root, "name", &name));
  MLX_TRY(mlx_field_text(root, "model", &model));
  MLX_TRY(mlx_field_bool(root, "stream", &p->stream));
  if (!*model) model = name;
  if (!*model) return mlx_field_error(&place, MLX_INVALID_INPUT, "missing; it is required");
  return mlx_copy_text(model, strlen(model) - (is_latest(model) ? strlen(":latest") : 0), &p->name);
}

static mlx_status_t check_pull(const mlx_job_t *job, pull_job_t *p) {
  const mlx_library_t *library = job->service->library;
  if (!library->rules.pull)
    return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "clients of this server may not pull models"),
                           "start the server with --allow-pull PATTERNS, or run `mlxcel pull %s` there",
                           p->name);
  if (!job->service->opening->options->stored)
    return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "the models of this server are fixed"),
                           "start the server without a model: it then serves what is pulled");
  MLX_TRY(mlx_locate_reference(p->name, &p->ref));
  if (!p->ref) return mlx_error(MLX_NOT_FOUND, "model: '%s' is no short name and no model of a hub", p->name);
  const char *short_name = mlx_locate_short_name(p->name);
  if (allows(library->rules.pull, p->name, p->ref)) return NULL;
  if (short_name && allows(library->rules.pull, short_name, NULL)) return NULL;
  return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "model: '%s' may not be pulled", p->name),
                         "the server allows %s", library->rules.pull);
}

static mlx_status_t parse(mlx_job_t *job, const char **out_model) {
  pull_job_t *p = job->state;
  size_t length;
  yyjson_doc *doc;
  const char *body = mlx_exchange_body(job->exchange, &length);
  *out_model = NULL;
  MLX_TRY(mlx_fields_parse(body, length, &doc));
  const mlx_place_t root = mlx_place_root(doc, job->unknown);
  mlx_status_t status = read_pull(&root, p);
  yyjson_doc_free(doc);
  if (!status) status = check_pull(job, p);
  if (!status && atomic_exchange(&job->service->library->pulling, true))
    status = mlx_status_hint(mlx_error(MLX_UNAVAILABLE, "another model is being pulled"), "try again later");
  return status;
}

static mlx_status_t pull(const pull_job_t *p) {
  const mlx_service_t *service = p->job->service;
  const mlx_report_t report = {
      .emit = on_progress, .user = (void *)(uintptr_t)p, .cancel = service->opening->cancel};
  char *path;
  MLX_TRY(mlx_locate(p->ref, &report, &path));
  mlx_free(path);
  return mlx_models_scan(service->models);
}

// The worker downloads: the server has others for requests.
static bool answer(mlx_job_t *job, const char *model) {
  pull_job_t *p = job->state;
  (void)model;
  put_status(p, "pulling manifest");
  mlx_status_t status = without_folders(pull(p));
  atomic_store(&job->service->library->pulling, false);
  const mlx_failure_t failure = {.status = status};
  if (!p->stream && status) {
    mlx_failure_respond(&failure, job->error, job->exchange);
  } else if (!p->stream) {
    mlx_text_t body = {0};
    mlx_json_writer_t json = {.out = &body};
    mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
    mlx_json_put_text(&json, "status", "success");
    mlx_json_end(&json);
    mlx_respond_json(job->exchange, 200, &body);
  } else if (status) {
    mlx_failure_text_t text;
    mlx_text_t line = {0};
    mlx_failure_describe(&failure, &text);
    mlx_ollama_write_error(&text.error, &line);
    mlx_text_puts(&line, "\n");
    put_line(p, &line);
    mlx_text_clear(&line);
    mlx_exchange_end(job->exchange);
  } else {
    put_status(p, "success");
    mlx_exchange_end(job->exchange);
  }
  mlx_status_free(status);
  return true;
}

static void clear(mlx_job_t *job) {
  pull_job_t *p = job->state;
  mlx_free(p->name);
  mlx_free(p->ref);
  mlx_free(p);
}

static const mlx_job_kind_t pull_kind = {.parse = parse, .answer = answer, .clear = clear};

mlx_status_t mlx_library_start_pull(mlx_job_t *job) {
  pull_job_t *p;
  MLX_TRY(mlx_alloc(1, sizeof *p, &p));
  p->job = job;
  p->stream = true;
  mlx_job_start(job, &pull_kind, p);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Delete

static mlx_status_t remove_stored(const char *path) {
  mlx_cache_cleared_t cleared;
  mlx_removal_t removal = {0};
  mlx_cache_t *cache;
  MLX_TRY(mlx_cache_open(NULL, &cache));
  mlx_status_t status = mlx_removal_plan(cache, path, &removal);
  if (!status) status = mlx_removal_run(&removal, &cleared);
  mlx_removal_clear(&removal);
  mlx_cache_close(cache);
  return without_folders(status);
}

// Whether |name| names this model only: its name in lists, a short name or a reference to a hub. A part of a
// name, which requests may use, is not enough to delete a model.
static mlx_status_t names_whole(const mlx_served_model_t *model, const char *name, bool *out) {
  const char *own = mlx_served_model_name(model);
  const size_t length = strlen(name) - (is_latest(name) ? strlen(":latest") : 0);
  char *whole, *ref;
  *out = !strcasecmp(own, name) || (strlen(own) == length && !strncasecmp(own, name, length));
  if (*out) return NULL;
  MLX_TRY(mlx_copy_text(name, length, &whole));
  mlx_status_t status = mlx_locate_reference(whole, &ref);
  *out = !status && ref;
  mlx_free(whole);
  mlx_free(ref);
  return status;
}

static mlx_status_t remove_named(mlx_models_t *models, const char *name) {
  bool whole = false;
  if (mlx_models_is_alias(models, name))
    return mlx_status_hint(mlx_error(MLX_INVALID_INPUT, "model: '%s' is another name of a model", name),
                           "it lasts until the server ends; to delete the model, give its own name");
  const mlx_served_model_t *model = mlx_models_find(models, name);
  if (model) MLX_TRY(names_whole(model, name, &whole));
  return whole ? remove_stored(mlx_served_model_path(model)) : mlx_models_missing_error(models, name);
}

static mlx_status_t parse_delete(mlx_job_t *job, const char **out_model) {
  const mlx_service_t *service = job->service;
  size_t length;
  char *name;
  const char *body = mlx_exchange_body(job->exchange, &length);
  *out_model = NULL;
  if (!service->library->rules.remove)
    return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "clients of this server may not delete models"),
                           "start the server with --allow-delete, or run `mlxcel rm NAME` there");
  if (!service->opening->options->stored)
    return mlx_error(MLX_UNSUPPORTED, "the models of this server are fixed: it deletes none of them");
  MLX_TRY(mlx_ollama_parse_show(body, length, job->unknown, &name));
  mlx_status_t status = remove_named(service->models, name);
  mlx_free(name);
  if (!status) status = mlx_models_scan(service->models);
  if (!status) mlx_exchange_respond(job->exchange, 200, "application/json", "{}", 2);
  return status;
}

// parse has responded.
static bool answer_delete(mlx_job_t *job, const char *model) {
  (void)job, (void)model;
  return true;
}

static void clear_delete(mlx_job_t *job) { (void)job; }

static const mlx_job_kind_t delete_kind = {
    .parse = parse_delete, .answer = answer_delete, .clear = clear_delete};

mlx_status_t mlx_library_start_delete(mlx_job_t *job) {
  mlx_job_start(job, &delete_kind, NULL);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Copy

static mlx_status_t copy(mlx_site_t *site, const mlx_place_t *root) {
  static const mlx_field_t fields[] = {MLX_READ("source"), MLX_READ("destination"), MLX_FIELDS_END};
  mlx_library_t *library = site->service.library;
  const char *names[2] = {NULL, NULL};
  MLX_TRY(mlx_fields_check(root, fields, false));
  for (int i = 0; i < 2; ++i) {
    const mlx_place_t place = mlx_place_key(root, fields[i].name);
    MLX_TRY(mlx_field_text(root, fields[i].name, &names[i]));
    if (!names[i] || !*names[i]) return mlx_field_expected(&place, "the name of a model");
  }
  const mlx_served_model_t *source = mlx_models_find(site->service.models, names[0]),
                           *other = mlx_models_find(site->service.models, names[1]);
  if (!source) return mlx_models_missing_error(site->service.models, names[0]);
  if (other == source) return NULL;
  if (other) return mlx_error(MLX_INVALID_INPUT, "destination: another model is called '%s'", names[1]);
  if (library->copies == MOST_COPIES)
    return mlx_error(MLX_UNAVAILABLE, "the server has %d names of clients already", MOST_COPIES);
  MLX_TRY(mlx_models_alias(site->service.models, names[1], names[0]));
  ++library->copies;
  return NULL;
}

static mlx_status_t read_copy(mlx_site_t *site, mlx_exchange_t *exchange) {
  size_t length;
  yyjson_doc *doc;
  const char *body = mlx_exchange_body(exchange, &length);
  if (!site->service.library->rules.copy)
    return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "clients of this server may not name models"),
                           "start the server with --allow-copy");
  if (length > MOST_COPY_BODY)
    return mlx_error(MLX_INVALID_INPUT, "the body has more than %d bytes", MOST_COPY_BODY);
  MLX_TRY(mlx_fields_parse(body, length, &doc));
  const mlx_place_t root = mlx_place_root(doc, NULL);
  mlx_status_t status = copy(site, &root);
  yyjson_doc_free(doc);
  return status;
}

void mlx_library_copy(mlx_site_t *site, mlx_exchange_t *exchange) {
  mlx_status_t status = read_copy(site, exchange);
  const mlx_failure_t failure = {.status = status};
  if (status)
    mlx_failure_respond(&failure, mlx_ollama_write_error, exchange);
  else
    mlx_exchange_respond(exchange, 200, "application/json", "{}", 2);
  mlx_status_free(status);
}
