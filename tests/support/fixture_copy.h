// A copy of a model fixture that has a tokenizer, for tests that run the command.
#ifndef MLXCEL_TESTS_FIXTURE_COPY_H_
#define MLXCEL_TESTS_FIXTURE_COPY_H_

#include "base/file.h"
#include "tests/support/check.h"
#include "tests/support/folder.h"

#define FIXTURES MLXCEL_SOURCE_DIR "/tests/fixtures/"

// Copies tests/fixtures/|name| to the folder of folder.h, with the tokenizer of tiny-llama: the fixtures have
// the same vocabulary, but no tokenizer.
static inline void copy_fixture(const char *name) {
  static const char *const files[] = {"config.json", "generation_config.json", "model.safetensors"};
  char from[512];
  for (size_t i = 0; i < sizeof files / sizeof *files; ++i) {
    snprintf(from, sizeof from, FIXTURES "%s/%s", name, files[i]);
    CHECK_OK(mlx_copy_file(from, in_folder(files[i])));
  }
  CHECK_OK(mlx_copy_file(FIXTURES "tiny-llama/tokenizer.json", in_folder("tokenizer.json")));
}

#endif  // MLXCEL_TESTS_FIXTURE_COPY_H_
