// The request for AMX tile state, and the CPU count, on POSIX.
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cpu.h"

bool mlx_cpu_request_tiles(void) {
#ifdef __x86_64__
  enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
  return !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
#else
  return false;
#endif
}

int mlx_cpu_count(void) {
  cpu_set_t set;
  if (!sched_getaffinity(0, sizeof set, &set)) return CPU_COUNT(&set);
  long count = sysconf(_SC_NPROCESSORS_ONLN);
  return count > 0 ? (int)count : 1;
}
