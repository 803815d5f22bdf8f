// Shared by arch_test.c and arch_gpu_test.c: the fixtures of tests/fixtures, whose goldens with logits are
// written by make_fixtures.py and numpy_models.py of tests/parity. The fixtures have no tokenizer. The tests
// pass token ids and add tiny-llama's tokenizer, because compiling needs one.
#ifndef MLXCEL_TESTS_ARCHITECTURES_H_
#define MLXCEL_TESTS_ARCHITECTURES_H_

#include <math.h>
#include <unistd.h>

#include "runtime/mlxcel.h"
#include "tests/support/golden.h"
#include "tests/support/listed.h"

#define FIXTURES MLXCEL_SOURCE_DIR "/tests/fixtures/"
#define GOLDENS MLXCEL_SOURCE_DIR "/tests/goldens/"
#define TOKENIZER FIXTURES "tiny-llama/tokenizer.json"
#define CONTEXT 256
#define VOCAB 320
#define STEPS 48

static inline void link_file(const char *name, const char *folder, const char *file) {
  char from[512], to[512];
  snprintf(from, sizeof from, FIXTURES "%s/%s", name, file);
  snprintf(to, sizeof to, "%s/%s", folder, file);
  CHECK(!symlink(from, to));
}

// Links the files of the fixture and a tokenizer into |folder|.
static inline void link_model(const char *name, const char *folder) {
  static const char *const files[] = {"config.json", "generation_config.json", "model.safetensors"};
  char to[512];
  for (int i = 0; i < 3; ++i) link_file(name, folder, files[i]);
  snprintf(to, sizeof to, "%s/tokenizer.json", folder);
  CHECK(!symlink(TOKENIZER, to));
}

// The largest difference from the golden logits, relative to the largest golden logit.
static inline double logits_error(mlx_session_t *session, yyjson_val *expected) {
  float logits[VOCAB];
  double worst = 0, largest = 0;
  CHECK_OK(mlx_session_logits(session, logits, VOCAB));
  for (size_t i = 0; i < VOCAB; ++i) {
    const double want = yyjson_get_num(yyjson_arr_get(expected, i));
    worst = fmax(worst, fabs(logits[i] - want));
    largest = fmax(largest, fabs(want));
  }
  return worst / largest;
}

static inline double check_prompt(mlx_engine_t *engine, const char *name, size_t number, yyjson_val *result) {
  int32_t ids[CONTEXT], expected[STEPS], chosen[STEPS];
  const size_t length = golden_read_ids(yyjson_obj_get(result, "prompt_ids"), ids, CONTEXT);
  CHECK_INT(golden_read_ids(yyjson_obj_get(result, "output_ids"), expected, STEPS), STEPS);
  mlx_session_t *session;
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_OK(mlx_session_read(session, ids, length, chosen));
  CHECK_OK(mlx_session_steps(session, chosen + 1, STEPS - 1));
  for (int i = 0; i < STEPS; ++i) {
    if (chosen[i] != expected[i])
      CHECK_FAIL("%s: prompt %zu: token %d is %d, expected %d", name, number, i, chosen[i], expected[i]);
  }
  const double error = logits_error(session, yyjson_obj_get(result, "last_logits"));
  if (!(error <= 1e-4)) CHECK_FAIL("%s: prompt %zu: logits differ by %g of the largest", name, number, error);
  mlx_session_free(session);
  return error;
}

// True if |name| is a directory with a model, which must have goldens with logits, and MLXCEL_ARCH does not
// select another. The goldens of tiny-llama are texts: generate_test.c compares them.
static inline bool is_architecture(const char *name) {
  const char *only = getenv("MLXCEL_ARCH");
  char path[512];
  snprintf(path, sizeof path, FIXTURES "%s/config.json", name);
  return mlx_is_file(path) && strcmp(name, "tiny-llama") && (!only || !strcmp(only, name));
}

// How many names is_architecture must accept.
static inline size_t listed_architectures(void) {
  return listed_files("fixtures/", "/config.json") - 1;  // tiny-llama
}

static inline void check_goldens(mlx_engine_t *engine, const char *name, const char *path) {
  golden_t golden = golden_open(path);
  size_t number, count;
  yyjson_val *result;
  double worst = 0;
  yyjson_arr_foreach(golden.results, number, count, result) {
    worst = fmax(worst, check_prompt(engine, name, number, result));
  }
  fprintf(stderr, "  %-16s %zu x %d tokens equal, logits within %.1e\n", name,
          yyjson_arr_size(golden.results), STEPS, worst);
  golden_close(&golden);
}

#endif  // MLXCEL_TESTS_ARCHITECTURES_H_
