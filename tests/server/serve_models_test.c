// Damaged model files under `mlxcel serve`, and what clients learn about files.
#include "base/file.h"
#include "base/memory.h"
#include "server/core/folders.h"
#include "tests/support/command.h"
#include "tests/support/folder.h"
#include "tests/support/http_client.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define GGUF MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama.gguf"

static void shell(const char *script) {
  command_t run;
  const char *const argv[] = {"/bin/sh", "-ec", script, MLXCEL_BINARY, folder, NULL};
  command_start(&run, argv);
  command_wait(&run);
  if (run.exit_code) CHECK_FAIL("%s: %s", script, run.err);
  command_free(&run);
}

static void begin(void) {
  strcpy(folder, "/tmp/mlxcel-serve-models-XXXXXX");
  CHECK(mkdtemp(folder));
}

// Completes with a model. Checks the status, the message, and that no answer names a folder of this machine.
static void complete(int port, const char *model, int status, const char *part) {
  reply_t reply;
  char body[256];
  snprintf(body, sizeof body, "{\"model\":\"%s\",\"prompt\":\"a b\",\"max_tokens\":4,\"temperature\":0}",
           model);
  client_call(port, "POST", "/v1/completions", "", body, &reply);
  if (reply.status != status) CHECK_FAIL("%s: status %d: %s", model, reply.status, reply_text(&reply));
  CHECK_CONTAINS(reply_text(&reply), part);
  CHECK(!strstr(reply_text(&reply), folder));
  mlx_text_clear(&reply.body);
}

TEST(a_model_file_that_is_damaged_before_it_is_loaded_fails_alone) {
  served_t s;
  begin();
  shell("cd \"$1\" && cp " GGUF " good.gguf && head -c 20000 " GGUF " > cut.gguf && cp -r " TINY
        " weights && truncate -s 1000 weights/model-00002-of-00002.safetensors && : > empty.gguf && "
        "\"$0\" compile -q " TINY
        " -c 128 -o bundle.mlxb && cp bundle.mlxb/weights.irpa copy && "
        "rm bundle.mlxb/weights.irpa && head -c 5000 copy > bundle.mlxb/weights.irpa");
  SERVE(&s, "--models", folder, "--device", "cpu", "-c", "128");
  complete(s.port, "good", 200, "\"choices\"");
  complete(s.port, "cut", 503, "cannot load cut: cut.gguf: tensor");
  complete(s.port, "weights", 503, "cannot load weights: ");
  complete(s.port, "empty", 503, "cannot load empty: ");
  complete(s.port, "bundle", 503, "cannot load bundle: ");
  complete(s.port, "good", 200, "\"choices\"");
  CHECK_INT(serve_stop(&s), 0);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(a_model_file_that_is_truncated_while_it_is_loaded_fails_alone) {
  served_t s;
  begin();
  shell("cd \"$1\" && \"$0\" compile -q " TINY
        " -c 128 -o first.mlxb && cp first.mlxb/weights.irpa copy && rm first.mlxb/weights.irpa && "
        "mv copy first.mlxb/weights.irpa && cp -r first.mlxb second.mlxb && \"$0\" compile -q " TINY
        " -c 128 --single-file -o third.mlxb");
  SERVE(&s, "--models", folder, "--device", "cpu");
  complete(s.port, "first", 200, "\"choices\"");
  complete(s.port, "second", 200, "\"choices\"");
  complete(s.port, "third", 200, "\"choices\"");
  CHECK(!truncate(in_folder("first.mlxb/weights.irpa"), 0));
  complete(s.port, "first", 500, "the weights cannot be read: their file was truncated");
  complete(s.port, "second", 200, "\"choices\"");
  complete(s.port, "first", 503, "cannot load first: 'weights.irpa' does not match the bundle's manifest");
  CHECK_OK(mlx_copy_file(in_folder("second.mlxb/weights.irpa"), in_folder("first.mlxb/restored")));
  CHECK(!rename(in_folder("first.mlxb/restored"), in_folder("first.mlxb/weights.irpa")));
  complete(s.port, "first", 200, "\"choices\"");
  CHECK(!truncate(in_folder("third.mlxb"), 4096));
  complete(s.port, "third", 500, "the weights cannot be read: their file was truncated");
  complete(s.port, "second", 200, "\"choices\"");
  reply_t reply;
  client_call(s.port, "GET", "/health", "", NULL, &reply);
  CHECK_INT(reply.status, 200);
  mlx_text_clear(&reply.body);
  CHECK_INT(serve_stop(&s), 0);
  CHECK_OK(mlx_remove_tree(folder));
}

// The paths of the models are absolute; one has a chat template that fails.
TEST(clients_see_names_of_models_but_no_folders) {
  static const char *const gets[] = {"/v1/models",   "/v1/models/model", "/props",  "/model_info",
                                     "/server_info", "/api/tags",        "/api/ps", "/health",
                                     "/metrics",     "/openapi.json"};
  static const char *const posts[][2] = {
      {"/api/show", "{\"model\":\"model\"}"},
      {"/v1/chat/completions", "{\"model\":\"model\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"},
      {"/apply-template", "{\"model\":\"model\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"},
      {"/v1/completions", "{\"model\":\"model\",\"prompt\":\"x\",\"max_tokens\":2}"},
      {"/v1/completions", "{\"model\":\"missing\",\"prompt\":\"x\"}"},
      {"/tokenize", "{\"model\":\"model\",\"content\":\"x\"}"}};
  served_t s;
  reply_t reply;
  begin();
  shell("cd \"$1\" && cp -r " TINY " model && cp -r " TINY
        " other && "
        "printf '%s' \"{{ raise_exception('no chat') }}\" > model/chat_template.jinja");
  SERVE(&s, in_folder("model"), in_folder("other"), "--device", "cpu");
  for (int loaded = 0; loaded < 2; ++loaded) {
    for (size_t i = 0; i < sizeof gets / sizeof *gets; ++i) {
      client_call(s.port, "GET", gets[i], "", NULL, &reply);
      CHECK_INT(reply.status, 200);
      if (strstr(reply_text(&reply), folder)) CHECK_FAIL("%s: %s", gets[i], reply_text(&reply));
      mlx_text_clear(&reply.body);
    }
    for (size_t i = 0; i < sizeof posts / sizeof *posts; ++i) {
      client_call(s.port, "POST", posts[i][0], "", posts[i][1], &reply);
      if (strstr(reply_text(&reply), folder)) CHECK_FAIL("%s: %s", posts[i][0], reply_text(&reply));
      if (i == 1) CHECK_CONTAINS(reply_text(&reply), "messages: model: chat template, line 1: ");
      mlx_text_clear(&reply.body);
    }
  }
  CHECK_INT(serve_stop(&s), 0);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(folders_are_hidden_in_messages) {
  static const char *const rows[][2] = {
      {"'/home/a b/m.gguf' is cut; see /tmp/x/log.txt", "'m.gguf' is cut; see log.txt"},
      {"/a/b", "b"},
      {"open(/a/b): (/c)", "open(b): (c)"},
      {"a/b and 1 / 2 and km/h", "a/b and 1 / 2 and km/h"},
      {"compile it again: `mlxcel compile /models/m/`", "compile it again: `mlxcel compile m/`"},
      {"'C:\\Users\\a\\m.gguf' and D:/x/y", "'m.gguf' and y"},
      {"", ""}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    mlx_text_t out = {0};
    mlx_hide_folders(rows[i][0], &out);
    CHECK_TEXT(out.data ? out.data : "", rows[i][1]);
    mlx_text_clear(&out);
  }
}

// A NUL would end the key before it: the rest of the line would not be needed.
TEST(a_key_file_with_a_nul_or_a_long_key_is_refused) {
  mlx_text_t text = {0};
  command_t run;
  begin();
  for (int i = 0; i < 5000; ++i) mlx_text_puts(&text, "k");
  mlx_text_puts(&text, "\n");
  for (int nul = 0; nul < 2; ++nul) {
    if (nul) text.data[1] = 0;
    CHECK_OK(mlx_write_file(in_folder("keys"), text.data, text.length));
    RUN(&run, "serve", TINY, "--device", "cpu", "--api-key-file", in_folder("keys"));
    CHECK_INT(run.exit_code, MLX_USAGE);
    CHECK_CONTAINS(run.err, nul ? "keys' has a NUL byte" : "an API key has 5000 bytes; at most 4096");
    command_free(&run);
  }
  mlx_text_clear(&text);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(a_prompt_of_exactly_the_context_length_is_scored) {
  served_t s;
  reply_t reply;
  mlx_text_t body = {0};
  SERVE(&s, TINY, "--device", "cpu", "-c", "64");
  for (int count = 64; count < 66; ++count) {
    mlx_text_puts(&body, "{\"echo\":true,\"logprobs\":1,\"max_tokens\":0,\"prompt\":[5");
    for (int i = 1; i < count; ++i) mlx_text_printf(&body, ",%d", 5 + i * 7 % 90);
    mlx_text_puts(&body, "]}");
    client_call(s.port, "POST", "/v1/completions", "", body.data, &reply);
    CHECK_INT(reply.status, count == 64 ? 200 : 400);
    CHECK_CONTAINS(reply_text(&reply), count == 64 ? "\"prompt_tokens\":64" : "the context holds 64");
    mlx_text_clear(&reply.body);
    mlx_text_clear(&body);
  }
  mlx_text_puts(&body, "{\"temperature\":0,\"prompt\":[5");
  for (int i = 1; i < 64; ++i) mlx_text_puts(&body, ",9");
  mlx_text_puts(&body, "]}");
  client_call(s.port, "POST", "/v1/completions", "", body.data, &reply);  // the last logits give a token
  CHECK_INT(reply.status, 200);
  CHECK_CONTAINS(reply_text(&reply), "\"completion_tokens\":1");
  CHECK_CONTAINS(reply_text(&reply), "\"finish_reason\":\"length\"");
  mlx_text_clear(&reply.body);
  mlx_text_clear(&body);
  CHECK_INT(serve_stop(&s), 0);
}

TEST_MAIN(CASE(a_model_file_that_is_damaged_before_it_is_loaded_fails_alone),
          CASE(a_model_file_that_is_truncated_while_it_is_loaded_fails_alone),
          CASE(clients_see_names_of_models_but_no_folders), CASE(folders_are_hidden_in_messages),
          CASE(a_key_file_with_a_nul_or_a_long_key_is_refused),
          CASE(a_prompt_of_exactly_the_context_length_is_scored))
