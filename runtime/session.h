// struct mlx_session, for the sources of runtime/ and their tests.
#ifndef MLXCEL_RUNTIME_SESSION_H_
#define MLXCEL_RUNTIME_SESSION_H_

#include "runtime/request.h"

struct mlx_session {
  mlx_request_t *request;  // owned; held
  bool has_next;           // the next token is known: the last one of the request
  size_t state_length;     // tokens that the recurrent state has; SIZE_MAX: not known
  // Window pages: a ring. Page n of the sequence has window page ring[n % ring_count].
  int32_t *ring;      // [ring_count]; NULL: the engine has no window pages
  size_t ring_count;  // enough for a step and the window before it
  size_t ring_held;   // entries of |ring| that are taken
  size_t ring_first;  // first page of the sequence whose window page is not overwritten by a later one
};

// The scheduler must outlive the session. Release with mlx_session_free.
mlx_status_t mlx_session_create_on(mlx_scheduler_t *scheduler, mlx_session_t **out_session) MLX_MUST_USE;

// What a run adds to the sequence: |ids|, or without ids the next token, and what it generates.
typedef struct mlx_session_run {
  const int32_t *ids;
  size_t count;
  const mlx_generate_options_t *options;
  bool quiet;                  // as in mlx_request
  const mlx_scoring_t *score;  // |ids| is its first text; NULL: as in the options
} mlx_session_run_t;
// Runs the session's request until it is done, and returns the error that ended it. The output, the number of
// fed tokens and the progress of |score| are in the request. The caller then calls mlx_session_cut, or has a
// next token.
mlx_status_t mlx_session_run(mlx_session_t *session, const mlx_session_run_t *run) MLX_MUST_USE;

// Takes the pages for |length| positions. Fails if the pool has too few.
mlx_status_t mlx_session_grow(mlx_session_t *session, size_t length) MLX_MUST_USE;
// Ends the sequence after |length| tokens, and releases its pages after them. Drops the next token.
void mlx_session_cut(mlx_session_t *session, size_t length);
// Whether |count| positions can be written after the end without overwriting window pages or the recurrent
// state before it.
bool mlx_session_keeps_window(const mlx_session_t *session, size_t count);

#endif  // MLXCEL_RUNTIME_SESSION_H_
