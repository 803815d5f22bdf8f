// The request for AMX tile state, and the CPU count, on Windows.
#include <windows.h>

#include "base/cpu.h"

// Windows grants AMX through another call, which has not been tested. Without AMX mlxcel uses the next lower
// level.
bool mlx_cpu_request_tiles(void) { return false; }

int mlx_cpu_count(void) {
  DWORD_PTR ours, all;
  if (GetProcessAffinityMask(GetCurrentProcess(), &ours, &all) && ours) return __builtin_popcountll(ours);
  // A process that may use several groups of 64 processors has no single mask.
  const DWORD count = GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
  return count ? (int)count : 1;
}
