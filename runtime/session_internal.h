// struct mlx_session and the sizes of decode calls, for the sources of runtime/ only.
#ifndef MLXCEL_RUNTIME_SESSION_INTERNAL_H_
#define MLXCEL_RUNTIME_SESSION_INTERNAL_H_

#include "runtime/engine_internal.h"

struct mlx_session {
  mlx_engine_t *engine;  // borrowed
  int64_t sequence;      // index of this session's sequence in the module's tensors
  int64_t length;        // positions written
  int32_t *ids;          // [context] the tokens at those positions
  bool has_next;         // the device holds |next| as the token to decode from
  int32_t next;          // the most likely token after those in |ids|
  int32_t *pages;        // [sequence_pages] the page table; 0 (the scratch page) where no page is held
  int64_t page_count;    // pages held
};

// Prepares steps that the caller submits itself: allocates the pages of |count| positions after the end of
// the sequence, and drops the next token. *|out_slot| is the sequence's slot in the engine's stepper.
mlx_status_t mlx_session_prepare(mlx_session_t *session, size_t count, int32_t *out_slot) MLX_MUST_USE;
// Appends tokens whose positions such steps have written.
void mlx_session_append(mlx_session_t *session, const int32_t *ids, size_t count);

// A group is the tokens that one call of decode_N generates, N of them. A module has a few sizes.

// The largest group of at most |limit| tokens. |limit| is at least 1.
size_t mlx_decode_group_largest(const mlx_variant_t *variant, size_t limit);
// The size of the next group in the generate loop, after |written| tokens. At most |left|, which is at
// least 1.
size_t mlx_decode_group_next(const mlx_variant_t *variant, size_t written, size_t left);

#endif  // MLXCEL_RUNTIME_SESSION_INTERNAL_H_
