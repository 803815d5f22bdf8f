// The public functions. This file is the top layer: it connects the parser, the builtins and the evaluator.
#include "template/template.h"

#include "base/memory.h"
#include "base/text.h"
#include "template/builtin_tests.h"
#include "template/check.h"
#include "template/eval.h"
#include "template/filters.h"
#include "template/globals.h"
#include "template/methods.h"
#include "template/statements.h"
#include "template/value_json.h"

#define MAX_SOURCE ((size_t)4 << 20)   // bytes
#define NODE_MEMORY ((size_t)1 << 30)  // bytes
#define RENDER_SECONDS 10
#define DEFAULT_STEPS 20000000
#define DEFAULT_MEMORY ((size_t)256 << 20)
#define DEFAULT_OUTPUT ((size_t)64 << 20)

static const mlx_builtin_registry_t registry = {
    .find_filter = mlx_filter_find, .find_test = mlx_test_find, .find_method = mlx_method_find};

// ----------------------------------------------------------------------------------------------------------
// Create

// Copies the source. As in jinja2, every line end becomes \n, and one at the end of the source is dropped.
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
    return mlx_error(MLX_UNSUPPORTED, "%s: the template has %zu bytes; the limit is %zu", name, length,
                     MAX_SOURCE);
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
  if (!status) status = mlx_template_check(template, &registry);
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
// Render

static mlx_status_t add_variables(mlx_render_t *r, const mlx_template_input_t *input, mlx_scope_t *scope) {
  MLX_TRY(mlx_globals_add(r, scope));
  for (size_t i = 0; i < input->variable_count; ++i) {
    const mlx_template_variable_t *variable = &input->variables[i];
    mlx_var_t value;
    MLX_TRY(mlx_var_from_json(r, variable->value, &value));
    MLX_TRY(mlx_scope_set(r, scope, (mlx_span_t){variable->name, strlen(variable->name)}, value));
  }
  return NULL;
}

mlx_status_t mlx_template_render(const mlx_template_t *template, const mlx_template_input_t *input,
                                 char **out_text, size_t *out_length) {
  const mlx_template_limits_t *limits = &input->limits;
  mlx_render_t r = {.template_name = template->name,
                    .registry = &registry,
                    .arena = {.limit = limits->memory ? limits->memory : DEFAULT_MEMORY},
                    .steps_left = limits->steps ? limits->steps : DEFAULT_STEPS,
                    .line = 1,
                    .now = input->now};
  mlx_budget_begin(&r.budget, "rendering the chat template", RENDER_SECONDS, SIZE_MAX);
  r.budget.name = template->name;
  r.arena.name = template->name;
  r.arena.line = &r.line;
  mlx_sink_t out = {.arena = &r.arena, .limit = limits->output ? limits->output : DEFAULT_OUTPUT};
  mlx_scope_t globals = {0};
  *out_text = NULL;
  *out_length = 0;
  r.out = &out;
  mlx_status_t status = add_variables(&r, input, &globals);
  if (!status) status = mlx_eval_body(&r, &globals, template->body);
  if (!status) status = mlx_copy_text(out.data ? out.data : "", out.length, out_text);
  if (!status) *out_length = out.length;
  mlx_arena_clear(&r.arena);
  return status;
}
