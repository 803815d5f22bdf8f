// Flags: constant tables that describe a verb's options, and the functions that read values into an options
// struct. Parsing, --help, man pages, shell completion, environment variables and the configuration file all
// read the same table. This file does not depend on any verb.
#ifndef MLXCEL_CLI_FLAGS_H_
#define MLXCEL_CLI_FLAGS_H_

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum mlx_flag_kind {
  MLX_FLAG_SWITCH,  // bool
  MLX_FLAG_TEXT,    // const char *
  MLX_FLAG_INT,     // int64_t
  MLX_FLAG_NUMBER,  // double
  MLX_FLAG_LIST,    // mlx_flag_list_t: the flag may be repeated
  MLX_FLAG_INTS,    // mlx_flag_ints_t: comma-separated integers
  MLX_FLAG_GROUP,   // not a flag: a heading over the rows that follow
} mlx_flag_kind_t;

#define MLX_MAX_LIST 64
typedef struct mlx_flag_list {
  const char *items[MLX_MAX_LIST];
  size_t count;
} mlx_flag_list_t;

#define MLX_MAX_INTS 16
typedef struct mlx_flag_ints {
  int64_t items[MLX_MAX_INTS];
  size_t count;
} mlx_flag_ints_t;

// One row of a table. A table ends with a row of zeros.
typedef struct mlx_flag {
  const char *names;  // "-c, --ctx, --ctx-size"
  mlx_flag_kind_t kind;
  // Placeholder for the value in help: "N". FILE, FOLDER, OUT and MODEL are paths. "cpu|cuda|auto" lists
  // every accepted value; an alternative with a capital letter ("cpu:LEVEL") means that other values exist
  // too.
  const char *value;
  const char *help;
  size_t offset;            // of the value in the verb's options struct
  int64_t min, max;         // for MLX_FLAG_INT, MLX_FLAG_INTS and MLX_FLAG_NUMBER
  bool command_line_only;   // neither the environment nor the configuration file can set it
  bool has_escapes;         // text or list: "\\n" in its value is a newline, unless --no-escape is on
  bool escapes_on_request;  // the same, only if --escape is on
  bool collapsed;           // group: --help lists the names only, --help-all explains each row
} mlx_flag_t;

// Row constructors. |field| is a member of the options struct |type|; a field of the wrong C type does not
// compile.
#define MLX_FLAG_OFFSET(type, field, c_type) \
  (offsetof(type, field) + 0 * sizeof(_Generic(((type *)0)->field, c_type: 0)))
// clang-format off
#define MLX_SWITCH_FLAG(type, field, flag_names, text) \
  {.names = flag_names, .kind = MLX_FLAG_SWITCH, .help = text, .offset = MLX_FLAG_OFFSET(type, field, bool)}
#define MLX_TEXT_FLAG(type, field, flag_names, placeholder, text) \
  {.names = flag_names, .kind = MLX_FLAG_TEXT, .value = placeholder, .help = text, \
   .offset = MLX_FLAG_OFFSET(type, field, const char *)}
#define MLX_ESCAPED_TEXT_FLAG(type, field, flag_names, placeholder, text) \
  {.names = flag_names, .kind = MLX_FLAG_TEXT, .value = placeholder, .help = text, .has_escapes = true, \
   .offset = MLX_FLAG_OFFSET(type, field, const char *)}
#define MLX_ESCAPABLE_TEXT_FLAG(type, field, flag_names, placeholder, text) \
  {.names = flag_names, .kind = MLX_FLAG_TEXT, .value = placeholder, .help = text, .escapes_on_request = true, \
   .offset = MLX_FLAG_OFFSET(type, field, const char *)}
#define MLX_INT_FLAG(type, field, flag_names, placeholder, text, min_value, max_value) \
  {.names = flag_names, .kind = MLX_FLAG_INT, .value = placeholder, .help = text, \
   .offset = MLX_FLAG_OFFSET(type, field, int64_t), .min = min_value, .max = max_value}
#define MLX_NUMBER_FLAG(type, field, flag_names, placeholder, text, min_value, max_value) \
  {.names = flag_names, .kind = MLX_FLAG_NUMBER, .value = placeholder, .help = text, \
   .offset = MLX_FLAG_OFFSET(type, field, double), .min = min_value, .max = max_value}
#define MLX_LIST_FLAG(type, field, flag_names, placeholder, text) \
  {.names = flag_names, .kind = MLX_FLAG_LIST, .value = placeholder, .help = text, \
   .offset = MLX_FLAG_OFFSET(type, field, mlx_flag_list_t)}
#define MLX_ESCAPED_LIST_FLAG(type, field, flag_names, placeholder, text) \
  {.names = flag_names, .kind = MLX_FLAG_LIST, .value = placeholder, .help = text, .has_escapes = true, \
   .offset = MLX_FLAG_OFFSET(type, field, mlx_flag_list_t)}
#define MLX_INTS_FLAG(type, field, flag_names, placeholder, text, min_value, max_value) \
  {.names = flag_names, .kind = MLX_FLAG_INTS, .value = placeholder, .help = text, \
   .offset = MLX_FLAG_OFFSET(type, field, mlx_flag_ints_t), .min = min_value, .max = max_value}

// A collapsed group, and the end of a group: the rows after it belong to the verb's main list again.
#define MLX_COLLAPSED_GROUP(title) {.names = "", .kind = MLX_FLAG_GROUP, .help = title, .collapsed = true}
#define MLX_GROUP_END {.names = "", .kind = MLX_FLAG_GROUP, .help = ""}

// Rows that several verbs have.
#define MLX_MODEL_FLAG(type, field) \
  MLX_TEXT_FLAG(type, field, "-m, --model", "MODEL", \
                "bundle, GGUF, HF directory, short name, hf:ORG/NAME or a URL")
#define MLX_CONTEXT_FLAG(type, field, text, min_value, max_value) \
  MLX_INT_FLAG(type, field, "-c, --ctx, --ctx-size", "N", text, min_value, max_value)
#define MLX_YES_FLAG(type, field) \
  MLX_SWITCH_FLAG(type, field, "-y, --yes, -f, --force", "remove without asking")
#define MLX_JSON_FLAG(type, field) MLX_SWITCH_FLAG(type, field, "--json", "print JSON on stdout")
#define MLX_VERBOSE_FLAG(type, field) \
  MLX_SWITCH_FLAG(type, field, "-v, --verbose", "print device, weight formats, ops and launches on stderr")
#define MLX_QUIET_FLAG(type, field) \
  MLX_SWITCH_FLAG(type, field, "-q, --quiet", "print no progress, notes or timings on stderr")
#define MLX_DTYPE_FLAG(type, field) \
  MLX_TEXT_FLAG(type, field, "--dtype", "auto|quantized|f32|bf16|f16", \
                "weight format (default: auto: as stored, exact)")
#define MLX_KV_FLAG(type, field) \
  MLX_TEXT_FLAG(type, field, "--kv", "f32|bf16|f16|q8", \
                "KV cache format (default: f32; with --dtype bf16 or f16 the same dtype)")
#define MLX_QUANTIZE_FLAG(type, field) \
  MLX_TEXT_FLAG(type, field, "--quantize", "q4|q8|q4_0|q4_1|q8_0", "quantize weights to 4 or 8 bits")
#define MLX_KERNELS_FLAG(type, field) \
  MLX_TEXT_FLAG(type, field, "--kernels", "auto|required|off", \
                "use mlxcel's own kernels (default: auto: if there are any for this model and device)")
#define MLX_FILE_FLAG(type, field, text) MLX_TEXT_FLAG(type, field, "-f, --file", "FILE", text)
#define MLX_NO_SPECIAL_FLAG(type, field) \
  MLX_SWITCH_FLAG(type, field, "--no-special", \
                  "special tokens that a text spells, such as <|im_end|>, are plain text")
#define MLX_CHAT_TEMPLATE_FLAG(type, field) \
  MLX_TEXT_FLAG(type, field, "--chat-template", "NAME", \
                "chat template: chatml, llama3, ... or a Jinja file (default: the model's)")
#define MLX_TOOLS_FLAG(type, field) \
  MLX_TEXT_FLAG(type, field, "--tools", "FILE", "JSON list of tools for the chat template")
#define MLX_SIGNATURE_FLAG(type, field) \
  MLX_TEXT_FLAG(type, field, "-x, --signature", "FILE", "signature file (default: FILE.minisig)")
#define MLX_PLAIN_HTTP_FLAG(type, field) \
  MLX_SWITCH_FLAG(type, field, "--plain-http", "use http for the registry (default: only for localhost)")
#define MLX_STALL_TIMEOUT_FLAG(type, field) \
  MLX_NUMBER_FLAG(type, field, "--stall-timeout", "SECONDS", \
                  "time limit for receiving 1 KiB per second on average (default: 60)", 1, 86400)
#define MLX_INSECURE_FLAG(type, field) \
  {.names = "--insecure", .kind = MLX_FLAG_SWITCH, .help = "accept any TLS certificate", \
   .offset = MLX_FLAG_OFFSET(type, field, bool), .command_line_only = true}
// clang-format on

// Origin of a flag's value. After the default, the strongest is first.
typedef enum mlx_origin_kind {
  MLX_FROM_DEFAULT,
  MLX_FROM_COMMAND_LINE,
  MLX_FROM_ENVIRONMENT,
  MLX_FROM_FILE
} mlx_origin_kind_t;

typedef struct mlx_origin {
  mlx_origin_kind_t kind;
  char variable[80];  // MLX_FROM_ENVIRONMENT: the variable
  int line;           // MLX_FROM_FILE: the line
} mlx_origin_t;

size_t mlx_flags_count(const mlx_flag_t *flags);
// Iterates over the names of a row: "-c, --ctx" gives -c, then --ctx. False after the last.
#define MLX_FLAG_NAME 32
bool mlx_flag_next_name(const char **cursor, char out_name[MLX_FLAG_NAME]);
// Copies the first long name with its dashes; "" if the row has none.
void mlx_flag_long_name(const mlx_flag_t *flag, char out_name[MLX_FLAG_NAME]);
// Iterates over the choices of a value such as "cpu|cuda|auto". A value without bars has none.
bool mlx_flag_next_choice(const char **cursor, char out_choice[MLX_FLAG_NAME]);
bool mlx_flag_is_path(const char *value);  // FILE, FOLDER, OUT or MODEL
// Checks |text| and stores it in |options|; |name| is the flag's name in errors. A switch accepts true or
// false.
mlx_status_t mlx_flag_set(const mlx_flag_t *flag, void *options, const char *name,
                          const char *text) MLX_MUST_USE;
// Splits "--top_k=5" into "--top-k" and "5". An underscore in a long name stands for a dash. *|out_value| is
// NULL without '='.
void mlx_flag_split(const char *word, char out_name[MLX_FLAG_NAME], const char **out_value);
// The row that |word|, a flag with or without '=' and a value, names; NULL if there is none.
const mlx_flag_t *mlx_flags_find(const mlx_flag_t *flags, const char *word);
// The usage error for a flag that is in neither table; the hint names a similar flag.
mlx_status_t mlx_flags_unknown(const mlx_flag_t *flags, const mlx_flag_t *common,
                               const char *word) MLX_MUST_USE;
// Reads the flag at argv[*inout_index], which is in the table, and its value, which follows it or its '='.
// Sets the row's origin.
mlx_status_t mlx_flags_read(const mlx_flag_t *flags, int argc, char **argv, int *inout_index, void *options,
                            mlx_origin_t *origins) MLX_MUST_USE;

#endif  // MLXCEL_CLI_FLAGS_H_
