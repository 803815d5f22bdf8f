// Unfinished: the files that mlx_writer_t writes and has not closed yet, so that a signal that ends the
// process does not leave them behind.
//
// Threads: every function may be called from any thread.
#ifndef MLXCEL_BASE_UNFINISHED_H_
#define MLXCEL_BASE_UNFINISHED_H_

// Returns a number for mlx_unfinished_remove: 0 if the file is not recorded, because too many are or its path
// is too long.
int mlx_unfinished_add(const char *path);
void mlx_unfinished_remove(int number);
// Removes the files from the disk. For a signal handler that ends the process. Does nothing in a process that
// was forked from the one that wrote them.
void mlx_unfinished_unlink(void);

#endif  // MLXCEL_BASE_UNFINISHED_H_
