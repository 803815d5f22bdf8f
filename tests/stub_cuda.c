// A libcuda for machines without a GPU: it answers queries, uses host memory, completes every copy before it
// returns and runs no kernels. Environment variables control it:
//   STUB_SM         compute capability of the GPU; unset: there is no GPU
//   STUB_DRIVER     version of the driver
//   STUB_FREE       free memory in bytes (default: all of its 8 GiB); larger allocations fail
//   STUB_BAD_WRITE  copies of exactly this many bytes to the GPU fail
//   STUB_NO_RANGES  the driver has no virtual memory
#define _GNU_SOURCE  // anonymous memory
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define TOTAL ((size_t)8 << 30)

enum { OUT_OF_MEMORY = 2, NO_DEVICE = 100, LAUNCH_FAILED = 719, NOT_SUPPORTED = 801 };

typedef unsigned long long device_pointer;

static size_t setting(const char *name, size_t otherwise) {
  return getenv(name) ? (size_t)strtoull(getenv(name), NULL, 10) : otherwise;
}

// ---- queries ----

int cuInit(unsigned flags) {
  (void)flags;
  return setting("STUB_SM", 0) ? 0 : NO_DEVICE;
}

int cuDriverGetVersion(int *version) {
  *version = (int)setting("STUB_DRIVER", 13000);
  return 0;
}

int cuGetErrorName(int code, const char **name) {
  *name = code == OUT_OF_MEMORY   ? "CUDA_ERROR_OUT_OF_MEMORY"
          : code == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED"
                                  : "CUDA_ERROR_UNKNOWN";
  return 0;
}

int cuDeviceGetCount(int *count) {
  *count = 1;
  return 0;
}

int cuDeviceGetName(char *name, int length, int device) {
  (void)device;
  strncpy(name, "Stub", (size_t)length);
  return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  const int sm = (int)setting("STUB_SM", 0);
  *value = attribute == 75 ? sm / 10 : attribute == 76 ? sm % 10 : attribute == 115;  // 115: memory pools
  return 0;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  (void)device;
  *bytes = TOTAL;
  return 0;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
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

int cuMemAlloc_v2(device_pointer *out, size_t size) {
  void *bytes = NULL;
  int code = allocate(&bytes, size);
  *out = (uintptr_t)bytes;
  return code;
}

int cuMemAllocFromPoolAsync(device_pointer *out, size_t size, void *pool, void *stream) {
  (void)pool, (void)stream;
  return cuMemAlloc_v2(out, size);
}

int cuMemFree_v2(device_pointer pointer) {
  free(host_address(pointer));
  return 0;
}

int cuMemFreeAsync(device_pointer pointer, void *stream) {
  (void)stream;
  return cuMemFree_v2(pointer);
}

int cuMemHostAlloc(void **out, size_t size, unsigned flags) {
  (void)flags;
  return allocate(out, size);
}

int cuMemFreeHost(void *bytes) {
  free(bytes);
  return 0;
}

// Virtual memory: a reserved range cannot be accessed before memory is mapped into it.
static size_t mapped;  // bytes

int cuMemGetAllocationGranularity(size_t *bytes, const void *allocation, int kind) {
  (void)allocation, (void)kind;
  *bytes = 2 << 20;
  return setting("STUB_NO_RANGES", 0) ? NOT_SUPPORTED : 0;
}

int cuMemAddressReserve(device_pointer *out, size_t size, size_t alignment, device_pointer at,
                        unsigned long long flags) {
  (void)alignment, (void)at, (void)flags;
  void *range = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  *out = (uintptr_t)range;
  return range == MAP_FAILED ? OUT_OF_MEMORY : 0;
}

int cuMemAddressFree(device_pointer pointer, size_t size) { return munmap(host_address(pointer), size); }

int cuMemCreate(unsigned long long *handle, size_t size, const void *allocation, unsigned long long flags) {
  (void)allocation, (void)flags;
  *handle = 1;
  return size > setting("STUB_FREE", TOTAL) - mapped ? OUT_OF_MEMORY : 0;
}

int cuMemMap(device_pointer pointer, size_t size, size_t offset, unsigned long long handle,
             unsigned long long flags) {
  (void)pointer, (void)offset, (void)handle, (void)flags;
  mapped += size;
  return 0;
}

int cuMemSetAccess(device_pointer pointer, size_t size, const void *access, size_t count) {
  (void)access, (void)count;
  int code = mprotect(host_address(pointer), size, PROT_READ | PROT_WRITE);
  memset(host_address(pointer), 0xa5, size);  // memory of a GPU is not zeroed
  return code;
}

int cuMemUnmap(device_pointer pointer, size_t size) {
  mapped -= size;
  return mprotect(host_address(pointer), size, PROT_NONE);
}

int cuMemsetD8Async(device_pointer pointer, unsigned char value, size_t size, void *stream) {
  (void)stream;
  memset(host_address(pointer), value, size);
  return 0;
}

int cuMemcpyHtoDAsync_v2(device_pointer target, const void *source, size_t size, void *stream) {
  (void)stream;
  if (size == setting("STUB_BAD_WRITE", 0)) return LAUNCH_FAILED;
  memcpy(host_address(target), source, size);
  return 0;
}

int cuMemcpyDtoHAsync_v2(void *target, device_pointer source, size_t size, void *stream) {
  (void)stream;
  memcpy(target, host_address(source), size);
  return 0;
}

int cuMemcpyAsync(device_pointer target, device_pointer source, size_t size, void *stream) {
  (void)stream;
  memcpy(host_address(target), host_address(source), size);
  return 0;
}

// ---- functions that succeed and do nothing ----

int cuDevicePrimaryCtxRetain(void **context, int device) {
  static char dummy;
  (void)device;
  *context = &dummy;
  return 0;
}

int cuStreamCreate(void **stream, unsigned flags) {
  (void)flags;
  return cuDevicePrimaryCtxRetain(stream, 0);
}

#define NO_OP(name) \
  int name(void) { return 0; }
NO_OP(cuDevicePrimaryCtxRelease_v2)
NO_OP(cuCtxSetCurrent)
NO_OP(cuMemRelease)
NO_OP(cuStreamSynchronize)
NO_OP(cuStreamDestroy_v2)
NO_OP(cuEventCreate)
NO_OP(cuEventRecord)
NO_OP(cuEventSynchronize)
NO_OP(cuEventDestroy_v2)

static int not_supported(void) { return NOT_SUPPORTED; }

// IREE looks up each function by its unversioned name.
#define NAMED(name, function) {name, (void (*)(void))function}
int cuGetProcAddress(const char *name, void (**out)(void), int version, uint64_t flags) {
  static const struct {
    const char *name;
    void (*function)(void);
  } named[] = {NAMED("cuGetProcAddress", cuGetProcAddress),
               NAMED("cuGetErrorName", cuGetErrorName),
               NAMED("cuGetErrorString", cuGetErrorName),
               NAMED("cuInit", cuInit),
               NAMED("cuDeviceGetCount", cuDeviceGetCount),
               NAMED("cuDeviceGetName", cuDeviceGetName),
               NAMED("cuDeviceGetAttribute", cuDeviceGetAttribute),
               NAMED("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain),
               NAMED("cuStreamCreate", cuStreamCreate),
               NAMED("cuMemAlloc", cuMemAlloc_v2),
               NAMED("cuMemAllocFromPoolAsync", cuMemAllocFromPoolAsync),
               NAMED("cuMemFree", cuMemFree_v2),
               NAMED("cuMemFreeAsync", cuMemFreeAsync),
               NAMED("cuMemHostAlloc", cuMemHostAlloc),
               NAMED("cuMemFreeHost", cuMemFreeHost),
               NAMED("cuMemcpyAsync", cuMemcpyAsync),
               NAMED("cuMemcpyHtoDAsync", cuMemcpyHtoDAsync_v2),
               NAMED("cuLaunchKernel", not_supported)};
  (void)version, (void)flags;
  *out = (void (*)(void))cuCtxSetCurrent;
  for (size_t i = 0; i < sizeof named / sizeof *named; ++i) {
    if (!strcmp(named[i].name, name)) *out = named[i].function;
  }
  return 0;
}
