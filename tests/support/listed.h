// How many fixtures a test must find: the committed list tests/fixtures.txt has every file of tests/fixtures
// and tests/goldens (tests/fixtures.py), so that one that vanished is missed.
#ifndef MLXCEL_TESTS_LISTED_H_
#define MLXCEL_TESTS_LISTED_H_

#include "base/file.h"
#include "base/memory.h"
#include "tests/support/check.h"

// The number of listed files |start|NAME|ending|, where NAME has no '/'.
static inline size_t listed_files(const char *start, const char *ending) {
  const size_t before = strlen(start), after = strlen(ending);
  size_t count = 0;
  char *text;
  CHECK_OK(mlx_read_file(MLXCEL_SOURCE_DIR "/tests/fixtures.txt", 1 << 20, &text, NULL));
  for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
    const size_t length = strcspn(line, "\r\n");
    if (length <= before + after || memcmp(line, start, before) ||
        memcmp(line + length - after, ending, after))
      continue;
    count += !memchr(line + before, '/', length - before - after);
  }
  mlx_free(text);
  CHECK(count > 0);
  return count;
}

// Fails unless a test that compared |count| fixtures compared all |listed|. MLXCEL_ARCH=NAME selects one.
static inline void check_compared(size_t count, size_t listed) {
  if (getenv("MLXCEL_ARCH")) {
    CHECK(count <= listed);
  } else if (count != listed) {
    CHECK_FAIL("%zu fixtures were compared, and tests/fixtures.txt lists %zu", count, listed);
  }
}

#endif  // MLXCEL_TESTS_LISTED_H_
