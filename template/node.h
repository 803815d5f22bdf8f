// Node: the syntax tree of a template, and the template that owns it. Nodes live in the template's arena and
// do not change after mlx_template_create.
#ifndef MLXCEL_TEMPLATE_NODE_H_
#define MLXCEL_TEMPLATE_NODE_H_

#include "template/operators.h"
#include "template/template.h"
#include "template/value.h"

// Each kind lists the members of mlx_template_node_t that it uses. A chain is a list linked by |next|.
typedef enum mlx_template_node_kind {
  // Expressions. a, b and c are operands; first is a chain of nodes.
  MLX_NODE_CONST,      // value
  MLX_NODE_NAME,       // text
  MLX_NODE_LIST,       // first
  MLX_NODE_TUPLE,      // first
  MLX_NODE_DICT,       // first: PAIR
  MLX_NODE_PAIR,       // a: key, b: value
  MLX_NODE_ATTRIBUTE,  // a.text
  MLX_NODE_ITEM,       // a[b]
  MLX_NODE_SLICE,      // a:b:c, each of which may be NULL
  MLX_NODE_CALL,       // a(first: expressions, KEYWORD, SPREAD)
  MLX_NODE_KEYWORD,    // text=a
  MLX_NODE_SPREAD,     // *a, or **a if |named|
  MLX_NODE_FILTER,     // a|text(first); a is NULL in a filter block, which filters the captured text
  MLX_NODE_TEST,       // a is text(first)
  MLX_NODE_NOT,        // a
  MLX_NODE_SIGN,       // op ADD or SUB, a
  MLX_NODE_BINARY,     // a op b
  MLX_NODE_AND,        // a, b
  MLX_NODE_OR,         // a, b
  MLX_NODE_COMPARE,    // a, first: OPERAND
  MLX_NODE_OPERAND,    // op, a
  MLX_NODE_CONCAT,     // first
  MLX_NODE_CONDITION,  // b if a else c; c may be NULL
  // Statements. body and otherwise are chains of statements.
  MLX_NODE_TEXT,          // text
  MLX_NODE_OUTPUT,        // a
  MLX_NODE_IF,            // a, body, otherwise (an elif is one IF node there)
  MLX_NODE_FOR,           // for a in b if c, body, otherwise; recursive if |named|
  MLX_NODE_SET,           // a = b
  MLX_NODE_SET_BLOCK,     // a = body through the filters b (or NULL)
  MLX_NODE_MACRO,         // text(first: PARAMETER) body
  MLX_NODE_PARAMETER,     // text, a: its default or NULL
  MLX_NODE_CALL_BLOCK,    // a: the call, first: PARAMETER, body
  MLX_NODE_FILTER_BLOCK,  // a: filters, body
  MLX_NODE_WITH,          // first: PAIR (target, value), body
  MLX_NODE_SCOPE,         // body: {% generation %}
  MLX_NODE_BREAK,
  MLX_NODE_CONTINUE,
} mlx_template_node_kind_t;

typedef struct mlx_template_node {
  mlx_template_node_kind_t kind;
  mlx_op_t op;
  int line;
  bool named;                                   // SPREAD: **; FOR: recursive
  bool uses_caller, uses_varargs, uses_kwargs;  // MACRO and CALL_BLOCK: the body refers to the variable
  mlx_span_t text;
  mlx_var_t value;
  const struct mlx_builtin *builtin;  // FILTER and TEST; NULL if no builtin has that name
  struct mlx_template_node *a, *b, *c, *first, *body, *otherwise;
  struct mlx_template_node *next;  // in a chain
} mlx_template_node_t;

struct mlx_template {
  mlx_arena_t arena;
  char *name, *source;  // owned; the source has \n line ends
  size_t source_length;
  mlx_template_node_t *body;
};

#endif  // MLXCEL_TEMPLATE_NODE_H_
