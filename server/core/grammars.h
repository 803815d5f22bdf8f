// Grammars: a cache of compiled grammars, by their text.
//
// Threads: any thread.
#ifndef MLXCEL_SERVER_CORE_GRAMMARS_H_
#define MLXCEL_SERVER_CORE_GRAMMARS_H_

#include "grammar/grammar.h"

typedef struct mlx_grammars mlx_grammars_t;
typedef struct mlx_cached_grammar mlx_cached_grammar_t;

// Keeps up to |capacity| grammars that no request uses. Release with mlx_grammars_free.
mlx_status_t mlx_grammars_create(size_t capacity, mlx_grammars_t **out_grammars) MLX_MUST_USE;
void mlx_grammars_free(mlx_grammars_t *grammars);  // all grammars must have been put back; NULL is fine

// Compiles |gbnf|, or finds it. Return it with mlx_grammars_put.
mlx_status_t mlx_grammars_get(mlx_grammars_t *grammars, const char *gbnf, size_t length,
                              mlx_cached_grammar_t **out_grammar) MLX_MUST_USE;
void mlx_grammars_put(mlx_grammars_t *grammars, mlx_cached_grammar_t *grammar);  // NULL is fine
const mlx_grammar_t *mlx_cached_grammar(const mlx_cached_grammar_t *grammar);    // NULL for NULL

#endif  // MLXCEL_SERVER_CORE_GRAMMARS_H_
