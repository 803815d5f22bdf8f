// Compares texts: prints the cosine similarity of the first text with each other one.
//
//   embed MODEL.mlxb TEXT OTHER...
#include <mlxcel/mlxcel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// |out| has the model's hidden size. Its norm is 1.
static mlx_status_t embed(const mlx_engine_t *engine, mlx_session_t *session, const char *text, float *out) {
  int32_t *ids;
  size_t count;
  MLX_TRY(mlx_engine_tokenize(engine, text, strlen(text), &ids, &count));
  mlx_status_t status = mlx_session_embed(session, ids, count, out, (size_t)mlx_engine_info(engine).hidden);
  mlx_engine_free_ids(ids);
  return status;
}

static mlx_status_t compare(const mlx_engine_t *engine, mlx_session_t *session, char **texts, float *first,
                            float *other) {
  const int64_t hidden = mlx_engine_info(engine).hidden;
  MLX_TRY(embed(engine, session, texts[0], first));
  for (size_t i = 1; texts[i]; ++i) {
    double product = 0;  // of two vectors of norm 1: the cosine of their angle
    MLX_TRY(embed(engine, session, texts[i], other));
    for (int64_t j = 0; j < hidden; ++j) product += (double)first[j] * other[j];
    printf("%.6f  %s\n", product, texts[i]);
  }
  return NULL;
}

static mlx_status_t run(const char *path, char **texts) {
  mlx_engine_options_t options;
  mlx_engine_t *engine = NULL;
  mlx_session_t *session = NULL;
  float *vectors = NULL;
  mlx_engine_options_initialize(&options);
  mlx_status_t status = mlx_engine_open_bundle(path, &options, &engine);
  if (!status) status = mlx_session_create(engine, &session);
  if (!status) {
    const size_t hidden = (size_t)mlx_engine_info(engine).hidden;
    vectors = calloc(2 * hidden, sizeof *vectors);
    status = vectors ? compare(engine, session, texts, vectors, vectors + hidden)
                     : mlx_error(MLX_OUT_OF_MEMORY, "no memory for two embeddings");
  }
  free(vectors);
  mlx_session_free(session);
  mlx_engine_close(engine);
  return status;
}

int main(int argc, char **argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: embed MODEL.mlxb TEXT OTHER...\n");
    return 2;
  }
  mlx_status_t status = run(argv[1], argv + 2);
  if (!status) return 0;
  const int code = (int)mlx_status_code(status);
  fprintf(stderr, "error: %s\nhint: %s\n", mlx_status_message(status), mlx_status_hint_text(status));
  mlx_status_free(status);
  return code;
}
