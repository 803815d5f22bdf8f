// The settings of a classifier: a model that gives each text some scores. A classifier of pairs with one
// score is a cross-encoder, which ranks documents for a query. An encoder has a class head in its network. A
// decoder has one row of weights, whose product with the last hidden state is the score: a row of its own, or
// the difference of the LM head's rows of two tokens, "yes" and "no".
#ifndef MLXCEL_MODELS_IMPORT_CLASSIFIER_H_
#define MLXCEL_MODELS_IMPORT_CLASSIFIER_H_

#include "models/config.h"
#include "models/import/source.h"

#define MLX_GGUF_RANK 4  // the pooling type of a classifier in GGUF metadata

typedef struct mlx_classifier {
  int64_t labels;      // scores of a text; 0: the model is no classifier
  bool sigmoid;        // a score is the sigmoid of what the network computes
  bool typed;          // the tokenizer gives the second text of a pair another token type
  int64_t max_tokens;  // longer texts are cut; 0: not given
  // Of a decoder without a row of its own: the tokens whose rows of the LM head are subtracted. |no| -1:
  // none.
  bool has_tokens;
  int64_t yes, no;
  bool generation_prompt;  // the chat template is rendered with add_generation_prompt
} mlx_classifier_t;

// "architectures" in config.json decides, or a module LogitScore in modules.json; in GGUF the pooling type
// "rank", or a tensor cls.output.weight. The activation and the limit are those of sentence-transformers'
// CrossEncoder; another activation than its sigmoid or none is refused.
mlx_status_t mlx_classifier_read(const mlx_source_t *source, mlx_classifier_t *out) MLX_MUST_USE;

// Whether |name| is the tensor with the row of a decoder.
bool mlx_classifier_is_row(const char *name);
// The row of a decoder: |out| [c->hidden].
mlx_status_t mlx_classifier_row(const mlx_source_t *source, const mlx_classifier_t *classifier,
                                const mlx_config_t *c, float *out) MLX_MUST_USE;

#endif  // MLXCEL_MODELS_IMPORT_CLASSIFIER_H_
