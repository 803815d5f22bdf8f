// Values as JSON, spelled as Python's json.dumps() does, and values from parsed JSON.
#include "template/value_json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "template/characters.h"
#include "template/value_repr.h"

// ----------------------------------------------------------------------------------------------------------
// json.dumps()

static void json_text(mlx_sink_t *sink, mlx_span_t text, bool ascii) {
  static const char letters[] = "\"\\\n\r\t\f\b", names[] = "\"\\nrtfb";
  char code[16];
  mlx_sink_puts(sink, "\"");
  for (size_t at = 0, length; at < text.length; at += length) {
    const uint32_t c = mlx_character_at(text.bytes + at, &length);
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
  if (!mlx_var_is_number(key) && key->kind != MLX_VAR_NONE)
    MLX_FAIL(r, "JSON keys cannot be '%s'", mlx_var_type(key));
  mlx_sink_puts(sink, "\"");
  MLX_TRY(mlx_var_json(r, sink, key, style, 0));
  mlx_sink_puts(sink, "\"");
  return NULL;
}

// Copies the entries sorted by key. Insertion sort, because dicts are small.
static mlx_status_t sorted_entries(mlx_render_t *r, const mlx_dict_t *dict, mlx_entry_t **out) {
  mlx_entry_t *entries;
  MLX_TRY(mlx_arena_take(&r->arena, dict->count ? dict->count : 1, sizeof *entries, &entries));
  for (size_t i = 0; i < dict->count; ++i) {
    size_t at = i;
    for (; at; --at) {
      int order;
      MLX_TRY(mlx_var_order(r, &entries[at - 1].key, &dict->entries[i].key, &order));
      if (order <= 0) break;
      entries[at] = entries[at - 1];
    }
    entries[at] = dict->entries[i];
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
      if (v->list->type <= MLX_PY_TUPLE) return json_list(r, sink, v->list, style, level);
      break;
    default: break;
  }
  MLX_FAIL(r, "Object of type %s is not JSON serializable", mlx_var_type(v));
}

mlx_status_t mlx_var_json(mlx_render_t *r, mlx_sink_t *sink, const mlx_var_t *v,
                          const mlx_json_style_t *style, int level) {
  MLX_TRY(mlx_render_enter(r));
  MLX_TRY(mlx_render_charge(r, v->kind == MLX_VAR_STRING ? v->text.length : 1));
  MLX_TRY(json_kind(r, sink, v, style, level));
  --r->depth;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// From JSON

static mlx_status_t number_from_json(const mlx_render_t *r, yyjson_val *json, mlx_var_t *out) {
  if (yyjson_is_real(json)) {
    *out = mlx_float(yyjson_get_real(json));
  } else if (yyjson_is_uint(json) && yyjson_get_uint(json) > INT64_MAX) {
    return mlx_render_error(r, MLX_UNSUPPORTED, "the number %llu in the input does not fit 64 bits",
                            (unsigned long long)yyjson_get_uint(json));
  } else {
    *out = mlx_int(yyjson_get_sint(json));
  }
  return NULL;
}

static mlx_status_t dict_from_json(mlx_render_t *r, yyjson_val *json, mlx_var_t *out) {
  size_t index, count;
  yyjson_val *key, *item;
  mlx_var_t value;
  MLX_TRY(mlx_dict_create(r, MLX_VAR_DICT, out));
  yyjson_obj_foreach(json, index, count, key, item) {
    MLX_TRY(mlx_var_from_json(r, item, &value));
    MLX_TRY(mlx_dict_put(r, out->dict, mlx_string(yyjson_get_str(key), yyjson_get_len(key)), value));
  }
  return NULL;
}

static mlx_status_t list_from_json(mlx_render_t *r, yyjson_val *json, mlx_var_t *out) {
  size_t index, count;
  yyjson_val *item;
  mlx_var_t value;
  MLX_TRY(mlx_list_create(r, MLX_PY_LIST, yyjson_arr_size(json), out));
  yyjson_arr_foreach(json, index, count, item) {
    MLX_TRY(mlx_var_from_json(r, item, &value));
    MLX_TRY(mlx_list_push(r, out->list, value));
  }
  return NULL;
}

mlx_status_t mlx_var_from_json(mlx_render_t *r, yyjson_val *json, mlx_var_t *out) {
  *out = mlx_none();
  MLX_TRY(mlx_render_enter(r));
  mlx_status_t status = NULL;
  if (yyjson_is_bool(json)) {
    *out = mlx_bool(yyjson_get_bool(json));
  } else if (yyjson_is_num(json)) {
    status = number_from_json(r, json, out);
  } else if (yyjson_is_str(json)) {
    *out = mlx_string(yyjson_get_str(json), yyjson_get_len(json));
  } else if (yyjson_is_arr(json)) {
    status = list_from_json(r, json, out);
  } else if (yyjson_is_obj(json)) {
    status = dict_from_json(r, json, out);
  }
  --r->depth;
  return status;
}
