// Checks that a matcher can follow a grammar: the root matches some finite text, and no rule is
// left-recursive, because a matcher would expand it without end. Alternates that match no finite text are
// removed, so that a matcher never begins one.
#include "grammar/check.h"

#include "base/memory.h"
#include "grammar/stacks.h"

typedef struct use {
  uint32_t alternate;
  int32_t next;  // the next use of the same rule, or -1
} use_t;

typedef struct check {
  mlx_grammar_t *g;
  uint32_t *rule_of;      // [alternates]
  use_t *uses;            // one for each RULE symbol
  int32_t *first_use;     // [rules]
  uint32_t *missing;      // [alternates] symbols without the property that mark_rules computes
  uint32_t *queue;        // [rules]
  bool *nullable, *ends;  // [rules] matches the empty text; matches some finite text
  // Tarjan's strongly connected components of the relation "can begin with"
  uint32_t *order, *low, *component;  // [rules]; 0: not visited
  uint32_t *stack, *path;             // [rules]
  uint32_t *cursor;                   // [rules] the next symbol to look at, for each rule on the path
  int32_t *at_alternate;              // [rules] the alternate of that symbol
} check_t;

static mlx_status_t allocate(check_t *c) {
  const size_t rules = c->g->rule_count, alternates = c->g->alternate_count;
  MLX_TRY(mlx_alloc(alternates, sizeof *c->rule_of, &c->rule_of));
  MLX_TRY(mlx_alloc(c->g->symbol_count, sizeof *c->uses, &c->uses));
  MLX_TRY(mlx_alloc(alternates, sizeof *c->missing, &c->missing));
  MLX_TRY(mlx_alloc(rules, sizeof *c->nullable, &c->nullable));
  MLX_TRY(mlx_alloc(rules, sizeof *c->ends, &c->ends));
  MLX_TRY(mlx_alloc(rules, sizeof *c->first_use, &c->first_use));
  MLX_TRY(mlx_alloc(rules, sizeof *c->at_alternate, &c->at_alternate));
  uint32_t **const arrays[] = {&c->queue, &c->order, &c->low, &c->component, &c->stack, &c->path, &c->cursor};
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; ++i)
    MLX_TRY(mlx_alloc(rules, sizeof **arrays[i], arrays[i]));
  return NULL;
}

static void release(check_t *c) {
  void *const arrays[] = {c->rule_of,  c->uses, c->first_use, c->missing,     c->queue,
                          c->nullable, c->ends, c->order,     c->low,         c->component,
                          c->stack,    c->path, c->cursor,    c->at_alternate};
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; ++i) mlx_free(arrays[i]);
}

static void list_uses(check_t *c) {
  const mlx_grammar_t *g = c->g;
  int32_t count = 0;
  for (size_t r = 0; r < g->rule_count; ++r) {
    c->first_use[r] = -1;
    for (int32_t a = g->rules[r].first; a >= 0; a = g->alternates[a].next) c->rule_of[a] = (uint32_t)r;
  }
  for (size_t a = 0; a < g->alternate_count; ++a) {
    for (const mlx_symbol_t *s = g->symbols + g->alternates[a].start; s->kind != MLX_SYMBOL_END; ++s) {
      if (s->kind != MLX_SYMBOL_RULE) continue;
      c->uses[count] = (use_t){(uint32_t)a, c->first_use[s->value]};
      c->first_use[s->value] = count++;
    }
  }
}

// Computes a property of rules by fixed-point iteration: holds[rule] becomes true if the property holds for
// all symbols of one of its alternates. It holds for bytes if |with_bytes|.
static void mark_rules(check_t *c, bool with_bytes, bool *holds) {
  const mlx_grammar_t *g = c->g;
  size_t queued = 0;
  for (size_t a = 0; a < g->alternate_count; ++a) {
    c->missing[a] = 0;
    for (const mlx_symbol_t *s = g->symbols + g->alternates[a].start; s->kind != MLX_SYMBOL_END; ++s) {
      c->missing[a] += s->kind == MLX_SYMBOL_RULE || !with_bytes;
    }
    if (c->missing[a] || holds[c->rule_of[a]]) continue;
    holds[c->rule_of[a]] = true;
    c->queue[queued++] = c->rule_of[a];
  }
  for (size_t done = 0; done < queued; ++done) {
    for (int32_t u = c->first_use[c->queue[done]]; u >= 0; u = c->uses[u].next) {
      const uint32_t a = c->uses[u].alternate;
      if (--c->missing[a] || holds[c->rule_of[a]]) continue;
      holds[c->rule_of[a]] = true;
      c->queue[queued++] = c->rule_of[a];
    }
  }
}

// The next rule that |rule| can begin with; advances its cursor. False after the last.
static bool next_first_rule(check_t *c, uint32_t rule, uint32_t *out) {
  const mlx_grammar_t *g = c->g;
  while (c->at_alternate[rule] >= 0) {
    const mlx_symbol_t symbol = g->symbols[c->cursor[rule]];
    if (symbol.kind == MLX_SYMBOL_RULE && c->nullable[symbol.value]) {
      ++c->cursor[rule];
    } else {
      c->at_alternate[rule] = g->alternates[c->at_alternate[rule]].next;
      if (c->at_alternate[rule] >= 0) c->cursor[rule] = g->alternates[c->at_alternate[rule]].start;
    }
    if (symbol.kind != MLX_SYMBOL_RULE) continue;
    *out = symbol.value;
    return true;
  }
  return false;
}

static void close_component(check_t *c, uint32_t rule, size_t *inout_stacked) {
  uint32_t member;
  do {
    member = c->stack[--*inout_stacked];
    c->component[member] = rule + 1;
  } while (member != rule);
}

static void find_components(check_t *c, uint32_t start, uint32_t *inout_number) {
  const mlx_grammar_t *g = c->g;
  size_t depth = 0, stacked = 0;
  uint32_t next = start;
  for (bool entering = true;;) {
    if (entering) {
      c->order[next] = c->low[next] = ++*inout_number;
      c->stack[stacked++] = c->path[depth++] = next;
      c->at_alternate[next] = g->rules[next].first;
      c->cursor[next] = g->alternates[g->rules[next].first].start;
    }
    const uint32_t rule = c->path[depth - 1];
    entering = next_first_rule(c, rule, &next);
    if (entering && c->order[next]) {
      if (!c->component[next] && c->order[next] < c->low[rule]) c->low[rule] = c->order[next];
      entering = false;
    } else if (!entering) {
      if (c->low[rule] == c->order[rule]) close_component(c, rule, &stacked);
      if (!--depth) return;
      const uint32_t parent = c->path[depth - 1];
      if (c->low[rule] < c->low[parent]) c->low[parent] = c->low[rule];
    }
  }
}

// Whether the alternate matches some finite text.
static bool alternate_ends(const check_t *c, const mlx_alternate_t *alternate) {
  for (const mlx_symbol_t *s = c->g->symbols + alternate->start; s->kind != MLX_SYMBOL_END; ++s) {
    if (s->kind == MLX_SYMBOL_RULE && !c->ends[s->value]) return false;
  }
  return true;
}

// Removes the alternates that match no finite text from the rules that have other ones.
static void remove_endless_alternates(check_t *c) {
  mlx_grammar_t *g = c->g;
  for (size_t r = 0; r < g->rule_count; ++r) {
    if (!c->ends[r]) continue;
    int32_t *link = &g->rules[r].first;
    g->rules[r].last = MLX_NO_ALTERNATE;
    while (*link != MLX_NO_ALTERNATE) {
      if (alternate_ends(c, &g->alternates[*link])) {
        g->rules[r].last = *link;
        link = &g->alternates[*link].next;
      } else {
        *link = g->alternates[*link].next;
      }
    }
  }
}

// A rule without an end that |rule|, which has none, needs: the first one that needs itself.
static uint32_t find_endless(const check_t *c, uint32_t rule) {
  const mlx_grammar_t *g = c->g;
  for (size_t steps = 0; steps <= g->rule_count; ++steps) {
    const mlx_symbol_t *s = g->symbols + g->alternates[g->rules[rule].first].start;
    while (s->kind != MLX_SYMBOL_RULE || c->ends[s->value]) ++s;
    if (s->value == rule) return rule;
    rule = s->value;
  }
  return rule;
}

static mlx_status_t rule_error(const mlx_grammar_t *g, size_t rule, const char *what, const char *hint) {
  mlx_status_t status = mlx_error(MLX_UNSUPPORTED, "%s: line %u: rule '%s' %s", g->source,
                                  g->rules[rule].line, g->names + g->rules[rule].name, what);
  return mlx_status_hint(status, "%s", hint);
}

// A cycle is harmless if each of its rules is the last symbol of an alternate: the matcher then reaches the
// same stack again and stops.
static mlx_status_t check_left_recursion(check_t *c) {
  const mlx_grammar_t *g = c->g;
  for (size_t a = 0; a < g->alternate_count; ++a) {
    if (!alternate_ends(c, &g->alternates[a])) continue;
    for (const mlx_symbol_t *s = g->symbols + g->alternates[a].start; s->kind == MLX_SYMBOL_RULE; ++s) {
      const bool is_last = s[1].kind == MLX_SYMBOL_END;
      if (!is_last && c->component[s->value] == c->component[c->rule_of[a]]) {
        return rule_error(g, c->rule_of[a], "begins with itself (left recursion)",
                          "write a ::= a x | y as a ::= y x*");
      }
      if (!c->nullable[s->value]) break;
    }
  }
  return NULL;
}

static mlx_status_t run(check_t *c, mlx_budget_t *budget) {
  const mlx_grammar_t *g = c->g;
  MLX_TRY(allocate(c));
  list_uses(c);
  mark_rules(c, true, c->ends);
  if (!c->ends[g->root]) {
    return rule_error(g, find_endless(c, g->root), "has no end: it refers to itself in every alternate",
                      "add an alternate that does not refer to the rule");
  }
  remove_endless_alternates(c);
  mark_rules(c, false, c->nullable);
  uint32_t number = 0;
  for (size_t r = 0; r < g->rule_count; ++r) {
    if (!c->order[r]) find_components(c, (uint32_t)r, &number);
  }
  MLX_TRY(check_left_recursion(c));
  return mlx_grammar_check_stacks(g, c->nullable, budget);
}

mlx_status_t mlx_grammar_check(mlx_grammar_t *g, mlx_budget_t *budget) {
  check_t c = {.g = g};
  mlx_status_t status = run(&c, budget);
  release(&c);
  return status;
}
