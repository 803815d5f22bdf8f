// Evaluator: statements write text, expressions make values.
//
// Scopes are jinja2's. The bodies of loops, macros, call blocks and {% with %} each have their own scope; the
// body of an if has none. A macro reads the variables around its definition at the time of the call.
#include "template/eval.h"

#include "template/builtin.h"
#include "template/lookup.h"
#include "template/value_repr.h"

static mlx_status_t eval(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node,
                         mlx_var_t *out) MLX_MUST_USE;

static mlx_status_t run_chain(mlx_render_t *r, mlx_scope_t *scope,
                              const mlx_template_node_t *node) MLX_MUST_USE;

// ----------------------------------------------------------------------------------------------------------
// Assignment

static mlx_status_t set_literal(mlx_render_t *r, mlx_scope_t *scope, const char *name, mlx_var_t value) {
  return mlx_scope_set(r, scope, (mlx_span_t){name, strlen(name)}, value);
}

// {% set ns.name = value %}. Only a namespace can be changed, and transformers blocks names that begin with
// an underscore.
static mlx_status_t set_attribute(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *target,
                                  mlx_var_t value) {
  mlx_var_t object;
  MLX_TRY(eval(r, scope, target->a, &object));
  if (object.kind != MLX_VAR_NAMESPACE)
    MLX_FAIL(r, "attributes can be set on a namespace only, not on '%s'", mlx_var_type(&object));
  if (target->text.bytes[0] == '_')
    MLX_FAIL(r, "a namespace does not accept names that begin with an underscore");
  return mlx_dict_put(r, object.dict, mlx_string(target->text.bytes, target->text.length), value);
}

static mlx_status_t assign(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *target,
                           mlx_var_t value) {
  const mlx_var_t *items;
  size_t count, index = 0;
  if (target->kind == MLX_NODE_NAME) return mlx_scope_set(r, scope, target->text, value);
  if (target->kind == MLX_NODE_ATTRIBUTE) return set_attribute(r, scope, target, value);
  MLX_TRY(mlx_var_items(r, &value, &items, &count));
  for (const mlx_template_node_t *item = target->first; item; item = item->next, ++index) {
    if (index == count) MLX_FAIL(r, "not enough values to unpack: got %zu", count);
    MLX_TRY(assign(r, scope, item, items[index]));
  }
  if (index < count) MLX_FAIL(r, "too many values to unpack: got %zu, expected %zu", count, index);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Calls

static mlx_status_t add_argument(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node,
                                 mlx_list_t *positional, mlx_dict_t *named) {
  mlx_var_t value;
  MLX_TRY(eval(r, scope, node->kind == MLX_NODE_KEYWORD || node->kind == MLX_NODE_SPREAD ? node->a : node,
               &value));
  if (node->kind == MLX_NODE_KEYWORD)
    return mlx_dict_put(r, named, mlx_string(node->text.bytes, node->text.length), value);
  if (node->kind != MLX_NODE_SPREAD) return mlx_list_push(r, positional, value);
  if (node->named) {
    if (value.kind != MLX_VAR_DICT) MLX_FAIL(r, "** expects a mapping, not '%s'", mlx_var_type(&value));
    for (size_t i = 0; i < value.dict->count; ++i) {
      if (value.dict->entries[i].key.kind != MLX_VAR_STRING) MLX_FAIL(r, "** expects string keys");
      MLX_TRY(mlx_dict_put(r, named, value.dict->entries[i].key, value.dict->entries[i].value));
    }
    return NULL;
  }
  const mlx_var_t *items;
  size_t count;
  MLX_TRY(mlx_var_items(r, &value, &items, &count));
  for (size_t i = 0; i < count; ++i) MLX_TRY(mlx_list_push(r, positional, items[i]));
  return NULL;
}

static mlx_status_t eval_arguments(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *first,
                                   mlx_args_t *out) {
  mlx_var_t positional, named;
  *out = (mlx_args_t){0};
  if (!first) return NULL;
  MLX_TRY(mlx_list_create(r, MLX_PY_LIST, 4, &positional));
  MLX_TRY(mlx_dict_create(r, MLX_VAR_DICT, &named));
  for (const mlx_template_node_t *node = first; node; node = node->next)
    MLX_TRY(add_argument(r, scope, node, positional.list, named.dict));
  *out = (mlx_args_t){positional.list->items, positional.list->count, named.dict->count ? named.dict : NULL};
  return NULL;
}

// Runs statements and returns their output as a string.
static mlx_status_t capture(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *body,
                            mlx_var_t *out) {
  mlx_sink_t sink = {.arena = &r->arena}, *outer = r->out;
  r->out = &sink;
  mlx_status_t status = run_chain(r, scope, body);
  r->out = outer;
  return status ? status : mlx_sink_to_string(r, &sink, out);
}

// Binds the arguments that match no parameter: varargs, kwargs and caller.
static mlx_status_t bind_macro_rest(mlx_render_t *r, const mlx_template_node_t *macro, const mlx_args_t *args,
                                    size_t parameters, mlx_scope_t *scope) {
  const bool explicit_caller = mlx_scope_find_local(r, scope, (mlx_span_t){"caller", 6}) != NULL;
  mlx_var_t varargs, kwargs;
  MLX_TRY(mlx_list_create(r, MLX_PY_TUPLE, 0, &varargs));
  MLX_TRY(mlx_dict_create(r, MLX_VAR_DICT, &kwargs));
  if (args->count > parameters && !macro->uses_varargs) {
    MLX_FAIL(r, "macro '%.*s' takes at most %zu arguments, %zu were given", (int)macro->text.length,
             macro->text.bytes, parameters, args->count);
  }
  for (size_t i = parameters; i < args->count; ++i)
    MLX_TRY(mlx_list_push(r, varargs.list, args->positional[i]));
  for (size_t i = 0; args->named && i < args->named->count; ++i) {
    const mlx_entry_t *entry = &args->named->entries[i];
    bool known = false;
    size_t work = 0;
    for (const mlx_template_node_t *p = macro->first; p && !known; p = p->next) {
      work += MLX_ITEM_WORK + (p->text.length == entry->key.text.length ? p->text.length : 0);
      known = mlx_span_equal(p->text, entry->key.text);
    }
    MLX_TRY(mlx_render_charge(r, work));
    if (known) continue;
    if (mlx_span_is(entry->key.text, "caller") && macro->uses_caller && !explicit_caller) {
      MLX_TRY(set_literal(r, scope, "caller", entry->value));
    } else if (macro->uses_kwargs) {
      MLX_TRY(mlx_dict_put(r, kwargs.dict, entry->key, entry->value));
    } else {
      MLX_FAIL(r, "macro '%.*s' takes no argument named '%.*s'", (int)macro->text.length, macro->text.bytes,
               (int)entry->key.text.length, entry->key.text.bytes);
    }
  }
  if (macro->uses_varargs) MLX_TRY(set_literal(r, scope, "varargs", varargs));
  if (macro->uses_kwargs) MLX_TRY(set_literal(r, scope, "kwargs", kwargs));
  if (macro->uses_caller && !mlx_scope_find_local(r, scope, (mlx_span_t){"caller", 6})) {
    mlx_var_t caller;
    MLX_TRY(mlx_undefined_create(r, &caller, "no caller is defined"));
    MLX_TRY(set_literal(r, scope, "caller", caller));
  }
  return NULL;
}

static mlx_status_t call_macro(mlx_render_t *r, const mlx_template_function_t *function,
                               const mlx_args_t *args, mlx_var_t *out) {
  const mlx_template_node_t *macro = function->macro;
  mlx_scope_t *scope;
  size_t index = 0;
  MLX_TRY(mlx_scope_create(r, function->scope, &scope));
  for (const mlx_template_node_t *p = macro->first; p; p = p->next, ++index) {
    const mlx_var_t *named = mlx_dict_get(r, args->named, p->text);
    mlx_var_t value;
    if (named && index < args->count) {
      MLX_FAIL(r, "macro '%.*s' got two values for '%.*s'", (int)macro->text.length, macro->text.bytes,
               (int)p->text.length, p->text.bytes);
    }
    if (named || index < args->count) {
      value = named ? *named : args->positional[index];
    } else if (p->a) {
      MLX_TRY(eval(r, scope, p->a, &value));
    } else {
      MLX_TRY(mlx_undefined_create(r, &value, "parameter '%.*s' was not provided", (int)p->text.length,
                                   p->text.bytes));
    }
    MLX_TRY(mlx_scope_set(r, scope, p->text, value));
  }
  MLX_TRY(bind_macro_rest(r, macro, args, index, scope));
  return capture(r, scope, macro->body, out);
}

static mlx_status_t run_loop(mlx_render_t *r, const mlx_template_node_t *node, mlx_scope_t *outer,
                             const mlx_var_t *over, int64_t depth) MLX_MUST_USE;

// loop(children) in a recursive loop: runs the same loop over |children| and returns its output.
static mlx_status_t call_loop(mlx_render_t *r, const mlx_template_loop_t *loop, const mlx_args_t *args,
                              mlx_var_t *out) {
  if (!loop->node->named) MLX_FAIL(r, "loop() needs a recursive loop: {%% for ... recursive %%}");
  if (args->count != 1 || args->named) MLX_FAIL(r, "loop() takes one argument");
  mlx_sink_t sink = {.arena = &r->arena}, *outer = r->out;
  r->out = &sink;
  mlx_status_t status = run_loop(r, loop->node, loop->scope, &args->positional[0], loop->depth + 1);
  r->out = outer;
  return status ? status : mlx_sink_to_string(r, &sink, out);
}

static mlx_status_t call_value(mlx_render_t *r, const mlx_var_t *function, const mlx_args_t *args,
                               mlx_var_t *out) {
  MLX_TRY(mlx_var_expect_defined(r, function));
  const int line = r->line;
  mlx_status_t status;
  if (function->kind == MLX_VAR_LOOP) {
    status = call_loop(r, function->loop, args, out);
  } else if (function->kind != MLX_VAR_FUNCTION) {
    MLX_FAIL(r, "'%s' object is not callable", mlx_var_type(function));
  } else if (function->function->macro) {
    status = call_macro(r, function->function, args, out);
  } else {
    status = mlx_builtin_call(r, function->function->builtin, &function->function->self, args, out);
  }
  r->line = line;
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Expressions

static mlx_status_t eval_name(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node,
                              mlx_var_t *out) {
  const mlx_var_t *found = mlx_scope_find(r, scope, node->text);
  if (!found)
    return mlx_undefined_create(r, out, "'%.*s' is undefined", (int)node->text.length, node->text.bytes);
  *out = *found;
  return NULL;
}

static mlx_status_t eval_sequence(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node,
                                  mlx_var_t *out) {
  mlx_var_t list, item;
  MLX_TRY(mlx_list_create(r, node->kind == MLX_NODE_TUPLE ? MLX_PY_TUPLE : MLX_PY_LIST, 0, &list));
  for (const mlx_template_node_t *n = node->first; n; n = n->next) {
    MLX_TRY(eval(r, scope, n, &item));
    MLX_TRY(mlx_list_push(r, list.list, item));
  }
  *out = list;
  return NULL;
}

static mlx_status_t eval_dict(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node,
                              mlx_var_t *out) {
  mlx_var_t dict, key, value;
  MLX_TRY(mlx_dict_create(r, MLX_VAR_DICT, &dict));
  for (const mlx_template_node_t *pair = node->first; pair; pair = pair->next) {
    MLX_TRY(eval(r, scope, pair->a, &key));
    MLX_TRY(eval(r, scope, pair->b, &value));
    MLX_TRY(mlx_dict_put(r, dict.dict, key, value));
  }
  *out = dict;
  return NULL;
}

static mlx_status_t eval_optional(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node,
                                  mlx_var_t *out) {
  *out = mlx_none();
  return node ? eval(r, scope, node, out) : NULL;
}

static mlx_status_t eval_item(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node,
                              mlx_var_t *out) {
  mlx_var_t object, key;
  MLX_TRY(eval(r, scope, node->a, &object));
  if (node->b->kind == MLX_NODE_SLICE) {
    mlx_var_t stop, step;
    MLX_TRY(eval_optional(r, scope, node->b->a, &key));
    MLX_TRY(eval_optional(r, scope, node->b->b, &stop));
    MLX_TRY(eval_optional(r, scope, node->b->c, &step));
    return mlx_var_slice(r, &object, &key, &stop, &step, out);
  }
  MLX_TRY(eval(r, scope, node->b, &key));
  return mlx_var_item(r, &object, &key, out);
}

static mlx_status_t eval_call(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node,
                              const mlx_var_t *caller, mlx_var_t *out) {
  mlx_var_t function;
  mlx_args_t args;
  MLX_TRY(eval(r, scope, node->a, &function));
  MLX_TRY(eval_arguments(r, scope, node->first, &args));
  if (caller) {
    mlx_var_t named = {.kind = MLX_VAR_DICT, .dict = args.named};
    if (!args.named) MLX_TRY(mlx_dict_create(r, MLX_VAR_DICT, &named));
    MLX_TRY(mlx_dict_put(r, named.dict, mlx_literal("caller"), *caller));
    args.named = named.dict;
  }
  r->line = node->line;
  return call_value(r, &function, &args, out);
}

static mlx_status_t eval_builtin(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node,
                                 mlx_var_t *out) {
  mlx_var_t self;
  mlx_args_t args;
  if (node->a) {
    MLX_TRY(eval(r, scope, node->a, &self));
  } else {
    self = *r->captured;
  }
  MLX_TRY(eval_arguments(r, scope, node->first, &args));
  r->line = node->line;
  if (!node->builtin) {
    return mlx_render_error(r, MLX_UNSUPPORTED, "there is no %s named '%.*s'",
                            node->kind == MLX_NODE_FILTER ? "filter" : "test", (int)node->text.length,
                            node->text.bytes);
  }
  return mlx_builtin_call(r, node->builtin, &self, &args, out);
}

static mlx_status_t eval_both(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node,
                              mlx_var_t *out) {
  MLX_TRY(eval(r, scope, node->a, out));
  return mlx_var_truth(out) == (node->kind == MLX_NODE_AND) ? eval(r, scope, node->b, out) : NULL;
}

static mlx_status_t eval_binary(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node,
                                mlx_var_t *out) {
  mlx_var_t left, right;
  MLX_TRY(eval(r, scope, node->a, &left));
  MLX_TRY(eval(r, scope, node->b, &right));
  r->line = node->line;
  return mlx_var_binary(r, node->op, &left, &right, out);
}

static mlx_status_t eval_compare(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node,
                                 mlx_var_t *out) {
  mlx_var_t left, right;
  bool holds = true;
  MLX_TRY(eval(r, scope, node->a, &left));
  for (const mlx_template_node_t *operand = node->first; operand && holds; operand = operand->next) {
    MLX_TRY(eval(r, scope, operand->a, &right));
    MLX_TRY(mlx_var_compare(r, operand->op, &left, &right, &holds));
    left = right;
  }
  *out = mlx_bool(holds);
  return NULL;
}

static mlx_status_t eval_concat(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node,
                                mlx_var_t *out) {
  mlx_sink_t sink = {.arena = &r->arena};
  mlx_var_t value;
  for (const mlx_template_node_t *part = node->first; part; part = part->next) {
    MLX_TRY(eval(r, scope, part, &value));
    MLX_TRY(mlx_var_write(r, &sink, &value));
  }
  return mlx_sink_to_string(r, &sink, out);
}

static mlx_status_t eval_condition(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node,
                                   mlx_var_t *out) {
  mlx_var_t condition;
  MLX_TRY(eval(r, scope, node->a, &condition));
  if (mlx_var_truth(&condition)) return eval(r, scope, node->b, out);
  if (node->c) return eval(r, scope, node->c, out);
  return mlx_undefined_create(
      r, out, "the inline if-expression on line %d evaluated to false and no else section was defined.",
      node->line);
}

static mlx_status_t eval_kind(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node,
                              mlx_var_t *out) {
  mlx_var_t operand;
  switch (node->kind) {
    case MLX_NODE_CONST: *out = node->value; return NULL;
    case MLX_NODE_NAME: return eval_name(r, scope, node, out);
    case MLX_NODE_LIST:
    case MLX_NODE_TUPLE: return eval_sequence(r, scope, node, out);
    case MLX_NODE_DICT: return eval_dict(r, scope, node, out);
    case MLX_NODE_ATTRIBUTE:
      MLX_TRY(eval(r, scope, node->a, &operand));
      r->line = node->line;
      return mlx_var_attribute(r, &operand, node->text, out);
    case MLX_NODE_ITEM: return eval_item(r, scope, node, out);
    case MLX_NODE_CALL: return eval_call(r, scope, node, NULL, out);
    case MLX_NODE_FILTER:
    case MLX_NODE_TEST: return eval_builtin(r, scope, node, out);
    case MLX_NODE_NOT:
      MLX_TRY(eval(r, scope, node->a, &operand));
      *out = mlx_bool(!mlx_var_truth(&operand));
      return NULL;
    case MLX_NODE_SIGN:
      MLX_TRY(eval(r, scope, node->a, &operand));
      return mlx_var_sign(r, node->op == MLX_OP_SUB, &operand, out);
    case MLX_NODE_BINARY: return eval_binary(r, scope, node, out);
    case MLX_NODE_AND:
    case MLX_NODE_OR: return eval_both(r, scope, node, out);
    case MLX_NODE_COMPARE: return eval_compare(r, scope, node, out);
    case MLX_NODE_CONCAT: return eval_concat(r, scope, node, out);
    case MLX_NODE_CONDITION: return eval_condition(r, scope, node, out);
    default: MLX_FAIL(r, "this node is not an expression");
  }
}

static mlx_status_t enter(mlx_render_t *r, const mlx_template_node_t *node) {
  r->line = node->line;
  MLX_TRY(mlx_render_enter(r));
  return mlx_render_charge(r, 1);
}

static mlx_status_t eval(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node,
                         mlx_var_t *out) {
  MLX_TRY(enter(r, node));
  mlx_status_t status = eval_kind(r, scope, node, out);
  --r->depth;
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Statements

// Keeps the items for which the loop's `if` is true.
static mlx_status_t filter_items(mlx_render_t *r, const mlx_template_node_t *node, mlx_scope_t *outer,
                                 const mlx_var_t **inout_items, size_t *inout_count) {
  mlx_var_t kept, holds;
  mlx_scope_t *scope;
  MLX_TRY(mlx_list_create(r, MLX_PY_LIST, 0, &kept));
  for (size_t i = 0; i < *inout_count; ++i) {
    MLX_TRY(mlx_scope_create(r, outer, &scope));
    MLX_TRY(assign(r, scope, node->a, (*inout_items)[i]));
    MLX_TRY(eval(r, scope, node->c, &holds));
    if (mlx_var_truth(&holds)) MLX_TRY(mlx_list_push(r, kept.list, (*inout_items)[i]));
  }
  *inout_items = kept.list->items;
  *inout_count = kept.list->count;
  return NULL;
}

static mlx_status_t run_loop(mlx_render_t *r, const mlx_template_node_t *node, mlx_scope_t *outer,
                             const mlx_var_t *over, int64_t depth) {
  mlx_template_loop_t *loop;
  mlx_scope_t *scope;
  size_t count;
  const mlx_var_t *items;
  MLX_TRY(enter(r, node));
  MLX_TRY(mlx_var_items(r, over, &items, &count));
  if (node->c) MLX_TRY(filter_items(r, node, outer, &items, &count));
  MLX_TRY(mlx_arena_take(&r->arena, 1, sizeof *loop, &loop));
  *loop = (mlx_template_loop_t){
      .node = node, .scope = outer, .items = items, .count = count, .depth = depth, .changed = mlx_none()};
  for (; loop->index < count && r->flow != MLX_FLOW_BREAK; ++loop->index) {
    r->flow = MLX_FLOW_ON;
    MLX_TRY(mlx_scope_create(r, outer, &scope));
    MLX_TRY(set_literal(r, scope, "loop", (mlx_var_t){.kind = MLX_VAR_LOOP, .loop = loop}));
    MLX_TRY(assign(r, scope, node->a, items[loop->index]));
    MLX_TRY(run_chain(r, scope, node->body));
  }
  r->flow = MLX_FLOW_ON;
  if (!count && node->otherwise) {
    MLX_TRY(mlx_scope_create(r, outer, &scope));
    MLX_TRY(run_chain(r, scope, node->otherwise));
  }
  --r->depth;
  return NULL;
}

static mlx_status_t run_for(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node) {
  mlx_var_t over;
  MLX_TRY(eval(r, scope, node->b, &over));
  return run_loop(r, node, scope, &over, 0);
}

static mlx_status_t run_if(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node) {
  for (;;) {
    mlx_var_t condition;
    MLX_TRY(eval(r, scope, node->a, &condition));
    if (mlx_var_truth(&condition)) return run_chain(r, scope, node->body);
    const mlx_template_node_t *otherwise = node->otherwise;
    if (!otherwise) return NULL;
    if (otherwise->kind != MLX_NODE_IF || otherwise->next) return run_chain(r, scope, otherwise);
    node = otherwise;
  }
}

static mlx_status_t run_set(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node) {
  mlx_var_t value;
  MLX_TRY(eval(r, scope, node->b, &value));
  return assign(r, scope, node->a, value);
}

// The output of a body that runs in a new scope, after |filters| (or NULL).
static mlx_status_t capture_filtered(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *body,
                                     const mlx_template_node_t *filters, mlx_var_t *out) {
  mlx_scope_t *inner;
  MLX_TRY(mlx_scope_create(r, scope, &inner));
  MLX_TRY(capture(r, inner, body, out));
  if (!filters) return NULL;
  const mlx_var_t text = *out, *outer = r->captured;
  r->captured = &text;
  MLX_TRY(eval(r, scope, filters, out));
  r->captured = outer;
  return NULL;
}

static mlx_status_t run_set_block(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node) {
  mlx_var_t value;
  MLX_TRY(capture_filtered(r, scope, node->body, node->b, &value));
  return assign(r, scope, node->a, value);
}

static mlx_status_t run_filter_block(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node) {
  mlx_var_t value;
  MLX_TRY(capture_filtered(r, scope, node->body, node->a, &value));
  return mlx_var_write(r, r->out, &value);
}

static mlx_status_t new_macro(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node,
                              mlx_var_t *out) {
  mlx_template_function_t *function;
  MLX_TRY(mlx_arena_take(&r->arena, 1, sizeof *function, &function));
  *function = (mlx_template_function_t){.macro = node, .scope = scope};
  *out = (mlx_var_t){.kind = MLX_VAR_FUNCTION, .function = function};
  return NULL;
}

static mlx_status_t run_macro(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node) {
  mlx_var_t macro;
  MLX_TRY(new_macro(r, scope, node, &macro));
  return mlx_scope_set(r, scope, node->text, macro);
}

static mlx_status_t run_call_block(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node) {
  mlx_var_t caller, value;
  MLX_TRY(new_macro(r, scope, node, &caller));
  MLX_TRY(eval_call(r, scope, node->a, &caller, &value));
  return mlx_var_write(r, r->out, &value);
}

static mlx_status_t run_with(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node) {
  mlx_scope_t *inner;
  mlx_var_t value;
  MLX_TRY(mlx_scope_create(r, scope, &inner));
  for (const mlx_template_node_t *pair = node->first; pair; pair = pair->next) {
    MLX_TRY(eval(r, scope, pair->b, &value));
    MLX_TRY(assign(r, inner, pair->a, value));
  }
  return run_chain(r, inner, node->body);
}

static mlx_status_t run_output(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node) {
  mlx_var_t value;
  MLX_TRY(eval(r, scope, node->a, &value));
  return mlx_var_write(r, r->out, &value);
}

static mlx_status_t run_scope(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node) {
  mlx_scope_t *inner;
  MLX_TRY(mlx_scope_create(r, scope, &inner));
  return run_chain(r, inner, node->body);
}

static mlx_status_t run(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node) {
  switch (node->kind) {
    case MLX_NODE_TEXT: mlx_sink_append(r->out, node->text.bytes, node->text.length); return NULL;
    case MLX_NODE_OUTPUT: return run_output(r, scope, node);
    case MLX_NODE_IF: return run_if(r, scope, node);
    case MLX_NODE_FOR: return run_for(r, scope, node);
    case MLX_NODE_SET: return run_set(r, scope, node);
    case MLX_NODE_SET_BLOCK: return run_set_block(r, scope, node);
    case MLX_NODE_MACRO: return run_macro(r, scope, node);
    case MLX_NODE_CALL_BLOCK: return run_call_block(r, scope, node);
    case MLX_NODE_FILTER_BLOCK: return run_filter_block(r, scope, node);
    case MLX_NODE_WITH: return run_with(r, scope, node);
    case MLX_NODE_SCOPE: return run_scope(r, scope, node);
    case MLX_NODE_BREAK: r->flow = MLX_FLOW_BREAK; return NULL;
    case MLX_NODE_CONTINUE: r->flow = MLX_FLOW_CONTINUE; return NULL;
    default: MLX_FAIL(r, "this node is not a statement");
  }
}

static mlx_status_t run_chain(mlx_render_t *r, mlx_scope_t *scope, const mlx_template_node_t *node) {
  for (; node && r->flow == MLX_FLOW_ON; node = node->next) {
    MLX_TRY(enter(r, node));
    MLX_TRY(run(r, scope, node));
    --r->depth;
    if (r->out->failed) {
      return mlx_render_error(r, MLX_UNSUPPORTED, "the template writes more than %zu bytes",
                              r->out->limit ? r->out->limit : r->arena.limit);
    }
  }
  return NULL;
}

mlx_status_t mlx_eval_body(mlx_render_t *r, mlx_scope_t *globals, const mlx_template_node_t *body) {
  mlx_scope_t *scope;
  MLX_TRY(mlx_scope_create(r, globals, &scope));
  return run_chain(r, scope, body);
}
