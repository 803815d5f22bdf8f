// The table of mapped files and the SIGBUS handler that searches it. See fault.h.
//
// The handler may interrupt a thread that changes the table. So the table is a fixed array of atomics: an
// entry counts while its |begin| is not 0, and |begin| is written last and cleared first.
#include "base/fault.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#define MAX_MAPS 512  // files mapped at the same time that are reported by name
#define MAX_NAME 512  // bytes of a path that are reported; its end

typedef struct map_entry {
  _Atomic uintptr_t begin;
  _Atomic uintptr_t end;
  atomic_flag taken;
  char path[MAX_NAME];
} map_entry_t;

static map_entry_t entries[MAX_MAPS];
static void (*fault_handler)(const char *path);

void mlx_fault_add_map(const void *data, unsigned long long size, const char *path) {
  const size_t length = strlen(path), skipped = length < MAX_NAME ? 0 : length - (MAX_NAME - 1);
  for (size_t i = 0; i < MAX_MAPS; ++i) {
    map_entry_t *entry = &entries[i];
    if (atomic_flag_test_and_set(&entry->taken)) continue;
    memcpy(entry->path, path + skipped, length - skipped + 1);
    atomic_store(&entry->end, (uintptr_t)data + (uintptr_t)size);
    atomic_store(&entry->begin, (uintptr_t)data);
    return;
  }
}

void mlx_fault_remove_map(const void *data) {
  for (size_t i = 0; i < MAX_MAPS; ++i) {
    if (atomic_load(&entries[i].begin) != (uintptr_t)data) continue;
    atomic_store(&entries[i].begin, 0);
    atomic_flag_clear(&entries[i].taken);
    return;
  }
}

static void handle(int number, siginfo_t *info, void *context) {
  const uintptr_t address = (uintptr_t)info->si_addr;
  (void)context;
  for (size_t i = 0; i < MAX_MAPS; ++i) {
    const uintptr_t begin = atomic_load(&entries[i].begin);
    // The end is rounded up to whole pages, which are what the system maps.
    if (begin && address >= begin && address < ((atomic_load(&entries[i].end) + 65535) & ~(uintptr_t)65535))
      fault_handler(entries[i].path);
  }
  signal(number, SIG_DFL);  // the instruction runs again when the handler returns, and ends the process
}

void mlx_fault_watch(void (*on_fault)(const char *path)) {
  struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO};
  sigemptyset(&action.sa_mask);
  fault_handler = on_fault;
  sigaction(SIGBUS, &action, NULL);
}
