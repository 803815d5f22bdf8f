// Continues a text.
//
//   complete MODEL.mlxb TEXT [TOKENS]
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

static mlx_status_t complete(mlx_session_t *session, const int32_t *ids, size_t count, long tokens) {
  mlx_generate_options_t options;
  mlx_generation_t generation;
  mlx_generate_options_initialize(&options);
  options.max_tokens = tokens;
  options.on_text = print_text;
  MLX_TRY(mlx_session_generate(session, ids, count, &options, &generation));
  printf("\n");
  fprintf(stderr, "%zu tokens, stopped by: %s\n", generation.count,
          mlx_finish_reason_name(generation.finish_reason));
  mlx_generation_clear(&generation);
  return NULL;
}

static mlx_status_t run(const char *path, const char *text, long tokens) {
  mlx_engine_options_t options;
  mlx_engine_t *engine = NULL;
  mlx_session_t *session = NULL;
  int32_t *ids = NULL;
  size_t count;
  mlx_engine_options_initialize(&options);
  mlx_status_t status = mlx_engine_open_bundle(path, &options, &engine);
  if (!status) status = mlx_engine_tokenize(engine, text, strlen(text), &ids, &count);
  if (!status) status = mlx_session_create(engine, &session);
  if (!status) status = complete(session, ids, count, tokens);
  mlx_session_free(session);
  mlx_engine_free_ids(ids);
  mlx_engine_close(engine);
  return status;
}

int main(int argc, char **argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: complete MODEL.mlxb TEXT [TOKENS]\n");
    return 2;
  }
  mlx_status_t status = run(argv[1], argv[2], argc > 3 ? strtol(argv[3], NULL, 10) : 64);
  if (!status) return 0;
  const int code = (int)mlx_status_code(status);
  fprintf(stderr, "error: %s\nhint: %s\n", mlx_status_message(status), mlx_status_hint_text(status));
  mlx_status_free(status);
  return code;
}
