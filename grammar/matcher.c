// Matcher: a nondeterministic pushdown automaton that is made deterministic while it runs.
//
// A stack holds the symbol to match next, and below it the symbols to continue with after each rule around
// it. Stacks are stored as nodes with a parent, and equal stacks share one node, so a stack is one number. A
// state is a set of stacks. The transition of a state by a byte class is computed once and cached.
//
// A mask walks the trie of the vocabulary, and computes the transitions that it needs. Both can stop when the
// allowance of work is used up, and go on later: |walk| and |pending| have where they stopped.
#include "grammar/matcher.h"

#include <stdlib.h>
#include <string.h>

#include "base/budget.h"
#include "base/memory.h"
#include "grammar/rules.h"
#include "grammar/stacks.h"

#define BOTTOM 0                           // node: the empty stack
#define COMPLETE 1                         // node: the whole text matched
#define DEAD 0                             // state: no stack is left
#define UNKNOWN -1                         // transition or state: not computed yet
#define PAUSED -2                          // result of a transition: the allowance of work is used up
#define VISIT_WORK MLX_MATCHER_LEAST_WORK  // of a stack that is visited; a node of the trie is 1
#define CACHED_MASKS 16
#define MANY_NODES (1u << 20)  // above this, the cache is dropped between two tokens
#define TOO_MANY_NODES (1u << 23)

typedef struct node {
  uint32_t symbol, parent;
  uint32_t depth;
  uint32_t mark;  // the last search that visited it
} node_t;

typedef struct state {
  uint32_t first, count;  // into members
} state_t;

typedef struct table {  // hash table with open addressing: slot -> index + 1, or 0
  uint32_t *slots;
  size_t mask, used;
} table_t;

typedef struct cached_mask {
  const mlx_vocabulary_t *vocabulary;
  int32_t state;
  uint64_t *bits;  // owned
} cached_mask_t;

// A search for the stacks of a state that is not complete.
typedef struct search {
  bool active;
  int32_t from;       // state; UNKNOWN: the search is for the beginning of a rule
  size_t byte_class;  // of the transition
  uint32_t member;    // next of the state's members
  int32_t alternate;  // next alternate of the rule that is expanded; -1: none
  uint32_t below;     // node: the stack below it
} search_t;

// A mask that is not complete.
typedef struct walk {
  bool active;
  const mlx_vocabulary_t *vocabulary;
  size_t at;  // node of its trie
} walk_t;

struct mlx_matcher {
  const mlx_grammar_t *g;  // borrowed
  mlx_budget_t budget;     // of the current call
  node_t *nodes;
  size_t node_count, node_capacity;
  table_t node_table;
  state_t *states;
  size_t state_count, state_capacity;
  table_t state_table;
  int32_t *next;  // [states][byte classes] transitions
  size_t next_capacity;
  uint32_t *members;  // the nodes of all states, sorted within each state
  size_t member_count, member_capacity;
  uint32_t *work;  // nodes to expand
  size_t work_count, work_capacity;
  uint32_t *found;  // nodes of the next state
  size_t found_count, found_capacity;
  uint32_t mark;  // of the last search
  search_t pending;
  walk_t walk;
  uint64_t work_left;  // that calls may do
  bool is_paused;
  int32_t start, state;  // UNKNOWN: |pending| finds it
  int32_t *path;         // states along the path to a node of the vocabulary's trie
  size_t path_capacity;
  cached_mask_t masks[CACHED_MASKS];
  size_t next_mask;
};

// ----------------------------------------------------------------------------------------------------------
// Tables

static uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

static uint64_t hash_node(uint32_t symbol, uint32_t parent) {
  return mix(((uint64_t)symbol << 32 | parent) + 0x9e3779b97f4a7c15u);
}

static uint64_t hash_members(const uint32_t *members, size_t count) {
  uint64_t hash = count;
  for (size_t i = 0; i < count; ++i) hash = mix(hash * 31 + members[i] + 0x9e3779b97f4a7c15u);
  return hash;
}

static void put(table_t *table, uint64_t hash, uint32_t number) {
  size_t slot = hash & table->mask;
  while (table->slots[slot]) slot = (slot + 1) & table->mask;
  table->slots[slot] = number + 1;
  ++table->used;
}

static uint64_t hash_of(const mlx_matcher_t *m, const table_t *table, uint32_t number) {
  if (table == &m->node_table) return hash_node(m->nodes[number].symbol, m->nodes[number].parent);
  return hash_members(m->members + m->states[number].first, m->states[number].count);
}

// Makes room for one more entry and keeps the table at most half full.
static mlx_status_t make_room(const mlx_matcher_t *m, table_t *table) {
  if (table->slots && table->used * 2 < table->mask) return NULL;
  table_t larger = {.mask = table->slots ? table->mask * 2 + 1 : 255};
  MLX_TRY(mlx_alloc(larger.mask + 1, sizeof *larger.slots, &larger.slots));
  for (size_t i = 0; table->slots && i <= table->mask; ++i) {
    if (table->slots[i]) put(&larger, hash_of(m, table, table->slots[i] - 1), table->slots[i] - 1);
  }
  mlx_free(table->slots);
  *table = larger;
  return NULL;
}

static mlx_status_t too_ambiguous(const mlx_matcher_t *m) {
  return mlx_status_hint(
      mlx_error(MLX_UNSUPPORTED, "%s: the grammar is too ambiguous: too many ways to parse the text so far",
                m->g->source),
      "rewrite the grammar so that a text can be parsed in few ways");
}

static mlx_status_t find_node(mlx_matcher_t *m, uint32_t symbol, uint32_t parent, uint32_t *out) {
  MLX_TRY(make_room(m, &m->node_table));
  const uint64_t hash = hash_node(symbol, parent);
  for (size_t slot = hash & m->node_table.mask; m->node_table.slots[slot];
       slot = (slot + 1) & m->node_table.mask) {
    const uint32_t number = m->node_table.slots[slot] - 1;
    if (m->nodes[number].symbol != symbol || m->nodes[number].parent != parent) continue;
    *out = number;
    return NULL;
  }
  if (m->node_count >= TOO_MANY_NODES) return too_ambiguous(m);
  MLX_TRY(mlx_reserve(m->node_count + 1, sizeof *m->nodes, &m->node_capacity, &m->nodes));
  *out = (uint32_t)m->node_count++;
  m->nodes[*out] = (node_t){.symbol = symbol, .parent = parent, .depth = m->nodes[parent].depth + 1};
  put(&m->node_table, hash, *out);
  return NULL;
}

static int compare_numbers(const void *a, const void *b) {
  const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

// The state whose stacks are m->found.
static mlx_status_t find_state(mlx_matcher_t *m, int32_t *out) {
  MLX_TRY(make_room(m, &m->state_table));
  if (m->found_count) qsort(m->found, m->found_count, sizeof *m->found, compare_numbers);
  const uint64_t hash = hash_members(m->found, m->found_count);
  for (size_t slot = hash & m->state_table.mask; m->state_table.slots[slot];
       slot = (slot + 1) & m->state_table.mask) {
    const uint32_t number = m->state_table.slots[slot] - 1;
    const state_t *s = &m->states[number];
    if (s->count != m->found_count ||
        (s->count && memcmp(m->members + s->first, m->found, s->count * sizeof *m->found))) {
      continue;
    }
    *out = (int32_t)number;
    return NULL;
  }
  const size_t classes = m->g->byte_class_count;
  if (m->state_count >= MLX_GRAMMAR_MAX_STATES || m->member_count > TOO_MANY_NODES) return too_ambiguous(m);
  MLX_TRY(mlx_reserve(m->state_count + 1, sizeof *m->states, &m->state_capacity, &m->states));
  MLX_TRY(mlx_reserve((m->state_count + 1) * classes, sizeof *m->next, &m->next_capacity, &m->next));
  MLX_TRY(
      mlx_reserve(m->member_count + m->found_count, sizeof *m->members, &m->member_capacity, &m->members));
  m->states[m->state_count] = (state_t){(uint32_t)m->member_count, (uint32_t)m->found_count};
  if (m->found_count) memcpy(m->members + m->member_count, m->found, m->found_count * sizeof *m->found);
  m->member_count += m->found_count;
  for (size_t i = 0; i < classes; ++i) m->next[m->state_count * classes + i] = UNKNOWN;
  put(&m->state_table, hash, (uint32_t)m->state_count);
  *out = (int32_t)m->state_count++;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Transitions

// Counts |work|. Returns false, and pauses the call, if the allowance is used up.
static bool may_work(mlx_matcher_t *m, uint64_t work) {
  if (m->work_left < work) {
    m->is_paused = true;
    return false;
  }
  m->work_left -= work;
  return true;
}

// Adds the stack of |symbol| on |parent| to the work, unless this search has visited it.
static mlx_status_t visit(mlx_matcher_t *m, uint32_t symbol, uint32_t parent) {
  const mlx_symbol_t *symbols = m->g->symbols;
  MLX_TRY(mlx_budget_step(&m->budget, 1));
  while (symbols[symbol].kind == MLX_SYMBOL_END && parent != BOTTOM) {
    symbol = m->nodes[parent].symbol;
    parent = m->nodes[parent].parent;
  }
  uint32_t node = COMPLETE;
  if (symbols[symbol].kind != MLX_SYMBOL_END) MLX_TRY(find_node(m, symbol, parent, &node));
  if (m->nodes[node].mark == m->mark || m->nodes[node].depth > MLX_GRAMMAR_MAX_DEPTH) return NULL;
  m->nodes[node].mark = m->mark;
  MLX_TRY(mlx_reserve(m->work_count + 1, sizeof *m->work, &m->work_capacity, &m->work));
  m->work[m->work_count++] = node;
  return NULL;
}

// Expands rules until every stack has a byte on top, or the call is paused.
static mlx_status_t expand(mlx_matcher_t *m) {
  const mlx_grammar_t *g = m->g;
  search_t *search = &m->pending;
  for (;;) {
    for (; search->alternate >= 0; search->alternate = g->alternates[search->alternate].next) {
      if (!may_work(m, VISIT_WORK)) return NULL;
      MLX_TRY(visit(m, g->alternates[search->alternate].start, search->below));
    }
    if (!m->work_count || !may_work(m, VISIT_WORK)) return NULL;
    const uint32_t node = m->work[--m->work_count];
    const uint32_t symbol = m->nodes[node].symbol;
    uint32_t below = m->nodes[node].parent;
    if (node == COMPLETE || g->symbols[symbol].kind == MLX_SYMBOL_BYTE) {
      if (m->found_count >= MLX_GRAMMAR_MAX_STACKS) return too_ambiguous(m);
      MLX_TRY(mlx_reserve(m->found_count + 1, sizeof *m->found, &m->found_capacity, &m->found));
      m->found[m->found_count++] = node;
      continue;
    }
    // A rule at the end of an alternate pushes nothing, so right-recursive lists do not grow the stack.
    if (g->symbols[symbol + 1].kind != MLX_SYMBOL_END) MLX_TRY(find_node(m, symbol + 1, below, &below));
    search->alternate = g->rules[g->symbols[symbol].value].first;
    search->below = below;
  }
}

static void begin_search(mlx_matcher_t *m, int32_t from, size_t byte_class) {
  if (!++m->mark) {
    for (size_t i = 0; i < m->node_count; ++i) m->nodes[i].mark = 0;
    m->mark = 1;
  }
  m->work_count = m->found_count = 0;
  m->pending = (search_t){.active = true, .from = from, .byte_class = byte_class, .alternate = -1};
}

// Expands what the search has visited, and finds the state of its stacks. *out is PAUSED if it is not done.
static mlx_status_t end_search(mlx_matcher_t *m, int32_t *out) {
  *out = PAUSED;
  mlx_status_t status = expand(m);
  m->pending.active = !status && m->is_paused;
  return status || m->is_paused ? status : find_state(m, out);
}

static mlx_status_t compute_transition(mlx_matcher_t *m, int32_t from, size_t byte_class, int32_t *out) {
  const mlx_grammar_t *g = m->g;
  search_t *search = &m->pending;
  if (!search->active || search->from != from || search->byte_class != byte_class)
    begin_search(m, from, byte_class);
  *out = PAUSED;
  for (; search->member < m->states[from].count; ++search->member) {
    if (!may_work(m, VISIT_WORK)) return NULL;
    const uint32_t node = m->members[m->states[from].first + search->member];
    if (node == COMPLETE) continue;
    const uint32_t symbol = m->nodes[node].symbol;
    if (!mlx_byte_set_has(&g->sets[g->symbols[symbol].value], g->representative[byte_class])) continue;
    MLX_TRY(visit(m, symbol + 1, m->nodes[node].parent));
  }
  MLX_TRY(end_search(m, out));
  if (*out != PAUSED) m->next[(size_t)from * g->byte_class_count + byte_class] = *out;
  return NULL;
}

static inline mlx_status_t step(mlx_matcher_t *m, int32_t from, uint8_t byte, int32_t *out) {
  const size_t byte_class = m->g->byte_class[byte];
  *out = m->next[(size_t)from * m->g->byte_class_count + byte_class];
  return *out == UNKNOWN ? compute_transition(m, from, byte_class, out) : NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Creation

static void begin_call(mlx_matcher_t *m) {
  mlx_budget_begin(&m->budget, "following the grammar", MLX_GRAMMAR_SECONDS, SIZE_MAX);
  m->budget.name = m->g->source;
  m->is_paused = false;
}

// Makes the tables of a matcher that has only its grammar.
static mlx_status_t initialize(mlx_matcher_t *m) {
  int32_t dead;
  m->start = m->state = UNKNOWN;
  m->work_left = UINT64_MAX;
  MLX_TRY(mlx_reserve(2, sizeof *m->nodes, &m->node_capacity, &m->nodes));
  m->nodes[BOTTOM] = (node_t){.symbol = UINT32_MAX};
  m->nodes[COMPLETE] = (node_t){.symbol = UINT32_MAX - 1};
  m->node_count = 2;
  return find_state(m, &dead);
}

// Computes the state at the beginning of |rule|, unless the call is paused.
static mlx_status_t begin(mlx_matcher_t *m, uint32_t rule) {
  int32_t start;
  if (!m->pending.active || m->pending.from != UNKNOWN) {
    begin_search(m, UNKNOWN, 0);
    m->pending.alternate = m->g->rules[rule].first;
    m->pending.below = BOTTOM;
  }
  MLX_TRY(end_search(m, &start));
  if (start != PAUSED) m->start = start;
  return NULL;
}

// Computes the current state, if a new matcher has none yet.
static mlx_status_t find_current(mlx_matcher_t *m) {
  if (m->state != UNKNOWN) return NULL;
  if (m->start == UNKNOWN) MLX_TRY(begin(m, m->g->root));
  m->state = m->start;
  return NULL;
}

mlx_status_t mlx_matcher_create_later(const mlx_grammar_t *grammar, mlx_matcher_t **out) {
  *out = NULL;
  mlx_matcher_t *m;
  MLX_TRY(mlx_alloc(1, sizeof *m, &m));
  m->g = grammar;
  mlx_status_t status = initialize(m);
  if (status) {
    mlx_matcher_free(m);
    return status;
  }
  *out = m;
  return NULL;
}

mlx_status_t mlx_matcher_create(const mlx_grammar_t *grammar, mlx_matcher_t **out) {
  MLX_TRY(mlx_matcher_create_later(grammar, out));
  begin_call(*out);
  mlx_status_t status = find_current(*out);
  if (!status) return NULL;
  mlx_matcher_free(*out);
  *out = NULL;
  return status;
}

static void release_tables(mlx_matcher_t *m) {
  void *const arrays[] = {m->nodes, m->node_table.slots, m->states, m->state_table.slots,
                          m->next,  m->members,          m->work,   m->found,
                          m->path};
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; ++i) mlx_free(arrays[i]);
  for (size_t i = 0; i < CACHED_MASKS; ++i) mlx_free(m->masks[i].bits);
}

void mlx_matcher_free(mlx_matcher_t *m) {
  if (!m) return;
  release_tables(m);
  mlx_free(m);
}

mlx_status_t mlx_grammar_try_rule(const mlx_grammar_t *grammar, uint32_t rule) {
  mlx_matcher_t m = {.g = grammar};
  begin_call(&m);
  mlx_status_t status = initialize(&m);
  if (!status) status = begin(&m, rule);
  release_tables(&m);
  return status;
}

// The matcher is at another place of a text.
static void move_to(mlx_matcher_t *m, int32_t state) {
  m->state = state;
  m->walk.active = false;
}

void mlx_matcher_restart(mlx_matcher_t *m) { move_to(m, m->start); }

void mlx_matcher_allow_work(mlx_matcher_t *m, uint64_t work) { m->work_left = work; }

bool mlx_matcher_is_paused(const mlx_matcher_t *m) { return m->is_paused; }

// Copies a stack to another matcher. |copies| has the copy of each node; 0: none yet.
static mlx_status_t copy_stack(const mlx_matcher_t *from, uint32_t node, mlx_matcher_t *to, uint32_t *copies,
                               uint32_t *out) {
  uint32_t stack[MLX_GRAMMAR_MAX_DEPTH + 2];
  size_t depth = 0;
  for (; node != BOTTOM && !copies[node]; node = from->nodes[node].parent) stack[depth++] = node;
  *out = copies[node];  // BOTTOM is 0 in both
  while (depth) {
    node = stack[--depth];
    MLX_TRY(find_node(to, from->nodes[node].symbol, *out, out));
    copies[node] = *out;
  }
  return NULL;
}

static mlx_status_t copy_current(const mlx_matcher_t *m, mlx_matcher_t *to) {
  const state_t current = m->states[m->state];
  uint32_t *copies;
  MLX_TRY(mlx_alloc(m->node_count, sizeof *copies, &copies));
  mlx_status_t status = mlx_reserve(current.count, sizeof *to->found, &to->found_capacity, &to->found);
  for (uint32_t i = 0; !status && i < current.count; ++i) {
    const uint32_t node = m->members[current.first + i];
    to->found[i] = COMPLETE;
    if (node != COMPLETE) status = copy_stack(m, node, to, copies, &to->found[i]);
  }
  to->found_count = current.count;
  mlx_free(copies);
  return status ? status : find_state(to, &to->state);
}

// Drops all states but the current one. A long text with deep nesting would otherwise create new ones without
// end.
static mlx_status_t drop_cache(mlx_matcher_t *m) {
  mlx_matcher_t fresh = {.g = m->g};
  mlx_status_t status = initialize(&fresh);
  if (!status) status = copy_current(m, &fresh);
  if (status) {
    release_tables(&fresh);
    return status;
  }
  release_tables(m);
  *m = fresh;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Matching

// *out_state is the state after |bytes|; PAUSED if the call is paused.
static mlx_status_t follow(mlx_matcher_t *m, const char *bytes, size_t length, int32_t *out_state) {
  begin_call(m);
  *out_state = PAUSED;
  MLX_TRY(find_current(m));
  if (m->state == UNKNOWN) return NULL;
  *out_state = m->state;
  for (size_t i = 0; i < length && *out_state > DEAD; ++i)
    MLX_TRY(step(m, *out_state, (uint8_t)bytes[i], out_state));
  return NULL;
}

mlx_status_t mlx_matcher_allows(mlx_matcher_t *m, const char *bytes, size_t length, bool *out_allowed) {
  int32_t state;
  MLX_TRY(follow(m, bytes, length, &state));
  *out_allowed = state > DEAD;
  return NULL;
}

mlx_status_t mlx_matcher_accept(mlx_matcher_t *m, const char *bytes, size_t length, bool *out_accepted) {
  int32_t state;
  m->work_left = UINT64_MAX;
  MLX_TRY(follow(m, bytes, length, &state));
  *out_accepted = state != DEAD;
  if (!*out_accepted) return NULL;
  move_to(m, state);
  const bool many = m->node_count > MANY_NODES || m->member_count > MANY_NODES ||
                    m->state_count * m->g->byte_class_count > MANY_NODES;
  return many ? drop_cache(m) : NULL;
}

bool mlx_matcher_is_complete(const mlx_matcher_t *m) {
  if (m->state == UNKNOWN) return false;
  const state_t *state = &m->states[m->state];
  for (uint32_t i = 0; i < state->count; ++i) {
    if (m->members[state->first + i] == COMPLETE) return true;
  }
  return false;
}

// Goes on with the walk until it is complete, or the call is paused.
static mlx_status_t walk_trie(mlx_matcher_t *m, uint64_t *allowed) {
  const mlx_vocabulary_t *v = m->walk.vocabulary;
  size_t *i = &m->walk.at;
  while (*i < v->count) {
    const mlx_vocabulary_node_t *node = &v->nodes[*i];
    int32_t state;
    if (!may_work(m, 1)) return NULL;
    MLX_TRY(step(m, m->path[node->depth], node->byte, &state));
    if (state == PAUSED) return NULL;
    if (state == DEAD) {
      *i = node->skip;
      continue;
    }
    m->path[node->depth + 1] = state;
    for (int32_t token = node->token; token >= 0; token = v->same[token])
      allowed[token / 64] |= (uint64_t)1 << token % 64;
    ++*i;
  }
  m->walk.active = false;
  return NULL;
}

static mlx_status_t begin_walk(mlx_matcher_t *m, const mlx_vocabulary_t *v, uint64_t *allowed) {
  memset(allowed, 0, (v->size + 63) / 64 * sizeof *allowed);
  MLX_TRY(mlx_reserve(v->longest + 1, sizeof *m->path, &m->path_capacity, &m->path));
  m->path[0] = m->state;
  m->walk = (walk_t){.active = true, .vocabulary = v};
  return NULL;
}

mlx_status_t mlx_matcher_mask(mlx_matcher_t *m, const mlx_vocabulary_t *v, uint64_t *allowed) {
  const size_t words = (v->size + 63) / 64;
  begin_call(m);
  MLX_TRY(find_current(m));
  if (m->is_paused) return NULL;
  for (size_t i = 0; i < CACHED_MASKS; ++i) {
    if (!m->masks[i].bits || m->masks[i].state != m->state || m->masks[i].vocabulary != v) continue;
    memcpy(allowed, m->masks[i].bits, words * sizeof *allowed);
    return NULL;
  }
  if (!m->walk.active || m->walk.vocabulary != v) MLX_TRY(begin_walk(m, v, allowed));
  MLX_TRY(walk_trie(m, allowed));
  if (m->is_paused) return NULL;
  cached_mask_t *cached = &m->masks[m->next_mask++ % CACHED_MASKS];
  mlx_free(cached->bits);
  *cached = (cached_mask_t){.vocabulary = v, .state = m->state};
  MLX_TRY(mlx_alloc(words, sizeof *cached->bits, &cached->bits));
  memcpy(cached->bits, allowed, words * sizeof *allowed);
  return NULL;
}
