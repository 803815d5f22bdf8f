// Every architecture, on the CPU in f32, against Hugging Face: the same tokens, and the logits within one in ten thousand.
//
// A fixture is a folder in tests/fixtures with goldens of the same name that tests/parity/make_fixtures.py made: what is found
// there is run. MLXCEL_ARCH=NAME runs one. The fixtures have no tokenizer: the tests feed ids, and lend them another model's.
#include <math.h>
#include <unistd.h>

#include "base/file.h"
#include "compiler/compile.h"
#include "runtime/mlxcel.h"
#include "tests/golden.h"

#define FIXTURES MLXCEL_SOURCE_DIR "/tests/fixtures/"
#define GOLDENS MLXCEL_SOURCE_DIR "/tests/goldens/"
#define TOKENIZER FIXTURES "tiny-llama/tokenizer.json"
#define VOCAB 320
#define STEPS 48

static mlx_engine_t *open_compiled(const char *model) {
  mlx_cache_t *cache;
  mlx_compiled_t compiled;
  mlx_engine_t *engine;
  mlx_engine_options_t options;
  mlx_engine_options_initialize(&options);
  CHECK_OK(mlx_cache_open(NULL, &cache));
  CHECK_OK(mlx_compile(model, &(mlx_compile_options_t){.context = 256}, cache, &compiled));
  const mlx_model_parts_t parts = {.name = model,
                                   .manifest_name = model,
                                   .tokenizer_name = TOKENIZER,
                                   .manifest = compiled.manifest,
                                   .manifest_length = compiled.manifest_length,
                                   .tokenizer = compiled.tokenizer,
                                   .tokenizer_length = compiled.tokenizer_length,
                                   .vmfb_path = compiled.vmfb_path,
                                   .weights_path = compiled.weights_path};
  CHECK_OK(mlx_engine_open(&parts, &options, &engine));
  mlx_compiled_release(&compiled);
  mlx_cache_close(cache);
  return engine;
}

// The fixture beside a tokenizer, as links in a folder of their own.
static void link_model(const char *name, const char *folder) {
  static const char *const files[] = {"config.json", "generation_config.json", "model.safetensors"};
  char from[512], to[512];
  for (int i = 0; i < 3; ++i) {
    snprintf(from, sizeof from, FIXTURES "%s/%s", name, files[i]);
    snprintf(to, sizeof to, "%s/%s", folder, files[i]);
    CHECK(!symlink(from, to));
  }
  snprintf(to, sizeof to, "%s/tokenizer.json", folder);
  CHECK(!symlink(TOKENIZER, to));
}

// How far the logits are from the golden ones, as a share of the largest.
static double logits_error(mlx_session_t *session, yyjson_val *expected) {
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

static double check_prompt(mlx_engine_t *engine, const char *name, size_t number, yyjson_val *result) {
  int32_t ids[256], expected[STEPS], chosen[STEPS];
  const size_t length = golden_read_ids(yyjson_obj_get(result, "prompt_ids"), ids, 256);
  CHECK_INT(golden_read_ids(yyjson_obj_get(result, "output_ids"), expected, STEPS), STEPS);
  mlx_session_t *session;
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_OK(mlx_session_read(session, ids, length, chosen));
  CHECK_OK(mlx_session_steps(session, chosen + 1, STEPS - 1));
  for (int i = 0; i < STEPS; ++i) {
    if (chosen[i] != expected[i]) CHECK_FAIL("%s: prompt %zu: token %d is %d, expected %d", name, number, i, chosen[i], expected[i]);
  }
  const double error = logits_error(session, yyjson_obj_get(result, "last_logits"));
  if (!(error <= 1e-4)) CHECK_FAIL("%s: prompt %zu: logits differ by %g of the largest", name, number, error);
  mlx_session_free(session);
  return error;
}

static mlx_status_t check_fixture(void *user, const char *name) {
  size_t *checked = user, number, count;
  const char *only = getenv("MLXCEL_ARCH");
  char folder[] = "/tmp/mlxcel-arch-XXXXXX", path[512];
  yyjson_val *result;
  double worst = 0;
  snprintf(path, sizeof path, GOLDENS "%s.json", name);
  if (!mlx_is_file(path) || (only && strcmp(only, name))) return NULL;
  golden_t golden = golden_open(path);
  if (yyjson_obj_get(yyjson_arr_get(golden.results, 0), "last_logits")) {
    CHECK(mkdtemp(folder));
    link_model(name, folder);
    mlx_engine_t *engine = open_compiled(folder);
    yyjson_arr_foreach(golden.results, number, count, result) { worst = fmax(worst, check_prompt(engine, name, number, result)); }
    mlx_engine_close(engine);
    CHECK_OK(mlx_remove_tree(folder));
    fprintf(stderr, "  %-16s %zu x %d tokens equal, logits within %.1e\n", name, yyjson_arr_size(golden.results), STEPS, worst);
    ++*checked;
  }
  golden_close(&golden);
  return NULL;
}

TEST(every_architecture_matches_hf_token_for_token) {
  size_t checked = 0;
  CHECK_OK(mlx_list_dir(FIXTURES, check_fixture, &checked));
  CHECK(checked > 0);
}

TEST_MAIN(CASE(every_architecture_matches_hf_token_for_token))
