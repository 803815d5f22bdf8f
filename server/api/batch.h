// Batch: the lines of OpenAI's batch files. An input line is a request; an output line has its custom_id and
// the response.
//
// An output line has the same bytes whoever computes it, and when: ids are made from the request, "created"
// is 0, and times and counts of cached tokens are left out.
//
// Threads: any thread.
#ifndef MLXCEL_SERVER_API_BATCH_H_
#define MLXCEL_SERVER_API_BATCH_H_

#include <stdint.h>

#include "base/digest.h"
#include "base/text.h"

// What a request gets that does not say it.
typedef struct mlx_batch_defaults {
  const char *system;  // system message of prompts that are user messages; NULL: none
  bool completes;      // a line that is only a prompt is a text to complete, not a user message
  int64_t max_tokens;  // -1: the API's default
  uint64_t seed;       // of request 0; request N gets N more
} mlx_batch_defaults_t;

typedef struct mlx_batch_request {
  const char *path;         // constant: "/v1/chat/completions"
  char *custom_id;          // owned; "request-N" if the line has none
  size_t custom_id_length;  // it may have any character
  char *model;              // owned; NULL: the line names none
  mlx_text_t body;          // for POST
} mlx_batch_request_t;

// Reads a line: OpenAI's {"custom_id", "method", "url", "body"}; or a body with "messages", "prompt" or
// "input", and perhaps a "custom_id"; or a JSON string, which is a prompt. |is_text|: the whole line is a
// prompt. |index| counts requests from 0. Release with mlx_batch_request_clear.
mlx_status_t mlx_batch_request_parse(const char *line, size_t length, bool is_text, uint64_t index,
                                     const mlx_batch_defaults_t *defaults,
                                     mlx_batch_request_t *out_request) MLX_MUST_USE;
void mlx_batch_request_clear(mlx_batch_request_t *request);

// "batch_req_", the index in 10 hexadecimal digits, and 22 digits of a digest: identifies a request in an
// output line.
#define MLX_BATCH_ID 43
typedef struct mlx_batch_id {
  char text[MLX_BATCH_ID];
} mlx_batch_id_t;
// |digest| is that of everything that the response depends on.
mlx_batch_id_t mlx_batch_id(uint64_t index, const char digest[MLX_DIGEST_HEX]);

// Appends an output line, with its line feed. |body| is the JSON of the response.
mlx_status_t mlx_batch_result_put(const mlx_batch_id_t *id, const mlx_batch_request_t *request, int status,
                                  const char *body, size_t length, mlx_text_t *out) MLX_MUST_USE;
// Reads the id of an output line. Returns false if the line is no whole output line.
bool mlx_batch_result_read(const char *line, size_t length, uint64_t *out_index, mlx_batch_id_t *out_id,
                           int *out_status);

#endif  // MLXCEL_SERVER_API_BATCH_H_
