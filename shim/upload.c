// Upload: copies weights to the GPU at the speed of the link. One thread cannot copy and fault in pages that
// fast, and the driver is only fast from page-locked memory. So several threads fill page-locked buffers, and
// each buffer is transferred while its thread fills the next one.
#include <stdatomic.h>
#include <string.h>

#include "base/parallel.h"
#include "shim/cuda.h"

// Measured on an H200 (PCIe 5, 16 cores): 2.5 GB of a mapped file take 0.34 s with 1 worker and 0.08 s
// with 8. More workers or larger pieces are slower, because page-locking the buffers also takes time. Packing
// weights takes more time than copying, so all workers do that.
#define PIECE ((size_t)2 << 20)
#define COPYING_WORKERS 8
#define EVENT_DISABLE_TIMING 2

typedef struct upload {
  const mlx_cuda_t *cuda;
  mlx_cuda_pointer_t target;
  const mlx_weights_t *weights;
  atomic_size_t next;   // offset of the first byte not yet claimed by a worker
  atomic_size_t done;   // bytes submitted
  atomic_bool stopped;  // a worker failed
} upload_t;

// A page-locked buffer of one worker, and the event that follows the copy from it.
typedef struct slot {
  void *bytes, *event;
} slot_t;

static int slot_open(const mlx_cuda_calls_t *calls, slot_t *slot) {
  int code = calls->host_alloc(&slot->bytes, PIECE, 0);
  return code ? code : calls->event_create(&slot->event, EVENT_DISABLE_TIMING);
}

static void slot_close(const mlx_cuda_calls_t *calls, slot_t *slot) {
  if (slot->event) calls->event_destroy(slot->event);
  if (slot->bytes) calls->host_free(slot->bytes);
}

static mlx_status_t driver_status(const upload_t *upload, int code) {
  return mlx_cuda_status(upload->cuda, code, "uploading the weights");
}

static mlx_status_t read_piece(const mlx_weights_t *weights, int worker, size_t offset, size_t size,
                               void *out) {
  if (!weights->data) return weights->reader->read(weights->reader->user, worker, offset, size, out);
  memcpy(out, (const uint8_t *)weights->data + offset, size);
  return NULL;
}

static mlx_status_t send_piece(upload_t *upload, int worker, slot_t *slot, size_t offset) {
  const mlx_cuda_calls_t *calls = &upload->cuda->calls;
  const size_t left = upload->weights->size - offset, size = left < PIECE ? left : PIECE;
  // The wait returns at once for an event that was never recorded.
  MLX_TRY(driver_status(upload, calls->event_wait(slot->event)));
  MLX_TRY(read_piece(upload->weights, worker, offset, size, slot->bytes));
  int code = calls->write(upload->target + offset, slot->bytes, size, upload->cuda->stream);
  if (!code) code = calls->event_record(slot->event, upload->cuda->stream);
  if (!code) atomic_fetch_add(&upload->done, size);
  return driver_status(upload, code);
}

// Copies pieces until none is left. Worker 0 is the calling thread, which reports progress.
static mlx_status_t work(void *user, int worker, uint64_t index) {
  (void)index;
  upload_t *upload = user;
  const mlx_weights_t *weights = upload->weights;
  const mlx_cuda_calls_t *calls = &upload->cuda->calls;
  slot_t slots[2] = {{0}};
  size_t offset;
  mlx_cuda_enter(upload->cuda);
  int code = slot_open(calls, &slots[0]);
  if (!code) code = slot_open(calls, &slots[1]);
  mlx_status_t status = driver_status(upload, code);
  for (int i = 0; !status && !atomic_load(&upload->stopped); i ^= 1) {
    if ((offset = atomic_fetch_add(&upload->next, PIECE)) >= weights->size) break;
    if (weights->cancelled && atomic_load(weights->cancelled))
      status = mlx_error(MLX_CANCELLED, "cancelled");
    else
      status = send_piece(upload, worker, &slots[i], offset);
    if (!worker && weights->on_load)
      weights->on_load(weights->user, atomic_load(&upload->done), weights->size);
  }
  for (int i = 0; i < 2; ++i) {  // also after a failure: copies still read the buffers
    code = slots[i].event ? calls->event_wait(slots[i].event) : 0;
    if (!status) status = driver_status(upload, code);
  }
  for (int i = 0; i < 2; ++i) slot_close(calls, &slots[i]);
  if (status) atomic_store(&upload->stopped, true);
  return status;
}

mlx_status_t mlx_cuda_upload(const mlx_cuda_t *cuda, mlx_cuda_pointer_t target,
                             const mlx_weights_t *weights) {
  upload_t upload = {.cuda = cuda, .target = target, .weights = weights};
  const int most = weights->data ? COPYING_WORKERS : weights->reader->workers;
  const int cpus = mlx_parallel_workers(weights->size / PIECE, 0), workers = cpus < most ? cpus : most;
  if (weights->on_load) weights->on_load(weights->user, 0, weights->size);
  MLX_TRY(mlx_parallel((uint64_t)workers, workers, work, &upload));
  if (weights->on_load) weights->on_load(weights->user, weights->size, weights->size);
  return NULL;
}
