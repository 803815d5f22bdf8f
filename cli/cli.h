// What the verbs share: the flag table, the terminal, and how an error is shown.
#ifndef MLXCEL_CLI_CLI_H_
#define MLXCEL_CLI_CLI_H_

#include <stdint.h>

#include "base/report.h"
#include "base/status.h"
#include "runtime/mlxcel.h"

// ---- flags: one table serves parsing and --help ----

typedef enum mlx_flag_kind { MLX_FLAG_SWITCH, MLX_FLAG_TEXT, MLX_FLAG_INT, MLX_FLAG_NUMBER, MLX_FLAG_LIST } mlx_flag_kind_t;

#define MLX_MAX_LIST 64
typedef struct mlx_flag_list {  // a flag that may be given again and again
  const char *items[MLX_MAX_LIST];
  size_t count;
} mlx_flag_list_t;

typedef struct mlx_flag {
  const char *names;  // "-c, --ctx, --ctx-size"
  mlx_flag_kind_t kind;
  const char *value;  // how help calls the value: "N"
  const char *help;
  void *target;       // bool *, const char **, int64_t *, double * or mlx_flag_list_t *
  int64_t min, max;   // for MLX_FLAG_INT and MLX_FLAG_NUMBER
} mlx_flag_t;

typedef struct mlx_verb {
  const char *name;
  const char *summary;                                   // one line
  mlx_status_t (*run)(int argc, char **argv);            // arguments after the verb
} mlx_verb_t;

// Parses |argv| against |flags|, which ends with a row of zeros. Words that are not flags fill |words| (at most |max_words|).
// --help prints |usage| and the table on stdout, --version the version; both set *|out_help|.
mlx_status_t mlx_flags_parse(const char *usage, const mlx_flag_t *flags, int argc, char **argv, const char **words,
                             size_t max_words, size_t *out_word_count, bool *out_help) MLX_MUST_USE;

// What -c means to the compiler: not given (-1), 0 for the model's own, or a number.
int64_t mlx_context_option(int64_t flag);

// ---- terminal ----

// Progress and notes on stderr: a line that rewrites itself on a terminal, plain lines elsewhere.
const mlx_report_t *mlx_terminal_report(void);
// Why stdout could not be written to, from errno. A reader that went away (`| head`) is MLX_CANCELLED: no failure worth a word.
mlx_status_t mlx_stdout_error(void) MLX_MUST_USE;
void mlx_terminal_error(const char *where, mlx_status_t status);  // prints, does not free

// ---- models: what every verb that runs one has flags for ----

typedef struct mlx_open_options {
  const char *model;            // a compiled model, or one to compile first
  const char *device, *dtype;   // as given; dtype may be NULL
  const char *kernels;          // as given
  int64_t context;              // -1: not given; 0: the model's own
  int64_t threads;              // 0: not given
  const char *prompt;           // must fit, which is checked before anything slow; may be NULL
  size_t prompt_length;
  bool prompt_is_chat;          // a chat template rendered it
} mlx_open_options_t;

typedef struct mlx_open_times {
  double compile_seconds;  // 0 for a compiled model; a look into the cache for one that was compiled before
  double load_seconds;
} mlx_open_times_t;

// Opens a model, compiling it on a miss, with progress on stderr. Release with mlx_engine_close.
mlx_status_t mlx_cli_open(const mlx_open_options_t *options, mlx_engine_t **out_engine, mlx_open_times_t *out_times) MLX_MUST_USE;

// The chat template of a model, compiled or not, without loading it. Release with mlx_chat_free.
mlx_status_t mlx_cli_open_chat(const char *model, mlx_chat_t **out_chat) MLX_MUST_USE;

// A model as a path: |model| itself, or where "hf:ORG/NAME" was pulled to, pulling it now where it was not. Release with mlx_free.
mlx_status_t mlx_cli_local_model(const char *model, char **out_path) MLX_MUST_USE;

// "cpu, 2 threads" or "cuda, NVIDIA H200".
typedef struct mlx_device_text {
  char text[160];
} mlx_device_text_t;
mlx_device_text_t mlx_cli_device_text(const mlx_engine_info_t *info);
void mlx_cli_print_device(const mlx_engine_info_t *info, bool with_kernels);  // on stderr

// ---- the verbs, one file each ----

mlx_status_t mlx_cli_compile(int argc, char **argv);
mlx_status_t mlx_cli_run(int argc, char **argv);
mlx_status_t mlx_cli_bench(int argc, char **argv);
mlx_status_t mlx_cli_eval(int argc, char **argv);
mlx_status_t mlx_cli_show(int argc, char **argv);
mlx_status_t mlx_cli_cache(int argc, char **argv);
mlx_status_t mlx_cli_template(int argc, char **argv);
mlx_status_t mlx_cli_push(int argc, char **argv);
mlx_status_t mlx_cli_pull(int argc, char **argv);
mlx_status_t mlx_cli_doctor(int argc, char **argv);

#endif  // MLXCEL_CLI_CLI_H_
