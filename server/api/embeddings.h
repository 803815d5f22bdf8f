// Embeddings in the forms of OpenAI's /v1/embeddings, Ollama's /api/embed and /api/embeddings, and /embed of
// Hugging Face's text-embeddings-inference (TEI): the body of a request, and that of its response.
#ifndef MLXCEL_SERVER_API_EMBEDDINGS_H_
#define MLXCEL_SERVER_API_EMBEDDINGS_H_

#include "server/api/api.h"
#include "server/api/fields.h"

#define MLX_MAX_EMBEDDINGS 2048  // inputs of a request

typedef struct mlx_embeddings_input {
  yyjson_doc *doc;    // owned: the body, which the other fields borrow from
  const char *key;    // of the texts: "input"
  const char *model;  // NULL: not given
  bool base64;
  bool cut;            // an input that is too long loses its last tokens; else it is an error
  int64_t most;        // of |cut|: tokens that an input keeps; -1: as many as the model takes
  int plain;           // special tokens in texts are text; -1: the server's default
  int normalize;       // 1: embeddings have the norm 1; 0: that of the model's pooling; -1: as the model says
  const char *prompt;  // the name of what is put before each text; "": nothing; NULL: the model's default
  int64_t dimensions;  // -1: as many as the model has
  yyjson_val **inputs;  // owned [count]: texts and lists of token ids, none of them empty
  size_t count;         // 0: only if the API allows it
} mlx_embeddings_input_t;

// Embeddings, and what a response says about them. All borrowed.
typedef struct mlx_embeddings {
  const char *model;
  float *const *items;  // [count][size]
  size_t count, size;
  bool base64;     // as the request asked for
  int64_t tokens;  // of all inputs
  double seconds;  // since the request
} mlx_embeddings_t;

// The endpoint of one API, as constant data.
typedef struct mlx_embeddings_api {
  const mlx_field_t *fields;  // of the request
  const char *key;            // of the texts
  bool cuts;                  // the default of mlx_embeddings_input_t.cut
  const char *cut_field;      // what a request sends to have long texts cut, for hints
  bool may_be_empty;          // no text, or one without characters, makes an answer without embeddings
  mlx_status_t (*read)(const mlx_place_t *root, mlx_embeddings_input_t *out);  // fields that others lack
  void (*write)(const mlx_embeddings_t *embeddings, mlx_text_t *out);          // the body of the response
  void (*error)(const mlx_api_error_t *error, mlx_text_t *out);  // the body of an error response
} mlx_embeddings_api_t;
extern const mlx_embeddings_api_t mlx_embeddings_openai, mlx_embeddings_ollama, mlx_embeddings_ollama_prompt,
    mlx_embeddings_tei;
// An error in the form of text-embeddings-inference.
void mlx_tei_write_error(const mlx_api_error_t *error, mlx_text_t *out);

// Release |out| with mlx_embeddings_input_clear, also after an error.
mlx_status_t mlx_embeddings_parse(const mlx_embeddings_api_t *api, const char *body, size_t length,
                                  mlx_text_t *unknown, mlx_embeddings_input_t *out) MLX_MUST_USE;
void mlx_embeddings_input_clear(mlx_embeddings_input_t *input);

// Copies the token ids of input |index|, a list, to |out|, which has room for all of them.
mlx_status_t mlx_embeddings_ids(const mlx_embeddings_input_t *input, size_t index, int64_t vocab,
                                int32_t *out) MLX_MUST_USE;

// Prepends the path of input |index| to the message of |status|: "input[2]: ...". NULL passes through.
mlx_status_t mlx_embeddings_annotate(const mlx_embeddings_input_t *input, size_t index,
                                     mlx_status_t status) MLX_MUST_USE;

#endif  // MLXCEL_SERVER_API_EMBEDDINGS_H_
