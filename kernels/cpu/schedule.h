// Scheduling of the CPU network kernel: threads claim the items of a phase, and the thread that completes the
// last item opens the next phase.
//
// IREE may run the workgroups of a call one after another on one thread, or all at once. So a workgroup must
// never wait for a workgroup that has not started. A phase is a number of items. Each running workgroup
// claims some items, computes them, and claims more. One 64-bit word, the ticket, holds the phase and its
// next item. The workgroup that completes the last item of a phase opens the next phase; it runs phases with
// a single item at once by itself. So one thread alone can run the whole call, and a thread that starts late
// joins at the current phase. Results do not depend on the number of threads: an item is computed the same
// way by every thread, and no sum is divided between items.
//
// Preemption: on a busy machine a thread can lose its core while it holds items, and all other threads wait.
// A thread that waited too long sets |late|. After MAX_DELAYS such phases, the preempted thread leaves the
// call, and the other threads finish it.
#ifndef MLXCEL_KERNELS_CPU_SCHEDULE_H_
#define MLXCEL_KERNELS_CPU_SCHEDULE_H_

#include "call.h"
#include "product.h"

// Spins of a waiting thread before it sets |late|; 10000 spins take about half a millisecond. Prefill has
// longer items.
#define MAX_SPINS_DECODE 10000
#define MAX_SPINS_PREFILL 100000
#define MAX_DELAYS 8  // one delay costs a few milliseconds; one thread less slows down the rest of the call

// What the kernel defines: phases of one step, items of phase |number|, and computing items [from, to) of it.
// Phases are numbered over all steps of a call.
static uint64_t phases_of_step(const call_t *c);
static uint32_t item_count(const call_t *c, uint64_t number);
static void run_items(const call_t *c, worker_t *worker, uint64_t number, int from, int to);

// Runs phases of a single item, starting at |number|, then opens the first phase with more items.
static void open_phase(const call_t *c, worker_t *worker, uint64_t number) {
  const uint64_t end = phases_of_step(c) * c->steps;
  uint32_t items = 0;
  for (; number < end && (items = item_count(c, number)) < 2; ++number) {
    if (items) run_items(c, worker, number, 0, 1);
  }
  __atomic_store_n(&c->control->unfinished, items, __ATOMIC_RELAXED);
  __atomic_store_n(&c->control->ticket, number << 32, __ATOMIC_RELEASE);
}

// Claims items of the open phase; false if no item is left. Decode has short items: a thread claims
// remaining items / running threads. The divisor is at least two, so that a thread that joins later finds
// items. Prefill has long items: a thread claims an eighth of that.
static bool claim_items(const call_t *c, worker_t *worker, uint64_t ticket, uint32_t *from, uint32_t *to) {
  if (worker->items_phase != ticket >> 32) {
    worker->items_phase = ticket >> 32;
    worker->items = item_count(c, ticket >> 32);
  }
  const uint32_t items = worker->items, next = (uint32_t)ticket;
  if (next >= items) return false;
  const uint32_t present = __atomic_load_n(&c->control->present, __ATOMIC_RELAXED) + 1,
                 threads = present < 2 ? 2 : present;
  const uint32_t share = (items - next) / (c->width ? 8 * threads : threads);
  *from = next;
  *to = next + (share ? share : 1);
  return __atomic_compare_exchange_n(&c->control->ticket, &ticket, ticket + (*to - next), false,
                                     __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

// Reports completed items of phase |number|. The thread that completes the last item opens the next phase.
// Returns true if that thread was late too often and must leave. It decrements |present| before it opens the
// phase. The only running thread always stays, because |late| may have been set during an earlier phase.
static bool complete_items(const call_t *c, worker_t *worker, uint64_t number, uint32_t items) {
  control_t *control = c->control;
  if (__atomic_sub_fetch(&control->unfinished, items, __ATOMIC_ACQ_REL) != 0) return false;
  const bool late = __atomic_load_n(&control->late, __ATOMIC_RELAXED) == 1 &&
                    __atomic_load_n(&control->present, __ATOMIC_RELAXED) != 0;
  const bool leaves = late && ++control->delays + 1 >= MAX_DELAYS;  // only this thread writes |delays| now
  if (leaves) {
    __atomic_store_n(&control->closed, 1, __ATOMIC_RELAXED);
    __atomic_sub_fetch(&control->present, 1, __ATOMIC_RELAXED);
  }
  __atomic_store_n(&control->late, 0, __ATOMIC_RELAXED);
  open_phase(c, worker, number + 1);
  return leaves;
}

// Runs items until the call ends. False if this thread had to leave before the end.
static bool run_items_until_end(const call_t *c) {
  control_t *control = c->control;
  const uint64_t end = phases_of_step(c) * c->steps;
  const int max_spins = c->width ? MAX_SPINS_PREFILL : MAX_SPINS_DECODE;
  worker_t worker;
  worker.vector_phase = worker.items_phase = IDLE;
  uint64_t idle = IDLE;
  if (__atomic_compare_exchange_n(&control->ticket, &idle, UINT32_MAX, false, __ATOMIC_ACQUIRE,
                                  __ATOMIC_RELAXED))
    open_phase(c, &worker, 0);
  for (int waited = 0;;) {
    const uint64_t ticket = __atomic_load_n(&control->ticket, __ATOMIC_ACQUIRE);
    uint32_t from, to;
    if (ticket >> 32 >= end) return true;
    if (claim_items(c, &worker, ticket, &from, &to)) {
      run_items(c, &worker, ticket >> 32, (int)from, (int)to);
      if (complete_items(c, &worker, ticket >> 32, to - from)) return false;
      waited = 0;
    } else {
      spin_pause();
      if (++waited == max_spins) __atomic_store_n(&control->late, 1, __ATOMIC_RELAXED);
    }
  }
}

// The last workgroup to return resets the control state for the next call.
static void run_workgroup(const call_t *c) {
  control_t *control = c->control;
  if (__atomic_load_n(&control->closed, __ATOMIC_RELAXED) != 1) {
    __atomic_add_fetch(&control->present, 1, __ATOMIC_RELAXED);
    if (run_items_until_end(c)) __atomic_sub_fetch(&control->present, 1, __ATOMIC_RELAXED);
  }
  if (__atomic_add_fetch(&control->returned, 1, __ATOMIC_ACQ_REL) != c->workgroups - 1) return;
  __atomic_store_n(&control->returned, UINT32_MAX, __ATOMIC_RELAXED);
  __atomic_store_n(&control->closed, 0, __ATOMIC_RELAXED);
  control->delays = UINT32_MAX;
  __atomic_store_n(&control->ticket, IDLE, __ATOMIC_RELEASE);
}

#endif  // MLXCEL_KERNELS_CPU_SCHEDULE_H_
