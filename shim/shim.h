// Shim: the interface to IREE's runtime. Only shim/ includes IREE headers.
//
//   device   an open device: the CPU (driver local-task) or a GPU (driver cuda)
//   program  a compiled module loaded on a device, with its weights bound as parameters
//   call     a queued call of a function of a program
//   buffer   a tensor in device memory
//
// Both drivers are registered explicitly; there are no static constructors and no global state. IREE statuses
// are converted here and nowhere else.
//
// Threads: a device may be shared. A program and its buffers belong to one thread at a time.
#ifndef MLXCEL_SHIM_SHIM_H_
#define MLXCEL_SHIM_SHIM_H_

#include <stdatomic.h>
#include <stdint.h>

#include "base/status.h"
#include "base/weight_reader.h"

typedef struct mlx_device mlx_device_t;
typedef struct mlx_device_program mlx_device_program_t;
typedef struct mlx_call mlx_call_t;
typedef struct mlx_buffer mlx_buffer_t;

typedef enum mlx_device_kind { MLX_DEVICE_CPU, MLX_DEVICE_CUDA } mlx_device_kind_t;

// Opens a device: the CPU, or GPU 0. |threads| is the number of CPU workers, at least 1; ignored for CUDA.
// Release with mlx_device_close.
mlx_status_t mlx_device_open(mlx_device_kind_t kind, int threads, mlx_device_t **out_device) MLX_MUST_USE;
// Opens the GPU |gpu|, which mlx_gpu_query accepts. Release with mlx_device_close.
mlx_status_t mlx_device_open_gpu(int gpu, mlx_device_t **out_device) MLX_MUST_USE;
void mlx_device_close(mlx_device_t *device);
mlx_device_kind_t mlx_device_kind(const mlx_device_t *device);
int mlx_device_threads(const mlx_device_t *device);  // 0 for a GPU
// GPU only: free and total bytes of its memory.
mlx_status_t mlx_device_memory(mlx_device_t *device, size_t *out_free, size_t *out_total) MLX_MUST_USE;

typedef struct mlx_gpu_info {
  char name[128];
  int sm;         // compute capability: 90 is Hopper
  int driver;     // CUDA version of the driver: 13000 is 13.0
  size_t memory;  // bytes
  int count;      // GPUs that the driver reports
} mlx_gpu_info_t;
// The GPU |gpu|, from 0, in the driver's order. MLX_UNAVAILABLE, with the reason, if there is no usable GPU;
// MLX_USAGE, with the GPUs that there are, if |gpu| is none of them.
mlx_status_t mlx_gpu_query(int gpu, mlx_gpu_info_t *out_info) MLX_MUST_USE;

// Load progress in bytes, from 0 to |total|; called on the thread that loads.
typedef void (*mlx_load_fn_t)(void *user, uint64_t done, uint64_t total);

// The weights of a program: one range of bytes, which the module binds as one parameter. A CPU uses |data| in
// place; it must be aligned to 64 bytes and outlive the program. A GPU gets a copy of |data| or, if that is
// NULL, of the bytes of |reader|.
typedef struct mlx_weights {
  const char *name;  // of the parameter
  const void *data;
  size_t size;  // bytes
  const mlx_weight_reader_t *reader;
  mlx_load_fn_t on_load;         // may be NULL; not called if weights are used in place
  void *user;                    // first argument of |on_load|
  const atomic_bool *cancelled;  // ends the copying to a GPU with MLX_CANCELLED; may be NULL
} mlx_weights_t;

// Loads |vmfb| (borrowed until the program is freed). |weights| may be NULL. Release with mlx_program_free.
mlx_status_t mlx_program_load(mlx_device_t *device, const void *vmfb, size_t vmfb_size,
                              const mlx_weights_t *weights, mlx_device_program_t **out_program) MLX_MUST_USE;
void mlx_program_free(mlx_device_program_t *program);

bool mlx_program_has(const mlx_device_program_t *program, const char *function);

// Queues a call of the exported function |function| and returns. Calls and copies of a program are executed
// in the order in which they are queued. |inputs| are tensors, |scalars| i32 arguments that follow them. The
// function updates inputs in place and creates no buffers. The caller keeps the inputs; they must not be
// written by the host until the call is done. |rows|[i] is the first dimension that the function declares for
// input i, at most the input's own; 0: the input's own. |rows| may be NULL: all are. Release *|out_call| with
// mlx_call_wait.
mlx_status_t mlx_program_submit(mlx_device_program_t *program, const char *function,
                                mlx_buffer_t *const *inputs, const int64_t *rows, size_t input_count,
                                const int32_t *scalars, size_t scalar_count,
                                mlx_call_t **out_call) MLX_MUST_USE;
// Queues a copy of |size| bytes inside |buffer|, from byte |from| to byte |to|. The ranges must not overlap.
mlx_status_t mlx_program_copy(mlx_device_program_t *program, mlx_buffer_t *buffer, size_t from, size_t to,
                              size_t size) MLX_MUST_USE;
// Queues a copy of |size| bytes of host memory to byte |to| of |buffer|. The bytes are read before this
// returns.
mlx_status_t mlx_program_write(mlx_device_program_t *program, mlx_buffer_t *buffer, size_t to,
                               const void *bytes, size_t size) MLX_MUST_USE;
// Waits until the call and everything queued before it are done, and releases it. After a failure of a call,
// all calls queued after it fail too; those submitted after the wait run again. NULL is fine.
mlx_status_t mlx_call_wait(mlx_call_t *call) MLX_MUST_USE;

// ----------------------------------------------------------------------------------------------------------
// Buffers. Free all buffers before closing their device.

typedef enum mlx_element {
  MLX_ELEMENT_I32,
  MLX_ELEMENT_F32,
  MLX_ELEMENT_BF16,
  MLX_ELEMENT_F16
} mlx_element_t;
typedef struct mlx_shape {
  mlx_element_t element;
  int rank;         // 1 or 2
  int64_t dims[2];  // at least 1
} mlx_shape_t;

// An i32 vector on the device, copied from |values|. GPU memory for such inputs is pooled, because allocating
// them for every call costs microseconds.
mlx_status_t mlx_buffer_from_i32(mlx_device_t *device, const int32_t *values, size_t count,
                                 mlx_buffer_t **out_buffer) MLX_MUST_USE;
// A tensor whose memory is taken as it is committed: address space is reserved for all of it. Nothing is
// committed at first. Bytes are zero until they are written. On a CPU, committed memory is taken when it is
// first accessed.
mlx_status_t mlx_buffer_reserve(mlx_device_t *device, mlx_shape_t shape,
                                mlx_buffer_t **out_buffer) MLX_MUST_USE;
// Makes the first |bytes| bytes usable. Does nothing if they are. Fails with MLX_OUT_OF_MEMORY.
mlx_status_t mlx_buffer_commit(mlx_buffer_t *buffer, size_t bytes) MLX_MUST_USE;
// Commits the last |bytes|. Call it once, before the rest is committed.
mlx_status_t mlx_buffer_commit_end(mlx_buffer_t *buffer, size_t bytes) MLX_MUST_USE;
// CPU only: gives the memory of a reserved buffer back to the system, while no call uses it. Its bytes are
// zero or as before, and stay committed. Returns false on a GPU, where nothing changes.
bool mlx_buffer_discard(mlx_buffer_t *buffer);
// A tensor that host and device both access directly: page-locked memory for a GPU. Zeroed.
mlx_status_t mlx_buffer_share(mlx_device_t *device, mlx_shape_t shape,
                              mlx_buffer_t **out_buffer) MLX_MUST_USE;
// CPU only: a tensor on |device| in the memory of the shared buffer |of|, which may be of another CPU device,
// from byte |offset| on, a multiple of 64. Free it before |of|.
mlx_status_t mlx_buffer_share_part(mlx_device_t *device, const mlx_buffer_t *of, size_t offset,
                                   mlx_shape_t shape, mlx_buffer_t **out_buffer) MLX_MUST_USE;
// The address of a shared buffer. The host may access it while no call uses the buffer.
void *mlx_buffer_host(const mlx_buffer_t *buffer);
void mlx_buffer_free(mlx_buffer_t *buffer);          // NULL is fine
size_t mlx_buffer_size(const mlx_buffer_t *buffer);  // bytes
// Copies |size| bytes from byte |offset| on to |out_bytes|. The calls that write them must be done.
mlx_status_t mlx_buffer_read(const mlx_buffer_t *buffer, size_t offset, void *out_bytes,
                             size_t size) MLX_MUST_USE;

#endif  // MLXCEL_SHIM_SHIM_H_
