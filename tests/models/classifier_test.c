// Every classifier on the CPU against Hugging Face fp32 and sentence-transformers: token ids, types and
// scores of the pairs of texts in tests/fixtures/classifiers and, of GGUF files that llama.cpp's converter
// made, in tests/fixtures/rerankers. MLXCEL_ARCH=NAME runs one fixture.
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "models/model.h"
#include "tests/support/compiled.h"
#include "tests/support/golden.h"
#include "tests/support/listed.h"

#define CLASSIFIERS MLXCEL_SOURCE_DIR "/tests/fixtures/classifiers/"
#define RERANKERS MLXCEL_SOURCE_DIR "/tests/fixtures/rerankers/"
#define ENCODER MLXCEL_SOURCE_DIR "/tests/fixtures/encoders/bert"
#define TOKENIZER MLXCEL_SOURCE_DIR "/tests/fixtures/classifiers/bert/tokenizer.json"
#define MOST_PAIRS 32
#define MOST_LABELS 4
#define MOST_TOKENS 1024

typedef struct pairs {
  golden_t golden;
  mlx_text_pair_t items[MOST_PAIRS];
  size_t count;
} pairs_t;

static pairs_t open_pairs(const char *fixture) {
  char path[600];
  yyjson_val *result;
  size_t i, count;
  snprintf(path, sizeof path, "%s/golden.json", fixture);
  pairs_t pairs = {.golden = golden_open(path)};
  CHECK(yyjson_arr_size(pairs.golden.results) <= MOST_PAIRS);
  yyjson_arr_foreach(pairs.golden.results, i, count, result) {
    yyjson_val *first = yyjson_obj_get(result, "first"), *second = yyjson_obj_get(result, "second");
    pairs.items[pairs.count++] = (mlx_text_pair_t){.first = yyjson_get_str(first),
                                                   .second = yyjson_get_str(second),
                                                   .first_length = yyjson_get_len(first),
                                                   .second_length = yyjson_get_len(second)};
  }
  return pairs;
}

static mlx_engine_t *open_classifier(const char *folder) {
  const mlx_compile_options_t options = {.weights = MLX_WEIGHTS_AUTO};
  return open_parallel(folder, &options, NULL, 0, 0);
}

// An ID plus the size of the vocabulary is the token with type 1.
static void check_tokens(const char *name, const mlx_engine_t *engine, const mlx_text_pair_t *pair,
                         size_t nth, yyjson_val *result) {
  const int32_t vocab = (int32_t)mlx_engine_info(engine).vocab;
  static int32_t expected[MOST_TOKENS], types[MOST_TOKENS];
  const size_t count = golden_read_ids(yyjson_obj_get(result, "ids"), expected, MOST_TOKENS);
  int32_t *ids;
  size_t actual;
  golden_read_ids(yyjson_obj_get(result, "types"), types, MOST_TOKENS);
  CHECK_OK(mlx_engine_tokenize_pair(engine, pair, &ids, &actual));
  if (actual != count) CHECK_FAIL("%s: pair %zu has %zu tokens, expected %zu", name, nth, actual, count);
  for (size_t i = 0; i < count; ++i) {
    if (ids[i] == expected[i] + types[i] * vocab) continue;
    CHECK_FAIL("%s: pair %zu: token %zu is %d, expected %d with type %d", name, nth, i, ids[i], expected[i],
               types[i]);
  }
  mlx_engine_free_ids(ids);
}

static double check_scores(const char *name, const pairs_t *pairs, const char *key, const float *scores,
                           size_t labels) {
  double worst = 0;
  size_t i, count;
  yyjson_val *result;
  yyjson_arr_foreach(pairs->golden.results, i, count, result) {
    yyjson_val *expected = yyjson_obj_get(result, key);
    CHECK_INT(yyjson_arr_size(expected), labels);
    for (size_t k = 0; k < labels; ++k)
      worst = fmax(worst, fabs(scores[i * labels + k] - yyjson_get_num(yyjson_arr_get(expected, k))));
  }
  if (!(worst < 1e-5)) CHECK_FAIL("%s: %s differ by %g", name, key, worst);
  return worst;
}

// |model| is the fixture |fixture| or a file in it.
static void check_classifier(const char *name, const char *fixture, const char *model) {
  float scores[MOST_PAIRS * MOST_LABELS], raw[MOST_PAIRS * MOST_LABELS], alone[MOST_LABELS];
  pairs_t pairs = open_pairs(fixture);
  mlx_engine_t *engine = open_classifier(model);
  const mlx_engine_info_t info = mlx_engine_info(engine);
  const size_t labels = (size_t)info.labels;
  CHECK(!info.is_normalized);
  CHECK_INT(labels, yyjson_get_sint(yyjson_obj_get(pairs.golden.json.root, "labels")));
  for (size_t i = 0; i < pairs.count; ++i)
    check_tokens(name, engine, &pairs.items[i], i, yyjson_arr_get(pairs.golden.results, i));
  CHECK_OK(mlx_engine_classify(engine, pairs.items, pairs.count, false, scores, NULL, NULL));
  CHECK_OK(mlx_engine_classify(engine, pairs.items, pairs.count, true, raw, NULL, NULL));
  const double difference = check_scores(name, &pairs, "scores", scores, labels),
               raw_difference = check_scores(name, &pairs, "logits", raw, labels);
  printf("%s: scores differ by %.1e, logits by %.1e\n", name, difference, raw_difference);
  for (size_t i = 0; i < pairs.count; ++i) {  // the same bits alone
    CHECK_OK(mlx_engine_classify(engine, &pairs.items[i], 1, false, alone, NULL, NULL));
    if (memcmp(alone, scores + i * labels, labels * sizeof *alone))
      CHECK_FAIL("%s: pair %zu has other bits alone than in a batch", name, i);
  }
  mlx_engine_close(engine);
  golden_close(&pairs.golden);
}

typedef struct visit {
  const char *folder, *file;  // of the model, in each fixture of the folder
  size_t checked;
} visit_t;

static mlx_status_t visit(void *user, const char *name) {
  visit_t *v = user;
  const char *only = getenv("MLXCEL_ARCH");
  char fixture[512], model[600];
  if (only && strcmp(only, name)) return NULL;
  snprintf(fixture, sizeof fixture, "%s%s", v->folder, name);
  snprintf(model, sizeof model, "%s%s", fixture, v->file);
  check_classifier(name, fixture, model);
  ++v->checked;
  return NULL;
}

TEST(every_classifier_matches_hf_alone_and_in_a_batch) {
  visit_t v = {.folder = CLASSIFIERS, .file = ""};
  CHECK_OK(mlx_list_dir(CLASSIFIERS, visit, &v));
  check_compared(v.checked, listed_files("fixtures/classifiers/", "/golden.json"));
}

TEST(every_gguf_reranker_matches_hf_alone_and_in_a_batch) {
  visit_t v = {.folder = RERANKERS, .file = "/model.gguf"};
  CHECK_OK(mlx_list_dir(RERANKERS, visit, &v));
  check_compared(v.checked, listed_files("fixtures/rerankers/", "/golden.json"));
}

static bool cancel(void *user, size_t done) {
  (void)user;
  (void)done;
  return false;
}

TEST(a_classifier_embeds_nothing_and_can_be_interrupted) {
  const int32_t ids[] = {5, 6, 7}, *texts[] = {ids};
  const size_t counts[] = {3};
  float score;
  const mlx_text_pair_t pair = {.first = "a query",
                                .second = "a document",
                                .first_length = 7,
                                .second_length = 10},
                        single = {.first = "a text", .first_length = 6};
  mlx_engine_t *engine = open_classifier(CLASSIFIERS "bert");
  CHECK_ERROR(mlx_engine_embed(engine, texts, counts, 1, &score, 1, NULL, NULL), MLX_UNSUPPORTED,
              "computes no embeddings");
  CHECK_ERROR(mlx_engine_classify(engine, &pair, 1, false, &score, cancel, NULL), MLX_CANCELLED,
              "interrupted");
  CHECK_OK(mlx_engine_classify(engine, &single, 1, false, &score, NULL, NULL));
  CHECK(score > 0 && score < 1);
  CHECK_OK(mlx_engine_check_reranker(engine));
  mlx_engine_close(engine);
  engine = open_classifier(CLASSIFIERS "roberta");
  CHECK_ERROR(mlx_engine_check_reranker(engine), MLX_UNSUPPORTED, "gives a text 3 scores");
  mlx_engine_close(engine);
}

TEST(a_decoder_scores_pairs_by_its_template) {
  const mlx_text_pair_t pair = {
      .first = "a query", .second = "a document", .first_length = 7, .second_length = 10};
  const mlx_text_pair_t single = {.first = "a text", .first_length = 6};
  mlx_text_pair_t told = pair, usual = pair;
  float scores[3], embedding[32];
  const int32_t id = 5;
  mlx_session_t *session;
  told.instruction = "find the opposite";
  usual.instruction = "retrieve passages";  // the default of the template
  mlx_engine_t *engine = open_classifier(CLASSIFIERS "qwen3");
  CHECK(!mlx_engine_info(engine).is_encoder);
  CHECK_OK(mlx_engine_check_reranker(engine));
  CHECK_OK(mlx_engine_classify(engine, &pair, 1, false, &scores[0], NULL, NULL));
  CHECK_OK(mlx_engine_classify(engine, &told, 1, false, &scores[1], NULL, NULL));
  CHECK_OK(mlx_engine_classify(engine, &usual, 1, false, &scores[2], NULL, NULL));
  CHECK(fabsf(scores[0] - scores[1]) > 1e-4f);
  CHECK(!memcmp(&scores[0], &scores[2], sizeof *scores));
  CHECK_ERROR(mlx_engine_classify(engine, &single, 1, false, scores, NULL, NULL), MLX_UNSUPPORTED,
              "pairs of texts");
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_ERROR(mlx_session_embed(session, &id, 1, embedding, 32), MLX_UNSUPPORTED, "computes no embeddings");
  mlx_session_free(session);
  mlx_engine_close(engine);
  engine = open_classifier(CLASSIFIERS "bert");
  CHECK_ERROR(mlx_engine_classify(engine, &told, 1, false, scores, NULL, NULL), MLX_UNSUPPORTED,
              "takes no instruction");
  mlx_engine_close(engine);
}

// A directory of links to the files of the fixture qwen3, with another |file|.
static void link_decoder(const char *folder, const char *file, const char *text) {
  static const char *const files[] = {"config.json",
                                      "model.safetensors",
                                      "tokenizer.json",
                                      "tokenizer_config.json",
                                      "chat_template.jinja",
                                      "modules.json",
                                      "sentence_bert_config.json",
                                      "1_LogitScore/config.json"};
  char from[512], to[512];
  snprintf(to, sizeof to, "%s/1_LogitScore", folder);
  CHECK(!mkdir(to, 0700));
  for (size_t i = 0; i < sizeof files / sizeof *files; ++i) {
    snprintf(from, sizeof from, CLASSIFIERS "qwen3/%s", files[i]);
    snprintf(to, sizeof to, "%s/%s", folder, files[i]);
    if (strcmp(files[i], file))
      CHECK(!symlink(from, to));
    else
      CHECK_OK(mlx_write_file(to, text, strlen(text)));
  }
}

TEST(settings_of_a_decoder_that_would_change_scores_are_refused) {
  static const struct {
    const char *file, *text, *error;
  } cases[] = {
      {"1_LogitScore/config.json", "{\"true_token_id\":100000}", "LogitScore has the token 100000"},
      {"1_LogitScore/config.json", "{\"false_token_id\":1}", "true_token_id"},
      {"sentence_bert_config.json", "{\"processing_kwargs\":{\"chat_template\":{\"tools\":[]}}}",
       "other than add_generation_prompt"},
      {"modules.json", "[{\"path\":\"../x\",\"type\":\"LogitScore\"}]", "must be the name of a folder"},
      {"chat_template.jinja", "{{ messages[0].content }}", "leaves out messages of the roles"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    char folder[] = "/tmp/mlxcel-classifier-XXXXXX";
    const mlx_compile_options_t options = {.weights = MLX_WEIGHTS_AUTO};
    mlx_engine_options_t open;
    mlx_engine_t *engine = NULL;
    mlx_cache_t *cache;
    mlx_compiled_t compiled = {0};
    CHECK(mkdtemp(folder));
    link_decoder(folder, cases[i].file, cases[i].text);
    mlx_engine_options_initialize(&open);
    open.device = MLX_USE_CPU;
    CHECK_OK(mlx_cache_open(NULL, &cache));
    mlx_status_t status = mlx_compile(folder, &options, cache, &compiled);
    mlx_compiled_release(&compiled);
    mlx_cache_close(cache);
    if (!status) status = try_open_compiled(folder, &options, NULL, &open, &engine);
    if (!status) status = mlx_engine_check_reranker(engine);
    if (!status || !strstr(mlx_status_message(status), cases[i].error))
      CHECK_FAIL("case %zu: %s", i, status ? mlx_status_message(status) : "accepted");
    mlx_status_free(status);
    mlx_engine_close(engine);
    CHECK_OK(mlx_remove_tree(folder));
  }
}

// The encoder fixture with a tokenizer.
static void link_encoder(const char *folder) {
  static const char *const files[] = {"config.json", "model.safetensors", "modules.json", "1_Pooling"};
  char from[512], to[512];
  for (int i = 0; i < 4; ++i) {
    snprintf(from, sizeof from, ENCODER "/%s", files[i]);
    snprintf(to, sizeof to, "%s/%s", folder, files[i]);
    CHECK(!symlink(from, to));
  }
  snprintf(to, sizeof to, "%s/tokenizer.json", folder);
  CHECK(!symlink(TOKENIZER, to));
}

TEST(a_model_without_class_head_scores_no_pairs) {
  char folder[] = "/tmp/mlxcel-classifier-XXXXXX";
  const mlx_text_pair_t pair = {
      .first = "a query", .second = "a document", .first_length = 7, .second_length = 10};
  float score;
  CHECK(mkdtemp(folder));
  link_encoder(folder);
  mlx_engine_t *engine = open_classifier(folder);
  CHECK_INT(mlx_engine_info(engine).labels, 0);
  CHECK_ERROR(mlx_engine_classify(engine, &pair, 1, false, &score, NULL, NULL), MLX_UNSUPPORTED,
              "no class head");
  CHECK_ERROR(mlx_engine_check_reranker(engine), MLX_UNSUPPORTED, "no class head");
  mlx_engine_close(engine);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(settings_that_would_change_scores_are_refused) {
  static const char *const links[] = {"config.json", "model.safetensors", "tokenizer.json"};
  static const struct {
    const char *file, *text, *error;
  } cases[] = {
      {"config_sentence_transformers.json", "{\"activation_fn\":\"torch.nn.modules.activation.Tanh\"}",
       "only Sigmoid and Identity are supported"},
      {"config_sentence_transformers.json", "{\"default_prompt_name\":\"query\"}", "default_prompt_name"},
      {"tokenizer_config.json", "{\"truncation_side\":\"left\"}", "only right is supported"},
      {"modules.json", "[{\"path\":\"1_Weights\",\"type\":\"sentence_transformers.models.WordWeights\"}]",
       "names a module that is not supported"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    char folder[] = "/tmp/mlxcel-classifier-XXXXXX", from[512], to[512];
    mlx_model_t *model;
    CHECK(mkdtemp(folder));
    for (int k = 0; k < 3; ++k) {
      snprintf(from, sizeof from, CLASSIFIERS "bert/%s", links[k]);
      snprintf(to, sizeof to, "%s/%s", folder, links[k]);
      CHECK(!symlink(from, to));
    }
    snprintf(to, sizeof to, "%s/%s", folder, cases[i].file);
    CHECK_OK(mlx_write_file(to, cases[i].text, strlen(cases[i].text)));
    mlx_status_t status = mlx_model_open(folder, &model);
    if (!status || !strstr(mlx_status_message(status), cases[i].error))
      CHECK_FAIL("case %zu: %s", i, status ? mlx_status_message(status) : "accepted");
    mlx_status_free(status);
    CHECK_OK(mlx_remove_tree(folder));
  }
}

TEST_MAIN(CASE(every_classifier_matches_hf_alone_and_in_a_batch),
          CASE(every_gguf_reranker_matches_hf_alone_and_in_a_batch),
          CASE(a_classifier_embeds_nothing_and_can_be_interrupted),
          CASE(a_decoder_scores_pairs_by_its_template),
          CASE(settings_of_a_decoder_that_would_change_scores_are_refused),
          CASE(a_model_without_class_head_scores_no_pairs),
          CASE(settings_that_would_change_scores_are_refused))
