// libmlxcel.so, loaded at run time as another program does: with the compiler, and without it.
#include <dlfcn.h>
#include <mlxcel/mlxcel.h>

#include "tests/support/check.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define PROMPT "the quick brown"

static void *library;

// The address of a function of |library|, as the type of its declaration.
#define FROM(name) (*(__typeof__(name) **)find(#name))
static void *find(const char *name) {
  static void *address;
  address = dlsym(library, name);
  if (!address) CHECK_FAIL("%s", dlerror());
  return &address;
}

static mlxcel_status_t open_model(const char *path, const char *model, mlxcel_engine_t **out_engine) {
  mlxcel_engine_options_t options;
  library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) CHECK_FAIL("%s", dlerror());
  FROM(mlxcel_engine_options_initialize)(&options);
  options.device = MLXCEL_USE_CPU;
  options.context = 256;
  options.prompt = PROMPT;
  options.prompt_length = strlen(PROMPT);
  return FROM(mlxcel_open)(model, &options, out_engine);
}

TEST(the_library_opens_a_gguf_file_and_a_directory) {
  static const char *const models[] = {TINY ".gguf", TINY};
  static const int32_t expected[] = {142, 218, 177, 4, 129, 92, 159, 114};  // Hugging Face's
  for (size_t i = 0; i < 2; ++i) {
    mlxcel_engine_t *engine;
    mlxcel_session_t *session;
    mlxcel_generate_options_t options;
    mlxcel_generation_t result;
    size_t count;
    CHECK(!open_model(MLXCEL_SHARED, models[i], &engine));
    const int32_t *ids = FROM(mlxcel_engine_prompt)(engine, &count);
    FROM(mlxcel_generate_options_initialize)(&options);
    options.max_tokens = sizeof expected / sizeof *expected;
    options.ignore_eos = true;
    CHECK(!FROM(mlxcel_session_create)(engine, &session));
    CHECK(!FROM(mlxcel_session_generate)(session, ids, count, &options, &result));
    CHECK_INT(result.count, options.max_tokens);
    CHECK(!memcmp(result.ids, expected, sizeof expected));
    FROM(mlxcel_generation_clear)(&result);
    FROM(mlxcel_session_free)(session);
    FROM(mlxcel_engine_close)(engine);
  }
}

TEST(the_library_without_the_compiler_names_the_packages_that_have_it) {
  mlxcel_engine_t *engine;
  mlxcel_status_t status = open_model(MLXCEL_SHARED_RUNTIME_ONLY, TINY ".gguf", &engine);
  CHECK_INT(FROM(mlxcel_status_code)(status), MLXCEL_UNSUPPORTED);
  CHECK_CONTAINS(FROM(mlxcel_status_message)(status), "tiny-llama.gguf' is not compiled");
  CHECK_CONTAINS(FROM(mlxcel_status_hint_text)(status),
                 "the Debian package mlxcel, or pip install mlxcel[compiler]");
  FROM(mlxcel_status_free)(status);
  CHECK(!engine);
}

TEST_MAIN(CASE(the_library_opens_a_gguf_file_and_a_directory),
          CASE(the_library_without_the_compiler_names_the_packages_that_have_it))
