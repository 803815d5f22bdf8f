// A list of grammars, most recently used first.
#include "server/core/grammars.h"

#include <string.h>
#include <uv.h>

#include "base/memory.h"

struct mlx_cached_grammar {
  char *text;  // owned
  size_t length;
  mlx_grammar_t *grammar;  // owned
  size_t users;
  mlx_cached_grammar_t *next;
};

struct mlx_grammars {
  uv_mutex_t mutex;
  mlx_cached_grammar_t *first;
  size_t capacity;
};

static void free_entry(mlx_cached_grammar_t *entry) {
  mlx_grammar_free(entry->grammar);
  mlx_free(entry->text);
  mlx_free(entry);
}

// Moves the entry with |text| to the front and adds a user. NULL: there is none.
static mlx_cached_grammar_t *find_locked(mlx_grammars_t *g, const char *text, size_t length) {
  for (mlx_cached_grammar_t **at = &g->first; *at; at = &(*at)->next) {
    mlx_cached_grammar_t *entry = *at;
    if (entry->length != length || memcmp(entry->text, text, length)) continue;
    *at = entry->next;
    entry->next = g->first;
    g->first = entry;
    ++entry->users;
    return entry;
  }
  return NULL;
}

// Removes the least recently used entries without users.
static void shrink_locked(mlx_grammars_t *g) {
  size_t kept = 0;
  for (mlx_cached_grammar_t **at = &g->first; *at;) {
    mlx_cached_grammar_t *entry = *at;
    if (entry->users || kept < g->capacity) {
      kept += !entry->users;
      at = &entry->next;
    } else {
      *at = entry->next;
      free_entry(entry);
    }
  }
}

static mlx_status_t compile(const char *gbnf, size_t length, mlx_cached_grammar_t **out) {
  mlx_cached_grammar_t *entry;
  MLX_TRY(mlx_alloc(1, sizeof *entry, &entry));
  entry->length = length;
  entry->users = 1;
  mlx_status_t status = mlx_copy_text(gbnf, length, &entry->text);
  if (!status) status = mlx_grammar_create("grammar", gbnf, length, &entry->grammar);
  if (status) {
    free_entry(entry);
    return status;
  }
  *out = entry;
  return NULL;
}

mlx_status_t mlx_grammars_get(mlx_grammars_t *g, const char *gbnf, size_t length,
                              mlx_cached_grammar_t **out_grammar) {
  uv_mutex_lock(&g->mutex);
  *out_grammar = find_locked(g, gbnf, length);
  uv_mutex_unlock(&g->mutex);
  if (*out_grammar) return NULL;
  mlx_cached_grammar_t *entry;
  MLX_TRY(compile(gbnf, length, &entry));  // two threads may compile the same text: both entries are right
  uv_mutex_lock(&g->mutex);
  entry->next = g->first;
  g->first = entry;
  shrink_locked(g);
  uv_mutex_unlock(&g->mutex);
  *out_grammar = entry;
  return NULL;
}

void mlx_grammars_put(mlx_grammars_t *g, mlx_cached_grammar_t *grammar) {
  if (!grammar) return;
  uv_mutex_lock(&g->mutex);
  --grammar->users;
  shrink_locked(g);
  uv_mutex_unlock(&g->mutex);
}

const mlx_grammar_t *mlx_cached_grammar(const mlx_cached_grammar_t *grammar) {
  return grammar ? grammar->grammar : NULL;
}

mlx_status_t mlx_grammars_create(size_t capacity, mlx_grammars_t **out_grammars) {
  MLX_TRY(mlx_alloc(1, sizeof **out_grammars, out_grammars));
  (*out_grammars)->capacity = capacity;
  uv_mutex_init(&(*out_grammars)->mutex);
  return NULL;
}

void mlx_grammars_free(mlx_grammars_t *g) {
  if (!g) return;
  for (mlx_cached_grammar_t *next; g->first; g->first = next) {
    next = g->first->next;
    free_entry(g->first);
  }
  uv_mutex_destroy(&g->mutex);
  mlx_free(g);
}
