// The settings of a classifier: an encoder with a class head, which gives each text some scores. A classifier
// of pairs with one score is a cross-encoder, which ranks documents for a query.
#ifndef MLXCEL_MODELS_IMPORT_CLASSIFIER_H_
#define MLXCEL_MODELS_IMPORT_CLASSIFIER_H_

#include "models/import/source.h"

typedef struct mlx_classifier {
  int64_t labels;      // scores of a text; 0: the model is no classifier
  bool sigmoid;        // a score is the sigmoid of what the network computes
  bool typed;          // the tokenizer gives the second text of a pair another token type
  int64_t max_tokens;  // longer texts are cut; 0: not given
} mlx_classifier_t;

// "architectures" in config.json decides. The activation and the limit are those of sentence-transformers'
// CrossEncoder; another activation than its sigmoid or none is refused.
mlx_status_t mlx_classifier_read(const mlx_source_t *source, mlx_classifier_t *out) MLX_MUST_USE;

#endif  // MLXCEL_MODELS_IMPORT_CLASSIFIER_H_
