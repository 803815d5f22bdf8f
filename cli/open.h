// Open: the flags of verbs that run a model, and the line about its device.
#ifndef MLXCEL_CLI_OPEN_H_
#define MLXCEL_CLI_OPEN_H_

#include "cli/flags.h"
#include "open/open.h"
#include "runtime/mlxcel.h"

#define MLX_MOST_GPUS 64  // of --gpu

typedef struct mlx_open_flags {
  const char *model;            // its name (open/locate.h)
  const char *device;           // value of --device
  const char *gpu;              // value of --gpu; NULL if not given
  bool many_gpus;               // the verb uses all of --gpu, not one; set before mlx_open_flags_read
  int gpus[MLX_MOST_GPUS];      // of --gpu
  size_t gpu_count;             // 0: --gpu was not given
  const char *memory;           // value of --memory; NULL if not given
  int64_t context;              // value of -c, in positions; -1 if not given, 0 for the model's maximum
  int64_t threads, ranks;       // 0 if not given
  mlx_engine_options_t engine;  // the other flags; mlx_open_flags_read fills in the ones above
} mlx_open_flags_t;

// clang-format off
// Flags of every verb that runs a model; |open| is a field of type mlx_open_flags_t.
#define MLX_OPEN_FLAGS(type, open) \
  MLX_DTYPE_FLAG(type, open.engine.dtype), \
  MLX_QUANTIZE_FLAG(type, open.engine.quantize), \
  MLX_INT_FLAG(type, open.threads, "-t, --threads", "N", "CPU threads (default: one per CPU)", 1, 256), \
  MLX_TEXT_FLAG(type, open.device, "--device", "cpu|cuda|auto", \
                "device to run on (default: auto: a usable GPU, else the CPU)")
#define MLX_GPU_FLAG(type, open) \
  MLX_TEXT_FLAG(type, open.gpu, "--gpu", "N", "GPU to run on, as `mlxcel doctor` numbers them (default: 0)")
// For verbs whose engines share the requests.
#define MLX_ENGINES_FLAGS(type, open, engines) \
  MLX_TEXT_FLAG(type, open.gpu, "--gpu", "N[,N...]", \
                "GPUs to run on, with an engine on each, as `mlxcel doctor` numbers them (default: 0)"), \
  MLX_INT_FLAG(type, engines, "--engines", "N", \
               "engines of a model on each GPU, or on the CPU, whose threads they divide (default: 1)", 1, 64)
#define MLX_RARE_OPEN_FLAGS(type, open) \
  MLX_KV_FLAG(type, open.engine.kv), \
  MLX_TEXT_FLAG(type, open.memory, "--memory", "SIZE", \
                "most memory for the KV cache: 512M, 8G (default: as needed)"), \
  MLX_SWITCH_FLAG(type, open.engine.allow_unsigned, "--allow-unsigned", \
                  "run a bundle that was neither compiled here nor signed by a trusted key"), \
  MLX_TEXT_FLAG(type, open.engine.cpu_level, "--cpu-level", "LEVEL", \
                "CPU level to compile for, or to select in a portable bundle (x86-64-v3)"), \
  MLX_KERNELS_FLAG(type, open.engine.kernels)
// For verbs that generate: an encoder is not divided.
#define MLX_RANKS_FLAG(type, open) \
  MLX_INT_FLAG(type, open.ranks, "--ranks", "N", \
               "divide the model over N engines on the CPU, 2, 4 or 8 (first stage of tensor parallelism)", 2, 8)
// clang-format on

void mlx_open_flags_initialize(mlx_open_flags_t *out_flags);  // device auto; reports to the terminal
// Checks --device, --gpu, --memory, -c and -t and stores their values in |flags|->engine.
mlx_status_t mlx_open_flags_read(mlx_open_flags_t *flags) MLX_MUST_USE;

// Locates and opens |flags|->model. Release with mlx_engine_close.
mlx_status_t mlx_cli_open(const mlx_open_flags_t *flags, mlx_engine_t **out_engine,
                          mlx_open_times_t *out_times) MLX_MUST_USE;

// Bytes of "512M", "8G" or a number. NULL: 0. |option| is the flag's name in errors.
mlx_status_t mlx_size_parse(const char *text, const char *option, uint64_t *out_bytes) MLX_MUST_USE;

// The context length for the compiler and the engine, from the value of -c: -1 if not given, 0 for the
// model's maximum.
int64_t mlx_context_option(int64_t flag);

// "cpu, 2 threads" or "cuda, NVIDIA H200".
typedef struct mlx_device_text {
  char text[160];
} mlx_device_text_t;
mlx_device_text_t mlx_cli_device_text(const mlx_engine_info_t *info);
// Prints the device line on stderr; |verbose| adds the reason for the device, the target and the kernels.
void mlx_cli_print_device(const mlx_engine_info_t *info, bool verbose);

#endif  // MLXCEL_CLI_OPEN_H_
