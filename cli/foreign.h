// Foreign: options and verbs of llama.cpp, Ollama, mlx-lm and vLLM that mlxcel spells differently or does not
// have. Each one means an own option or verb, is ignored with a note, or is an error that says what to type
// instead.
#ifndef MLXCEL_CLI_FOREIGN_H_
#define MLXCEL_CLI_FOREIGN_H_

#include "cli/flags.h"

typedef enum mlx_foreign_kind {
  MLX_FOREIGN_MEANS,    // |text| is the own flag that it means
  MLX_FOREIGN_IGNORED,  // |text| is the note: why it has no effect
  MLX_FOREIGN_ERROR,    // |text| is the hint: what to type instead
} mlx_foreign_kind_t;

typedef enum mlx_foreign_value {
  MLX_FOREIGN_SWITCH,  // takes no value
  MLX_FOREIGN_VALUE,   // takes a value
  MLX_FOREIGN_CHOICE,  // takes on, off, auto, true, false, yes, no, 0 or 1 if one of them follows
} mlx_foreign_value_t;

typedef struct mlx_foreign mlx_foreign_t;

// What a foreign flag means with a value.
typedef struct mlx_foreign_meaning {
  mlx_foreign_kind_t kind;
  const char *text;    // as in mlx_foreign_kind_t
  const char *prefix;  // put before the value, unless the value begins with it; NULL if there is none
  const char *value;   // replaces the value; NULL if it stays
} mlx_foreign_meaning_t;

// One row of the table.
struct mlx_foreign {
  const char *names;  // "-ngl, --gpu-layers"
  mlx_foreign_value_t takes;
  mlx_foreign_meaning_t meaning;
  // Chooses another meaning for some values; NULL if the row has one meaning.
  mlx_foreign_meaning_t (*choose)(const mlx_foreign_t *row, const char *value);
};

// The row for |name|, with dashes and without '='; NULL if there is none.
const mlx_foreign_t *mlx_foreign_find(const char *name);
// The meaning of the flag; |value| is NULL if it has none.
mlx_foreign_meaning_t mlx_foreign_meaning(const mlx_foreign_t *row, const char *value);
bool mlx_foreign_is_choice(const char *word);  // a value of MLX_FOREIGN_CHOICE

// A verb of another program: the own verb that it means, or the answer, of which one is NULL.
typedef struct mlx_foreign_verb {
  const char *name, *means, *answer;
} mlx_foreign_verb_t;
const mlx_foreign_verb_t *mlx_foreign_find_verb(const char *name);  // NULL if there is none

#endif  // MLXCEL_CLI_FOREIGN_H_
