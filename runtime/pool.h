// Pool: the KV pages of an engine, and the slots of its sequences.
//
// A page holds the keys and values of MLX_KV_PAGE consecutive positions. It has a number of users: sequences
// whose page table names it. Page 0 is the scratch page and is never taken.
//
// A page whose tokens are published can be found again: a sequence that begins with the same tokens uses the
// same page. Published pages form a tree: the parent of a page holds the positions before it. A page is
// looked up by a chained hash of all tokens before it. Then its parent and its own tokens are compared, so a
// collision of hashes never gives a wrong page. A published page without users is cached: it stays until its
// memory is needed. The least recently used page goes first.
//
// The caller keeps two rules. A user of a published page also uses its parent. A sequence releases its pages
// from the last to the first. Then a page is never evicted before its children. A sequence whose attention
// has a window breaks both rules (mlx_pool_release_first). So a page that is evicted takes all pages that
// continue it out of the tree: those without users become free, the others can no longer be found.
//
// Window pages (kernels/step.h) are a second kind of page, with their own numbers: they hold the layers with
// a sliding window, if other layers see all positions. A published page keeps the window page of the same
// positions, if it is still there. A sequence that begins with published tokens needs only those of the
// window before its first own token. A kept window page without users is cached, and evicted alone: first the
// pages that one sequence has passed, then those that were used by several sequences or that a sequence ended
// with, the least recently used first.
//
// States (kernels/step.h) are a third kind, one per sequence. A published page can keep a state: a snapshot
// after some of its tokens, from which a sequence that begins with the same tokens goes on. A kept state
// without users is cached, and evicted alone, the least recently used first.
//
// Ownership: the caller owns the pool. Threads: one thread at a time.
#ifndef MLXCEL_RUNTIME_POOL_H_
#define MLXCEL_RUNTIME_POOL_H_

#include <stdint.h>

#include "base/status.h"
#include "runtime/page_watcher.h"

typedef struct mlx_pool mlx_pool_t;

// |pages| and |window_pages| include page 0; without window pages, |window_pages| is 0. Release with
// mlx_pool_free.
mlx_status_t mlx_pool_create(int64_t pages, int64_t window_pages, int64_t slots,
                             mlx_pool_t **out_pool) MLX_MUST_USE;
void mlx_pool_free(mlx_pool_t *pool);  // NULL is fine

// From now on |watcher| learns which full pages are published. Before the first page is. Freeing the pool
// unpublishes all pages.
void mlx_pool_watch(mlx_pool_t *pool, const mlx_page_watcher_t *watcher);
// Calls its on_step if it had another call since the last one.
void mlx_pool_end_step(mlx_pool_t *pool);

// The lowest free slot; -1 if all are taken.
int32_t mlx_pool_take_slot(mlx_pool_t *pool);
void mlx_pool_release_slot(mlx_pool_t *pool, int32_t slot);

// A page with one user: the lowest free one, else the cached one that was not used for the longest time.
// Returns 0 if every page has a user.
int32_t mlx_pool_take(mlx_pool_t *pool);
void mlx_pool_retain(mlx_pool_t *pool, int32_t page);  // one more user
// One user less. A page without users is cached if it is published, else free.
void mlx_pool_release(mlx_pool_t *pool, int32_t page);
// The same for the first page of a sequence that goes on using the pages after it.
void mlx_pool_release_first(mlx_pool_t *pool, int32_t page);

// The published page after |parent| (0: the first page of a sequence) with the longest common beginning with
// |ids|. *|out_common| is its length. Returns 0 if no token is common. Adds no user.
int32_t mlx_pool_find(const mlx_pool_t *pool, int32_t parent, const int32_t *ids, size_t count,
                      size_t *out_common);
// Publishes |page|, which holds |count| tokens, up to MLX_KV_PAGE. |parent| is full, or 0. If an equal page
// is published already, the caller's user moves to that page. Returns the page to use. If |parent| is no
// longer published, |page| is not published either.
int32_t mlx_pool_publish(mlx_pool_t *pool, int32_t parent, int32_t page, const int32_t *ids, size_t count);
// Unpublishes all pages: their contents are unknown after a failed step.
void mlx_pool_forget(mlx_pool_t *pool);

// A window page with one user: the lowest free one, else a cached one. Returns 0 if every page has a user.
int32_t mlx_pool_take_window(mlx_pool_t *pool);
void mlx_pool_retain_window(mlx_pool_t *pool, int32_t window);  // one more user
// One user less. |passed|: the page left the window of a sequence that goes on.
void mlx_pool_release_window(mlx_pool_t *pool, int32_t window, bool passed);
// The window page that |page| keeps; 0: none.
int32_t mlx_pool_window_of(const mlx_pool_t *pool, int32_t page);
// |page|, if it is published, keeps the window page of the same positions. If it keeps one already, the
// caller's user moves to that page. Returns the window page to use.
int32_t mlx_pool_keep_window(mlx_pool_t *pool, int32_t page, int32_t window);

// Gives the pool |states| states, with state 0. Once, before the first use.
mlx_status_t mlx_pool_add_states(mlx_pool_t *pool, int64_t states) MLX_MUST_USE;
// A state with one user: the lowest free one, else the cached one that was not used for the longest time.
// Returns 0 if every state has a user.
int32_t mlx_pool_take_state(mlx_pool_t *pool);
void mlx_pool_retain_state(mlx_pool_t *pool, int32_t state);   // one more user
void mlx_pool_release_state(mlx_pool_t *pool, int32_t state);  // one user less
// The state that |page| keeps, after *|out_count| of its tokens; 0: none.
int32_t mlx_pool_state_of(const mlx_pool_t *pool, int32_t page, size_t *out_count);
// |page|, if it is published, keeps |state|, the state after |count| of its tokens, in place of another one.
void mlx_pool_keep_state(mlx_pool_t *pool, int32_t page, int32_t state, size_t count);

typedef struct mlx_pool_counts {
  int64_t used, cached, free;  // pages, without page 0
} mlx_pool_counts_t;
mlx_pool_counts_t mlx_pool_counts(const mlx_pool_t *pool);
mlx_pool_counts_t mlx_pool_window_counts(const mlx_pool_t *pool);
mlx_pool_counts_t mlx_pool_state_counts(const mlx_pool_t *pool);
int64_t mlx_pool_users(const mlx_pool_t *pool, int32_t page);
// Checks the pool's own data, for tests: fails with MLX_INTERNAL and the broken rule.
mlx_status_t mlx_pool_check(const mlx_pool_t *pool) MLX_MUST_USE;

#endif  // MLXCEL_RUNTIME_POOL_H_
