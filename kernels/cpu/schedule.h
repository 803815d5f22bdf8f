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
// Preemption: on a busy machine, or with more threads than CPUs, a thread can lose its CPU while it holds
// items. The other threads then spin, and may occupy the CPU that the preempted thread needs. So a thread
// that waited for MAX_SPINS leaves the call and sleeps; the remaining threads finish it. If that happens in
// most calls, the number of threads is limited for the following calls, and raised again after a while.
#ifndef MLXCEL_KERNELS_CPU_SCHEDULE_H_
#define MLXCEL_KERNELS_CPU_SCHEDULE_H_

#include "call.h"

// Runs one workgroup of a call, until the call ends or the workgroup leaves it.
void mlx_run_workgroup(const call_t *c);

#endif  // MLXCEL_KERNELS_CPU_SCHEDULE_H_
