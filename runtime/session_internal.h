// struct mlx_session, for the sources of runtime/ only.
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
  // Window pages: a ring. Page n of the sequence has window page ring[n % ring_count].
  int32_t *ring;       // [ring_count]; NULL: the engine has no window pages
  int64_t ring_count;  // enough for a step and the window before it
  int64_t ring_held;   // entries of |ring| that are taken
  int64_t ring_first;  // first page of the sequence whose window page is not overwritten by a later one
  bool logits_kept;    // another session has stepped since, and |logits| is a copy of those that chose |next|
  float *logits;       // [vocab]; NULL until first needed
};

// Releases the pages that a sequence of |length| positions does not need.
void mlx_session_release_pages(mlx_session_t *session, int64_t length);

// Makes sure that the window pages before the end of the sequence are there. If later positions have
// overwritten them before the session was rewound, the sequence is read again.
mlx_status_t mlx_session_restore(mlx_session_t *session) MLX_MUST_USE;
// Notes that steps write up to |pages| pages of the sequence.
void mlx_session_note_pages(mlx_session_t *session, int64_t pages);
// Whether |count| positions can be written after the end without overwriting window pages before it.
bool mlx_session_keeps_window(const mlx_session_t *session, int64_t count);

// Prepares steps that the caller submits itself: allocates the pages of |count| positions after the end of
// the sequence, and drops the next token. *|out_slot| is the sequence's slot in the engine's stepper.
mlx_status_t mlx_session_prepare(mlx_session_t *session, size_t count, int32_t *out_slot) MLX_MUST_USE;
// Appends tokens whose positions such steps have written.
void mlx_session_append(mlx_session_t *session, const int32_t *ids, size_t count);

#endif  // MLXCEL_RUNTIME_SESSION_INTERNAL_H_
