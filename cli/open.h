// Open: loads a model for a verb that runs one. A bundle is opened directly; any other model is compiled
// first.
#ifndef MLXCEL_CLI_OPEN_H_
#define MLXCEL_CLI_OPEN_H_

#include "cli/flags.h"
#include "runtime/mlxcel.h"

typedef struct mlx_open_options {
  const char *model;      // a bundle, a source model or a reference to pull
  const char *device;     // value of --device
  const char *dtype;      // value of --dtype; NULL if not given
  const char *kv;         // value of --kv; NULL if not given
  const char *kernels;    // value of --kernels
  const char *quantize;   // value of --quantize; NULL if not given
  bool verbose;           // print the weight formats while compiling
  bool allow_unsigned;    // run a bundle that was neither compiled here nor signed by a trusted key
  const char *cpu_level;  // value of --cpu-level; NULL if not given
  int64_t context;        // positions; -1 if not given, 0 for the model's maximum
  int64_t parallel;       // sequences at the same time; 0 if not given
  const char *memory;     // value of --memory; NULL if not given
  int64_t threads;        // 0 if not given
  const char *prompt;     // checked against the context length before compiling and loading; may be NULL
  size_t prompt_length;
  bool prompt_is_chat;  // a chat template rendered the prompt
} mlx_open_options_t;

// clang-format off
// Flags of every verb that runs a model; |open| is a field of type mlx_open_options_t.
#define MLX_OPEN_FLAGS(type, open) \
  MLX_DTYPE_FLAG(type, open.dtype), \
  MLX_QUANTIZE_FLAG(type, open.quantize), \
  MLX_INT_FLAG(type, open.threads, "-t, --threads", "N", "CPU threads (default: one per CPU)", 1, 256), \
  MLX_TEXT_FLAG(type, open.device, "--device", "cpu|cuda|auto", \
                "device to run on (default: auto: a usable GPU, else the CPU)")
#define MLX_RARE_OPEN_FLAGS(type, open) \
  MLX_KV_FLAG(type, open.kv), \
  MLX_TEXT_FLAG(type, open.memory, "--memory", "SIZE", \
                "most memory for the KV cache: 512M, 8G (default: as needed)"), \
  MLX_SWITCH_FLAG(type, open.allow_unsigned, "--allow-unsigned", \
                  "run a bundle that was neither compiled here nor signed by a trusted key"), \
  MLX_TEXT_FLAG(type, open.cpu_level, "--cpu-level", "LEVEL", \
                "CPU level to compile for, or to select in a portable bundle (x86-64-v3)"), \
  MLX_KERNELS_FLAG(type, open.kernels)
// clang-format on

typedef struct mlx_open_times {
  double compile_seconds;  // until the compiled model was ready: compiling, or finding it in the cache
  double load_seconds;
  bool was_compiled;  // false for a bundle and for a model that was in the cache
} mlx_open_times_t;

// Opens a model, compiling it if it is not in the cache, with progress on stderr. Release with
// mlx_engine_close.
mlx_status_t mlx_cli_open(const mlx_open_options_t *options, mlx_engine_t **out_engine,
                          mlx_open_times_t *out_times) MLX_MUST_USE;

// Bytes of "512M", "8G" or a number. NULL: 0. |option| is the flag's name in errors.
mlx_status_t mlx_size_parse(const char *text, const char *option, uint64_t *out_bytes) MLX_MUST_USE;

// The context length for the compiler and the engine, from the value of -c: -1 if not given, 0 for the
// model's maximum.
int64_t mlx_context_option(int64_t flag);

// Reads a chat template without loading the model: the model's own or, if |chat_template| is not NULL, that
// format or file. Release with mlx_chat_free. Without a template, open fails and find returns NULL. With
// |allow_unsigned|, an unsigned bundle of another version may name the source model that has the template.
mlx_status_t mlx_cli_open_chat(const char *model, bool allow_unsigned, const char *chat_template,
                               mlx_chat_t **out_chat) MLX_MUST_USE;
mlx_status_t mlx_cli_find_chat(const char *model, bool allow_unsigned, const char *chat_template,
                               mlx_chat_t **out_chat) MLX_MUST_USE;

// The path of |model|: |model| itself if it exists, or the local copy of "hf:ORG/NAME", "oci://...", the URL
// of a GGUF file or a short name (transfer/short_names.h), which is pulled if it does not exist, or the
// stored model of that name (cli/stored_models.h). Another name is an error with similar names. A missing
// path, such as "dir/x.gguf", is returned as it is. Release with mlx_free.
mlx_status_t mlx_cli_local_model(const char *model, char **out_path) MLX_MUST_USE;

// "cpu, 2 threads" or "cuda, NVIDIA H200".
typedef struct mlx_device_text {
  char text[160];
} mlx_device_text_t;
mlx_device_text_t mlx_cli_device_text(const mlx_engine_info_t *info);
// Prints the device line on stderr; |verbose| adds the reason for the device, the target and the kernels.
void mlx_cli_print_device(const mlx_engine_info_t *info, bool verbose);

#endif  // MLXCEL_CLI_OPEN_H_
