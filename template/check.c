// Resolves filters and tests, and finds the variables that macros use.
#include "template/check.h"

#include "template/error.h"

typedef struct check {
  const mlx_template_t *template;
  const mlx_builtin_registry_t *registry;
  int depth;
  bool caller, varargs, kwargs;  // used since the macro began
} check_t;

static mlx_status_t check_chain(check_t *c, mlx_template_node_t *node, bool soft) MLX_MUST_USE;

// |soft|: inside a condition, where an unknown filter or test is an error only when it is evaluated, as in
// jinja2.
static mlx_status_t check_builtin(const check_t *c, mlx_template_node_t *node, bool soft) {
  const bool is_filter = node->kind == MLX_NODE_FILTER;
  node->builtin = is_filter ? c->registry->find_filter(node->text) : c->registry->find_test(node->text);
  if (node->builtin || soft) return NULL;
  return mlx_template_error(c->template->name, node->line, MLX_UNSUPPORTED, "there is no %s named '%.*s'",
                            is_filter ? "filter" : "test", (int)node->text.length, node->text.bytes);
}

static mlx_status_t check_macro(check_t *c, mlx_template_node_t *node) {
  check_t inside = {.template = c->template, .registry = c->registry, .depth = c->depth};
  MLX_TRY(check_chain(&inside, node->first, false));
  MLX_TRY(check_chain(&inside, node->body, false));
  node->uses_caller = inside.caller;
  node->uses_varargs = inside.varargs;
  node->uses_kwargs = inside.kwargs;
  c->caller |= inside.caller;
  c->varargs |= inside.varargs;
  c->kwargs |= inside.kwargs;
  return NULL;
}

static mlx_status_t check_node(check_t *c, mlx_template_node_t *node, bool soft) {
  switch (node->kind) {
    case MLX_NODE_NAME:
      c->caller |= mlx_span_is(node->text, "caller");
      c->varargs |= mlx_span_is(node->text, "varargs");
      c->kwargs |= mlx_span_is(node->text, "kwargs");
      return NULL;
    case MLX_NODE_FILTER:
    case MLX_NODE_TEST: MLX_TRY(check_builtin(c, node, soft)); break;
    case MLX_NODE_IF:
    case MLX_NODE_CONDITION: soft = true; break;
    case MLX_NODE_FOR:
      MLX_TRY(check_chain(c, node->b, soft));
      MLX_TRY(check_chain(c, node->c, false));
      MLX_TRY(check_chain(c, node->body, false));
      return check_chain(c, node->otherwise, false);
    case MLX_NODE_CALL_BLOCK: MLX_TRY(check_chain(c, node->a, soft)); return check_macro(c, node);
    case MLX_NODE_MACRO: return check_macro(c, node);
    case MLX_NODE_SET_BLOCK:
    case MLX_NODE_FILTER_BLOCK:
    case MLX_NODE_WITH:
    case MLX_NODE_SCOPE: soft = false; break;
    default: break;
  }
  MLX_TRY(check_chain(c, node->a, soft));
  MLX_TRY(check_chain(c, node->b, soft));
  MLX_TRY(check_chain(c, node->c, soft));
  MLX_TRY(check_chain(c, node->first, soft));
  return check_chain(c, node->body, soft);
}

static mlx_status_t check_chain(check_t *c, mlx_template_node_t *node, bool soft) {
  if (!node) return NULL;
  if (++c->depth > MLX_MAX_RENDER_DEPTH) {
    return mlx_template_error(c->template->name, node->line, MLX_INVALID_INPUT,
                              "the template is nested too deeply");
  }
  for (; node; node = node->next) {
    // An elif is a node inside the if before it. A loop visits them, because there may be more than the depth
    // limit.
    for (mlx_template_node_t *branch = node; branch;
         branch = branch->kind == MLX_NODE_IF ? branch->otherwise : NULL) {
      if (branch != node && branch->kind != MLX_NODE_IF) {
        MLX_TRY(check_chain(c, branch, true));
        break;
      }
      MLX_TRY(check_node(c, branch, soft || branch != node));
      if (branch->kind == MLX_NODE_IF && branch->otherwise && branch->otherwise->next) {
        MLX_TRY(check_chain(c, branch->otherwise, true));
        break;
      }
    }
  }
  --c->depth;
  return NULL;
}

mlx_status_t mlx_template_check(mlx_template_t *template, const mlx_builtin_registry_t *registry) {
  check_t check = {.template = template, .registry = registry};
  return check_chain(&check, template->body, false);
}
