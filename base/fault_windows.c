// Windows does not let a mapped file be truncated. See fault.h.
#include "base/fault.h"

void mlx_fault_watch(void (*on_fault)(const char *path)) { (void)on_fault; }
void mlx_fault_add_map(const void *data, unsigned long long size, const char *path) {
  (void)data, (void)size, (void)path;
}
void mlx_fault_remove_map(const void *data) { (void)data; }
