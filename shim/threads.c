// Worker threads of the CPU device: whether they can start, and on which CPUs they run.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "iree/base/threading/thread.h"
#include "shim/shim_internal.h"

#ifndef _WIN32
// Replaces IREE's function of this name (the linker option --wrap in CMakeLists.txt). Each worker of IREE
// calls it when it starts. Without a specific CPU, IREE's function permits all CPUs of the machine, which
// cancels `taskset`. A new thread inherits the mask of the thread that started it, so nothing is to do then.
void __wrap_iree_thread_request_affinity(iree_thread_t *thread, iree_thread_affinity_t affinity);
void __real_iree_thread_request_affinity(iree_thread_t *thread, iree_thread_affinity_t affinity);
void __wrap_iree_thread_request_affinity(iree_thread_t *thread, iree_thread_affinity_t affinity) {
  if (!iree_thread_affinity_is_unspecified(affinity)) __real_iree_thread_request_affinity(thread, affinity);
}
#endif

typedef struct gate {
  pthread_mutex_t lock;
  pthread_cond_t opened;
  bool is_open;
} gate_t;

static void *wait_at_gate(void *user) {
  gate_t *gate = user;
  pthread_mutex_lock(&gate->lock);
  while (!gate->is_open) pthread_cond_wait(&gate->opened, &gate->lock);
  pthread_mutex_unlock(&gate->lock);
  return NULL;
}

static void open_gate(gate_t *gate) {
  pthread_mutex_lock(&gate->lock);
  gate->is_open = true;
  pthread_cond_broadcast(&gate->opened);
  pthread_mutex_unlock(&gate->lock);
}

static mlx_status_t cannot_start(int started, int wanted, int error) {
  return mlx_status_hint(
      mlx_error(MLX_OUT_OF_MEMORY, "the system has no resources for %d threads: thread %d did not start (%s)",
                wanted, started + 1, strerror(error)),
      "use fewer threads (-t), or raise the limits on processes and memory (ulimit -u, ulimit -v, pids.max)");
}

// IREE reports a thread that does not start as an internal error, after joining a thread that does not exist.
// So the threads are started here once, all at the same time.
mlx_status_t mlx_threads_check(int count, size_t stack_bytes) {
  gate_t gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER};
  pthread_t *threads;
  pthread_attr_t attributes;
  int started = 0, error = 0;
  MLX_TRY(mlx_alloc((size_t)count, sizeof *threads, &threads));
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, stack_bytes);
  while (started < count && !(error = pthread_create(&threads[started], &attributes, wait_at_gate, &gate)))
    ++started;
  open_gate(&gate);
  for (int i = 0; i < started; ++i) pthread_join(threads[i], NULL);
  pthread_attr_destroy(&attributes);
  mlx_free(threads);
  return error ? cannot_start(started, count, error) : NULL;
}
