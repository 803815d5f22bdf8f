// The folder that a test works in: it names and makes it (mkdtemp), and removes it.
#ifndef MLXCEL_TESTS_FOLDER_H_
#define MLXCEL_TESTS_FOLDER_H_

#include <stdio.h>

static char folder[64];

// A path in it; good for the next few calls.
static inline const char *in_folder(const char *name) {
  static char paths[8][320];
  static int next;
  char *path = paths[next++ % 8];
  snprintf(path, sizeof paths[0], "%s/%s", folder, name);
  return path;
}

#endif  // MLXCEL_TESTS_FOLDER_H_
