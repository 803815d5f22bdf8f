// Value: a Python value in a template.
//
// Values live in the render's arena or borrow from the template and its input, so they are copied freely and
// never released one by one.
#ifndef MLXCEL_TEMPLATE_VALUE_H_
#define MLXCEL_TEMPLATE_VALUE_H_

#include "template/render.h"

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

typedef struct mlx_list mlx_list_t;
typedef struct mlx_dict mlx_dict_t;
typedef struct mlx_template_function mlx_template_function_t;
typedef struct mlx_template_loop mlx_template_loop_t;

typedef struct mlx_var {
  mlx_var_kind_t kind;
  bool markup;  // STRING: markupsafe's Markup, which HTML-escapes the strings that are added to it
  union {
    bool truth;
    int64_t integer;
    double number;
    mlx_span_t text;  // STRING: its text; UNDEFINED: the error that using it raises
    mlx_list_t *list;
    mlx_dict_t *dict;  // DICT and NAMESPACE
    mlx_template_function_t *function;
    mlx_template_loop_t *loop;
  };
} mlx_var_t;

// The Python type of a LIST value. All types store one array and differ in the operations that they allow.
typedef enum mlx_py_type {
  MLX_PY_LIST,
  MLX_PY_TUPLE,
  MLX_PY_RANGE,
  MLX_PY_KEYS,  // the views of a dict
  MLX_PY_VALUES,
  MLX_PY_ITEMS,
  MLX_PY_GENERATOR,  // has no length, and is empty once it has been read
} mlx_py_type_t;

struct mlx_list {
  mlx_var_t *items;
  size_t count, capacity;
  mlx_py_type_t type;
};

typedef struct mlx_entry {
  mlx_var_t key, value;
} mlx_entry_t;

struct mlx_dict {
  mlx_entry_t *entries;  // in insertion order
  size_t count, capacity;
};

// A builtin with the object that it is bound to, or a macro with the scope that it closes over.
struct mlx_template_function {
  const struct mlx_builtin *builtin;      // NULL: a macro
  mlx_var_t self;                         // of the builtin
  const struct mlx_template_node *macro;  // MACRO or CALL_BLOCK
  struct mlx_scope *scope;                // of the macro
};

struct mlx_template_loop {
  const struct mlx_template_node *node;  // FOR
  struct mlx_scope *scope;               // around the loop
  const mlx_var_t *items;
  size_t count, index;
  int64_t depth;      // of a recursive loop; 0: the outermost
  mlx_var_t changed;  // the last arguments of loop.changed as a tuple; NONE before the first call
};

// ---- creating ----

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

mlx_status_t mlx_undefined_create(mlx_render_t *r, mlx_var_t *out, const char *fmt, ...)
    MLX_PRINTF(3, 4) MLX_MUST_USE;
mlx_status_t mlx_list_create(mlx_render_t *r, mlx_py_type_t type, size_t capacity,
                             mlx_var_t *out) MLX_MUST_USE;
mlx_status_t mlx_tuple_create(mlx_render_t *r, mlx_var_t first, mlx_var_t second,
                              mlx_var_t *out) MLX_MUST_USE;
// |kind| is DICT or NAMESPACE.
mlx_status_t mlx_dict_create(mlx_render_t *r, mlx_var_kind_t kind, mlx_var_t *out) MLX_MUST_USE;
// The sink's text as a STRING, without a copy. Fails if an append failed.
mlx_status_t mlx_sink_to_string(mlx_render_t *r, mlx_sink_t *sink, mlx_var_t *out) MLX_MUST_USE;

// ---- lists and dicts ----

mlx_status_t mlx_list_push(mlx_render_t *r, mlx_list_t *list, mlx_var_t item) MLX_MUST_USE;
mlx_status_t mlx_dict_put(mlx_render_t *r, mlx_dict_t *dict, mlx_var_t key, mlx_var_t value) MLX_MUST_USE;
// *|out| is NULL if the key is missing.
mlx_status_t mlx_dict_find(mlx_render_t *r, const mlx_dict_t *dict, const mlx_var_t *key,
                           mlx_var_t **out) MLX_MUST_USE;
// The value of a string key, or NULL. |dict| may be NULL.
mlx_var_t *mlx_dict_get(mlx_render_t *r, const mlx_dict_t *dict, mlx_span_t name);

// ---- types ----

const char *mlx_var_type(const mlx_var_t *v);  // Python's name of the type
bool mlx_var_truth(const mlx_var_t *v);
bool mlx_var_is_iterable(const mlx_var_t *v);
static inline bool mlx_var_is_list(const mlx_var_t *v, mlx_py_type_t type) {
  return v->kind == MLX_VAR_LIST && v->list->type == type;
}
// A bool is an integer, as in Python.
static inline bool mlx_var_is_integer(const mlx_var_t *v) {
  return v->kind == MLX_VAR_INT || v->kind == MLX_VAR_BOOL;
}
static inline bool mlx_var_is_number(const mlx_var_t *v) {
  return mlx_var_is_integer(v) || v->kind == MLX_VAR_FLOAT;
}
static inline int64_t mlx_var_integer(const mlx_var_t *v) {
  return v->kind == MLX_VAR_BOOL ? v->truth : v->integer;
}
static inline double mlx_var_number(const mlx_var_t *v) {
  return v->kind == MLX_VAR_FLOAT ? v->number : (double)mlx_var_integer(v);
}
mlx_status_t mlx_var_expect_defined(const mlx_render_t *r, const mlx_var_t *v) MLX_MUST_USE;
mlx_status_t mlx_var_expect_number(const mlx_render_t *r, const mlx_var_t *v) MLX_MUST_USE;

// ---- iterating and comparing ----

mlx_status_t mlx_var_length(mlx_render_t *r, const mlx_var_t *v, int64_t *out) MLX_MUST_USE;
// The items of any value that Python can iterate over; borrowed where possible. Reading a generator empties
// it.
mlx_status_t mlx_var_items(mlx_render_t *r, const mlx_var_t *v, const mlx_var_t **out_items,
                           size_t *out_count) MLX_MUST_USE;
mlx_status_t mlx_var_equal(mlx_render_t *r, const mlx_var_t *a, const mlx_var_t *b, bool *out) MLX_MUST_USE;
mlx_status_t mlx_var_order(mlx_render_t *r, const mlx_var_t *a, const mlx_var_t *b,
                           int *out) MLX_MUST_USE;  // -1, 0, 1
mlx_status_t mlx_var_contains(mlx_render_t *r, const mlx_var_t *haystack, const mlx_var_t *needle,
                              bool *out) MLX_MUST_USE;

#endif  // MLXCEL_TEMPLATE_VALUE_H_
