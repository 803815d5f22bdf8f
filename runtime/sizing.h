// Sizing: chooses the context length, the sequences and the pages of the KV pool when a model is loaded.
#ifndef MLXCEL_RUNTIME_SIZING_H_
#define MLXCEL_RUNTIME_SIZING_H_

#include <stdint.h>

#include "base/status.h"

typedef struct mlx_sizing_request {
  const char *name;       // of the model, for messages
  int64_t model_context;  // longest text that the module supports
  int64_t context;        // wanted; 0: MLX_DEFAULT_CONTEXT, or less if memory is short; -1: model_context
  int64_t sequences;      // wanted sequences; 0: 1
  uint64_t page_bytes;    // of a page of the KV pool
  uint64_t window_page_bytes;  // of a window page; 0: there are none
  int64_t window_held;         // window pages that a sequence holds at most (MLX_WINDOW_PAGES_HELD)
  uint64_t state_bytes;        // of the recurrent state of a sequence; 0: there is none
  uint64_t memory;             // wanted limit of the KV pool in bytes; 0: none
  uint64_t free_memory;        // bytes that the KV pool can have
} mlx_sizing_request_t;

typedef struct mlx_sizing {
  int64_t context, sequences;
  int64_t slot_pages;    // pages of a sequence that fills the context
  int64_t pool_pages;    // with page 0
  int64_t window_pages;  // with page 0; 0: there are none
  int64_t states;        // with state 0; 0: there are none
} mlx_sizing_t;

// The context length that a request gets if memory is not short. Fails if the module does not support it.
mlx_status_t mlx_sizing_context(const mlx_sizing_request_t *request, int64_t *out_context) MLX_MUST_USE;
// The pool holds all sequences at full length, or what memory allows, but at least one sequence at full
// length. There are twice the window pages that the sequences hold, so that cached prefixes keep theirs.
mlx_status_t mlx_sizing_choose(const mlx_sizing_request_t *request, mlx_sizing_t *out_sizing) MLX_MUST_USE;

// "1.5 GiB" or "12.0 MiB", for messages.
typedef struct mlx_size_text {
  char text[32];
} mlx_size_text_t;
mlx_size_text_t mlx_size_text(uint64_t bytes);

#endif  // MLXCEL_RUNTIME_SIZING_H_
