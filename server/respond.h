// Respond: whole JSON responses of small endpoints.
#ifndef MLXCEL_SERVER_RESPOND_H_
#define MLXCEL_SERVER_RESPOND_H_

#include "base/text.h"
#include "server/http.h"

// Responds with |body| and clears it. If the text ran out of memory, responds with an error.
void mlx_respond_json(mlx_exchange_t *exchange, int status, mlx_text_t *body);
// Appends ", "KEY": "VALUE"" to an object; the comma only if |text| does not end with '{'.
void mlx_put_text(mlx_text_t *text, const char *key, const char *value);
void mlx_put_int(mlx_text_t *text, const char *key, int64_t value);
void mlx_put_bool(mlx_text_t *text, const char *key, bool value);
// Appends the key and the colon only.
void mlx_put_key(mlx_text_t *text, const char *key);

#endif  // MLXCEL_SERVER_RESPOND_H_
