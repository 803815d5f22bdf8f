// Page watcher: learns which full pages of the prefix cache can be found (runtime/pool.h).
//
// A page is named by the chained hash of all tokens up to its end. The hash depends on nothing else, so it is
// the same in every process. Pages that are filled in part are not reported. The calls come in the order of
// the changes, on the thread that uses the scheduler or closes the engine.
#ifndef MLXCEL_RUNTIME_PAGE_WATCHER_H_
#define MLXCEL_RUNTIME_PAGE_WATCHER_H_

#include <stddef.h>
#include <stdint.h>

// The hash of |count| tokens after those with the hash |before|; 0 before the first token.
uint64_t mlx_page_hash(uint64_t before, const int32_t *ids, size_t count);

typedef struct mlx_page_watcher {
  // A sequence that begins with the tokens of |hash| finds the page. |parent| is the page before it; NULL:
  // none. |ids| are its MLX_PAGE_POSITIONS tokens.
  void (*on_stored)(void *user, uint64_t hash, const uint64_t *parent, const int32_t *ids);
  void (*on_removed)(void *user, uint64_t hash);  // no longer; after all pages that continue it
  void (*on_cleared)(void *user);                 // no page can be found any more
  void (*on_step)(void *user);                    // the step, or the other call, that changed pages is done
  void *user;
} mlx_page_watcher_t;

#endif  // MLXCEL_RUNTIME_PAGE_WATCHER_H_
