// Fault injection for memory: a table of allocation functions that fails the Nth call and counts live blocks.
#ifndef MLXCEL_TESTS_FAULTS_H_
#define MLXCEL_TESTS_FAULTS_H_

#include <stdlib.h>

#include "base/memory.h"

static struct {
  long count, target, live;  // calls so far, the call that fails, blocks not yet released
} memory;

static inline void *count_resize(void *ptr, size_t size) {
  if (++memory.count == memory.target) return NULL;
  void *block = realloc(ptr, size);
  if (!ptr && block) ++memory.live;
  return block;
}

static inline void count_release(void *ptr) {
  --memory.live;
  free(ptr);
}

static const mlx_memory_calls_t counting_memory = {count_resize, count_release};

#endif  // MLXCEL_TESTS_FAULTS_H_
