// Programs and buffers: a compiled module with its weights, and calls into it.
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "iree/io/parameter_index.h"
#include "iree/io/parameter_index_provider.h"
#include "iree/modules/hal/types.h"
#include "iree/modules/io/parameters/module.h"
#include "iree/runtime/api.h"
#include "shim/shim_internal.h"

struct mlx_program {
  iree_runtime_instance_t *instance;
  iree_runtime_session_t *session;
};

struct mlx_buffer {
  iree_hal_buffer_view_t *view;
};

// ---------------------------------------------------------------------------------------------------------------------
// Loading

static iree_status_t add_parameter(iree_io_parameter_index_t *index, const mlx_parameter_t *parameter) {
  iree_io_file_handle_t *handle = NULL;
  IREE_RETURN_IF_ERROR(iree_io_file_handle_wrap_host_allocation(
      IREE_IO_FILE_ACCESS_READ, iree_make_byte_span((void *)(uintptr_t)parameter->data, parameter->size),
      iree_io_file_handle_release_callback_null(), iree_allocator_system(), &handle));
  iree_io_parameter_index_entry_t entry = {
      .key = iree_make_cstring_view(parameter->name),
      .length = parameter->size,
      .type = IREE_IO_PARAMETER_INDEX_ENTRY_STORAGE_TYPE_FILE,
      .storage.file = {.handle = handle, .offset = 0},
  };
  iree_status_t status = iree_io_parameter_index_add(index, &entry);
  iree_io_file_handle_release(handle);
  return status;
}

static iree_status_t create_parameters_module(iree_vm_instance_t *instance, const mlx_parameter_t *parameters, size_t count,
                                              iree_vm_module_t **out_module) {
  iree_allocator_t allocator = iree_allocator_system();
  iree_io_parameter_index_t *index = NULL;
  IREE_RETURN_IF_ERROR(iree_io_parameter_index_create(allocator, &index));
  iree_status_t status = iree_ok_status();
  for (size_t i = 0; i < count && iree_status_is_ok(status); ++i) status = add_parameter(index, &parameters[i]);
  iree_io_parameter_provider_t *provider = NULL;
  if (iree_status_is_ok(status)) {
    status = iree_io_parameter_index_provider_create(
        IREE_SV("model"), index, IREE_IO_PARAMETER_INDEX_PROVIDER_DEFAULT_MAX_CONCURRENT_OPERATIONS, allocator, &provider);
  }
  if (iree_status_is_ok(status)) status = iree_io_parameters_module_create(instance, 1, &provider, allocator, out_module);
  iree_io_parameter_provider_release(provider);
  iree_io_parameter_index_release(index);
  return status;
}

// Appending the model runs its initialisers, which bind the weights: so the module that provides them comes first.
static iree_status_t load_modules(mlx_program_t *program, mlx_device_t *device, iree_const_byte_span_t vmfb,
                                  const mlx_parameter_t *parameters, size_t parameter_count) {
  iree_allocator_t allocator = iree_allocator_system();
  iree_runtime_instance_options_t instance_options;
  iree_runtime_instance_options_initialize(&instance_options);
  IREE_RETURN_IF_ERROR(iree_runtime_instance_create(&instance_options, allocator, &program->instance));
  iree_runtime_session_options_t session_options;
  iree_runtime_session_options_initialize(&session_options);
  IREE_RETURN_IF_ERROR(iree_runtime_session_create_with_device(program->instance, &session_options, device->hal, allocator,
                                                               &program->session));
  iree_vm_module_t *provider = NULL;
  IREE_RETURN_IF_ERROR(create_parameters_module(iree_runtime_instance_vm_instance(program->instance), parameters,
                                                parameter_count, &provider));
  iree_status_t status = iree_runtime_session_append_module(program->session, provider);
  iree_vm_module_release(provider);
  IREE_RETURN_IF_ERROR(status);
  return iree_runtime_session_append_bytecode_module_from_memory(program->session, vmfb, iree_allocator_null());
}

mlx_status_t mlx_program_load(mlx_device_t *device, const void *vmfb, size_t vmfb_size, const mlx_parameter_t *parameters,
                              size_t parameter_count, mlx_program_t **out_program) {
  *out_program = NULL;
  mlx_program_t *program;
  MLX_TRY(mlx_alloc(1, sizeof *program, &program));
  mlx_status_t status = mlx_status_from_iree(
      load_modules(program, device, iree_make_const_byte_span(vmfb, vmfb_size), parameters, parameter_count));
  if (status) {
    mlx_program_free(program);
    return status;
  }
  *out_program = program;
  return NULL;
}

void mlx_program_free(mlx_program_t *program) {
  if (!program) return;
  iree_runtime_session_release(program->session);
  iree_runtime_instance_release(program->instance);
  mlx_free(program);
}

// ---------------------------------------------------------------------------------------------------------------------
// Calling

static iree_status_t find_function(const mlx_program_t *program, const char *name, iree_vm_function_t *out_function) {
  char full_name[64];
  snprintf(full_name, sizeof full_name, "mlxcel.%s", name);  // the name of every module we emit
  return iree_runtime_session_lookup_function(program->session, iree_make_cstring_view(full_name), out_function);
}

bool mlx_program_has(const mlx_program_t *program, const char *function) {
  iree_vm_function_t found;
  iree_status_t status = find_function(program, function, &found);
  bool has = iree_status_is_ok(status);
  iree_status_ignore(status);
  return has;
}

static iree_status_t push_inputs(iree_vm_list_t *list, mlx_buffer_t *const *inputs, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    iree_vm_ref_t ref = iree_hal_buffer_view_retain_ref(inputs[i]->view);
    IREE_RETURN_IF_ERROR(iree_vm_list_push_ref_move(list, &ref));
  }
  return iree_ok_status();
}

static mlx_status_t take_outputs(iree_vm_list_t *list, mlx_buffer_t **out_outputs, size_t count) {
  if (iree_vm_list_size(list) != count) {
    return mlx_error(MLX_INVALID_INPUT, "the module returned %zu values where its contract says %zu",
                     (size_t)iree_vm_list_size(list), count);
  }
  for (size_t i = 0; i < count; ++i) {
    iree_hal_buffer_view_t *view = iree_vm_list_get_buffer_view_assign(list, i);
    if (!view) return mlx_error(MLX_INVALID_INPUT, "the module returned something that is not a tensor");
    MLX_TRY(mlx_alloc(1, sizeof *out_outputs[i], &out_outputs[i]));
    iree_hal_buffer_view_retain(view);
    out_outputs[i]->view = view;
  }
  return NULL;
}

static mlx_status_t call_with_lists(mlx_program_t *program, iree_vm_function_t function, mlx_buffer_t *const *inputs,
                                    size_t input_count, mlx_buffer_t **out_outputs, size_t output_count) {
  iree_allocator_t allocator = iree_allocator_system();
  iree_vm_list_t *in = NULL, *out = NULL;
  iree_status_t status = iree_vm_list_create(iree_vm_make_undefined_type_def(), input_count, allocator, &in);
  if (iree_status_is_ok(status)) {
    status = iree_vm_list_create(iree_vm_make_undefined_type_def(), output_count, allocator, &out);
  }
  if (iree_status_is_ok(status)) status = push_inputs(in, inputs, input_count);
  if (iree_status_is_ok(status)) {
    status = iree_runtime_session_call(program->session, &function, in, out);
  }
  mlx_status_t result = mlx_status_from_iree(status);
  if (!result) result = take_outputs(out, out_outputs, output_count);
  iree_vm_list_release(in);
  iree_vm_list_release(out);
  return result;
}

mlx_status_t mlx_program_call(mlx_program_t *program, const char *name, mlx_buffer_t *const *inputs, size_t input_count,
                              mlx_buffer_t **out_outputs, size_t output_count) {
  for (size_t i = 0; i < output_count; ++i) out_outputs[i] = NULL;
  iree_vm_function_t function;
  mlx_status_t status = mlx_status_from_iree(find_function(program, name, &function));
  if (!status) status = call_with_lists(program, function, inputs, input_count, out_outputs, output_count);
  if (!status) return NULL;
  for (size_t i = 0; i < output_count; ++i) {
    mlx_buffer_free(out_outputs[i]);
    out_outputs[i] = NULL;
  }
  return mlx_status_annotate(status, "calling '%s'", name);
}

// ---------------------------------------------------------------------------------------------------------------------
// Buffers

mlx_status_t mlx_buffer_from_i32(mlx_device_t *device, int rank, const int64_t *dims, const int32_t *values,
                                 mlx_buffer_t **out_buffer) {
  *out_buffer = NULL;
  iree_hal_dim_t shape[8];
  size_t bytes = sizeof *values;
  if (rank < 0 || rank > 8) return mlx_error(MLX_INTERNAL, "a buffer of rank %d", rank);
  for (int i = 0; i < rank; ++i) {
    shape[i] = (iree_hal_dim_t)dims[i];
    if (dims[i] < 0 || !mlx_mul(bytes, (size_t)dims[i], &bytes)) return mlx_error(MLX_INTERNAL, "a buffer too large");
  }
  mlx_buffer_t *buffer;
  MLX_TRY(mlx_alloc(1, sizeof *buffer, &buffer));
  iree_status_t status = iree_hal_buffer_view_allocate_buffer_copy(
      device->hal, iree_hal_device_allocator(device->hal), (iree_host_size_t)rank, shape, IREE_HAL_ELEMENT_TYPE_INT_32,
      IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR,
      (iree_hal_buffer_params_t){.type = IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL, .usage = IREE_HAL_BUFFER_USAGE_DEFAULT},
      iree_make_const_byte_span(values, bytes), &buffer->view);
  if (iree_status_is_ok(status)) {
    *out_buffer = buffer;
    return NULL;
  }
  mlx_free(buffer);
  return mlx_status_from_iree(status);
}

void mlx_buffer_free(mlx_buffer_t *buffer) {
  if (!buffer) return;
  iree_hal_buffer_view_release(buffer->view);
  mlx_free(buffer);
}

size_t mlx_buffer_size(const mlx_buffer_t *buffer) { return (size_t)iree_hal_buffer_view_byte_length(buffer->view); }

mlx_status_t mlx_buffer_read(mlx_device_t *device, const mlx_buffer_t *buffer, void *out_bytes, size_t size) {
  if (size != mlx_buffer_size(buffer)) {
    return mlx_error(MLX_INVALID_INPUT, "a tensor of %zu bytes where its contract says %zu", mlx_buffer_size(buffer), size);
  }
  iree_hal_buffer_t *source = iree_hal_buffer_view_buffer(buffer->view);
  if (device->kind == MLX_DEVICE_CPU) return mlx_status_from_iree(iree_hal_buffer_map_read(source, 0, out_bytes, size));
  return mlx_status_from_iree(iree_hal_device_transfer_d2h(device->hal, source, 0, out_bytes, size,
                                                           IREE_HAL_TRANSFER_BUFFER_FLAG_DEFAULT, iree_infinite_timeout()));
}
