// The table of unfinished files. See unfinished.h.
//
// A signal handler may interrupt a thread that changes the table. So the table is a fixed array, and an entry
// counts while its |owner| is not 0: it is written last and cleared first.
#include "base/unfinished.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define MAX_FILES 64
#define MAX_PATH_BYTES 1024

typedef struct unfinished {
  atomic_flag taken;
  _Atomic long owner;  // process id
  char path[MAX_PATH_BYTES];
} unfinished_t;

static unfinished_t files[MAX_FILES];

int mlx_unfinished_add(const char *path) {
  const size_t length = strlen(path);
  if (length >= MAX_PATH_BYTES) return 0;
  for (int i = 0; i < MAX_FILES; ++i) {
    if (atomic_flag_test_and_set(&files[i].taken)) continue;
    memcpy(files[i].path, path, length + 1);
    atomic_store(&files[i].owner, (long)getpid());
    return i + 1;
  }
  return 0;
}

void mlx_unfinished_remove(int number) {
  if (!number) return;
  atomic_store(&files[number - 1].owner, 0);
  atomic_flag_clear(&files[number - 1].taken);
}

void mlx_unfinished_unlink(void) {
  const long here = (long)getpid();
  for (int i = 0; i < MAX_FILES; ++i) {
    if (atomic_load(&files[i].owner) == here) unlink(files[i].path);
  }
}
