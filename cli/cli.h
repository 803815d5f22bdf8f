// What the verbs share: the verb table, the flag tables, the terminal, and how an error is shown.
#ifndef MLXCEL_CLI_CLI_H_
#define MLXCEL_CLI_CLI_H_

#include <stdint.h>
#include <stdio.h>

#include "base/report.h"
#include "base/status.h"
#include "runtime/mlxcel.h"

// ---- flags: one table serves parsing, --help, man pages, completion, the environment and the configuration
// file ----

typedef enum mlx_flag_kind {
  MLX_FLAG_SWITCH,
  MLX_FLAG_TEXT,
  MLX_FLAG_INT,
  MLX_FLAG_NUMBER,
  MLX_FLAG_LIST,
  MLX_FLAG_INTS,   // whole numbers with commas between them
  MLX_FLAG_GROUP,  // no flag: a heading over the rows after it, as MLX_GROUP, MLX_GROUP_SHORT and
                   // MLX_GROUP_END write it
} mlx_flag_kind_t;

#define MLX_MAX_LIST 64
typedef struct mlx_flag_list {  // a flag that may be given again and again
  const char *items[MLX_MAX_LIST];
  size_t count;
} mlx_flag_list_t;

#define MLX_MAX_INTS 16
typedef struct mlx_flag_ints {
  int64_t items[MLX_MAX_INTS];
  size_t count;
} mlx_flag_ints_t;

typedef struct mlx_flag {
  const char *names;  // "-c, --ctx, --ctx-size"
  mlx_flag_kind_t kind;
  const char *value;  // how help calls the value: "N". FILE, FOLDER, OUT and MODEL are paths. With bars,
                      // "cpu|cuda|auto", these are all the values there are; a capital letter among them
                      // ("cpu|cpu:LEVEL") says that there are others
  const char *help;
  void *target;  // bool *, const char **, int64_t *, double *, mlx_flag_list_t * or mlx_flag_ints_t *
  int64_t min,
      max;  // for MLX_FLAG_INT, MLX_FLAG_INTS and MLX_FLAG_NUMBER; |min| of a switch may be MLX_FLAG_SPOKEN
} mlx_flag_t;

#define MLX_FLAG_SPOKEN \
  1  // by the command line alone: neither the environment nor the configuration file sets it

#define MLX_GROUP(title) {"", MLX_FLAG_GROUP, NULL, title, NULL, 0, 0}
#define MLX_GROUP_SHORT(title) \
  {"", MLX_FLAG_GROUP, NULL, title, NULL, 1, 0}  // --help names the rows only, --help-all explains them
#define MLX_GROUP_END {"", MLX_FLAG_GROUP, NULL, "", NULL, 0, 0}  // rows of no group come again

typedef struct mlx_verb {
  const char *name;
  const char *summary;                         // one line
  mlx_status_t (*run)(int argc, char **argv);  // arguments after the verb
} mlx_verb_t;

// Parses |argv| against |flags|, which ends with a row of zeros. Words that are not flags fill |words| (at
// most |max_words|). What the command line does not give comes from the environment and the configuration
// file (cli/config.h).
// --help prints |usage| and the table on stdout, --version the version; both set *|out_help|: the verb has
// nothing more to do. |usage| begins "usage: mlxcel VERB WORDS [options]"; a paragraph that begins
// "examples:" is shown after the options.
mlx_status_t mlx_flags_parse(const char *usage, const mlx_flag_t *flags, int argc, char **argv,
                             const char **words, size_t max_words, size_t *out_word_count,
                             bool *out_help) MLX_MUST_USE;

// A verb as it describes itself. Everything is borrowed, for the visit only: the table lives in the verb's
// function.
typedef struct mlx_verb_text {
  const mlx_verb_t *verb;
  const char *usage;
  const mlx_flag_t *flags;
} mlx_verb_text_t;
typedef mlx_status_t (*mlx_verb_visit_fn_t)(void *user, const mlx_verb_text_t *text);

const mlx_verb_t *mlx_verb_at(size_t index);        // NULL past the last
const mlx_verb_t *mlx_verb_find(const char *name);  // NULL: there is none
mlx_status_t mlx_verb_unknown(const char *name)
    MLX_MUST_USE;  // the error about it, with the nearest that there is
// Has the verb call mlx_flags_parse, which calls |visit| instead of parsing; nothing else of the verb runs.
// All verbs when it is NULL.
mlx_status_t mlx_verb_describe(const mlx_verb_t *verb, mlx_verb_visit_fn_t visit, void *user) MLX_MUST_USE;

// The names of a row, one after the other: "-c, --ctx" gives -c, then --ctx. False after the last.
#define MLX_FLAG_NAME 32
bool mlx_flag_next_name(const char **cursor, char out_name[MLX_FLAG_NAME]);
// The choices of a value "cpu|cuda|auto", one after the other; a value without bars has none.
bool mlx_flag_next_choice(const char **cursor, char out_choice[MLX_FLAG_NAME]);
bool mlx_flag_is_path(const char *value);  // FILE and its like
// Gives the flag a value, checked; |word| is what errors call it. A switch wants true or false.
mlx_status_t mlx_flag_set(const mlx_flag_t *flag, const char *word, const char *value) MLX_MUST_USE;

// ---- help ----

typedef struct mlx_exit {
  int code;
  const char *meaning, *remedy;  // remedy may be ""
} mlx_exit_t;
extern const mlx_exit_t mlx_exits[];  // every exit status, ending with a row whose meaning is NULL;
                                      // docs/errors.md has the same table

extern const mlx_flag_t mlx_common_flags[];  // that every verb has beside its own; they have no targets

void mlx_help_print(const char *usage, const mlx_flag_t *flags, bool all);  // on stdout
void mlx_help_print_verbs(FILE *out);
// A usage text in parts: its first line without "usage: ", what it says, and the examples, each without its
// end of line or "".
typedef struct mlx_usage_parts {
  const char *synopsis, *description, *examples;
  int synopsis_length, description_length, examples_length;
} mlx_usage_parts_t;
mlx_usage_parts_t mlx_usage_split(const char *usage);

// What -c means to the compiler: not given (-1), 0 for the model's own, or a number.
int64_t mlx_context_option(int64_t flag);

// ---- terminal ----

// Progress and notes on stderr: a line that rewrites itself on a terminal, plain lines elsewhere.
const mlx_report_t *mlx_terminal_report(void);
// Why stdout could not be written to, from errno. A reader that went away (`| head`) is MLX_CANCELLED: no
// failure worth a word.
mlx_status_t mlx_stdout_error(void) MLX_MUST_USE;
void mlx_terminal_error(const char *where, mlx_status_t status);  // prints, does not free

// ---- models: what every verb that runs one has flags for ----

typedef struct mlx_open_options {
  const char *model;           // a compiled model, or one to compile first
  const char *device, *dtype;  // as given; dtype may be NULL
  const char *kernels;         // as given
  const char *quantize;        // as given; NULL: not at all
  bool verbose;                // say what becomes of the weights
  bool allow_unsigned;         // run a bundle that nobody trusted signed
  const char *cpu_level;       // as given; may be NULL
  int64_t context;             // -1: not given; 0: the model's own
  int64_t threads;             // 0: not given
  const char *prompt;          // must fit, which is checked before anything slow; may be NULL
  size_t prompt_length;
  bool prompt_is_chat;  // a chat template rendered it
} mlx_open_options_t;

// The flags of every verb that runs a model, of which the rarer ones are a part of their own.
#define MLX_OPENING_FLAGS(o)                                                                                 \
  {"--dtype",                                                                                                \
   MLX_FLAG_TEXT,                                                                                            \
   "auto|packed|f32|bf16|f16",                                                                               \
   "how weights are stored (default: auto, the fastest exact way)",                                          \
   &(o).dtype,                                                                                               \
   0,                                                                                                        \
   0},                                                                                                       \
      {"--quantize",                                                                                         \
       MLX_FLAG_TEXT,                                                                                        \
       "q4|q8|q4_0|q4_1|q8_0",                                                                               \
       "make packed weights of wider ones",                                                                  \
       &(o).quantize,                                                                                        \
       0,                                                                                                    \
       0},                                                                                                   \
      {"-t, --threads", MLX_FLAG_INT, "N", "CPU threads (default: one for each CPU)", &(o).threads, 1, 256}, \
      {"--device",                                                                                           \
       MLX_FLAG_TEXT,                                                                                        \
       "cpu|cuda|auto",                                                                                      \
       "where to run (default: auto, a usable GPU or else the CPU)",                                         \
       &(o).device,                                                                                          \
       0,                                                                                                    \
       0}
#define MLX_RARE_OPENING_FLAGS(o)                                                  \
  {"--allow-unsigned",                                                             \
   MLX_FLAG_SWITCH,                                                                \
   NULL,                                                                           \
   "run a compiled model that was not made here and that nobody you trust signed", \
   &(o).allow_unsigned,                                                            \
   0,                                                                              \
   0},                                                                             \
      {"--cpu-level",                                                              \
       MLX_FLAG_TEXT,                                                              \
       "LEVEL",                                                                    \
       "whose code to run of a portable model, or to compile for",                 \
       &(o).cpu_level,                                                             \
       0,                                                                          \
       0},                                                                         \
      {"--kernels",                                                                \
       MLX_FLAG_TEXT,                                                              \
       "auto|required|off",                                                        \
       "link our own kernels when compiling (default: auto)",                      \
       &(o).kernels,                                                               \
       0,                                                                          \
       0}

typedef struct mlx_open_times {
  double compile_seconds;  // 0 for a compiled model; a look into the cache for one that was compiled before
  double load_seconds;
} mlx_open_times_t;

// Opens a model, compiling it on a miss, with progress on stderr. Release with mlx_engine_close.
mlx_status_t mlx_cli_open(const mlx_open_options_t *options, mlx_engine_t **out_engine,
                          mlx_open_times_t *out_times) MLX_MUST_USE;

// The chat template of a model, compiled or not, without loading it: its own, or |chat_template|, the name of
// a format or a file, where that is not NULL. Release with mlx_chat_free. A model without one is an error for
// open; find gives NULL.
mlx_status_t mlx_cli_open_chat(const char *model, const char *chat_template,
                               mlx_chat_t **out_chat) MLX_MUST_USE;
mlx_status_t mlx_cli_find_chat(const char *model, const char *chat_template,
                               mlx_chat_t **out_chat) MLX_MUST_USE;

// A model as a path: |model| itself, or where "hf:ORG/NAME" or "oci://..." was pulled to, pulling it now
// where it was not. Release with mlx_free.
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
mlx_status_t mlx_cli_keygen(int argc, char **argv);
mlx_status_t mlx_cli_sign(int argc, char **argv);
mlx_status_t mlx_cli_verify(int argc, char **argv);
mlx_status_t mlx_cli_trust(int argc, char **argv);
mlx_status_t mlx_cli_doctor(int argc, char **argv);
mlx_status_t mlx_cli_list(int argc, char **argv);
mlx_status_t mlx_cli_tokenize(int argc, char **argv);
mlx_status_t mlx_cli_detokenize(int argc, char **argv);
mlx_status_t mlx_cli_config(int argc, char **argv);
mlx_status_t mlx_cli_completion(int argc, char **argv);
mlx_status_t mlx_cli_man(int argc, char **argv);

#endif  // MLXCEL_CLI_CLI_H_
