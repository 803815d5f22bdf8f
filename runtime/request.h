// struct mlx_request: one sequence of a scheduler, and its pages of the pool. For scheduler.c and its tests.
//
// Tokens: |ids| has the known tokens, first the prompt's. |pending| more are sampled by queued steps, but not
// read yet. The KV of the first |fed| tokens is written, or a queued step writes it. To sample the next
// token, a step must feed all tokens up to count + pending.
//
// A session is a held request (session.c): it runs many times, and keeps its slot, pages and recurrent state
// between its runs. Then |fed| is the length of its sequence.
#ifndef MLXCEL_RUNTIME_REQUEST_H_
#define MLXCEL_RUNTIME_REQUEST_H_

#include "runtime/output.h"
#include "runtime/pool.h"
#include "runtime/sequence_sampler.h"

typedef enum mlx_request_state {
  MLX_REQUEST_WAITING,  // has no slot and no pages
  MLX_REQUEST_RUNNING,
  MLX_REQUEST_DONE
} mlx_request_state_t;

// Tokens whose log-probabilities are wanted: tokens [from, end) of the sequence score the token after them.
typedef struct mlx_scoring {
  size_t texts;  // 0: nothing is scored
  size_t start, from, end;
  size_t text, done;  // the text whose tokens are fed; log-probabilities that are known, of all texts
  size_t top;         // most likely tokens to report
  // Of a session: texts of end + 1 - start tokens, which replace each other at |start|. NULL: the prompt,
  // whose rows are in the request's generation.
  const int32_t *ids;
  float *logprobs;  // [texts][end - from] out
  size_t first;     // number of the first text, for the two callbacks
  mlx_status_t (*on_logits)(void *user, size_t index, const float *logits);  // or NULL
  void (*on_text)(void *user, size_t text);                                  // or NULL
  void *user;
} mlx_scoring_t;

struct mlx_request {
  mlx_scheduler_t *scheduler;  // borrowed
  mlx_request_state_t state;
  int64_t priority;
  uint64_t arrival;    // counts the scheduler's requests
  uint64_t last_step;  // number of the last step that had tokens of this request
  bool cancelled;      // mlx_request_cancel was called
  bool held;           // of a session: never preempted, shares no pages
  bool quiet;          // of a session: its text is not read, but the logits of its last token are
  bool embeds;         // the result is the hidden state of the last token
  bool raw;            // of |embeds|: with its own norm
  mlx_scoring_t score;
  bool routes;  // the experts of its tokens from |routes_from| on are wanted
  size_t routes_from;
  size_t route_capacity;  // of the generation's routes

  int32_t *ids;  // [id_capacity] owned
  size_t count, prompt_count, pending, fed, id_capacity;

  int32_t slot;    // -1: none
  int32_t *pages;  // [page_capacity] owned
  size_t page_count, page_capacity;
  size_t published;  // pages that other sequences can find
  size_t dropped;    // pages before the window: released, and 0 in |pages|. 0 if there are window pages
  int32_t *windows;  // [window_capacity] owned; the window page of the same positions as |pages|
  size_t window_capacity;
  size_t windows_dropped;  // window pages before the window: released, and 0 in |windows|

  // Recurrent state. The steps that are queued write |recurrent|, which then has the first |fed| tokens. The
  // next step reads |snapshot|, if it is not 0.
  int32_t recurrent, snapshot;
  size_t snapshot_at;  // tokens of the last snapshot
  // Of a session: a snapshot that only it uses, and its tokens. 0: none.
  int32_t kept;
  size_t kept_length;

  mlx_sequence_sampler_t *sampler;  // owned
  mlx_output_t output;
  mlx_status_t status;  // owned; why it failed
  float *logits;        // [vocab] owned; those that chose the last token of a quiet request; NULL until kept
  bool logits_kept;     // |logits| has them; else they are on the device (mlx_scheduler.last)
  void (*on_done)(void *user, mlx_request_t *request);
  void (*on_prompt)(void *user, size_t done, size_t total);
  double submitted, started, first;  // times: of the submission, of the first admission, of the first token
};

// The most window pages that a sequence of |positions| positions holds at a time.
size_t mlx_window_pages_held(const mlx_stepper_t *stepper, size_t positions);

// What requests share.
typedef struct mlx_request_pages {
  mlx_stepper_t *stepper;
  mlx_pool_t *pool;
  bool share;  // publish pages, and use published ones
} mlx_request_pages_t;

// True if |a| is served before |b|: by priority, then by arrival.
bool mlx_request_is_before(const mlx_request_t *a, const mlx_request_t *b);
// Tokens that a step must feed before the next token is sampled.
size_t mlx_request_unfed(const mlx_request_t *request);
// True if log-probabilities of given tokens are wanted and not known yet.
bool mlx_request_scores(const mlx_request_t *request);
// Goes on with the next text to score if all tokens of the last one are fed.
void mlx_request_next_text(mlx_request_t *request);
// The first token whose routes are wanted and not known; SIZE_MAX: none is.
size_t mlx_request_unrouted(const mlx_request_t *request);
// Adds the routes of |count| tokens from token |at| on. Those that are known already stay.
mlx_status_t mlx_request_add_routes(mlx_request_t *request, const int32_t *routes, size_t at,
                                    size_t count) MLX_MUST_USE;
// Appends a known token.
mlx_status_t mlx_request_append(mlx_request_t *request, int32_t id) MLX_MUST_USE;

// Takes a slot, and the published pages that hold the sequence's tokens; at least one token remains to feed.
// *|out_attached| is false if there is no slot, or if fewer than |spare| pages would be left after the pages
// for all known tokens and the next one are taken.
mlx_status_t mlx_request_attach(mlx_request_t *request, const mlx_request_pages_t *pages, int64_t positions,
                                int64_t spare, bool *out_attached) MLX_MUST_USE;
// Takes pages until the sequence can hold |length| positions. *|out_ok| is false if the pool has too few; the
// request keeps those that it got.
mlx_status_t mlx_request_grow(mlx_request_t *request, const mlx_request_pages_t *pages, size_t length,
                              bool *out_ok) MLX_MUST_USE;
// Publishes the full pages whose tokens are known. An equal page replaces the sequence's own.
mlx_status_t mlx_request_publish(mlx_request_t *request, const mlx_request_pages_t *pages) MLX_MUST_USE;
// Releases the pages that no later token sees: window pages or, if every layer has a window, pages. A held
// request keeps them: it can be rewound.
mlx_status_t mlx_request_drop_unseen(mlx_request_t *request, const mlx_request_pages_t *pages) MLX_MUST_USE;
// Notes that a step of the request was queued: its state has all |fed| tokens. Where prompts are likely to
// differ from here on, the state is kept as a snapshot: by the page or, of a session, by the request. Call
// after mlx_request_publish.
mlx_status_t mlx_request_note_state(mlx_request_t *request, const mlx_request_pages_t *pages) MLX_MUST_USE;
// The most of the next |count| tokens that a step may feed, so that it ends where a snapshot is wanted.
size_t mlx_request_until_snapshot(const mlx_request_t *request, const mlx_request_pages_t *pages,
                                  size_t count);
// A session goes on after the tokens of |kept|, which it has.
mlx_status_t mlx_request_return(mlx_request_t *request, const mlx_request_pages_t *pages) MLX_MUST_USE;
// Releases the snapshots of a session: |kept|, and the one that its next step reads.
void mlx_request_drop_kept(mlx_request_t *request, mlx_pool_t *pool);
// Releases slot and pages. With |keep|, the pool caches the tokens' pages, also the last, partial one, and
// the recurrent state after them. The tokens stay known; all must be fed again. A held request keeps all.
void mlx_request_detach(mlx_request_t *request, const mlx_request_pages_t *pages, bool keep);

// Releases the output, the sampler and the status of the last run.
void mlx_request_clear(mlx_request_t *request);
// Releases the memory of a request without slot and pages.
void mlx_request_release(mlx_request_t *request);

#endif  // MLXCEL_RUNTIME_REQUEST_H_
