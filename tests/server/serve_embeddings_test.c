// `mlxcel serve` with an encoder beside a chat model: the embeddings of each API, long texts, and refusals.
#include <math.h>
#include <poll.h>
#include <yyjson.h>

#include "base/encoding.h"
#include "base/file.h"
#include "base/memory.h"
#include "tests/support/command.h"
#include "tests/support/folder.h"
#include "tests/support/golden.h"
#include "tests/support/json_reply.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define MINILM MLXCEL_MODELS "/all-MiniLM-L6-v2"
#define GOLDENS MLXCEL_SOURCE_DIR "/tests/goldens/all-minilm-l6-v2.json"
#define NAME "\"model\":\"all-MiniLM-L6-v2\""
#define SIZE 384
#define LIMIT 256  // tokens of a text, from sentence_bert_config.json

static served_t shared;

static void kill_shared(void) {
  if (shared.pid) kill(shared.pid, SIGKILL);
}

// -c is above the limit of the encoder, which keeps its own.
static void start_shared(void) {
  if (shared.pid) return;
  CHECK(!atexit(kill_shared));
  SERVE(&shared, TINY, MINILM, "--device", "cpu", "-c", "300", "--chat-template", "chatml");
}

static yyjson_doc *post(const char *path, const char *body, int status) {
  reply_t reply;
  start_shared();
  client_call(shared.port, "POST", path, "", body, &reply);
  return parse_reply(path, &reply, status);
}

static double norm_of(yyjson_val *vector) {
  double sum = 0;
  for (size_t i = 0; i < yyjson_arr_size(vector); ++i)
    sum += pow(yyjson_get_num(yyjson_arr_get(vector, i)), 2);
  return sqrt(sum);
}

// True if two lists have the same f32 numbers.
static bool equal(yyjson_val *a, yyjson_val *b) {
  const size_t size = yyjson_arr_size(a);
  if (!size || yyjson_arr_size(b) != size) return false;
  for (size_t i = 0; i < size; ++i) {
    if ((float)yyjson_get_num(yyjson_arr_get(a, i)) != (float)yyjson_get_num(yyjson_arr_get(b, i)))
      return false;
  }
  return true;
}

// A text of |words| words, each of which is one token.
static void put_long(mlx_text_t *out, int words) {
  for (int i = 0; i < words; ++i) mlx_text_puts(out, "word ");
}

// ----------------------------------------------------------------------------------------------------------
// Numbers

// What `mlxcel embed` computes for the golden texts, as base64.
static char **embed_goldens(size_t count, const char *dimensions, size_t size) {
  command_t run;
  char *bytes, **all;
  size_t length;
  if (dimensions)
    RUN(&run, "embed", MINILM, "-f", in_folder("t.jsonl"), "--format", "npy", "-o", in_folder("v.npy"),
        "--dimensions", dimensions);
  else
    RUN(&run, "embed", MINILM, "-f", in_folder("t.jsonl"), "--format", "npy", "-o", in_folder("v.npy"));
  command_done(&run);
  CHECK_OK(mlx_read_file(in_folder("v.npy"), 1 << 24, &bytes, &length));
  CHECK(length > count * size * sizeof(float));
  CHECK_OK(mlx_alloc(count, sizeof *all, &all));
  for (size_t i = 0; i < count; ++i) {
    mlx_text_t text = {0};
    mlx_base64_append(&text, bytes + length - (count - i) * size * sizeof(float), size * sizeof(float));
    all[i] = text.data;
  }
  mlx_free(bytes);
  return all;
}

static void free_all(char **all, size_t count) {
  for (size_t i = 0; i < count; ++i) mlx_free(all[i]);
  mlx_free(all);
}

// The golden texts as a JSON list, and as a file for the command.
static char *golden_texts(const golden_t *golden) {
  mlx_text_t lines = {0}, list = {0};
  size_t index, count;
  yyjson_val *result;
  yyjson_arr_foreach(golden->results, index, count, result) {
    char *text = yyjson_val_write(yyjson_obj_get(result, "text"), 0, NULL);
    mlx_text_printf(&lines, "{\"text\":%s}\n", text);
    mlx_text_printf(&list, "%s%s", index ? "," : "[", text);
    free(text);
  }
  mlx_text_puts(&list, "]");
  CHECK_OK(mlx_write_file(in_folder("t.jsonl"), lines.data, lines.length));
  mlx_text_clear(&lines);
  return list.data;
}

static void check_base64(yyjson_doc *doc, char *const *expected, size_t count) {
  CHECK_INT(yyjson_arr_size(at(doc, "/data")), count);
  for (size_t i = 0; i < count; ++i) {
    yyjson_val *item = yyjson_arr_get(at(doc, "/data"), i);
    CHECK_INT(yyjson_get_int(yyjson_obj_get(item, "index")), i);
    CHECK_TEXT(yyjson_get_str(yyjson_obj_get(item, "embedding")), expected[i]);
  }
}

TEST(an_encoder_answers_with_the_bits_of_mlxcel_embed) {
  golden_t golden = golden_open(GOLDENS);
  const size_t count = yyjson_arr_size(golden.results);
  mlx_text_t body = {0};
  int fds[6];
  strcpy(folder, "/tmp/mlxcel-serve-embed-XXXXXX");
  CHECK(mkdtemp(folder));
  char *texts = golden_texts(&golden), **whole = embed_goldens(count, NULL, SIZE),
       **cut = embed_goldens(count, "64", 64);
  start_shared();
  mlx_text_printf(
      &body, "{" NAME ",\"input\":%s,\"encoding_format\":\"base64\",\"truncate_prompt_tokens\":-1}", texts);
  for (int k = 0; k < 6; ++k) fds[k] = client_request(shared.port, "POST", "/v1/embeddings", "", body.data);
  for (int k = 0; k < 6; ++k) {  // requests share steps
    reply_t reply;
    client_finish(fds[k], &reply);
    yyjson_doc *doc = parse_reply("/v1/embeddings", &reply, 200);
    check_base64(doc, whole, count);
    yyjson_doc_free(doc);
  }
  mlx_text_clear(&body);
  mlx_text_printf(&body,
                  "{" NAME
                  ",\"input\":%s,\"encoding_format\":\"base64\",\"truncate_prompt_tokens\":-1,"
                  "\"dimensions\":64}",
                  texts);
  yyjson_doc *doc = post("/v1/embeddings", body.data, 200);
  check_base64(doc, cut, count);
  yyjson_doc_free(doc);
  mlx_text_clear(&body);
  free_all(whole, count);
  free_all(cut, count);
  mlx_free(texts);
  golden_close(&golden);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(token_ids_are_taken_as_they_are_and_usage_counts_them) {
  yyjson_doc *text = post("/v1/embeddings", "{" NAME ",\"input\":[\"a dog\",\"a dog runs\"]}", 200);
  yyjson_doc *ids = post("/tokenize", "{" NAME ",\"prompt\":\"a dog\"}", 200);
  char *list = yyjson_val_write(at(ids, "/tokens"), 0, NULL);
  mlx_text_t body = {0};
  mlx_text_printf(&body, "{" NAME ",\"input\":%s}", list);
  yyjson_doc *same = post("/v1/embeddings", body.data, 200);
  CHECK(equal(at(text, "/data/0/embedding"), at(same, "/data/0/embedding")));
  CHECK_INT(yyjson_get_int(at(text, "/usage/prompt_tokens")), 4 + 5);  // with [CLS] and [SEP]
  CHECK_INT(yyjson_get_int(at(text, "/usage/total_tokens")), 9);
  CHECK_INT(yyjson_get_int(at(same, "/usage/prompt_tokens")), 4);
  CHECK_TEXT(yyjson_get_str(at(text, "/model")), "all-MiniLM-L6-v2");
  free(list);
  mlx_text_clear(&body);
  yyjson_doc_free(text);
  yyjson_doc_free(ids);
  yyjson_doc_free(same);
}

TEST(dimensions_keep_the_first_numbers_with_norm_1) {
  yyjson_doc *doc = post("/v1/embeddings", "{" NAME ",\"input\":\"a dog\",\"dimensions\":32}", 200);
  CHECK_INT(yyjson_arr_size(at(doc, "/data/0/embedding")), 32);
  CHECK(fabs(norm_of(at(doc, "/data/0/embedding")) - 1) < 1e-6);
  yyjson_doc_free(doc);
  doc = post("/api/embed", "{" NAME ",\"input\":\"a dog\",\"dimensions\":32}", 200);
  CHECK(fabs(norm_of(at(doc, "/embeddings/0")) - 1) < 1e-6);
  yyjson_doc_free(doc);
  doc = post("/v1/embeddings", "{" NAME ",\"input\":\"a dog\",\"dimensions\":385}", 400);
  CHECK_TEXT(yyjson_get_str(at(doc, "/error/param")), "dimensions");
  yyjson_doc_free(doc);
}

// ----------------------------------------------------------------------------------------------------------
// Long texts

static char *long_body(const char *key, int words, const char *rest) {
  mlx_text_t body = {0};
  mlx_text_printf(&body, "{" NAME ",\"%s\":[\"short\",\"", key);
  put_long(&body, words);
  mlx_text_printf(&body, "\"]%s}", rest);
  return body.data;
}

static yyjson_doc *post_long(const char *path, const char *key, const char *rest, int status) {
  char *body = long_body(key, 2 * LIMIT, rest);
  yyjson_doc *doc = post(path, body, status);
  mlx_free(body);
  return doc;
}

TEST(a_long_text_is_an_error_of_openai_unless_the_request_has_it_cut) {
  yyjson_doc *doc = post_long("/v1/embeddings", "input", "", 400);
  CHECK_TEXT(yyjson_get_str(at(doc, "/error/code")), "context_length_exceeded");
  CHECK_TEXT(yyjson_get_str(at(doc, "/error/param")), "input[1]");
  CHECK_CONTAINS(yyjson_get_str(at(doc, "/error/message")), "\"truncate_prompt_tokens\": -1");
  yyjson_doc_free(doc);
  doc = post_long("/v1/embeddings", "input", ",\"truncate_prompt_tokens\":-1", 200);
  CHECK_INT(yyjson_get_int(at(doc, "/usage/prompt_tokens")), 3 + LIMIT);
  char *body = long_body("input", LIMIT - 2, "");  // exactly the limit, with [CLS] and [SEP]
  yyjson_doc *exact = post("/v1/embeddings", body, 200);
  CHECK(equal(at(doc, "/data/1/embedding"), at(exact, "/data/1/embedding")));
  mlx_free(body);
  yyjson_doc_free(doc);
  doc = post_long("/v1/embeddings", "input", ",\"truncate_prompt_tokens\":10", 200);
  body = long_body("input", 8, "");
  yyjson_doc *few = post("/v1/embeddings", body, 200);
  CHECK_INT(yyjson_get_int(at(doc, "/usage/prompt_tokens")), 3 + 10);
  CHECK(equal(at(doc, "/data/1/embedding"), at(few, "/data/1/embedding")));
  mlx_free(body);
  yyjson_doc_free(doc);
  yyjson_doc_free(few);
  yyjson_doc_free(exact);
  yyjson_doc_free(post("/v1/embeddings", "{" NAME ",\"input\":\"a\",\"truncate_prompt_tokens\":0}", 400));
}

TEST(ollama_and_tei_cut_long_texts_by_default) {
  yyjson_doc *doc = post_long("/api/embed", "input", "", 200);
  CHECK_INT(yyjson_get_int(at(doc, "/prompt_eval_count")), 3 + LIMIT);
  yyjson_doc *tei = post_long("/embed", "inputs", "", 200);
  CHECK(equal(at(tei, "/1"), at(doc, "/embeddings/1")));
  yyjson_doc_free(doc);
  yyjson_doc_free(tei);
  doc = post_long("/api/embed", "input", ",\"truncate\":false", 400);
  CHECK_CONTAINS(yyjson_get_str(at(doc, "/error")), "input[1]: ");
  yyjson_doc_free(doc);
  doc = post_long("/embed", "inputs", ",\"truncate\":false", 400);
  CHECK_CONTAINS(yyjson_get_str(at(doc, "/error")), "inputs[1]: ");
  CHECK_TEXT(yyjson_get_str(at(doc, "/error_type")), "Validation");
  yyjson_doc_free(doc);
}

// ----------------------------------------------------------------------------------------------------------
// Forms

TEST(ollama_answers_both_endpoints) {
  yyjson_doc *one = post("/api/embed", "{" NAME ",\"input\":\"a dog\",\"options\":{\"num_ctx\":64}}", 200),
             *old = post("/api/embeddings", "{" NAME ",\"prompt\":\"a dog\",\"keep_alive\":\"5m\"}", 200),
             *none = post("/api/embed", "{" NAME ",\"input\":[]}", 200),
             *empty = post("/api/embeddings", "{" NAME ",\"prompt\":\"\"}", 200),
             *show = post("/api/show", "{" NAME "}", 200);
  CHECK_INT(yyjson_get_int(at(one, "/prompt_eval_count")), 4);
  CHECK(equal(at(one, "/embeddings/0"), at(old, "/embedding")));
  CHECK_INT(yyjson_arr_size(at(none, "/embeddings")), 0);
  CHECK_INT(yyjson_arr_size(at(empty, "/embedding")), 0);
  CHECK_TEXT(yyjson_get_str(at(show, "/capabilities/0")), "embedding");
  yyjson_doc_free(one);
  yyjson_doc_free(old);
  yyjson_doc_free(none);
  yyjson_doc_free(empty);
  yyjson_doc_free(show);
}

TEST(ollama_tells_that_a_model_embeds_before_it_is_loaded) {
  served_t s;
  reply_t reply;
  SERVE(&s, TINY, MINILM, "--device", "cpu");
  client_call(s.port, "POST", "/api/show", "", "{" NAME "}", &reply);
  yyjson_doc *show = parse_reply("/api/show", &reply, 200);
  CHECK_TEXT(yyjson_get_str(at(show, "/capabilities/0")), "embedding");
  client_call(s.port, "POST", "/api/show", "", "{\"model\":\"tiny-llama\"}", &reply);
  yyjson_doc *chat = parse_reply("/api/show", &reply, 200);
  CHECK_TEXT(yyjson_get_str(at(chat, "/capabilities/0")), "completion");
  CHECK_INT(serve_stop(&s), 0);
  yyjson_doc_free(show);
  yyjson_doc_free(chat);
}

TEST(tei_answers_a_list_of_lists) {
  yyjson_doc *openai = post("/v1/embeddings", "{" NAME ",\"input\":\"a dog\"}", 200),
             *one = post("/embed", "{" NAME ",\"inputs\":\"a dog\",\"prompt_name\":null}", 200),
             *two = post("/", "{" NAME ",\"inputs\":[\"a cat\",\"a dog\"],\"truncate\":true}", 200),
             *raw = post("/embed", "{" NAME ",\"inputs\":\"a dog\",\"normalize\":false}", 200);
  CHECK(yyjson_is_arr(yyjson_doc_get_root(one)));
  CHECK_INT(yyjson_arr_size(yyjson_doc_get_root(two)), 2);
  CHECK(equal(at(one, "/0"), at(openai, "/data/0/embedding")));
  CHECK(equal(at(two, "/1"), at(one, "/0")));
  const double norm = norm_of(at(raw, "/0")), first = yyjson_get_num(at(raw, "/0/0"));
  CHECK(fabs(norm - 1) > 0.1);
  CHECK(fabs(first / norm - yyjson_get_num(at(one, "/0/0"))) < 1e-6);
  yyjson_doc_free(openai);
  yyjson_doc_free(one);
  yyjson_doc_free(two);
  yyjson_doc_free(raw);
}

static yyjson_doc *post_to(const served_t *s, const char *body, int status) {
  reply_t reply;
  client_call(s->port, "POST", "/v1/embeddings", "", body, &reply);
  return parse_reply("/v1/embeddings", &reply, status);
}

static void check_prompt(const served_t *s, const char *body, const char *same) {
  char plain[128];
  snprintf(plain, sizeof plain, "{\"input\":\"%s\",\"prompt_name\":\"\"}", same);
  yyjson_doc *a = post_to(s, body, 200), *b = post_to(s, plain, 200);
  if (!equal(at(a, "/data/0/embedding"), at(b, "/data/0/embedding")))
    CHECK_FAIL("%s: not the embedding of '%s'", body, same);
  yyjson_doc_free(a);
  yyjson_doc_free(b);
}

TEST(prompts_have_the_names_of_the_model) {
  static const char *const files[] = {"config.json", "model.safetensors", "modules.json", "1_Pooling",
                                      "tokenizer.json"};
  static const char settings[] =
      "{\"prompts\": {\"passage\": \"passage: \", \"STS\": \"compare: \"}, \"default_prompt_name\": \"STS\"}";
  char from[512];
  served_t s;
  strcpy(folder, "/tmp/mlxcel-prompts-XXXXXX");
  CHECK(mkdtemp(folder));
  for (size_t i = 0; i < sizeof files / sizeof *files; ++i) {
    snprintf(from, sizeof from, MINILM "/%s", files[i]);
    CHECK(!symlink(from, in_folder(files[i])));
  }
  CHECK_OK(mlx_write_file(in_folder("config_sentence_transformers.json"), settings, strlen(settings)));
  SERVE(&s, folder, "--device", "cpu");
  check_prompt(&s, "{\"input\":\"text\"}", "compare: text");
  check_prompt(&s, "{\"input\":\"text\",\"prompt_name\":\"STS\"}", "compare: text");
  check_prompt(&s, "{\"input\":\"text\",\"prompt_name\":\"document\"}", "passage: text");
  check_prompt(&s, "{\"input\":\"text\",\"prompt_name\":\"passage\"}", "passage: text");
  check_prompt(&s, "{\"input\":\"text\",\"prompt_name\":\"query\"}", "text");  // it has none
  yyjson_doc *error = post_to(&s, "{\"input\":\"text\",\"prompt_name\":\"sts\"}", 400);
  CHECK_CONTAINS(yyjson_get_str(at(error, "/error/message")), "prompt_name: the model has no prompt 'sts'");
  yyjson_doc_free(error);
  yyjson_doc_free(
      post_to(&s, "{\"input\":[101,2000,102]}", 200));  // ids take no prompt, also not the default
  error = post_to(&s, "{\"input\":[101,2000,102],\"prompt_name\":\"STS\"}", 400);
  CHECK_CONTAINS(yyjson_get_str(at(error, "/error/message")), "token ids take no prompt");
  yyjson_doc_free(error);
  CHECK_INT(serve_stop(&s), 0);
  CHECK_OK(mlx_remove_tree(folder));
}

// Waits until texts wait for the encoder.
static void wait_for_texts(void) {
  static const char name[] = "\nmlxcel_requests_waiting{model_name=\"all-MiniLM-L6-v2\",engine=\"0\"} ";
  bool waiting = false;
  for (int i = 0; i < 60000 && !waiting; ++i) {
    reply_t reply;
    client_call(shared.port, "GET", "/metrics", "", NULL, &reply);
    const char *found = strstr(reply_text(&reply), name);
    waiting = found && atof(found + strlen(name)) > 0;
    mlx_text_clear(&reply.body);
    if (!waiting) mlx_sleep_ms(1);
  }
  CHECK(waiting);
}

// The short request comes when the texts of the long one wait, and its answer comes first. The chat model is
// the server's first one.
TEST(a_short_request_does_not_wait_for_a_long_one) {
  mlx_text_t body = {0};
  reply_t reply;
  start_shared();
  yyjson_doc_free(post("/embed", "{" NAME ",\"inputs\":\"a dog\"}", 200));  // the model is loaded
  mlx_text_puts(&body, "{" NAME ",\"inputs\":[\"a\"");
  for (int i = 0; i < 400; ++i) {
    mlx_text_puts(&body, ",\"");
    put_long(&body, 60);
    mlx_text_puts(&body, "\"");
  }
  mlx_text_puts(&body, "]}");
  const int fd = client_request(shared.port, "POST", "/embed", "", body.data);
  struct pollfd answer = {.fd = fd, .events = POLLIN};
  wait_for_texts();
  yyjson_doc_free(post("/embed", "{" NAME ",\"inputs\":\"a dog\"}", 200));
  CHECK_INT(poll(&answer, 1, 0), 0);
  client_finish(fd, &reply);
  yyjson_doc_free(parse_reply("/embed", &reply, 200));
  mlx_text_clear(&body);
}

TEST(a_request_without_a_model_goes_to_the_encoder) {
  yyjson_doc *tei = post("/embed", "{\"inputs\":\"a dog\"}", 200),
             *openai = post("/v1/embeddings", "{\"input\":\"a dog\",\"model\":\"\"}", 200);
  reply_t reply;
  client_call(shared.port, "GET", "/info", "", NULL, &reply);
  yyjson_doc *info = parse_reply("/info", &reply, 200);
  CHECK_TEXT(yyjson_get_str(at(info, "/model_id")), "all-MiniLM-L6-v2");
  CHECK_TEXT(yyjson_get_str(at(info, "/model_type/embedding/pooling")), "mean");
  CHECK_INT(yyjson_get_int(at(info, "/max_input_length")), LIMIT);
  yyjson_doc_free(info);
  CHECK_INT(yyjson_arr_size(at(tei, "/0")), SIZE);
  CHECK(equal(at(tei, "/0"), at(openai, "/data/0/embedding")));
  CHECK_TEXT(yyjson_get_str(at(openai, "/model")), "all-MiniLM-L6-v2");
  yyjson_doc_free(tei);
  yyjson_doc_free(openai);
}

TEST(an_encoder_refuses_to_generate_in_the_form_of_each_api) {
  static const struct {
    const char *path, *body, *message;
  } calls[] = {
      {"/v1/chat/completions", "{" NAME ",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
       "/error/message"},
      {"/v1/chat/completions",
       "{" NAME ",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", "/error/message"},
      {"/v1/completions", "{" NAME ",\"prompt\":\"x\"}", "/error/message"},
      {"/v1/responses", "{" NAME ",\"input\":\"x\"}", "/error/message"},
      {"/v1/messages", "{" NAME ",\"max_tokens\":4,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
       "/error/message"},
      {"/api/chat", "{" NAME ",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", "/error"},
      {"/api/generate", "{" NAME ",\"prompt\":\"x\"}", "/error"},
  };
  for (size_t i = 0; i < sizeof calls / sizeof *calls; ++i) {
    yyjson_doc *doc = post(calls[i].path, calls[i].body, 400);
    CHECK_CONTAINS(yyjson_get_str(at(doc, calls[i].message)), "the model is an encoder");
    yyjson_doc_free(doc);
  }
}

TEST(a_chat_model_answers_beside_the_encoder) {
  reply_t reply;
  start_shared();
  const int fd = client_request(shared.port, "POST", "/v1/chat/completions", "",
                                "{\"model\":\"tiny-llama\",\"max_tokens\":60,\"temperature\":0,"
                                "\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}");
  yyjson_doc *embedding = post("/v1/embeddings", "{" NAME ",\"input\":\"a dog\"}", 200);
  client_finish(fd, &reply);
  yyjson_doc *chat = parse_reply("/v1/chat/completions", &reply, 200);
  CHECK_TEXT(yyjson_get_str(at(chat, "/model")), "tiny-llama");
  CHECK_INT(yyjson_arr_size(at(embedding, "/data/0/embedding")), SIZE);
  yyjson_doc_free(embedding);
  yyjson_doc_free(chat);
  CHECK_INT(serve_stop(&shared), 0);
  shared.pid = 0;
}

TEST_MAIN(CASE(an_encoder_answers_with_the_bits_of_mlxcel_embed),
          CASE(token_ids_are_taken_as_they_are_and_usage_counts_them),
          CASE(dimensions_keep_the_first_numbers_with_norm_1),
          CASE(a_long_text_is_an_error_of_openai_unless_the_request_has_it_cut),
          CASE(ollama_and_tei_cut_long_texts_by_default), CASE(ollama_answers_both_endpoints),
          CASE(ollama_tells_that_a_model_embeds_before_it_is_loaded), CASE(tei_answers_a_list_of_lists),
          CASE(prompts_have_the_names_of_the_model), CASE(a_short_request_does_not_wait_for_a_long_one),
          CASE(a_request_without_a_model_goes_to_the_encoder),
          CASE(an_encoder_refuses_to_generate_in_the_form_of_each_api),
          CASE(a_chat_model_answers_beside_the_encoder))
