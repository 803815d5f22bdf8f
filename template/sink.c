// Sink: appending doubles the capacity, and the old text stays in the arena until the arena is cleared.
#include "template/sink.h"

#include "base/memory.h"
#include "unicode/utf8.h"

void mlx_sink_append(mlx_sink_t *sink, const char *bytes, size_t length) {
  size_t needed;
  if (sink->failed || !length) return;
  if (!mlx_add(sink->length, length, &needed) || (sink->limit && needed > sink->limit)) {
    sink->failed = true;
    return;
  }
  if (needed > sink->capacity) {
    size_t capacity = needed < 32 ? 64 : needed * 2;
    char *larger = NULL;
    mlx_status_t status = needed > SIZE_MAX / 4 ? mlx_error(MLX_OUT_OF_MEMORY, "too long")
                                                : mlx_arena_take(sink->arena, capacity, 1, &larger);
    if (status) {
      mlx_status_free(status);
      sink->failed = true;
      return;
    }
    if (sink->length) memcpy(larger, sink->data, sink->length);
    sink->data = larger;
    sink->capacity = capacity;
  }
  memcpy(sink->data + sink->length, bytes, length);
  sink->length = needed;
}

void mlx_sink_puts(mlx_sink_t *sink, const char *string) { mlx_sink_append(sink, string, strlen(string)); }

void mlx_sink_character(mlx_sink_t *sink, uint32_t character) {
  char out[4];
  mlx_sink_append(sink, out, mlx_character_write(character, out));
}

void mlx_sink_fill(mlx_sink_t *sink, const char *bytes, size_t length, int64_t times) {
  while (times-- > 0 && !sink->failed && length) mlx_sink_append(sink, bytes, length);
}
