#include <windows.h>

#include "base/cpu.h"

// Windows hands them out by another call, which could not be tried here: without them the level below is
// taken, which runs everywhere.
bool mlx_cpu_ask_for_tiles(void) { return false; }

int mlx_cpu_count(void) {
  DWORD_PTR ours, all;
  if (GetProcessAffinityMask(GetCurrentProcess(), &ours, &all) && ours) return __builtin_popcountll(ours);
  const DWORD count =
      GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);  // one that may use several groups of 64 has no one mask
  return count ? (int)count : 1;
}
