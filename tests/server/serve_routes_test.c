// The experts of tokens in answers of `mlxcel serve`.
#include <yyjson.h>

#include "base/encoding.h"
#include "base/memory.h"
#include "tests/support/command.h"
#include "tests/support/fixture_copy.h"
#include "tests/support/json_reply.h"

#define DENSE MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"

// The experts that SGLang's field asks for: base64 of i32 numbers [tokens][layers][experts of a token].
static void check_routes(yyjson_doc *doc, const char *choice, int64_t tokens) {
  char path[64];
  uint8_t *bytes;
  size_t count;
  snprintf(path, sizeof path, "%s/sgl_ext/routed_experts", choice);
  const char *text = yyjson_get_str(at(doc, path));
  CHECK_OK(mlx_base64_decode(text, strlen(text), &bytes, &count));
  CHECK_INT((int64_t)count, tokens * 2 * 2 * 4);
  for (size_t i = 0; i < count; i += 4) {
    int32_t expert;
    memcpy(&expert, bytes + i, sizeof expert);
    CHECK(expert >= 0 && expert < 6);
  }
  snprintf(path, sizeof path, "%s/sgl_ext/routed_experts_shape/0", choice);
  CHECK_INT(yyjson_get_sint(at(doc, path)), tokens);
  mlx_free(bytes);
}

TEST(a_mixture_of_experts_reports_the_routes_of_tokens) {
  static const struct {
    const char *path, *body, *choice;
    int64_t tokens;
  } calls[] = {
      {"/v1/completions",
       "{\"prompt\":[5,6,7],\"max_tokens\":4,\"ignore_eos\":true,\"return_routed_experts\":true}",
       "/choices/0", 6},
      {"/v1/completions",
       "{\"prompt\":[5,6,7],\"max_tokens\":4,\"ignore_eos\":true,\"return_routed_experts\":true,"
       "\"routed_experts_start_len\":2,\"n\":2}",
       "/choices/1", 4},
      {"/completion",
       "{\"prompt\":[5,6,7],\"n_predict\":4,\"ignore_eos\":true,\"return_routed_experts\":true}", "", 6}};
  served_t s;
  reply_t reply;
  strcpy(folder, "/tmp/mlxcel-serve-routes-XXXXXX");
  CHECK(mkdtemp(folder));
  copy_fixture("qwen3_moe");
  SERVE(&s, folder, "--device", "cpu", "--chat-template", "chatml");
  for (size_t i = 0; i < sizeof calls / sizeof *calls; ++i) {
    client_call(s.port, "POST", calls[i].path, "", calls[i].body, &reply);
    yyjson_doc *doc = parse_reply(calls[i].path, &reply, 200);
    check_routes(doc, calls[i].choice, calls[i].tokens);
    yyjson_doc_free(doc);
  }
  client_call(s.port, "POST", "/v1/chat/completions", "",
              "{\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}],\"max_tokens\":8,\"ignore_eos\":"
              "true,\"return_routed_experts\":true}",
              &reply);
  yyjson_doc *doc = parse_reply("chat", &reply, 200);
  check_routes(doc, "/choices/0", yyjson_get_sint(at(doc, "/usage/prompt_tokens")) + 7);
  yyjson_doc_free(doc);
  client_call(s.port, "POST", "/v1/completions", "",
              "{\"prompt\":[5],\"return_routed_experts\":true,\"stream\":true}", &reply);
  doc = parse_reply("stream", &reply, 400);
  CHECK_CONTAINS(yyjson_get_str(at(doc, "/error/message")), "not possible in a stream");
  yyjson_doc_free(doc);
  CHECK_INT(serve_stop(&s), 0);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(a_model_without_experts_refuses_the_field) {
  served_t s;
  reply_t reply;
  SERVE(&s, DENSE, "--device", "cpu");
  client_call(s.port, "POST", "/v1/completions", "", "{\"prompt\":[5],\"return_routed_experts\":true}",
              &reply);
  yyjson_doc *doc = parse_reply("/v1/completions", &reply, 400);
  CHECK_CONTAINS(yyjson_get_str(at(doc, "/error/message")), "the model has no experts");
  CHECK_CONTAINS(yyjson_get_str(at(doc, "/error/message")),
                 "Hint: a model with experts reports them on a CPU");
  yyjson_doc_free(doc);
  CHECK_INT(serve_stop(&s), 0);
}

TEST_MAIN(CASE(a_mixture_of_experts_reports_the_routes_of_tokens),
          CASE(a_model_without_experts_refuses_the_field))
