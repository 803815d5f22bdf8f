// Directories quantized by MLX, GPTQ and AWQ, computed on the kernel path with quantized weights, give the
// same logits as the dequantized model on the generic path.
#include <math.h>

#include "compiler/weights.h"
#include "tests/support/compiled.h"
#include "tests/support/distance.h"
#include "tests/support/packed_subjects.h"

#define DECODED 6

static char root[] = "/tmp/mlxcel-packed-directory-XXXXXX";

// The logits after a prompt, and after DECODED more tokens: |forced|, or greedily generated ones if NULL.
static void run_model(const char *folder, mlx_compile_options_t options, const int32_t *forced, int32_t *ids,
                      float logits[2][VOCAB]) {
  mlx_engine_t *engine = open_compiled(folder, &options, NULL, 2);
  mlx_session_t *session;
  int32_t prompt[40];
  for (int i = 0; i < 40; ++i) prompt[i] = i * 37 % VOCAB;
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_OK(mlx_session_read(session, prompt, 40, &ids[0]));
  CHECK_OK(mlx_session_logits(session, logits[0], VOCAB));
  if (forced) CHECK_OK(mlx_session_read(session, forced, DECODED, &ids[DECODED]));
  if (!forced) CHECK_OK(mlx_session_steps(session, ids + 1, DECODED));
  CHECK_OK(mlx_session_logits(session, logits[1], VOCAB));
  if (options.weights == MLX_WEIGHTS_QUANTIZED) CHECK_TEXT(mlx_engine_info(engine).dtype, "quantized");
  mlx_session_free(session);
  mlx_engine_close(engine);
}

static void check_subject(const packed_subject_t *subject) {
  folder_t packed, dequantized;
  int32_t ids[DECODED + 1], expected_ids[DECODED + 1];
  float logits[2][VOCAB], expected[2][VOCAB];
  write_packed_subject(subject, root, &packed, &dequantized);
  run_model(
      packed.path,
      (mlx_compile_options_t){
          .target = "cpu", .context = 64, .weights = MLX_WEIGHTS_QUANTIZED, .kernels = MLX_KERNELS_REQUIRED},
      NULL, ids, logits);
  run_model(dequantized.path,
            (mlx_compile_options_t){.target = "cpu", .context = 64, .kernels = MLX_KERNELS_OFF}, ids,
            expected_ids, expected);
  for (int i = 0; i < 2; ++i) {
    const double error = distance(logits[i], expected[i], VOCAB);
    fprintf(stderr, "  %s, %s: logits within %.1e\n", subject->kind.name, i ? "decode" : "prefill", error);
    CHECK(error < 2e-5);
  }
  CHECK_INT(ids[0], expected_ids[0]);
  CHECK_INT(ids[DECODED], expected_ids[DECODED]);
  end(&packed);
  end(&dequantized);
}

TEST(quantized_directories_match_dequantized_ones) {
  CHECK(mkdtemp(root));
  for (size_t i = 0; i < PACKED_SUBJECTS; ++i) check_subject(&packed_subjects[i]);
  CHECK_OK(mlx_remove_tree(root));
}

TEST_MAIN(CASE(quantized_directories_match_dequantized_ones))
