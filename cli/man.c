// mlxcel man: prints manual pages, generated from the verb and flag tables.
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/config_file.h"
#include "cli/help.h"
#include "cli/parse.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

typedef struct flags {
  const char *folder;
} flags_t;

// ----------------------------------------------------------------------------------------------------------
// roff

// Escapes |text| for roff: a dash becomes a minus sign, which can be copied, and no line becomes a request.
static void put_roff(mlx_text_t *out, const char *text, size_t length) {
  for (size_t i = 0; i < length; ++i) {
    const bool line_start = !out->length || out->data[out->length - 1] == '\n';
    if (line_start && (text[i] == '.' || text[i] == '\'')) mlx_text_puts(out, "\\&");
    if (text[i] == '-') {
      mlx_text_puts(out, "\\-");
    } else if (text[i] == '\\') {
      mlx_text_puts(out, "\\e");
    } else {
      mlx_text_append(out, &text[i], 1);
    }
  }
}

static void put_line(mlx_text_t *out, const char *text) {
  put_roff(out, text, strlen(text));
  mlx_text_puts(out, "\n");
}

static void put_paragraphs(mlx_text_t *out, const char *text, int length) {
  for (const char *end = text + length, *next; text < end; text = next) {
    const char *line = memchr(text, '\n', (size_t)(end - text));
    next = line ? line + 1 : end;
    if (next - text == 1 && line) {
      mlx_text_puts(out, ".PP\n");
    } else {
      put_roff(out, text, (size_t)((line ? line : end) - text));
      mlx_text_puts(out, "\n");
    }
  }
}

static void put_literal(mlx_text_t *out, const char *text, int length) {
  mlx_text_puts(out, ".nf\n");
  put_roff(out, text, (size_t)length);
  mlx_text_puts(out, "\n.fi\n");
}

static void put_flag(mlx_text_t *out, const mlx_flag_t *flag) {
  char name[MLX_FLAG_NAME];
  const char *comma = "";
  mlx_text_puts(out, ".TP\n");
  for (const char *cursor = flag->names; mlx_flag_next_name(&cursor, name); comma = ", ") {
    mlx_text_printf(out, "%s\\fB", comma);
    put_roff(out, name, strlen(name));
    mlx_text_puts(out, "\\fR");
  }
  if (flag->value) {
    mlx_text_puts(out, " \\fI");
    put_roff(out, flag->value, strlen(flag->value));
    mlx_text_puts(out, "\\fR");
  }
  mlx_text_puts(out, "\n");
  put_line(out, flag->help);
}

static void put_flags(mlx_text_t *out, const mlx_flag_t *flags) {
  bool after_group = false;  // rows after the end of a group need a heading too
  mlx_text_puts(out, ".SH OPTIONS\n");
  for (; flags->names; ++flags) {
    if (flags->kind == MLX_FLAG_GROUP) {
      after_group = after_group || flags->help[0];
      if (!after_group) continue;
      mlx_text_puts(out, ".SS ");
      put_line(out, flags->help[0] ? flags->help : "other options");
    } else {
      put_flag(out, flags);
    }
  }
}

// ----------------------------------------------------------------------------------------------------------
// Pages

static void put_head(mlx_text_t *out, const char *verb, const char *summary) {
  char title[64];
  snprintf(title, sizeof title, "mlxcel%s%s", *verb ? "-" : "", verb);
  mlx_text_puts(out, ".TH \"");
  put_roff(out, title, strlen(title));
  mlx_text_puts(out, "\" 1 \"\" \"mlxcel " MLXCEL_VERSION "\" \"mlxcel\"\n.SH NAME\n");
  put_roff(out, title, strlen(title));
  mlx_text_puts(out, " \\- ");
  put_line(out, summary);
}

static void put_exits(mlx_text_t *out) {
  mlx_text_puts(out, ".SH EXIT STATUS\n");
  for (const mlx_exit_t *row = mlx_exits; row->meaning; ++row) {
    mlx_text_printf(out, ".TP\n.B %d\n", row->code);
    put_roff(out, row->meaning, strlen(row->meaning));
    mlx_text_puts(out, row->remedy[0] ? ": " : "\n");
    if (row->remedy[0]) put_line(out, row->remedy);
  }
}

static void put_environment(mlx_text_t *out) {
  mlx_text_puts(out, ".SH ENVIRONMENT\n");
  put_line(
      out,
      "Every option has a variable: MLXCEL_ and its long name in capitals with underscores (MLXCEL_CTX); "
      "for one verb only, with the verb's name before it (MLXCEL_BENCH_CTX). The configuration file can "
      "set every option too; --no-config ignores that file, and mlxcel-config(1) shows all settings. "
      "Other variables:");
  for (const mlx_variable_t *row = mlx_variables; row->name; ++row) {
    mlx_text_printf(out, ".TP\n.B %s\n", row->name);
    put_line(out, row->meaning);
  }
}

static void put_verb(mlx_text_t *out, const mlx_verb_t *verb) {
  const mlx_usage_parts_t parts = mlx_usage_split(verb->usage);
  put_head(out, verb->name, verb->summary);
  mlx_text_puts(out, ".SH SYNOPSIS\n");
  put_roff(out, parts.synopsis, (size_t)parts.synopsis_length);
  mlx_text_puts(out, "\n.SH DESCRIPTION\n");
  put_paragraphs(out, parts.description, parts.description_length);
  if (verb->flags->names) put_flags(out, verb->flags);
  mlx_text_puts(out, verb->flags->names ? ".SS common to all verbs\n" : ".SH OPTIONS\n");
  for (const mlx_flag_t *flag = mlx_common_flags; flag->names; ++flag) put_flag(out, flag);
  if (parts.examples_length) {
    mlx_text_puts(out, ".SH EXAMPLES\n");
    put_literal(out, parts.examples, parts.examples_length);
  }
  put_exits(out);
  mlx_text_puts(out, ".SH SEE ALSO\n.BR mlxcel (1),\n.BR mlxcel\\-config (1)\n");
}

static void put_main(mlx_text_t *out, const mlx_verb_t *const *verbs) {
  put_head(out, "", "an ahead-of-time compiler and a tiny runtime for language models");
  mlx_text_puts(out,
                ".SH SYNOPSIS\nmlxcel VERB [options]\n.br\nmlxcel \\-\\-help | \\-\\-version\n.SH VERBS\n");
  for (; *verbs; ++verbs) {
    mlx_text_printf(out, ".TP\n.BR mlxcel\\-%s (1)\n", (*verbs)->name);
    put_line(out, (*verbs)->summary);
  }
  put_environment(out);
  put_exits(out);
}

// The page of |verb|, or mlxcel's own page if it is NULL.
static mlx_status_t make_page(const mlx_verb_t *const *verbs, const mlx_verb_t *verb, mlx_text_t *out) {
  if (verb) {
    put_verb(out, verb);
  } else {
    put_main(out, verbs);
  }
  return mlx_text_finish(out);
}

// ----------------------------------------------------------------------------------------------------------
// The verb

static mlx_status_t print_page(const mlx_verb_t *const *verbs, const mlx_verb_t *verb) {
  mlx_text_t page = {0};
  mlx_status_t status = make_page(verbs, verb, &page);
  if (!status && fwrite(page.data, 1, page.length, stdout) != page.length) status = mlx_stdout_error();
  mlx_text_clear(&page);
  return status;
}

static mlx_status_t write_page(const mlx_verb_t *const *verbs, const mlx_verb_t *verb, const char *folder) {
  mlx_text_t page = {0};
  char *path = NULL;
  mlx_status_t status = make_page(verbs, verb, &page);
  if (!status) status = mlx_format(&path, "%s/mlxcel%s%s.1", folder, verb ? "-" : "", verb ? verb->name : "");
  if (!status) status = mlx_write_file(path, page.data, page.length);
  mlx_free(path);
  mlx_text_clear(&page);
  return status;
}

static mlx_status_t run(const mlx_command_line_t *line) {
  flags_t f;
  const char *word = NULL;
  size_t words;
  bool help;
  MLX_TRY(mlx_command_line_parse(line, &f, &word, 1, &words, &help));
  if (help) return NULL;
  const mlx_verb_t *verb = word ? mlx_verb_find(line->verbs, word) : NULL;
  if (word && !verb) return mlx_verb_unknown(line->verbs, word);
  if (!f.folder) return print_page(line->verbs, verb);
  if (verb) return mlx_error(MLX_USAGE, "-o writes every page: remove the verb '%s'", word);
  MLX_TRY(mlx_make_dirs(f.folder, 0755));
  MLX_TRY(write_page(line->verbs, NULL, f.folder));
  for (size_t i = 0; line->verbs[i]; ++i) MLX_TRY(write_page(line->verbs, line->verbs[i], f.folder));
  return NULL;
}

// clang-format off
static const mlx_flag_t flags[] = {
    MLX_TEXT_FLAG(flags_t, folder, "-o, --folder", "FOLDER",
                  "write every page to FOLDER: mlxcel.1, mlxcel-run.1, ..."),
    {0},
};
// clang-format on

const mlx_verb_t mlx_verb_man = {
    .name = "man",
    .summary = "print the manual page of mlxcel or of a verb",
    .usage =
        "usage: mlxcel man [VERB] [options]\n\n"
        "Prints a manual page in the format of man.\n\n"
        "examples:\n"
        "  mlxcel man run | man -l -\n"
        "  mlxcel man -o ~/.local/share/man/man1",
    .flags = flags,
    .options_size = sizeof(flags_t),
    .run = run,
};
