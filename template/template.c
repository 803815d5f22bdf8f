#include "template/template.h"

#include <stdio.h>
#include <stdlib.h>

#include "template/internal.h"

#define MAX_SOURCE ((size_t)4 << 20)
#define NODE_MEMORY ((size_t)1 << 30)
#define DEFAULT_STEPS 20000000
#define DEFAULT_MEMORY ((size_t)256 << 20)
#define DEFAULT_OUTPUT ((size_t)64 << 20)
#define BYTES_A_STEP 64

// ----------------------------------------------------------------------------------------------------------
// Errors and budgets

static mlx_status_t error_at(const char *name, int line, mlx_code_t code, const char *fmt, va_list args) {
  char message[1024];
  vsnprintf(message, sizeof message, fmt, args);
  return mlx_error(code, "%s, line %d: %s", name, line, message);
}

mlx_status_t mlx_template_error(const mlx_template_t *template, int line, mlx_code_t code, const char *fmt,
                                ...) {
  va_list args;
  va_start(args, fmt);
  mlx_status_t status = error_at(template->name, line, code, fmt, args);
  va_end(args);
  return status;
}

mlx_status_t mlx_render_error(const mlx_render_t *r, mlx_code_t code, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  mlx_status_t status = error_at(r->template->name, r->line, code, fmt, args);
  va_end(args);
  return status;
}

mlx_status_t mlx_render_charge(mlx_render_t *r, size_t work) {
  const uint64_t steps = 1 + work / BYTES_A_STEP;
  if (steps > r->steps_left) return mlx_render_error(r, MLX_UNSUPPORTED, "the template takes too many steps");
  r->steps_left -= steps;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Create

// As jinja2 does: every end of line becomes \n, and one at the end is dropped.
static mlx_status_t copy_source(mlx_template_t *template, const char *source, size_t length) {
  MLX_TRY(mlx_copy_text(source, length, &template->source));
  size_t count = 0;
  for (size_t i = 0; i < length; ++i) {
    char c = source[i];
    if (c == '\r') {
      c = '\n';
      if (i + 1 < length && source[i + 1] == '\n') ++i;
    }
    template->source[count++] = c;
  }
  if (count && template->source[count - 1] == '\n') --count;
  template->source[count] = 0;
  template->source_length = count;
  return NULL;
}

static mlx_status_t check_source(const char *name, const char *source, size_t length) {
  if (length > MAX_SOURCE)
    return mlx_error(MLX_UNSUPPORTED, "%s: a template of %zu bytes is too large", name, length);
  for (size_t i = 0; i < length;) {
    int step = mlx_utf8_length(source + i, length - i);
    if (step <= 0) return mlx_error(MLX_INVALID_INPUT, "%s: the template is not UTF-8 at byte %zu", name, i);
    i += (size_t)step;
  }
  return NULL;
}

mlx_status_t mlx_template_create(const char *name, const char *source, size_t length,
                                 mlx_template_t **out_template) {
  mlx_template_t *template;
  *out_template = NULL;
  MLX_TRY(check_source(name, source, length));
  MLX_TRY(mlx_alloc(1, sizeof *template, &template));
  template->arena.limit = NODE_MEMORY;
  mlx_status_t status = mlx_copy_text(name, strlen(name), &template->name);
  template->arena.name = template->name;
  if (!status) status = copy_source(template, source, length);
  if (!status) status = mlx_template_parse(template);
  if (status) {
    mlx_template_free(template);
    return status;
  }
  *out_template = template;
  return NULL;
}

void mlx_template_free(mlx_template_t *template) {
  if (!template) return;
  mlx_arena_clear(&template->arena);
  mlx_free(template->name);
  mlx_free(template->source);
  mlx_free(template);
}

// ----------------------------------------------------------------------------------------------------------
// Variables

static mlx_status_t from_json(mlx_render_t *r, yyjson_val *json, mlx_var_t *out) MLX_MUST_USE;

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
  MLX_TRY(mlx_new_dict(r, MLX_VAR_DICT, out));
  yyjson_obj_foreach(json, index, count, key, item) {
    MLX_TRY(from_json(r, item, &value));
    MLX_TRY(mlx_dict_put(r, out->dict, mlx_string(yyjson_get_str(key), yyjson_get_len(key)), value));
  }
  return NULL;
}

static mlx_status_t list_from_json(mlx_render_t *r, yyjson_val *json, mlx_var_t *out) {
  size_t index, count;
  yyjson_val *item;
  mlx_var_t value;
  MLX_TRY(mlx_new_list(r, MLX_SHAPE_LIST, yyjson_arr_size(json), out));
  yyjson_arr_foreach(json, index, count, item) {
    MLX_TRY(from_json(r, item, &value));
    MLX_TRY(mlx_list_push(r, out->list, value));
  }
  return NULL;
}

// Strings are borrowed from the document, which outlives the render.
static mlx_status_t from_json(mlx_render_t *r, yyjson_val *json, mlx_var_t *out) {
  *out = mlx_none();
  if (++r->depth > MLX_TEMPLATE_DEPTH)
    return mlx_render_error(r, MLX_UNSUPPORTED, "the input is nested too deep");
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

static mlx_status_t add_variables(mlx_render_t *r, const mlx_template_input_t *input, mlx_scope_t *scope) {
  MLX_TRY(mlx_globals_add(r, scope));
  for (size_t i = 0; i < input->variable_count; ++i) {
    const mlx_template_variable_t *variable = &input->variables[i];
    mlx_var_t value;
    MLX_TRY(from_json(r, variable->value, &value));
    MLX_TRY(mlx_scope_set(r, scope, (mlx_span_t){variable->name, strlen(variable->name)}, value));
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Render

mlx_status_t mlx_template_render(const mlx_template_t *template, const mlx_template_input_t *input,
                                 char **out_text, size_t *out_length) {
  const mlx_template_limits_t *limits = &input->limits;
  mlx_render_t r = {.template = template,
                    .arena = {.limit = limits->memory ? limits->memory : DEFAULT_MEMORY},
                    .steps_left = limits->steps ? limits->steps : DEFAULT_STEPS,
                    .line = 1,
                    .now = input->now};
  r.arena.name = template->name;
  r.arena.line = &r.line;
  mlx_sink_t out = {.arena = &r.arena, .limit = limits->output ? limits->output : DEFAULT_OUTPUT};
  mlx_scope_t globals = {0};
  *out_text = NULL;
  *out_length = 0;
  r.out = &out;
  mlx_status_t status = add_variables(&r, input, &globals);
  if (!status) status = mlx_render_body(&r, &globals);
  if (!status) status = mlx_copy_text(out.data ? out.data : "", out.length, out_text);
  if (!status) *out_length = out.length;
  mlx_arena_clear(&r.arena);
  return status;
}
