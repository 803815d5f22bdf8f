// Help: a verb's table and usage text on one screen, and the table of exit statuses.
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"
#include "line/tty.h"

#define WIDEST 100  // columns
#define NARROWEST 60

const mlx_exit_t mlx_exits[] = {
    {MLX_OK, "done", ""},
    {MLX_INTERNAL, "a bug in mlxcel; the place in the source is printed", "report it with the command"},
    {MLX_USAGE, "the command line is wrong", "the message says which word; `--help`"},
    {MLX_INVALID_INPUT, "a file is malformed or inconsistent; file and field are named",
     "fetch or convert the file again"},
    {MLX_UNSUPPORTED, "well formed, but something mlxcel does not handle; field and value are named",
     "see the README for what it runs"},
    {MLX_NOT_FOUND, "a file or tool that should be there is not", "the message names it"},
    {MLX_IO, "the operating system refused to read, write or lock", "space, permissions"},
    {MLX_OUT_OF_MEMORY, "out of memory, the machine's or the GPU's",
     "a smaller context with `-c`; for weights that do not fit a GPU the numbers are given"},
    {MLX_UNAVAILABLE,
     "a device or CPU the model needs is not there, or a server cannot be reached or refuses",
     "the message says why, and what to use instead"},
    {MLX_TOOL_FAILED, "`iree-compile` or NVRTC failed",
     "the first error line is shown; its whole output is in the log file named"},
    {MLX_TIMEOUT, "a time limit ran out, or nothing came from a server for too long",
     "`--stall-timeout`; for the compiler `--timeout`, or `MLXCEL_COMPILE_TIMEOUT` in seconds"},
    {MLX_CANCELLED, "stopped on request", ""},
    {0, NULL, NULL},
};

const mlx_flag_t mlx_common_flags[] = {
    {"-h, --help", MLX_FLAG_SWITCH, NULL, "the options of this verb", NULL, 0, 0},
    {"--help-all", MLX_FLAG_SWITCH, NULL, "the same with every option explained", NULL, 0, 0},
    {"--no-config", MLX_FLAG_SWITCH, NULL, "do not read the configuration file", NULL, 0, 0},
    {"--version", MLX_FLAG_SWITCH, NULL, "the version", NULL, 0, 0},
    {0},
};

// ----------------------------------------------------------------------------------------------------------
// The screen

static int screen_width(void) {
  const char *columns = getenv("COLUMNS");
  int width = columns ? atoi(columns) : 0;
  if (width <= 0) width = mlx_tty_columns();
  if (width <= 0 || width > WIDEST) width = WIDEST;
  return width < NARROWEST ? NARROWEST : width;
}

// Prints |text| word by word from column |column| on; further lines begin at |indent|.
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

// Where the second column of a table's row begins: "  NAME   what it is".
static int second_column(const char *row, int length) {
  int at = 0;
  while (at < length && row[at] == ' ') ++at;
  while (at < length && strncmp(row + at, "  ", 2)) ++at;
  while (at < length && row[at] == ' ') ++at;
  return at;
}

// The end of the paragraph, the row or the blank line that |text| begins.
static const char *end_of_block(const char *text, const char *end) {
  const bool one_line = *text == ' ' || *text == '\n';
  for (const char *at = text; at < end; ++at) {
    if (*at == '\n' && (one_line || at[1] == '\n' || at[1] == ' ')) return at;
  }
  return end;
}

// Paragraphs, with a blank line between two, and tables, whose rows begin with a blank.
static void print_description(const char *text, int length) {
  for (const char *end = text + length, *stop; text < end; text = stop + 1) {
    stop = end_of_block(text, end);
    const int column = *text == ' ' ? second_column(text, (int)(stop - text)) : 0;
    printf("%.*s", column, text);
    print_wrapped(text + column, (int)(stop - text) - column, column, column);
  }
}

// ----------------------------------------------------------------------------------------------------------
// Usage texts

mlx_usage_parts_t mlx_usage_split(const char *usage) {
  static const char opening[] = "usage: ", marker[] = "\n\nexamples:\n";
  mlx_usage_parts_t parts = {.synopsis =
                                 strncmp(usage, opening, strlen(opening)) ? usage : usage + strlen(opening)};
  parts.synopsis_length = (int)strcspn(parts.synopsis, "\n");
  parts.description = parts.synopsis + parts.synopsis_length;
  const char *examples = strstr(usage, marker);
  const char *end = examples ? examples : usage + strlen(usage);
  while (parts.description < end && *parts.description == '\n') ++parts.description;
  parts.description_length = (int)(end - parts.description);
  parts.examples = examples ? examples + strlen(marker) : "";
  parts.examples_length = (int)strlen(parts.examples);
  return parts;
}

// ----------------------------------------------------------------------------------------------------------
// Tables

static void print_row(const char *names, const char *value, const char *help) {
  char left[128];
  const int length = snprintf(left, sizeof left, "%s%s%s", names, value ? " " : "", value ? value : "");
  const int space = screen_width() < 96 ? 26 : 34, indent = 2 + space + 1;
  if (length > space) {  // a line of its own
    printf("  %s\n%*s", left, indent, "");
  } else {
    printf("  %-*s ", space, left);
  }
  print_wrapped(help, (int)strlen(help), indent, indent);
}

// Names only: "--xtc-probability P, --xtc-threshold P, ..."
static void print_short_group(const mlx_flag_t *group) {
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
      shown = all || !flag->min;
      if (shown && flag->help[0]) printf("\n%s:\n", flag->help);
    } else if (shown) {
      print_row(flag->names, flag->value, flag->help);
    }
  }
  for (const mlx_flag_t *flag = flags; !all && flag->names; ++flag) {
    if (flag->kind == MLX_FLAG_GROUP && flag->min) print_short_group(flag);
  }
}

void mlx_help_print(const char *usage, const mlx_flag_t *flags, bool all) {
  const mlx_usage_parts_t parts = mlx_usage_split(usage);
  printf("usage: %.*s\n\n", parts.synopsis_length, parts.synopsis);
  print_description(parts.description, parts.description_length);
  if (flags->names) putchar('\n');
  print_table(flags, all);
  if (all) {
    puts("\nof every verb:");
    print_table(mlx_common_flags, all);
  }
  if (parts.examples_length) printf("\nexamples:\n%s\n", parts.examples);
  fputs("\nExit status 0: done, 2: wrong command line; `mlxcel --help` lists the others.\n", stdout);
}

void mlx_help_print_verbs(FILE *out) {
  fputs(
      "mlxcel: an ahead-of-time compiler and a tiny runtime for language models\nusage: mlxcel VERB "
      "[options]\n\n",
      out);
  for (size_t i = 0; mlx_verb_at(i); ++i)
    fprintf(out, "  %-10s %s\n", mlx_verb_at(i)->name, mlx_verb_at(i)->summary);
  fputs(
      "\n  mlxcel VERB --help: its options (--help-all: every one explained); mlxcel --version: the "
      "version\n\nexit status:\n",
      out);
  for (const mlx_exit_t *row = mlx_exits; row->meaning; ++row)
    fprintf(out, "  %-3d %s\n", row->code, row->meaning);
  fputs("example: mlxcel run -m SmolLM2-135M-Instruct.Q4_1.gguf -p \"The capital of France is\" -n 16\n",
        out);
}
