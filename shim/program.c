// Programs: a compiled module with its weights, and calls to its functions.
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "iree/modules/hal/types.h"
#include "iree/runtime/api.h"
#include "shim/shim_internal.h"

struct mlx_program {
  mlx_device_t *device;  // borrowed
  iree_runtime_instance_t *instance;
  iree_runtime_session_t *session;
};

// ----------------------------------------------------------------------------------------------------------
// Loading

static iree_status_t create_session(mlx_program_t *program) {
  iree_allocator_t allocator = iree_allocator_system();
  iree_runtime_instance_options_t instance_options;
  iree_runtime_instance_options_initialize(&instance_options);
  IREE_RETURN_IF_ERROR(iree_runtime_instance_create(&instance_options, allocator, &program->instance));
  iree_runtime_session_options_t session_options;
  iree_runtime_session_options_initialize(&session_options);
  return iree_runtime_session_create_with_device(program->instance, &session_options, program->device->hal,
                                                 allocator, &program->session);
}

// Appending the model module runs its initializers, which bind the weights. So the parameter module comes
// first.
static mlx_status_t load_modules(mlx_program_t *program, iree_const_byte_span_t vmfb,
                                 const mlx_weights_t *weights) {
  MLX_TRY_IREE(create_session(program));
  iree_vm_module_t *provider = NULL;
  MLX_TRY(mlx_parameters_create(program->device, iree_runtime_instance_vm_instance(program->instance),
                                weights, &provider));
  iree_status_t status = iree_runtime_session_append_module(program->session, provider);
  iree_vm_module_release(provider);
  MLX_TRY_IREE(status);
  return mlx_status_from_iree(
      iree_runtime_session_append_bytecode_module_from_memory(program->session, vmfb, iree_allocator_null()));
}

mlx_status_t mlx_program_load(mlx_device_t *device, const void *vmfb, size_t vmfb_size,
                              const mlx_weights_t *weights, mlx_program_t **out_program) {
  static const mlx_weights_t none = {0};
  *out_program = NULL;
  mlx_program_t *program;
  MLX_TRY(mlx_alloc(1, sizeof *program, &program));
  program->device = device;
  mlx_device_enter(device);
  mlx_status_t status =
      load_modules(program, iree_make_const_byte_span(vmfb, vmfb_size), weights ? weights : &none);
  if (status) {
    mlx_program_free(program);
    return status;
  }
  *out_program = program;
  return NULL;
}

void mlx_program_free(mlx_program_t *program) {
  if (!program) return;
  mlx_device_enter(program->device);
  iree_runtime_session_release(program->session);
  iree_runtime_instance_release(program->instance);
  mlx_free(program);
}

// ----------------------------------------------------------------------------------------------------------
// Calling

static iree_status_t find_function(const mlx_program_t *program, const char *name,
                                   iree_vm_function_t *out_function) {
  char full_name[64];
  snprintf(full_name, sizeof full_name, "mlxcel.%s", name);  // every emitted module is named mlxcel
  return iree_runtime_session_lookup_function(program->session, iree_make_cstring_view(full_name),
                                              out_function);
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

static mlx_status_t collect_outputs(mlx_device_t *device, iree_vm_list_t *list, mlx_buffer_t **out_outputs,
                                    size_t count) {
  if (iree_vm_list_size(list) != count) {
    return mlx_error(MLX_INVALID_INPUT, "the module returned %zu values, expected %zu",
                     (size_t)iree_vm_list_size(list), count);
  }
  for (size_t i = 0; i < count; ++i) {
    iree_hal_buffer_view_t *view = iree_vm_list_get_buffer_view_assign(list, i);
    if (!view) return mlx_error(MLX_INVALID_INPUT, "the module returned a value that is not a tensor");
    iree_hal_buffer_view_retain(view);
    MLX_TRY(mlx_buffer_wrap(device, view, &out_outputs[i]));
  }
  return NULL;
}

static mlx_status_t call_with_lists(mlx_program_t *program, iree_vm_function_t function,
                                    mlx_buffer_t *const *inputs, size_t input_count,
                                    mlx_buffer_t **out_outputs, size_t output_count) {
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
  if (!result) result = collect_outputs(program->device, out, out_outputs, output_count);
  iree_vm_list_release(in);
  iree_vm_list_release(out);
  return result;
}

mlx_status_t mlx_program_call(mlx_program_t *program, const char *name, mlx_buffer_t *const *inputs,
                              size_t input_count, mlx_buffer_t **out_outputs, size_t output_count) {
  for (size_t i = 0; i < output_count; ++i) out_outputs[i] = NULL;
  mlx_device_enter(program->device);
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
