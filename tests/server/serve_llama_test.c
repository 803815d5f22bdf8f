// llama.cpp's endpoints of `mlxcel serve`: /completion, /infill and /slots; and gaps in completions of
// OpenAI's and Ollama's API. The model has the tokens of Qwen2.5-Coder for gaps.
#include <yyjson.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "tests/support/gap_model.h"
#include "tests/support/json_reply.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"

static served_t shared;

static void end_shared(void) {
  if (shared.pid) kill(shared.pid, SIGKILL);
  remove_gap_model();
}

static void start_shared(void) {
  if (shared.pid) return;
  strcpy(folder, "/tmp/mlxcel-llama-XXXXXX");
  CHECK(mkdtemp(folder) && !atexit(end_shared));
  make_gap_model("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>");
  SERVE(&shared, folder, "--device", "cpu", "--parallel", "2", "-c", "256");
}

static yyjson_doc *post(const char *path, const char *body, int status) {
  reply_t reply;
  start_shared();
  client_call(shared.port, "POST", path, "", body, &reply);
  return parse_reply(path, &reply, status);
}

static void check_same_text_at(yyjson_doc *a, const char *at_a, yyjson_doc *b, const char *at_b) {
  CHECK_TEXT(yyjson_get_str(at(a, at_a)), yyjson_get_str(at(b, at_b)));
}

// ----------------------------------------------------------------------------------------------------------
// /completion

#define NATIVE "{\"prompt\":\"hello world\",\"temperature\":0,\"n_predict\":8"

TEST(a_native_completion_has_the_text_of_openais) {
  yyjson_doc *expected =
      post("/v1/completions",
           "{\"prompt\":\"hello world\",\"temperature\":0,\"max_tokens\":8,\"return_token_ids\":true}", 200);
  yyjson_doc *doc =
      post("/completion", NATIVE ",\"return_tokens\":true,\"cache_prompt\":true,\"id_slot\":0}", 200);
  check_same_text_at(doc, "/content", expected, "/choices/0/text");
  CHECK(yyjson_equals(at(doc, "/tokens"), at(expected, "/choices/0/token_ids")));
  CHECK_INT(yyjson_get_sint(at(doc, "/tokens_predicted")), 8);
  CHECK_INT(yyjson_get_sint(at(doc, "/tokens_evaluated")),
            yyjson_get_sint(at(expected, "/usage/prompt_tokens")));
  CHECK_INT(yyjson_get_sint(at(doc, "/timings/predicted_n")), 8);
  CHECK_TEXT(yyjson_get_str(at(doc, "/stop_type")), "limit");
  CHECK_TEXT(yyjson_get_str(at(doc, "/prompt")), "hello world");
  CHECK(yyjson_is_true(at(doc, "/stop")) && yyjson_is_false(at(doc, "/truncated")));
  CHECK_INT(yyjson_get_sint(at(doc, "/generation_settings/n_predict")), 8);
  yyjson_doc_free(doc);
  doc = post("/completion", NATIVE "}", 200);
  CHECK_INT((int64_t)yyjson_arr_size(at(doc, "/tokens")), 0);  // unless they are asked for
  yyjson_doc_free(doc);
  yyjson_doc_free(expected);
}

TEST(a_native_stream_has_the_text_and_the_tokens_of_the_whole_answer) {
  reply_t reply;
  mlx_text_t text = {0};
  size_t tokens = 0, ends = 0;
  yyjson_doc *doc = post("/completion", NATIVE ",\"return_tokens\":true}", 200);
  client_call(shared.port, "POST", "/completion", "", NATIVE ",\"stream\":true}", &reply);
  CHECK_INT(reply.status, 200);
  for (const char *line = strstr(reply_text(&reply), "data: "); line; line = strstr(line + 6, "data: ")) {
    yyjson_doc *part = yyjson_read(line + 6, strcspn(line + 6, "\n"), 0);
    CHECK(part && !ends);
    mlx_text_puts(&text, yyjson_get_str(at(part, "/content")));
    tokens += yyjson_arr_size(at(part, "/tokens"));
    if (yyjson_is_true(at(part, "/stop"))) {
      ++ends;
      CHECK_INT(yyjson_get_sint(at(part, "/timings/predicted_n")), 8);
      CHECK_INT(yyjson_get_sint(at(part, "/tokens_predicted")), 8);
    } else {
      CHECK(yyjson_arr_size(at(part, "/tokens")) > 0);
    }
    yyjson_doc_free(part);
  }
  CHECK(ends == 1 && tokens == 8);
  CHECK_TEXT(text.data, yyjson_get_str(at(doc, "/content")));
  mlx_text_clear(&text);
  mlx_text_clear(&reply.body);
  yyjson_doc_free(doc);
}

TEST(native_options_are_read_by_their_names) {
  // Without temperature in the chain, the others do not matter at temperature 0.
  yyjson_doc *doc = post(
      "/completion",
      "{\"prompt\":{\"prompt_string\":\"a\"},\"n_predict\":2,\"samplers\":[\"top_k\",\"infill\"],\"top_k\":7,"
      "\"dry_multiplier\":1,\"min_p\":0.5,\"n_probs\":2,\"t_max_predict_ms\":500}",
      200);
  CHECK_INT(yyjson_get_sint(at(doc, "/generation_settings/top_k")), 7);
  CHECK(yyjson_get_num(at(doc, "/generation_settings/min_p")) == 0);
  CHECK(yyjson_get_num(at(doc, "/generation_settings/top_p")) == 1);
  CHECK(yyjson_get_num(at(doc, "/generation_settings/temperature")) == 1);
  CHECK(yyjson_get_num(at(doc, "/generation_settings/dry_multiplier")) == 0);
  CHECK_INT((int64_t)yyjson_arr_size(at(doc, "/completion_probabilities")), 2);
  CHECK_INT((int64_t)yyjson_arr_size(at(doc, "/completion_probabilities/0/top_logprobs")), 2);
  yyjson_doc_free(doc);
  doc = post("/completion",
             "{\"prompt\":\"a\",\"n_predict\":9,\"grammar\":\"root ::= \\\"yes\\\"\",\"response_fields\":["
             "\"content\",\"timings/predicted_n\",\"generation_settings/n_predict\",\"nothing\"]}",
             200);
  CHECK_INT((int64_t)yyjson_obj_size(yyjson_doc_get_root(doc)), 3);
  CHECK_TEXT(yyjson_get_str(yyjson_obj_get(yyjson_doc_get_root(doc), "content")), "yes");
  CHECK_INT(yyjson_get_sint(yyjson_obj_get(yyjson_doc_get_root(doc), "generation_settings/n_predict")), 9);
  yyjson_doc_free(doc);
  doc = post("/completion",
             "{\"prompt\":[\"a\",[1],{\"prompt_string\":\"a\"}],\"n_predict\":2,\"temperature\":0}", 200);
  CHECK_INT((int64_t)yyjson_arr_size(yyjson_doc_get_root(doc)), 3);
  check_same_text_at(doc, "/0/content", doc, "/2/content");
  yyjson_doc_free(doc);
  doc = post("/completion", "{\"n_predict\":1}", 400);
  CHECK_TEXT(yyjson_get_str(at(doc, "/error/param")), "prompt");
  yyjson_doc_free(doc);
}

TEST(slots_are_the_sequences_of_the_model) {
  reply_t reply;
  start_shared();
  client_call(shared.port, "GET", "/slots", "", NULL, &reply);
  CHECK_INT(reply.status, 200);
  yyjson_doc *doc = yyjson_read(reply_text(&reply), reply.body.length, 0);
  CHECK_INT((int64_t)yyjson_arr_size(yyjson_doc_get_root(doc)), 2);
  CHECK_INT(yyjson_get_sint(at(doc, "/0/n_ctx")), 256);
  CHECK(yyjson_is_false(at(doc, "/1/is_processing")));
  yyjson_doc_free(doc);
  mlx_text_clear(&reply.body);
}

// ----------------------------------------------------------------------------------------------------------
// Gaps

static void put_tokens(const char *text, bool special, mlx_text_t *out) {
  char body[256];
  yyjson_val *value;
  size_t index, max;
  snprintf(body, sizeof body, "{\"content\":\"%s\",\"add_special\":%s}", text, special ? "true" : "false");
  yyjson_doc *doc = post("/tokenize", body, 200);
  yyjson_arr_foreach(at(doc, "/tokens"), index, max, value) {
    mlx_text_printf(out, "%d,", (int)yyjson_get_sint(value));
  }
  yyjson_doc_free(doc);
}

// The ids of the prompt of a gap, as a JSON list.
static void expect_prompt(const char *prefix, const char *suffix, mlx_text_t *out) {
  mlx_text_puts(out, "[");
  put_tokens("", true, out);
  mlx_text_puts(out, "317,");
  put_tokens(prefix, false, out);
  mlx_text_puts(out, "318,");
  put_tokens(suffix, false, out);
  mlx_text_puts(out, "319]");
}

TEST(a_suffix_becomes_the_models_tokens_for_a_gap) {
  mlx_text_t ids = {0}, body = {0};
  expect_prompt("def f(a):", "return b", &ids);
  yyjson_doc *doc =
      post("/v1/completions",
           "{\"prompt\":\"def f(a):\",\"suffix\":\"return b\",\"temperature\":0,\"max_tokens\":6,"
           "\"return_token_ids\":true}",
           200);
  yyjson_doc *list = yyjson_read(ids.data, ids.length, 0);
  CHECK(yyjson_equals(at(doc, "/choices/0/prompt_token_ids"), yyjson_doc_get_root(list)));
  mlx_text_printf(&body, "{\"prompt\":%s,\"temperature\":0,\"max_tokens\":6}", ids.data);
  yyjson_doc *expected = post("/v1/completions", body.data, 200);
  check_same_text_at(doc, "/choices/0/text", expected, "/choices/0/text");
  yyjson_doc *ollama = post("/api/generate",
                            "{\"prompt\":\"def f(a):\",\"suffix\":\"return b\",\"stream\":false,"
                            "\"options\":{\"temperature\":0,\"num_predict\":6}}",
                            200);
  check_same_text_at(ollama, "/response", expected, "/choices/0/text");
  yyjson_doc_free(ollama);
  yyjson_doc_free(expected);
  yyjson_doc_free(list);
  yyjson_doc_free(doc);
  mlx_text_clear(&ids);
  mlx_text_clear(&body);
}

// As llama.vim sends it.
TEST(llama_vim_gets_the_fields_that_it_asks_for) {
  mlx_text_t ids = {0}, body = {0};
  expect_prompt("int a;", "}", &ids);
  mlx_text_printf(&body, "{\"prompt\":%s,\"temperature\":0,\"n_predict\":5}", ids.data);
  yyjson_doc *expected = post("/completion", body.data, 200);
  yyjson_doc *doc = post(
      "/infill",
      "{\"id_slot\":0,\"input_prefix\":\"int a\",\"input_suffix\":\"}\",\"input_extra\":[],\"prompt\":\";\","
      "\"n_predict\":5,\"stop\":[],\"n_indent\":2,\"top_k\":40,\"top_p\":0.9,\"temperature\":0,\"stream\":"
      "false,"
      "\"samplers\":[\"top_k\",\"top_p\",\"infill\",\"temperature\"],\"cache_prompt\":true,\"t_max_prompt_"
      "ms\":500,"
      "\"t_max_predict_ms\":1000,\"response_fields\":[\"content\",\"timings/prompt_n\",\"timings/prompt_ms\","
      "\"timings/predicted_n\",\"tokens_cached\",\"truncated\"]}",
      200);
  CHECK_INT((int64_t)yyjson_obj_size(yyjson_doc_get_root(doc)), 6);
  CHECK_TEXT(yyjson_get_str(yyjson_obj_get(yyjson_doc_get_root(doc), "content")),
             yyjson_get_str(at(expected, "/content")));
  yyjson_doc_free(doc);
  yyjson_doc_free(expected);
  mlx_text_clear(&ids);
  mlx_text_clear(&body);
}

TEST(a_gap_in_a_long_text_keeps_what_is_near) {
  mlx_text_t body = {0};
  mlx_text_puts(&body, "{\"input_extra\":[{\"filename\":\"a.c\",\"text\":\"");
  for (int i = 0; i < 300; ++i) mlx_text_puts(&body, "extra ");
  mlx_text_puts(&body, "\"}],\"input_prefix\":\"");
  for (int i = 0; i < 300; ++i) mlx_text_puts(&body, "before ");
  mlx_text_puts(&body, "\",\"input_suffix\":\"");
  for (int i = 0; i < 300; ++i) mlx_text_puts(&body, "after ");
  mlx_text_puts(&body, "\",\"prompt\":\"typed\",\"n_predict\":6}");
  yyjson_doc *doc = post("/infill", body.data, 200);
  const int64_t used = yyjson_get_sint(at(doc, "/tokens_evaluated"));
  CHECK(used > 240 && used <= 250);  // the context less the answer
  CHECK_INT(yyjson_get_sint(at(doc, "/tokens_predicted")), 6);
  yyjson_doc_free(doc);
  mlx_text_clear(&body);
}

TEST(wrong_gaps_are_refused_by_path) {
  static const struct {
    const char *path, *body, *part;
  } cases[] = {
      {"/infill", "{\"input_suffix\":\"a\"}", "input_prefix: expected a string"},
      {"/infill", "{\"input_prefix\":\"a\"}", "input_suffix: expected a string"},
      {"/infill", "{\"input_prefix\":\"a\",\"input_suffix\":\"b\",\"input_extra\":[{}]}",
       "input_extra[0].text"},
      {"/infill",
       "{\"input_prefix\":\"a\",\"input_suffix\":\"b\",\"input_extra\":[{\"filename\":1,\"text\":\"a\"}]}",
       "input_extra[0].filename: expected a string"},
      {"/v1/completions", "{\"prompt\":[1,2],\"suffix\":\"b\"}", "suffix: needs one prompt"},
      {"/v1/completions", "{\"prompt\":\"a\",\"suffix\":\"b\",\"echo\":true}", "echo: not possible"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    yyjson_doc *doc = post(cases[i].path, cases[i].body, 400);
    CHECK_CONTAINS(yyjson_get_str(at(doc, "/error/message")), cases[i].part);
    yyjson_doc_free(doc);
  }
}

TEST(a_model_without_tokens_for_gaps_says_so) {
  served_t s;
  reply_t reply;
  SERVE(&s, TINY, "--device", "cpu");
  client_call(s.port, "POST", "/v1/completions", "", "{\"prompt\":\"a\",\"suffix\":\"b\"}", &reply);
  CHECK_INT(reply.status, 400);
  CHECK_CONTAINS(reply_text(&reply), "suffix: the model cannot fill in the middle: it has no prefix token");
  mlx_text_clear(&reply.body);
  CHECK_INT(serve_stop(&s), 0);
}

TEST_MAIN(CASE(a_native_completion_has_the_text_of_openais),
          CASE(a_native_stream_has_the_text_and_the_tokens_of_the_whole_answer),
          CASE(native_options_are_read_by_their_names), CASE(slots_are_the_sequences_of_the_model),
          CASE(a_suffix_becomes_the_models_tokens_for_a_gap),
          CASE(llama_vim_gets_the_fields_that_it_asks_for), CASE(a_gap_in_a_long_text_keeps_what_is_near),
          CASE(wrong_gaps_are_refused_by_path), CASE(a_model_without_tokens_for_gaps_says_so))
