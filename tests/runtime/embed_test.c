// Embeddings: the hidden state that the output head reads, with norm 1, whatever the session held before.
#include <math.h>
#include <stdio.h>

#include "tests/support/compiled.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define HIDDEN 32
#define VOCAB 320
#define LONG 200  // tokens; more than one chunk of the generic path

static void fill_ids(int32_t *ids, size_t count, uint32_t seed) {
  for (size_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    ids[i] = (int32_t)(seed >> 8) % 300 + 10;
  }
}

// lm_head.weight, the first tensor of the second file.
static void read_output_head(float *out) {
  FILE *file = fopen(TINY "/model-00002-of-00002.safetensors", "rb");
  uint64_t header;
  CHECK(file);
  CHECK_INT(fread(&header, sizeof header, 1, file), 1);
  CHECK_INT(fseek(file, (long)header, SEEK_CUR), 0);
  CHECK_INT(fread(out, sizeof *out, VOCAB * HIDDEN, file), VOCAB * HIDDEN);
  fclose(file);
}

// The logits must be the output head times the embedding, times one positive factor: the norm.
static void check_direction(mlx_session_t *session, const float *head, const float *embedding) {
  float logits[VOCAB];
  double products[VOCAB], norm = 0, square = 0;
  CHECK_OK(mlx_session_logits(session, logits, VOCAB));
  for (size_t i = 0; i < VOCAB; ++i) {
    products[i] = 0;
    for (size_t j = 0; j < HIDDEN; ++j) products[i] += (double)head[i * HIDDEN + j] * embedding[j];
    norm += products[i] * logits[i];
    square += products[i] * products[i];
  }
  norm /= square;
  CHECK(norm > 0);
  for (size_t i = 0; i < VOCAB; ++i) {
    if (fabs(norm * products[i] - logits[i]) > 1e-4)
      CHECK_FAIL("logit %zu is %f, from the embedding %f", i, logits[i], norm * products[i]);
  }
}

static void check_embeddings(mlx_kernel_choice_t kernels) {
  static float head[VOCAB * HIDDEN];
  mlx_engine_t *engine =
      open_parallel(TINY, &(mlx_compile_options_t){.context = 256, .kernels = kernels}, NULL, 0, 2);
  mlx_session_t *session;
  int32_t ids[LONG];
  float embedding[HIDDEN];
  CHECK_INT(mlx_engine_info(engine).hidden, HIDDEN);
  CHECK_OK(mlx_session_create(engine, &session));
  read_output_head(head);
  for (size_t count = 1; count <= LONG; count = count == 1 ? 17 : count + 61) {
    double sum = 0;
    fill_ids(ids, count, (uint32_t)count);
    CHECK_OK(mlx_session_embed(session, ids, count, embedding, HIDDEN));
    for (size_t i = 0; i < HIDDEN; ++i) sum += (double)embedding[i] * embedding[i];
    CHECK(fabs(sum - 1) < 1e-5);
    CHECK_INT(mlx_session_length(session), count);
    check_direction(session, head, embedding);
  }
  mlx_session_free(session);
  mlx_engine_close(engine);
}

static void the_output_head_times_an_embedding_gives_the_logits(void) {
  check_embeddings(MLX_KERNELS_AUTO);
  check_embeddings(MLX_KERNELS_OFF);
}

static void an_embedding_does_not_depend_on_other_sequences(void) {
  mlx_engine_t *engine = open_parallel(TINY, &(mlx_compile_options_t){.context = 256}, NULL, 0, 2);
  mlx_session_t *first, *second;
  int32_t ids[40], other[30], next;
  float expected[HIDDEN], embedding[HIDDEN];
  fill_ids(ids, 40, 1);
  fill_ids(other, 30, 2);
  CHECK_OK(mlx_session_create(engine, &first));
  CHECK_OK(mlx_session_create(engine, &second));
  CHECK_OK(mlx_session_embed(first, ids, 40, expected, HIDDEN));
  CHECK_OK(mlx_session_read(second, other, 30, &next));
  CHECK_OK(mlx_session_embed(first, other, 30, embedding, HIDDEN));
  CHECK(memcmp(embedding, expected, sizeof expected) != 0);
  CHECK_OK(mlx_session_embed(second, ids, 40, embedding, HIDDEN));
  CHECK(memcmp(embedding, expected, sizeof expected) == 0);
  mlx_session_free(first);
  mlx_session_free(second);
  mlx_engine_close(engine);
}

static void wrong_arguments_are_refused_and_keep_the_sequence(void) {
  mlx_engine_t *engine = open_compiled(TINY, &(mlx_compile_options_t){.context = 256}, NULL, 0);
  mlx_session_t *session;
  int32_t ids[4] = {20, 21, 22, 23}, next;
  float embedding[HIDDEN];
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_OK(mlx_session_read(session, ids, 4, &next));
  CHECK_ERROR(mlx_session_embed(session, ids, 4, embedding, HIDDEN - 1), MLX_USAGE, "has 32 numbers");
  CHECK_ERROR(mlx_session_embed(session, ids, 0, embedding, HIDDEN), MLX_USAGE, "at least one token");
  CHECK_INT(mlx_session_length(session), 4);
  ids[0] = VOCAB;
  CHECK_ERROR(mlx_session_embed(session, ids, 4, embedding, HIDDEN), MLX_INVALID_INPUT, "only 320 tokens");
  mlx_session_free(session);
  mlx_engine_close(engine);
}

TEST_MAIN(CASE(the_output_head_times_an_embedding_gives_the_logits),
          CASE(an_embedding_does_not_depend_on_other_sequences),
          CASE(wrong_arguments_are_refused_and_keep_the_sequence))
