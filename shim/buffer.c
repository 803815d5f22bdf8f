// Buffers: tensors in device memory, and copies from and to the host.
#include <string.h>

#include "base/memory.h"
#include "shim/shim_internal.h"

#define MIN_ROOM 1024  // words; sizes of inputs are rounded up, so that the pool finds a buffer again

// From IREE's CUDA driver, missing from its public header: address of the allocation of |buffer|. IREE's
// export function does not support results, because they come from a pool.
unsigned long long iree_hal_cuda_buffer_device_pointer(const iree_hal_buffer_t *buffer);

static mlx_cuda_pointer_t device_pointer(iree_hal_buffer_t *buffer) {
  return iree_hal_cuda_buffer_device_pointer(iree_hal_buffer_allocated_buffer(buffer)) +
         iree_hal_buffer_byte_offset(buffer);
}

// Wraps |buffer| and takes ownership of it, also on failure.
static mlx_status_t wrap(mlx_device_t *device, iree_hal_buffer_t *buffer, mlx_shape_t shape,
                         mlx_memory_t *memory, mlx_buffer_t **out_buffer) {
  static const iree_hal_element_type_t elements[] = {
      [MLX_ELEMENT_I32] = IREE_HAL_ELEMENT_TYPE_INT_32,
      [MLX_ELEMENT_F32] = IREE_HAL_ELEMENT_TYPE_FLOAT_32,
      [MLX_ELEMENT_BF16] = IREE_HAL_ELEMENT_TYPE_BFLOAT_16,
      [MLX_ELEMENT_F16] = IREE_HAL_ELEMENT_TYPE_FLOAT_16,
  };
  const iree_hal_dim_t dims[2] = {(iree_hal_dim_t)shape.dims[0], (iree_hal_dim_t)shape.dims[1]};
  iree_hal_buffer_view_t *view = NULL;
  mlx_status_t status = mlx_status_from_iree(
      iree_hal_buffer_view_create(buffer, (iree_host_size_t)shape.rank, dims, elements[shape.element],
                                  IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR, iree_allocator_system(), &view));
  iree_hal_buffer_release(buffer);
  if (!status) status = mlx_alloc(1, sizeof **out_buffer, out_buffer);
  if (status) {
    iree_hal_buffer_view_release(view);
    return status;
  }
  **out_buffer = (mlx_buffer_t){.device = device, .view = view, .memory = memory};
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Inputs

static const iree_hal_buffer_params_t buffer_params = {.type = IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL,
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
                                                          buffer_params, size, out_buffer));
  if (!place) return iree_ok_status();
  iree_hal_buffer_release(*place);
  iree_hal_buffer_retain(*out_buffer);
  *place = *out_buffer;
  return iree_ok_status();
}

// Rounds up to a power of two.
static size_t pooled_words(size_t count) {
  size_t room = MIN_ROOM;
  while (room < count) room *= 2;
  return room;
}

mlx_status_t mlx_buffer_from_i32(mlx_device_t *device, const int32_t *values, size_t count,
                                 mlx_buffer_t **out_buffer) {
  *out_buffer = NULL;
  if (count > SIZE_MAX / 16) return mlx_error(MLX_INTERNAL, "cannot create a buffer of %zu words", count);
  const size_t room = pooled_words(count), size = count * sizeof *values;
  mlx_device_enter(device);
  iree_hal_buffer_t *buffer = NULL;
  pthread_mutex_lock(&device->lock);
  iree_status_t acquired = acquire_input_locked(device, room * sizeof *values, &buffer);
  pthread_mutex_unlock(&device->lock);
  MLX_TRY_IREE(acquired);
  mlx_status_t status = device->kind == MLX_DEVICE_CPU
                            ? mlx_status_from_iree(iree_hal_buffer_map_write(buffer, 0, values, size))
                            : mlx_cuda_write(&device->cuda, device_pointer(buffer), values, size);
  if (status) {
    iree_hal_buffer_release(buffer);
    return status;
  }
  const mlx_shape_t shape = {.element = MLX_ELEMENT_I32, .rank = 1, .dims = {(int64_t)room}};
  return wrap(device, buffer, shape, NULL, out_buffer);
}

// ----------------------------------------------------------------------------------------------------------
// Buffers of the runtime

static mlx_status_t shape_bytes(mlx_shape_t shape, size_t *out_bytes) {
  *out_bytes = shape.element == MLX_ELEMENT_I32 || shape.element == MLX_ELEMENT_F32 ? 4 : 2;
  for (int i = 0; i < shape.rank; ++i) {
    if (shape.dims[i] < 1 || !mlx_mul(*out_bytes, (size_t)shape.dims[i], out_bytes))
      return mlx_error(MLX_INTERNAL, "cannot create a buffer: its size is 0 or overflows");
  }
  return NULL;
}

static void release_memory(void *memory, iree_hal_buffer_t *buffer) {
  (void)buffer;
  mlx_memory_free(memory);
}

// Makes a buffer of the first |size| bytes of |memory|. Takes ownership of |memory|, also on failure.
static mlx_status_t import(mlx_device_t *device, mlx_memory_t *memory, size_t size, mlx_shape_t shape,
                           mlx_buffer_t **out_buffer) {
  iree_hal_external_buffer_t external = {.type = IREE_HAL_EXTERNAL_BUFFER_TYPE_DEVICE_ALLOCATION,
                                         .size = size,
                                         .handle.device_allocation.ptr = memory->pointer};
  if (device->kind == MLX_DEVICE_CPU) external.handle.device_allocation.ptr = (uintptr_t)memory->host;
  const iree_hal_buffer_release_callback_t release = {.fn = release_memory, .user_data = memory};
  iree_hal_buffer_t *buffer = NULL;
  mlx_status_t status = mlx_status_from_iree(iree_hal_allocator_import_buffer(
      iree_hal_device_allocator(device->hal), buffer_params, &external, release, &buffer));
  if (status) {
    mlx_memory_free(memory);
    return status;
  }
  return wrap(device, buffer, shape, memory, out_buffer);
}

mlx_status_t mlx_buffer_reserve(mlx_device_t *device, mlx_shape_t shape, mlx_buffer_t **out_buffer) {
  size_t size;
  mlx_memory_t *memory;
  *out_buffer = NULL;
  MLX_TRY(shape_bytes(shape, &size));
  MLX_TRY(mlx_memory_reserve(device, size, &memory));
  return import(device, memory, size, shape, out_buffer);
}

mlx_status_t mlx_buffer_share(mlx_device_t *device, mlx_shape_t shape, mlx_buffer_t **out_buffer) {
  size_t size;
  mlx_memory_t *memory;
  *out_buffer = NULL;
  MLX_TRY(shape_bytes(shape, &size));
  MLX_TRY(mlx_memory_share(device, size, &memory));
  return import(device, memory, size, shape, out_buffer);
}

mlx_status_t mlx_buffer_share_part(mlx_device_t *device, const mlx_buffer_t *of, size_t offset,
                                   mlx_shape_t shape, mlx_buffer_t **out_buffer) {
  size_t size;
  mlx_memory_t *memory;
  *out_buffer = NULL;
  MLX_TRY(shape_bytes(shape, &size));
  if (device->kind != MLX_DEVICE_CPU || of->device->kind != MLX_DEVICE_CPU || offset % 64 ||
      !mlx_range_ok(offset, size, of->memory->size))
    return mlx_error(MLX_INTERNAL, "cannot share %zu bytes at %zu of a buffer of %zu", size, offset,
                     of->memory->size);
  MLX_TRY(mlx_memory_borrow(device, of->memory->host + offset, size, &memory));
  return import(device, memory, size, shape, out_buffer);
}

bool mlx_buffer_discard(mlx_buffer_t *buffer) {
  if (buffer->device->kind != MLX_DEVICE_CPU) return false;
  mlx_memory_discard(buffer->memory);
  return true;
}

mlx_status_t mlx_buffer_commit(mlx_buffer_t *buffer, size_t bytes) {
  return mlx_memory_commit(buffer->memory, bytes);
}

mlx_status_t mlx_buffer_commit_end(mlx_buffer_t *buffer, size_t bytes) {
  const size_t size = mlx_buffer_size(buffer);
  if (bytes > size) return mlx_error(MLX_INTERNAL, "cannot commit %zu bytes of a buffer of %zu", bytes, size);
  return mlx_memory_commit_from(buffer->memory, size - bytes);
}

void *mlx_buffer_host(const mlx_buffer_t *buffer) { return buffer->memory->host; }

void mlx_buffer_free(mlx_buffer_t *buffer) {
  if (!buffer) return;
  mlx_device_enter(buffer->device);
  iree_hal_buffer_view_release(buffer->view);
  mlx_free(buffer);
}

size_t mlx_buffer_size(const mlx_buffer_t *buffer) {
  return (size_t)iree_hal_buffer_view_byte_length(buffer->view);
}

mlx_status_t mlx_buffer_read(const mlx_buffer_t *buffer, size_t offset, void *out_bytes, size_t size) {
  if (!mlx_range_ok(offset, size, mlx_buffer_size(buffer))) {
    return mlx_error(MLX_INTERNAL, "cannot read %zu bytes at %zu of a buffer of %zu", size, offset,
                     mlx_buffer_size(buffer));
  }
  iree_hal_buffer_t *source = iree_hal_buffer_view_buffer(buffer->view);
  if (buffer->memory && buffer->memory->host) {
    memcpy(out_bytes, buffer->memory->host + offset, size);
    return NULL;
  }
  if (buffer->device->kind == MLX_DEVICE_CPU)
    return mlx_status_from_iree(iree_hal_buffer_map_read(source, offset, out_bytes, size));
  mlx_device_enter(buffer->device);
  return mlx_cuda_read(&buffer->device->cuda, out_bytes, device_pointer(source) + offset, size);
}
