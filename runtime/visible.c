// The ids of special tokens that are part of the text.
#include "runtime/visible.h"

#include "base/memory.h"

static bool is_listed(const int32_t *ids, size_t count, int32_t id) {
  for (size_t i = 0; i < count; ++i) {
    if (ids[i] == id) return true;
  }
  return false;
}

mlx_status_t mlx_visible_initialize(const mlx_generate_options_t *options, const mlx_tokenizer_t *tokenizer,
                                    const int32_t *eos, size_t eos_count, mlx_visible_t *out) {
  *out = (mlx_visible_t){0};
  if (!options->visible_token_count) return NULL;
  MLX_TRY(mlx_alloc(options->visible_token_count, sizeof *out->ids, &out->ids));
  for (size_t i = 0; i < options->visible_token_count; ++i) {
    int32_t id;
    if (!mlx_tokenizer_find(tokenizer, options->visible_tokens[i], &id)) continue;
    if (!mlx_tokenizer_is_special(tokenizer, id) || is_listed(eos, eos_count, id)) continue;
    out->ids[out->count++] = id;
  }
  return NULL;
}

void mlx_visible_clear(mlx_visible_t *visible) {
  mlx_free(visible->ids);
  *visible = (mlx_visible_t){0};
}

bool mlx_visible_has(const mlx_visible_t *visible, int32_t id) {
  return is_listed(visible->ids, visible->count, id);
}
