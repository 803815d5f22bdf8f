// JSON objects, key by key.
#include "server/respond.h"

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

void mlx_put_key(mlx_text_t *text, const char *key) {
  if (text->length && !strchr("{[", text->data[text->length - 1])) mlx_text_puts(text, ",");
  mlx_text_json_string(text, key, strlen(key));
  mlx_text_puts(text, ":");
}

void mlx_put_text(mlx_text_t *text, const char *key, const char *value) {
  mlx_put_key(text, key);
  mlx_text_json_string(text, value, strlen(value));
}

void mlx_put_int(mlx_text_t *text, const char *key, int64_t value) {
  mlx_put_key(text, key);
  mlx_text_printf(text, "%lld", (long long)value);
}

void mlx_put_bool(mlx_text_t *text, const char *key, bool value) {
  mlx_put_key(text, key);
  mlx_text_puts(text, value ? "true" : "false");
}
