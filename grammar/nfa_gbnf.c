// The product of automata and a range of lengths as GBNF.
//
// A state of the product is one state of each automaton and the number of characters so far. It becomes a
// rule: one alternate for each class of characters that may follow, and an empty one if the text may end.
// States from which no text ends are left out.
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "grammar/nfa.h"
#include "tokenizer/pair_map.h"

#define MAX_AUTOMATA 16
#define MAX_EDGES (1u << 20)
#define FIRST 0x80000000u  // marks the count of characters of the first state

typedef struct edge {
  uint32_t class_rule, target;
} edge_t;

typedef struct product_state {
  size_t first_edge, edge_count;
  bool accepts, ends;  // ends: some text from here is accepted
} product_state_t;

typedef struct list {  // states of one automaton
  uint32_t *items, *marks, *work;
  size_t count;
  uint32_t search;
  bool accepts;
} list_t;

typedef struct product {
  mlx_nfa_writer_t *writer;
  const mlx_nfa_t *const *nfas;
  size_t nfa_count;
  uint64_t min, max;
  mlx_nfa_place_t place;
  uint32_t *keys;  // [states][nfa_count + 1] the states of the automata, and the count of characters
  product_state_t *states;
  size_t count, capacity, key_capacity;
  mlx_pair_map_t numbers;  // hash of a key -> number of its state
  size_t numbers_capacity;
  edge_t *edges;
  size_t edge_count, edge_capacity;
  list_t lists[MAX_AUTOMATA];
  uint32_t target[MAX_AUTOMATA + 1];  // the key of the next state
  const char *problem;
} product_t;

// ----------------------------------------------------------------------------------------------------------
// Classes of characters

static const char *escape_of(uint32_t c) {
  switch (c) {
    case '"': return "\"\\\\\\\"\"";
    case '\\': return "\"\\\\\\\\\"";
    case '\b': return "\"\\\\b\"";
    case '\f': return "\"\\\\f\"";
    case '\n': return "\"\\\\n\"";
    case '\r': return "\"\\\\r\"";
    default: return "\"\\\\t\"";
  }
}

// The characters that need no escape.
#define UNESCAPED_RANGES 5
static const mlx_nfa_range_t in_json[UNESCAPED_RANGES] = {
    {32, '!'}, {'#', '['}, {']', 126}, {128, 0xd7ff}, {0xe000, MLX_LAST_CHARACTER}};
static const mlx_nfa_range_t in_text[UNESCAPED_RANGES] = {
    {9, 13}, {32, 126}, {128, 0xd7ff}, {0xe000, 0xffff}, {0x10000, MLX_LAST_CHARACTER}};

static bool has(const mlx_nfa_range_t *ranges, size_t count, uint32_t c) {
  for (size_t i = 0; i < count; ++i) {
    if (ranges[i].first <= c && c <= ranges[i].last) return true;
  }
  return false;
}

// Writes a class that matches one character of |ranges|. Nothing if no character of them may occur.
static void put_class(mlx_text_t *out, const mlx_nfa_range_t *ranges, size_t count, mlx_nfa_place_t place) {
  static const uint32_t escaped[] = {'"', '\\', '\b', '\f', '\n', '\r', '\t'};
  const mlx_nfa_range_t *plain = place == MLX_NFA_IN_TEXT ? in_text : in_json;
  if (place == MLX_NFA_IN_STRING && count == 1 && !ranges->first && ranges->last == MLX_LAST_CHARACTER) {
    mlx_text_puts(out, "char");
    return;
  }
  bool open = false;
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < UNESCAPED_RANGES; ++j) {
      const uint32_t first = ranges[i].first > plain[j].first ? ranges[i].first : plain[j].first;
      const uint32_t last = ranges[i].last < plain[j].last ? ranges[i].last : plain[j].last;
      if (first > last) continue;
      if (!open) mlx_text_puts(out, "[");
      open = true;
      mlx_text_printf(out, "\\U%08X", first);
      if (first < last) mlx_text_printf(out, "-\\U%08X", last);
    }
  }
  if (open) mlx_text_puts(out, "]");
  for (size_t i = 0; place == MLX_NFA_IN_STRING && i < sizeof escaped / sizeof *escaped; ++i) {
    if (!has(ranges, count, escaped[i])) continue;
    mlx_text_printf(out, "%s%s", open ? " | " : "", escape_of(escaped[i]));
    open = true;
  }
}

// The number of the rule of a class; false if the class is empty.
static mlx_status_t find_class(mlx_nfa_writer_t *w, const mlx_nfa_range_t *ranges, size_t count,
                               mlx_nfa_place_t place, uint32_t *out_rule, bool *out_found) {
  mlx_text_t text = {0};
  char *owned;
  size_t length;
  put_class(&text, ranges, count, place);
  *out_found = text.length > 0;
  if (!text.length || mlx_name_table_find(&w->class_of, text.data, text.length, out_rule)) {
    mlx_status_t status = mlx_text_finish(&text);
    mlx_text_clear(&text);
    return status;
  }
  MLX_TRY(mlx_text_take(&text, &owned, &length));
  mlx_status_t status = mlx_reserve(w->class_count + 1, sizeof *w->classes, &w->class_capacity, &w->classes);
  if (!status) status = mlx_name_table_add(&w->class_of, owned, length, (uint32_t)w->class_count);
  if (status) {
    mlx_free(owned);
    return status;
  }
  *out_rule = (uint32_t)w->class_count;
  w->classes[w->class_count++] = owned;
  mlx_text_printf(w->out, "c%u ::= %s\n", *out_rule, owned);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// States

static mlx_status_t find_state(product_t *p, const uint32_t *key, uint32_t *out) {
  const size_t width = p->nfa_count + 1;
  uint64_t hash = mlx_hash_text(p->numbers.seed, (const char *)key, width * sizeof *key), number;
  for (hash >>= 1; mlx_pair_map_get(&p->numbers, hash, &number); ++hash) {
    if (memcmp(p->keys + number * width, key, width * sizeof *key)) continue;
    *out = (uint32_t)number;
    return NULL;
  }
  *out = 0;
  if (p->writer->states + p->count >= MLX_NFA_MAX_STATES) {
    p->problem = "needs too many states";
    return NULL;
  }
  if (p->count + 1 > p->numbers_capacity) {
    p->numbers_capacity *= 2;
    MLX_TRY(mlx_pair_map_resize(&p->numbers, p->numbers_capacity));
  }
  MLX_TRY(mlx_reserve(p->count + 1, sizeof *p->states, &p->capacity, &p->states));
  MLX_TRY(mlx_reserve((p->count + 1) * width, sizeof *p->keys, &p->key_capacity, &p->keys));
  memcpy(p->keys + p->count * width, key, width * sizeof *key);
  p->states[p->count] = (product_state_t){0};
  mlx_pair_map_put(&p->numbers, hash, p->count);
  *out = (uint32_t)p->count++;
  return NULL;
}

// Lists the SET states that automaton |i| reaches from |state| without a character, and whether it accepts.
static void list_states(product_t *p, size_t i, uint32_t state, bool first) {
  const mlx_nfa_t *nfa = p->nfas[i];
  list_t *list = &p->lists[i];
  list->count = 0;
  list->accepts = false;
  for (int at_end = 0; at_end < 2; ++at_end) {  // the second time for the end of the text
    size_t pending = 1;
    list->work[0] = state;
    ++list->search;
    while (pending) {
      const uint32_t s = list->work[--pending];
      const mlx_nfa_state_t *from = &nfa->states[s];
      if (list->marks[s] == list->search) continue;
      list->marks[s] = list->search;
      const bool passes = from->kind == MLX_NFA_SPLIT || (from->kind == MLX_NFA_BEGIN && first) ||
                          (from->kind == MLX_NFA_END && at_end);
      if (passes) list->work[pending++] = from->out[0];
      if (from->kind == MLX_NFA_SPLIT) list->work[pending++] = from->out[1];
      if (from->kind == MLX_NFA_ACCEPT) list->accepts = true;
      if (from->kind == MLX_NFA_SET && !at_end) list->items[list->count++] = s;
    }
  }
}

static mlx_status_t add_edge(product_t *p, size_t state, const mlx_nfa_range_t *ranges, size_t count) {
  edge_t edge;
  bool found;
  MLX_TRY(find_class(p->writer, ranges, count, p->place, &edge.class_rule, &found));
  if (!found) return NULL;
  MLX_TRY(find_state(p, p->target, &edge.target));
  for (size_t i = p->states[state].first_edge; i < p->edge_count; ++i) {
    if (p->edges[i].class_rule == edge.class_rule && p->edges[i].target == edge.target) return NULL;
  }
  if (p->edge_count == MAX_EDGES) p->problem = "needs too many states";
  if (p->problem) return NULL;
  MLX_TRY(mlx_reserve(p->edge_count + 1, sizeof *p->edges, &p->edge_capacity, &p->edges));
  p->edges[p->edge_count++] = edge;
  return NULL;
}

// Adds the edges of one SET state of each automaton from |i| on, for characters in |ranges|.
static mlx_status_t add_edges(product_t *p, size_t state, size_t i, const mlx_nfa_range_t *ranges,
                              size_t count) {
  if (i == p->nfa_count) return add_edge(p, state, ranges, count);
  const mlx_nfa_t *nfa = p->nfas[i];
  for (size_t at = 0; at < p->lists[i].count && !p->problem; ++at) {
    const mlx_nfa_state_t *set = &nfa->states[p->lists[i].items[at]];
    mlx_nfa_range_t *both;
    size_t found = 0;
    MLX_TRY(mlx_budget_step(p->writer->budget, 8 + count + set->range_count));
    MLX_TRY(mlx_alloc(count + set->range_count, sizeof *both, &both));
    const mlx_nfa_range_t *others = nfa->ranges + set->first_range;
    for (size_t a = 0, b = 0; a < count && b < set->range_count;) {
      const uint32_t first = ranges[a].first > others[b].first ? ranges[a].first : others[b].first;
      const uint32_t last = ranges[a].last < others[b].last ? ranges[a].last : others[b].last;
      if (first <= last) both[found++] = (mlx_nfa_range_t){first, last};
      if (ranges[a].last < others[b].last) {
        ++a;
      } else {
        ++b;
      }
    }
    p->target[i] = set->out[0];
    mlx_status_t status = found ? add_edges(p, state, i + 1, both, found) : NULL;
    mlx_free(both);
    MLX_TRY(status);
  }
  return NULL;
}

static mlx_status_t expand(product_t *p, size_t state) {
  const uint32_t *key = p->keys + state * (p->nfa_count + 1), length = key[p->nfa_count];
  const uint64_t characters = length & ~FIRST;
  bool accepts = characters >= p->min;
  for (size_t i = 0; i < p->nfa_count; ++i) {
    list_states(p, i, key[i], length & FIRST);
    accepts = accepts && p->lists[i].accepts;
  }
  p->states[state].accepts = p->states[state].ends = accepts;
  p->states[state].first_edge = p->edge_count;
  if (characters < p->max) {
    const bool counts = p->max != UINT64_MAX || characters < p->min;
    p->target[p->nfa_count] = (uint32_t)characters + counts;
    MLX_TRY(add_edges(p, state, 0, &(mlx_nfa_range_t){0, MLX_LAST_CHARACTER}, 1));
  }
  p->states[state].edge_count = p->edge_count - p->states[state].first_edge;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Lengths of the texts of one automaton

// A lower bound of the lengths: the distance of ACCEPT.
static uint64_t shortest(const mlx_nfa_t *nfa, uint32_t *distance, uint32_t *queue) {
  // Each round has the states at one distance; |queue| is a stack within it.
  size_t pending = 1, next = nfa->count * 2;
  memset(distance, 0xff, nfa->count * sizeof *distance);
  queue[0] = nfa->start;
  for (uint32_t round = 0;; ++round) {
    while (pending) {
      const uint32_t s = queue[--pending];
      const mlx_nfa_state_t *from = &nfa->states[s];
      if (distance[s] != UINT32_MAX) continue;
      distance[s] = round;
      if (from->kind == MLX_NFA_ACCEPT) return round;
      if (from->kind == MLX_NFA_SET) {
        queue[--next] = from->out[0];
      } else {
        queue[pending++] = from->out[0];
        if (from->kind == MLX_NFA_SPLIT) queue[pending++] = from->out[1];
      }
    }
    if (next == nfa->count * 2) return UINT64_MAX;
    while (next < nfa->count * 2) queue[pending++] = queue[next++];
  }
}

// An upper bound of the lengths: the longest path to ACCEPT, UINT64_MAX if there is a cycle.
static uint64_t longest(const mlx_nfa_t *nfa, uint32_t *length, uint32_t *path) {
  enum { NEW = UINT32_MAX, OPEN = UINT32_MAX - 1 };
  size_t depth = 1;
  memset(length, 0xff, nfa->count * sizeof *length);
  path[0] = nfa->start;
  while (depth) {
    const uint32_t s = path[depth - 1];
    const mlx_nfa_state_t *from = &nfa->states[s];
    const int outs = from->kind == MLX_NFA_ACCEPT ? 0 : from->kind == MLX_NFA_SPLIT ? 2 : 1;
    uint32_t best = 0;
    bool waits = false;
    length[s] = OPEN;
    for (int i = 0; i < outs && !waits; ++i) {
      const uint32_t l = length[from->out[i]];
      if (l == (uint32_t)OPEN) return UINT64_MAX;
      waits = l == (uint32_t)NEW;
      if (waits) path[depth++] = from->out[i];
      if (!waits && l > best) best = l;
    }
    if (waits) continue;
    length[s] = best + (from->kind == MLX_NFA_SET);
    --depth;
  }
  return length[nfa->start];
}

// Drops the limits that one of the automata keeps anyway: fewer states are needed without them.
static mlx_status_t drop_limits(product_t *p) {
  if (!p->min && p->max == UINT64_MAX) return NULL;
  uint64_t min = p->min, max = p->max;
  for (size_t i = 0; i < p->nfa_count; ++i) {
    uint32_t *numbers, *queue;
    MLX_TRY(mlx_alloc(p->nfas[i]->count, sizeof *numbers, &numbers));
    mlx_status_t status = mlx_alloc(p->nfas[i]->count * 2 + 1, sizeof *queue, &queue);
    if (!status && shortest(p->nfas[i], numbers, queue) >= p->min) min = 0;
    if (!status && longest(p->nfas[i], numbers, queue) <= p->max) max = UINT64_MAX;
    mlx_free(numbers);
    mlx_free(queue);
    MLX_TRY(status);
  }
  p->min = min;
  p->max = max;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Rules

static mlx_status_t mark_ends(product_t *p) {
  for (bool changed = true; changed;) {
    changed = false;
    MLX_TRY(mlx_budget_step(p->writer->budget, p->count + p->edge_count));
    for (size_t s = p->count; s-- > 0;) {
      product_state_t *state = &p->states[s];
      for (size_t e = 0; e < state->edge_count && !state->ends; ++e) {
        state->ends = p->states[p->edges[state->first_edge + e].target].ends;
        changed |= state->ends;
      }
    }
  }
  return NULL;
}

static void put_rules(product_t *p, size_t first) {
  mlx_text_t *out = p->writer->out;
  for (size_t s = 0; s < p->count; ++s) {
    const product_state_t *state = &p->states[s];
    if (!state->ends) continue;
    const char *separator = "";
    mlx_text_printf(out, "p%zu ::= ", first + s);
    for (size_t e = 0; e < state->edge_count; ++e) {
      const edge_t *edge = &p->edges[state->first_edge + e];
      if (!p->states[edge->target].ends) continue;
      mlx_text_printf(out, "%sc%u p%zu", separator, edge->class_rule, first + edge->target);
      separator = " | ";
    }
    mlx_text_printf(out, "%s\n", !state->accepts ? "" : *separator ? " | \"\"" : "\"\"");
  }
}

static mlx_status_t build(product_t *p) {
  uint32_t start;
  p->numbers_capacity = 64;
  MLX_TRY(mlx_pair_map_create(p->numbers_capacity, (uint64_t)(uintptr_t)p, &p->numbers));
  MLX_TRY(drop_limits(p));
  for (size_t i = 0; i < p->nfa_count; ++i) {
    const size_t count = p->nfas[i]->count;
    p->target[i] = p->nfas[i]->start;
    MLX_TRY(mlx_alloc(count, sizeof *p->lists[i].items, &p->lists[i].items));
    MLX_TRY(mlx_alloc(count, sizeof *p->lists[i].marks, &p->lists[i].marks));
    MLX_TRY(mlx_alloc(count * 2 + 1, sizeof *p->lists[i].work, &p->lists[i].work));
  }
  p->target[p->nfa_count] = FIRST;
  MLX_TRY(find_state(p, p->target, &start));
  for (size_t s = 0; s < p->count && !p->problem; ++s) MLX_TRY(expand(p, s));
  if (p->problem) return NULL;
  MLX_TRY(mark_ends(p));
  if (!p->states[0].ends) p->problem = MLX_NFA_NO_TEXT;
  return NULL;
}

mlx_status_t mlx_nfa_write(mlx_nfa_writer_t *writer, const mlx_nfa_t *const *nfas, size_t count, uint64_t min,
                           uint64_t max, mlx_nfa_place_t place, size_t *out_rule, const char **out_problem) {
  product_t p = {.writer = writer, .nfas = nfas, .nfa_count = count, .min = min, .max = max, .place = place};
  if (count > MAX_AUTOMATA) {
    *out_problem = "has too many patterns for one string";
    return NULL;
  }
  *out_rule = writer->states;
  mlx_status_t status = build(&p);
  *out_problem = p.problem;
  if (!status && !p.problem) {
    put_rules(&p, writer->states);
    writer->states += p.count;
  }
  for (size_t i = 0; i < count; ++i) {
    mlx_free(p.lists[i].items);
    mlx_free(p.lists[i].marks);
    mlx_free(p.lists[i].work);
  }
  mlx_pair_map_free(&p.numbers);
  mlx_free(p.keys);
  mlx_free(p.states);
  mlx_free(p.edges);
  return status;
}

void mlx_nfa_writer_free(mlx_nfa_writer_t *w) {
  for (size_t i = 0; i < w->class_count; ++i) mlx_free(w->classes[i]);
  mlx_free(w->classes);
  mlx_name_table_free(&w->class_of);
}
