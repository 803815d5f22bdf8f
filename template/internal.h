// What the files of the template interpreter share; nobody else includes this.
//
//   template.c          the public functions: create, render, JSON to values
//   template_lex.c      source -> tokens, with Jinja's rules about whitespace around tags
//   template_parse.c    tokens -> nodes, by recursive descent in jinja2's order of precedence;
//   template_statements.c: the tags template_eval.c     nodes -> text: statements, scopes, macros, loops;
//   template_operators.c: what + - in < do template_value.c    values as Python sees them: str, repr,
//   equality, order, JSON template_lookup.c   attributes, items, slices, and the methods of str, list and
//   dict template_text.c     strings: case, strip, split, replace; template_format.c: str.format and %
//   template_filters.c  filters of text and numbers; template_sequences.c: of sequences; template_tests.c:
//   tests and globals
//
// Everything a render makes lives in its arena and dies with it; nodes live in the template's.
#ifndef MLXCEL_TEMPLATE_INTERNAL_H_
#define MLXCEL_TEMPLATE_INTERNAL_H_

#include <stdint.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "template/template.h"

#define MLX_TEMPLATE_DEPTH 600  // nodes inside one another while rendering
#define MLX_PARSE_DEPTH 150     // parentheses and blocks inside one another
#define MLX_RANGE_MOST 100000   // of range(): jinja2's sandbox

// ----------------------------------------------------------------------------------------------------------
// Memory

typedef struct mlx_arena {
  struct mlx_arena_block *blocks;  // owned; the newest first
  size_t used, limit;              // bytes
  const char *name;                // borrowed: the template's, for errors
  const int *line;                 // borrowed: where it is; NULL: nowhere
} mlx_arena_t;

mlx_status_t mlx_arena_take(mlx_arena_t *arena, size_t count, size_t size,
                            void *out_ptr) MLX_MUST_USE;  // zeroed
void mlx_arena_clear(mlx_arena_t *arena);

// A growing text in an arena. Appending never returns a status: the first failure is remembered until it is
// asked for.
typedef struct mlx_sink {
  mlx_arena_t *arena;
  char *data;
  size_t length, capacity, limit;  // limit 0: the arena's
  bool failed;
} mlx_sink_t;

void mlx_sink_append(mlx_sink_t *sink, const char *bytes, size_t length);
void mlx_sink_puts(mlx_sink_t *sink, const char *string);
void mlx_sink_character(mlx_sink_t *sink, uint32_t character);
void mlx_sink_fill(mlx_sink_t *sink, const char *bytes, size_t length, int64_t times);

// ----------------------------------------------------------------------------------------------------------
// Values

typedef enum mlx_var_kind {
  MLX_VAR_UNDEFINED,
  MLX_VAR_NONE,
  MLX_VAR_BOOL,
  MLX_VAR_INT,
  MLX_VAR_FLOAT,
  MLX_VAR_STRING,
  MLX_VAR_LIST,
  MLX_VAR_DICT,
  MLX_VAR_FUNCTION,
  MLX_VAR_NAMESPACE,
  MLX_VAR_LOOP,
} mlx_var_kind_t;

typedef struct mlx_span {
  const char *bytes;  // UTF-8
  size_t length;
} mlx_span_t;

typedef struct mlx_list mlx_list_t;
typedef struct mlx_dict mlx_dict_t;
typedef struct mlx_function mlx_function_t;
typedef struct mlx_loop mlx_loop_t;
typedef struct mlx_node mlx_node_t;
typedef struct mlx_scope mlx_scope_t;
typedef struct mlx_render mlx_render_t;

typedef struct mlx_var {
  mlx_var_kind_t kind;
  bool markup;  // of STRING: Python's Markup, which escapes what it is added to
  union {
    bool truth;
    int64_t integer;
    double number;
    mlx_span_t text;  // of STRING; of UNDEFINED, what an error says about it
    mlx_list_t *list;
    mlx_dict_t *dict;  // of DICT and NAMESPACE
    mlx_function_t *function;
    mlx_loop_t *loop;
  };
} mlx_var_t;

typedef enum mlx_list_shape {  // all of them are one array; they differ in what Python lets one do with them
  MLX_SHAPE_LIST,
  MLX_SHAPE_TUPLE,
  MLX_SHAPE_RANGE,
  MLX_SHAPE_KEYS,  // the views of a dict
  MLX_SHAPE_VALUES,
  MLX_SHAPE_ITEMS,
  MLX_SHAPE_GENERATOR,  // has no length and is empty once it was read
} mlx_list_shape_t;

struct mlx_list {
  mlx_var_t *items;
  size_t count, capacity;
  mlx_list_shape_t shape;
};

typedef struct mlx_pair_of_vars {
  mlx_var_t key, value;
} mlx_entry_t;

struct mlx_dict {
  mlx_entry_t *entries;  // in the order they were put in
  size_t count, capacity;
};

typedef struct mlx_args {
  mlx_var_t *positional;
  size_t count;
  mlx_dict_t *named;  // NULL: none
} mlx_args_t;

#define MLX_MAX_PARAMETERS 6

// A builtin gets what it works on (a filter's input, a method's object) and its parameters in the order they
// are declared; one that was not given is UNDEFINED and not in |given|. Where the declaration is "*", it gets
// |args| as they were.
typedef struct mlx_call {
  mlx_var_t self;
  mlx_var_t parameters[MLX_MAX_PARAMETERS];
  bool given[MLX_MAX_PARAMETERS];
  const mlx_args_t *args;
} mlx_call_t;

typedef mlx_status_t (*mlx_builtin_fn_t)(mlx_render_t *r, const mlx_call_t *call, mlx_var_t *out);

typedef struct mlx_builtin {
  const char *name;
  mlx_builtin_fn_t run;
  const char *parameters;  // "old new |count": those before the bar are required; "*": anything
} mlx_builtin_t;

struct mlx_function {
  const mlx_builtin_t *builtin;  // or a macro:
  mlx_var_t self;                // of the builtin
  const mlx_node_t *macro;       // MACRO or CALL_BLOCK
  mlx_scope_t *scope;            // where it was made
};

struct mlx_loop {
  const mlx_node_t *node;  // its for
  mlx_scope_t *scope;      // outside of it
  const mlx_var_t *items;
  size_t count, index;
  int64_t depth;      // of a recursive one; 0 at first
  mlx_var_t changed;  // the last arguments of loop.changed, a tuple; NONE before
};

static inline mlx_var_t mlx_none(void) { return (mlx_var_t){.kind = MLX_VAR_NONE}; }
static inline mlx_var_t mlx_bool(bool truth) { return (mlx_var_t){.kind = MLX_VAR_BOOL, .truth = truth}; }
static inline mlx_var_t mlx_int(int64_t integer) {
  return (mlx_var_t){.kind = MLX_VAR_INT, .integer = integer};
}
static inline mlx_var_t mlx_float(double number) {
  return (mlx_var_t){.kind = MLX_VAR_FLOAT, .number = number};
}
static inline mlx_var_t mlx_string(const char *bytes, size_t length) {
  return (mlx_var_t){.kind = MLX_VAR_STRING, .text = {bytes, length}};
}
static inline mlx_var_t mlx_literal(const char *text) { return mlx_string(text, strlen(text)); }
static inline bool mlx_span_is(mlx_span_t span, const char *text) {
  return span.length == strlen(text) && !memcmp(span.bytes, text, span.length);
}
static inline bool mlx_span_equal(mlx_span_t a, mlx_span_t b) {
  return a.length == b.length && (!a.length || !memcmp(a.bytes, b.bytes, a.length));
}
static inline bool mlx_is_list(const mlx_var_t *v, mlx_list_shape_t shape) {
  return v->kind == MLX_VAR_LIST && v->list->shape == shape;
}
static inline bool mlx_is_whole(const mlx_var_t *v) {
  return v->kind == MLX_VAR_INT || v->kind == MLX_VAR_BOOL;
}
static inline bool mlx_is_number(const mlx_var_t *v) { return mlx_is_whole(v) || v->kind == MLX_VAR_FLOAT; }
static inline int64_t mlx_whole(const mlx_var_t *v) {
  return v->kind == MLX_VAR_BOOL ? v->truth : v->integer;
}
static inline double mlx_number(const mlx_var_t *v) {
  return v->kind == MLX_VAR_FLOAT ? v->number : (double)mlx_whole(v);
}

// ----------------------------------------------------------------------------------------------------------
// Nodes

typedef enum mlx_node_kind {
  // expressions                   a, b, c: operands; first: a chain of nodes
  MLX_NODE_CONST,      // value
  MLX_NODE_NAME,       // text
  MLX_NODE_LIST,       // first
  MLX_NODE_TUPLE,      // first
  MLX_NODE_DICT,       // first: PAIR
  MLX_NODE_PAIR,       // a: key, b: value
  MLX_NODE_ATTRIBUTE,  // a.text
  MLX_NODE_ITEM,       // a[b]
  MLX_NODE_SLICE,      // a:b:c, any of them NULL
  MLX_NODE_CALL,       // a(first: expressions, KEYWORD, SPREAD)
  MLX_NODE_KEYWORD,    // text=a
  MLX_NODE_SPREAD,     // *a, or **a where named
  MLX_NODE_FILTER,     // a|text(first); a NULL in a filter block: the text captured
  MLX_NODE_TEST,       // a is text(first)
  MLX_NODE_NOT,        // a
  MLX_NODE_SIGN,       // op '-' or '+', a
  MLX_NODE_BINARY,     // a op b
  MLX_NODE_AND,        // a, b
  MLX_NODE_OR,         // a, b
  MLX_NODE_COMPARE,    // a, first: OPERAND
  MLX_NODE_OPERAND,    // op, a
  MLX_NODE_CONCAT,     // first
  MLX_NODE_CONDITION,  // b if a else c; c may be NULL
  // statements                    body, otherwise: chains of statements
  MLX_NODE_TEXT,          // text
  MLX_NODE_OUTPUT,        // a
  MLX_NODE_IF,            // a, body, otherwise: one IF for an elif
  MLX_NODE_FOR,           // for a in b if c, body, otherwise; op 'r' when recursive
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
} mlx_node_kind_t;

typedef enum mlx_op {
  MLX_OP_NONE,
  MLX_OP_ADD,
  MLX_OP_SUB,
  MLX_OP_MUL,
  MLX_OP_DIV,
  MLX_OP_FLOORDIV,
  MLX_OP_MOD,
  MLX_OP_POW,
  MLX_OP_EQ,
  MLX_OP_NE,
  MLX_OP_LT,
  MLX_OP_LE,
  MLX_OP_GT,
  MLX_OP_GE,
  MLX_OP_IN,
  MLX_OP_NOT_IN,
} mlx_op_t;

struct mlx_node {
  mlx_node_kind_t kind;
  mlx_op_t op;
  int line;
  bool named;                                   // of SPREAD: **; of FOR: recursive
  bool uses_caller, uses_varargs, uses_kwargs;  // of MACRO and CALL_BLOCK: the body asks for them
  mlx_span_t text;
  mlx_var_t value;
  const mlx_builtin_t *builtin;  // of FILTER and TEST; NULL where there is none of that name
  mlx_node_t *a, *b, *c, *first, *body, *otherwise;
  mlx_node_t *next;  // in a chain
};

struct mlx_template {
  mlx_arena_t arena;
  char *name, *source;  // owned; the source with newlines as Jinja has them
  size_t source_length;
  mlx_node_t *body;
};

// "NAME, line 3: ..."
mlx_status_t mlx_template_error(const mlx_template_t *template, int line, mlx_code_t code, const char *fmt,
                                ...) MLX_PRINTF(4, 5) MLX_MUST_USE MLX_NEVER_NULL;

typedef enum mlx_token_kind {
  MLX_TOKEN_END,        // of the source
  MLX_TOKEN_TEXT,       // outside of tags
  MLX_TOKEN_PRINT,      // {{
  MLX_TOKEN_PRINT_END,  // }}
  MLX_TOKEN_TAG,        // {%
  MLX_TOKEN_TAG_END,    // %}
  MLX_TOKEN_NAME,
  MLX_TOKEN_STRING,  // text: with its quotes and escapes
  MLX_TOKEN_INT,
  MLX_TOKEN_FLOAT,
  MLX_TOKEN_OPERATOR,  // text
} mlx_token_kind_t;

typedef struct mlx_token_of_template {
  mlx_token_kind_t kind;
  mlx_span_t text;
  int line;
} mlx_lexeme_t;

// Tokens of the whole source in the template's arena, ended by MLX_TOKEN_END.
mlx_status_t mlx_template_lex(mlx_template_t *template, mlx_lexeme_t **out_tokens) MLX_MUST_USE;
mlx_status_t mlx_template_parse(mlx_template_t *template) MLX_MUST_USE;

// ----------------------------------------------------------------------------------------------------------
// Rendering

typedef struct mlx_variable {
  mlx_span_t name;
  mlx_var_t value;
} mlx_variable_t;

struct mlx_scope {
  mlx_scope_t *outer;
  mlx_variable_t *variables;
  size_t count, capacity;
};

typedef enum mlx_flow { MLX_FLOW_ON, MLX_FLOW_BREAK, MLX_FLOW_CONTINUE } mlx_flow_t;

struct mlx_render {
  const mlx_template_t *template;
  mlx_arena_t arena;
  uint64_t steps_left;
  int depth, line;  // line: of the node at work, for errors
  mlx_flow_t flow;
  mlx_sink_t *out;
  mlx_var_t captured;  // what a filter block filters
  int64_t now;
};

mlx_status_t mlx_render_error(const mlx_render_t *r, mlx_code_t code, const char *fmt, ...)
    MLX_PRINTF(3, 4) MLX_MUST_USE MLX_NEVER_NULL;
#define MLX_FAIL(r, ...) return mlx_render_error(r, MLX_INVALID_INPUT, __VA_ARGS__)
// Takes |work| (bytes or items gone over) off the budget.
mlx_status_t mlx_render_charge(mlx_render_t *r, size_t work) MLX_MUST_USE;

mlx_status_t mlx_render_body(mlx_render_t *r, mlx_scope_t *globals) MLX_MUST_USE;
mlx_status_t mlx_scope_set(mlx_render_t *r, mlx_scope_t *scope, mlx_span_t name,
                           mlx_var_t value) MLX_MUST_USE;
mlx_status_t mlx_var_call(mlx_render_t *r, const mlx_var_t *function, const mlx_args_t *args,
                          mlx_var_t *out) MLX_MUST_USE;
mlx_status_t mlx_builtin_call(mlx_render_t *r, const mlx_builtin_t *builtin, const mlx_var_t *self,
                              const mlx_args_t *args, mlx_var_t *out) MLX_MUST_USE;
// Adds range, namespace, raise_exception ... to a scope.
mlx_status_t mlx_globals_add(mlx_render_t *r, mlx_scope_t *scope) MLX_MUST_USE;
const mlx_builtin_t *mlx_filter_find(mlx_span_t name);
const mlx_builtin_t *mlx_test_find(mlx_span_t name);
const mlx_builtin_t *mlx_method_find(const mlx_var_t *object, mlx_span_t name);  // of the object's type
const mlx_builtin_t *mlx_string_method_find(mlx_span_t name);
const mlx_builtin_t *mlx_builtin_find(const mlx_builtin_t *table,
                                      mlx_span_t name);  // a table ends with a row of zeros

// ---- values ----

const char *mlx_var_type(const mlx_var_t *v);  // Python's name for it
bool mlx_var_truth(const mlx_var_t *v);
mlx_status_t mlx_var_equal(mlx_render_t *r, const mlx_var_t *a, const mlx_var_t *b, bool *out) MLX_MUST_USE;
mlx_status_t mlx_var_order(mlx_render_t *r, const mlx_var_t *a, const mlx_var_t *b,
                           int *out) MLX_MUST_USE;  // -1, 0, 1
mlx_status_t mlx_var_contains(mlx_render_t *r, const mlx_var_t *haystack, const mlx_var_t *needle,
                              bool *out) MLX_MUST_USE;
mlx_status_t mlx_var_write(mlx_render_t *r, mlx_sink_t *sink, const mlx_var_t *v) MLX_MUST_USE;  // str()
mlx_status_t mlx_var_repr(mlx_render_t *r, mlx_sink_t *sink, const mlx_var_t *v) MLX_MUST_USE;
mlx_status_t mlx_var_text(mlx_render_t *r, const mlx_var_t *v,
                          mlx_span_t *out) MLX_MUST_USE;  // str(), in the arena
void mlx_float_write(mlx_sink_t *sink, double number);    // repr()
mlx_status_t mlx_need_defined(const mlx_render_t *r, const mlx_var_t *v) MLX_MUST_USE;
mlx_status_t mlx_undefined(mlx_render_t *r, mlx_var_t *out, const char *fmt, ...)
    MLX_PRINTF(3, 4) MLX_MUST_USE;
mlx_status_t mlx_new_list(mlx_render_t *r, mlx_list_shape_t shape, size_t capacity,
                          mlx_var_t *out) MLX_MUST_USE;
mlx_status_t mlx_list_push(mlx_render_t *r, mlx_list_t *list, mlx_var_t item) MLX_MUST_USE;
mlx_status_t mlx_new_tuple(mlx_render_t *r, mlx_var_t first, mlx_var_t second, mlx_var_t *out) MLX_MUST_USE;
mlx_status_t mlx_new_dict(mlx_render_t *r, mlx_var_kind_t kind, mlx_var_t *out) MLX_MUST_USE;
mlx_status_t mlx_dict_put(mlx_render_t *r, mlx_dict_t *dict, mlx_var_t key, mlx_var_t value) MLX_MUST_USE;
mlx_status_t mlx_dict_find(mlx_render_t *r, const mlx_dict_t *dict, const mlx_var_t *key,
                           mlx_var_t **out) MLX_MUST_USE;            // NULL: none
mlx_var_t *mlx_dict_named(const mlx_dict_t *dict, mlx_span_t name);  // NULL: none; |dict| may be NULL
// The items of anything that Python iterates over; borrowed where it can. A generator is empty afterwards.
mlx_status_t mlx_var_items(mlx_render_t *r, const mlx_var_t *v, const mlx_var_t **out_items,
                           size_t *out_count) MLX_MUST_USE;
bool mlx_var_iterable(const mlx_var_t *v);
mlx_status_t mlx_var_length(mlx_render_t *r, const mlx_var_t *v, int64_t *out) MLX_MUST_USE;
mlx_status_t mlx_sink_take(mlx_render_t *r, mlx_sink_t *sink, mlx_var_t *out) MLX_MUST_USE;

typedef struct mlx_json_style {
  bool ascii, sorted, pretty;
  mlx_span_t indent, item_separator, key_separator;
} mlx_json_style_t;
mlx_status_t mlx_var_json(mlx_render_t *r, mlx_sink_t *sink, const mlx_var_t *v,
                          const mlx_json_style_t *style, int level) MLX_MUST_USE;

// ---- lookup ----

mlx_status_t mlx_var_attribute(mlx_render_t *r, const mlx_var_t *object, mlx_span_t name,
                               mlx_var_t *out) MLX_MUST_USE;  // a.b
mlx_status_t mlx_var_item(mlx_render_t *r, const mlx_var_t *object, const mlx_var_t *key,
                          mlx_var_t *out) MLX_MUST_USE;  // a[b]
mlx_status_t mlx_var_slice(mlx_render_t *r, const mlx_var_t *object, const mlx_var_t *start,
                           const mlx_var_t *stop, const mlx_var_t *step, mlx_var_t *out) MLX_MUST_USE;

// ---- operators ----

mlx_status_t mlx_var_binary(mlx_render_t *r, mlx_op_t op, const mlx_var_t *a, const mlx_var_t *b,
                            mlx_var_t *out) MLX_MUST_USE;
mlx_status_t mlx_var_compare(mlx_render_t *r, mlx_op_t op, const mlx_var_t *a, const mlx_var_t *b,
                             bool *out) MLX_MUST_USE;
mlx_status_t mlx_var_sign(mlx_render_t *r, bool minus, const mlx_var_t *a, mlx_var_t *out) MLX_MUST_USE;

// ---- strings ----

size_t mlx_span_characters(mlx_span_t span);
uint32_t mlx_template_character(const char *bytes, size_t *out_length);  // of valid UTF-8
bool mlx_template_space(uint32_t character);                             // Python's str.isspace
bool mlx_printable(uint32_t character);                                  // Python's str.isprintable
mlx_span_t mlx_span_strip(mlx_span_t text, const mlx_span_t *characters, bool left,
                          bool right);  // NULL: whitespace
typedef enum mlx_letter_case { MLX_LOWER, MLX_UPPER, MLX_CAPITALIZE, MLX_TITLE } mlx_letter_case_t;
void mlx_sink_case(mlx_sink_t *sink, mlx_span_t text, mlx_letter_case_t letter_case);
mlx_status_t mlx_span_escape(mlx_render_t *r, mlx_span_t text,
                             mlx_var_t *out) MLX_MUST_USE;  // for HTML; gives Markup
mlx_status_t mlx_split_lines(mlx_render_t *r, mlx_span_t text, bool keep_ends, mlx_var_t *out) MLX_MUST_USE;
mlx_status_t mlx_replace(mlx_render_t *r, mlx_span_t text, mlx_span_t old, mlx_span_t new, int64_t count,
                         mlx_var_t *out) MLX_MUST_USE;
// str.format and the % operator.
mlx_status_t mlx_format_braces(mlx_render_t *r, mlx_span_t format, const mlx_args_t *args,
                               mlx_var_t *out) MLX_MUST_USE;
mlx_status_t mlx_format_percent(mlx_render_t *r, mlx_span_t format, const mlx_var_t *values,
                                mlx_var_t *out) MLX_MUST_USE;

#endif  // MLXCEL_TEMPLATE_INTERNAL_H_
