// Lock: who makes an entry, and who is using one. Advisory locks (flock), so a process that dies holds
// nothing any more.
//
// Two uses. A maker's lock is a file of its own below locks/, held by one. A lease is a shared lock on an
// entry's record, held by any number of users, that `clear` must get past. All descriptors are close-on-exec:
// no child carries a lock on.
//
// Threads: a lock belongs to the open file, so two threads exclude each other as two processes do.
#ifndef MLXCEL_CACHE_LOCK_H_
#define MLXCEL_CACHE_LOCK_H_

#include "base/report.h"
#include "base/status.h"

typedef struct mlx_lock {
  int fd;      // -1: not held
  char *path;  // owned
} mlx_lock_t;

// Waits for the lock, reporting who holds it. |title| says what that one is making.
mlx_status_t mlx_lock_take(const char *path, const char *title, const mlx_report_t *report,
                           mlx_lock_t *out_lock) MLX_MUST_USE;
// Takes the lock if it is free; otherwise out_lock->fd is -1.
mlx_status_t mlx_lock_try(const char *path, mlx_lock_t *out_lock) MLX_MUST_USE;
void mlx_lock_release(mlx_lock_t *lock);             // safe when not held
void mlx_lock_release_and_remove(mlx_lock_t *lock);  // and the file too

// A shared lock on the file at |path|, or -1: there is no such file, or it is just being cleared.
int mlx_lease_take(const char *path);
// True when |path| still names the file that |lease| holds: false when it was replaced or removed meanwhile.
bool mlx_lease_holds(int lease, const char *path);
void mlx_lease_end(int lease);  // -1 is fine

typedef enum mlx_lease_state {
  MLX_LEASE_NONE,      // no such file
  MLX_LEASE_HELD,      // somebody uses it
  MLX_LEASE_RESERVED,  // nobody did, and *out_lease now keeps it so until mlx_lease_end
} mlx_lease_state_t;
mlx_lease_state_t mlx_lease_reserve(const char *path, int *out_lease);
// Before the folder of a reserved file is moved: where the system moves none with an open file in it, the
// lease ends here.
void mlx_lease_let_move(int *inout_lease);

#endif  // MLXCEL_CACHE_LOCK_H_
