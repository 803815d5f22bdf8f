// The temporary folder of a test. The test sets its name, creates it with mkdtemp and removes it.
#ifndef MLXCEL_TESTS_FOLDER_H_
#define MLXCEL_TESTS_FOLDER_H_

#include <stdio.h>

static char folder[64];

// Returns the path of |name| in the folder; valid for the next 7 calls.
static inline const char *in_folder(const char *name) {
  static char paths[8][320];
  static int next;
  char *path = paths[next++ % 8];
  snprintf(path, sizeof paths[0], "%s/%s", folder, name);
  return path;
}

#endif  // MLXCEL_TESTS_FOLDER_H_
