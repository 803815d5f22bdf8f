// JSON responses of small endpoints.
#ifndef MLXCEL_SERVER_CORE_JSON_RESPONSE_H_
#define MLXCEL_SERVER_CORE_JSON_RESPONSE_H_

#include "base/json_writer.h"
#include "server/http/http.h"

// Responds with |body| and clears it. If the text ran out of memory, responds with an error.
void mlx_respond_json(mlx_exchange_t *exchange, int status, mlx_text_t *body);

#endif  // MLXCEL_SERVER_CORE_JSON_RESPONSE_H_
