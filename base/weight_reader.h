// Weight reader: weights that are not in a file. The compiler packs any range of them on demand, and the GPU
// gets each range as soon as it is packed.
//
// Ownership: a reader is a plain struct; the object behind |user| owns it. Threads: up to |workers| threads
// may read at the same time.
#ifndef MLXCEL_BASE_WEIGHT_READER_H_
#define MLXCEL_BASE_WEIGHT_READER_H_

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct mlx_weight_reader {
  uint64_t size;  // bytes of all weights
  int workers;    // threads that may call |read| at the same time
  // Writes |length| bytes of the weights at |offset|, a multiple of 64, to |out|. No two threads have the
  // same |worker|, which is below |workers|, at a time.
  mlx_status_t (*read)(void *user, int worker, uint64_t offset, size_t length, void *out);
  uint64_t (*size_of)(void *user, const char *name);  // bytes of one weight; 0 if the model does not have it
  void *user;
} mlx_weight_reader_t;

#endif  // MLXCEL_BASE_WEIGHT_READER_H_
