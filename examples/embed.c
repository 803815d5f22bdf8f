// Compares texts: prints the cosine similarity of the first text with each other one.
//
//   embed MODEL TEXT OTHER...
#include <mlxcel/mlxcel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// |out| has the model's hidden size. Its norm is 1.
static mlxcel_status_t embed(const mlxcel_engine_t *engine, mlxcel_session_t *session, const char *text,
                             float *out) {
  int32_t *ids;
  size_t count;
  MLXCEL_TRY(mlxcel_engine_tokenize(engine, text, strlen(text), &ids, &count));
  mlxcel_status_t status =
      mlxcel_session_embed(session, ids, count, out, (size_t)mlxcel_engine_info(engine).hidden);
  mlxcel_engine_free_ids(ids);
  return status;
}

static mlxcel_status_t compare(const mlxcel_engine_t *engine, mlxcel_session_t *session, char **texts,
                               float *first, float *other) {
  const int64_t hidden = mlxcel_engine_info(engine).hidden;
  MLXCEL_TRY(embed(engine, session, texts[0], first));
  for (size_t i = 1; texts[i]; ++i) {
    double product = 0;  // of two vectors of norm 1: the cosine of their angle
    MLXCEL_TRY(embed(engine, session, texts[i], other));
    for (int64_t j = 0; j < hidden; ++j) product += (double)first[j] * other[j];
    printf("%.6f  %s\n", product, texts[i]);
  }
  return NULL;
}

static mlxcel_status_t run(const char *path, char **texts) {
  mlxcel_engine_options_t options;
  mlxcel_engine_t *engine = NULL;
  mlxcel_session_t *session = NULL;
  float *vectors = NULL;
  mlxcel_engine_options_initialize(&options);
  mlxcel_status_t status = mlxcel_open(path, &options, &engine);
  if (!status) status = mlxcel_session_create(engine, &session);
  if (!status) {
    const size_t hidden = (size_t)mlxcel_engine_info(engine).hidden;
    vectors = calloc(2 * hidden, sizeof *vectors);
    status = vectors ? compare(engine, session, texts, vectors, vectors + hidden)
                     : mlxcel_error(MLXCEL_OUT_OF_MEMORY, "no memory for two embeddings");
  }
  free(vectors);
  mlxcel_session_free(session);
  mlxcel_engine_close(engine);
  return status;
}

int main(int argc, char **argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: embed MODEL TEXT OTHER...\n");
    return 2;
  }
  mlxcel_status_t status = run(argv[1], argv + 2);
  if (!status) return 0;
  const int code = (int)mlxcel_status_code(status);
  fprintf(stderr, "error: %s\nhint: %s\n", mlxcel_status_message(status), mlxcel_status_hint_text(status));
  mlxcel_status_free(status);
  return code;
}
