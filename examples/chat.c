// A chat: each line of standard input is a message, and the answer is printed as it is generated.
//
//   chat MODEL.mlxb [TOKENS]      TOKENS: most tokens of an answer
//
// The session keeps the KV cache of the conversation: each turn reads only the tokens that are new.
#include <mlxcel/mlxcel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LINE 65536

static bool print_text(void *user, const char *text, size_t length) {
  (void)user;
  fwrite(text, 1, length, stdout);
  fflush(stdout);
  return true;
}

// Renders the conversation with the model's chat template. Release the ids with mlx_engine_free_ids.
static mlx_status_t render(const mlx_engine_t *engine, const mlx_conversation_t *conversation,
                           int32_t **out_ids, size_t *out_count) {
  const mlx_chat_t *chat = mlx_engine_chat(engine);
  char *json = NULL, *text = NULL;
  size_t json_length, length;
  mlx_chat_options_t options;
  *out_ids = NULL;
  if (!chat) return mlx_chat_missing_error("the model");
  mlx_chat_options_initialize(&options);
  mlx_status_t status = mlx_conversation_json(conversation, 0, &json, &json_length);
  if (!status) status = mlx_chat_render(chat, json, json_length, &options, &text, &length);
  if (!status) status = mlx_engine_tokenize_chat(engine, text, length, out_ids, out_count);
  mlx_chat_free_text(text);
  mlx_free(json);
  return status;
}

// One turn: |message| and its answer become part of the conversation.
static mlx_status_t turn(const mlx_engine_t *engine, mlx_session_t *session, mlx_conversation_t *conversation,
                         const char *message, const mlx_generate_options_t *options) {
  mlx_generation_t answer;
  int32_t *ids;
  size_t count, kept;
  MLX_TRY(mlx_conversation_add(conversation, "user", message, strlen(message)));
  MLX_TRY(render(engine, conversation, &ids, &count));
  mlx_status_t status = mlx_session_resume(session, ids, count, &kept);
  if (!status) status = mlx_session_generate(session, ids + kept, count - kept, options, &answer);
  mlx_engine_free_ids(ids);
  if (status) return status;
  printf("\n");
  status = mlx_conversation_add(conversation, "assistant", answer.text, answer.text_length);
  mlx_generation_clear(&answer);
  return status;
}

static mlx_status_t chat(const mlx_engine_t *engine, mlx_session_t *session, mlx_conversation_t *conversation,
                         long tokens) {
  static char line[MAX_LINE];
  mlx_sampling_t sampling;
  mlx_generate_options_t options;
  mlx_sampling_initialize(&sampling);
  mlx_generate_options_initialize(&options);
  options.max_tokens = tokens;
  options.sampling = &sampling;
  options.on_text = print_text;
  while (fgets(line, sizeof line, stdin)) {
    line[strcspn(line, "\n")] = 0;
    if (line[0]) MLX_TRY(turn(engine, session, conversation, line, &options));
  }
  return NULL;
}

static mlx_status_t run(const char *path, long tokens) {
  mlx_engine_options_t options;
  mlx_engine_t *engine = NULL;
  mlx_session_t *session = NULL;
  mlx_conversation_t *conversation = NULL;
  mlx_engine_options_initialize(&options);
  mlx_status_t status = mlx_engine_open_bundle(path, &options, &engine);
  if (!status) status = mlx_session_create(engine, &session);
  if (!status) status = mlx_conversation_create(&conversation);
  if (!status) status = chat(engine, session, conversation, tokens);
  mlx_conversation_free(conversation);
  mlx_session_free(session);
  mlx_engine_close(engine);
  return status;
}

int main(int argc, char **argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: chat MODEL.mlxb [TOKENS]\n");
    return 2;
  }
  mlx_status_t status = run(argv[1], argc > 2 ? strtol(argv[2], NULL, 10) : -1);
  if (!status) return 0;
  const int code = (int)mlx_status_code(status);
  fprintf(stderr, "error: %s\nhint: %s\n", mlx_status_message(status), mlx_status_hint_text(status));
  mlx_status_free(status);
  return code;
}
