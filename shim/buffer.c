// Buffers: tensors in device memory, and copies from and to the host.
#include <string.h>

#include "base/memory.h"
#include "shim/shim_internal.h"

// From IREE's CUDA driver, missing from its public header: address of the allocation of |buffer|. IREE's
// export function does not support results, because they come from a pool.
unsigned long long iree_hal_cuda_buffer_device_pointer(const iree_hal_buffer_t *buffer);

static mlx_cuda_pointer_t device_pointer(iree_hal_buffer_t *buffer) {
  return iree_hal_cuda_buffer_device_pointer(iree_hal_buffer_allocated_buffer(buffer)) +
         iree_hal_buffer_byte_offset(buffer);
}

mlx_status_t mlx_buffer_wrap(mlx_device_t *device, iree_hal_buffer_view_t *view, mlx_buffer_t **out_buffer) {
  mlx_status_t status = mlx_alloc(1, sizeof **out_buffer, out_buffer);
  if (status) {
    iree_hal_buffer_view_release(view);
    return status;
  }
  **out_buffer = (mlx_buffer_t){.device = device, .view = view};
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Inputs

static const iree_hal_buffer_params_t input_params = {.type = IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL,
                                                      .usage = IREE_HAL_BUFFER_USAGE_DEFAULT};

// True if only the pool holds |buffer|: no view, running call or module variable uses it.
static bool is_idle(iree_hal_buffer_t *buffer) {
  return iree_atomic_ref_count_load(&buffer->resource.ref_count) == 1;
}

// Returns an unused buffer of |size| bytes: an idle one of the pool, or a new one. If the pool is full, the
// new buffer replaces an idle one of another size. If all are in use, the new buffer is not pooled.
static iree_status_t acquire_input_locked(mlx_device_t *device, size_t size, iree_hal_buffer_t **out_buffer) {
  iree_hal_buffer_t **place = NULL;
  for (int i = 0; i < MLX_POOLED_INPUTS; ++i) {
    iree_hal_buffer_t *buffer = device->inputs[i];
    if (buffer && !is_idle(buffer)) continue;
    if (buffer && iree_hal_buffer_byte_length(buffer) == size) {
      iree_hal_buffer_retain(buffer);
      *out_buffer = buffer;
      return iree_ok_status();
    }
    place = &device->inputs[i];
    if (!buffer) break;
  }
  IREE_RETURN_IF_ERROR(iree_hal_allocator_allocate_buffer(iree_hal_device_allocator(device->hal),
                                                          input_params, size, out_buffer));
  if (!place) return iree_ok_status();
  iree_hal_buffer_release(*place);
  iree_hal_buffer_retain(*out_buffer);
  *place = *out_buffer;
  return iree_ok_status();
}

static mlx_status_t make_cuda_view(mlx_device_t *device, size_t rank, const iree_hal_dim_t *shape,
                                   const int32_t *values, size_t size, iree_hal_buffer_view_t **out_view) {
  mlx_device_enter(device);
  iree_hal_buffer_t *buffer = NULL;
  pthread_mutex_lock(&device->lock);
  iree_status_t acquired = acquire_input_locked(device, size, &buffer);
  pthread_mutex_unlock(&device->lock);
  MLX_TRY_IREE(acquired);
  mlx_status_t status = mlx_cuda_write(&device->cuda, device_pointer(buffer), values, size);
  if (!status) {
    status = mlx_status_from_iree(iree_hal_buffer_view_create(
        buffer, rank, shape, IREE_HAL_ELEMENT_TYPE_INT_32, IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR,
        iree_allocator_system(), out_view));
  }
  iree_hal_buffer_release(buffer);
  return status;
}

static mlx_status_t make_cpu_view(mlx_device_t *device, size_t rank, const iree_hal_dim_t *shape,
                                  const int32_t *values, size_t size, iree_hal_buffer_view_t **out_view) {
  return mlx_status_from_iree(iree_hal_buffer_view_allocate_buffer_copy(
      device->hal, iree_hal_device_allocator(device->hal), rank, shape, IREE_HAL_ELEMENT_TYPE_INT_32,
      IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR, input_params, iree_make_const_byte_span(values, size),
      out_view));
}

mlx_status_t mlx_buffer_from_i32(mlx_device_t *device, int rank, const int64_t *dims, const int32_t *values,
                                 mlx_buffer_t **out_buffer) {
  *out_buffer = NULL;
  iree_hal_dim_t shape[8];
  size_t size = sizeof *values;
  if (rank < 0 || rank > 8)
    return mlx_error(MLX_INTERNAL, "cannot create a buffer of rank %d: the maximum is 8", rank);
  for (int i = 0; i < rank; ++i) {
    shape[i] = (iree_hal_dim_t)dims[i];
    if (dims[i] < 0 || !mlx_mul(size, (size_t)dims[i], &size))
      return mlx_error(MLX_INTERNAL, "cannot create a buffer: its size overflows");
  }
  iree_hal_buffer_view_t *view = NULL;
  MLX_TRY(device->kind == MLX_DEVICE_CPU ? make_cpu_view(device, (size_t)rank, shape, values, size, &view)
                                         : make_cuda_view(device, (size_t)rank, shape, values, size, &view));
  return mlx_buffer_wrap(device, view, out_buffer);
}

// ----------------------------------------------------------------------------------------------------------
// Outputs

void mlx_buffer_free(mlx_buffer_t *buffer) {
  if (!buffer) return;
  mlx_device_enter(buffer->device);
  iree_hal_buffer_view_release(buffer->view);
  mlx_free(buffer);
}

size_t mlx_buffer_size(const mlx_buffer_t *buffer) {
  return (size_t)iree_hal_buffer_view_byte_length(buffer->view);
}

mlx_status_t mlx_buffer_read(mlx_device_t *device, const mlx_buffer_t *buffer, void *out_bytes, size_t size) {
  if (size != mlx_buffer_size(buffer)) {
    return mlx_error(MLX_INVALID_INPUT, "the module returned a tensor of %zu bytes, expected %zu",
                     mlx_buffer_size(buffer), size);
  }
  iree_hal_buffer_t *source = iree_hal_buffer_view_buffer(buffer->view);
  if (device->kind == MLX_DEVICE_CPU)
    return mlx_status_from_iree(iree_hal_buffer_map_read(source, 0, out_bytes, size));
  mlx_device_enter(device);
  return mlx_cuda_read(&device->cuda, out_bytes, device_pointer(source), size);
}
