// See json_response.h.
#include "server/core/json_response.h"

#include <string.h>

void mlx_respond_json(mlx_exchange_t *exchange, int status, mlx_text_t *body) {
  static const char failed[] =
      "{\"error\": {\"message\": \"out of memory\", \"type\": \"server_error\", \"code\": 500}}";
  mlx_status_t error = mlx_text_finish(body);
  if (error)
    mlx_exchange_respond(exchange, 500, "application/json", failed, strlen(failed));
  else
    mlx_exchange_respond(exchange, status, "application/json", body->data ? body->data : "", body->length);
  mlx_status_free(error);
  mlx_text_clear(body);
}
