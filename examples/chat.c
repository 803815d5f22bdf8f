// A chat: each line of standard input is a message, and the answer is printed as it is generated.
//
//   chat MODEL [TOKENS]      TOKENS: most tokens of an answer
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

// Renders the conversation with the model's chat template. Release the ids with mlxcel_engine_free_ids.
static mlxcel_status_t render(const mlxcel_engine_t *engine, const mlxcel_conversation_t *conversation,
                              int32_t **out_ids, size_t *out_count) {
  const mlxcel_chat_t *chat = mlxcel_engine_chat(engine);
  char *json = NULL, *text = NULL;
  size_t json_length, length;
  mlxcel_chat_options_t options;
  *out_ids = NULL;
  if (!chat) return mlxcel_chat_missing_error("the model");
  mlxcel_chat_options_initialize(&options);
  mlxcel_status_t status = mlxcel_conversation_json(conversation, 0, &json, &json_length);
  if (!status) status = mlxcel_chat_render(chat, json, json_length, &options, &text, &length);
  if (!status) status = mlxcel_engine_tokenize_chat(engine, text, length, out_ids, out_count);
  mlxcel_chat_free_text(text);
  mlxcel_free(json);
  return status;
}

// One turn: |message| and its answer become part of the conversation.
static mlxcel_status_t turn(const mlxcel_engine_t *engine, mlxcel_session_t *session,
                            mlxcel_conversation_t *conversation, const char *message,
                            const mlxcel_generate_options_t *options) {
  mlxcel_generation_t answer;
  int32_t *ids;
  size_t count, kept;
  MLXCEL_TRY(mlxcel_conversation_add(conversation, "user", message, strlen(message)));
  MLXCEL_TRY(render(engine, conversation, &ids, &count));
  mlxcel_status_t status = mlxcel_session_resume(session, ids, count, &kept);
  if (!status) status = mlxcel_session_generate(session, ids + kept, count - kept, options, &answer);
  mlxcel_engine_free_ids(ids);
  if (status) return status;
  printf("\n");
  status = mlxcel_conversation_add(conversation, "assistant", answer.text, answer.text_length);
  mlxcel_generation_clear(&answer);
  return status;
}

static mlxcel_status_t chat(const mlxcel_engine_t *engine, mlxcel_session_t *session,
                            mlxcel_conversation_t *conversation, long tokens) {
  static char line[MAX_LINE];
  mlxcel_sampling_t sampling;
  mlxcel_generate_options_t options;
  mlxcel_sampling_initialize(&sampling);
  mlxcel_generate_options_initialize(&options);
  options.max_tokens = tokens;
  options.sampling = &sampling;
  options.on_text = print_text;
  while (fgets(line, sizeof line, stdin)) {
    line[strcspn(line, "\n")] = 0;
    if (line[0]) MLXCEL_TRY(turn(engine, session, conversation, line, &options));
  }
  return NULL;
}

static mlxcel_status_t run(const char *path, long tokens) {
  mlxcel_engine_options_t options;
  mlxcel_engine_t *engine = NULL;
  mlxcel_session_t *session = NULL;
  mlxcel_conversation_t *conversation = NULL;
  mlxcel_engine_options_initialize(&options);
  mlxcel_status_t status = mlxcel_open(path, &options, &engine);
  if (!status) status = mlxcel_session_create(engine, &session);
  if (!status) status = mlxcel_conversation_create(&conversation);
  if (!status) status = chat(engine, session, conversation, tokens);
  mlxcel_conversation_free(conversation);
  mlxcel_session_free(session);
  mlxcel_engine_close(engine);
  return status;
}

int main(int argc, char **argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: chat MODEL [TOKENS]\n");
    return 2;
  }
  mlxcel_status_t status = run(argv[1], argc > 2 ? strtol(argv[2], NULL, 10) : -1);
  if (!status) return 0;
  const int code = (int)mlxcel_status_code(status);
  fprintf(stderr, "error: %s\nhint: %s\n", mlxcel_status_message(status), mlxcel_status_hint_text(status));
  mlxcel_status_free(status);
  return code;
}
