// Template: a model's chat template in Jinja, rendered exactly as transformers renders it with jinja2
// (ImmutableSandboxedEnvironment, trim_blocks, lstrip_blocks, loop controls, transformers' tojson and
// globals).
//
// A template is untrusted code. It can read only the variables that the caller passes and cannot change them;
// it has no access to files or the environment. Nesting, steps, time, memory and output are limited. Every
// error names the line. Unsupported parts of Jinja (blocks, includes, some HTML filters) fail with their
// name.
//
// Layers, from bottom to top; each file uses only the layers below it:
//
//   arena, sink, error, render                    memory, text, errors, and the limits of a render
//   unicode, value, value_*                       Python's characters and values, str(), repr() and JSON
//   text, lookup, format, operators               operations on values
//   builtin, scope, string_methods, methods,
//     filters, sequence_filters, builtin_tests,
//     globals                                     the functions that a template can call, and its variables
//   lex, parser, expressions, statements, check   from the source to nodes (node.h)
//   eval                                          runs the nodes
//   template                                      the functions below
//
// Ownership: the caller owns the template, which keeps a copy of its source. Results are released with
// mlx_free. Threads: a template does not change after mlx_template_create; any number of threads may render
// it at once.
#ifndef MLXCEL_TEMPLATE_TEMPLATE_H_
#define MLXCEL_TEMPLATE_TEMPLATE_H_

#include <stdint.h>
#include <yyjson.h>

#include "base/status.h"

typedef struct mlx_template mlx_template_t;

// Parses |length| bytes of |source|, in UTF-8. |name| is copied and appears in errors.
mlx_status_t mlx_template_create(const char *name, const char *source, size_t length,
                                 mlx_template_t **out_template) MLX_MUST_USE;
void mlx_template_free(mlx_template_t *template);  // NULL is fine

typedef struct mlx_template_limits {
  uint64_t steps;  // 1 for each node, and 1 for every 64 bytes or items that a builtin processes
  size_t memory;   // bytes of values
  size_t output;   // bytes of text
} mlx_template_limits_t;

typedef struct mlx_template_variable {
  const char *name;
  yyjson_val *value;  // borrowed; NULL is JSON's null
} mlx_template_variable_t;

typedef struct mlx_template_input {
  const mlx_template_variable_t *variables;  // a later variable overrides an earlier one of the same name
  size_t variable_count;
  int64_t now;                   // time of strftime_now in seconds since 1970; 0: the current time
  mlx_template_limits_t limits;  // 0: the default (20 million steps, 256 MiB, 64 MiB)
} mlx_template_input_t;

// Renders to a text that ends with a NUL, which *|out_length| does not count. If the template refuses the
// conversation (raise_exception), fails with MLX_INVALID_INPUT and the template's message.
mlx_status_t mlx_template_render(const mlx_template_t *template, const mlx_template_input_t *input,
                                 char **out_text, size_t *out_length) MLX_MUST_USE;

#endif  // MLXCEL_TEMPLATE_TEMPLATE_H_
