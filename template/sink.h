// Span: borrowed text. Sink: a text that grows in an arena.
#ifndef MLXCEL_TEMPLATE_SINK_H_
#define MLXCEL_TEMPLATE_SINK_H_

#include <stdint.h>
#include <string.h>

#include "template/arena.h"

typedef struct mlx_span {
  const char *bytes;  // UTF-8
  size_t length;
} mlx_span_t;

static inline bool mlx_span_is(mlx_span_t span, const char *text) {
  return span.length == strlen(text) && !memcmp(span.bytes, text, span.length);
}
static inline bool mlx_span_equal(mlx_span_t a, mlx_span_t b) {
  return a.length == b.length && (!a.length || !memcmp(a.bytes, b.bytes, a.length));
}

// Appending returns no status. After a failure, |failed| is set and later appends do nothing.
typedef struct mlx_sink {
  mlx_arena_t *arena;
  char *data;
  size_t length, capacity;
  size_t limit;  // bytes; 0: only the arena's limit applies
  bool failed;
} mlx_sink_t;

void mlx_sink_append(mlx_sink_t *sink, const char *bytes, size_t length);
void mlx_sink_puts(mlx_sink_t *sink, const char *string);
void mlx_sink_character(mlx_sink_t *sink, uint32_t character);
void mlx_sink_fill(mlx_sink_t *sink, const char *bytes, size_t length, int64_t times);  // repeats |bytes|

#endif  // MLXCEL_TEMPLATE_SINK_H_
