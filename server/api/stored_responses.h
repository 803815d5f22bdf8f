// Stored responses: the last responses of OpenAI's API, in memory, so that a request can continue one by its
// id and a client can fetch it. They end with the server.
//
// Ownership: release with mlx_stored_responses_free. Threads: any thread, at the same time.
#ifndef MLXCEL_SERVER_API_STORED_RESPONSES_H_
#define MLXCEL_SERVER_API_STORED_RESPONSES_H_

#include "base/text.h"

typedef struct mlx_stored_responses mlx_stored_responses_t;

// Keeps at most |max_count| responses of about |max_bytes| together. The ones that were not used for the
// longest time are dropped. A response that is larger alone is not kept.
mlx_status_t mlx_stored_responses_create(size_t max_count, size_t max_bytes,
                                         mlx_stored_responses_t **out_responses) MLX_MUST_USE;
void mlx_stored_responses_free(mlx_stored_responses_t *responses);  // NULL is fine

// JSON texts of a response: the object, and the items of its input (with those of the responses that it
// continues) and output, separated by commas.
typedef struct mlx_stored_response {
  mlx_text_t object, input, output;
} mlx_stored_response_t;
void mlx_stored_response_clear(mlx_stored_response_t *response);

// Takes the texts of |inout_response|, also if it fails. |id| is copied.
mlx_status_t mlx_stored_responses_add(mlx_stored_responses_t *responses, const char *id,
                                      mlx_stored_response_t *inout_response) MLX_MUST_USE;
// Copies the response |id|; *|out_found| is false if there is none. |responses| may be NULL: it has none.
// Release with mlx_stored_response_clear.
mlx_status_t mlx_stored_responses_find(mlx_stored_responses_t *responses, const char *id,
                                       mlx_stored_response_t *out_response, bool *out_found) MLX_MUST_USE;
// False if there is no such response.
bool mlx_stored_responses_remove(mlx_stored_responses_t *responses, const char *id);

#endif  // MLXCEL_SERVER_API_STORED_RESPONSES_H_
