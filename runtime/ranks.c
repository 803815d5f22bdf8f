// The stepper of several ranks. See ranks.h.
//
// A step runs on all ranks or on none: a rank waits for the others inside its step. If one of them cannot be
// queued, the others are told to go on without it, and the step fails.
#include "runtime/ranks.h"

#include "base/memory.h"
#include "runtime/engine_stepper.h"

typedef struct mlx_ranks mlx_ranks_t;

typedef struct rank_ticket {
  mlx_ticket_t *of[MLX_MOST_RANK_ENGINES];
  bool is_open;
} rank_ticket_t;

struct mlx_ranks {
  mlx_stepper_t base;  // must be first
  mlx_stepper_t *steppers[MLX_MOST_RANK_ENGINES];
  size_t count;
  rank_ticket_t tickets[MLX_STEPPER_DEPTH];
};

static mlx_ranks_t *cast(mlx_stepper_t *stepper) { return (mlx_ranks_t *)stepper; }
static const mlx_stepper_t *first_of(const mlx_stepper_t *stepper) {
  return ((const mlx_ranks_t *)stepper)->steppers[0];
}

// ----------------------------------------------------------------------------------------------------------
// Steps

static mlx_status_t free_ticket(mlx_ranks_t *r, rank_ticket_t **out) {
  for (int i = 0; i < MLX_STEPPER_DEPTH; ++i) {
    *out = &r->tickets[i];
    if (!(*out)->is_open) return NULL;
  }
  return mlx_error(MLX_INTERNAL, "more than %d steps are queued", MLX_STEPPER_DEPTH);
}

// Waits for the calls of |count| ranks. Returns the first error; the results are those of rank 0.
static mlx_status_t wait_for_ranks(mlx_ranks_t *r, const rank_ticket_t *ticket, size_t count,
                                   const mlx_step_result_t **out_results, size_t *out_count) {
  const mlx_step_result_t *others;
  size_t ignored;
  mlx_status_t status = NULL;
  for (size_t i = 0; i < count; ++i)
    status =
        mlx_status_join(status, r->steppers[i]->wait(r->steppers[i], ticket->of[i], i ? &others : out_results,
                                                     i ? &ignored : out_count));
  return status;
}

// Rank |failed| could not queue a step that the ranks before it have queued.
static mlx_status_t give_up(mlx_ranks_t *r, const rank_ticket_t *ticket, size_t failed, mlx_status_t status) {
  const mlx_step_result_t *results;
  size_t count;
  if (!failed) return status;
  mlx_engine_stepper_stop_ranks(r->steppers[0], ticket->of[0]);
  mlx_status_free(wait_for_ranks(r, ticket, failed, &results, &count));
  mlx_engine_stepper_restart_ranks(r->steppers[0], ticket->of[0]);
  return status;
}

static mlx_status_t submit(mlx_stepper_t *stepper, const mlx_segment_t *segments, size_t count,
                           mlx_ticket_t **out_ticket) {
  mlx_ranks_t *r = cast(stepper);
  rank_ticket_t *ticket;
  *out_ticket = NULL;
  MLX_TRY(free_ticket(r, &ticket));
  for (size_t i = 0; i < r->count; ++i) {
    mlx_status_t status = r->steppers[i]->submit(r->steppers[i], segments, count, &ticket->of[i]);
    if (status) return give_up(r, ticket, i, status);
  }
  ticket->is_open = true;
  *out_ticket = (mlx_ticket_t *)(void *)ticket;
  return NULL;
}

static mlx_status_t submit_burst(mlx_stepper_t *stepper, const mlx_segment_t *segment, int32_t tokens,
                                 const int32_t *eos, size_t eos_count, mlx_ticket_t **out_ticket) {
  mlx_ranks_t *r = cast(stepper);
  rank_ticket_t *ticket;
  *out_ticket = NULL;
  MLX_TRY(free_ticket(r, &ticket));
  for (size_t i = 0; i < r->count; ++i) {
    mlx_status_t status =
        r->steppers[i]->submit_burst(r->steppers[i], segment, tokens, eos, eos_count, &ticket->of[i]);
    if (status) return give_up(r, ticket, i, status);
  }
  ticket->is_open = true;
  *out_ticket = (mlx_ticket_t *)(void *)ticket;
  return NULL;
}

static mlx_status_t wait(mlx_stepper_t *stepper, mlx_ticket_t *opaque, const mlx_step_result_t **out_results,
                         size_t *out_count) {
  mlx_ranks_t *r = cast(stepper);
  rank_ticket_t *ticket = (rank_ticket_t *)(void *)opaque;
  ticket->is_open = false;
  mlx_status_t status = wait_for_ranks(r, ticket, r->count, out_results, out_count);
  if (mlx_engine_stepper_restart_ranks(r->steppers[0], ticket->of[0]))
    status = mlx_status_join(status, mlx_error(MLX_UNAVAILABLE, "a rank of the model did not answer"));
  return status;
}

static mlx_status_t read_logits(mlx_stepper_t *stepper, size_t row, float *out_logits) {
  mlx_stepper_t *first = cast(stepper)->steppers[0];
  return first->read_logits(first, row, out_logits);
}

static mlx_status_t read_hidden(mlx_stepper_t *stepper, size_t row, float *out_hidden) {
  mlx_stepper_t *first = cast(stepper)->steppers[0];
  return first->read_hidden(first, row, out_hidden);
}

static bool fits(const mlx_stepper_t *stepper, int64_t tokens, int64_t wanted) {
  return first_of(stepper)->fits(first_of(stepper), tokens, wanted);
}

static int64_t size_of(const mlx_stepper_t *stepper, int64_t tokens, int64_t wanted) {
  return first_of(stepper)->size(first_of(stepper), tokens, wanted);
}

// ----------------------------------------------------------------------------------------------------------
// Pages and tokens: the same of all ranks

#define EACH_RANK(stepper, call)                        \
  do {                                                  \
    const mlx_ranks_t *const ranks = cast(stepper);     \
    for (size_t nth = 0; nth < ranks->count; ++nth) {   \
      mlx_stepper_t *const rank = ranks->steppers[nth]; \
      MLX_TRY(rank->call);                              \
    }                                                   \
    return NULL;                                        \
  } while (0)

static mlx_status_t set_page(mlx_stepper_t *s, int32_t slot, int32_t nth_page, int32_t page) {
  EACH_RANK(s, set_page(rank, slot, nth_page, page));
}
static mlx_status_t set_window_page(mlx_stepper_t *s, int32_t slot, int32_t nth_page, int32_t page) {
  EACH_RANK(s, set_window_page(rank, slot, nth_page, page));
}
static mlx_status_t set_tokens(mlx_stepper_t *s, int32_t slot, int32_t position, const int32_t *ids,
                               size_t count) {
  EACH_RANK(s, set_tokens(rank, slot, position, ids, count));
}
static mlx_status_t copy_page(mlx_stepper_t *s, int32_t from, int32_t to) {
  EACH_RANK(s, copy_page(rank, from, to));
}
static mlx_status_t copy_window_page(mlx_stepper_t *s, int32_t from, int32_t to) {
  EACH_RANK(s, copy_window_page(rank, from, to));
}

static void discard(mlx_stepper_t *stepper) {
  const mlx_ranks_t *r = cast(stepper);
  for (size_t i = 0; i < r->count; ++i) r->steppers[i]->discard(r->steppers[i]);
}

// ----------------------------------------------------------------------------------------------------------

mlx_status_t mlx_ranks_create(mlx_stepper_t *const *steppers, size_t count, mlx_stepper_t **out) {
  mlx_ranks_t *r;
  *out = NULL;
  if (steppers[0]->states)
    return mlx_error(MLX_UNSUPPORTED, "a recurrent model cannot be divided over ranks");
  MLX_TRY(mlx_engine_steppers_connect(steppers, count));
  MLX_TRY(mlx_alloc(1, sizeof *r, &r));
  r->count = count;
  for (size_t i = 0; i < count; ++i) r->steppers[i] = steppers[i];
  r->base = *steppers[0];  // the sizes
  r->base.fits = r->base.fits ? fits : NULL;
  r->base.size = r->base.size ? size_of : NULL;
  r->base.set_page = set_page;
  r->base.set_window_page = set_window_page;
  r->base.set_states = NULL;
  r->base.set_tokens = set_tokens;
  r->base.submit = submit;
  r->base.submit_burst = submit_burst;
  r->base.wait = wait;
  r->base.read_logits = read_logits;
  r->base.read_hidden = read_hidden;
  r->base.routes = NULL;
  r->base.route_layers = r->base.route_used = 0;
  r->base.copy_page = copy_page;
  r->base.copy_window_page = copy_window_page;
  r->base.discard = r->base.discard ? discard : NULL;
  *out = &r->base;
  return NULL;
}

void mlx_ranks_free(mlx_stepper_t *stepper) { mlx_free(stepper); }
