// Building a grammar: rules, alternates, byte sets and names.
#include "grammar/rules.h"

#include <string.h>

#include "base/memory.h"

static mlx_status_t too_large(const mlx_grammar_t *g) {
  return mlx_error(MLX_UNSUPPORTED,
                   "%s: the grammar is too large: it may have %u symbols after its repetitions are expanded",
                   g->source, MLX_GRAMMAR_MAX_SYMBOLS);
}

mlx_status_t mlx_grammar_add_bytes(mlx_grammar_t *g) {
  MLX_TRY(mlx_reserve(256, sizeof *g->sets, &g->set_capacity, &g->sets));
  memset(g->sets, 0, 256 * sizeof *g->sets);
  for (int i = 0; i < 256; ++i) g->sets[i].bits[i / 64] = (uint64_t)1 << i % 64;
  g->set_count = 256;
  return NULL;
}

mlx_status_t mlx_grammar_add_set(mlx_grammar_t *g, const mlx_byte_set_t *set, mlx_symbol_t *out) {
  MLX_TRY(mlx_reserve(g->set_count + 1, sizeof *g->sets, &g->set_capacity, &g->sets));
  *out = (mlx_symbol_t){MLX_SYMBOL_BYTE, (uint32_t)g->set_count & 0x3fffffff};
  g->sets[g->set_count++] = *set;
  return NULL;
}

mlx_status_t mlx_grammar_add_rule(mlx_grammar_t *g, uint32_t name, uint32_t line, uint32_t *out) {
  if (g->rule_count >= MLX_GRAMMAR_MAX_SYMBOLS) return too_large(g);
  MLX_TRY(mlx_reserve(g->rule_count + 1, sizeof *g->rules, &g->rule_capacity, &g->rules));
  *out = (uint32_t)g->rule_count;
  g->rules[g->rule_count++] =
      (mlx_rule_t){.name = name, .line = line, .first = MLX_NO_ALTERNATE, .last = MLX_NO_ALTERNATE};
  return NULL;
}

mlx_status_t mlx_grammar_add_alternate(mlx_grammar_t *g, uint32_t rule, const mlx_symbol_t *symbols,
                                       size_t count) {
  if (g->symbol_count + count + 1 > MLX_GRAMMAR_MAX_SYMBOLS) return too_large(g);
  MLX_TRY(mlx_reserve(g->symbol_count + count + 1, sizeof *g->symbols, &g->symbol_capacity, &g->symbols));
  MLX_TRY(mlx_reserve(g->alternate_count + 1, sizeof *g->alternates, &g->alternate_capacity, &g->alternates));
  const int32_t index = (int32_t)g->alternate_count++;
  g->alternates[index] = (mlx_alternate_t){(uint32_t)g->symbol_count, MLX_NO_ALTERNATE};
  if (count) memcpy(g->symbols + g->symbol_count, symbols, count * sizeof *symbols);
  g->symbol_count += count;
  g->symbols[g->symbol_count++] = (mlx_symbol_t){MLX_SYMBOL_END, 0};
  mlx_rule_t *r = &g->rules[rule];
  if (r->first < 0) {
    r->first = index;
  } else {
    g->alternates[r->last].next = index;
  }
  r->last = index;
  return NULL;
}

mlx_status_t mlx_grammar_find_or_add_name(mlx_grammar_t *g, const char *name, size_t length, uint32_t line,
                                          uint32_t *out_rule) {
  if (mlx_name_table_find(&g->name_table, name, length, out_rule)) return NULL;
  const size_t needed = g->name_length + length + 1 + sizeof(uint32_t);
  if (needed > MLX_GRAMMAR_MAX_SYMBOLS) return too_large(g);
  MLX_TRY(mlx_reserve(needed, 1, &g->name_capacity, &g->names));
  MLX_TRY(mlx_grammar_add_rule(g, (uint32_t)g->name_length, line, out_rule));
  memcpy(g->names + g->name_length, name, length);
  g->names[g->name_length + length] = 0;
  memcpy(g->names + g->name_length + length + 1, out_rule, sizeof *out_rule);
  g->name_length = needed;
  return mlx_name_table_add(&g->name_table, name, length, *out_rule);
}

bool mlx_grammar_is_named(const mlx_grammar_t *g, uint32_t rule) {
  const char *name = g->names + g->rules[rule].name;
  uint32_t owner;
  memcpy(&owner, name + strlen(name) + 1, sizeof owner);
  return owner == rule;
}

// Starts with one class of all bytes and splits the classes by every set that a rule uses.
void mlx_grammar_find_byte_classes(mlx_grammar_t *g) {
  memset(g->byte_class, 0, sizeof g->byte_class);
  g->byte_class_count = 1;
  bool used[256] = {false};
  for (size_t i = 0; i < g->symbol_count; ++i) {
    if (g->symbols[i].kind == MLX_SYMBOL_BYTE && g->symbols[i].value < 256) used[g->symbols[i].value] = true;
  }
  for (size_t set = 0; set < g->set_count && g->byte_class_count < 256; ++set) {
    if (set < 256 && !used[set]) continue;
    int outside[256], inside[256];  // the new class of bytes outside and inside the set, by old class
    for (int i = 0; i < 256; ++i) outside[i] = inside[i] = -1;
    size_t count = 0;
    for (int byte = 0; byte < 256; ++byte) {
      int *to = mlx_byte_set_has(&g->sets[set], (uint8_t)byte) ? &inside[g->byte_class[byte]]
                                                               : &outside[g->byte_class[byte]];
      if (*to < 0) *to = (int)count++;
      g->byte_class[byte] = (uint8_t)*to;
    }
    g->byte_class_count = count;
  }
  for (int byte = 255; byte >= 0; --byte) g->representative[g->byte_class[byte]] = (uint8_t)byte;
}

void mlx_grammar_free(mlx_grammar_t *g) {
  if (!g) return;
  mlx_free(g->source);
  mlx_free(g->symbols);
  mlx_free(g->alternates);
  mlx_free(g->rules);
  mlx_free(g->sets);
  mlx_free(g->names);
  mlx_name_table_free(&g->name_table);
  mlx_free(g);
}
