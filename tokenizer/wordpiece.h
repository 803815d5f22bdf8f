// WordPiece encoding of one word.
#ifndef MLXCEL_TOKENIZER_WORDPIECE_H_
#define MLXCEL_TOKENIZER_WORDPIECE_H_

#include "base/budget.h"
#include "tokenizer/model.h"

// Appends the ids of |word| to |ids|.
mlx_status_t mlx_wordpiece_encode(const mlx_tokenizer_model_t *model, const char *word, size_t length,
                                  mlx_budget_t *budget, mlx_ids_t *ids) MLX_MUST_USE;

#endif  // MLXCEL_TOKENIZER_WORDPIECE_H_
