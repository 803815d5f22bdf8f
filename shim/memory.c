// Memory of buffers that the runtime owns: reserved at once and backed as it is used, or shared by host and
// GPU.
#include "base/memory.h"

#include <string.h>

#include "base/pages.h"
#include "shim/shim_internal.h"

#define STEP ((size_t)64 << 20)  // bytes of GPU memory that are mapped at once; less for a smaller buffer

// ----------------------------------------------------------------------------------------------------------
// GPU. The structs of the driver's functions for virtual memory

#define ALLOCATION_PINNED 1
#define LOCATION_DEVICE 1
#define ACCESS_READ_WRITE 3
#define GRANULARITY_RECOMMENDED 1
#define HOST_ALLOC_DEVICE_MAP 2

typedef struct location {
  int type, id;
} location_t;
typedef struct allocation {  // CUmemAllocationProp
  int type, handle_types;
  location_t location;
  void *windows_metadata;
  unsigned char flags[8];
} allocation_t;
typedef struct access {  // CUmemAccessDesc
  location_t location;
  int flags;
} access_t;

static allocation_t allocation_on(const mlx_cuda_t *cuda) {
  return (allocation_t){.type = ALLOCATION_PINNED, .location = {LOCATION_DEVICE, cuda->gpu}};
}

// Maps |size| bytes of new memory at |target|. The mapping keeps the memory alive.
static int map_step(const mlx_cuda_t *cuda, mlx_cuda_pointer_t target, size_t size) {
  const mlx_cuda_calls_t *calls = &cuda->calls;
  const allocation_t allocation = allocation_on(cuda);
  const access_t access_all = {.location = allocation.location, .flags = ACCESS_READ_WRITE};
  unsigned long long handle;
  int code = calls->memory_create(&handle, size, &allocation, 0);
  if (code) return code;
  code = calls->memory_map(target, size, 0, handle, 0);
  calls->memory_release(handle);
  if (code) return code;
  code = calls->memory_access(target, size, &access_all, 1);
  if (code) calls->memory_unmap(target, size);
  return code;
}

static mlx_status_t clear(const mlx_memory_t *memory, size_t from, size_t size) {
  const mlx_cuda_t *cuda = &memory->device->cuda;
  int code = cuda->calls.memory_set(memory->pointer + from, 0, size, cuda->stream);
  return mlx_cuda_status(cuda, code ? code : cuda->calls.stream_wait(cuda->stream), "clearing GPU memory");
}

// A driver without virtual memory gets one allocation of the whole size.
static mlx_status_t reserve_gpu(mlx_memory_t *memory) {
  const mlx_cuda_t *cuda = &memory->device->cuda;
  const allocation_t allocation = allocation_on(cuda);
  size_t granularity = 0, size;
  mlx_device_enter(memory->device);
  int code = cuda->calls.memory_granularity(&granularity, &allocation, GRANULARITY_RECOMMENDED);
  // STEP is a multiple of every granularity (a power of two, 2 MiB today), so all steps are aligned.
  if (!code && granularity && STEP % granularity == 0 &&
      mlx_align_up(memory->size, memory->size < STEP ? granularity : STEP, &size) &&
      !cuda->calls.memory_reserve(&memory->pointer, size, 0, 0, 0)) {
    memory->is_range = true;
    memory->size = size;
    memory->step = size < STEP ? size : STEP;
    return NULL;
  }
  MLX_TRY(mlx_cuda_status(cuda, cuda->calls.memory_alloc(&memory->pointer, memory->size),
                          "allocating GPU memory"));
  memory->committed = memory->size;
  return clear(memory, 0, memory->size);
}

static mlx_status_t commit_step(const mlx_memory_t *memory, size_t from) {
  const mlx_cuda_t *cuda = &memory->device->cuda;
  MLX_TRY(
      mlx_cuda_status(cuda, map_step(cuda, memory->pointer + from, memory->step), "allocating GPU memory"));
  return clear(memory, from, memory->step);
}

static mlx_status_t commit_gpu(mlx_memory_t *memory, size_t bytes) {
  mlx_device_enter(memory->device);
  while (memory->committed < bytes && (!memory->end || memory->committed < memory->end)) {
    MLX_TRY(commit_step(memory, memory->committed));
    memory->committed += memory->step;
  }
  return NULL;
}

static mlx_status_t commit_gpu_from(mlx_memory_t *memory, size_t from) {
  mlx_device_enter(memory->device);
  memory->end = memory->size;
  while (memory->end > from) {
    MLX_TRY(commit_step(memory, memory->end - memory->step));
    memory->end -= memory->step;
  }
  if (!memory->end) memory->committed = memory->size;  // all of it
  return NULL;
}

static void free_gpu(mlx_memory_t *memory) {
  const mlx_cuda_calls_t *calls = &memory->device->cuda.calls;
  mlx_device_enter(memory->device);
  if (memory->host) {
    calls->host_free(memory->host);
  } else if (memory->is_range) {
    for (size_t at = 0; at < memory->size; at += memory->step) {
      if (at < memory->committed || (memory->end && at >= memory->end))
        calls->memory_unmap(memory->pointer + at, memory->step);
    }
    calls->memory_unreserve(memory->pointer, memory->size);
  } else if (memory->pointer) {
    calls->memory_free(memory->pointer);
  }
}

// ----------------------------------------------------------------------------------------------------------
// Both

static mlx_status_t create(mlx_device_t *device, size_t size, mlx_memory_t **out_memory) {
  MLX_TRY(mlx_alloc(1, sizeof **out_memory, out_memory));
  **out_memory = (mlx_memory_t){.device = device, .size = size};
  return NULL;
}

static mlx_status_t finish(mlx_status_t status, mlx_memory_t **inout_memory) {
  if (!status) return NULL;
  mlx_memory_free(*inout_memory);
  *inout_memory = NULL;
  return status;
}

mlx_status_t mlx_memory_reserve(mlx_device_t *device, size_t size, mlx_memory_t **out_memory) {
  MLX_TRY(create(device, size, out_memory));
  if (device->kind != MLX_DEVICE_CPU) return finish(reserve_gpu(*out_memory), out_memory);
  void *pages;
  mlx_status_t status = mlx_pages_reserve(size, &pages);
  (*out_memory)->host = pages;
  return finish(status, out_memory);
}

mlx_status_t mlx_memory_share(mlx_device_t *device, size_t size, mlx_memory_t **out_memory) {
  if (device->kind == MLX_DEVICE_CPU) {
    MLX_TRY(mlx_memory_reserve(device, size, out_memory));
    return finish(mlx_memory_commit(*out_memory, size), out_memory);
  }
  MLX_TRY(create(device, size, out_memory));
  mlx_device_enter(device);
  void *host = NULL;
  mlx_status_t status =
      mlx_cuda_status(&device->cuda, device->cuda.calls.host_alloc(&host, size, HOST_ALLOC_DEVICE_MAP),
                      "allocating page-locked memory");
  if (host) memset(host, 0, size);
  (*out_memory)->host = host;
  (*out_memory)->pointer = (uintptr_t)host;  // unified addressing: the GPU uses the same address
  (*out_memory)->committed = size;
  return finish(status, out_memory);
}

mlx_status_t mlx_memory_borrow(mlx_device_t *device, void *host, size_t size, mlx_memory_t **out_memory) {
  MLX_TRY(create(device, size, out_memory));
  (*out_memory)->host = host;
  (*out_memory)->is_borrowed = true;
  (*out_memory)->committed = size;
  return NULL;
}

mlx_status_t mlx_memory_commit(mlx_memory_t *memory, size_t bytes) {
  if (bytes <= memory->committed) return NULL;
  if (bytes > memory->size)
    return mlx_error(MLX_INTERNAL, "cannot commit %zu bytes of a buffer of %zu", bytes, memory->size);
  if (memory->device->kind != MLX_DEVICE_CPU) return commit_gpu(memory, bytes);
  MLX_TRY(mlx_pages_commit(memory->host, bytes));
  memory->committed = bytes;
  return NULL;
}

mlx_status_t mlx_memory_commit_from(mlx_memory_t *memory, size_t from) {
  if (from > memory->size || memory->committed)
    return memory->committed == memory->size
               ? NULL  // a driver without virtual memory
               : mlx_error(MLX_INTERNAL, "cannot commit a buffer of %zu bytes from byte %zu", memory->size,
                           from);
  if (memory->device->kind != MLX_DEVICE_CPU) return commit_gpu_from(memory, from);
  return mlx_pages_commit(memory->host + from, memory->size - from);
}

// All of it may be committed: at the end, commit_from leaves |committed| as it is.
void mlx_memory_discard(mlx_memory_t *memory) { mlx_pages_discard(memory->host, memory->size); }

void mlx_memory_free(mlx_memory_t *memory) {
  if (!memory) return;
  if (memory->is_borrowed) {
    mlx_free(memory);
    return;
  }
  if (memory->device->kind == MLX_DEVICE_CPU) {
    mlx_pages_release(memory->host, memory->size);
  } else {
    free_gpu(memory);
  }
  mlx_free(memory);
}
