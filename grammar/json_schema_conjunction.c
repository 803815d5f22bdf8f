// Conjunctions, their rules, and the counts that they allow.
#include <math.h>
#include <string.h>

#include "base/json_writer.h"
#include "base/memory.h"
#include "grammar/json_schema_builder.h"
#include "grammar/json_schema_keywords.h"

#define MAX_COUNT 10000  // of minLength and the like: the limit of a GBNF repetition

typedef struct pending {  // a schema to add; |parent| is the one that refers to it, or -1
  yyjson_val *schema;
  uint64_t flags;
  int64_t parent;
} pending_t;

typedef struct adding {
  mlx_schema_builder_t *b;
  mlx_conjunction_t *c;
  pending_t *items;
  size_t count, capacity;
} adding_t;

static mlx_status_t push(adding_t *a, yyjson_val *schema, uint64_t flags, int64_t parent) {
  MLX_TRY(mlx_budget_step(a->b->budget, 4));
  if (a->count == MLX_MAX_SCHEMAS)  // nested lists of the same schemas grow exponentially
    return mlx_schema_unsupported(a->b, schema, "allOf", "has too many schemas");
  for (int64_t i = parent; i >= 0; i = a->items[i].parent) {
    if (a->items[i].schema == schema && a->items[i].flags == flags) {
      return mlx_schema_unsupported(a->b, schema, yyjson_obj_get(schema, "$ref") ? "$ref" : "allOf",
                                    "leads back to itself: it has no end");
    }
  }
  MLX_TRY(mlx_reserve(a->count + 1, sizeof *a->items, &a->capacity, &a->items));
  a->items[a->count++] = (pending_t){schema, flags, parent};
  return NULL;
}

static mlx_status_t add_term(mlx_schema_builder_t *b, mlx_conjunction_t *c, yyjson_val *schema,
                             uint64_t flags) {
  const mlx_schema_term_t term = {schema, flags};
  size_t at = 0;
  while (at < c->count &&
         (c->terms[at].schema < schema || (c->terms[at].schema == schema && c->terms[at].flags < flags)))
    ++at;
  if (at < c->count && c->terms[at].schema == schema && c->terms[at].flags == flags) return NULL;
  if (c->count == MLX_MAX_SCHEMA_TERMS)
    return mlx_schema_unsupported(b, schema, "allOf", "has too many schemas");
  MLX_TRY(mlx_reserve(c->count + 1, sizeof *c->terms, &c->capacity, &c->terms));
  memmove(c->terms + at + 1, c->terms + at, (c->count - at) * sizeof *c->terms);
  c->terms[at] = term;
  ++c->count;
  return NULL;
}

// Adds {"if": {"required": [NAME]}, "then": ...} for each name of |keyword|.
static mlx_status_t push_dependencies(adding_t *a, yyjson_val *schema, const char *keyword, int64_t parent) {
  yyjson_val *names = yyjson_obj_get(schema, keyword), *key, *made;
  if (!names) return NULL;
  if (!yyjson_is_obj(names)) return mlx_schema_invalid(a->b, schema, keyword, "is not an object");
  yyjson_obj_iter iter = yyjson_obj_iter_with(names);
  while ((key = yyjson_obj_iter_next(&iter))) {
    mlx_text_t text = {0};
    yyjson_val *value = yyjson_obj_iter_get_val(key);
    mlx_json_writer_t json = {.out = &text};
    mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
    mlx_json_begin_object(&json, "if", MLX_JSON_COMPACT);
    mlx_json_put_text(&json, "type", "object");
    mlx_json_begin_list(&json, "required", MLX_JSON_COMPACT);
    mlx_json_put_bytes(&json, NULL, yyjson_get_str(key), yyjson_get_len(key));
    mlx_json_end(&json);
    mlx_json_end(&json);
    if (yyjson_is_arr(value)) mlx_json_begin_object(&json, "then", MLX_JSON_COMPACT);
    mlx_status_t status =
        mlx_json_put(value, mlx_json_put_value(&json, yyjson_is_arr(value) ? "required" : "then"));
    if (yyjson_is_arr(value)) mlx_json_end(&json);
    mlx_json_end(&json);
    if (!status) status = mlx_schema_make(a->b, &text, &made);
    mlx_text_clear(&text);
    MLX_TRY(status);
    MLX_TRY(push(a, made, 0, parent));
  }
  return NULL;
}

static mlx_status_t check_once(mlx_schema_builder_t *b, yyjson_val *schema) {
  uint64_t known;
  if (mlx_pair_map_get(&b->checked, (uint64_t)(uintptr_t)schema, &known)) return NULL;
  if (b->checked_count == b->checked_capacity) {
    b->checked_capacity *= 2;
    MLX_TRY(mlx_pair_map_resize(&b->checked, b->checked_capacity));
  }
  mlx_pair_map_put(&b->checked, (uint64_t)(uintptr_t)schema, 1);
  ++b->checked_count;
  return mlx_schema_check_keywords(b, schema);
}

// Adds |items[index]|, and appends the schemas that it brings to the items.
static mlx_status_t add_pending(adding_t *a, size_t index) {
  mlx_schema_builder_t *b = a->b;
  const pending_t item = a->items[index];
  yyjson_val *schema = item.schema, *ref, *target, *all;
  MLX_TRY(mlx_budget_step(b->budget, 16 + 4 * yyjson_obj_size(schema)));
  if (yyjson_is_bool(schema)) {
    a->c->never |= yyjson_get_bool(schema) == !!(item.flags & MLX_SCHEMA_NEGATED);
    return NULL;
  }
  if (!yyjson_is_obj(schema))
    return mlx_schema_invalid(b, schema, "schema", "is neither an object nor a boolean");
  MLX_TRY(check_once(b, schema));
  if (mlx_schema_only_describes(schema)) {
    a->c->never |= !!(item.flags & MLX_SCHEMA_NEGATED);
    return NULL;
  }
  const bool is_nullable =
      yyjson_is_true(yyjson_obj_get(schema, "nullable")) && !(item.flags & MLX_SCHEMA_NULLABLE_DONE);
  if (item.flags & MLX_SCHEMA_NEGATED || is_nullable) return add_term(b, a->c, schema, item.flags);
  if ((ref = yyjson_obj_get(schema, "$ref"))) {
    MLX_TRY(mlx_schema_resolve(b, schema, ref, &target));
    MLX_TRY(push(a, target, 0, (int64_t)index));
  }
  if ((all = yyjson_obj_get(schema, "allOf"))) {
    if (!yyjson_is_arr(all)) return mlx_schema_invalid(b, schema, "allOf", "is not a list");
    yyjson_arr_iter iter = yyjson_arr_iter_with(all);
    while ((target = yyjson_arr_iter_next(&iter))) MLX_TRY(push(a, target, 0, (int64_t)index));
  }
  if ((target = yyjson_obj_get(schema, "not"))) MLX_TRY(push(a, target, MLX_SCHEMA_NEGATED, (int64_t)index));
  MLX_TRY(push_dependencies(a, schema, "dependentRequired", (int64_t)index));
  MLX_TRY(push_dependencies(a, schema, "dependentSchemas", (int64_t)index));
  MLX_TRY(push_dependencies(a, schema, "dependencies", (int64_t)index));
  return mlx_schema_has_effect(schema, item.flags) ? add_term(b, a->c, schema, item.flags) : NULL;
}

mlx_status_t mlx_conjunction_add(mlx_schema_builder_t *b, mlx_conjunction_t *c, yyjson_val *schema,
                                 uint64_t flags) {
  adding_t a = {.b = b, .c = c};
  mlx_status_t status = push(&a, schema, flags, -1);
  for (size_t i = 0; !status && i < a.count; ++i) status = add_pending(&a, i);
  mlx_free(a.items);
  return status;
}

mlx_status_t mlx_conjunction_choose(mlx_schema_builder_t *b, const mlx_conjunction_t *from, size_t index,
                                    uint64_t flag, mlx_conjunction_t *out) {
  mlx_status_t status = NULL;
  *out = (mlx_conjunction_t){.never = from->never};
  for (size_t i = 0; i < from->count && !status; ++i) {
    const mlx_schema_term_t *term = &from->terms[i];
    const uint64_t flags = term->flags | (i == index ? flag : 0);
    if (i == index && (flags & MLX_SCHEMA_NEGATED || !mlx_schema_has_effect(term->schema, flags))) continue;
    status = add_term(b, out, term->schema, flags);
  }
  if (status) mlx_conjunction_free(out);
  return status;
}

void mlx_conjunction_free(mlx_conjunction_t *c) {
  mlx_free(c->terms);
  *c = (mlx_conjunction_t){0};
}

yyjson_val *mlx_conjunction_next(const mlx_conjunction_t *c, const char *keyword, size_t *inout_at) {
  while (*inout_at < c->count) {
    const mlx_schema_term_t *term = &c->terms[(*inout_at)++];
    if (!(term->flags & MLX_SCHEMA_NEGATED) && yyjson_obj_get(term->schema, keyword)) return term->schema;
  }
  return NULL;
}

bool mlx_conjunction_has(const mlx_conjunction_t *c, const char *keyword) {
  size_t at = 0;
  return mlx_conjunction_next(c, keyword, &at) != NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Rules

static mlx_status_t find_rule(mlx_schema_builder_t *b, mlx_conjunction_t *c, size_t *out) {
  const size_t size = c->count * sizeof *c->terms;
  uint64_t hash = mlx_hash_text(b->rules.seed, (const char *)c->terms, size) >> 1, known;
  for (; mlx_pair_map_get(&b->rules, hash, &known); ++hash) {
    const mlx_conjunction_t *entry = &b->entries[known];
    if (entry->count != c->count || memcmp(entry->terms, c->terms, size)) continue;
    *out = (size_t)known;
    mlx_conjunction_free(c);
    return NULL;
  }
  MLX_TRY(mlx_budget_step(b->budget, 16 + c->count));
  b->terms += c->count;
  if (b->count == MLX_MAX_SCHEMAS || b->terms > MLX_MAX_TERMS) {
    return mlx_schema_unsupported(b, b->entries[b->current < b->count ? b->current : 0].terms[0].schema,
                                  "schema", "is one of too many: alternatives combine in too many ways");
  }
  MLX_TRY(mlx_reserve(b->count + 1, sizeof *b->entries, &b->capacity, &b->entries));
  mlx_pair_map_put(&b->rules, hash, b->count);
  b->entries[b->count] = *c;
  *c = (mlx_conjunction_t){0};
  *out = b->count++;
  return NULL;
}

mlx_status_t mlx_schema_put_rule(mlx_schema_builder_t *b, mlx_text_t *out, mlx_conjunction_t *c) {
  size_t rule = 0;
  if (c->never || !mlx_schema_types_of(c)) {
    mlx_text_puts(out, "never");
  } else if (!c->count) {
    mlx_text_puts(out, "value");
  } else {
    mlx_status_t status = find_rule(b, c, &rule);
    if (!status) mlx_text_printf(out, "s%zu", rule);
    mlx_conjunction_free(c);
    return status;
  }
  mlx_conjunction_free(c);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Keywords

mlx_status_t mlx_schema_read_count(const mlx_schema_builder_t *b, const mlx_conjunction_t *c,
                                   const char *keyword, uint64_t fallback, uint64_t *out) {
  size_t at = 0;
  yyjson_val *schema;
  *out = fallback;
  while ((schema = mlx_conjunction_next(c, keyword, &at))) {
    yyjson_val *value = yyjson_obj_get(schema, keyword);
    const double number = yyjson_is_num(value) ? yyjson_get_num(value) : -1;
    if (!(number >= 0) || number != floor(number))
      return mlx_schema_invalid(b, schema, keyword, "is not a whole number of at least 0");
    if (number > MAX_COUNT) return mlx_schema_unsupported(b, schema, keyword, "may be 10000 at most");
    if (fallback ? number < (double)*out : number > (double)*out) *out = (uint64_t)number;
  }
  return NULL;
}

mlx_status_t mlx_schema_check_counts(const mlx_schema_builder_t *b, const mlx_conjunction_t *c,
                                     const char *min, const char *max) {
  size_t at = 0;
  yyjson_val *schema;
  while ((schema = mlx_conjunction_next(c, min, &at))) {
    yyjson_val *low = yyjson_obj_get(schema, min), *high = yyjson_obj_get(schema, max);
    if (yyjson_is_num(low) && yyjson_is_num(high) && yyjson_get_num(low) > yyjson_get_num(high))
      return mlx_schema_invalid(b, schema, min, "is more than its maximum");
  }
  return NULL;
}
