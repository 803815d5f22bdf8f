// Embeddings of a session: the final hidden state of the last token, with norm 1.
#include <math.h>

#include "runtime/session_internal.h"

mlx_status_t mlx_session_embed(mlx_session_t *session, const int32_t *ids, size_t count, float *out_embedding,
                               size_t size) {
  mlx_stepper_t *stepper = session->engine->stepper;
  const size_t hidden = (size_t)session->engine->variant->hidden;
  double sum = 0;
  int32_t next;
  if (size != hidden)
    return mlx_error(MLX_USAGE, "an embedding of this model has %zu numbers; the caller requested %zu",
                     hidden, size);
  if (count == 0) return mlx_error(MLX_USAGE, "an embedding needs at least one token");
  MLX_TRY(mlx_session_rewind(session, 0));
  MLX_TRY(mlx_session_read(session, ids, count, &next));
  MLX_TRY(stepper->read_hidden(stepper, 0, out_embedding));
  for (size_t i = 0; i < size; ++i) sum += (double)out_embedding[i] * out_embedding[i];
  if (!isfinite(sum)) {
    return mlx_status_hint(
        mlx_error(MLX_INVALID_INPUT,
                  "the model computes values that are not finite: the hidden state after %zu tokens", count),
        "the weights are damaged, or too large for their type: fetch the model again, or use --dtype f32");
  }
  const double scale = sum > 0 ? 1 / sqrt(sum) : 0;
  for (size_t i = 0; i < size; ++i) out_embedding[i] = (float)(out_embedding[i] * scale);
  return NULL;
}
