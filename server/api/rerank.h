// Requests that score pairs of texts, and their responses: /v1/rerank in the form of Cohere and Jina or of
// text-embeddings-inference, and vLLM's /v1/score.
#ifndef MLXCEL_SERVER_API_RERANK_H_
#define MLXCEL_SERVER_API_RERANK_H_

#include "runtime/mlxcel.h"
#include "server/api/api.h"
#include "server/api/fields.h"

#define MLX_MAX_PAIRS 2048  // of a request

typedef struct mlx_rerank_api mlx_rerank_api_t;

typedef struct mlx_rerank_input {
  const mlx_rerank_api_t *api;  // whose form the body has
  yyjson_doc *doc;              // owned: the body, which the other fields borrow from
  const char *model;            // NULL: not given
  mlx_text_pair_t *pairs;       // owned [count]: query and document
  size_t count;
  int64_t top;             // results, best first; -1: all
  bool returns_documents;  // the response has the documents
  bool raw;                // scores before the model's activation
} mlx_rerank_input_t;

// The scores of a request, and what a response says about them. All borrowed.
typedef struct mlx_rerank_result {
  const mlx_rerank_input_t *input;
  const char *model, *id;
  const float *scores;  // [count]
  const size_t *order;  // [count] best first
  int64_t created;      // seconds since 1970
  int64_t tokens;       // of all pairs
} mlx_rerank_result_t;

// The endpoint of one API, as constant data.
struct mlx_rerank_api {
  const mlx_field_t *fields;  // of the request
  mlx_status_t (*read)(const mlx_place_t *root, mlx_rerank_input_t *input);
  void (*write)(const mlx_rerank_result_t *result, mlx_text_t *out);  // the body of the response
  void (*error)(const mlx_api_error_t *error, mlx_text_t *out);       // the body of an error response
};
extern const mlx_rerank_api_t mlx_rerank_cohere, mlx_rerank_tei, mlx_rerank_score;

// A body with "texts" of mlx_rerank_cohere is one of mlx_rerank_tei, which has the same path. Release
// |out| with mlx_rerank_input_clear, also after an error.
mlx_status_t mlx_rerank_parse(const mlx_rerank_api_t *api, const char *body, size_t length,
                              mlx_text_t *unknown, mlx_rerank_input_t *out) MLX_MUST_USE;
void mlx_rerank_input_clear(mlx_rerank_input_t *input);

#endif  // MLXCEL_SERVER_API_RERANK_H_
