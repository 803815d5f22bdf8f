// Scores of texts and pairs of texts by a classifier.
#include <math.h>
#include <string.h>

#include "base/json_writer.h"
#include "base/memory.h"
#include "runtime/engine_internal.h"
#include "runtime/prompt.h"
#include "runtime/rooms.h"

#define RERANK_TEMPLATE "rerank"  // the name of the chat template for pairs, if the model has others

static mlx_status_t check_classifier(const mlx_engine_t *engine) {
  const mlx_manifest_embedding_t *e = &engine->manifest.embedding;
  if (e->labels) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_UNSUPPORTED, "the model has no class head, so it cannot score pairs of texts"),
      e->encoder ? "compare embeddings: `mlxcel embed MODEL DOCUMENT... --similarity QUERY`. Rerankers are "
                   "directories whose config.json names a class ...ForSequenceClassification"
                 : "use a cross-encoder: a directory whose config.json names a class "
                   "...ForSequenceClassification, or whose modules.json has LogitScore, as Qwen3-Reranker");
}

// ----------------------------------------------------------------------------------------------------------
// Decoders: a chat template renders the pair

static void put_message(mlx_json_writer_t *json, const char *role, const char *text, size_t length) {
  mlx_json_begin_object(json, NULL, MLX_JSON_ONE_LINE);
  mlx_json_put_text(json, "role", role);
  mlx_json_put_bytes(json, "content", text, length);
  mlx_json_end(json);
}

// Release *|out_text| with mlx_chat_free_text.
static mlx_status_t render(const mlx_engine_t *engine, const mlx_text_pair_t *pair, char **out_text,
                           size_t *out_length) {
  const mlx_manifest_embedding_t *e = &engine->manifest.embedding;
  const char *instruction = pair->instruction ? pair->instruction : mlx_engine_info(engine).default_prompt;
  mlx_chat_options_t options;
  mlx_text_t text = {0};
  mlx_json_writer_t json = {.out = &text};
  *out_text = NULL;
  *out_length = 0;
  if (!engine->chat) return mlx_error(MLX_UNSUPPORTED, "the reranker has no chat template");
  mlx_chat_options_initialize(&options);
  options.add_generation_prompt = e->generation_prompt;
  if (mlx_chat_source(engine->chat, RERANK_TEMPLATE, false)) options.template_name = RERANK_TEMPLATE;
  mlx_json_begin_list(&json, NULL, MLX_JSON_ONE_LINE);
  if (instruction[0]) put_message(&json, "system", instruction, strlen(instruction));
  put_message(&json, "query", pair->first, pair->first_length);
  put_message(&json, "document", pair->second, pair->second_length);
  mlx_json_end(&json);
  mlx_status_t status = mlx_text_finish(&text);
  if (!status) status = mlx_chat_render(engine->chat, text.data, text.length, &options, out_text, out_length);
  mlx_text_clear(&text);
  return status;
}

static mlx_status_t tokenize_rendered(const mlx_engine_t *engine, const mlx_text_pair_t *pair,
                                      int32_t **out_ids, size_t *out_count) {
  char *text;
  size_t length;
  *out_ids = NULL;
  *out_count = 0;
  MLX_TRY(render(engine, pair, &text, &length));
  mlx_status_t status = mlx_engine_tokenize_chat(engine, text, length, out_ids, out_count);
  mlx_chat_free_text(text);
  return status;
}

static mlx_text_pair_t pair_of(const char *first, const char *second, const char *instruction) {
  return (mlx_text_pair_t){.first = first,
                           .second = second,
                           .first_length = strlen(first),
                           .second_length = strlen(second),
                           .instruction = instruction};
}

// Writes the tokens that the template puts after the texts over the end of |ids|, which are cut. They are
// those that two pairs of other texts have in common.
static mlx_status_t restore_end(const mlx_engine_t *engine, const char *instruction, int32_t *ids,
                                size_t count) {
  const mlx_text_pair_t one = pair_of("0", "0", instruction),
                        other = pair_of("1 2 3 4", "1 2 3 4", instruction);
  int32_t *a, *b = NULL;
  size_t a_count, b_count = 0, same = 0;
  MLX_TRY(tokenize_rendered(engine, &one, &a, &a_count));
  mlx_status_t status = tokenize_rendered(engine, &other, &b, &b_count);
  const size_t most = a_count < b_count ? a_count : b_count;
  while (same < most && a[a_count - 1 - same] == b[b_count - 1 - same]) ++same;
  if (same == most) same = 0;
  if (same > count) same = count;
  if (!status) memcpy(ids + count - same, a + a_count - same, same * sizeof *ids);
  mlx_engine_free_ids(a);
  mlx_engine_free_ids(b);
  return status;
}

static mlx_status_t tokenize_for_decoder(const mlx_engine_t *engine, const mlx_text_pair_t *pair,
                                         int32_t **out_ids, size_t *out_count) {
  const size_t limit = (size_t)engine->sizing.context;
  if (!pair->second)
    return mlx_error(MLX_UNSUPPORTED,
                     "the reranker scores pairs of texts, and the request has a single text");
  MLX_TRY(tokenize_rendered(engine, pair, out_ids, out_count));
  if (*out_count <= limit) return NULL;
  *out_count = limit;
  mlx_status_t status = restore_end(engine, pair->instruction, *out_ids, limit);
  if (!status) return NULL;
  mlx_engine_free_ids(*out_ids);
  *out_ids = NULL;
  *out_count = 0;
  return status;
}

// A template for chats may leave out both texts.
static mlx_status_t check_template(const mlx_engine_t *engine) {
  const mlx_text_pair_t pairs[] = {pair_of("a", "b", NULL), pair_of("c", "b", NULL), pair_of("a", "c", NULL)};
  char *texts[3] = {NULL};
  size_t length;
  mlx_status_t status = NULL;
  for (int i = 0; i < 3 && !status; ++i) status = render(engine, &pairs[i], &texts[i], &length);
  if (!status && (!strcmp(texts[0], texts[1]) || !strcmp(texts[0], texts[2])))
    status = mlx_status_hint(
        mlx_error(MLX_UNSUPPORTED,
                  "the chat template leaves out messages of the roles 'query' and 'document'"),
        "add a chat_template.jinja with these roles to the model's folder, or fetch the model again");
  for (int i = 0; i < 3; ++i) mlx_chat_free_text(texts[i]);
  return status;
}

// ----------------------------------------------------------------------------------------------------------

mlx_status_t mlx_engine_check_reranker(const mlx_engine_t *engine) {
  const int64_t labels = engine->manifest.embedding.labels;
  MLX_TRY(check_classifier(engine));
  if (labels == 1) return engine->manifest.embedding.encoder ? NULL : check_template(engine);
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
  if (!engine->manifest.embedding.encoder) return tokenize_for_decoder(engine, pair, out_ids, out_count);
  if (pair->instruction)
    return mlx_error(MLX_UNSUPPORTED, "the reranker is an encoder and takes no instruction");
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
