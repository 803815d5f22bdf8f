// Verb: one command of mlxcel, as constant data. Help, man pages and completion read it without running the
// verb.
#ifndef MLXCEL_CLI_VERB_H_
#define MLXCEL_CLI_VERB_H_

#include "cli/flags.h"

typedef struct mlx_verb mlx_verb_t;

// The arguments of one run. Everything is borrowed.
typedef struct mlx_command_line {
  const mlx_verb_t *verb;
  const mlx_verb_t *const *verbs;  // all verbs, ending with NULL
  int argc;                        // arguments after the verb
  char **argv;
} mlx_command_line_t;

struct mlx_verb {
  const char *name, *summary;  // the summary is one line
  // "usage: mlxcel VERB ARGUMENTS [options]", a description, and a paragraph that begins "examples:", which
  // help prints after the options.
  const char *usage;
  const mlx_flag_t *flags;  // ends with a row of zeros; offsets are into the options struct
  size_t options_size;
  bool model_word;                    // the first word is the model, unless -m gives it
  void (*initialize)(void *options);  // sets the defaults of zeroed options; NULL if the defaults are zeros
  mlx_status_t (*run)(const mlx_command_line_t *line);
};

const mlx_verb_t *mlx_verb_find(const mlx_verb_t *const *verbs, const char *name);  // NULL if there is none
// The same for a name that may be of another program: `chat` is run. NULL if there is none.
const mlx_verb_t *mlx_verb_find_any(const mlx_verb_t *const *verbs, const char *name);
// Returns the usage error for an unknown verb; the hint answers a verb of another program, shows how to run
// |name| if it is a model, or names the most similar verb.
mlx_status_t mlx_verb_unknown(const mlx_verb_t *const *verbs, const char *name) MLX_MUST_USE;
// Fills |options|, of options_size bytes, with the verb's defaults.
void mlx_verb_initialize(const mlx_verb_t *verb, void *options);

// A usage text in parts: its first line without "usage: ", the description and the examples. A part may be
// "".
typedef struct mlx_usage_parts {
  const char *synopsis, *description, *examples;
  int synopsis_length, description_length, examples_length;
} mlx_usage_parts_t;
mlx_usage_parts_t mlx_usage_split(const char *usage);

#endif  // MLXCEL_CLI_VERB_H_
