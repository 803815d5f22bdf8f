// A libcuda for machines without a GPU: it answers queries, uses host memory and runs no kernels. Copies and
// fills are late: a stream runs its work only when a caller waits for it, so a test sees memory that is read
// or reused without a wait. Environment variables control it:
//   STUB_SM         compute capability of the GPU; unset: there is no GPU
//   STUB_DRIVER     version of the driver
//   STUB_GPUS       number of GPUs (default: 1). Memory that is created for another GPU than that of the
//                   thread's context fails
//   STUB_FREE       free memory in bytes (default: all of its 8 GiB); larger allocations fail
//   STUB_BAD_WRITE  copies of exactly this many bytes to the GPU fail
//   STUB_NO_RANGES  the driver has no virtual memory
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define TOTAL ((size_t)8 << 30)

enum { OUT_OF_MEMORY = 2, NO_DEVICE = 100, LAUNCH_FAILED = 719, NOT_SUPPORTED = 801 };

typedef unsigned long long device_pointer;

// Begins a function of libcuda, with the declaration that the driver's header would have.
#define CUDA(name, ...)  \
  int name(__VA_ARGS__); \
  int name(__VA_ARGS__)

static size_t setting(const char *name, size_t otherwise) {
  return getenv(name) ? (size_t)strtoull(getenv(name), NULL, 10) : otherwise;
}

// ---- queries ----

CUDA(cuInit, unsigned flags) {
  (void)flags;
  return setting("STUB_SM", 0) ? 0 : NO_DEVICE;
}

CUDA(cuDriverGetVersion, int *version) {
  *version = (int)setting("STUB_DRIVER", 13000);
  return 0;
}

CUDA(cuGetErrorName, int code, const char **name) {
  *name = code == OUT_OF_MEMORY   ? "CUDA_ERROR_OUT_OF_MEMORY"
          : code == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED"
                                  : "CUDA_ERROR_UNKNOWN";
  return 0;
}

CUDA(cuDeviceGetCount, int *count) {
  *count = (int)setting("STUB_GPUS", 1);
  return 0;
}

CUDA(cuDeviceGet, int *device, int index) {
  *device = index;
  return 0;
}

CUDA(cuDeviceGetName, char *name, int length, int device) {
  snprintf(name, (size_t)length, device ? "Stub %d" : "Stub", device);
  return 0;
}

CUDA(cuDeviceGetAttribute, int *value, int attribute, int device) {
  (void)device;
  const int sm = (int)setting("STUB_SM", 0);
  *value = attribute == 75 ? sm / 10 : attribute == 76 ? sm % 10 : attribute == 115;  // 115: memory pools
  return 0;
}

CUDA(cuDeviceTotalMem_v2, size_t *bytes, int device) {
  (void)device;
  *bytes = TOTAL;
  return 0;
}

CUDA(cuMemGetInfo_v2, size_t *free_bytes, size_t *total) {
  *free_bytes = setting("STUB_FREE", TOTAL);
  *total = TOTAL;
  return 0;
}

// ---- memory ----

static int allocate(void **out, size_t size) {
  if (size > setting("STUB_FREE", TOTAL)) return OUT_OF_MEMORY;
  *out = malloc(size);
  return *out ? 0 : OUT_OF_MEMORY;
}

static void *host_address(device_pointer pointer) { return (void *)(uintptr_t)pointer; }

// ---- streams: queues of work ----

typedef struct work {
  struct work *next;
  uint64_t number;  // in the order of submission, over all streams
  void *target;     // NULL: a copy or fill is not part of it
  const void *source;
  void *owned;  // freed when the work is done; NULL if none
  size_t size;
  int value;  // of a fill, which has no source
  struct stream *awaited;
  uint64_t awaited_number;
} work_t;

typedef struct stream {
  work_t *first, **end;
  struct stream *next;
} stream_t;

typedef struct event {
  stream_t *stream;  // NULL: never recorded
  uint64_t number;
} event_t;

// A page-locked allocation. A freed one is kept until no stream has work that could read it.
typedef struct pinned {
  struct pinned *next;
  char *bytes;
  size_t size;
  int freed;
} pinned_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static stream_t *streams;  // never freed: work outlives the handle of its stream
static pinned_t *pinned;
static uint64_t submitted;

static void run_until(stream_t *stream, uint64_t number) {
  work_t *work;
  while ((work = stream->first) && work->number <= number) {
    if (work->awaited) run_until(work->awaited, work->awaited_number);
    if (work->target && work->source) memmove(work->target, work->source, work->size);
    if (work->target && !work->source) memset(work->target, work->value, work->size);
    stream->first = work->next;
    if (!stream->first) stream->end = &stream->first;
    free(work->owned);
    free(work);
  }
}

static void run_all(void) {
  for (stream_t *stream = streams; stream; stream = stream->next) run_until(stream, UINT64_MAX);
  for (pinned_t **at = &pinned; *at;) {
    pinned_t *each = *at;
    if (!each->freed) {
      at = &each->next;
      continue;
    }
    *at = each->next;
    free(each->bytes);
    free(each);
  }
}

static int submit(void *handle, work_t work) {
  stream_t *stream = handle;
  work_t *queued = malloc(sizeof *queued);
  if (!queued) abort();
  pthread_mutex_lock(&lock);
  work.number = ++submitted;
  *queued = work;
  *stream->end = queued;
  stream->end = &queued->next;
  pthread_mutex_unlock(&lock);
  return 0;
}

CUDA(cuStreamCreate, void **out, unsigned flags) {
  (void)flags;
  stream_t *stream = calloc(1, sizeof *stream);
  if (!stream) return OUT_OF_MEMORY;
  stream->end = &stream->first;
  pthread_mutex_lock(&lock);
  stream->next = streams;
  streams = stream;
  pthread_mutex_unlock(&lock);
  *out = stream;
  return 0;
}

CUDA(cuStreamSynchronize, void *stream) {
  pthread_mutex_lock(&lock);
  run_until(stream, UINT64_MAX);
  pthread_mutex_unlock(&lock);
  return 0;
}

CUDA(cuEventCreate, void **event, unsigned flags) {
  (void)flags;
  *event = calloc(1, sizeof(event_t));
  return *event ? 0 : OUT_OF_MEMORY;
}

CUDA(cuEventDestroy_v2, void *event) {
  free(event);
  return 0;
}

CUDA(cuEventRecord, void *handle, void *stream) {
  event_t *event = handle;
  pthread_mutex_lock(&lock);
  *event = (event_t){stream, submitted};
  pthread_mutex_unlock(&lock);
  return 0;
}

// Also answers a query: work makes progress, so that a caller may poll.
CUDA(cuEventSynchronize, void *handle) {
  event_t *event = handle;
  pthread_mutex_lock(&lock);
  if (event->stream) run_until(event->stream, event->number);
  pthread_mutex_unlock(&lock);
  return 0;
}

CUDA(cuStreamWaitEvent, void *stream, void *handle, unsigned flags) {
  const event_t *event = handle;
  (void)flags;
  return submit(stream, (work_t){.awaited = event->stream, .awaited_number = event->number});
}

// ---- memory of the GPU and of the host ----

CUDA(cuMemAlloc_v2, device_pointer *out, size_t size) {
  void *bytes = NULL;
  int code = allocate(&bytes, size);
  *out = (uintptr_t)bytes;
  return code;
}

CUDA(cuMemAllocFromPoolAsync, device_pointer *out, size_t size, void *pool, void *stream) {
  (void)pool, (void)stream;
  return cuMemAlloc_v2(out, size);
}

// Waits for all work, as the driver does.
CUDA(cuMemFree_v2, device_pointer pointer) {
  pthread_mutex_lock(&lock);
  run_all();
  pthread_mutex_unlock(&lock);
  free(host_address(pointer));
  return 0;
}

CUDA(cuMemFreeAsync, device_pointer pointer, void *stream) {
  return submit(stream, (work_t){.owned = host_address(pointer)});
}

CUDA(cuMemHostAlloc, void **out, size_t size, unsigned flags) {
  (void)flags;
  const int code = allocate(out, size);
  pinned_t *each = code ? NULL : malloc(sizeof *each);
  if (!each) return OUT_OF_MEMORY;
  pthread_mutex_lock(&lock);
  *each = (pinned_t){.next = pinned, .bytes = *out, .size = size};
  pinned = each;
  pthread_mutex_unlock(&lock);
  return 0;
}

// The page-locked allocation that has |source|; NULL: the memory is pageable.
static pinned_t *find_pinned(const void *source) {
  const uintptr_t at = (uintptr_t)source;
  for (pinned_t *each = pinned; each; each = each->next) {
    if (!each->freed && at - (uintptr_t)each->bytes < each->size) return each;
  }
  return NULL;
}

// Does not wait. Work that still reads the memory copies other bytes.
CUDA(cuMemFreeHost, void *bytes) {
  pthread_mutex_lock(&lock);
  pinned_t *each = find_pinned(bytes);
  if (!each) abort();
  memset(each->bytes, 0xdd, each->size);
  each->freed = 1;
  pthread_mutex_unlock(&lock);
  return 0;
}

// ---- contexts: one for each GPU ----

static char contexts[16];
static _Thread_local const char *current = contexts;

CUDA(cuDevicePrimaryCtxRetain, void **context, int device) {
  if (device < 0 || device >= (int)setting("STUB_GPUS", 1)) return NO_DEVICE;
  *context = &contexts[device];
  return 0;
}

CUDA(cuCtxSetCurrent, void *context) {
  current = context;
  return 0;
}

static int is_current(int device) { return current == &contexts[device]; }

// Virtual memory: a reserved range cannot be accessed before memory is mapped into it.
static size_t mapped;  // bytes

CUDA(cuMemGetAllocationGranularity, size_t *bytes, const void *allocation, int kind) {
  (void)allocation, (void)kind;
  *bytes = 2 << 20;
  return setting("STUB_NO_RANGES", 0) ? NOT_SUPPORTED : 0;
}

CUDA(cuMemAddressReserve, device_pointer *out, size_t size, size_t alignment, device_pointer at,
     unsigned long long flags) {
  (void)alignment, (void)at, (void)flags;
  void *range = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  *out = (uintptr_t)range;
  return range == MAP_FAILED ? OUT_OF_MEMORY : 0;
}

CUDA(cuMemAddressFree, device_pointer pointer, size_t size) { return munmap(host_address(pointer), size); }

CUDA(cuMemCreate, unsigned long long *handle, size_t size, const void *allocation, unsigned long long flags) {
  (void)flags;
  *handle = 1;
  if (!is_current(((const int *)allocation)[3])) return NO_DEVICE;  // CUmemAllocationProp.location.id
  return size > setting("STUB_FREE", TOTAL) - mapped ? OUT_OF_MEMORY : 0;
}

CUDA(cuMemMap, device_pointer pointer, size_t size, size_t offset, unsigned long long handle,
     unsigned long long flags) {
  (void)pointer, (void)offset, (void)handle, (void)flags;
  mapped += size;
  return 0;
}

CUDA(cuMemSetAccess, device_pointer pointer, size_t size, const void *access, size_t count) {
  (void)count;
  if (!is_current(((const int *)access)[1])) return NO_DEVICE;  // CUmemAccessDesc.location.id
  int code = mprotect(host_address(pointer), size, PROT_READ | PROT_WRITE);
  memset(host_address(pointer), 0xa5, size);  // memory of a GPU is not zeroed
  return code;
}

CUDA(cuMemUnmap, device_pointer pointer, size_t size) {
  mapped -= size;
  return mprotect(host_address(pointer), size, PROT_NONE);
}

CUDA(cuMemsetD8Async, device_pointer pointer, unsigned char value, size_t size, void *stream) {
  return submit(stream, (work_t){.target = host_address(pointer), .value = value, .size = size});
}

// The driver reads pageable memory before it returns, page-locked memory when the copy runs.
CUDA(cuMemcpyHtoDAsync_v2, device_pointer target, const void *source, size_t size, void *stream) {
  if (size == setting("STUB_BAD_WRITE", 0)) return LAUNCH_FAILED;
  pthread_mutex_lock(&lock);
  const int late = find_pinned(source) != NULL;
  pthread_mutex_unlock(&lock);
  void *staged = late ? NULL : malloc(size);
  if (!late && !staged) return OUT_OF_MEMORY;
  if (staged) memcpy(staged, source, size);
  return submit(
      stream,
      (work_t){
          .target = host_address(target), .source = staged ? staged : source, .owned = staged, .size = size});
}

CUDA(cuMemcpyAsync, device_pointer target, device_pointer source, size_t size, void *stream) {
  return submit(stream,
                (work_t){.target = host_address(target), .source = host_address(source), .size = size});
}

CUDA(cuMemcpyDtoHAsync_v2, void *target, device_pointer source, size_t size, void *stream) {
  return cuMemcpyAsync((uintptr_t)target, source, size, stream);
}

// ---- functions that succeed and do nothing ----

#define NO_OP(name) \
  CUDA(name, void) { return 0; }
NO_OP(cuDevicePrimaryCtxRelease_v2)
NO_OP(cuMemRelease)
NO_OP(cuStreamDestroy_v2)

static int not_supported(void) { return NOT_SUPPORTED; }

// IREE looks up each function by its unversioned name.
#define NAMED(name, function) {name, (void (*)(void))function}
CUDA(cuGetProcAddress, const char *name, void (**out)(void), int version, uint64_t flags) {
  static const struct {
    const char *name;
    void (*function)(void);
  } named[] = {NAMED("cuGetProcAddress", cuGetProcAddress),
               NAMED("cuGetErrorName", cuGetErrorName),
               NAMED("cuGetErrorString", cuGetErrorName),
               NAMED("cuInit", cuInit),
               NAMED("cuDeviceGetCount", cuDeviceGetCount),
               NAMED("cuDeviceGet", cuDeviceGet),
               NAMED("cuDeviceGetName", cuDeviceGetName),
               NAMED("cuDeviceGetAttribute", cuDeviceGetAttribute),
               NAMED("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain),
               NAMED("cuCtxSetCurrent", cuCtxSetCurrent),
               NAMED("cuStreamCreate", cuStreamCreate),
               NAMED("cuStreamSynchronize", cuStreamSynchronize),
               NAMED("cuStreamWaitEvent", cuStreamWaitEvent),
               NAMED("cuEventCreate", cuEventCreate),
               NAMED("cuEventDestroy", cuEventDestroy_v2),
               NAMED("cuEventQuery", cuEventSynchronize),
               NAMED("cuEventRecord", cuEventRecord),
               NAMED("cuEventSynchronize", cuEventSynchronize),
               NAMED("cuMemAlloc", cuMemAlloc_v2),
               NAMED("cuMemAllocFromPoolAsync", cuMemAllocFromPoolAsync),
               NAMED("cuMemFree", cuMemFree_v2),
               NAMED("cuMemFreeAsync", cuMemFreeAsync),
               NAMED("cuMemHostAlloc", cuMemHostAlloc),
               NAMED("cuMemFreeHost", cuMemFreeHost),
               NAMED("cuMemcpyAsync", cuMemcpyAsync),
               NAMED("cuMemcpyHtoDAsync", cuMemcpyHtoDAsync_v2),
               NAMED("cuMemsetD8Async", cuMemsetD8Async),
               NAMED("cuLaunchKernel", not_supported)};
  (void)version, (void)flags;
  *out = (void (*)(void))cuCtxSetCurrent;
  for (size_t i = 0; i < sizeof named / sizeof *named; ++i) {
    if (!strcmp(named[i].name, name)) *out = named[i].function;
  }
  return 0;
}
