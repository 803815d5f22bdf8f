// schema_check COUNT FILE...: reads JSON schemas, and writes random documents of their grammars.
//
// Prints one line of JSON for each file: {"file": FILE, "documents": [TEXT, ...]} with COUNT documents, or
// {"file": FILE, "error": MESSAGE} if the schema is refused. A document is a random derivation of the
// grammar, so every alternate of a rule is as likely as the others. tests/schemas/schemas_test.py validates
// them.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "grammar/matcher.h"
#include "grammar/rules.h"
#include "tests/support/random_numbers.h"

#define SOME_BYTES 300  // of a document; then every rule takes its shortest alternate
#define MAX_COST 1000000u

typedef struct generator {
  const mlx_grammar_t *g;
  uint32_t *cost;       // [rules] symbols of the shortest derivation, at most MAX_COST
  int32_t *cheapest;    // [rules] its alternate
  mlx_symbol_t *stack;  // symbols to write, the next one last
  size_t count, capacity;
  uint64_t random;
} generator_t;

static uint32_t cost_of(const generator_t *w, int32_t alternate) {
  uint32_t cost = 0;
  for (const mlx_symbol_t *s = w->g->symbols + w->g->alternates[alternate].start; s->kind != MLX_SYMBOL_END;
       ++s) {
    cost += s->kind == MLX_SYMBOL_RULE ? w->cost[s->value] + 1 : 1;
    if (cost > MAX_COST) return MAX_COST;
  }
  return cost;
}

// Computes the costs by relaxation, in both directions in turn: rules refer to earlier and to later ones.
static mlx_status_t find_costs(generator_t *w) {
  const size_t rules = w->g->rule_count;
  MLX_TRY(mlx_alloc(rules, sizeof *w->cost, &w->cost));
  MLX_TRY(mlx_alloc(rules, sizeof *w->cheapest, &w->cheapest));
  for (size_t r = 0; r < rules; ++r) w->cost[r] = MAX_COST;
  bool changed = true;
  for (size_t pass = 0; changed; ++pass) {
    changed = false;
    for (size_t i = 0; i < rules; ++i) {
      const size_t r = pass % 2 ? i : rules - 1 - i;
      for (int32_t a = w->g->rules[r].first; a >= 0; a = w->g->alternates[a].next) {
        const uint32_t cost = cost_of(w, a);
        if (cost >= w->cost[r]) continue;
        w->cost[r] = cost;
        w->cheapest[r] = a;
        changed = true;
      }
    }
  }
  return NULL;
}

static int32_t choose(generator_t *w, uint32_t rule, bool shortest) {
  int32_t count = 0, a = w->g->rules[rule].first;
  if (shortest) return w->cheapest[rule];
  for (; a >= 0; a = w->g->alternates[a].next) ++count;
  count = (int32_t)(random_next(&w->random) % (uint64_t)count);
  for (a = w->g->rules[rule].first; count; --count) a = w->g->alternates[a].next;
  return a;
}

static mlx_status_t push_alternate(generator_t *w, int32_t alternate) {
  const mlx_symbol_t *first = w->g->symbols + w->g->alternates[alternate].start, *s = first;
  while (s->kind != MLX_SYMBOL_END) ++s;
  MLX_TRY(mlx_reserve(w->count + (size_t)(s - first), sizeof *w->stack, &w->capacity, &w->stack));
  while (s > first) w->stack[w->count++] = *--s;
  return NULL;
}

static mlx_status_t generate(generator_t *w, mlx_text_t *out) {
  w->count = 0;
  MLX_TRY(push_alternate(w, choose(w, w->g->root, false)));
  while (w->count) {
    const mlx_symbol_t symbol = w->stack[--w->count];
    if (symbol.kind == MLX_SYMBOL_RULE) {
      MLX_TRY(push_alternate(w, choose(w, symbol.value, out->length > SOME_BYTES)));
      continue;
    }
    uint8_t byte = 0;
    for (int tries = 0; tries < 64 && !mlx_byte_set_has(&w->g->sets[symbol.value], byte); ++tries)
      byte = (uint8_t)random_next(&w->random);
    while (!mlx_byte_set_has(&w->g->sets[symbol.value], byte)) ++byte;
    mlx_text_append(out, (const char *)&byte, 1);
  }
  return mlx_text_finish(out);
}

// The matcher must accept what the rules derive.
static mlx_status_t check_document(mlx_matcher_t *matcher, const mlx_text_t *text) {
  bool accepted;
  mlx_matcher_restart(matcher);
  MLX_TRY(mlx_matcher_accept(matcher, text->data, text->length, &accepted));
  if (accepted && mlx_matcher_is_complete(matcher)) return NULL;
  return mlx_error(MLX_INTERNAL, "the matcher refuses %.*s", (int)text->length, text->data);
}

static mlx_status_t put_documents(const mlx_grammar_t *grammar, int count, mlx_text_t *out) {
  generator_t w = {.g = grammar, .random = 7};
  mlx_matcher_t *matcher = NULL;
  mlx_status_t status = find_costs(&w);
  if (!status) status = mlx_matcher_create(grammar, &matcher);
  for (int i = 0; i < count && !status; ++i) {
    mlx_text_t text = {0};
    status = generate(&w, &text);
    if (!status) status = check_document(matcher, &text);
    if (!status) mlx_text_puts(out, i ? "," : "");
    if (!status) mlx_text_json_string(out, text.data, text.length);
    mlx_text_clear(&text);
  }
  mlx_matcher_free(matcher);
  mlx_free(w.cost);
  mlx_free(w.cheapest);
  mlx_free(w.stack);
  return status;
}

static mlx_status_t check_file(const char *path, int count, mlx_text_t *out) {
  char *json;
  size_t length;
  mlx_grammar_t *grammar = NULL;
  MLX_TRY(mlx_read_file(path, 1 << 26, &json, &length));
  mlx_text_puts(out, "{\"file\":");
  mlx_text_json_string(out, path, strlen(path));
  mlx_status_t refused = mlx_grammar_create_from_schema("schema", json, length, &grammar), status = NULL;
  mlx_free(json);
  if (refused) {
    mlx_text_puts(out, ",\"error\":");
    mlx_text_json_string(out, mlx_status_message(refused), strlen(mlx_status_message(refused)));
  } else {
    mlx_text_puts(out, ",\"documents\":[");
    status = put_documents(grammar, count, out);
    mlx_text_puts(out, "]");
  }
  mlx_text_puts(out, "}\n");
  mlx_status_free(refused);
  mlx_grammar_free(grammar);
  return status ? status : mlx_text_finish(out);
}

int main(int argc, char **argv) {
  const int count = argc > 1 ? atoi(argv[1]) : 0;
  for (int i = 2; i < argc; ++i) {
    mlx_text_t out = {0};
    mlx_status_t status = check_file(argv[i], count, &out);
    if (status) {
      fprintf(stderr, "%s: %s\n", argv[i], mlx_status_message(status));
      return 1;
    }
    fwrite(out.data, 1, out.length, stdout);
    fflush(stdout);
    mlx_text_clear(&out);
  }
  return 0;
}
