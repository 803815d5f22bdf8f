// struct mlx_scheduler, for admission.c, filling.c, step_queue.c and scheduler.c only.
//
//   waiting   requests without pages, in order of priority and arrival
//   running   requests with a slot and pages, in the same order: the last one is preempted first
//   flights   queued steps, oldest first. A step is queued before the tokens of the last one are read, as
//             long as every sequence in it can go on without the host: the device feeds the token that it
//             sampled
//   done      requests whose on_done is to be called
//
// The held request of a session is in |running| while the session waits for it, and else in no list.
#ifndef MLXCEL_RUNTIME_SCHEDULER_INTERNAL_H_
#define MLXCEL_RUNTIME_SCHEDULER_INTERNAL_H_

#include "runtime/prefill_budget.h"
#include "runtime/request.h"
#include "runtime/rooms.h"
#include "runtime/scheduler.h"

typedef struct mlx_request_list {
  mlx_request_t **items;
  size_t count, capacity;
} mlx_request_list_t;

// Tokens of a step whose routes are wanted: |count| tokens of the step from |first| on are those of
// |request| from |at| on.
typedef struct mlx_routed {
  mlx_request_t *request;  // NULL: it has left
  size_t first, at, count;
} mlx_routed_t;

typedef struct mlx_flight {
  mlx_ticket_t *ticket;
  mlx_request_t **rows;  // [max_tokens] the request of each wanted token; NULL: it has left
  size_t count;
  mlx_routed_t *routed;  // [max_tokens]
  size_t routed_count;
  int32_t burst;  // tokens of a burst; 0: a step
  double start;
  double queued;  // the same on the budget's clock
  mlx_prefill_note_t note;
} mlx_flight_t;

struct mlx_scheduler {
  mlx_scheduler_options_t options;  // without zeros
  mlx_language_t language;
  mlx_request_pages_t pages;
  mlx_stepper_t *stepper;
  int64_t positions;     // most positions of a sequence
  int64_t prompt_chunk;  // the default of options.max_prompt_chunk
  mlx_request_list_t waiting, running, done;
  size_t live;  // requests that are not freed
  uint64_t arrivals;
  mlx_flight_t flights[MLX_STEPPER_DEPTH];
  size_t flight_count;
  // The step that is being filled: segment i belongs to members[i].
  mlx_segment_t *segments;      // [max_tokens]
  mlx_step_sampling_t *wanted;  // [max_tokens] of segment i
  mlx_step_sampling_t *each;    // [max_tokens] of the tokens that score the next one
  size_t each_count;
  mlx_request_t **members;  // [max_tokens]
  size_t segment_count;
  int64_t tokens, prompt_left;
  mlx_prefill_budget_t budget;
  double (*now)(void);  // its clock
  double last_read;     // when the last step was read, on this clock
  bool starved;         // the last step had no room for prompts
  float *logits;        // [vocab] scratch; NULL before the first use
  mlx_request_t *last;  // quiet; its logits are in row |last_row| on the device. NULL: none
  size_t last_row;
  double token_seconds;  // time of one token of the last burst; 0: unknown
  double step_seconds;   // from queueing to reading the last step
  mlx_scheduler_stats_t stats;
};

// ---- scheduler.c

// Creates a request that is in no list and has no tokens. Release with mlx_request_free.
mlx_status_t mlx_scheduler_create_request(mlx_scheduler_t *scheduler,
                                          mlx_request_t **out_request) MLX_MUST_USE;
// Fails if |count| more tokens after |length| do not fit, or if the options are not possible.
mlx_status_t mlx_scheduler_check(const mlx_scheduler_t *scheduler, size_t length, const int32_t *ids,
                                 size_t count, const mlx_generate_options_t *options) MLX_MUST_USE;
// Prepares a request that is in no list for a run: more tokens, a new output and a new sampler. After a
// failure it has its old tokens.
mlx_status_t mlx_scheduler_prepare(mlx_scheduler_t *scheduler, mlx_request_t *request, const int32_t *ids,
                                   size_t count, const mlx_generate_options_t *options) MLX_MUST_USE;

// ---- admission.c

// Lists in order of priority and arrival. submit reserves room in all lists for all requests.
void mlx_request_list_insert(mlx_request_list_t *list, mlx_request_t *request);
void mlx_request_list_erase(mlx_request_list_t *list, const mlx_request_t *request);  // if it is there
mlx_request_t *mlx_request_list_last(const mlx_request_list_t *list);                 // NULL if empty

// Drops what queued steps sample for |request|, and its part of the step that is being filled.
void mlx_scheduler_leave_steps(mlx_scheduler_t *scheduler, const mlx_request_t *request);
// Ends a request. With a |status|, which it takes, the request has failed.
void mlx_scheduler_finish(mlx_scheduler_t *scheduler, mlx_request_t *request, mlx_finish_reason_t reason,
                          mlx_status_t status);
// Starts a run of a held request.
void mlx_scheduler_resume(mlx_scheduler_t *scheduler, mlx_request_t *request);
// Moves requests from waiting to running, in order, as long as slots and pages last. A request of higher
// priority takes them from one of lower priority.
mlx_status_t mlx_scheduler_admit(mlx_scheduler_t *scheduler) MLX_MUST_USE;
// Takes the pages for |length| positions, from other requests if need be. *|out_ok| is false if |request| had
// to leave.
mlx_status_t mlx_scheduler_make_room(mlx_scheduler_t *scheduler, mlx_request_t *request, size_t length,
                                     bool *out_ok) MLX_MUST_USE;

// ---- filling.c

// True if the request has one token to feed, and a token is sampled after it.
bool mlx_scheduler_is_decode(const mlx_request_t *request);
// True if a step may feed tokens of |request|: it still wants a token, and the positions last.
bool mlx_scheduler_can_feed(const mlx_scheduler_t *scheduler, const mlx_request_t *request);
// True if the host computes log-probabilities of given tokens from the logits.
bool mlx_scheduler_scores_on_host(const mlx_scheduler_t *scheduler, const mlx_request_t *request);
// Fills the step: decodes first, then chunks of prompts. If there was no room for prompts in the last step,
// prompts come first. Requests that a full step left out come first in the next one.
mlx_status_t mlx_scheduler_fill_step(mlx_scheduler_t *scheduler) MLX_MUST_USE;

// ---- step_queue.c

// True if the next step may be queued now: no queued step samples a token that the host must see first. A
// burst is queued alone.
bool mlx_scheduler_may_queue(const mlx_scheduler_t *scheduler);
// Queues one step. *|out_queued| is false if there is nothing to compute.
mlx_status_t mlx_scheduler_queue_step(mlx_scheduler_t *scheduler, bool *out_queued) MLX_MUST_USE;
// Waits for the oldest queued step and adds its tokens to their requests.
mlx_status_t mlx_scheduler_read_step(mlx_scheduler_t *scheduler) MLX_MUST_USE;

// ---- embed.c

// Fails if the model generates no text: an encoder, or a decoder without an LM head.
mlx_status_t mlx_scheduler_check_head(const mlx_scheduler_t *scheduler) MLX_MUST_USE;

#endif  // MLXCEL_RUNTIME_SCHEDULER_INTERNAL_H_
