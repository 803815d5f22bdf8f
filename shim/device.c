// Devices: registration of the CPU and CUDA drivers with our settings, and conversion of IREE statuses.
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/memory.h"
#include "iree/async/util/proactor_pool.h"
#include "iree/hal/drivers/cuda/api.h"
#include "iree/hal/drivers/local_task/task_driver.h"
#include "iree/hal/local/loaders/embedded_elf_loader.h"
#include "iree/task/api.h"
#include "shim/shim_internal.h"

// ----------------------------------------------------------------------------------------------------------
// Statuses

static mlx_code_t code_from_iree(iree_status_code_t code) {
  switch (code) {
    case IREE_STATUS_CANCELLED: return MLX_CANCELLED;
    case IREE_STATUS_INVALID_ARGUMENT: return MLX_INVALID_INPUT;
    case IREE_STATUS_DATA_LOSS: return MLX_INVALID_INPUT;
    case IREE_STATUS_INCOMPATIBLE: return MLX_INVALID_INPUT;
    case IREE_STATUS_OUT_OF_RANGE: return MLX_INVALID_INPUT;
    case IREE_STATUS_FAILED_PRECONDITION: return MLX_INVALID_INPUT;
    case IREE_STATUS_ALREADY_EXISTS: return MLX_INVALID_INPUT;
    case IREE_STATUS_DEADLINE_EXCEEDED: return MLX_TIMEOUT;
    case IREE_STATUS_NOT_FOUND: return MLX_NOT_FOUND;
    case IREE_STATUS_PERMISSION_DENIED: return MLX_IO;
    case IREE_STATUS_RESOURCE_EXHAUSTED: return MLX_OUT_OF_MEMORY;
    case IREE_STATUS_UNIMPLEMENTED: return MLX_UNSUPPORTED;
    case IREE_STATUS_UNAVAILABLE: return MLX_UNAVAILABLE;
    default: return MLX_INTERNAL;
  }
}

mlx_status_t mlx_status_from_iree(iree_status_t status) {
  if (iree_status_is_ok(status)) return NULL;
  mlx_code_t code = code_from_iree(iree_status_code(status));
  iree_allocator_t allocator = iree_allocator_system();
  char *text = NULL;
  iree_host_size_t length = 0;
  if (!iree_status_to_string(status, &allocator, &text, &length)) text = NULL;
  const char *message = text ? text : "(no text)";
  // IREE reports this as an internal error.
  if (strstr(message, "thread creation failed")) code = MLX_OUT_OF_MEMORY;
  const char *after_place = strstr(message, "; ");  // "file.c:63: UNAVAILABLE; what happened"
  mlx_status_t result = mlx_error(code, "IREE: %s", after_place ? after_place + 2 : message);
  iree_allocator_free(allocator, text);
  iree_status_free(status);
  return result;
}

// ----------------------------------------------------------------------------------------------------------
// local-task

static iree_status_t enumerate_local_task(void *self, iree_host_size_t *out_count,
                                          const iree_hal_driver_info_t **out_infos) {
  (void)self;
  static const iree_hal_driver_info_t info = {.driver_name = IREE_SVL("local-task"),
                                              .full_name = IREE_SVL("CPU threads")};
  *out_count = 1;
  *out_infos = &info;
  return iree_ok_status();
}

// Bytes. The CPU kernel (kernels/cpu) keeps 200 KB of tiles and activation vectors of up to 610 KB on the
// stack. ThreadSanitizer takes part of a thread's stack for its own data.
#if defined(__SANITIZE_THREAD__)
#define WORKER_STACK (8 << 20)
#else
#define WORKER_STACK (3 << 19)
#endif

// One executor with one worker per thread of the device. Code is loaded from embedded ELF only.
static iree_status_t create_local_task(void *self, iree_string_view_t name, iree_allocator_t allocator,
                                       iree_hal_driver_t **out_driver) {
  if (!iree_string_view_equal(name, IREE_SV("local-task"))) return iree_make_status(IREE_STATUS_UNAVAILABLE);
  mlx_device_t *device = self;
  iree_task_topology_t topology;
  iree_task_topology_initialize_from_group_count((iree_host_size_t)device->threads, &topology);
  iree_task_executor_options_t options;
  iree_task_executor_options_initialize(&options);
  options.worker_stack_size = WORKER_STACK;
  iree_task_executor_t *executor = NULL;
  iree_status_t status = iree_task_executor_create(options, &topology, allocator, &executor);
  iree_task_topology_deinitialize(&topology);

  iree_hal_executable_loader_t *loader = NULL;
  if (iree_status_is_ok(status)) status = iree_hal_embedded_elf_loader_create(NULL, allocator, &loader);
  iree_hal_allocator_t *memory = NULL;
  if (iree_status_is_ok(status)) status = iree_hal_allocator_create_heap(name, allocator, allocator, &memory);
  if (iree_status_is_ok(status)) {
    iree_hal_task_device_params_t params;
    iree_hal_task_device_params_initialize(&params);
    status =
        iree_hal_task_driver_create(name, &params, 1, &executor, 1, &loader, memory, allocator, out_driver);
  }
  iree_hal_allocator_release(memory);
  iree_hal_executable_loader_release(loader);
  iree_task_executor_release(executor);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// cuda

static iree_status_t enumerate_cuda(void *self, iree_host_size_t *out_count,
                                    const iree_hal_driver_info_t **out_infos) {
  (void)self;
  static const iree_hal_driver_info_t info = {.driver_name = IREE_SVL("cuda"),
                                              .full_name = IREE_SVL("NVIDIA GPU")};
  *out_count = 1;
  *out_infos = &info;
  return iree_ok_status();
}

static iree_status_t create_cuda(void *self, iree_string_view_t name, iree_allocator_t allocator,
                                 iree_hal_driver_t **out_driver) {
  const mlx_device_t *device = self;
  if (!iree_string_view_equal(name, IREE_SV("cuda"))) return iree_make_status(IREE_STATUS_UNAVAILABLE);
  iree_hal_cuda_driver_options_t options;
  iree_hal_cuda_driver_options_initialize(&options);
  options.default_device_index = device->cuda.gpu;
  iree_hal_cuda_device_params_t params;
  iree_hal_cuda_device_params_initialize(&params);
  // IREE's default is graph mode, which instantiates a graph again on every call; streams were faster in
  // measurements.
  params.command_buffer_mode = IREE_HAL_CUDA_COMMAND_BUFFER_MODE_STREAM;
  // By default every wait returns the temporary memory of a call to the driver, which must map it again for
  // the next call.
  params.memory_pools.device_local.release_threshold = UINT64_MAX;
  params.memory_pools.other.release_threshold = UINT64_MAX;
  return iree_hal_cuda_driver_create(name, &options, &params, allocator, out_driver);
}

// ----------------------------------------------------------------------------------------------------------
// Devices

static mlx_status_t register_drivers(mlx_device_t *device, iree_hal_driver_factory_t factories[2]) {
  factories[0] = (iree_hal_driver_factory_t){
      .self = device, .enumerate = enumerate_local_task, .try_create = create_local_task};
  factories[1] =
      (iree_hal_driver_factory_t){.self = device, .enumerate = enumerate_cuda, .try_create = create_cuda};
  MLX_TRY_IREE(iree_hal_driver_registry_allocate(iree_allocator_system(), &device->registry));
  MLX_TRY_IREE(iree_hal_driver_registry_register_factory(device->registry, &factories[0]));
  return mlx_status_from_iree(iree_hal_driver_registry_register_factory(device->registry, &factories[1]));
}

static iree_status_t create_device(mlx_device_t *device, iree_string_view_t driver_name) {
  iree_allocator_t allocator = iree_allocator_system();
  iree_hal_driver_t *driver = NULL;
  IREE_RETURN_IF_ERROR(
      iree_hal_driver_registry_try_create(device->registry, driver_name, allocator, &driver));
  iree_async_proactor_pool_t *pool = NULL;
  iree_status_t status =
      iree_async_proactor_pool_create(1, NULL, iree_async_proactor_pool_options_default(), allocator, &pool);
  if (iree_status_is_ok(status)) {
    iree_hal_device_create_params_t params = iree_hal_device_create_params_default();
    params.proactor_pool = pool;
    status = iree_hal_driver_create_default_device(driver, &params, allocator, &device->hal);
  }
  iree_async_proactor_pool_release(pool);
  iree_hal_driver_release(driver);
  return status;
}

static mlx_status_t open_device(mlx_device_kind_t kind, int threads, int gpu, mlx_device_t **out_device) {
  *out_device = NULL;
  mlx_device_t *device;
  MLX_TRY(mlx_alloc(1, sizeof *device, &device));
  device->kind = kind;
  if (kind == MLX_DEVICE_CPU) mlx_cpu_enable_tiles();  // modules for lower CPU levels do not use tiles
  device->threads = kind == MLX_DEVICE_CPU ? threads : 0;
  pthread_mutex_init(&device->lock, NULL);
  iree_hal_driver_factory_t factories[2];  // must live until the device is created
  // One thread more than workers: IREE also starts a thread that waits for events.
  mlx_status_t status = kind == MLX_DEVICE_CUDA ? mlx_cuda_open(gpu, &device->cuda)
                                                : mlx_threads_check(threads + 1, WORKER_STACK);
  if (!status) status = register_drivers(device, factories);
  if (!status) {
    status = mlx_status_from_iree(
        create_device(device, kind == MLX_DEVICE_CUDA ? IREE_SV("cuda") : IREE_SV("local-task")));
  }
  iree_hal_driver_registry_free(device->registry);
  device->registry = NULL;
  if (status) {
    mlx_device_close(device);
    return status;
  }
  *out_device = device;
  return NULL;
}

mlx_status_t mlx_device_open(mlx_device_kind_t kind, int threads, mlx_device_t **out_device) {
  return open_device(kind, threads, 0, out_device);
}

mlx_status_t mlx_device_open_gpu(int gpu, mlx_device_t **out_device) {
  return open_device(MLX_DEVICE_CUDA, 0, gpu, out_device);
}

void mlx_device_close(mlx_device_t *device) {
  if (!device) return;
  mlx_device_enter(device);
  for (int i = 0; i < MLX_POOLED_INPUTS; ++i) iree_hal_buffer_release(device->inputs[i]);
  iree_hal_device_release(device->hal);
  mlx_cuda_close(&device->cuda);
  pthread_mutex_destroy(&device->lock);
  mlx_free(device);
}

void mlx_device_enter(const mlx_device_t *device) {
  if (device->cuda.context) mlx_cuda_enter(&device->cuda);
}

mlx_status_t mlx_device_memory(mlx_device_t *device, size_t *out_free, size_t *out_total) {
  mlx_device_enter(device);
  return mlx_cuda_status(&device->cuda, device->cuda.calls.memory_info(out_free, out_total),
                         "querying the GPU's free memory");
}

mlx_device_kind_t mlx_device_kind(const mlx_device_t *device) { return device->kind; }
int mlx_device_threads(const mlx_device_t *device) { return device->threads; }
