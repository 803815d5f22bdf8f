// Automata: construction, and whether they accept a text.
#include "grammar/nfa.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

mlx_status_t mlx_nfa_add(mlx_nfa_t *nfa, mlx_nfa_kind_t kind, uint32_t out0, uint32_t out1,
                         uint32_t *out_state) {
  MLX_TRY(mlx_reserve(nfa->count + 1, sizeof *nfa->states, &nfa->capacity, &nfa->states));
  nfa->states[nfa->count] = (mlx_nfa_state_t){.kind = kind, .out = {out0, out1}};
  *out_state = (uint32_t)nfa->count++;
  return NULL;
}

static int compare_ranges(const void *a, const void *b) {
  const mlx_nfa_range_t *x = a, *y = b;
  return (x->first > y->first) - (x->first < y->first);
}

mlx_status_t mlx_nfa_add_set(mlx_nfa_t *nfa, mlx_nfa_range_t *ranges, size_t count, uint32_t target,
                             uint32_t *out_state) {
  MLX_TRY(mlx_nfa_add(nfa, MLX_NFA_SET, target, 0, out_state));
  MLX_TRY(mlx_reserve(nfa->range_count + count, sizeof *nfa->ranges, &nfa->range_capacity, &nfa->ranges));
  if (count) qsort(ranges, count, sizeof *ranges, compare_ranges);
  const size_t first = nfa->range_count;
  for (size_t i = 0; i < count; ++i) {
    mlx_nfa_range_t *last = &nfa->ranges[nfa->range_count - 1];
    if (nfa->range_count > first && ranges[i].first <= last->last + 1) {
      if (ranges[i].last > last->last) last->last = ranges[i].last;
    } else {
      nfa->ranges[nfa->range_count++] = ranges[i];
    }
  }
  nfa->states[*out_state].first_range = (uint32_t)first;
  nfa->states[*out_state].range_count = (uint32_t)(nfa->range_count - first);
  return NULL;
}

void mlx_nfa_free(mlx_nfa_t *nfa) {
  mlx_free(nfa->states);
  mlx_free(nfa->ranges);
  *nfa = (mlx_nfa_t){0};
}

static uint32_t read_character(const char *text, size_t length, size_t *out_size) {
  const int size = mlx_utf8_length(text, length);
  const unsigned char *c = (const unsigned char *)text;
  *out_size = size > 0 ? (size_t)size : 1;
  if (size <= 1) return c[0];
  uint32_t out = c[0] & (0xffu >> (size + 1));
  for (int i = 1; i < size; ++i) out = out << 6 | (c[i] & 63);
  return out;
}

// ----------------------------------------------------------------------------------------------------------
// Excluded names

static int compare_names(const void *a, const void *b) {
  const mlx_nfa_name_t *x = a, *y = b;
  const int order = memcmp(x->bytes, y->bytes, x->length < y->length ? x->length : y->length);
  return order ? order : (x->length > y->length) - (x->length < y->length);
}

typedef struct trie_node {  // the names [first, last) share their first |depth| bytes
  size_t first, last, depth;
  uint32_t state;  // a SPLIT to complete
} trie_node_t;

typedef struct trie {
  mlx_nfa_t *nfa;
  const mlx_nfa_name_t *names;
  trie_node_t *nodes;
  size_t count, capacity;
  mlx_nfa_range_t *others;  // characters with which no name continues at the node
  size_t other_count, other_capacity;
  uint32_t accept, rest;  // rest: any text
} trie_t;

static mlx_status_t add_other(trie_t *t, uint32_t first, uint32_t last) {
  if (first > last) return NULL;
  MLX_TRY(mlx_reserve(t->other_count + 1, sizeof *t->others, &t->other_capacity, &t->others));
  t->others[t->other_count++] = (mlx_nfa_range_t){first, last};
  return NULL;
}

// Appends |state| to the alternatives of the node: the node's last SPLIT gets it, and a new last SPLIT.
static mlx_status_t add_alternative(trie_t *t, uint32_t *inout_last, uint32_t state) {
  uint32_t next;
  MLX_TRY(mlx_nfa_add(t->nfa, MLX_NFA_SPLIT, state, state, &next));
  t->nfa->states[*inout_last].out[1] = next;
  *inout_last = next;
  return NULL;
}

// The names are sorted by bytes, which is also the order of characters in UTF-8.
static mlx_status_t add_node(trie_t *t, trie_node_t node) {
  uint32_t last = node.state, from = 0, state;
  bool is_name = false;
  t->other_count = 0;
  while (node.first < node.last && t->names[node.first].length == node.depth) {
    is_name = true;
    ++node.first;
  }
  for (size_t i = node.first, end; i < node.last; i = end) {
    size_t size;
    const char *at = t->names[i].bytes + node.depth;
    const uint32_t c = read_character(at, t->names[i].length - node.depth, &size);
    for (end = i + 1; end < node.last && t->names[end].length >= node.depth + size &&
                      !memcmp(t->names[end].bytes + node.depth, at, size);)
      ++end;
    if (c) MLX_TRY(add_other(t, from, c - 1));
    from = c + 1;
    MLX_TRY(mlx_reserve(t->count + 1, sizeof *t->nodes, &t->capacity, &t->nodes));
    trie_node_t child = {i, end, node.depth + size, 0};
    MLX_TRY(mlx_nfa_add(t->nfa, MLX_NFA_SPLIT, 0, 0, &child.state));
    t->nodes[t->count++] = child;
    MLX_TRY(mlx_nfa_add_set(t->nfa, &(mlx_nfa_range_t){c, c}, 1, child.state, &state));
    MLX_TRY(add_alternative(t, &last, state));
  }
  MLX_TRY(add_other(t, from, MLX_LAST_CHARACTER));
  MLX_TRY(mlx_nfa_add_set(t->nfa, t->others, t->other_count, t->rest, &state));
  if (!is_name) MLX_TRY(add_alternative(t, &last, t->accept));
  t->nfa->states[last].out[1] = state;
  if (last == node.state) t->nfa->states[last].out[0] = state;
  // The first SPLIT of the chain has no state of its own: it repeats the next one.
  if (last != node.state) t->nfa->states[node.state].out[0] = t->nfa->states[node.state].out[1];
  return NULL;
}

mlx_status_t mlx_nfa_exclude_names(mlx_nfa_name_t *names, size_t count, mlx_nfa_t *out_nfa) {
  trie_t t = {.nfa = out_nfa, .names = names};
  uint32_t any;
  *out_nfa = (mlx_nfa_t){0};
  if (count) qsort(names, count, sizeof *names, compare_names);
  mlx_status_t status = mlx_nfa_add(out_nfa, MLX_NFA_ACCEPT, 0, 0, &t.accept);
  if (!status) status = mlx_nfa_add(out_nfa, MLX_NFA_SPLIT, t.accept, 0, &t.rest);
  if (!status) status = mlx_nfa_add_set(out_nfa, &(mlx_nfa_range_t){0, MLX_LAST_CHARACTER}, 1, t.rest, &any);
  if (!status) out_nfa->states[t.rest].out[1] = any;
  if (!status) status = mlx_reserve(1, sizeof *t.nodes, &t.capacity, &t.nodes);
  if (!status) status = mlx_nfa_add(out_nfa, MLX_NFA_SPLIT, 0, 0, &out_nfa->start);
  if (!status) t.nodes[t.count++] = (trie_node_t){0, count, 0, out_nfa->start};
  for (size_t i = 0; !status && i < t.count; ++i) status = add_node(&t, t.nodes[i]);
  mlx_free(t.nodes);
  mlx_free(t.others);
  if (status) mlx_nfa_free(out_nfa);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Accepting a text

typedef struct run {
  const mlx_nfa_t *nfa;
  uint32_t *marks;           // [states] the last step that reached the state
  uint32_t *current, *next;  // [2 * states] states, with their closure
  uint32_t *work;            // [2 * states]
} run_t;

// Adds |state| and the states that it reaches without a character. Returns the new count.
static size_t add_closure(run_t *r, uint32_t state, uint32_t step, bool at_begin, bool at_end, uint32_t *to,
                          size_t count) {
  size_t pending = 1;
  r->work[0] = state;
  while (pending) {
    const uint32_t s = r->work[--pending];
    if (r->marks[s] == step) continue;
    r->marks[s] = step;
    to[count++] = s;
    const mlx_nfa_state_t *from = &r->nfa->states[s];
    const bool passes = from->kind == MLX_NFA_SPLIT || (from->kind == MLX_NFA_BEGIN && at_begin) ||
                        (from->kind == MLX_NFA_END && at_end);
    if (passes) r->work[pending++] = from->out[0];
    if (from->kind == MLX_NFA_SPLIT) r->work[pending++] = from->out[1];
  }
  return count;
}

static bool has(const mlx_nfa_t *nfa, const mlx_nfa_state_t *state, uint32_t c) {
  const mlx_nfa_range_t *ranges = nfa->ranges + state->first_range;
  for (uint32_t i = 0; i < state->range_count; ++i) {
    if (ranges[i].first <= c && c <= ranges[i].last) return true;
  }
  return false;
}

static bool run_text(run_t *r, const char *text, size_t length) {
  uint32_t step = 1;
  size_t count = add_closure(r, r->nfa->start, step, true, !length, r->current, 0);
  for (size_t at = 0, size; at < length; at += size) {
    const uint32_t c = read_character(text + at, length - at, &size);
    size_t found = 0;
    ++step;
    for (size_t i = 0; i < count; ++i) {
      const mlx_nfa_state_t *state = &r->nfa->states[r->current[i]];
      if (state->kind == MLX_NFA_SET && has(r->nfa, state, c))
        found = add_closure(r, state->out[0], step, false, at + size >= length, r->next, found);
    }
    uint32_t *const swap = r->current;
    r->current = r->next;
    r->next = swap;
    count = found;
  }
  for (size_t i = 0; i < count; ++i) {
    if (r->nfa->states[r->current[i]].kind == MLX_NFA_ACCEPT) return true;
  }
  return false;
}

mlx_status_t mlx_nfa_accepts(const mlx_nfa_t *nfa, const char *text, size_t length, bool *out_accepted) {
  run_t r = {.nfa = nfa};
  mlx_status_t status = mlx_alloc(nfa->count, sizeof *r.marks, &r.marks);
  if (!status) status = mlx_alloc(nfa->count * 2, sizeof *r.current, &r.current);
  if (!status) status = mlx_alloc(nfa->count * 2, sizeof *r.next, &r.next);
  if (!status) status = mlx_alloc(nfa->count * 2 + 1, sizeof *r.work, &r.work);
  *out_accepted = !status && run_text(&r, text, length);
  mlx_free(r.marks);
  mlx_free(r.current);
  mlx_free(r.next);
  mlx_free(r.work);
  return status;
}
