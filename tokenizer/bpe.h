// Byte-pair encoding of one piece.
#ifndef MLXCEL_TOKENIZER_BPE_H_
#define MLXCEL_TOKENIZER_BPE_H_

#include "base/budget.h"
#include "tokenizer/model.h"

// Working memory, reused between pieces. Zero-initialize to start.
typedef struct mlx_bpe_scratch {
  struct mlx_bpe_symbol *symbols;
  size_t symbol_capacity;
  struct mlx_bpe_candidate *heap;
  size_t heap_count, heap_capacity;
  char *spelled;
  size_t spelled_capacity;
} mlx_bpe_scratch_t;
void mlx_bpe_scratch_free(mlx_bpe_scratch_t *scratch);

// Appends the ids of |piece| to |ids|.
mlx_status_t mlx_bpe_encode(const mlx_tokenizer_model_t *model, mlx_bpe_scratch_t *scratch, const char *piece,
                            size_t length, mlx_budget_t *budget, mlx_ids_t *ids) MLX_MUST_USE;

#endif  // MLXCEL_TOKENIZER_BPE_H_
