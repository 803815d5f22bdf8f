// Errors of shapes.
#include "server/shape.h"

#include <string.h>

void mlx_shape_error_path(const char *message, char *out_path, size_t size) {
  const char *end = strstr(message, ": ");
  const size_t length = end ? (size_t)(end - message) : 0;
  const bool is_path = length && length < size && !memchr(message, ' ', length);
  if (is_path) memcpy(out_path, message, length);
  if (size) out_path[is_path ? length : 0] = 0;
}
