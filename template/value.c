// Values as Python sees them: what is true, equal, smaller, and how str(), repr() and json.dumps() spell
// them.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "template/internal.h"

// ----------------------------------------------------------------------------------------------------------
// Memory

#define BLOCK_SIZE ((size_t)64 << 10)

struct mlx_arena_block {
  struct mlx_arena_block *next;
  size_t size, used;  // of the bytes that follow
};

static mlx_status_t add_block(mlx_arena_t *arena, size_t bytes) {
  struct mlx_arena_block *block = NULL;
  const size_t size = bytes > BLOCK_SIZE ? bytes : BLOCK_SIZE;
  MLX_TRY(mlx_alloc(1, sizeof *block + size, &block));
  *block = (struct mlx_arena_block){.next = arena->blocks, .size = size};
  arena->blocks = block;
  return NULL;
}

mlx_status_t mlx_arena_take(mlx_arena_t *arena, size_t count, size_t size, void *out_ptr) {
  size_t bytes;
  if (!mlx_mul(count, size, &bytes) || !mlx_align_up(bytes, 16, &bytes) ||
      bytes > arena->limit - arena->used) {
    return mlx_error(MLX_UNSUPPORTED, "%s, line %d: the template needs more than %zu bytes of memory",
                     arena->name, arena->line ? *arena->line : 1, arena->limit);
  }
  if (!arena->blocks || bytes > arena->blocks->size - arena->blocks->used) MLX_TRY(add_block(arena, bytes));
  void *ptr = (char *)(arena->blocks + 1) + arena->blocks->used;
  arena->blocks->used += bytes;
  arena->used += bytes;
  memcpy(out_ptr, &ptr, sizeof ptr);
  return NULL;
}

void mlx_arena_clear(mlx_arena_t *arena) {
  while (arena->blocks) {
    struct mlx_arena_block *next = arena->blocks->next;
    mlx_free(arena->blocks);
    arena->blocks = next;
  }
  arena->used = 0;
}

void mlx_sink_append(mlx_sink_t *sink, const char *bytes, size_t length) {
  size_t needed;
  if (sink->failed || !length) return;
  if (!mlx_add(sink->length, length, &needed) || (sink->limit && needed > sink->limit)) {
    sink->failed = true;
    return;
  }
  if (needed > sink->capacity) {
    size_t capacity = needed < 32 ? 64 : needed * 2;
    char *larger = NULL;
    mlx_status_t status = needed > SIZE_MAX / 4 ? mlx_error(MLX_OUT_OF_MEMORY, "too long")
                                                : mlx_arena_take(sink->arena, capacity, 1, &larger);
    if (status) {
      mlx_status_free(status);
      sink->failed = true;
      return;
    }
    if (sink->length) memcpy(larger, sink->data, sink->length);
    sink->data = larger;
    sink->capacity = capacity;
  }
  memcpy(sink->data + sink->length, bytes, length);
  sink->length = needed;
}

void mlx_sink_puts(mlx_sink_t *sink, const char *string) { mlx_sink_append(sink, string, strlen(string)); }

void mlx_sink_character(mlx_sink_t *sink, uint32_t c) {
  char out[4];
  size_t length = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  static const unsigned char first[] = {0, 0, 0xc0, 0xe0, 0xf0};
  for (size_t i = length; i-- > 1; c >>= 6) out[i] = (char)(0x80 | (c & 0x3f));
  out[0] = (char)(first[length] | c);
  mlx_sink_append(sink, out, length);
}

void mlx_sink_fill(mlx_sink_t *sink, const char *bytes, size_t length, int64_t times) {
  while (times-- > 0 && !sink->failed && length) mlx_sink_append(sink, bytes, length);
}

mlx_status_t mlx_sink_take(mlx_render_t *r, mlx_sink_t *sink, mlx_var_t *out) {
  if (sink->failed)
    return mlx_render_error(r, MLX_UNSUPPORTED, "the template needs more than %zu bytes of memory",
                            r->arena.limit);
  *out = mlx_string(sink->data ? sink->data : "", sink->length);
  return mlx_render_charge(r, sink->length);
}

// ----------------------------------------------------------------------------------------------------------
// Making

mlx_status_t mlx_undefined(mlx_render_t *r, mlx_var_t *out, const char *fmt, ...) {
  char message[256], *copy;
  va_list args;
  va_start(args, fmt);
  vsnprintf(message, sizeof message, fmt, args);
  va_end(args);
  const size_t length = strlen(message);
  MLX_TRY(mlx_arena_take(&r->arena, length + 1, 1, &copy));
  memcpy(copy, message, length);
  *out = (mlx_var_t){.kind = MLX_VAR_UNDEFINED, .text = {copy, length}};
  return NULL;
}

mlx_status_t mlx_need_defined(const mlx_render_t *r, const mlx_var_t *v) {
  if (v->kind != MLX_VAR_UNDEFINED) return NULL;
  MLX_FAIL(r, "%.*s", (int)v->text.length, v->text.bytes);
}

static mlx_status_t grow(mlx_render_t *r, size_t size, size_t count, size_t *inout_capacity,
                         void *inout_items) {
  if (count < *inout_capacity) return NULL;
  void *old, *larger;
  const size_t capacity = count < 4 ? 4 : count * 2;
  memcpy(&old, inout_items, sizeof old);
  MLX_TRY(mlx_arena_take(&r->arena, capacity, size, &larger));
  if (count) memcpy(larger, old, count * size);
  memcpy(inout_items, &larger, sizeof larger);
  *inout_capacity = capacity;
  return NULL;
}

mlx_status_t mlx_new_list(mlx_render_t *r, mlx_list_shape_t shape, size_t capacity, mlx_var_t *out) {
  mlx_list_t *list;
  MLX_TRY(mlx_arena_take(&r->arena, 1, sizeof *list, &list));
  list->shape = shape;
  list->capacity = capacity;
  if (capacity) MLX_TRY(mlx_arena_take(&r->arena, capacity, sizeof *list->items, &list->items));
  *out = (mlx_var_t){.kind = MLX_VAR_LIST, .list = list};
  return NULL;
}

mlx_status_t mlx_list_push(mlx_render_t *r, mlx_list_t *list, mlx_var_t item) {
  MLX_TRY(grow(r, sizeof *list->items, list->count, &list->capacity, &list->items));
  list->items[list->count++] = item;
  return mlx_render_charge(r, 1);
}

mlx_status_t mlx_new_tuple(mlx_render_t *r, mlx_var_t first, mlx_var_t second, mlx_var_t *out) {
  MLX_TRY(mlx_new_list(r, MLX_SHAPE_TUPLE, 2, out));
  out->list->items[0] = first;
  out->list->items[1] = second;
  out->list->count = 2;
  return NULL;
}

mlx_status_t mlx_new_dict(mlx_render_t *r, mlx_var_kind_t kind, mlx_var_t *out) {
  mlx_dict_t *dict;
  MLX_TRY(mlx_arena_take(&r->arena, 1, sizeof *dict, &dict));
  *out = (mlx_var_t){.kind = kind, .dict = dict};
  return NULL;
}

static bool hashable(const mlx_var_t *v) {
  if (v->kind == MLX_VAR_DICT) return false;
  if (v->kind != MLX_VAR_LIST) return true;
  if (v->list->shape != MLX_SHAPE_TUPLE) return v->list->shape != MLX_SHAPE_LIST;
  for (size_t i = 0; i < v->list->count; ++i) {
    if (v->list->items[i].kind == MLX_VAR_LIST || v->list->items[i].kind == MLX_VAR_DICT) return false;
  }
  return true;
}

mlx_status_t mlx_dict_find(mlx_render_t *r, const mlx_dict_t *dict, const mlx_var_t *key, mlx_var_t **out) {
  *out = NULL;
  MLX_TRY(mlx_render_charge(r, dict->count));
  for (size_t i = 0; i < dict->count; ++i) {
    bool equal;
    MLX_TRY(mlx_var_equal(r, &dict->entries[i].key, key, &equal));
    if (!equal) continue;
    *out = &dict->entries[i].value;
    return NULL;
  }
  return NULL;
}

mlx_var_t *mlx_dict_named(const mlx_dict_t *dict, mlx_span_t name) {
  for (size_t i = 0; dict && i < dict->count; ++i) {
    const mlx_var_t *key = &dict->entries[i].key;
    if (key->kind == MLX_VAR_STRING && mlx_span_equal(key->text, name)) return &dict->entries[i].value;
  }
  return NULL;
}

mlx_status_t mlx_dict_put(mlx_render_t *r, mlx_dict_t *dict, mlx_var_t key, mlx_var_t value) {
  mlx_var_t *found;
  if (!hashable(&key)) MLX_FAIL(r, "unhashable type: '%s'", mlx_var_type(&key));
  MLX_TRY(mlx_dict_find(r, dict, &key, &found));
  if (found) {
    *found = value;
    return NULL;
  }
  MLX_TRY(grow(r, sizeof *dict->entries, dict->count, &dict->capacity, &dict->entries));
  dict->entries[dict->count++] = (mlx_entry_t){key, value};
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Asking

const char *mlx_var_type(const mlx_var_t *v) {
  static const char *const kinds[] = {"Undefined", "NoneType", "bool",     "int",       "float",      "str",
                                      "list",      "dict",     "function", "Namespace", "LoopContext"};
  static const char *const shapes[] = {"list",        "tuple",      "range",    "dict_keys",
                                       "dict_values", "dict_items", "generator"};
  return v->kind == MLX_VAR_LIST ? shapes[v->list->shape] : kinds[v->kind];
}

bool mlx_var_truth(const mlx_var_t *v) {
  switch (v->kind) {
    case MLX_VAR_UNDEFINED:
    case MLX_VAR_NONE: return false;
    case MLX_VAR_BOOL: return v->truth;
    case MLX_VAR_INT: return v->integer != 0;
    case MLX_VAR_FLOAT: return v->number != 0;
    case MLX_VAR_STRING: return v->text.length > 0;
    case MLX_VAR_LIST: return v->list->count > 0 || v->list->shape == MLX_SHAPE_GENERATOR;
    case MLX_VAR_DICT: return v->dict->count > 0;
    default: return true;
  }
}

bool mlx_var_iterable(const mlx_var_t *v) {
  return v->kind == MLX_VAR_UNDEFINED || v->kind == MLX_VAR_STRING || v->kind == MLX_VAR_LIST ||
         v->kind == MLX_VAR_DICT;
}

mlx_status_t mlx_var_length(mlx_render_t *r, const mlx_var_t *v, int64_t *out) {
  switch (v->kind) {
    case MLX_VAR_UNDEFINED: *out = 0; return NULL;
    case MLX_VAR_STRING:
      *out = (int64_t)mlx_span_characters(v->text);
      return mlx_render_charge(r, v->text.length);
    case MLX_VAR_DICT: *out = (int64_t)v->dict->count; return NULL;
    case MLX_VAR_LOOP: *out = (int64_t)v->loop->count; return NULL;
    case MLX_VAR_LIST:
      if (v->list->shape == MLX_SHAPE_GENERATOR) break;
      *out = (int64_t)v->list->count;
      return NULL;
    default: break;
  }
  MLX_FAIL(r, "object of type '%s' has no len()", mlx_var_type(v));
}

mlx_status_t mlx_var_items(mlx_render_t *r, const mlx_var_t *v, const mlx_var_t **out_items,
                           size_t *out_count) {
  mlx_var_t list;
  *out_items = NULL;
  *out_count = 0;
  switch (v->kind) {
    case MLX_VAR_UNDEFINED: return NULL;
    case MLX_VAR_LIST:
      *out_items = v->list->items;
      *out_count = v->list->count;
      if (v->list->shape == MLX_SHAPE_GENERATOR) v->list->count = 0;
      return NULL;
    case MLX_VAR_STRING:
      MLX_TRY(mlx_new_list(r, MLX_SHAPE_LIST, v->text.length, &list));
      for (size_t at = 0, length; at < v->text.length; at += length) {
        mlx_template_character(v->text.bytes + at, &length);
        MLX_TRY(mlx_list_push(r, list.list, mlx_string(v->text.bytes + at, length)));
      }
      break;
    case MLX_VAR_DICT:
      MLX_TRY(mlx_new_list(r, MLX_SHAPE_LIST, v->dict->count, &list));
      for (size_t i = 0; i < v->dict->count; ++i)
        MLX_TRY(mlx_list_push(r, list.list, v->dict->entries[i].key));
      break;
    default: MLX_FAIL(r, "'%s' object is not iterable", mlx_var_type(v));
  }
  *out_items = list.list->items;
  *out_count = list.list->count;
  return NULL;
}

static mlx_status_t enter(mlx_render_t *r) {
  if (++r->depth > MLX_TEMPLATE_DEPTH)
    return mlx_render_error(r, MLX_UNSUPPORTED, "a value is nested too deep");
  return NULL;
}

static mlx_status_t lists_equal(mlx_render_t *r, const mlx_list_t *a, const mlx_list_t *b, bool *out) {
  *out = a == b;
  if (*out || a->shape != b->shape || a->count != b->count || a->shape == MLX_SHAPE_GENERATOR ||
      a->shape == MLX_SHAPE_VALUES)
    return NULL;
  *out = true;
  MLX_TRY(enter(r));
  MLX_TRY(mlx_render_charge(r, a->count));
  for (size_t i = 0; i < a->count && *out; ++i) MLX_TRY(mlx_var_equal(r, &a->items[i], &b->items[i], out));
  --r->depth;
  return NULL;
}

static mlx_status_t dicts_equal(mlx_render_t *r, const mlx_dict_t *a, const mlx_dict_t *b, bool *out) {
  *out = a->count == b->count;
  MLX_TRY(enter(r));
  for (size_t i = 0; i < a->count && *out; ++i) {
    mlx_var_t *other;
    MLX_TRY(mlx_dict_find(r, b, &a->entries[i].key, &other));
    *out = other != NULL;
    if (other) MLX_TRY(mlx_var_equal(r, &a->entries[i].value, other, out));
  }
  --r->depth;
  return NULL;
}

static int number_order(const mlx_var_t *a, const mlx_var_t *b) {
  if (mlx_is_whole(a) && mlx_is_whole(b))
    return (mlx_whole(a) > mlx_whole(b)) - (mlx_whole(a) < mlx_whole(b));
  return (mlx_number(a) > mlx_number(b)) - (mlx_number(a) < mlx_number(b));
}

mlx_status_t mlx_var_equal(mlx_render_t *r, const mlx_var_t *a, const mlx_var_t *b, bool *out) {
  if (mlx_is_number(a) && mlx_is_number(b)) {
    bool has_nan =
        (a->kind == MLX_VAR_FLOAT && isnan(a->number)) || (b->kind == MLX_VAR_FLOAT && isnan(b->number));
    *out = !has_nan && number_order(a, b) == 0;
    return NULL;
  }
  *out = a->kind == b->kind;
  if (!*out) return NULL;
  switch (a->kind) {
    case MLX_VAR_STRING: *out = mlx_span_equal(a->text, b->text); return NULL;
    case MLX_VAR_LIST: return lists_equal(r, a->list, b->list, out);
    case MLX_VAR_DICT: return dicts_equal(r, a->dict, b->dict, out);
    case MLX_VAR_FUNCTION: *out = a->function == b->function; return NULL;
    case MLX_VAR_NAMESPACE: *out = a->dict == b->dict; return NULL;
    case MLX_VAR_LOOP: *out = a->loop == b->loop; return NULL;
    default: return NULL;
  }
}

static mlx_status_t list_order(mlx_render_t *r, const mlx_list_t *a, const mlx_list_t *b, int *out) {
  MLX_TRY(enter(r));
  for (size_t i = 0; i < a->count && i < b->count; ++i) {
    bool equal;
    MLX_TRY(mlx_var_equal(r, &a->items[i], &b->items[i], &equal));
    if (equal) continue;
    --r->depth;
    return mlx_var_order(r, &a->items[i], &b->items[i], out);
  }
  --r->depth;
  *out = (a->count > b->count) - (a->count < b->count);
  return NULL;
}

mlx_status_t mlx_var_order(mlx_render_t *r, const mlx_var_t *a, const mlx_var_t *b, int *out) {
  MLX_TRY(mlx_need_defined(r, a));
  MLX_TRY(mlx_need_defined(r, b));
  MLX_TRY(mlx_render_charge(r, 1));
  if (mlx_is_number(a) && mlx_is_number(b)) {
    *out = number_order(a, b);
    return NULL;
  }
  if (a->kind == MLX_VAR_STRING && b->kind == MLX_VAR_STRING) {
    size_t shorter = a->text.length < b->text.length ? a->text.length : b->text.length;
    int order = shorter ? memcmp(a->text.bytes, b->text.bytes, shorter) : 0;
    *out = order ? (order > 0) - (order < 0)
                 : (a->text.length > b->text.length) - (a->text.length < b->text.length);
    return NULL;
  }
  if (a->kind == MLX_VAR_LIST && b->kind == MLX_VAR_LIST && a->list->shape == b->list->shape &&
      a->list->shape <= MLX_SHAPE_TUPLE) {
    return list_order(r, a->list, b->list, out);
  }
  MLX_FAIL(r, "'%s' and '%s' cannot be ordered", mlx_var_type(a), mlx_var_type(b));
}

mlx_status_t mlx_var_contains(mlx_render_t *r, const mlx_var_t *haystack, const mlx_var_t *needle,
                              bool *out) {
  const mlx_var_t *items;
  size_t count;
  *out = false;
  if (haystack->kind == MLX_VAR_STRING) {
    if (needle->kind != MLX_VAR_STRING) {
      MLX_TRY(mlx_need_defined(r, needle));
      MLX_FAIL(r, "'in <string>' requires string as left operand, not %s", mlx_var_type(needle));
    }
    *out = !needle->text.length ||
           memmem(haystack->text.bytes, haystack->text.length, needle->text.bytes, needle->text.length);
    return mlx_render_charge(r, haystack->text.length);
  }
  if (haystack->kind == MLX_VAR_DICT) {
    mlx_var_t *found;
    if (!hashable(needle)) MLX_FAIL(r, "unhashable type: '%s'", mlx_var_type(needle));
    MLX_TRY(mlx_dict_find(r, haystack->dict, needle, &found));
    *out = found != NULL;
    return NULL;
  }
  MLX_TRY(mlx_var_items(r, haystack, &items, &count));
  MLX_TRY(mlx_render_charge(r, count));
  for (size_t i = 0; i < count && !*out; ++i) MLX_TRY(mlx_var_equal(r, &items[i], needle, out));
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// str() and repr()

// The fewest digits that read back as the same number, as Python writes them.
void mlx_float_write(mlx_sink_t *sink, double number) {
  char text[64], digits[64];
  int precision = 1;
  if (isnan(number) || isinf(number)) {
    mlx_sink_puts(sink, isnan(number) ? "nan" : number < 0 ? "-inf" : "inf");
    return;
  }
  do {
    snprintf(text, sizeof text, "%.*e", precision - 1, number);
  } while (strtod(text, NULL) != number && ++precision <= 17);
  const int exponent = atoi(strchr(text, 'e') + 1);
  const bool negative = text[0] == '-';
  int count = 0;
  for (const char *c = text; *c != 'e'; ++c) {
    if (*c >= '0' && *c <= '9') digits[count++] = *c;
  }
  digits[count] = 0;
  if (negative) mlx_sink_puts(sink, "-");
  if (exponent < -4 || exponent >= 16) {
    char power[16];
    mlx_sink_append(sink, digits, 1);
    if (count > 1) mlx_sink_puts(sink, ".");
    mlx_sink_puts(sink, digits + 1);
    snprintf(power, sizeof power, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    mlx_sink_puts(sink, power);
  } else if (exponent < 0) {
    mlx_sink_puts(sink, "0.");
    mlx_sink_fill(sink, "0", 1, -exponent - 1);
    mlx_sink_puts(sink, digits);
  } else {
    int whole = exponent + 1;
    mlx_sink_append(sink, digits, (size_t)(count < whole ? count : whole));
    mlx_sink_fill(sink, "0", 1, whole - count);
    mlx_sink_puts(sink, ".");
    mlx_sink_puts(sink, count > whole ? digits + whole : "0");
  }
}

static void escape_code(mlx_sink_t *sink, uint32_t c) {
  char text[16];
  snprintf(text, sizeof text,
           c < 0x100     ? "\\x%02" PRIx32
           : c < 0x10000 ? "\\u%04" PRIx32
                         : "\\U%08" PRIx32,
           c);
  mlx_sink_puts(sink, text);
}

static void repr_text(mlx_sink_t *sink, mlx_span_t text) {
  const char quote =
      memchr(text.bytes, '\'', text.length) && !memchr(text.bytes, '"', text.length) ? '"' : '\'';
  mlx_sink_append(sink, &quote, 1);
  for (size_t at = 0, length; at < text.length; at += length) {
    const uint32_t c = mlx_template_character(text.bytes + at, &length);
    if (c == (unsigned char)quote || c == '\\') {
      mlx_sink_append(sink, (const char[]){'\\', (char)c}, 2);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      mlx_sink_puts(sink, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
    } else if (mlx_printable(c)) {
      mlx_sink_append(sink, text.bytes + at, length);
    } else {
      escape_code(sink, c);
    }
  }
  mlx_sink_append(sink, &quote, 1);
}

static mlx_status_t repr_dict(mlx_render_t *r, mlx_sink_t *sink, const mlx_dict_t *dict) {
  mlx_sink_puts(sink, "{");
  for (size_t i = 0; i < dict->count; ++i) {
    if (i) mlx_sink_puts(sink, ", ");
    MLX_TRY(mlx_var_repr(r, sink, &dict->entries[i].key));
    mlx_sink_puts(sink, ": ");
    MLX_TRY(mlx_var_repr(r, sink, &dict->entries[i].value));
  }
  mlx_sink_puts(sink, "}");
  return NULL;
}

static mlx_status_t repr_range(mlx_sink_t *sink, const mlx_list_t *list) {
  char text[96];
  const int64_t first = list->count ? list->items[0].integer : 0,
                step = list->count > 1 ? list->items[1].integer - first : 1;
  const int64_t stop = list->count ? list->items[list->count - 1].integer + step : 0;
  snprintf(text, sizeof text,
           step == 1 ? "range(%" PRId64 ", %" PRId64 ")" : "range(%" PRId64 ", %" PRId64 ", %" PRId64 ")",
           first, stop, step);
  mlx_sink_puts(sink, text);
  return NULL;
}

static mlx_status_t repr_list(mlx_render_t *r, mlx_sink_t *sink, const mlx_list_t *list) {
  static const char *const starts[] = {"[", "(", "", "dict_keys([", "dict_values([", "dict_items(["};
  static const char *const ends[] = {"]", ")", "", "])", "])", "])"};
  if (list->shape == MLX_SHAPE_RANGE) return repr_range(sink, list);
  if (list->shape == MLX_SHAPE_GENERATOR) MLX_FAIL(r, "a generator has no text: put |list after it");
  mlx_sink_puts(sink, starts[list->shape]);
  for (size_t i = 0; i < list->count; ++i) {
    if (i) mlx_sink_puts(sink, ", ");
    MLX_TRY(mlx_var_repr(r, sink, &list->items[i]));
  }
  if (list->shape == MLX_SHAPE_TUPLE && list->count == 1) mlx_sink_puts(sink, ",");
  mlx_sink_puts(sink, ends[list->shape]);
  return NULL;
}

static mlx_status_t repr_kind(mlx_render_t *r, mlx_sink_t *sink, const mlx_var_t *v) {
  char text[64];
  switch (v->kind) {
    case MLX_VAR_UNDEFINED: mlx_sink_puts(sink, "Undefined"); return NULL;
    case MLX_VAR_NONE: mlx_sink_puts(sink, "None"); return NULL;
    case MLX_VAR_BOOL: mlx_sink_puts(sink, v->truth ? "True" : "False"); return NULL;
    case MLX_VAR_INT:
      snprintf(text, sizeof text, "%" PRId64, v->integer);
      mlx_sink_puts(sink, text);
      return NULL;
    case MLX_VAR_FLOAT: mlx_float_write(sink, v->number); return NULL;
    case MLX_VAR_STRING:
      if (v->markup) mlx_sink_puts(sink, "Markup(");
      repr_text(sink, v->text);
      if (v->markup) mlx_sink_puts(sink, ")");
      return NULL;
    case MLX_VAR_LIST: return repr_list(r, sink, v->list);
    case MLX_VAR_DICT: return repr_dict(r, sink, v->dict);
    case MLX_VAR_NAMESPACE:
      mlx_sink_puts(sink, "<Namespace ");
      MLX_TRY(repr_dict(r, sink, v->dict));
      mlx_sink_puts(sink, ">");
      return NULL;
    case MLX_VAR_LOOP:
      snprintf(text, sizeof text, "<LoopContext %zu/%zu>", v->loop->index + 1, v->loop->count);
      mlx_sink_puts(sink, text);
      return NULL;
    default:
      if (!v->function->macro) MLX_FAIL(r, "a function has no text: is it to be called?");
      mlx_sink_puts(sink, "<Macro ");
      repr_text(sink, v->function->macro->text);
      mlx_sink_puts(sink, ">");
      return NULL;
  }
}

mlx_status_t mlx_var_repr(mlx_render_t *r, mlx_sink_t *sink, const mlx_var_t *v) {
  MLX_TRY(enter(r));
  MLX_TRY(mlx_render_charge(r, 1));
  MLX_TRY(repr_kind(r, sink, v));
  --r->depth;
  return NULL;
}

mlx_status_t mlx_var_write(mlx_render_t *r, mlx_sink_t *sink, const mlx_var_t *v) {
  if (v->kind == MLX_VAR_UNDEFINED) return NULL;
  if (v->kind != MLX_VAR_STRING) return mlx_var_repr(r, sink, v);
  mlx_sink_append(sink, v->text.bytes, v->text.length);
  return mlx_render_charge(r, v->text.length);
}

mlx_status_t mlx_var_text(mlx_render_t *r, const mlx_var_t *v, mlx_span_t *out) {
  mlx_sink_t sink = {.arena = &r->arena};
  mlx_var_t text = *v;
  if (v->kind != MLX_VAR_STRING) {
    MLX_TRY(mlx_var_write(r, &sink, v));
    MLX_TRY(mlx_sink_take(r, &sink, &text));
  }
  *out = text.text;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// json.dumps()

static void json_text(mlx_sink_t *sink, mlx_span_t text, bool ascii) {
  static const char letters[] = "\"\\\n\r\t\f\b", names[] = "\"\\nrtfb";
  char code[16];
  mlx_sink_puts(sink, "\"");
  for (size_t at = 0, length; at < text.length; at += length) {
    const uint32_t c = mlx_template_character(text.bytes + at, &length);
    const char *known = c && c < 0x80 ? strchr(letters, (int)c) : NULL;
    if (known) {
      mlx_sink_append(sink, (const char[]){'\\', names[known - letters]}, 2);
    } else if (c < 0x20 || (ascii && c > 0x7e && c < 0x10000)) {
      snprintf(code, sizeof code, "\\u%04" PRIx32, c);
      mlx_sink_puts(sink, code);
    } else if (ascii && c >= 0x10000) {
      snprintf(code, sizeof code, "\\u%04" PRIx32 "\\u%04" PRIx32, 0xd800 + ((c - 0x10000) >> 10),
               0xdc00 + ((c - 0x10000) & 0x3ff));
      mlx_sink_puts(sink, code);
    } else {
      mlx_sink_append(sink, text.bytes + at, length);
    }
  }
  mlx_sink_puts(sink, "\"");
}

static void json_newline(mlx_sink_t *sink, const mlx_json_style_t *style, int level) {
  if (!style->pretty) return;
  mlx_sink_puts(sink, "\n");
  mlx_sink_fill(sink, style->indent.bytes, style->indent.length, level);
}

static mlx_status_t json_key(mlx_render_t *r, mlx_sink_t *sink, const mlx_var_t *key,
                             const mlx_json_style_t *style) {
  if (key->kind == MLX_VAR_STRING) {
    json_text(sink, key->text, style->ascii);
    return NULL;
  }
  if (!mlx_is_number(key) && key->kind != MLX_VAR_NONE)
    MLX_FAIL(r, "JSON keys cannot be '%s'", mlx_var_type(key));
  mlx_sink_puts(sink, "\"");
  MLX_TRY(mlx_var_json(r, sink, key, style, 0));
  mlx_sink_puts(sink, "\"");
  return NULL;
}

// Entries sorted by key, by insertion: there are few.
static mlx_status_t sorted_entries(mlx_render_t *r, const mlx_dict_t *dict, mlx_entry_t **out) {
  mlx_entry_t *entries;
  MLX_TRY(mlx_arena_take(&r->arena, dict->count ? dict->count : 1, sizeof *entries, &entries));
  for (size_t i = 0; i < dict->count; ++i) {
    size_t place = i;
    for (; place; --place) {
      int order;
      MLX_TRY(mlx_var_order(r, &entries[place - 1].key, &dict->entries[i].key, &order));
      if (order <= 0) break;
      entries[place] = entries[place - 1];
    }
    entries[place] = dict->entries[i];
  }
  *out = entries;
  return NULL;
}

static mlx_status_t json_dict(mlx_render_t *r, mlx_sink_t *sink, const mlx_dict_t *dict,
                              const mlx_json_style_t *style, int level) {
  mlx_entry_t *entries = dict->entries;
  if (style->sorted) MLX_TRY(sorted_entries(r, dict, &entries));
  mlx_sink_puts(sink, "{");
  for (size_t i = 0; i < dict->count; ++i) {
    if (i) mlx_sink_append(sink, style->item_separator.bytes, style->item_separator.length);
    json_newline(sink, style, level + 1);
    MLX_TRY(json_key(r, sink, &entries[i].key, style));
    mlx_sink_append(sink, style->key_separator.bytes, style->key_separator.length);
    MLX_TRY(mlx_var_json(r, sink, &entries[i].value, style, level + 1));
  }
  if (dict->count) json_newline(sink, style, level);
  mlx_sink_puts(sink, "}");
  return NULL;
}

static mlx_status_t json_list(mlx_render_t *r, mlx_sink_t *sink, const mlx_list_t *list,
                              const mlx_json_style_t *style, int level) {
  mlx_sink_puts(sink, "[");
  for (size_t i = 0; i < list->count; ++i) {
    if (i) mlx_sink_append(sink, style->item_separator.bytes, style->item_separator.length);
    json_newline(sink, style, level + 1);
    MLX_TRY(mlx_var_json(r, sink, &list->items[i], style, level + 1));
  }
  if (list->count) json_newline(sink, style, level);
  mlx_sink_puts(sink, "]");
  return NULL;
}

static mlx_status_t json_kind(mlx_render_t *r, mlx_sink_t *sink, const mlx_var_t *v,
                              const mlx_json_style_t *style, int level) {
  switch (v->kind) {
    case MLX_VAR_NONE: mlx_sink_puts(sink, "null"); return NULL;
    case MLX_VAR_BOOL: mlx_sink_puts(sink, v->truth ? "true" : "false"); return NULL;
    case MLX_VAR_INT: return mlx_var_repr(r, sink, v);
    case MLX_VAR_FLOAT:
      if (isfinite(v->number)) return mlx_var_repr(r, sink, v);
      mlx_sink_puts(sink, isnan(v->number) ? "NaN" : v->number < 0 ? "-Infinity" : "Infinity");
      return NULL;
    case MLX_VAR_STRING: json_text(sink, v->text, style->ascii); return NULL;
    case MLX_VAR_DICT: return json_dict(r, sink, v->dict, style, level);
    case MLX_VAR_LIST:
      if (v->list->shape <= MLX_SHAPE_TUPLE) return json_list(r, sink, v->list, style, level);
      break;
    default: break;
  }
  MLX_FAIL(r, "Object of type %s is not JSON serializable", mlx_var_type(v));
}

mlx_status_t mlx_var_json(mlx_render_t *r, mlx_sink_t *sink, const mlx_var_t *v,
                          const mlx_json_style_t *style, int level) {
  MLX_TRY(enter(r));
  MLX_TRY(mlx_render_charge(r, v->kind == MLX_VAR_STRING ? v->text.length : 1));
  MLX_TRY(json_kind(r, sink, v, style, level));
  --r->depth;
  return NULL;
}
