// Answers requests about stored responses on a worker: their JSON may be long.
#include "server/core/stored.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/json_writer.h"
#include "base/memory.h"
#include "server/core/json_response.h"

#define PREFIX "/responses/"
#define ITEMS "/input_items"
#define MOST_ID 128
#define MOST_ITEMS 100  // of a page of input items
#define ITEMS_OF_PAGE 20

typedef struct stored_job {
  char id[MOST_ID + 1];
  bool wants_items;
} stored_job_t;

bool mlx_stored_is_path(const char *path, const char **out_allow) {
  if (strncmp(path, PREFIX, strlen(PREFIX))) return false;
  const char *id = path + strlen(PREFIX), *end = strchr(id, '/');
  if (!*id || end == id || (end && strcmp(end, ITEMS))) return false;
  if (!strcmp(id, "input_tokens")) return false;
  *out_allow = end ? "GET" : "GET, DELETE";
  return true;
}

static mlx_status_t missing(const char *id) {
  return mlx_status_hint(mlx_error(MLX_NOT_FOUND, "there is no response '%s'", id),
                         "the server keeps the last responses, in memory, unless `store` is false");
}

// ----------------------------------------------------------------------------------------------------------
// Input items

typedef struct page {
  size_t limit;
  bool ascending;
  char after[MOST_ID + 1];  // "": from the beginning
} page_t;

// The value of |key| in a raw query, as far as it fits. Ids and numbers need no percent-decoding.
static bool find_query(const char *query, const char *key, char *out, size_t size) {
  const size_t length = strlen(key);
  for (const char *at = query; *at; at += strcspn(at, "&"), at += *at == '&') {
    if (strncmp(at, key, length) || at[length] != '=') continue;
    const char *value = at + length + 1;
    const size_t count = strcspn(value, "&");
    if (count >= size) return false;
    memcpy(out, value, count);
    out[count] = 0;
    return true;
  }
  return false;
}

static mlx_status_t read_page(const char *query, page_t *out) {
  char text[24];
  *out = (page_t){.limit = ITEMS_OF_PAGE};
  if (find_query(query, "limit", text, sizeof text)) {
    char *end;
    const long limit = strtol(text, &end, 10);
    if (end == text || *end || limit < 1 || limit > MOST_ITEMS)
      return mlx_error(MLX_INVALID_INPUT, "limit: expected an integer from 1 to %d, not '%s'", MOST_ITEMS,
                       text);
    out->limit = (size_t)limit;
  }
  if (find_query(query, "order", text, sizeof text)) {
    out->ascending = !strcmp(text, "asc");
    if (!out->ascending && strcmp(text, "desc"))
      return mlx_error(MLX_INVALID_INPUT, "order: expected asc or desc, not '%s'", text);
  }
  find_query(query, "after", out->after, sizeof out->after);
  return NULL;
}

// Items of a request need no id, but clients expect one: it is made of the response's and the position.
static void name_item(const char *id, yyjson_val *item, size_t index, char *out, size_t size) {
  const char *own = yyjson_get_str(yyjson_obj_get(item, "id"));
  if (own && *own)
    snprintf(out, size, "%s", own);
  else
    snprintf(out, size, "item_%s_%zu", !strncmp(id, "resp_", 5) ? id + 5 : id, index);
}

static mlx_status_t put_item(const char *name, yyjson_val *item, mlx_text_t *out) {
  size_t index, max;
  yyjson_val *key, *value;
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "id", name);
  if (!yyjson_obj_get(item, "type")) mlx_json_put_text(&json, "type", "message");
  yyjson_obj_foreach(item, index, max, key, value) {
    if (yyjson_equals_str(key, "id")) continue;
    MLX_TRY(mlx_json_put(value, mlx_json_put_member(&json, yyjson_get_str(key), yyjson_get_len(key))));
  }
  mlx_json_end(&json);
  return NULL;
}

// The items of |list| that |page| asks for, as OpenAI's list.
static mlx_status_t put_page(const char *id, yyjson_val *list, const page_t *page, mlx_text_t *out) {
  size_t index, count, shown = 0, i = 0;
  yyjson_val *item, **items;
  char name[MOST_ID + 32], first[sizeof name] = "", last[sizeof name] = "";
  bool begun = !page->after[0];
  mlx_json_writer_t json = {.out = out};
  mlx_status_t status = NULL;
  MLX_TRY(mlx_alloc(yyjson_arr_size(list) + 1, sizeof *items, &items));
  yyjson_arr_foreach(list, index, count, item) items[index] = item;  // yyjson_arr_get walks from the start
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "object", "list");
  mlx_json_begin_list(&json, "data", MLX_JSON_COMPACT);
  for (; i < count && shown < page->limit && !status; ++i) {
    index = page->ascending ? i : count - 1 - i;
    name_item(id, items[index], index, name, sizeof name);
    if (!begun) {
      begun = !strcmp(name, page->after);
      continue;
    }
    ++shown;
    status = put_item(name, items[index], mlx_json_put_value(&json, NULL));
    if (!first[0]) memcpy(first, name, sizeof first);
    memcpy(last, name, sizeof last);
  }
  mlx_json_end(&json);
  mlx_json_put_text(&json, "first_id", first);
  mlx_json_put_text(&json, "last_id", last);
  mlx_json_put_bool(&json, "has_more", i < count);
  mlx_json_end(&json);
  mlx_free(items);
  return status;
}

static mlx_status_t put_items(const char *id, const char *query, const mlx_text_t *items, mlx_text_t *out) {
  page_t page;
  mlx_text_t list = {0};
  MLX_TRY(read_page(query, &page));
  mlx_text_puts(&list, "[");
  mlx_text_append(&list, items->data, items->length);
  mlx_text_puts(&list, "]");
  mlx_status_t status = mlx_text_finish(&list);
  yyjson_doc *doc = status ? NULL : yyjson_read(list.data, list.length, 0);
  if (!status && !doc) status = mlx_error(MLX_OUT_OF_MEMORY, "no memory for the items");
  if (!status) status = put_page(id, yyjson_doc_get_root(doc), &page, out);
  yyjson_doc_free(doc);
  mlx_text_clear(&list);
  return status;
}

// ----------------------------------------------------------------------------------------------------------

static mlx_status_t make_body(const mlx_job_t *job, mlx_text_t *out) {
  const stored_job_t *s = job->state;
  const char *query = mlx_exchange_query(job->exchange);
  mlx_stored_response_t response;
  char stream[8] = "";
  bool found;
  if (!strcmp(mlx_exchange_method(job->exchange), "DELETE")) {
    if (!mlx_stored_responses_remove(job->service->stored, s->id)) return missing(s->id);
    mlx_json_writer_t json = {.out = out};
    mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
    mlx_json_put_text(&json, "id", s->id);
    mlx_json_put_text(&json, "object", "response");
    mlx_json_put_bool(&json, "deleted", true);
    mlx_json_end(&json);
    return NULL;
  }
  if (find_query(query, "stream", stream, sizeof stream) && !strcmp(stream, "true"))
    return mlx_error(MLX_UNSUPPORTED, "stream: a stored response is sent as a whole");
  MLX_TRY(mlx_stored_responses_find(job->service->stored, s->id, &response, &found));
  if (!found) return missing(s->id);
  mlx_status_t status = NULL;
  if (s->wants_items)
    status = put_items(s->id, query, &response.input, out);
  else
    mlx_text_append(out, response.object.data, response.object.length);
  mlx_stored_response_clear(&response);
  return status;
}

static mlx_status_t parse(mlx_job_t *job, const char **out_model) {
  mlx_text_t body = {0};
  *out_model = NULL;
  mlx_status_t status = make_body(job, &body);
  if (!status) mlx_respond_json(job->exchange, 200, &body);
  mlx_text_clear(&body);
  return status;
}

// parse has responded: no model is needed.
static bool answer(mlx_job_t *job, const char *model) {
  (void)job, (void)model;
  return true;
}

static void clear(mlx_job_t *job) { mlx_free(job->state); }

static const mlx_job_kind_t stored_kind = {.parse = parse, .answer = answer, .clear = clear};

mlx_status_t mlx_stored_start(mlx_job_t *job, const char *path) {
  const char *id = path + strlen(PREFIX);
  const size_t length = strcspn(id, "/");
  stored_job_t *s;
  if (length > MOST_ID) return mlx_error(MLX_NOT_FOUND, "there is no response with so long an id");
  MLX_TRY(mlx_alloc(1, sizeof *s, &s));
  memcpy(s->id, id, length);
  s->wants_items = id[length];
  mlx_job_start(job, &stored_kind, s);
  return NULL;
}
