// Measures the read bandwidth of the memory with several threads.
#include "cli/bandwidth.h"

#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"

#define BUFFER_BYTES ((size_t)512 << 20)  // larger than any cache
#define SLICES 32  // read one at a time: short enough to avoid preemption on a busy machine
#define SECONDS 1  // the measurement takes at least this long

typedef struct part {
  const uint64_t *words;
  size_t count;
  uint64_t sum;  // keeps the compiler from removing the reads
} part_t;

static void *read_part(void *user) {
  part_t *part = user;
  uint64_t sums[8] = {0};
  for (size_t i = 0; i + 8 <= part->count; i += 8) {
    for (size_t j = 0; j < 8; ++j) sums[j] += part->words[i + j];
  }
  for (size_t j = 0; j < 8; ++j) part->sum += sums[j];
  return NULL;
}

// Every thread reads its own part; the calling thread reads the last one.
static mlx_status_t read_all(part_t *parts, pthread_t *threads, int count) {
  int started = 0;
  while (started + 1 < count && !pthread_create(&threads[started], NULL, read_part, &parts[started]))
    ++started;
  if (started + 1 == count) read_part(&parts[count - 1]);
  for (int i = 0; i < started; ++i) pthread_join(threads[i], NULL);
  return started + 1 == count
             ? NULL
             : mlx_error(MLX_OUT_OF_MEMORY,
                         "the system has no resources for %d threads to measure the memory bandwidth", count);
}

static mlx_status_t measure(uint64_t *buffer, size_t bytes, int count, part_t *parts, pthread_t *threads,
                            double *out) {
  const size_t slice = bytes / sizeof *buffer / SLICES, share = slice / (size_t)count;
  memset(buffer, 1, bytes);  // unwritten memory would all map to one page of zeros
  const double begun = mlx_seconds();
  for (size_t pass = 0; pass < SLICES || mlx_seconds() - begun < SECONDS; ++pass) {
    for (int i = 0; i < count; ++i)
      parts[i] = (part_t){.words = buffer + (pass % SLICES) * slice + (size_t)i * share, .count = share};
    const double start = mlx_seconds();
    MLX_TRY(read_all(parts, threads, count));
    const double rate = (double)(share * (size_t)count * sizeof *buffer) / (mlx_seconds() - start);
    if (rate > *out) *out = rate;
  }
  return NULL;
}

mlx_status_t mlx_bandwidth_measure(int threads, double *out_bandwidth) {
  uint64_t *buffer;
  part_t *parts = NULL;
  pthread_t *handles = NULL;
  size_t bytes = BUFFER_BYTES;
  *out_bandwidth = 0;
  if (bytes > mlx_physical_memory() / 8) bytes = (size_t)(mlx_physical_memory() / 8);
  MLX_TRY(mlx_alloc(bytes, 1, &buffer));
  mlx_status_t status = mlx_alloc((size_t)threads, sizeof *parts, &parts);
  if (!status) status = mlx_alloc((size_t)threads, sizeof *handles, &handles);
  if (!status) status = measure(buffer, bytes, threads, parts, handles, out_bandwidth);
  mlx_free(handles);
  mlx_free(parts);
  mlx_free(buffer);
  return status;
}
