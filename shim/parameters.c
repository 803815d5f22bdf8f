// Parameters: how a program's weights reach its module. On the CPU IREE uses the mapped bytes in place. On a
// GPU they are uploaded into one allocation, and the module gets parts of it.
#include "base/memory.h"
#include "iree/io/parameter_index.h"
#include "iree/io/parameter_index_provider.h"
#include "iree/modules/io/parameters/module.h"
#include "shim/shim_internal.h"

#define SCOPE IREE_SV("model")

// ----------------------------------------------------------------------------------------------------------
// CPU

static iree_status_t add_parameter(iree_io_parameter_index_t *index, const mlx_weights_t *weights) {
  iree_io_file_handle_t *handle = NULL;
  IREE_RETURN_IF_ERROR(iree_io_file_handle_wrap_host_allocation(
      IREE_IO_FILE_ACCESS_READ, iree_make_byte_span((void *)(uintptr_t)weights->data, weights->size),
      iree_io_file_handle_release_callback_null(), iree_allocator_system(), &handle));
  iree_io_parameter_index_entry_t entry = {
      .key = iree_make_cstring_view(weights->name),
      .length = weights->size,
      .type = IREE_IO_PARAMETER_INDEX_ENTRY_STORAGE_TYPE_FILE,
      .storage.file = {.handle = handle, .offset = 0},
  };
  iree_status_t status = iree_io_parameter_index_add(index, &entry);
  iree_io_file_handle_release(handle);
  return status;
}

static iree_status_t create_cpu_provider(const mlx_weights_t *weights,
                                         iree_io_parameter_provider_t **out_provider) {
  iree_allocator_t allocator = iree_allocator_system();
  iree_io_parameter_index_t *index = NULL;
  IREE_RETURN_IF_ERROR(iree_io_parameter_index_create(allocator, &index));
  iree_status_t status = weights->name ? add_parameter(index, weights) : iree_ok_status();
  if (iree_status_is_ok(status)) {
    status = iree_io_parameter_index_provider_create(
        SCOPE, index, IREE_IO_PARAMETER_INDEX_PROVIDER_DEFAULT_MAX_CONCURRENT_OPERATIONS, allocator,
        out_provider);
  }
  iree_io_parameter_index_release(index);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// GPU

typedef struct gpu_weights {
  iree_io_parameter_provider_t base;  // must be first
  iree_hal_buffer_t *storage;         // all weights; NULL if there are none
  mlx_cuda_pointer_t pointer;         // device address of |storage|
  const char *name;                   // of the parameter; borrowed for the load
  size_t size;                        // bytes
} gpu_weights_t;

static void gpu_destroy(iree_io_parameter_provider_t *base) {
  gpu_weights_t *weights = (gpu_weights_t *)base;
  iree_hal_buffer_release(weights->storage);
  mlx_free(weights);
}

static iree_status_t gpu_notify(iree_io_parameter_provider_t *base,
                                iree_io_parameter_provider_signal_t signal) {
  (void)base, (void)signal;  // there is no cache to drop
  return iree_ok_status();
}

static bool gpu_query_support(iree_io_parameter_provider_t *base, iree_string_view_t scope) {
  (void)base;
  return iree_string_view_equal(scope, SCOPE);
}

static void release_storage(void *storage, iree_hal_buffer_t *piece) {
  (void)piece;
  iree_hal_buffer_release(storage);
}

// A buffer over a part of the storage. The storage is released with its last part.
static iree_status_t import_piece(const gpu_weights_t *weights, iree_hal_device_t *device,
                                  iree_hal_buffer_params_t params, iree_string_view_t key,
                                  iree_io_parameter_span_t span, iree_hal_buffer_t **out_buffer) {
  if (!weights->name || !iree_string_view_equal(key, iree_make_cstring_view(weights->name))) {
    return iree_make_status(IREE_STATUS_NOT_FOUND,
                            "the module needs weight '%.*s', which the model does not have", (int)key.size,
                            key.data);
  }
  if (!mlx_range_ok(span.parameter_offset, span.length, weights->size)) {
    return iree_make_status(IREE_STATUS_OUT_OF_RANGE,
                            "the module reads %llu bytes of weights, of which the model has %zu",
                            (unsigned long long)span.length, weights->size);
  }
  if (!iree_all_bits_set(params.usage, IREE_HAL_BUFFER_USAGE_SHARING_IMMUTABLE)) {
    return iree_make_status(IREE_STATUS_UNIMPLEMENTED,
                            "the module modifies its weights, which are read-only");
  }
  iree_hal_external_buffer_t piece = {
      .type = IREE_HAL_EXTERNAL_BUFFER_TYPE_DEVICE_ALLOCATION,
      .size = span.length,
      .handle.device_allocation.ptr = weights->pointer + span.parameter_offset};
  const iree_hal_buffer_release_callback_t release = {.fn = release_storage, .user_data = weights->storage};
  iree_hal_buffer_retain(weights->storage);
  iree_status_t status = iree_hal_allocator_import_buffer(iree_hal_device_allocator(device), params, &piece,
                                                          release, out_buffer);
  if (!iree_status_is_ok(status)) iree_hal_buffer_release(weights->storage);
  return status;
}

// iree-compile emits one load call per set of parameter globals. The bytes are on the device already.
static iree_status_t gpu_load(iree_io_parameter_provider_t *base, iree_hal_device_t *device,
                              iree_hal_queue_affinity_t affinity, const iree_hal_semaphore_list_t waits,
                              const iree_hal_semaphore_list_t signals, iree_string_view_t scope,
                              iree_hal_buffer_params_t params, iree_host_size_t count,
                              iree_io_parameter_enumerator_t enumerator,
                              iree_io_parameter_emitter_t emitter) {
  (void)affinity, (void)scope;
  IREE_RETURN_IF_ERROR(
      iree_hal_semaphore_list_wait(waits, iree_infinite_timeout(), IREE_ASYNC_WAIT_FLAG_NONE));
  for (iree_host_size_t i = 0; i < count; ++i) {
    iree_string_view_t key;
    iree_io_parameter_span_t span;
    iree_hal_buffer_t *buffer = NULL;
    IREE_RETURN_IF_ERROR(enumerator.fn(enumerator.user_data, i, &key, &span));
    IREE_RETURN_IF_ERROR(import_piece((gpu_weights_t *)base, device, params, key, span, &buffer));
    iree_status_t status = emitter.fn(emitter.user_data, i, buffer);
    iree_hal_buffer_release(buffer);
    IREE_RETURN_IF_ERROR(status);
  }
  return iree_hal_semaphore_list_signal(signals, NULL);
}

static iree_status_t gpu_gather(iree_io_parameter_provider_t *base, iree_hal_device_t *device,
                                iree_hal_queue_affinity_t affinity, const iree_hal_semaphore_list_t waits,
                                const iree_hal_semaphore_list_t signals, iree_string_view_t scope,
                                iree_hal_buffer_t *target, iree_host_size_t count,
                                iree_io_parameter_enumerator_t enumerator) {
  (void)base, (void)device, (void)affinity, (void)waits, (void)signals, (void)scope, (void)target,
      (void)count, (void)enumerator;
  return iree_make_status(IREE_STATUS_UNIMPLEMENTED, "the module gathers weights, which is not supported");
}

static iree_status_t gpu_scatter(iree_io_parameter_provider_t *base, iree_hal_device_t *device,
                                 iree_hal_queue_affinity_t affinity, const iree_hal_semaphore_list_t waits,
                                 const iree_hal_semaphore_list_t signals, iree_hal_buffer_t *source,
                                 iree_string_view_t scope, iree_host_size_t count,
                                 iree_io_parameter_enumerator_t enumerator) {
  (void)base, (void)device, (void)affinity, (void)waits, (void)signals, (void)source, (void)scope,
      (void)count, (void)enumerator;
  return iree_make_status(IREE_STATUS_UNIMPLEMENTED, "the module scatters weights, which is not supported");
}

static const iree_io_parameter_provider_vtable_t gpu_vtable = {.destroy = gpu_destroy,
                                                               .notify = gpu_notify,
                                                               .query_support = gpu_query_support,
                                                               .load = gpu_load,
                                                               .gather = gpu_gather,
                                                               .scatter = gpu_scatter};

static mlx_status_t upload(mlx_device_t *device, const mlx_weights_t *weights, gpu_weights_t *out) {
  out->name = weights->name;
  out->size = weights->size;
  if (!weights->size) return NULL;
  iree_hal_allocator_t *allocator = iree_hal_device_allocator(device->hal);
  const iree_hal_buffer_params_t params = {.type = IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL,
                                           .usage = IREE_HAL_BUFFER_USAGE_DEFAULT};
  MLX_TRY_IREE(iree_hal_allocator_allocate_buffer(allocator, params, weights->size, &out->storage));
  iree_hal_external_buffer_t external;
  MLX_TRY_IREE(iree_hal_allocator_export_buffer(allocator, out->storage,
                                                IREE_HAL_EXTERNAL_BUFFER_TYPE_DEVICE_ALLOCATION,
                                                IREE_HAL_EXTERNAL_BUFFER_FLAG_NONE, &external));
  out->pointer = external.handle.device_allocation.ptr;
  return mlx_cuda_upload(&device->cuda, out->pointer, weights);
}

static mlx_status_t create_gpu_provider(mlx_device_t *device, const mlx_weights_t *weights,
                                        iree_io_parameter_provider_t **out_provider) {
  gpu_weights_t *provider;
  MLX_TRY(mlx_alloc(1, sizeof *provider, &provider));
  iree_atomic_ref_count_init(&provider->base.ref_count);
  provider->base.vtable = &gpu_vtable;
  mlx_status_t status = upload(device, weights, provider);
  if (status) {
    gpu_destroy(&provider->base);
    return status;
  }
  *out_provider = &provider->base;
  return NULL;
}

mlx_status_t mlx_parameters_create(mlx_device_t *device, iree_vm_instance_t *instance,
                                   const mlx_weights_t *weights, iree_vm_module_t **out_module) {
  iree_io_parameter_provider_t *provider = NULL;
  MLX_TRY(device->kind == MLX_DEVICE_CPU ? mlx_status_from_iree(create_cpu_provider(weights, &provider))
                                         : create_gpu_provider(device, weights, &provider));
  iree_status_t status =
      iree_io_parameters_module_create(instance, 1, &provider, iree_allocator_system(), out_module);
  iree_io_parameter_provider_release(provider);
  return mlx_status_from_iree(status);
}
