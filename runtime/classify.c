// Scores of texts and pairs of texts by a classifier.
#include <math.h>

#include "base/memory.h"
#include "runtime/engine_internal.h"
#include "runtime/prompt.h"
#include "runtime/rooms.h"

static mlx_status_t check_classifier(const mlx_engine_t *engine) {
  const mlx_manifest_embedding_t *e = &engine->manifest.embedding;
  if (e->labels) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_UNSUPPORTED, "the model has no class head, so it cannot score pairs of texts"),
      e->encoder ? "compare embeddings: `mlxcel embed MODEL DOCUMENT... --similarity QUERY`. Rerankers are "
                   "directories whose config.json names a class ...ForSequenceClassification"
                 : "use a cross-encoder: a directory whose config.json names a class "
                   "...ForSequenceClassification of an encoder");
}

mlx_status_t mlx_engine_check_reranker(const mlx_engine_t *engine) {
  const int64_t labels = engine->manifest.embedding.labels;
  MLX_TRY(check_classifier(engine));
  if (labels == 1) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_UNSUPPORTED,
                "the model gives a text %lld scores, one for each class; a reranker gives one",
                (long long)labels),
      "use a model with one label in config.json");
}

// The scheduler takes IDs after the vocabulary for tokens with type 1.
static mlx_status_t tokenize_one(const mlx_engine_t *engine, const mlx_text_pair_t *pair, int32_t **out_ids,
                                 size_t *out_count) {
  const mlx_context_limit_t context = {engine->sizing.context, engine->manifest.context};
  MLX_TRY(mlx_engine_tokenize_cut(engine, pair->first, pair->first_length, out_ids, out_count));
  mlx_status_t status = mlx_prompt_check(*out_ids, *out_count, 0, context, engine->manifest.vocab);
  if (!status) return NULL;
  mlx_engine_free_ids(*out_ids);
  *out_ids = NULL;
  *out_count = 0;
  return status;
}

mlx_status_t mlx_engine_tokenize_pair(const mlx_engine_t *engine, const mlx_text_pair_t *pair,
                                      int32_t **out_ids, size_t *out_count) {
  const int64_t step = engine->manifest.embedding.typed ? engine->manifest.vocab : 0;
  *out_ids = NULL;
  *out_count = 0;
  MLX_TRY(check_classifier(engine));
  if (!pair->second) return tokenize_one(engine, pair, out_ids, out_count);
  return mlx_tokenizer_encode_pair(engine->tokenizer, (mlx_text_view_t){pair->first, pair->first_length},
                                   (mlx_text_view_t){pair->second, pair->second_length},
                                   (size_t)engine->sizing.context, (int32_t)step, out_ids, out_count);
}

void mlx_engine_activate_scores(const mlx_engine_t *engine, float *scores, size_t count) {
  if (!engine->manifest.embedding.sigmoid) return;
  for (size_t i = 0; i < count; ++i) scores[i] = (float)(1 / (1 + exp(-(double)scores[i])));
}

mlx_status_t mlx_engine_classify(mlx_engine_t *engine, const mlx_text_pair_t *pairs, size_t count, bool raw,
                                 float *out_scores, bool (*on_done)(void *user, size_t done), void *user) {
  const size_t labels = (size_t)engine->manifest.embedding.labels;
  int32_t **ids = NULL;
  size_t *counts = NULL;
  MLX_TRY(check_classifier(engine));
  mlx_status_t status = mlx_alloc(count, sizeof *ids, &ids);
  if (!status) status = mlx_alloc(count, sizeof *counts, &counts);
  for (size_t i = 0; i < count && !status; ++i)
    status = mlx_engine_tokenize_pair(engine, &pairs[i], &ids[i], &counts[i]);
  if (!status)
    status = mlx_engine_compute(engine, (const int32_t *const *)ids, counts, count, out_scores, labels,
                                on_done, user);
  if (!status && !raw) mlx_engine_activate_scores(engine, out_scores, count * labels);
  for (size_t i = 0; ids && i < count; ++i) mlx_engine_free_ids(ids[i]);
  mlx_free(ids);
  mlx_free(counts);
  return status;
}
