// A list in the order of use.
#include "server/api/stored_responses.h"

#include <string.h>
#include <uv.h>

#include "base/memory.h"

typedef struct entry {
  struct entry *newer, *older;
  char *id;
  size_t bytes;
  mlx_stored_response_t response;
} entry_t;

struct mlx_stored_responses {
  uv_mutex_t mutex;
  size_t max_count, max_bytes, count, bytes;
  entry_t *newest, *oldest;
};

mlx_status_t mlx_stored_responses_create(size_t max_count, size_t max_bytes, mlx_stored_responses_t **out) {
  MLX_TRY(mlx_alloc(1, sizeof **out, out));
  (*out)->max_count = max_count;
  (*out)->max_bytes = max_bytes;
  uv_mutex_init(&(*out)->mutex);
  return NULL;
}

void mlx_stored_response_clear(mlx_stored_response_t *response) {
  mlx_text_clear(&response->object);
  mlx_text_clear(&response->input);
  mlx_text_clear(&response->output);
}

static void free_entry(entry_t *entry) {
  if (!entry) return;
  mlx_stored_response_clear(&entry->response);
  mlx_free(entry->id);
  mlx_free(entry);
}

// ----------------------------------------------------------------------------------------------------------
// The list. The caller holds the mutex.

static void unlink_entry(mlx_stored_responses_t *r, entry_t *e) {
  *(e->newer ? &e->newer->older : &r->newest) = e->older;
  *(e->older ? &e->older->newer : &r->oldest) = e->newer;
}

static void make_newest(mlx_stored_responses_t *r, entry_t *e) {
  e->newer = NULL;
  e->older = r->newest;
  *(r->newest ? &r->newest->newer : &r->oldest) = e;
  r->newest = e;
}

static void drop_entry(mlx_stored_responses_t *r, entry_t *e) {
  unlink_entry(r, e);
  r->bytes -= e->bytes;
  --r->count;
  free_entry(e);
}

static entry_t *find_entry(mlx_stored_responses_t *r, const char *id) {
  entry_t *e = r->newest;
  while (e && strcmp(e->id, id)) e = e->older;
  return e;
}

// ----------------------------------------------------------------------------------------------------------

static mlx_status_t make_entry(const char *id, mlx_stored_response_t *inout, entry_t **out) {
  entry_t *e;
  mlx_status_t status = mlx_alloc(1, sizeof *e, &e);
  if (!status) {
    e->response = *inout;
    *inout = (mlx_stored_response_t){0};
    e->bytes = sizeof *e + strlen(id) + 1 + e->response.object.capacity + e->response.input.capacity +
               e->response.output.capacity;
    status = mlx_copy_text(id, strlen(id), &e->id);
  }
  mlx_stored_response_clear(inout);
  *out = status ? NULL : e;
  if (status) free_entry(e);
  return status;
}

mlx_status_t mlx_stored_responses_add(mlx_stored_responses_t *r, const char *id,
                                      mlx_stored_response_t *inout) {
  entry_t *e;
  MLX_TRY(make_entry(id, inout, &e));
  if (e->bytes > r->max_bytes) {
    free_entry(e);
    return NULL;
  }
  uv_mutex_lock(&r->mutex);
  while (r->count && (r->count >= r->max_count || r->bytes + e->bytes > r->max_bytes))
    drop_entry(r, r->oldest);
  make_newest(r, e);
  r->bytes += e->bytes;
  ++r->count;
  uv_mutex_unlock(&r->mutex);
  return NULL;
}

static mlx_status_t copy_text(const mlx_text_t *from, mlx_text_t *to) {
  if (from->length) mlx_text_append(to, from->data, from->length);
  return mlx_text_finish(to);
}

mlx_status_t mlx_stored_responses_find(mlx_stored_responses_t *r, const char *id, mlx_stored_response_t *out,
                                       bool *out_found) {
  *out = (mlx_stored_response_t){0};
  *out_found = false;
  if (!r) return NULL;
  mlx_status_t status = NULL;
  uv_mutex_lock(&r->mutex);
  entry_t *e = find_entry(r, id);
  if (e) {
    unlink_entry(r, e);
    make_newest(r, e);
    status = copy_text(&e->response.object, &out->object);
    if (!status) status = copy_text(&e->response.input, &out->input);
    if (!status) status = copy_text(&e->response.output, &out->output);
  }
  *out_found = e && !status;
  uv_mutex_unlock(&r->mutex);
  if (status) mlx_stored_response_clear(out);
  return status;
}

bool mlx_stored_responses_remove(mlx_stored_responses_t *r, const char *id) {
  uv_mutex_lock(&r->mutex);
  entry_t *e = find_entry(r, id);
  if (e) drop_entry(r, e);
  uv_mutex_unlock(&r->mutex);
  return e;
}

void mlx_stored_responses_free(mlx_stored_responses_t *r) {
  if (!r) return;
  while (r->count) drop_entry(r, r->oldest);
  uv_mutex_destroy(&r->mutex);
  mlx_free(r);
}
