// Editors that fill gaps, with models of several families: the requests of llama.vim, Continue and Zed, as
// their sources write them. Each must get what the tokens of the gap give.
#include <yyjson.h>

#include "tests/support/gap_model.h"
#include "tests/support/json_reply.h"

#define BEFORE "def add(a, b):"
#define AFTER "return total"

typedef struct family {
  const char *name, *prefix, *suffix, *middle;
  const char
      *spelled;  // the prompt of a client that spells the tokens; NULL: the tokens have other spellings
} family_t;

static served_t server;

static void end_server(void) {
  if (server.pid) kill(server.pid, SIGKILL);
  if (*folder) remove_gap_model();
}

static void start_family(const family_t *family) {
  static bool registered;
  if (!registered) CHECK(!atexit(end_server));
  registered = true;
  strcpy(folder, "/tmp/mlxcel-gap-XXXXXX");
  CHECK(mkdtemp(folder));
  make_gap_model(family->prefix, family->suffix, family->middle);
  SERVE(&server, folder, "--device", "cpu", "--parallel", "2", "-c", "256");
}

static void stop_family(void) {
  CHECK_INT(serve_stop(&server), 0);
  server.pid = 0;
  remove_gap_model();
  *folder = 0;
}

static yyjson_doc *post(const char *path, const char *body) {
  reply_t reply;
  client_call(server.port, "POST", path, "", body, &reply);
  return parse_reply(path, &reply, 200);
}

// The text of member |key| of all parts of a stream. |before| is what each part begins with.
static void read_stream(const char *path, const char *body, const char *before, const char *key,
                        mlx_text_t *out) {
  reply_t reply;
  client_call(server.port, "POST", path, "", body, &reply);
  CHECK_INT(reply.status, 200);
  for (const char *line = strstr(reply_text(&reply), before); line; line = strstr(line + 1, before)) {
    const char *json = line + (*before == 'd' ? strlen(before) : 0);
    yyjson_doc *part = yyjson_read(json, strcspn(json, "\n"), 0);
    CHECK(part);
    mlx_text_puts(out, yyjson_get_str(at(part, key)));
    yyjson_doc_free(part);
  }
  mlx_text_clear(&reply.body);
}

static void put_tokens(const char *text, bool special, mlx_text_t *out) {
  char body[256];
  yyjson_val *value;
  size_t index, max;
  snprintf(body, sizeof body, "{\"content\":\"%s\",\"add_special\":%s}", text, special ? "true" : "false");
  yyjson_doc *doc = post("/tokenize", body);
  yyjson_arr_foreach(at(doc, "/tokens"), index, max, value) {
    mlx_text_printf(out, "%d,", (int)yyjson_get_sint(value));
  }
  yyjson_doc_free(doc);
}

// What the model writes after the tokens of the gap.
static char *expected_text(void) {
  mlx_text_t body = {0};
  char *text;
  mlx_text_puts(&body, "{\"prompt\":[");
  put_tokens("", true, &body);
  mlx_text_printf(&body, "%d,", GAP_PREFIX);
  put_tokens(BEFORE, false, &body);
  mlx_text_printf(&body, "%d,", GAP_SUFFIX);
  put_tokens(AFTER, false, &body);
  mlx_text_printf(&body, "%d],\"temperature\":0,\"n_predict\":6}", GAP_MIDDLE);
  yyjson_doc *doc = post("/completion", body.data);
  const char *content = yyjson_get_str(at(doc, "/content"));
  CHECK(content && *content);
  CHECK_OK(mlx_copy_text(content, strlen(content), &text));
  yyjson_doc_free(doc);
  mlx_text_clear(&body);
  return text;
}

static void check_text(const char *client, const family_t *family, const char *text, const char *expected) {
  if (!text || strcmp(text, expected))
    CHECK_FAIL("%s with %s: '%s', expected '%s'", client, family->name, text ? text : "", expected);
}

// ----------------------------------------------------------------------------------------------------------
// Clients

// In the first line of a file nothing is before the line that is typed.
static void check_llama_vim(const family_t *family, const char *expected) {
  yyjson_doc *doc = post(
      "/infill", "{\"id_slot\":0,\"input_prefix\":\"\",\"input_suffix\":\"" AFTER
                 "\",\"input_extra\":[],\"prompt\":\"" BEFORE
                 "\",\"n_predict\":6,\"stop\":[],\"n_indent\":4,"
                 "\"top_k\":40,\"top_p\":0.9,\"temperature\":0,\"samplers\":[\"top_k\",\"top_p\","
                 "\"infill\"],\"stream\":false,\"cache_prompt\":true,\"t_max_prompt_ms\":500,"
                 "\"t_max_predict_ms\":1000,\"response_fields\":[\"content\",\"tokens_cached\",\"truncated\","
                 "\"timings/prompt_n\"]}");
  check_text("llama.vim", family, yyjson_get_str(at(doc, "/content")), expected);
  yyjson_doc_free(doc);
}

#define STOPS \
  "\"stop\":[\"<|endoftext|>\",\"<|repo_name|>\",\"<|file_sep|>\",\"\\n\\n\\n\",\"/src/\",\"```\"]"

// Its Ollama provider sends a suffix, its llama.cpp provider spells the tokens.
static void check_continue(const family_t *family, const char *expected) {
  char body[1024];
  mlx_text_t text = {0};
  read_stream("/api/generate",
              "{\"model\":\"m\",\"prompt\":\"" BEFORE "\",\"suffix\":\"" AFTER
              "\",\"keep_alive\":1800,\"stream\":true,\"options\":{\"num_predict\":6,\"temperature\":0,"
              "\"num_ctx\":256,\"num_thread\":2," STOPS "}}",
              "{\"model\"", "/response", &text);
  check_text("Continue, provider ollama", family, text.data, expected);
  mlx_text_clear(&text);
  if (!family->spelled) return;
  snprintf(body, sizeof body,
           "{\"prompt\":\"%s\",\"stream\":true,\"n_predict\":6,\"temperature\":0," STOPS "}",
           family->spelled);
  read_stream("/completion", body, "data: ", "/content", &text);
  check_text("Continue, provider llama.cpp", family, text.data, expected);
  mlx_text_clear(&text);
}

// Zed spells the tokens.
static void check_zed(const family_t *family, const char *expected) {
  char body[1024];
  if (!family->spelled) return;
  snprintf(body, sizeof body,
           "{\"model\":\"m\",\"prompt\":\"%s\",\"raw\":true,\"stream\":false,\"options\":{\"num_predict\":6,"
           "\"temperature\":0,\"stop\":[\"<|endoftext|>\",\"<|file_separator|>\",\"<|fim_pad|>\","
           "\"<|fim_prefix|>\",\"<|fim_middle|>\",\"<|fim_suffix|>\",\"<fim_prefix>\",\"<fim_middle>\","
           "\"<fim_suffix>\",\"<PRE>\",\"<SUF>\",\"<MID>\",\"[PREFIX]\",\"[SUFFIX]\"]}}",
           family->spelled);
  yyjson_doc *doc = post("/api/generate", body);
  check_text("Zed, provider ollama", family, yyjson_get_str(at(doc, "/response")), expected);
  yyjson_doc_free(doc);
  snprintf(
      body, sizeof body,
      "{\"model\":\"m\",\"prompt\":\"%s\",\"max_tokens\":6,\"temperature\":0,\"stop\":[\"<|endoftext|>\","
      "\"%s\",\"%s\",\"%s\"],\"environment\":null}",
      family->spelled, family->prefix, family->middle, family->suffix);
  doc = post("/v1/completions", body);
  check_text("Zed, OpenAI-compatible", family, yyjson_get_str(at(doc, "/choices/0/text")), expected);
  CHECK(yyjson_get_str(at(doc, "/id")));
  yyjson_doc_free(doc);
}

static void check_family(const family_t *family) {
  start_family(family);
  char *expected = expected_text();
  check_llama_vim(family, expected);
  check_continue(family, expected);
  check_zed(family, expected);
  mlx_free(expected);
  stop_family();
}

#define SPELL(prefix, suffix, middle) prefix BEFORE suffix AFTER middle

TEST(editors_fill_gaps_with_qwen_coder) {
  check_family(&(family_t){"Qwen2.5-Coder", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>",
                           SPELL("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")});
}

TEST(editors_fill_gaps_with_starcoder2_and_granite_code) {
  check_family(&(family_t){"StarCoder2", "<fim_prefix>", "<fim_suffix>", "<fim_middle>",
                           SPELL("<fim_prefix>", "<fim_suffix>", "<fim_middle>")});
}

// The tokens of CodeLlama begin with SentencePiece's space.
TEST(editors_fill_gaps_with_codellama) {
  check_family(&(family_t){"CodeLlama", "\xe2\x96\x81<PRE>", "\xe2\x96\x81<SUF>", "\xe2\x96\x81<MID>", NULL});
}

TEST_MAIN(CASE(editors_fill_gaps_with_qwen_coder), CASE(editors_fill_gaps_with_starcoder2_and_granite_code),
          CASE(editors_fill_gaps_with_codellama))
