// Embeddings of a session, on the compiled tiny model.
#include <math.h>

#include "base/memory.h"
#include "tests/compiled.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"

static float *embed(mlx_session_t *session, const int32_t *ids, size_t count, size_t size) {
  float *out;
  CHECK_OK(mlx_alloc(size, sizeof *out, &out));
  CHECK_OK(mlx_session_embed(session, ids, count, out, size));
  return out;
}

static double largest_difference(const float *a, const float *b, size_t size) {
  double largest = 0;
  for (size_t i = 0; i < size; ++i) largest = fmax(largest, fabs((double)a[i] - b[i]));
  return largest;
}

static void check_engine(mlx_kernel_choice_t kernels) {
  mlx_engine_t *engine = open_compiled(TINY, &(mlx_compile_options_t){.kernels = kernels}, NULL, 0);
  const size_t size = (size_t)mlx_engine_info(engine).hidden;
  mlx_session_t *session;
  int32_t ids[40], next;
  for (int i = 0; i < 40; ++i) ids[i] = 5 + i * 7 % 200;
  CHECK(size > 0);
  CHECK_OK(mlx_session_create(engine, &session));
  float *whole = embed(session, ids, 40, size);
  double sum = 0;
  for (size_t i = 0; i < size; ++i) sum += (double)whole[i] * whole[i];
  CHECK(fabs(sum - 1) < 1e-5);
  CHECK_INT(mlx_session_length(session), 40);
  CHECK_OK(mlx_session_rewind(session, 0));
  CHECK_OK(mlx_session_read(session, ids, 30, &next));  // in two parts
  float *parts = embed(session, ids + 30, 10, size);
  CHECK(largest_difference(whole, parts, size) < 1e-5);
  CHECK_OK(mlx_session_rewind(session, 0));
  float *other = embed(session, ids, 39, size);
  CHECK(largest_difference(whole, other, size) > 1e-3);
  CHECK_ERROR(mlx_session_embed(session, ids, 1, other, size - 1), MLX_USAGE, "the caller requested");
  mlx_free(whole);
  mlx_free(parts);
  mlx_free(other);
  mlx_session_free(session);
  mlx_engine_close(engine);
}

TEST(an_embedding_does_not_depend_on_how_the_text_was_read) { check_engine(MLX_KERNELS_AUTO); }

TEST(a_module_of_the_generic_path_returns_embeddings_too) { check_engine(MLX_KERNELS_OFF); }

TEST_MAIN(CASE(an_embedding_does_not_depend_on_how_the_text_was_read),
          CASE(a_module_of_the_generic_path_returns_embeddings_too))
