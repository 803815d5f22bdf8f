// Parses a command line: combines the flag tables, the help printer and the configuration.
#include "cli/parse.h"

#include <stdio.h>
#include <string.h>

#include "base/encoding.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/config_file.h"
#include "cli/foreign.h"
#include "cli/help.h"
#include "runtime/mlxcel.h"
#include "transfer/hub.h"

#define MAX_NOTES 16

// Prints the output of --version, --help, -h or --help-all. Returns false for any other word.
static bool print_information(const mlx_verb_t *verb, const char *word) {
  const bool all = !strcmp(word, "--help-all");
  if (!strcmp(word, "--version")) {
    puts("mlxcel " MLXCEL_VERSION);
  } else if (all || !strcmp(word, "--help") || !strcmp(word, "-h")) {
    mlx_help_print(verb, all);
  } else {
    return false;
  }
  return true;
}

typedef struct note {
  char name[MLX_FLAG_NAME];
  const char *text;
} note_t;

typedef struct parser {
  const mlx_command_line_t *line;
  void *options;
  const char *model;  // the first word, if the verb has model_word
  const char **words;
  size_t max_words, word_count;
  mlx_origin_t *origins;    // one for each row of the table
  note_t notes[MAX_NOTES];  // printed unless --quiet is set
  size_t note_count;
  char escaped[MLX_FLAG_NAME];  // the flag whose escapes were replaced without --escape; "": none
  bool only_words, without_file, help;
} parser_t;

// True if the verb has this switch and it is on.
static bool is_set(const parser_t *parser, const char *name) {
  const mlx_flag_t *flag = mlx_flags_find(parser->line->verb->flags, name);
  return flag && *(const bool *)((const char *)parser->options + flag->offset);
}

static mlx_status_t read_word(parser_t *parser, const char *word) {
  if (parser->line->verb->model_word && !parser->model) {
    parser->model = word;
    return NULL;
  }
  if (parser->word_count == parser->max_words) return mlx_error(MLX_USAGE, "unexpected argument '%s'", word);
  parser->words[parser->word_count++] = word;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Options of other programs

// A new text that begins with |prefix|, unless the value does or is a hub's address.
static mlx_status_t add_prefix(const char *prefix, const char **inout_value) {
  if (!strncmp(*inout_value, prefix, strlen(prefix)) || mlx_is_hub_ref(*inout_value)) return NULL;
  mlx_text_t text = {0};
  char *joined;
  size_t length;
  mlx_text_printf(&text, "%s%s", prefix, *inout_value);
  MLX_TRY(mlx_text_take(&text, &joined, &length));
  *inout_value = joined;
  return mlx_config_keep(joined);
}

static void add_note(parser_t *parser, const char *name, const char *text) {
  for (size_t i = 0; i < parser->note_count; ++i) {
    if (parser->notes[i].text == text) return;
  }
  if (parser->note_count == MAX_NOTES) return;
  note_t *note = &parser->notes[parser->note_count++];
  snprintf(note->name, sizeof note->name, "%s", name);
  note->text = text;
}

// A verb without the own flag that |name| means: --model is a word then, and an option that this verb ignores
// is ignored by this name too.
static mlx_status_t set_without_flag(parser_t *parser, const char *own, const char *name, const char *value) {
  if (!strcmp(own, "--model")) return read_word(parser, value);
  const mlx_foreign_t *row = mlx_foreign_find(own);
  if (!row || row->meaning.kind != MLX_FOREIGN_IGNORED)
    return mlx_flags_unknown(parser->line->verb->flags, mlx_common_flags, name);
  add_note(parser, name, row->meaning.text);
  return NULL;
}

// Sets the own flag that |name| means.
static mlx_status_t set_own(parser_t *parser, const mlx_foreign_meaning_t *meaning, const char *name,
                            const char *value) {
  const mlx_flag_t *flags = parser->line->verb->flags, *flag = mlx_flags_find(flags, meaning->text);
  if (meaning->value) value = meaning->value;
  if (meaning->prefix) MLX_TRY(add_prefix(meaning->prefix, &value));
  if (!flag) return set_without_flag(parser, meaning->text, name, value);
  parser->origins[flag - flags].kind = MLX_FROM_COMMAND_LINE;
  return mlx_flag_set(flag, parser->options, name, value ? value : "true");
}

// A flag of another program matters to verbs that open a model; -m to all that take a word.
static const mlx_foreign_t *find_foreign(const parser_t *parser, const char *name) {
  const mlx_foreign_t *row = mlx_foreign_find(name);
  const bool is_model =
      row && row->meaning.kind == MLX_FOREIGN_MEANS && !strcmp(row->meaning.text, "--model");
  if (is_model && (parser->max_words || parser->line->verb->model_word)) return row;
  return mlx_flags_find(parser->line->verb->flags, "--model") ? row : NULL;
}

static mlx_status_t read_foreign(parser_t *parser, const mlx_foreign_t *row, int *inout_index) {
  const mlx_command_line_t *line = parser->line;
  char name[MLX_FLAG_NAME];
  const char *value;
  mlx_flag_split(line->argv[*inout_index], name, &value);
  const char *next = *inout_index + 1 < line->argc ? line->argv[*inout_index + 1] : NULL;
  const bool takes_next = row->takes == MLX_FOREIGN_VALUE ||
                          (row->takes == MLX_FOREIGN_CHOICE && next && mlx_foreign_is_choice(next));
  if (!value && takes_next) {
    value = next;
    ++*inout_index;
  }
  const mlx_foreign_meaning_t meaning = mlx_foreign_meaning(row, value);
  if (meaning.kind == MLX_FOREIGN_ERROR)
    return mlx_status_hint(mlx_error(MLX_USAGE, "there is no option '%s'", name), "%s", meaning.text);
  if (row->takes == MLX_FOREIGN_VALUE && !value) return mlx_error(MLX_USAGE, "option %s needs a value", name);
  if (meaning.kind == MLX_FOREIGN_MEANS) return set_own(parser, &meaning, name, value);
  add_note(parser, name, meaning.text);
  return NULL;
}

static void print_notes(const parser_t *parser) {
  const mlx_verb_t *verb = parser->line->verb;
  if (is_set(parser, "--quiet")) return;
  for (size_t i = 0; i < parser->note_count; ++i)
    fprintf(stderr, "mlxcel %s: %s is ignored: %s\n", verb->name, parser->notes[i].name,
            parser->notes[i].text);
  if (parser->escaped[0])
    fprintf(
        stderr,
        "mlxcel %s: escapes such as \\n in %s were replaced, as in llama.cpp; --no-escape keeps the text\n",
        verb->name, parser->escaped);
}

// ----------------------------------------------------------------------------------------------------------
// The command line

static mlx_status_t read_argument(parser_t *parser, int *inout_index) {
  const mlx_command_line_t *line = parser->line;
  const mlx_flag_t *flags = line->verb->flags;
  const char *word = line->argv[*inout_index];
  if (parser->only_words || word[0] != '-' || !word[1]) return read_word(parser, word);
  if (!strcmp(word, "--")) {
    parser->only_words = true;
  } else if (!strcmp(word, "--no-config")) {
    parser->without_file = true;
  } else if (print_information(line->verb, word)) {
    parser->help = true;
  } else if (mlx_flags_find(flags, word)) {
    return mlx_flags_read(flags, line->argc, line->argv, inout_index, parser->options, parser->origins);
  } else {
    char name[MLX_FLAG_NAME];
    const char *value;
    mlx_flag_split(word, name, &value);
    const mlx_foreign_t *row = find_foreign(parser, name);
    return row ? read_foreign(parser, row, inout_index) : mlx_flags_unknown(flags, mlx_common_flags, word);
  }
  return NULL;
}

// Makes the first word the model. If -m gave the model, it is a word like the others.
static mlx_status_t apply_model(parser_t *parser) {
  const mlx_verb_t *verb = parser->line->verb;
  if (!parser->model) return NULL;
  const mlx_flag_t *flag = mlx_flags_find(verb->flags, "--model");
  if (!flag) return mlx_error(MLX_INTERNAL, "%s has no flag --model", verb->name);
  mlx_origin_t *origin = &parser->origins[flag - verb->flags];
  if (origin->kind != MLX_FROM_COMMAND_LINE) {
    origin->kind = MLX_FROM_COMMAND_LINE;
    return mlx_flag_set(flag, parser->options, "--model", parser->model);
  }
  if (!parser->max_words)
    return mlx_status_hint(
        mlx_error(MLX_USAGE, "the model is given twice: with -m, and as the word '%s'", parser->model),
        "give it once");
  if (parser->word_count == parser->max_words)
    return mlx_error(MLX_USAGE, "unexpected argument '%s'", parser->words[parser->word_count - 1]);
  memmove(parser->words + 1, parser->words, parser->word_count * sizeof *parser->words);
  parser->words[0] = parser->model;
  ++parser->word_count;
  return NULL;
}

// Of two switches that exclude each other, the one of the stronger origin stays on. An error if both have the
// same origin.
static mlx_status_t exclude(const parser_t *parser, const char *a, const char *b) {
  const mlx_flag_t *flags = parser->line->verb->flags;
  if (!is_set(parser, a) || !is_set(parser, b)) return NULL;
  const mlx_flag_t *first = mlx_flags_find(flags, a), *second = mlx_flags_find(flags, b);
  const mlx_origin_kind_t one = parser->origins[first - flags].kind,
                          other = parser->origins[second - flags].kind;
  if (one == other)
    return mlx_status_hint(mlx_error(MLX_USAGE, "both %s and %s were given", a, b), "give one of them");
  return mlx_flag_set(one < other ? second : first, parser->options, one < other ? b : a, "false");
}

// Replaces escapes in a text. Remembers the flag for a note, unless --escape asked for it.
static mlx_status_t replace_in_text(parser_t *parser, const mlx_flag_t *flag, const char **inout_text) {
  const char *before = *inout_text;
  MLX_TRY(mlx_unescape(inout_text));
  if (before && strcmp(before, *inout_text) && !is_set(parser, "--escape"))
    mlx_flag_long_name(flag, parser->escaped);
  return NULL;
}

// Replaces escapes in the values of flags that have them. The configuration file has its own escapes: values
// from there are complete.
static mlx_status_t replace_escapes(parser_t *parser) {
  const mlx_flag_t *flags = parser->line->verb->flags;
  char *options = parser->options;
  MLX_TRY(exclude(parser, "--escape", "--no-escape"));
  if (is_set(parser, "--no-escape")) return NULL;
  for (size_t i = 0; flags[i].names; ++i) {
    const mlx_origin_kind_t origin = parser->origins[i].kind;
    const bool has_escapes =
        flags[i].has_escapes || (flags[i].escapes_on_request && is_set(parser, "--escape"));
    if (!has_escapes || (origin != MLX_FROM_COMMAND_LINE && origin != MLX_FROM_ENVIRONMENT)) continue;
    void *value = options + flags[i].offset;
    if (flags[i].kind == MLX_FLAG_TEXT) MLX_TRY(replace_in_text(parser, &flags[i], value));
    mlx_flag_list_t *list = flags[i].kind == MLX_FLAG_LIST ? value : NULL;
    for (size_t n = 0; list && n < list->count; ++n) MLX_TRY(mlx_unescape(&list->items[n]));
  }
  return NULL;
}

mlx_status_t mlx_command_line_parse(const mlx_command_line_t *line, void *options, const char **words,
                                    size_t max_words, size_t *out_word_count, bool *out_help) {
  parser_t parser = {.line = line, .options = options, .words = words, .max_words = max_words};
  mlx_verb_initialize(line->verb, options);
  MLX_TRY(mlx_alloc(mlx_flags_count(line->verb->flags) + 1, sizeof *parser.origins, &parser.origins));
  mlx_status_t status = NULL;
  for (int i = 0; i < line->argc && !status && !parser.help; ++i) status = read_argument(&parser, &i);
  if (!status && !parser.help) status = apply_model(&parser);
  if (!status && !parser.help)
    status = mlx_config_apply(line->verbs, line->verb, options, !parser.without_file, parser.origins);
  if (!status && !parser.help) status = replace_escapes(&parser);
  if (!status && !parser.help) print_notes(&parser);
  mlx_free(parser.origins);
  *out_word_count = parser.word_count;
  *out_help = parser.help;
  return status;
}

mlx_status_t mlx_command_line_run(const mlx_command_line_t *line, void *options,
                                  mlx_status_t (*run)(void *options, const char **words, size_t count)) {
  const char **words;
  size_t count;
  bool help;
  MLX_TRY(mlx_alloc((size_t)line->argc + 1, sizeof *words, &words));
  mlx_status_t status = mlx_command_line_parse(line, options, words, (size_t)line->argc, &count, &help);
  if (!status && !help) status = run(options, words, count);
  mlx_free(words);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Escapes

// The character of the escape at |text|, which begins with a backslash, and its length. False if it is none:
// then *|out| is unchanged, because it may be |text|.
static bool read_escape(const char *text, char *out, size_t *out_length) {
  static const char names[] = "ntr\\\"'", characters[] = "\n\t\r\\\"'";
  const char *at = text[1] ? strchr(names, text[1]) : NULL;
  *out_length = 2;
  if (at) {
    *out = characters[at - names];
    return true;
  }
  if (text[1] != 'x' || mlx_hex_digit(text[2]) < 0 || mlx_hex_digit(text[3]) < 0) return false;
  const int byte = 16 * mlx_hex_digit(text[2]) + mlx_hex_digit(text[3]);
  if (!byte) return false;  // a NUL byte would end the text
  *out_length = 4;
  *out = (char)byte;
  return true;
}

size_t mlx_unescape_in_place(char *text, size_t length) {
  char *to = text;
  for (const char *from = text, *end = text + length; from < end; ++to) {
    size_t size = 1;
    if (*from != '\\' || !read_escape(from, to, &size)) {
      *to = *from;
      size = 1;
    }
    from += size;
  }
  *to = 0;
  return (size_t)(to - text);
}

mlx_status_t mlx_unescape(const char **inout_text) {
  char *text;
  if (!*inout_text || !strchr(*inout_text, '\\')) return NULL;
  MLX_TRY(mlx_copy_text(*inout_text, strlen(*inout_text), &text));
  mlx_unescape_in_place(text, strlen(text));
  *inout_text = text;
  return mlx_config_keep(text);
}
