// Compares emitted text with a golden file in tests/goldens.
#ifndef MLXCEL_TESTS_GOLDEN_TEXT_H_
#define MLXCEL_TESTS_GOLDEN_TEXT_H_

#include "base/file.h"
#include "base/memory.h"
#include "tests/support/check.h"

static inline void check_golden_text(const char *text, size_t length, const char *path) {
  if (getenv("MLXCEL_UPDATE_GOLDENS")) CHECK_OK(mlx_write_file(path, text, length));
  char *golden;
  CHECK_OK(mlx_read_file(path, SIZE_MAX, &golden, NULL));
  if (strcmp(text, golden)) {
    size_t at = 0, line = 1;
    for (; text[at] && text[at] == golden[at]; ++at) line += text[at] == '\n';
    CHECK_FAIL(
        "the emitted text differs from %s at line %zu; review the difference, then accept it with "
        "MLXCEL_UPDATE_GOLDENS=1",
        path, line);
  }
  mlx_free(golden);
}

#endif  // MLXCEL_TESTS_GOLDEN_TEXT_H_
