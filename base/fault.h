// Faults on mapped files: reading a mapped file that another process truncated, or a disk error, raises
// SIGBUS.
#ifndef MLXCEL_BASE_FAULT_H_
#define MLXCEL_BASE_FAULT_H_

#include <stdbool.h>

// Calls |on_fault| in a signal handler when a page of a file that mlx_map_file mapped cannot be read. |path|
// is the file's. |on_fault| may use only async-signal-safe functions and must end the process. Any other
// SIGBUS ends the process as before. Does nothing on Windows, where a mapped file cannot be truncated. Call
// once, before threads start.
void mlx_fault_watch(void (*on_fault)(const char *path));

// After mlx_fault_watch: from now on a fault on a mapped file does not end the process. The rest of the map,
// from the page that cannot be read on, becomes zeros instead. Code that reads mapped files must then ask
// mlx_fault_hit before it uses a result. For a server: one damaged file must not end requests of other
// models.
void mlx_fault_recover(void);
// True if a page of the map that has |data| could not be read. Any thread.
bool mlx_fault_hit(const void *data);
// The number of faults so far that did not end the process. Any thread.
unsigned long long mlx_fault_count(void);

// Records where a file is mapped; mlx_map_file and mlx_unmap call these. Any thread may call them.
void mlx_fault_add_map(const void *data, unsigned long long size, const char *path);
void mlx_fault_remove_map(const void *data);

#endif  // MLXCEL_BASE_FAULT_H_
