// Continues a text.
//
//   complete MODEL TEXT [TOKENS]
//
// Build it against an installed mlxcel (docs/library.md): cc complete.c $(pkg-config --cflags --libs mlxcel)
#include <mlxcel/mlxcel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Called with new text as it is generated.
static bool print_text(void *user, const char *text, size_t length) {
  (void)user;
  fwrite(text, 1, length, stdout);
  fflush(stdout);
  return true;
}

static mlxcel_status_t complete(mlxcel_session_t *session, const int32_t *ids, size_t count, long tokens) {
  mlxcel_generate_options_t options;
  mlxcel_generation_t generation;
  mlxcel_generate_options_initialize(&options);
  options.max_tokens = tokens;
  options.on_text = print_text;
  MLXCEL_TRY(mlxcel_session_generate(session, ids, count, &options, &generation));
  printf("\n");
  fprintf(stderr, "%zu tokens, stopped by: %s\n", generation.count,
          mlxcel_finish_reason_name(generation.finish_reason));
  mlxcel_generation_clear(&generation);
  return NULL;
}

static mlxcel_status_t run(const char *path, const char *text, long tokens) {
  mlxcel_engine_options_t options;
  mlxcel_engine_t *engine = NULL;
  mlxcel_session_t *session = NULL;
  int32_t *ids = NULL;
  size_t count;
  mlxcel_engine_options_initialize(&options);
  mlxcel_status_t status = mlxcel_open(path, &options, &engine);
  if (!status) status = mlxcel_engine_tokenize(engine, text, strlen(text), &ids, &count);
  if (!status) status = mlxcel_session_create(engine, &session);
  if (!status) status = complete(session, ids, count, tokens);
  mlxcel_session_free(session);
  mlxcel_engine_free_ids(ids);
  mlxcel_engine_close(engine);
  return status;
}

int main(int argc, char **argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: complete MODEL TEXT [TOKENS]\n");
    return 2;
  }
  mlxcel_status_t status = run(argv[1], argv[2], argc > 3 ? strtol(argv[3], NULL, 10) : 64);
  if (!status) return 0;
  const int code = (int)mlxcel_status_code(status);
  fprintf(stderr, "error: %s\nhint: %s\n", mlxcel_status_message(status), mlxcel_status_hint_text(status));
  mlxcel_status_free(status);
  return code;
}
