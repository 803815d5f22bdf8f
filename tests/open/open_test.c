// mlx_open: one call opens a bundle, a GGUF file, a Hugging Face directory or a name, and reports what it
// does.
#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "open/locate.h"
#include "runtime/mlxcel.h"
#include "tests/support/check.h"
#include "tests/support/command.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define TINY_GGUF MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama.gguf"
#define PROMPT "the quick brown"

// Hugging Face's tokens for the prompt (tests/goldens/tiny-llama.json).
static const int32_t expected[] = {142, 218, 177, 4, 129, 92, 159, 114, 218};
#define EXPECTED_COUNT (sizeof expected / sizeof *expected)

static mlx_engine_options_t cpu_options(void) {
  mlx_engine_options_t options;
  mlx_engine_options_initialize(&options);
  options.device = MLX_USE_CPU;
  options.context = 256;
  return options;
}

static void check_tokens(mlx_engine_t *engine, const int32_t *ids, size_t count) {
  mlx_session_t *session;
  mlx_generate_options_t options;
  mlx_generation_t result;
  mlx_generate_options_initialize(&options);
  options.max_tokens = EXPECTED_COUNT;
  options.ignore_eos = true;
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_OK(mlx_session_generate(session, ids, count, &options, &result));
  CHECK_INT(result.count, EXPECTED_COUNT);
  for (size_t i = 0; i < EXPECTED_COUNT; ++i) CHECK_INT(result.ids[i], expected[i]);
  mlx_generation_clear(&result);
  mlx_session_free(session);
}

TEST(a_gguf_file_and_a_directory_are_opened_by_one_call) {
  static const char *const models[] = {TINY_GGUF, TINY};
  for (size_t i = 0; i < sizeof models / sizeof *models; ++i) {
    const mlx_engine_options_t options = cpu_options();
    mlx_engine_t *engine;
    int32_t *ids;
    size_t count;
    CHECK_OK(mlx_open(models[i], &options, &engine));
    CHECK_INT(mlx_engine_info(engine).context, 256);
    CHECK(!mlx_engine_prompt(engine, &count) && !count);
    CHECK_OK(mlx_engine_tokenize(engine, PROMPT, strlen(PROMPT), &ids, &count));
    check_tokens(engine, ids, count);
    mlx_engine_free_ids(ids);
    mlx_engine_close(engine);
  }
}

TEST(the_engine_keeps_the_tokens_of_the_prompt) {
  mlx_engine_options_t options = cpu_options();
  mlx_engine_t *engine;
  size_t count;
  options.prompt = PROMPT;
  options.prompt_length = strlen(PROMPT);
  CHECK_OK(mlx_open(TINY_GGUF, &options, &engine));
  const int32_t *ids = mlx_engine_prompt(engine, &count);
  check_tokens(engine, ids, count);
  mlx_engine_close(engine);
  options.context = 4;
  CHECK_ERROR(mlx_open(TINY_GGUF, &options, &engine), MLX_USAGE, "7 tokens");
  CHECK(!engine);
}

TEST(options_reach_the_compiler) {
  mlx_engine_options_t options = cpu_options();
  mlx_engine_t *engine;
  options.dtype = "bf16";
  CHECK_OK(mlx_open(TINY, &options, &engine));
  CHECK_TEXT(mlx_engine_info(engine).dtype, "bf16");
  CHECK_TEXT(mlx_engine_info(engine).kv, "bf16");
  mlx_engine_close(engine);
  options.dtype = "banana";
  CHECK_ERROR(mlx_open(TINY, &options, &engine), MLX_USAGE, "banana");
  options.dtype = NULL;
  options.quantize = "q3";
  CHECK_ERROR(mlx_open(TINY, &options, &engine), MLX_USAGE, "q3");
  options.quantize = NULL;
  options.cpu_level = "x86-64-v9";
  CHECK_ERROR(mlx_open(TINY, &options, &engine), MLX_USAGE, "unknown CPU level 'x86-64-v9'");
}

TEST(a_bundle_is_opened_by_the_same_call) {
  char folder[] = "/tmp/mlxcel-open-XXXXXX", bundle[64];
  mlx_engine_options_t options = cpu_options();
  mlx_engine_t *engine;
  command_t run;
  size_t count;
  CHECK(mkdtemp(folder));
  snprintf(bundle, sizeof bundle, "%s/tiny.mlxb", folder);
  RUN(&run, "compile", TINY, "-o", bundle);
  if (run.exit_code) CHECK_FAIL("exit status %d: %s", run.exit_code, run.err);
  command_free(&run);
  options.dtype = "auto";
  options.kernels = "auto";
  options.prompt = PROMPT;
  options.prompt_length = strlen(PROMPT);
  CHECK_OK(mlx_open(bundle, &options, &engine));
  const int32_t *ids = mlx_engine_prompt(engine, &count);
  check_tokens(engine, ids, count);
  mlx_engine_close(engine);
  options.dtype = "bf16";
  CHECK_ERROR(mlx_open(bundle, &options, &engine), MLX_USAGE, "not for --dtype bf16");
  options.dtype = NULL;
  options.quantize = "q4";
  CHECK_ERROR(mlx_open(bundle, &options, &engine), MLX_USAGE, "--quantize needs the source model");
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(an_unknown_name_is_an_error_with_a_hint) {
  const mlx_engine_options_t options = cpu_options();
  mlx_engine_t *engine;
  mlx_status_t status = mlx_open("no-such-model", &options, &engine);
  CHECK_INT(mlx_status_code(status), MLX_NOT_FOUND);
  CHECK_CONTAINS(mlx_status_message(status), "no model 'no-such-model'");
  CHECK_CONTAINS(mlx_status_hint_text(status), "mlxcel list --available");
  mlx_status_free(status);
  CHECK(!engine);
  CHECK_ERROR(mlx_open("/nowhere/model.gguf", &options, &engine), MLX_NOT_FOUND, "/nowhere/model.gguf");
}

TEST(a_name_is_checked_without_a_network) {
  CHECK_OK(mlx_locate_check(TINY));
  CHECK_OK(mlx_locate_check("hf:ORG/NAME"));  // may be pulled
  CHECK_OK(mlx_locate_check("smollm2:135m"));
  CHECK_OK(mlx_locate_check("oci://127.0.0.1:9/name:tag"));
  CHECK_ERROR(mlx_locate_check("no-such-model"), MLX_NOT_FOUND, "no model 'no-such-model'");
  CHECK_ERROR(mlx_locate_check("/nowhere/model.gguf"), MLX_NOT_FOUND, "/nowhere/model.gguf");
  CHECK_ERROR(mlx_locate_check("http://127.0.0.1:9/model.mlxb"), MLX_USAGE, "only GGUF files");
}

// Cancels at the first text that contains |word|.
typedef struct watcher {
  mlx_cancel_t *cancel;
  const char *word;
  mlx_text_t texts;
} watcher_t;

static void watch(void *user, mlx_report_kind_t kind, const char *text) {
  watcher_t *watcher = user;
  mlx_text_printf(&watcher->texts, "%s%s\n", kind == MLX_REPORT_NOTE ? "note: " : "", text);
  if (watcher->word && strstr(text, watcher->word)) mlx_cancel_set(watcher->cancel);
}

static void cancel_at(watcher_t *watcher, const mlx_engine_options_t *options) {
  mlx_engine_t *engine;
  mlx_engine_options_t cancelled = *options;
  CHECK_OK(mlx_cancel_create(&watcher->cancel));
  const mlx_report_t report = {.emit = watch, .user = watcher, .cancel = watcher->cancel};
  cancelled.report = &report;
  CHECK_ERROR(mlx_open(TINY, &cancelled, &engine), MLX_CANCELLED, "cancelled");
  CHECK(!engine);
  mlx_cancel_free(watcher->cancel);
}

TEST(progress_is_reported_and_opening_can_be_cancelled) {
  char folder[] = "/tmp/mlxcel-open-XXXXXX", before[4096];
  const mlx_engine_options_t options = cpu_options();
  snprintf(before, sizeof before, "%s", getenv("MLXCEL_CACHE") ? getenv("MLXCEL_CACHE") : "");
  CHECK(mkdtemp(folder));
  setenv("MLXCEL_CACHE", folder, 1);  // nothing is compiled yet
  watcher_t watcher = {.word = "compiling tiny-llama for cpu"};
  cancel_at(&watcher, &options);
  CHECK_OK(mlx_text_finish(&watcher.texts));
  CHECK_CONTAINS(watcher.texts.data, "note: compiling tiny-llama for cpu");
  CHECK(!strstr(watcher.texts.data, "compiled tiny-llama"));  // iree-compile was ended
  mlx_text_clear(&watcher.texts);
  setenv("MLXCEL_CACHE", before, 1);
  if (!before[0]) unsetenv("MLXCEL_CACHE");
  CHECK_OK(mlx_remove_tree(folder));
}

TEST_MAIN(CASE(a_gguf_file_and_a_directory_are_opened_by_one_call),
          CASE(the_engine_keeps_the_tokens_of_the_prompt), CASE(options_reach_the_compiler),
          CASE(a_bundle_is_opened_by_the_same_call), CASE(an_unknown_name_is_an_error_with_a_hint),
          CASE(a_name_is_checked_without_a_network), CASE(progress_is_reported_and_opening_can_be_cancelled))
