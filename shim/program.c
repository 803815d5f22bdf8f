// Programs: a compiled module with its weights, and calls to its functions.
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "iree/modules/hal/types.h"
#include "iree/runtime/api.h"
#include "shim/shim_internal.h"

struct mlx_device_program {
  mlx_device_t *device;  // borrowed
  iree_runtime_instance_t *instance;
  iree_runtime_session_t *session;
  iree_hal_semaphore_t *timeline;  // orders the calls and copies; NULL before the first
  uint64_t queued;                 // value that the last one signals
};

struct mlx_call {
  mlx_device_program_t *program;   // borrowed
  iree_hal_semaphore_t *timeline;  // retained
  uint64_t value;                  // that the call signals
  char function[32];
};

// ----------------------------------------------------------------------------------------------------------
// Loading

static iree_status_t create_session(mlx_device_program_t *program) {
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
static mlx_status_t load_modules(mlx_device_program_t *program, iree_const_byte_span_t vmfb,
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
                              const mlx_weights_t *weights, mlx_device_program_t **out_program) {
  static const mlx_weights_t none = {0};
  *out_program = NULL;
  mlx_device_program_t *program;
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

// Waits for |value|. A failed wait only states that the semaphore failed; the query has the reason.
static iree_status_t wait_for(iree_hal_semaphore_t *timeline, uint64_t value) {
  iree_status_t status =
      iree_hal_semaphore_wait(timeline, value, iree_infinite_timeout(), IREE_ASYNC_WAIT_FLAG_NONE);
  if (iree_status_is_ok(status)) return status;
  uint64_t reached;
  iree_status_t reason = iree_hal_semaphore_query(timeline, &reached);
  if (iree_status_is_ok(reason)) return status;
  iree_status_ignore(status);
  return reason;
}

void mlx_program_free(mlx_device_program_t *program) {
  if (!program) return;
  mlx_device_enter(program->device);
  if (program->timeline) iree_status_ignore(wait_for(program->timeline, program->queued));
  iree_hal_semaphore_release(program->timeline);
  iree_runtime_session_release(program->session);
  iree_runtime_instance_release(program->instance);
  mlx_free(program);
}

// ----------------------------------------------------------------------------------------------------------
// Functions

static iree_status_t find_function(const mlx_device_program_t *program, const char *name,
                                   iree_vm_function_t *out_function) {
  char full_name[64];
  snprintf(full_name, sizeof full_name, "mlxcel.%s", name);  // every emitted module is named mlxcel
  return iree_runtime_session_lookup_function(program->session, iree_make_cstring_view(full_name),
                                              out_function);
}

bool mlx_program_has(const mlx_device_program_t *program, const char *function) {
  iree_vm_function_t found;
  iree_status_t status = find_function(program, function, &found);
  bool has = iree_status_is_ok(status);
  iree_status_ignore(status);
  return has;
}

// ----------------------------------------------------------------------------------------------------------
// The queue. Each call and copy waits for the program's timeline to reach the value of the one before it, and
// then signals the next value.

// A call reaches the end of the timeline after its failure: nothing can be queued behind it. So does a
// timeline near the largest value that IREE supports.
static iree_status_t restart_timeline(mlx_device_program_t *program) {
  iree_hal_semaphore_t *timeline = NULL;
  IREE_RETURN_IF_ERROR(iree_hal_semaphore_create(program->device->hal, IREE_HAL_QUEUE_AFFINITY_ANY, 0,
                                                 IREE_HAL_SEMAPHORE_FLAG_DEFAULT, &timeline));
  iree_hal_semaphore_release(program->timeline);
  program->timeline = timeline;
  program->queued = 0;
  return iree_ok_status();
}

static iree_status_t prepare_timeline(mlx_device_program_t *program) {
  if (program->timeline && program->queued < IREE_HAL_SEMAPHORE_MAX_VALUE - 1) return iree_ok_status();
  if (program->timeline) {
    IREE_RETURN_IF_ERROR(wait_for(program->timeline, program->queued));
  }
  return restart_timeline(program);
}

static iree_status_t push_fence(iree_vm_list_t *list, iree_hal_semaphore_t *timeline, uint64_t value) {
  iree_hal_fence_t *fence = NULL;
  IREE_RETURN_IF_ERROR(iree_hal_fence_create_at(timeline, value, iree_allocator_system(), &fence));
  iree_vm_ref_t ref = iree_hal_fence_move_ref(fence);
  iree_status_t status = iree_vm_list_push_ref_move(list, &ref);
  iree_vm_ref_release(&ref);
  return status;
}

// The view of an input, with another number of rows over the same memory unless |rows| is 0.
static iree_status_t make_view(const mlx_buffer_t *input, int64_t rows, iree_hal_buffer_view_t **out_view) {
  if (!rows) {
    *out_view = input->view;
    iree_hal_buffer_view_retain(input->view);
    return iree_ok_status();
  }
  const iree_host_size_t rank = iree_hal_buffer_view_shape_rank(input->view);
  iree_hal_dim_t dims[2];
  IREE_RETURN_IF_ERROR(iree_hal_buffer_view_shape(input->view, IREE_ARRAYSIZE(dims), dims, NULL));
  dims[0] = (iree_hal_dim_t)rows;
  return iree_hal_buffer_view_create(
      iree_hal_buffer_view_buffer(input->view), rank, dims, iree_hal_buffer_view_element_type(input->view),
      iree_hal_buffer_view_encoding_type(input->view), iree_allocator_system(), out_view);
}

static iree_status_t push_arguments(mlx_device_program_t *program, mlx_buffer_t *const *inputs,
                                    const int64_t *rows, size_t input_count, const int32_t *scalars,
                                    size_t scalar_count, iree_vm_list_t *list) {
  for (size_t i = 0; i < input_count; ++i) {
    iree_hal_buffer_view_t *view;
    IREE_RETURN_IF_ERROR(make_view(inputs[i], rows ? rows[i] : 0, &view));
    iree_vm_ref_t ref = iree_hal_buffer_view_move_ref(view);
    IREE_RETURN_IF_ERROR(iree_vm_list_push_ref_move(list, &ref));
  }
  for (size_t i = 0; i < scalar_count; ++i) {
    const iree_vm_value_t value = iree_vm_value_make_i32(scalars[i]);
    IREE_RETURN_IF_ERROR(iree_vm_list_push_value(list, &value));
  }
  IREE_RETURN_IF_ERROR(push_fence(list, program->timeline, program->queued));
  return push_fence(list, program->timeline, program->queued + 1);
}

static iree_status_t call_with_lists(mlx_device_program_t *program, iree_vm_function_t function,
                                     mlx_buffer_t *const *inputs, const int64_t *rows, size_t input_count,
                                     const int32_t *scalars, size_t scalar_count) {
  iree_allocator_t allocator = iree_allocator_system();
  iree_vm_list_t *in = NULL, *out = NULL;
  iree_status_t status =
      iree_vm_list_create(iree_vm_make_undefined_type_def(), input_count + scalar_count + 2, allocator, &in);
  if (iree_status_is_ok(status))
    status = iree_vm_list_create(iree_vm_make_undefined_type_def(), input_count, allocator, &out);
  if (iree_status_is_ok(status))
    status = push_arguments(program, inputs, rows, input_count, scalars, scalar_count, in);
  if (iree_status_is_ok(status)) status = iree_runtime_session_call(program->session, &function, in, out);
  iree_vm_list_release(in);
  iree_vm_list_release(out);  // the results are the updated inputs
  return status;
}

// A call that failed before it was queued completely never signals its value.
static iree_status_t submit(mlx_device_program_t *program, const char *name, mlx_buffer_t *const *inputs,
                            const int64_t *rows, size_t input_count, const int32_t *scalars,
                            size_t scalar_count) {
  iree_vm_function_t function;
  IREE_RETURN_IF_ERROR(find_function(program, name, &function));
  IREE_RETURN_IF_ERROR(prepare_timeline(program));
  iree_status_t status = call_with_lists(program, function, inputs, rows, input_count, scalars, scalar_count);
  if (iree_status_is_ok(status)) {
    ++program->queued;
    return status;
  }
  iree_status_ignore(wait_for(program->timeline, program->queued));
  iree_status_ignore(restart_timeline(program));
  return status;
}

mlx_status_t mlx_program_submit(mlx_device_program_t *program, const char *function,
                                mlx_buffer_t *const *inputs, const int64_t *rows, size_t input_count,
                                const int32_t *scalars, size_t scalar_count, mlx_call_t **out_call) {
  mlx_call_t *call;
  *out_call = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *call, &call));
  mlx_device_enter(program->device);
  mlx_status_t status =
      mlx_status_from_iree(submit(program, function, inputs, rows, input_count, scalars, scalar_count));
  if (status) {
    mlx_free(call);
    return mlx_status_annotate(status, "calling '%s'", function);
  }
  snprintf(call->function, sizeof call->function, "%s", function);
  call->program = program;
  call->timeline = program->timeline;
  call->value = program->queued;
  iree_hal_semaphore_retain(call->timeline);
  *out_call = call;
  return NULL;
}

static iree_hal_semaphore_list_t point(mlx_device_program_t *program, uint64_t *value) {
  return (iree_hal_semaphore_list_t){.count = 1, .semaphores = &program->timeline, .payload_values = value};
}

mlx_status_t mlx_program_copy(mlx_device_program_t *program, mlx_buffer_t *buffer, size_t from, size_t to,
                              size_t size) {
  iree_hal_buffer_t *bytes = iree_hal_buffer_view_buffer(buffer->view);
  mlx_device_enter(program->device);
  MLX_TRY_IREE(prepare_timeline(program));
  uint64_t after = program->queued, done = program->queued + 1;
  MLX_TRY_IREE(iree_hal_device_queue_copy(program->device->hal, IREE_HAL_QUEUE_AFFINITY_ANY,
                                          point(program, &after), point(program, &done), bytes, from, bytes,
                                          to, size, IREE_HAL_COPY_FLAG_NONE));
  program->queued = done;
  return NULL;
}

// IREE limits the size of one update.
mlx_status_t mlx_program_write(mlx_device_program_t *program, mlx_buffer_t *buffer, size_t to,
                               const void *bytes, size_t size) {
  mlx_device_enter(program->device);
  for (size_t at = 0, part; at < size; at += part) {
    part = size - at < IREE_HAL_COMMAND_BUFFER_MAX_UPDATE_SIZE ? size - at
                                                               : IREE_HAL_COMMAND_BUFFER_MAX_UPDATE_SIZE;
    MLX_TRY_IREE(prepare_timeline(program));
    uint64_t after = program->queued, done = program->queued + 1;
    MLX_TRY_IREE(iree_hal_device_queue_update(
        program->device->hal, IREE_HAL_QUEUE_AFFINITY_ANY, point(program, &after), point(program, &done),
        bytes, at, iree_hal_buffer_view_buffer(buffer->view), to + at, part, IREE_HAL_UPDATE_FLAG_NONE));
    program->queued = done;
  }
  return NULL;
}

mlx_status_t mlx_call_wait(mlx_call_t *call) {
  if (!call) return NULL;
  mlx_device_program_t *program = call->program;
  mlx_device_enter(program->device);
  mlx_status_t status = mlx_status_from_iree(wait_for(call->timeline, call->value));
  if (status && call->timeline == program->timeline) iree_status_ignore(restart_timeline(program));
  status = mlx_status_annotate(status, "calling '%s'", call->function);
  iree_hal_semaphore_release(call->timeline);
  mlx_free(call);
  return status;
}
