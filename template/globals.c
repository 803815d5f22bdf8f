// Global functions: jinja2's range, dict, namespace and joiner, and transformers' raise_exception and
// strftime_now.
#include "template/globals.h"

#include <time.h>

#include "base/text.h"
#include "template/builtin.h"
#include "template/value_repr.h"

#define MAX_RANGE 100000  // items of range(), as in jinja2's sandbox

static mlx_status_t global_range(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  int64_t start = 0, stop, step = 1;
  MLX_TRY(mlx_call_integer(r, call, 0, 0, &stop));
  if (call->given[1]) {
    start = stop;
    MLX_TRY(mlx_call_integer(r, call, 1, 0, &stop));
  }
  MLX_TRY(mlx_call_integer(r, call, 2, 1, &step));
  if (!step) MLX_FAIL(r, "range() arg 3 must not be zero");
  MLX_TRY(mlx_list_create(r, MLX_PY_RANGE, 0, out));
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (out->list->count == MAX_RANGE)
      MLX_FAIL(r, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", MAX_RANGE);
    MLX_TRY(mlx_list_push(r, out->list, mlx_int(i)));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return NULL;
}

// Fills the result of dict(pairs, a=1) or namespace(pairs, a=1).
static mlx_status_t fill_dict(mlx_render_t *r, const mlx_template_call_t *call, mlx_dict_t *dict) {
  if (call->args->count > 1) MLX_FAIL(r, "dict expected at most 1 argument, got %zu", call->args->count);
  if (call->args->count && call->args->positional[0].kind == MLX_VAR_DICT) {
    const mlx_dict_t *from = call->args->positional[0].dict;
    for (size_t i = 0; i < from->count; ++i)
      MLX_TRY(mlx_dict_put(r, dict, from->entries[i].key, from->entries[i].value));
  } else if (call->args->count) {
    const mlx_var_t *pairs, *pair;
    size_t count, length;
    MLX_TRY(mlx_var_items(r, &call->args->positional[0], &pairs, &count));
    for (size_t i = 0; i < count; ++i) {
      MLX_TRY(mlx_var_items(r, &pairs[i], &pair, &length));
      if (length != 2)
        MLX_FAIL(r, "dictionary update sequence element #%zu has length %zu; 2 is required", i, length);
      MLX_TRY(mlx_dict_put(r, dict, pair[0], pair[1]));
    }
  }
  for (size_t i = 0; call->args->named && i < call->args->named->count; ++i) {
    MLX_TRY(mlx_dict_put(r, dict, call->args->named->entries[i].key, call->args->named->entries[i].value));
  }
  return NULL;
}

static mlx_status_t global_dict(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  MLX_TRY(mlx_dict_create(r, MLX_VAR_DICT, out));
  return fill_dict(r, call, out->dict);
}

static mlx_status_t global_namespace(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  MLX_TRY(mlx_dict_create(r, MLX_VAR_NAMESPACE, out));
  MLX_TRY(fill_dict(r, call, out->dict));
  for (size_t i = 0; i < out->dict->count; ++i) {
    const mlx_var_t *key = &out->dict->entries[i].key;
    if (key->kind == MLX_VAR_STRING && key->text.length && key->text.bytes[0] == '_') {
      MLX_FAIL(r, "a namespace does not accept names that begin with an underscore");
    }
  }
  return NULL;
}

static mlx_status_t global_raise_exception(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  mlx_span_t text;
  *out = mlx_none();
  MLX_TRY(mlx_var_text(r, &call->parameters[0], &text));
  return mlx_status_hint(
      mlx_render_error(r, MLX_INVALID_INPUT, "the template refuses the conversation: %.*s", (int)text.length,
                       text.bytes),
      "the message comes from the model's chat template; to see the roles and order that it accepts: "
      "mlxcel template --show");
}

static mlx_status_t global_strftime_now(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  char format[256], text[1024];
  if (call->parameters[0].kind != MLX_VAR_STRING)
    MLX_FAIL(r, "strftime_now expects a string, not '%s'", mlx_var_type(&call->parameters[0]));
  const mlx_span_t given = call->parameters[0].text;
  if (given.length + 2 > sizeof format || memchr(given.bytes, 0, given.length))
    MLX_FAIL(r, "strftime_now: the format is too long");
  memcpy(format, given.bytes, given.length);
  memcpy(format + given.length, "|", 2);  // so that strftime returns 0 only if the result does not fit
  const time_t now = r->now ? (time_t)r->now : time(NULL);
  struct tm local;
  if (!localtime_r(&now, &local)) MLX_FAIL(r, "strftime_now: the time is out of range");
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#endif
  const size_t length = strftime(text, sizeof text, format, &local);
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
  if (!length) MLX_FAIL(r, "strftime_now: the result is too long");
  // The locale may give names of days and months in any encoding.
  for (size_t i = 0; i + 1 < length;) {
    int step = mlx_utf8_length(text + i, length - 1 - i);
    if (step <= 0) MLX_FAIL(r, "strftime_now: the result is not UTF-8");
    i += (size_t)step;
  }
  mlx_sink_t sink = {.arena = &r->arena};
  mlx_sink_append(&sink, text, length - 1);
  return mlx_sink_to_string(r, &sink, out);
}

// A joiner returns an empty string on its first call and its separator on later calls.
static mlx_status_t call_joiner(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  (void)r;
  mlx_list_t *state = call->self.list;
  *out = state->items[1].truth ? state->items[0] : mlx_literal("");
  state->items[1] = mlx_bool(true);
  return NULL;
}

static mlx_status_t global_joiner(mlx_render_t *r, const mlx_template_call_t *call, mlx_var_t *out) {
  static const mlx_builtin_t joiner = {"joiner", call_joiner, ""};
  mlx_template_function_t *function;
  mlx_var_t state;
  MLX_TRY(
      mlx_tuple_create(r, call->given[0] ? call->parameters[0] : mlx_literal(", "), mlx_bool(false), &state));
  MLX_TRY(mlx_arena_take(&r->arena, 1, sizeof *function, &function));
  *function = (mlx_template_function_t){.builtin = &joiner, .self = state};
  *out = (mlx_var_t){.kind = MLX_VAR_FUNCTION, .function = function};
  return NULL;
}

mlx_status_t mlx_globals_add(mlx_render_t *r, mlx_scope_t *scope) {
  static const mlx_builtin_t globals[] = {{"range", global_range, "start |stop step"},
                                          {"dict", global_dict, "*"},
                                          {"namespace", global_namespace, "*"},
                                          {"raise_exception", global_raise_exception, "message"},
                                          {"strftime_now", global_strftime_now, "format"},
                                          {"joiner", global_joiner, "|sep"},
                                          {0}};
  for (const mlx_builtin_t *g = globals; g->name; ++g) {
    mlx_template_function_t *function;
    MLX_TRY(mlx_arena_take(&r->arena, 1, sizeof *function, &function));
    function->builtin = g;
    MLX_TRY(mlx_scope_set(r, scope, (mlx_span_t){g->name, strlen(g->name)},
                          (mlx_var_t){.kind = MLX_VAR_FUNCTION, .function = function}));
  }
  return NULL;
}
