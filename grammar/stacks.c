// Counts the stacks with which a matcher begins a rule.
//
// The count is an upper bound: a matcher keeps equal stacks once, and the count does not. Only a rule whose
// count is over the limit is expanded as a matcher does it.
#include "grammar/stacks.h"

#include "base/memory.h"

typedef struct counting {
  const mlx_grammar_t *g;
  const bool *nullable;
  uint32_t *counts;  // [rules] capped; 0: not counted yet
  uint32_t *path;    // [rules] rules that are being counted, from the root on
  uint32_t *cursor;  // [rules] the next symbol to look at
  int32_t *at;       // [rules] the alternate of that symbol; MLX_NO_ALTERNATE after the last
  bool *seen;        // [rules]
} counting_t;

static uint32_t add(uint32_t a, uint32_t b) {
  const uint32_t most = MLX_GRAMMAR_MAX_STACKS + 1;
  return a > most - b ? most : a + b;
}

// Counts the symbols that |rule| begins with until it needs a rule that is not counted yet; returns that
// rule, or UINT32_MAX at the end. A rule that is being counted counts as 0: its stacks are counted where it
// began.
static uint32_t count_beginnings(counting_t *c, uint32_t rule) {
  const mlx_grammar_t *g = c->g;
  while (c->at[rule] >= 0) {
    const mlx_symbol_t symbol = g->symbols[c->cursor[rule]];
    if (symbol.kind == MLX_SYMBOL_RULE && !c->seen[symbol.value]) return symbol.value;
    c->counts[rule] = add(c->counts[rule], symbol.kind == MLX_SYMBOL_RULE ? c->counts[symbol.value] : 1);
    if (symbol.kind == MLX_SYMBOL_RULE && c->nullable[symbol.value]) {
      ++c->cursor[rule];
      continue;
    }
    c->at[rule] = g->alternates[c->at[rule]].next;
    if (c->at[rule] >= 0) c->cursor[rule] = g->alternates[c->at[rule]].start;
  }
  return UINT32_MAX;
}

static void enter(counting_t *c, uint32_t rule) {
  c->seen[rule] = true;
  c->at[rule] = c->g->rules[rule].first;
  c->cursor[rule] = c->g->alternates[c->g->rules[rule].first].start;
}

static mlx_status_t try_rule(const mlx_grammar_t *g, uint32_t rule) {
  mlx_status_t status = mlx_grammar_try_rule(g, rule);
  if (mlx_status_code(status) != MLX_UNSUPPORTED) return status;
  mlx_status_free(status);
  return mlx_status_hint(
      mlx_error(MLX_UNSUPPORTED, "%s: line %u: rule '%s' can begin in more than %d ways", g->source,
                g->rules[rule].line, g->names + g->rules[rule].name, MLX_GRAMMAR_MAX_STACKS),
      "allow fewer alternates, enum values or optional properties at one place");
}

static mlx_status_t count_rule(counting_t *c, uint32_t start, mlx_budget_t *budget) {
  size_t depth = 0;
  enter(c, start);
  c->path[depth++] = start;
  while (depth) {
    const uint32_t rule = c->path[depth - 1], needed = count_beginnings(c, rule);
    MLX_TRY(mlx_budget_step(budget, 4));
    if (needed != UINT32_MAX) {
      enter(c, needed);
      c->path[depth++] = needed;
      continue;
    }
    --depth;
    if (c->counts[rule] > MLX_GRAMMAR_MAX_STACKS) {
      MLX_TRY(try_rule(c->g, rule));
      MLX_TRY(mlx_budget_check(budget));
      c->counts[rule] = MLX_GRAMMAR_MAX_STACKS;  // at most: so the rules around it are tried too
    }
  }
  return NULL;
}

// Counts every rule that the root can reach. |queue| has room for all rules.
static mlx_status_t count_reachable(counting_t *c, uint32_t *queue, bool *queued, mlx_budget_t *budget) {
  const mlx_grammar_t *g = c->g;
  size_t count = 1;
  queue[0] = g->root;
  queued[g->root] = true;
  for (size_t done = 0; done < count; ++done) {
    if (!c->seen[queue[done]]) MLX_TRY(count_rule(c, queue[done], budget));
    for (int32_t a = g->rules[queue[done]].first; a >= 0; a = g->alternates[a].next) {
      for (const mlx_symbol_t *s = g->symbols + g->alternates[a].start; s->kind != MLX_SYMBOL_END; ++s) {
        if (s->kind != MLX_SYMBOL_RULE || queued[s->value]) continue;
        queued[s->value] = true;
        queue[count++] = s->value;
      }
    }
  }
  return NULL;
}

mlx_status_t mlx_grammar_check_stacks(const mlx_grammar_t *grammar, const bool *nullable,
                                      mlx_budget_t *budget) {
  const size_t rules = grammar->rule_count;
  counting_t c = {.g = grammar, .nullable = nullable};
  uint32_t *queue = NULL;
  bool *queued = NULL;
  mlx_status_t status = mlx_alloc(rules, sizeof *c.counts, &c.counts);
  if (!status) status = mlx_alloc(rules, sizeof *c.path, &c.path);
  if (!status) status = mlx_alloc(rules, sizeof *c.cursor, &c.cursor);
  if (!status) status = mlx_alloc(rules, sizeof *c.at, &c.at);
  if (!status) status = mlx_alloc(rules, sizeof *c.seen, &c.seen);
  if (!status) status = mlx_alloc(rules, sizeof *queue, &queue);
  if (!status) status = mlx_alloc(rules, sizeof *queued, &queued);
  if (!status) status = count_reachable(&c, queue, queued, budget);
  void *const arrays[] = {c.counts, c.path, c.cursor, c.at, c.seen, queue, queued};
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; ++i) mlx_free(arrays[i]);
  return status;
}
