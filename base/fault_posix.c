// The table of mapped files and the SIGBUS handler that searches it. See fault.h.
//
// The handler may interrupt a thread that changes the table. So the table is a fixed array of atomics: an
// entry counts while its |begin| is not 0, and |begin| is written last and cleared first.
#include "base/fault.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_MAPS 512  // files mapped at the same time that are reported by name
#define MAX_NAME 512  // bytes of a path that are reported; its end

typedef struct map_entry {
  _Atomic uintptr_t begin;
  _Atomic uintptr_t end;
  atomic_flag taken;
  atomic_bool hit;
  char path[MAX_NAME];
} map_entry_t;

static map_entry_t entries[MAX_MAPS];
static void (*fault_handler)(const char *path);
static atomic_bool recovers;
static atomic_ullong fault_count;
static uintptr_t page_bytes;

void mlx_fault_add_map(const void *data, unsigned long long size, const char *path) {
  const size_t length = strlen(path), skipped = length < MAX_NAME ? 0 : length - (MAX_NAME - 1);
  for (size_t i = 0; i < MAX_MAPS; ++i) {
    map_entry_t *entry = &entries[i];
    if (atomic_flag_test_and_set(&entry->taken)) continue;
    memcpy(entry->path, path + skipped, length - skipped + 1);
    atomic_store(&entry->hit, false);
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

// The end of a map in whole pages, which are what the system maps.
static uintptr_t end_of(const map_entry_t *entry) {
  return (atomic_load(&entry->end) + page_bytes - 1) & ~(page_bytes - 1);
}

static map_entry_t *find(uintptr_t address) {
  for (size_t i = 0; i < MAX_MAPS; ++i) {
    const uintptr_t begin = atomic_load(&entries[i].begin);
    if (begin && address >= begin && address < end_of(&entries[i])) return &entries[i];
  }
  return NULL;
}

// Replaces the map from the page of |address| on. One call for all pages after it: the system limits the
// number of maps.
static bool replace(map_entry_t *entry, uintptr_t address) {
  const uintptr_t start = address & ~(page_bytes - 1);
  const int kept = errno;
  const bool ok = mmap((void *)start, end_of(entry) - start, PROT_READ,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
  errno = kept;
  atomic_store(&entry->hit, ok);
  if (ok) atomic_fetch_add(&fault_count, 1);
  return ok;
}

bool mlx_fault_hit(const void *data) {
  const map_entry_t *entry = atomic_load(&fault_count) ? find((uintptr_t)data) : NULL;
  return entry && atomic_load(&entry->hit);
}

unsigned long long mlx_fault_count(void) { return atomic_load(&fault_count); }

void mlx_fault_recover(void) { atomic_store(&recovers, true); }

static void handle(int number, siginfo_t *info, void *context) {
  const uintptr_t address = (uintptr_t)info->si_addr;
  map_entry_t *entry = find(address);
  (void)context;
  if (entry && atomic_load(&recovers) && replace(entry, address)) return;
  if (entry) fault_handler(entry->path);
  signal(number, SIG_DFL);  // the instruction runs again when the handler returns, and ends the process
}

void mlx_fault_watch(void (*on_fault)(const char *path)) {
  struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO};
  sigemptyset(&action.sa_mask);
  fault_handler = on_fault;
  page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
  sigaction(SIGBUS, &action, NULL);
}
