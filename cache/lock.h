// Locks: record which process creates an entry and which processes use it. They are advisory locks (flock),
// so the system releases them when a process dies.
//
// A lock file below locks/ is held by the one process that creates the entry. An entry lock is a lock on the
// record of an entry: shared by any number of users of the entry, exclusive for `clear`. All descriptors are
// close-on-exec, so child processes hold no locks.
//
// Threads: a lock belongs to the open file, so two threads exclude each other like two processes.
#ifndef MLXCEL_CACHE_LOCK_H_
#define MLXCEL_CACHE_LOCK_H_

#include "base/report.h"
#include "base/status.h"

typedef struct mlx_lock {
  int fd;      // -1: not held
  char *path;  // owned
} mlx_lock_t;

// Waits for the lock and reports which process holds it. |title| names the entry, for the report.
mlx_status_t mlx_lock_take(const char *path, const char *title, const mlx_report_t *report,
                           mlx_lock_t *out_lock) MLX_MUST_USE;
// Takes the lock if it is free; otherwise out_lock->fd is -1.
mlx_status_t mlx_lock_try(const char *path, mlx_lock_t *out_lock) MLX_MUST_USE;
void mlx_lock_release(mlx_lock_t *lock);             // safe if the lock is not held
void mlx_lock_release_and_remove(mlx_lock_t *lock);  // also removes the lock file

// Takes a shared lock on the record at |path|. Returns -1 if there is no such file or `clear` has locked it.
int mlx_entry_lock_share(const char *path);
// True if |path| still names the file of |lock_fd|; false if it was replaced or removed.
bool mlx_entry_lock_is_current(int lock_fd, const char *path);
void mlx_entry_lock_release(int lock_fd);  // -1 is allowed

typedef enum mlx_entry_lock_state {
  MLX_ENTRY_LOCK_MISSING,  // no such file
  MLX_ENTRY_LOCK_IN_USE,   // a process uses the entry
  MLX_ENTRY_LOCK_TAKEN,    // *out_lock_fd holds an exclusive lock until it is released
} mlx_entry_lock_state_t;
mlx_entry_lock_state_t mlx_entry_lock_try_exclusive(const char *path, int *out_lock_fd);
// Call before renaming the folder of an exclusively locked record. Windows cannot rename a folder with an
// open file, so the lock is released there. If another process opens the file meanwhile, the rename fails.
void mlx_entry_lock_allow_rename(int *inout_lock_fd);

#endif  // MLXCEL_CACHE_LOCK_H_
