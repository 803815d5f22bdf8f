// These checks give every caller the same error, with the numbers and a hint.
#include "runtime/prompt.h"

mlx_status_t mlx_context_check(size_t count, int64_t length, mlx_context_limit_t context) {
  if (count <= (size_t)(context.positions - length)) return NULL;
  const long long positions = (long long)context.positions, model = (long long)context.model;
  mlx_status_t status =
      length ? mlx_error(MLX_USAGE,
                         "%zu more tokens do not fit: the context holds %lld, of which %lld are in use",
                         count, positions, (long long)length)
             : mlx_error(MLX_USAGE, "the prompt has %zu tokens; the context holds %lld", count, positions);
  if (context.model > context.positions && count <= (size_t)(context.model - length))
    return mlx_status_hint(status, "shorten the prompt, or use a larger context: -c N, at most %lld", model);
  return mlx_status_hint(status, "shorten the prompt: the model supports at most %lld tokens", model);
}

mlx_status_t mlx_prompt_check(const int32_t *ids, size_t count, int64_t length, mlx_context_limit_t context,
                              int64_t vocab) {
  if (!count)
    return mlx_status_hint(mlx_error(MLX_USAGE, "the prompt is empty"),
                           "give a prompt of at least one token: the model continues it");
  MLX_TRY(mlx_context_check(count, length, context));
  for (size_t i = 0; i < count; ++i) {
    if (ids[i] >= 0 && ids[i] < vocab) continue;
    return mlx_status_hint(
        mlx_error(MLX_INVALID_INPUT,
                  "the tokenizer produced token %d, but the model's vocabulary has only %lld tokens", ids[i],
                  (long long)vocab),
        "use the tokenizer that belongs to these weights, or remove the special token from the prompt");
  }
  return NULL;
}
