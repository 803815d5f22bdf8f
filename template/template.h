// Template: a chat template, the Jinja that a model brings along, run exactly as transformers runs it with
// jinja2 (ImmutableSandboxedEnvironment, trim_blocks, lstrip_blocks, loop controls, tojson and the globals of
// its own).
//
// A template is foreign code. It sees the variables given and nothing else: no files, no environment, no way
// to change a value that it was given. Depth, steps, memory and output have limits, and whatever it does ends
// in text or in a status that names the template's line. What of Jinja is not there (blocks, includes, a few
// filters for HTML) is refused by name.
//
// Ownership: the template belongs to whoever created it and keeps a copy of its source. Results are the
// caller's, to be released with mlx_free. Threads: a template never changes after create; any number of
// threads may render it at the same time.
#ifndef MLXCEL_TEMPLATE_TEMPLATE_H_
#define MLXCEL_TEMPLATE_TEMPLATE_H_

#include <stdint.h>
#include <yyjson.h>

#include "base/status.h"

typedef struct mlx_template mlx_template_t;

// Parses |length| bytes of |source|, UTF-8; |name| is what errors call it (copied).
mlx_status_t mlx_template_create(const char *name, const char *source, size_t length,
                                 mlx_template_t **out_template) MLX_MUST_USE;
void mlx_template_free(mlx_template_t *template);  // NULL is fine

typedef struct mlx_template_limits {
  uint64_t steps;  // nodes evaluated, and one for every few bytes or items that a filter or method goes over
  size_t memory;   // bytes of values made on the way
  size_t output;   // bytes of text
} mlx_template_limits_t;

typedef struct mlx_template_variable {
  const char *name;
  yyjson_val *value;  // borrowed; NULL is JSON's null
} mlx_template_variable_t;

typedef struct mlx_template_input {
  const mlx_template_variable_t *variables;  // a later one of the same name wins
  size_t variable_count;
  int64_t now;                   // what strftime_now tells, in seconds since 1970; 0: the clock's
  mlx_template_limits_t limits;  // a 0 stands for the default: 20 million steps, 256 MiB, 64 MiB
} mlx_template_input_t;

// Renders into a text that ends with a NUL not counted in *|out_length|. A conversation that the template
// itself refuses (raise_exception) is MLX_INVALID_INPUT with its message.
mlx_status_t mlx_template_render(const mlx_template_t *template, const mlx_template_input_t *input,
                                 char **out_text, size_t *out_length) MLX_MUST_USE;

#endif  // MLXCEL_TEMPLATE_TEMPLATE_H_
