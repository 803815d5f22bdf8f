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
  SERVE(&shared, folder, "--device", "cpu", "--parallel", "2", "-c", "256", "--chat-template", "chatml");
}

static yyjson_doc *post(const char *path, const char *body, int status) {
  reply_t reply;
  start_shared();
  client_call(shared.port, "POST", path, "", body, &reply);
  return parse_reply(path, &reply, status);
}

static double llama_metric(const char *name) {
  reply_t reply;
  char needle[96];
  client_call(shared.port, "GET", "/metrics", "", NULL, &reply);
  snprintf(needle, sizeof needle, "\nllamacpp:%s ", name);
  const char *found = strstr(reply_text(&reply), needle);
  if (!found) CHECK_FAIL("there is no metric %s", name);
  const double value = strtod(found + strlen(needle), NULL);
  mlx_text_clear(&reply.body);
  return value;
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

// The probabilities are those of the three tokens that top-k leaves, and the tokens do not change.
TEST(probabilities_after_sampling_add_up_to_1) {
#define SAMPLED                                                                                         \
  "{\"prompt\":\"hello world\",\"n_predict\":6,\"seed\":7,\"temperature\":1.5,\"top_k\":3,\"top_p\":1," \
  "\"min_p\":0,\"n_probs\":5"
  yyjson_doc *plain = post("/completion", SAMPLED "}", 200);
  yyjson_doc *doc = post("/completion", SAMPLED ",\"post_sampling_probs\":true}", 200);
  yyjson_val *tokens = at(doc, "/completion_probabilities"), *token, *other;
  size_t index, max, k, count;
  check_same_text_at(doc, "/content", plain, "/content");
  CHECK(yyjson_is_true(at(doc, "/generation_settings/post_sampling_probs")));
  CHECK_INT((int64_t)yyjson_arr_size(tokens), 6);
  yyjson_arr_foreach(tokens, index, max, token) {
    const double prob = yyjson_get_num(yyjson_obj_get(token, "prob"));
    double sum = 0, found = -1;
    CHECK_INT((int64_t)yyjson_arr_size(yyjson_obj_get(token, "top_probs")), 3);
    yyjson_arr_foreach(yyjson_obj_get(token, "top_probs"), k, count, other) {
      const double one = yyjson_get_num(yyjson_obj_get(other, "prob"));
      sum += one;
      if (yyjson_equals(yyjson_obj_get(other, "id"), yyjson_obj_get(token, "id"))) found = one;
    }
    CHECK(prob > 0 && prob == found && sum > 1 - 1e-6 && sum < 1 + 1e-6);
  }
  yyjson_doc_free(doc);
  yyjson_doc_free(plain);
  doc = post("/completion", NATIVE ",\"n_probs\":1,\"post_sampling_probs\":true}", 200);
  CHECK(yyjson_get_num(at(doc, "/completion_probabilities/0/prob")) == 1);
  CHECK(!yyjson_doc_ptr_get(doc, "/completion_probabilities/0/logprob"));
  yyjson_doc_free(doc);
  reply_t reply;
  client_call(shared.port, "POST", "/completion", "",
              NATIVE ",\"n_probs\":1,\"post_sampling_probs\":true,\"stream\":true}", &reply);
  CHECK_CONTAINS(reply_text(&reply), "\"top_probs\":[{");
  mlx_text_clear(&reply.body);
}

// Prompts with the same beginning share pages. The counts also have those of the tests before.
TEST(metrics_have_the_names_of_llama_server) {
  const char *const counters[] = {"prompt_tokens_total", "prompt_tokens_cached_total",
                                  "tokens_predicted_total", "n_decode_total", "n_tokens_max"};
  double before[5], after[5];
  start_shared();
  for (int i = 0; i < 5; ++i) before[i] = llama_metric(counters[i]);
  yyjson_doc *doc = post("/completion", NATIVE "}", 200), *again = post("/completion", NATIVE "}", 200);
  const int64_t read = yyjson_get_sint(at(doc, "/timings/prompt_n")) +
                       yyjson_get_sint(at(again, "/timings/prompt_n")),
                cached = yyjson_get_sint(at(doc, "/timings/cache_n")) +
                         yyjson_get_sint(at(again, "/timings/cache_n"));
  for (int i = 0; i < 5; ++i) after[i] = llama_metric(counters[i]);
  CHECK(cached > 0);
  CHECK_INT((int64_t)(after[0] - before[0]), read);
  CHECK_INT((int64_t)(after[1] - before[1]), cached);
  CHECK_INT((int64_t)(after[2] - before[2]), 16);
  CHECK(after[3] > before[3] && after[4] >= 8);
  CHECK(llama_metric("predicted_tokens_seconds") > 0 && llama_metric("prompt_tokens_seconds") > 0);
  CHECK(llama_metric("n_busy_slots_per_decode") >= 1);
  CHECK(llama_metric("requests_processing") == 0 && llama_metric("requests_deferred") == 0);
  yyjson_doc_free(again);
  yyjson_doc_free(doc);
}

TEST(texts_and_ids_in_turn_are_one_prompt) {
  // The first text gets the start token, a later one does not.
  yyjson_doc *first = post("/tokenize", "{\"content\":\"ab\",\"add_special\":true}", 200);
  yyjson_doc *later = post("/tokenize", "{\"content\":\"cd\"}", 200);
  mlx_text_t ids = {0};
  yyjson_val *value;
  size_t index, max;
  mlx_text_puts(&ids, "[");
  yyjson_arr_foreach(at(first, "/tokens"), index, max, value) {
    mlx_text_printf(&ids, "%d,", (int)yyjson_get_sint(value));
  }
  mlx_text_puts(&ids, "11,12");
  yyjson_arr_foreach(at(later, "/tokens"), index, max, value) {
    mlx_text_printf(&ids, ",%d", (int)yyjson_get_sint(value));
  }
  mlx_text_puts(&ids, ",13]");
  yyjson_doc *expected = yyjson_read(ids.data, ids.length, 0);
  yyjson_doc *doc =
      post("/v1/completions",
           "{\"prompt\":[\"ab\",11,12,\"cd\",13],\"max_tokens\":1,\"return_token_ids\":true}", 200);
  CHECK(yyjson_equals(at(doc, "/choices/0/prompt_token_ids"), yyjson_doc_get_root(expected)));
  yyjson_doc_free(doc);
  doc = post("/completion", "{\"prompt\":[[\"ab\",11,12,\"cd\",13],\"x\"],\"n_predict\":1}", 200);
  CHECK_INT((int64_t)yyjson_arr_size(yyjson_doc_get_root(doc)), 2);
  CHECK_INT(yyjson_get_sint(at(doc, "/0/tokens_evaluated")),
            (int64_t)yyjson_arr_size(yyjson_doc_get_root(expected)));
  yyjson_doc_free(doc);
  doc = post("/completion", "{\"prompt\":[\"ab\",11,-1]}", 400);
  CHECK_TEXT(yyjson_get_str(at(doc, "/error/param")), "prompt[2]");
  yyjson_doc_free(doc);
  doc = post("/completion", "{\"prompt\":[\"ab\",99999999]}", 400);
  CHECK_CONTAINS(yyjson_get_str(at(doc, "/error/message")), "token id 99999999");
  yyjson_doc_free(doc);
  yyjson_doc_free(expected);
  yyjson_doc_free(later);
  yyjson_doc_free(first);
  mlx_text_clear(&ids);
}

// llama.cpp forbids the end-of-text tokens, and says so in the settings.
TEST(ignore_eos_is_a_bias_of_the_settings) {
  yyjson_doc *doc = post("/completion", NATIVE ",\"logit_bias\":[[5,1.5],[6,false]]}", 200);
  CHECK_INT((int64_t)yyjson_arr_size(at(doc, "/generation_settings/logit_bias")), 2);
  CHECK(yyjson_get_num(at(doc, "/generation_settings/logit_bias/0/bias")) == 1.5);
  CHECK(yyjson_is_null(at(doc, "/generation_settings/logit_bias/1/bias")));
  yyjson_doc_free(doc);
  doc = post("/completion",
             "{\"prompt\":\"a\",\"n_predict\":3,\"ignore_eos\":true,\"return_tokens\":true,\"logit_bias\":[["
             "2,100]]}",
             200);
  const size_t count = yyjson_arr_size(at(doc, "/generation_settings/logit_bias"));
  CHECK(count >= 2);
  for (size_t i = 1; i < count; ++i) {
    yyjson_val *bias = yyjson_arr_get(at(doc, "/generation_settings/logit_bias"), i);
    CHECK(yyjson_is_null(yyjson_obj_get(bias, "bias")));
    for (size_t k = 0; k < 3; ++k)
      CHECK(!yyjson_equals(yyjson_arr_get(at(doc, "/tokens"), k), yyjson_obj_get(bias, "token")));
  }
  yyjson_doc_free(doc);
}

TEST(a_chats_tokens_are_counted) {
  yyjson_doc *doc = post("/v1/chat/completions/input_tokens",
                         "{\"messages\":[{\"role\":\"user\",\"content\":\"one two\"}]}", 200);
  yyjson_doc *expected =
      post("/v1/chat/completions",
           "{\"messages\":[{\"role\":\"user\",\"content\":\"one two\"}],\"max_tokens\":1}", 200);
  CHECK_INT(yyjson_get_sint(at(doc, "/input_tokens")), yyjson_get_sint(at(expected, "/usage/prompt_tokens")));
  yyjson_doc_free(expected);
  yyjson_doc_free(doc);
  yyjson_doc_free(post("/chat/completions/input_tokens", "{}", 400));
}

TEST(verbose_answers_have_the_native_form_too) {
  yyjson_doc *native = post("/completion", NATIVE ",\"return_tokens\":true}", 200);
  yyjson_doc *doc =
      post("/v1/completions",
           "{\"prompt\":\"hello world\",\"temperature\":0,\"max_tokens\":8,\"verbose\":true}", 200);
  check_same_text_at(doc, "/__verbose/content", native, "/content");
  check_same_text_at(doc, "/__verbose/prompt", native, "/prompt");
  CHECK(yyjson_equals(at(doc, "/__verbose/tokens"), at(native, "/tokens")));
  CHECK_INT(yyjson_get_sint(at(doc, "/__verbose/generation_settings/n_predict")), 8);
  yyjson_doc_free(doc);
  doc = post("/v1/chat/completions",
             "{\"messages\":[{\"role\":\"user\",\"content\":\"Book\"}],\"max_tokens\":1,\"verbose\":true}",
             200);
  CHECK_CONTAINS(yyjson_get_str(at(doc, "/__verbose/prompt")), "Book");
  yyjson_doc_free(doc);
  doc = post("/v1/chat/completions",
             "{\"messages\":[{\"role\":\"user\",\"content\":\"Book\"}],\"max_tokens\":1}", 200);
  CHECK(!yyjson_doc_ptr_get(doc, "/__verbose"));
  yyjson_doc_free(doc);
  reply_t reply;
  client_call(
      shared.port, "POST", "/v1/completions", "",
      "{\"prompt\":\"hello world\",\"temperature\":0,\"max_tokens\":8,\"verbose\":true,\"stream\":true}",
      &reply);
  const char *last = strstr(reply_text(&reply), "\"__verbose\"");
  CHECK(last && !strstr(last + 1, "\"__verbose\""));
  while (last > reply_text(&reply) && strncmp(last, "data: ", 6)) --last;
  doc = yyjson_read(last + 6, strcspn(last + 6, "\n"), 0);
  CHECK(yyjson_equals(at(doc, "/__verbose/tokens"), at(native, "/tokens")));
  CHECK_TEXT(yyjson_get_str(at(doc, "/__verbose/stop_type")), "limit");
  yyjson_doc_free(doc);
  mlx_text_clear(&reply.body);
  yyjson_doc_free(native);
}

// Checks the events of a stream: from the tokens of the cache, which it returns, to the whole prompt, then
// text.
static int64_t check_progress(const char *path, const char *body, const char *text) {
  reply_t reply;
  size_t events = 0;
  int64_t processed = -1, total = 0, cached = 0;
  client_call(shared.port, "POST", path, "", body, &reply);
  CHECK_INT(reply.status, 200);
  for (const char *line = strstr(reply_text(&reply), "data: {"); line; line = strstr(line + 6, "data: {")) {
    yyjson_doc *part = yyjson_read(line + 6, strcspn(line + 6, "\n"), 0);
    CHECK(part);
    const int64_t now = yyjson_get_sint(yyjson_doc_ptr_get(part, "/prompt_progress/processed"));
    if (yyjson_doc_ptr_get(part, "/prompt_progress")) {
      CHECK(now > processed && yyjson_get_sint(at(part, "/prompt_progress/time_ms")) >= 0);
      if (!events++) cached = now;
      CHECK_INT(yyjson_get_sint(at(part, "/prompt_progress/cache")), cached);
      total = yyjson_get_sint(at(part, "/prompt_progress/total"));
      processed = now;
    } else if (yyjson_get_len(yyjson_doc_ptr_get(part, text))) {
      CHECK(total > 0 && processed == total);  // text comes after the whole prompt
    }
    yyjson_doc_free(part);
  }
  CHECK(events >= 2 && total > 0 && processed == total);
  mlx_text_clear(&reply.body);
  return cached;
}

TEST(streams_tell_how_much_of_the_prompt_is_read) {
  mlx_text_t body = {0};
  start_shared();
  mlx_text_puts(&body, "{\"stream\":true,\"return_progress\":true,\"max_tokens\":4,\"n\":2,\"prompt\":\"");
  for (int i = 0; i < 100; ++i) mlx_text_printf(&body, "%d ", i * 37 % 10);
  mlx_text_puts(&body, "\"}");
  CHECK_INT(check_progress("/completion", body.data, "/content"), 0);
  CHECK(check_progress("/v1/completions", body.data, "/choices/0/text") >= 96);  // of more than 100 tokens
  mlx_text_clear(&body);
  check_progress(
      "/v1/chat/completions",
      "{\"stream\":true,\"return_progress\":true,\"max_tokens\":4,\"stream_options\":{\"include_usage\":"
      "true},\"messages\":[{\"role\":\"user\",\"content\":\"a b c\"}]}",
      "/choices/0/delta/content");
}

static yyjson_doc *get_slots(const char *query, int status) {
  reply_t reply;
  char path[64];
  start_shared();
  snprintf(path, sizeof path, "/slots%s", query);
  client_call(shared.port, "GET", path, "", NULL, &reply);
  return parse_reply(path, &reply, status);
}

TEST(slots_are_the_sequences_of_the_model) {
  yyjson_doc *doc = get_slots("", 200);
  CHECK_INT((int64_t)yyjson_arr_size(yyjson_doc_get_root(doc)), 2);
  CHECK_INT(yyjson_get_sint(at(doc, "/0/n_ctx")), 256);
  CHECK(yyjson_is_false(at(doc, "/1/is_processing")) && !yyjson_doc_ptr_get(doc, "/1/params"));
  yyjson_doc_free(doc);
  yyjson_doc_free(get_slots("?fail_on_no_slot=1", 200));
}

// The task is seen while its stream runs, and is gone after its client has left.
TEST(a_busy_slot_shows_its_task) {
  static const char body[] =
      "{\"prompt\":\"hello world\",\"n_predict\":200,\"ignore_eos\":true,\"temperature\":0.25,\"top_k\":7,"
      "\"stream\":true,\"n\":40}";  // 40 answers: long enough to be seen
  start_shared();
  const int fd = client_request(shared.port, "POST", "/completion", "", body);
  bool seen = false, full = false;
  for (int i = 0; i < 3000 && !(seen && full); ++i) {
    reply_t reply;
    yyjson_doc *doc = get_slots("", 200);
    yyjson_val *slot = yyjson_arr_get(yyjson_doc_get_root(doc), 0);
    if (yyjson_is_true(yyjson_obj_get(slot, "is_processing")) &&
        yyjson_get_sint(yyjson_doc_ptr_get(doc, "/0/next_token/0/n_decoded"))) {
      const int64_t made = yyjson_get_sint(at(doc, "/0/next_token/0/n_decoded"));
      CHECK(yyjson_get_sint(at(doc, "/0/id_task")) > 0 && yyjson_get_sint(at(doc, "/0/n_prompt_tokens")) > 0);
      CHECK_INT(yyjson_get_sint(at(doc, "/0/params/top_k")), 7);
      CHECK(yyjson_get_num(at(doc, "/0/params/temperature")) == 0.25);
      CHECK(made <= 200);
      CHECK_INT(yyjson_get_sint(at(doc, "/0/next_token/0/n_remain")), 200 - made);
      seen = true;
    }
    yyjson_doc_free(doc);
    client_call(shared.port, "GET", "/slots?fail_on_no_slot=1", "", NULL, &reply);
    full = full || reply.status == 503;
    mlx_text_clear(&reply.body);
  }
  CHECK(seen && full);
  close(fd);  // ends the task
  for (int i = 0; i < 3000 && seen; ++i) {
    yyjson_doc *doc = get_slots("", 200);
    seen = yyjson_is_true(at(doc, "/0/is_processing")) || yyjson_is_true(at(doc, "/1/is_processing"));
    yyjson_doc_free(doc);
  }
  CHECK(!seen);
}

// Editors ask for the lines of a block, and for an answer in time.
TEST(lines_limit_an_answer) {
  yyjson_doc *doc = post("/completion",
                         "{\"prompt\":\"a\",\"n_predict\":99,\"n_indent\":2,\"grammar\":\"root ::= "
                         "\\\"a\\\\n  b\\\\n  c\\\\n}\\\\nd\\\"\"}",
                         200);
  CHECK_TEXT(yyjson_get_str(at(doc, "/content")), "a\n  b\n  c\n");
  CHECK_TEXT(yyjson_get_str(at(doc, "/stop_type")), "limit");
  yyjson_doc_free(doc);
  doc =
      post("/infill",
           "{\"input_prefix\":\"a\",\"input_suffix\":\"b\",\"n_predict\":199,\"t_max_predict_ms\":1,\"n\":2,"
           "\"grammar\":\"root ::= ([ab] \\\"\\\\n\\\")+\"}",
           200);
  for (size_t i = 0; i < 2; ++i) {
    yyjson_val *answer = yyjson_arr_get(yyjson_doc_get_root(doc), i);
    const char *text = yyjson_get_str(yyjson_obj_get(answer, "content"));
    CHECK(*text && text[strlen(text) - 1] == '\n');
    CHECK(yyjson_get_sint(yyjson_obj_get(answer, "tokens_predicted")) < 199);
  }
  yyjson_doc_free(doc);
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
          CASE(native_options_are_read_by_their_names), CASE(probabilities_after_sampling_add_up_to_1),
          CASE(metrics_have_the_names_of_llama_server), CASE(texts_and_ids_in_turn_are_one_prompt),
          CASE(ignore_eos_is_a_bias_of_the_settings), CASE(a_chats_tokens_are_counted),
          CASE(verbose_answers_have_the_native_form_too), CASE(streams_tell_how_much_of_the_prompt_is_read),
          CASE(slots_are_the_sequences_of_the_model), CASE(a_busy_slot_shows_its_task),
          CASE(lines_limit_an_answer), CASE(a_suffix_becomes_the_models_tokens_for_a_gap),
          CASE(llama_vim_gets_the_fields_that_it_asks_for), CASE(a_gap_in_a_long_text_keeps_what_is_near),
          CASE(wrong_gaps_are_refused_by_path), CASE(a_model_without_tokens_for_gaps_says_so))
