// Prints help texts, wrapped to the width of the terminal.
#include "cli/help.h"

#include <stdlib.h>
#include <string.h>

#include "cli/interrupt.h"
#include "line/tty.h"

#define MAX_COLUMNS 100
#define MIN_COLUMNS 60

// clang-format off
const mlx_exit_t mlx_exits[] = {
    {MLX_OK, "success", ""},
    {MLX_INTERNAL, "bug in mlxcel; the message names the source line", "report the message and the command"},
    {MLX_USAGE, "invalid command line", "the message names the option; see `--help`"},
    {MLX_INVALID_INPUT, "invalid file, or invalid data from a server; the message names the file or URL and the field",
     "fetch or convert the file again"},
    {MLX_UNSUPPORTED, "unsupported model, format or field; the message names it",
     "see models/README.md and docs/formats.md for what is supported"},
    {MLX_NOT_FOUND, "file or tool not found", "the message names the path"},
    {MLX_IO, "the operating system failed to read, write or lock a file", "check free disk space and permissions"},
    {MLX_OUT_OF_MEMORY, "out of memory on the host or the GPU",
     "use a smaller context length (`-c`), a quantized model or the CPU"},
    {MLX_UNAVAILABLE, "device, CPU level or server unavailable",
     "the message gives the reason and an alternative"},
    {MLX_TOOL_FAILED, "`iree-compile` or NVRTC failed",
     "the message shows the first error line and the path of the log file"},
    {MLX_TIMEOUT, "time limit exceeded, or a server sent too little for too long",
     "raise `--stall-timeout`; for the compiler `--timeout` or `MLXCEL_COMPILE_TIMEOUT` (seconds)"},
    {MLX_CANCELLED, "the program that reads stdout closed it", ""},
    {MLX_EXIT_INTERRUPTED, "interrupted by Ctrl-C (SIGINT)", ""},
    {0, NULL, NULL},
};

const mlx_flag_t mlx_common_flags[] = {
    {.names = "-h, --help", .help = "list the options of this verb"},
    {.names = "--help-all", .help = "list and explain every option of this verb"},
    {.names = "--no-config", .help = "do not read the configuration file"},
    {.names = "--version", .help = "print the version"},
    {0},
};
// clang-format on

// ----------------------------------------------------------------------------------------------------------
// The screen

static int screen_width(void) {
  const char *columns = getenv("COLUMNS");
  int width = columns ? atoi(columns) : 0;
  if (width <= 0) width = mlx_tty_columns(STDOUT_FILENO);
  if (width <= 0 || width > MAX_COLUMNS) width = MAX_COLUMNS;
  return width < MIN_COLUMNS ? MIN_COLUMNS : width;
}

// Prints |text| from |column| on, wrapped at word boundaries. Later lines begin at |indent|.
static void print_wrapped(const char *text, int length, int column, int indent) {
  const int width = screen_width();
  const char *end = text + length;
  bool first = true;
  while (text < end) {
    int word = 0;
    while (text + word < end && text[word] != ' ' && text[word] != '\n') ++word;
    if (!first && column + 1 + word > width) {
      printf("\n%*s", indent, "");
      column = indent;
    } else if (!first) {
      putchar(' ');
      ++column;
    }
    fwrite(text, 1, (size_t)word, stdout);
    column += word;
    first = false;
    text += word;
    while (text < end && (*text == ' ' || *text == '\n')) ++text;
  }
  putchar('\n');
}

// Offset of the second column in a table row such as "  NAME   description".
static int second_column(const char *row, int length) {
  int at = 0;
  while (at < length && row[at] == ' ') ++at;
  while (at < length && strncmp(row + at, "  ", 2)) ++at;
  while (at < length && row[at] == ' ') ++at;
  return at;
}

// End of the paragraph, table row or empty line at |text|.
static const char *end_of_block(const char *text, const char *end) {
  const bool one_line = *text == ' ' || *text == '\n';
  for (const char *at = text; at < end; ++at) {
    if (*at == '\n' && (one_line || at[1] == '\n' || at[1] == ' ')) return at;
  }
  return end;
}

// A description consists of paragraphs, separated by empty lines, and of table rows, which begin with a
// space.
static void print_description(const char *text, int length) {
  for (const char *end = text + length, *stop; text < end; text = stop + 1) {
    stop = end_of_block(text, end);
    const int column = *text == ' ' ? second_column(text, (int)(stop - text)) : 0;
    printf("%.*s", column, text);
    print_wrapped(text + column, (int)(stop - text) - column, column, column);
  }
}

// ----------------------------------------------------------------------------------------------------------
// Tables

static void print_row(const char *names, const char *value, const char *help) {
  char left[128];
  const int length = snprintf(left, sizeof left, "%s%s%s", names, value ? " " : "", value ? value : "");
  const int space = screen_width() < 96 ? 26 : 35, indent = 2 + space + 1;
  if (length > space) {  // the names get their own line
    printf("  %s\n%*s", left, indent, "");
  } else {
    printf("  %-*s ", space, left);
  }
  print_wrapped(help, (int)strlen(help), indent, indent);
}

// Prints names only: "--xtc-probability P, --xtc-threshold P, ..."
static void print_collapsed_group(const mlx_flag_t *group) {
  const int width = screen_width();
  int column = 1;
  printf("\n%s (--help-all explains them):\n ", group->help);
  for (const mlx_flag_t *flag = group + 1; flag->names && flag->kind != MLX_FLAG_GROUP; ++flag) {
    const bool last = !flag[1].names || flag[1].kind == MLX_FLAG_GROUP;
    char text[128];
    const int length = snprintf(text, sizeof text, " %s%s%s%s", flag->names, flag->value ? " " : "",
                                flag->value ? flag->value : "", last ? "" : ";");
    if (column + length > width) {
      fputs("\n ", stdout);
      column = 1;
    }
    fputs(text, stdout);
    column += length;
  }
  putchar('\n');
}

static void print_table(const mlx_flag_t *flags, bool all) {
  bool shown = true;
  for (const mlx_flag_t *flag = flags; flag->names; ++flag) {
    if (flag->kind == MLX_FLAG_GROUP) {
      shown = all || !flag->collapsed;
      if (shown && flag->help[0]) printf("\n%s:\n", flag->help);
    } else if (shown) {
      print_row(flag->names, flag->value, flag->help);
    }
  }
  for (const mlx_flag_t *flag = flags; !all && flag->names; ++flag) {
    if (flag->kind == MLX_FLAG_GROUP && flag->collapsed) print_collapsed_group(flag);
  }
}

void mlx_help_print(const mlx_verb_t *verb, bool all) {
  const mlx_usage_parts_t parts = mlx_usage_split(verb->usage);
  printf("usage: %.*s\n\n", parts.synopsis_length, parts.synopsis);
  print_description(parts.description, parts.description_length);
  if (verb->flags->names) putchar('\n');
  print_table(verb->flags, all);
  if (all) {
    puts("\ncommon to all verbs:");
    print_table(mlx_common_flags, all);
  }
  if (parts.examples_length) printf("\nexamples:\n%s\n", parts.examples);
  fputs("\nExit status: 0 success, 2 invalid command line; `mlxcel help exit` lists all.\n", stdout);
}

void mlx_help_print_verbs(const mlx_verb_t *const *verbs, FILE *out) {
  fputs(
      "mlxcel: an ahead-of-time compiler and a tiny runtime for language models\n"
      "usage: mlxcel VERB [options]\n\n",
      out);
  for (; *verbs; ++verbs) fprintf(out, "  %-10s %s\n", (*verbs)->name, (*verbs)->summary);
  fputs(
      "\n  mlxcel VERB --help lists its options, --help-all explains every one; mlxcel --version\n"
      "  mlxcel help exit lists the exit statuses\n\n"
      "examples:\n"
      "  mlxcel run SmolLM2-135M-Instruct.Q4_1.gguf                            a chat at the terminal\n"
      "  mlxcel run SmolLM2-135M-Instruct.Q4_1.gguf \"Why is the sky blue?\"     one answer\n",
      out);
}

void mlx_help_print_exits(void) {
  for (const mlx_exit_t *row = mlx_exits; row->meaning; ++row) printf("%-3d %s\n", row->code, row->meaning);
}
