// The settings of an embedding model: how its vectors are made and compared. A sentence-transformers
// directory has them in modules.json and the files that it names, a GGUF file as pooling_type.
#ifndef MLXCEL_MODELS_IMPORT_SENTENCE_H_
#define MLXCEL_MODELS_IMPORT_SENTENCE_H_

#include "base/prompt.h"
#include "models/config.h"
#include "models/import/source.h"

typedef struct mlx_sentence {
  bool found;             // the model has such settings; else they are defaults
  mlx_pooling_t pooling;  // mean by default
  bool normalize;         // vectors get the Euclidean norm 1; true by default
  size_t dense_count;     // layers of the pooled vector
  mlx_dense_t dense[MLX_MAX_DENSE];
  bool skips_prompts;  // the pooling leaves out the tokens of prompts
  int64_t max_tokens;  // longer texts are truncated; 0: not given
  mlx_named_prompt_t prompts[MLX_MODEL_PROMPTS];
  size_t prompt_count;
  char default_prompt[MLX_MAX_PROMPT_NAME];  // the name of one of |prompts|; empty: none
  char similarity[12];                       // "cosine", "dot", "euclidean" or "manhattan"; empty: not given
} mlx_sentence_t;

// Refuses settings that would change the vectors and are not supported: other modules, several poolings.
mlx_status_t mlx_sentence_read(const mlx_source_t *source, mlx_sentence_t *out) MLX_MUST_USE;

#endif  // MLXCEL_MODELS_IMPORT_SENTENCE_H_
