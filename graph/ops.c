// Comparison of RoPE parameters.
#include "graph/ops.h"

#include <string.h>

bool mlx_rope_equal(const mlx_rope_t *a, const mlx_rope_t *b) {
  if (a->dims != b->dims || a->adjacent != b->adjacent || a->scale != b->scale) return false;
  return !memcmp(a->frequencies, b->frequencies, (size_t)(a->dims / 2) * sizeof *a->frequencies);
}
