// Unigram encoding of one piece.
#ifndef MLXCEL_TOKENIZER_UNIGRAM_H_
#define MLXCEL_TOKENIZER_UNIGRAM_H_

#include "base/budget.h"
#include "tokenizer/model.h"

// The Viterbi lattice, reused between pieces. Zero-initialize to start.
typedef struct mlx_lattice {
  struct mlx_lattice_node *nodes;
  size_t capacity;
} mlx_lattice_t;
void mlx_lattice_free(mlx_lattice_t *lattice);

// Appends the ids of |piece| to |ids|. Fails if a character has no token and the model has no unk_id,
// or after the deadline of |budget|: a vocabulary of nested tokens costs the longest token for each
// character.
mlx_status_t mlx_unigram_encode(const mlx_tokenizer_model_t *model, mlx_lattice_t *lattice, const char *piece,
                                size_t length, mlx_budget_t *budget, mlx_ids_t *ids) MLX_MUST_USE;

#endif  // MLXCEL_TOKENIZER_UNIGRAM_H_
