// Divides the items of a call's phases between threads.
#include "schedule.h"

#include "phases.h"

// Spins of a waiting thread before it leaves: about 50 ms. A preempted thread usually returns after a few
// milliseconds, and a thread that leaves is missing until the end of a call, which may decode 128 tokens.
#define MAX_SPINS 1000000
// A single delay is no reason for a limit: other processes and virtual machines cause some. STRAIN is added
// for a call that a thread left and one is subtracted for a call without; MAX_STRAIN lowers the limit.
#define STRAIN 8
#define MAX_STRAIN 24
// Calls without a delay before the limit is doubled. Each lowering doubles this number: raising the limit in
// vain costs a few milliseconds.
#define MIN_PATIENCE 32
#define MAX_PATIENCE 1024
#define MANY_TOKENS 16  // steps of more tokens have long items

// Runs phases of a single item, starting at |number|, then opens the first phase with more items. A burst
// that stopped has no more steps.
static void open_phase(const call_t *c, worker_t *worker, uint64_t number) {
  const uint64_t step = phases_of_step(c), end = step * c->steps;
  uint32_t items = 0;
  for (; number < end; ++number) {
    if (number && number % step == 0 && c->control->stopped) number = end;
    if (number == end || (items = mlx_phase_items(c, number)) > 1) break;
    if (items) mlx_run_phase(c, worker, number, 0, 1);
  }
  __atomic_store_n(&c->control->unfinished, items, __ATOMIC_RELAXED);
  __atomic_store_n(&c->control->ticket, number << 32, __ATOMIC_RELEASE);
}

// Items of the smallest claim. A grain above SUM_PANELS is the most that is worth claiming at a time: all
// threads claim equally often.
static uint32_t claim_grain(uint32_t items, uint32_t grain, uint32_t threads) {
  if (grain <= SUM_PANELS) return items >= 2 * grain * threads ? grain : 1;
  const uint32_t rounds = (items - 1) / (grain * threads) + 1, share = (items - 1) / (rounds * threads) + 1;
  return (uint32_t)mlx_round_up(share, SUM_PANELS);
}

// Claims items of the open phase; false if no item is left. A step of few tokens has short items: a thread
// claims remaining items / running threads. The divisor is at least two, so that a thread that joins later
// finds items. A step of many tokens has long items: a thread claims an eighth of that. Claims end at
// multiples of SUM_PANELS, because a product multiplies that many panels together: a single one takes up to
// half the time of four. Only if there are too few items for all threads, claims are smaller.
static bool claim_items(const call_t *c, worker_t *worker, uint64_t ticket, uint32_t *from, uint32_t *to) {
  if (worker->items_phase != ticket >> 32) {
    worker->items_phase = ticket >> 32;
    worker->items = mlx_phase_items(c, ticket >> 32);
    worker->grain = mlx_phase_grain(c, ticket >> 32);
  }
  const uint32_t items = worker->items, next = (uint32_t)ticket;
  if (next >= items) return false;
  const uint32_t present = __atomic_load_n(&c->control->present, __ATOMIC_RELAXED) + 1,
                 threads = present < 2 ? 2 : present;
  uint32_t share = (items - next) / (c->control->tokens > MANY_TOKENS ? 8 * threads : threads);
  if (share > SUM_PANELS) share -= (next + share) % SUM_PANELS;
  const uint32_t grain = claim_grain(items, worker->grain, threads);
  if (share < grain) share = grain - (grain > SUM_PANELS ? 0 : next % grain);
  *from = next;
  *to = next + (share < items - next ? share : items - next);
  return __atomic_compare_exchange_n(&c->control->ticket, &ticket, ticket + (*to - next), false,
                                     __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

// Reports completed items of phase |number|. The thread that completes the last item opens the next phase.
static void complete_items(const call_t *c, worker_t *worker, uint64_t number, uint32_t items) {
  if (__atomic_sub_fetch(&c->control->unfinished, items, __ATOMIC_ACQ_REL) == 0)
    open_phase(c, worker, number + 1);
}

// Joins the call unless it is closed or the limit is reached.
static bool try_join(control_t *control) {
  uint32_t present = __atomic_load_n(&control->present, __ATOMIC_RELAXED);
  do {
    if (__atomic_load_n(&control->closed, __ATOMIC_RELAXED) == 1 || present + 1 >= control->limit)
      return false;
  } while (!__atomic_compare_exchange_n(&control->present, &present, present + 1, true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED));
  return true;
}

// Leaves a call before its end. A thread that is alone must stay: it alone can finish the call.
static bool try_leave(control_t *control) {
  uint32_t present = __atomic_load_n(&control->present, __ATOMIC_RELAXED);
  do {
    if (present + 1 < 2) return false;
  } while (!__atomic_compare_exchange_n(&control->present, &present, present - 1, true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED));
  __atomic_store_n(&control->remaining, present - 1, __ATOMIC_RELAXED);
  __atomic_store_n(&control->closed, 1, __ATOMIC_RELAXED);
  return true;
}

// Runs items until the call ends. False if this thread left before the end.
static bool run_items_until_end(const call_t *c) {
  control_t *control = c->control;
  const uint64_t end = phases_of_step(c) * c->steps;
  worker_t worker;
  worker.vectors_phase = worker.items_phase = IDLE;
  worker.tiles = 0;
  uint64_t idle = IDLE;
  if (__atomic_compare_exchange_n(&control->ticket, &idle, UINT32_MAX, false, __ATOMIC_ACQUIRE,
                                  __ATOMIC_RELAXED))
    open_phase(c, &worker, 0);
  for (int waited = 0;;) {
    const uint64_t ticket = __atomic_load_n(&control->ticket, __ATOMIC_ACQUIRE);
    uint32_t from, to;
    if (ticket >> 32 >= end) return true;
    if (claim_items(c, &worker, ticket, &from, &to)) {
      mlx_run_phase(c, &worker, ticket >> 32, (int)from, (int)to);
      complete_items(c, &worker, ticket >> 32, to - from);
      waited = 0;
    } else {
      spin_pause();
      if (++waited < MAX_SPINS) continue;
      if (try_leave(control)) return false;
      waited = 0;
    }
  }
}

// Lowers the limit after repeated delays, and raises it after enough calls without one.
static void adapt_limit(control_t *control) {
  const bool delayed = control->closed == 1;
  const uint32_t strain = control->strain + 1;
  control->calm = delayed ? UINT32_MAX : control->calm + 1;
  control->strain = (delayed ? strain + STRAIN : strain ? strain - 1 : 0) - 1;
  if (strain >= MAX_STRAIN && delayed) {
    const uint32_t patience = control->patience == UINT32_MAX ? MIN_PATIENCE : 2 * control->patience;
    control->limit = control->remaining + 1;
    control->patience = patience < MAX_PATIENCE ? patience : MAX_PATIENCE;
    control->strain = UINT32_MAX;
  } else if (control->limit < MLX_CPU_WORKGROUPS && control->calm + 1 >= control->patience) {
    control->limit *= 2;
    control->calm = UINT32_MAX;
  }
}

// The last workgroup to return resets the control state for the next call.
void mlx_run_workgroup(const call_t *c) {
  control_t *control = c->control;
  if (try_join(control) && run_items_until_end(c)) __atomic_sub_fetch(&control->present, 1, __ATOMIC_RELAXED);
  if (__atomic_add_fetch(&control->returned, 1, __ATOMIC_ACQ_REL) != c->workgroups - 1) return;
  adapt_limit(control);
  __atomic_store_n(&control->returned, UINT32_MAX, __ATOMIC_RELAXED);
  __atomic_store_n(&control->closed, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&control->ticket, IDLE, __ATOMIC_RELEASE);
}
