// struct mlx_session and the sizes of groups, for the sources of runtime/ only.
#ifndef MLXCEL_RUNTIME_SESSION_INTERNAL_H_
#define MLXCEL_RUNTIME_SESSION_INTERNAL_H_

#include "runtime/engine_internal.h"

struct mlx_session {
  mlx_engine_t *engine;  // borrowed
  int32_t slot;          // of the sequence, in the stepper
  int64_t length;        // positions written
  int32_t *ids;          // [context] the tokens at those positions
  bool has_next;         // |next| is known
  int32_t next;          // the most likely token after those in |ids|
  int32_t *pages;        // [slot_pages] the first |page_count| pages are held
  int64_t page_count;
  bool logits_kept;  // another session has stepped since, and |logits| is a copy of those that chose |next|
  float *logits;     // [vocab]; NULL until first needed
};

// A group is the tokens that one call generates: a burst, or a step of one token. |burst| is the most tokens
// of a burst; 0: the module has none.

// The largest group of at most |limit| tokens. |limit| is at least 1.
size_t mlx_decode_group_largest(int64_t burst, size_t limit);
// The size of the next group in the generate loop, after |written| tokens. At most |left|, which is at
// least 1.
size_t mlx_decode_group_next(int64_t burst, size_t written, size_t left);

#endif  // MLXCEL_RUNTIME_SESSION_INTERNAL_H_
