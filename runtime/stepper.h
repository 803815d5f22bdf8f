// Stepper: queues steps on a device and reads their results. Only the scheduler calls it.
//
// There are two implementations: the engine's (engine_stepper.c), which fills the arguments of kernels/step.h
// and calls the module, and the one in tests/support/fake_stepper.h, which simulates a module.
//
// Order: the device computes calls in the order in which they were made: submit, submit_burst, copy_page,
// set_tokens. So the caller may reuse a page for another sequence while a queued step still writes to it.
// Queue: at most MLX_STEPPER_DEPTH tickets are open at a time. Their results do not overwrite each other.
// The logits and hidden states do: they belong to the step that was queued last.
// Ownership: everything that is passed in is borrowed for the call. Threads: one thread at a time.
#ifndef MLXCEL_RUNTIME_STEPPER_H_
#define MLXCEL_RUNTIME_STEPPER_H_

#include "kernels/step.h"
#include "runtime/mlxcel.h"

#define MLX_STEPPER_DEPTH 2

// What is wanted of a token.
typedef struct mlx_step_sampling {
  uint32_t flags;                  // MLX_SAMPLE_*; 0: only its logits and hidden state
  const mlx_sampling_t *sampling;  // NULL: greedy
  const uint32_t *mask;            // [(vocab + 31) / 32] one bit per token: 1: allowed; NULL: all tokens
  int32_t target;                  // MLX_SAMPLE_SCORE: the token whose log-probability is wanted
  int32_t top_logprobs;            // MLX_SAMPLE_LOGPROB: most likely tokens to report, up to MLX_TOP_LOGPROBS
} mlx_step_sampling_t;

// Consecutive tokens of one sequence.
typedef struct mlx_segment {
  int32_t slot, position, count;
  const int32_t *ids;  // [count]; NULL: count is 1, and the token is the one that was sampled for |position|
  const mlx_step_sampling_t *wanted;  // what is wanted of the last token; NULL: nothing
  int32_t unwanted;                   // first tokens of which nothing is wanted; 0 without |each|
  const mlx_step_sampling_t *each;    // [count - unwanted] instead of |wanted|: of each other token; or NULL
  bool routes;                        // the experts of its tokens are wanted; not in a burst
} mlx_segment_t;

typedef struct mlx_step_result {
  int32_t token;              // -1: none (all tokens are excluded, or none was requested)
  bool not_finite;            // a logit is not finite
  float logprob;              // of the token or the target
  const int32_t *top_ids;     // [top_logprobs], most likely first
  const float *top_logprobs;  // [top_logprobs]
} mlx_step_result_t;

typedef struct mlx_ticket mlx_ticket_t;  // a queued step

typedef struct mlx_stepper {
  // Limits.
  int64_t max_tokens, max_wanted;  // of a step
  int64_t slots;                   // sequences with a page table
  int64_t slot_pages;              // entries of a page table
  int64_t pool_pages;              // pages of the KV pool; page 0 belongs to no sequence
  int64_t window;                  // positions that a token sees in layers with a window, its own included;
                                   // 0: all before it. Without window pages, every layer has a window
  int64_t window_pages;            // window pages of the KV pool, with page 0; 0: a page has all layers
  int64_t states;                  // of the KV pool, with state 0; 0: the network has no recurrent layer
  int64_t vocab;
  int64_t hidden;  // numbers of a hidden state
  bool ragged;     // false: a step has one segment
  bool samples;    // false: it returns logits, but samples no token
  bool whole;      // an encoder: a segment is a whole text, and only hidden states are returned
  int64_t burst;   // most tokens of submit_burst; 0: there is none
  int64_t route_layers, route_used;  // a step reports so many experts of each layer; 0: it cannot

  // True if one step can have |tokens| tokens, of which |wanted| are wanted. NULL: the two limits suffice.
  bool (*fits)(const struct mlx_stepper *stepper, int64_t tokens, int64_t wanted);
  // Tokens of the function that computes a step of |tokens| tokens, of which |wanted| are wanted; 0: there is
  // none. Its time does not depend on |tokens|. NULL: one function takes any number, and time for each.
  int64_t (*size)(const struct mlx_stepper *stepper, int64_t tokens, int64_t wanted);
  // Sets entry |nth| of a slot's page table, for the steps that are queued after this call. Page 0: no token
  // of these steps sees its positions.
  mlx_status_t (*set_page)(struct mlx_stepper *stepper, int32_t slot, int32_t nth, int32_t page);
  // The same for a slot's table of window pages.
  mlx_status_t (*set_window_page)(struct mlx_stepper *stepper, int32_t slot, int32_t nth, int32_t page);
  // Sets the states that a slot's segment reads and writes, for the steps that are queued after this call.
  // NULL without states. A burst reads what it has written after its first token.
  mlx_status_t (*set_states)(struct mlx_stepper *stepper, int32_t slot, int32_t from, int32_t to);
  // Stores tokens at positions that no step computes, because a shared page holds their KV. Penalties look
  // back on them. NULL: not possible.
  mlx_status_t (*set_tokens)(struct mlx_stepper *stepper, int32_t slot, int32_t position, const int32_t *ids,
                             size_t count);
  // Queues one step. Returns before it is done. After a failure no ticket is open for it.
  mlx_status_t (*submit)(struct mlx_stepper *stepper, const mlx_segment_t *segments, size_t count,
                         mlx_ticket_t **out_ticket);
  // Queues the decode of up to |tokens| tokens. |segment| has one token. The burst ends after a token of
  // |eos|. It writes the KV of its input token and of every token that it samples but the last.
  mlx_status_t (*submit_burst)(struct mlx_stepper *stepper, const mlx_segment_t *segment, int32_t tokens,
                               const int32_t *eos, size_t eos_count, mlx_ticket_t **out_ticket);
  // Waits for the oldest ticket and releases it, also on failure. There is one result per wanted token, in
  // the order of the segments; for a burst, one per sampled token. Results are borrowed until the next wait.
  mlx_status_t (*wait)(struct mlx_stepper *stepper, mlx_ticket_t *ticket,
                       const mlx_step_result_t **out_results, size_t *out_count);
  // The logits or the hidden state of wanted token |row| of the step that was waited for last. Only as long
  // as no other step is queued after it.
  mlx_status_t (*read_logits)(struct mlx_stepper *stepper, size_t row, float *out_logits);
  mlx_status_t (*read_hidden)(struct mlx_stepper *stepper, size_t row, float *out_hidden);
  // The experts of the tokens of the step that was waited for last, if a segment wanted them: [tokens]
  // [route_layers][route_used], in the order of the segments; -1 in layers without experts. Borrowed until
  // the next wait.
  const int32_t *(*routes)(const struct mlx_stepper *stepper);
  // Copies the KV of a page: copy on write. A page table names |to|.
  mlx_status_t (*copy_page)(struct mlx_stepper *stepper, int32_t from, int32_t to);
  mlx_status_t (*copy_window_page)(struct mlx_stepper *stepper, int32_t from, int32_t to);
  // Gives the memory of the KV pool back to the system, while no step is queued. Its contents are lost.
  // NULL: the device keeps it.
  void (*discard)(struct mlx_stepper *stepper);
} mlx_stepper_t;

#endif  // MLXCEL_RUNTIME_STEPPER_H_
