// /v1/rerank and /v1/score of `mlxcel serve`: the scores of sentence-transformers, and what is refused.
#include <math.h>
#include <yyjson.h>

#include "base/memory.h"
#include "tests/support/golden.h"
#include "tests/support/json_reply.h"

#define BERT MLXCEL_SOURCE_DIR "/tests/fixtures/classifiers/bert"
#define QWEN3 MLXCEL_SOURCE_DIR "/tests/fixtures/classifiers/qwen3"
#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define PAIRS 9  // of the golden, which have the same query

static served_t shared;

static void kill_shared(void) {
  if (shared.pid) kill(shared.pid, SIGKILL);
}

static void call(const char *path, const char *body, int status, reply_t *reply) {
  if (!shared.pid) {
    CHECK(!atexit(kill_shared));
    SERVE(&shared, BERT, "--device", "cpu");
  }
  client_call(shared.port, "POST", path, "", body, reply);
  if (reply->status != status)
    CHECK_FAIL("%s: status %d, expected %d: %s", path, reply->status, status, reply_text(reply));
}

static yyjson_doc *post(const char *path, const char *body) {
  reply_t reply;
  call(path, body, 200, &reply);
  return parse_reply(path, &reply, 200);
}

// The documents of the golden under |key|, after |start| and the query.
static char *golden_body(const golden_t *golden, const char *first_key, const char *key, const char *rest) {
  yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
  yyjson_mut_val *root = yyjson_mut_obj(doc), *documents = yyjson_mut_arr(doc);
  for (size_t i = 0; i < PAIRS; ++i) {
    const char *text = yyjson_get_str(yyjson_obj_get(yyjson_arr_get(golden->results, i), "second"));
    if (i % 2 && rest) {
      yyjson_mut_val *object = yyjson_mut_obj(doc);
      yyjson_mut_obj_add_str(doc, object, "text", text);
      yyjson_mut_arr_append(documents, object);
    } else {
      yyjson_mut_arr_add_str(doc, documents, text);
    }
  }
  yyjson_mut_doc_set_root(doc, root);
  yyjson_mut_obj_add_str(doc, root, first_key,
                         yyjson_get_str(yyjson_obj_get(yyjson_arr_get(golden->results, 0), "first")));
  yyjson_mut_obj_add_val(doc, root, key, documents);
  if (rest) yyjson_mut_obj_add_bool(doc, root, rest, true);
  char *body = yyjson_mut_write(doc, 0, NULL);
  yyjson_mut_doc_free(doc);
  return body;
}

static double expected_score(const golden_t *golden, size_t index) {
  return yyjson_get_num(
      yyjson_arr_get_first(yyjson_obj_get(yyjson_arr_get(golden->results, index), "scores")));
}

TEST(documents_are_ranked_as_by_sentence_transformers) {
  static const char *const paths[] = {"/v1/rerank", "/rerank", "/v2/rerank"};
  golden_t golden = golden_open(BERT "/golden.json");
  char *body = golden_body(&golden, "query", "documents", "return_documents");
  for (int i = 0; i < 3; ++i) {
    yyjson_doc *doc = post(paths[i], body);
    size_t nth, count, tokens = 0;
    double last = INFINITY;
    yyjson_val *result, *results = at(doc, "/results");
    CHECK_INT(yyjson_arr_size(results), PAIRS);
    yyjson_arr_foreach(results, nth, count, result) {
      const size_t index = (size_t)yyjson_get_uint(yyjson_obj_get(result, "index"));
      const double score = yyjson_get_num(yyjson_obj_get(result, "relevance_score"));
      yyjson_val *pair = yyjson_arr_get(golden.results, index);
      CHECK(index < PAIRS && score <= last && fabs(score - expected_score(&golden, index)) < 1e-5);
      CHECK_TEXT(yyjson_get_str(yyjson_ptr_get(result, "/document/text")),
                 yyjson_get_str(yyjson_obj_get(pair, "second")));
      tokens += yyjson_arr_size(yyjson_obj_get(pair, "ids"));
      last = score;
    }
    CHECK_INT(yyjson_get_uint(at(doc, "/usage/total_tokens")), tokens);
    CHECK_TEXT(yyjson_get_str(at(doc, "/model")), "bert");
    yyjson_doc_free(doc);
  }
  free(body);
  golden_close(&golden);
}

TEST(scores_are_in_the_order_of_the_request) {
  golden_t golden = golden_open(BERT "/golden.json");
  char *body = golden_body(&golden, "text_1", "text_2", NULL);
  yyjson_doc *doc = post("/v1/score", body);
  size_t nth, count;
  yyjson_val *result;
  CHECK_INT(yyjson_arr_size(at(doc, "/data")), PAIRS);
  yyjson_arr_foreach(at(doc, "/data"), nth, count, result) {
    CHECK_INT(yyjson_get_uint(yyjson_obj_get(result, "index")), nth);
    CHECK(fabs(yyjson_get_num(yyjson_obj_get(result, "score")) - expected_score(&golden, nth)) < 1e-5);
  }
  yyjson_doc_free(doc);
  free(body);
  golden_close(&golden);
  // Two lists are pairs; one text is paired with one text.
  doc = post("/score", "{\"text_1\":[\"a\",\"many people\"],\"text_2\":[\"b\",\"a river\"]}");
  yyjson_doc *one = post("/v1/score", "{\"text_1\":\"many people\",\"text_2\":\"a river\"}");
  CHECK_INT(yyjson_arr_size(at(doc, "/data")), 2);
  CHECK_INT(yyjson_arr_size(at(one, "/data")), 1);
  CHECK(yyjson_get_num(at(doc, "/data/1/score")) == yyjson_get_num(at(one, "/data/0/score")));
  yyjson_doc_free(doc);
  yyjson_doc_free(one);
}

TEST(texts_have_the_form_of_text_embeddings_inference) {
  static const char body[] = "{\"query\":\"people\",\"texts\":[\"a river\",\"many people\"]%s}";
  char text[256], path[32];
  snprintf(text, sizeof text, body, ",\"return_text\":true,\"truncate\":true");
  yyjson_doc *doc = post("/rerank", text);
  snprintf(text, sizeof text, body, ",\"raw_scores\":true");
  yyjson_doc *raw = post("/rerank", text),
             *other = post("/rerank", "{\"query\":\"people\",\"documents\":[\"a river\",\"many people\"]}");
  CHECK_INT(yyjson_arr_size(yyjson_doc_get_root(doc)), 2);
  snprintf(text, sizeof text, body, ",\"top_n\":1");
  yyjson_doc *first = post("/rerank", text);
  CHECK_INT(yyjson_arr_size(yyjson_doc_get_root(first)), 1);
  CHECK_INT(yyjson_get_uint(at(first, "/0/index")), yyjson_get_uint(at(doc, "/0/index")));
  yyjson_doc_free(first);
  for (int i = 0; i < 2; ++i) {
    yyjson_val *one = yyjson_arr_get(yyjson_doc_get_root(doc), (size_t)i),
               *before = yyjson_arr_get(yyjson_doc_get_root(raw), (size_t)i);
    const double score = yyjson_get_num(yyjson_obj_get(one, "score"));
    snprintf(path, sizeof path, "/results/%d/relevance_score", i);
    CHECK(score == yyjson_get_num(at(other, path)));
    CHECK(fabs(1 / (1 + exp(-yyjson_get_num(yyjson_obj_get(before, "score")))) - score) < 1e-6);
    CHECK_TEXT(yyjson_get_str(yyjson_obj_get(one, "text")),
               yyjson_get_uint(yyjson_obj_get(one, "index")) ? "many people" : "a river");
    CHECK(!yyjson_obj_get(before, "text"));
  }
  yyjson_doc_free(doc);
  yyjson_doc_free(raw);
  yyjson_doc_free(other);
}

TEST(top_n_keeps_the_best) {
  static const char documents[] =
      "{\"query\":\"people\",\"documents\":[\"a river\",\"many people\",\"b\"]%s}";
  char body[256];
  snprintf(body, sizeof body, documents, "");
  yyjson_doc *all = post("/v1/rerank", body);
  snprintf(body, sizeof body, documents, ",\"top_n\":2");
  yyjson_doc *best = post("/v1/rerank", body);
  CHECK_INT(yyjson_arr_size(at(all, "/results")), 3);
  CHECK_INT(yyjson_arr_size(at(best, "/results")), 2);
  CHECK(!yyjson_doc_ptr_get(best, "/results/0/document"));
  for (int i = 0; i < 2; ++i) {
    snprintf(body, sizeof body, "/results/%d/index", i);
    CHECK_INT(yyjson_get_uint(at(best, body)), yyjson_get_uint(at(all, body)));
  }
  yyjson_doc_free(all);
  yyjson_doc_free(best);
}

TEST(bad_requests_are_refused_by_path) {
  static const struct {
    const char *path, *body, *error;
  } cases[] = {
      {"/v1/rerank", "{\"documents\":[\"a\"]}", "query: expected a text"},
      {"/v1/rerank", "{\"query\":[\"a\"],\"documents\":[\"a\"]}", "query: expected a text"},
      {"/v1/rerank", "{\"query\":\"a\"}", "documents: expected a list of texts"},
      {"/v1/rerank", "{\"query\":\"a\",\"documents\":[]}", "documents: expected 1 to 2048 texts, not 0"},
      {"/v1/rerank", "{\"query\":\"a\",\"documents\":[\"b\",{\"txt\":\"c\"}]}",
       "documents[1]: expected a text"},
      {"/v1/rerank", "{\"query\":\"a\",\"documents\":[\"b\"],\"top_n\":0}", "top_n"},
      {"/v1/rerank", "{\"query\":\"a\",\"documents\":[\"b\"],\"rank_fields\":[\"x\"]}", "rank_fields"},
      {"/rerank", "{\"query\":\"a\",\"texts\":[\"b\"],\"documents\":[\"b\"]}", "documents"},
      {"/v1/score", "{\"text_1\":[\"a\",\"b\"],\"text_2\":[\"c\"]}",
       "text_2: expected 2 texts, as many as 'text_1' has, not 1"},
      {"/v1/score", "{\"text_1\":\"a\"}", "text_2: expected a text"},
      {"/v1/embeddings", "{\"input\":\"a\"}", "it scores pairs of texts and computes no embeddings"},
      {"/v1/completions", "{\"prompt\":\"a\"}", "the model is a classifier (a cross-encoder)"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    reply_t reply;
    call(cases[i].path, cases[i].body, 400, &reply);
    CHECK_CONTAINS(reply_text(&reply), cases[i].error);
    mlx_text_clear(&reply.body);
  }
}

TEST(a_model_without_class_head_is_refused) {
  served_t s;
  reply_t reply;
  SERVE(&s, TINY, "--device", "cpu");
  client_call(s.port, "POST", "/v1/rerank", "", "{\"query\":\"a\",\"documents\":[\"b\"]}", &reply);
  CHECK_INT(reply.status, 400);
  CHECK_CONTAINS(reply_text(&reply), "the model has no class head");
  mlx_text_clear(&reply.body);
  CHECK_INT(serve_stop(&s), 0);
}

// Scores the golden's pairs in one request, and one of them with an instruction.
TEST(a_decoder_scores_pairs_by_its_template) {
  served_t s;
  reply_t reply;
  golden_t golden = golden_open(QWEN3 "/golden.json");
  char *body = golden_body(&golden, "text_1", "text_2", NULL);
  SERVE(&s, QWEN3, "--device", "cpu");
  client_call(s.port, "POST", "/v1/score", "", body, &reply);
  yyjson_doc *doc = parse_reply("/v1/score", &reply, 200);
  CHECK_INT(yyjson_arr_size(at(doc, "/data")), PAIRS);
  for (size_t i = 0; i < PAIRS; ++i) {
    const double score = yyjson_get_num(yyjson_obj_get(yyjson_arr_get(at(doc, "/data"), i), "score"));
    CHECK(fabs(score - expected_score(&golden, i)) < 1e-5);
  }
  yyjson_doc_free(doc);
  free(body);
  client_call(s.port, "POST", "/v1/rerank", "",
              "{\"query\":\"a\",\"documents\":[\"b\"],\"instruction\":\"retrieve passages\"}", &reply);
  doc = parse_reply("/v1/rerank", &reply, 200);
  client_call(s.port, "POST", "/v1/rerank", "",
              "{\"query\":\"a\",\"documents\":[\"b\"],\"instruction\":\"find the opposite\"}", &reply);
  yyjson_doc *other = parse_reply("/v1/rerank", &reply, 200);
  CHECK(fabs(yyjson_get_num(at(doc, "/results/0/relevance_score")) -
             yyjson_get_num(at(other, "/results/0/relevance_score"))) > 1e-4);
  yyjson_doc_free(doc);
  yyjson_doc_free(other);
  client_call(s.port, "POST", "/v1/embeddings", "", "{\"input\":\"a\"}", &reply);
  CHECK_INT(reply.status, 400);
  CHECK_CONTAINS(reply_text(&reply), "computes no embeddings");
  mlx_text_clear(&reply.body);
  golden_close(&golden);
  CHECK_INT(serve_stop(&s), 0);
}

TEST_MAIN(CASE(documents_are_ranked_as_by_sentence_transformers),
          CASE(scores_are_in_the_order_of_the_request),
          CASE(texts_have_the_form_of_text_embeddings_inference), CASE(top_n_keeps_the_best),
          CASE(bad_requests_are_refused_by_path), CASE(a_decoder_scores_pairs_by_its_template),
          CASE(a_model_without_class_head_is_refused))
