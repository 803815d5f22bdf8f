// Embeddings: the final hidden state of the last token, or what an encoder makes of all hidden states.
#include <math.h>

#include "runtime/rooms.h"
#include "runtime/scheduler_internal.h"

#define RERANK_HINT "use `mlxcel rerank MODEL QUERY DOCUMENT...`, or POST /v1/rerank of `mlxcel serve`"

mlx_status_t mlx_embedding_finish(float *embedding, size_t size, size_t tokens, bool normalize) {
  double sum = 0;
  for (size_t i = 0; i < size; ++i) sum += (double)embedding[i] * embedding[i];
  if (!isfinite(sum)) {
    return mlx_status_hint(
        mlx_error(MLX_INVALID_INPUT,
                  "the model computes values that are not finite: a hidden state after %zu tokens", tokens),
        "the weights are damaged, or too large for their type: fetch the model again, or use --dtype f32");
  }
  if (!normalize) return NULL;
  const double scale = sum > 0 ? 1 / sqrt(sum) : 0;
  for (size_t i = 0; i < size; ++i) embedding[i] = (float)(embedding[i] * scale);
  return NULL;
}

float mlx_embedding_score(const float *hidden, const float *row, size_t size) {
  double sum = 0;
  for (size_t i = 0; i < size; ++i) sum += (double)hidden[i] * row[i];
  return (float)sum;
}

mlx_status_t mlx_classifier_embeds_nothing(void) {
  return mlx_status_hint(
      mlx_error(MLX_UNSUPPORTED,
                "the model is a classifier (a cross-encoder): it scores pairs of texts and "
                "computes no embeddings"),
      RERANK_HINT);
}

static mlx_status_t generates_nothing(const char *what) {
  return mlx_status_hint(
      mlx_error(MLX_UNSUPPORTED, "the model %s: it computes embeddings and generates no text", what),
      "use `mlxcel embed MODEL TEXT`, or POST /v1/embeddings of `mlxcel serve`");
}

mlx_status_t mlx_encoder_generates_nothing(bool is_classifier) {
  if (!is_classifier) return generates_nothing("is an encoder");
  return mlx_status_hint(
      mlx_error(MLX_UNSUPPORTED, "the model is a classifier (a cross-encoder): it generates no text"),
      RERANK_HINT);
}

mlx_status_t mlx_scheduler_check_head(const mlx_scheduler_t *s) {
  if (s->stepper->whole || (s->language.headless && s->language.is_classifier))
    return mlx_encoder_generates_nothing(s->language.is_classifier);
  return s->language.headless ? generates_nothing("has no output head") : NULL;
}
