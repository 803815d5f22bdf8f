// Notes each set of ignored fields once.
#include "server/core/ignored_fields.h"

#include <string.h>
#include <uv.h>

#include "base/memory.h"

#define MOST_NOTES 256   // sets of fields; a client could send any number
#define MOST_HEADER 512  // bytes of the header's value

struct mlx_ignored_fields {
  const mlx_report_t *report;
  uv_mutex_t mutex;
  uint64_t hashes[MOST_NOTES];  // of the sets that were noted
  size_t count;
};

mlx_status_t mlx_ignored_fields_create(const mlx_report_t *report, mlx_ignored_fields_t **out_fields) {
  MLX_TRY(mlx_alloc(1, sizeof **out_fields, out_fields));
  (*out_fields)->report = report;
  uv_mutex_init(&(*out_fields)->mutex);
  return NULL;
}

void mlx_ignored_fields_free(mlx_ignored_fields_t *fields) {
  if (!fields) return;
  uv_mutex_destroy(&fields->mutex);
  mlx_free(fields);
}

// FNV-1a.
static uint64_t add_hash(uint64_t hash, const char *text) {
  for (; *text; ++text) hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
  return hash;
}

// Returns false if the set was noted before, or if there are too many sets.
static bool is_new(mlx_ignored_fields_t *fields, uint64_t hash, bool *out_last) {
  bool found = false;
  uv_mutex_lock(&fields->mutex);
  for (size_t i = 0; i < fields->count; ++i) found = found || fields->hashes[i] == hash;
  found = found || fields->count == MOST_NOTES;
  if (!found) fields->hashes[fields->count++] = hash;
  *out_last = fields->count == MOST_NOTES;
  uv_mutex_unlock(&fields->mutex);
  return !found;
}

// Names of fields may have any characters; a header's value has only those of ASCII.
static void set_header(const char *name, const mlx_text_t *paths, mlx_exchange_t *exchange) {
  char value[MOST_HEADER + 1];
  size_t length = paths->length < MOST_HEADER ? paths->length : MOST_HEADER;
  for (size_t i = 0; i < length; ++i) {
    const char c = paths->data[i];
    value[i] = c >= ' ' && c <= '~' ? c : '?';
  }
  value[length] = 0;
  mlx_exchange_set_header(exchange, name, value);
}

static void add(mlx_ignored_fields_t *fields, const char *header, const char *what, const char *endpoint,
                const mlx_text_t *names, mlx_exchange_t *exchange) {
  bool last;
  if (!names->length || names->failed) return;
  set_header(header, names, exchange);
  const uint64_t hash =
      add_hash(add_hash(add_hash(UINT64_C(0xcbf29ce484222325), endpoint), what), names->data);
  if (!is_new(fields, hash, &last)) return;
  mlx_report_note(fields->report, "%s: %s: %.*s%s", endpoint, what, MOST_HEADER, names->data,
                  last ? " (further ones are not noted)" : "");
}

void mlx_ignored_fields_add(mlx_ignored_fields_t *fields, const char *endpoint, const mlx_text_t *paths,
                            mlx_exchange_t *exchange) {
  add(fields, "X-Mlxcel-Ignored", "ignored unknown fields", endpoint, paths, exchange);
}

void mlx_ignored_fields_add_clamped(mlx_ignored_fields_t *fields, const char *endpoint,
                                    const mlx_text_t *names, mlx_exchange_t *exchange) {
  add(fields, "X-Mlxcel-Clamped", "limited", endpoint, names, exchange);
}

void mlx_ignored_fields_add_keywords(mlx_ignored_fields_t *fields, const char *endpoint,
                                     const mlx_text_t *keywords, mlx_exchange_t *exchange) {
  add(fields, "X-Mlxcel-Unenforced", "schema keywords that are not enforced", endpoint, keywords, exchange);
}
