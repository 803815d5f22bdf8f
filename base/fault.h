// Faults on mapped files: reading a mapped file that another process truncated, or a disk error, raises
// SIGBUS.
#ifndef MLXCEL_BASE_FAULT_H_
#define MLXCEL_BASE_FAULT_H_

// Calls |on_fault| in a signal handler when a page of a file that mlx_map_file mapped cannot be read. |path|
// is the file's. |on_fault| may use only async-signal-safe functions and must end the process. Any other
// SIGBUS ends the process as before. Does nothing on Windows, where a mapped file cannot be truncated. Call
// once, before threads start.
void mlx_fault_watch(void (*on_fault)(const char *path));

// Records where a file is mapped; mlx_map_file and mlx_unmap call these. Any thread may call them.
void mlx_fault_add_map(const void *data, unsigned long long size, const char *path);
void mlx_fault_remove_map(const void *data);

#endif  // MLXCEL_BASE_FAULT_H_
