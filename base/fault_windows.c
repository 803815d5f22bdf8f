// Windows does not let a mapped file be truncated. See fault.h.
#include "base/fault.h"

void mlx_fault_watch(void (*on_fault)(const char *path)) { (void)on_fault; }
void mlx_fault_add_map(const void *data, unsigned long long size, const char *path) {
  (void)data, (void)size, (void)path;
}
void mlx_fault_remove_map(const void *data) { (void)data; }

void mlx_fault_recover(void) {}
bool mlx_fault_hit(const void *data) { return (void)data, false; }
unsigned long long mlx_fault_count(void) { return 0; }
