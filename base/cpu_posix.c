// The request for AMX tile state, and the CPU count, on POSIX.
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/cpu.h"

bool mlx_cpu_request_tiles(void) {
#ifdef __x86_64__
  enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
  return !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
#else
  return false;
#endif
}

static int allowed_cpus(void) {
  cpu_set_t set;
  if (!sched_getaffinity(0, sizeof set, &set)) return CPU_COUNT(&set);
  long count = sysconf(_SC_NPROCESSORS_ONLN);
  return count > 0 ? (int)count : 1;
}

int mlx_cpu_count(void) {
  const int allowed = allowed_cpus();
  const double quota = mlx_cgroup_cpus("/proc/self/cgroup", "/sys/fs/cgroup");
  if (quota <= 0 || quota >= allowed) return allowed;
  const int whole = (int)quota;
  return whole < quota ? whole + 1 : whole;  // rounded up: half a CPU is one thread
}
