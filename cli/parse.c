// Parses a command line: combines the flag tables, the help printer and the configuration.
#include "cli/parse.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "cli/config_file.h"
#include "cli/help.h"
#include "runtime/mlxcel.h"

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

typedef struct parser {
  void *options;
  const char **words;
  size_t max_words, word_count;
  mlx_origin_t *origins;  // one for each row of the table
  bool only_words, without_file, help;
} parser_t;

static mlx_status_t read_argument(parser_t *parser, const mlx_command_line_t *line, int *inout_index) {
  const char *word = line->argv[*inout_index];
  if (parser->only_words || word[0] != '-' || !word[1]) {
    if (parser->word_count == parser->max_words)
      return mlx_error(MLX_USAGE, "unexpected argument '%s'", word);
    parser->words[parser->word_count++] = word;
  } else if (!strcmp(word, "--")) {
    parser->only_words = true;
  } else if (!strcmp(word, "--no-config")) {
    parser->without_file = true;
  } else if (print_information(line->verb, word)) {
    parser->help = true;
  } else {
    return mlx_flags_read(line->verb->flags, line->argc, line->argv, inout_index, parser->options,
                          parser->origins);
  }
  return NULL;
}

mlx_status_t mlx_command_line_parse(const mlx_command_line_t *line, void *options, const char **words,
                                    size_t max_words, size_t *out_word_count, bool *out_help) {
  parser_t parser = {.options = options, .words = words, .max_words = max_words};
  mlx_verb_initialize(line->verb, options);
  MLX_TRY(mlx_alloc(mlx_flags_count(line->verb->flags) + 1, sizeof *parser.origins, &parser.origins));
  mlx_status_t status = NULL;
  for (int i = 0; i < line->argc && !status && !parser.help; ++i) status = read_argument(&parser, line, &i);
  if (!status && !parser.help)
    status = mlx_config_apply(line->verbs, line->verb, options, !parser.without_file, parser.origins);
  mlx_free(parser.origins);
  *out_word_count = parser.word_count;
  *out_help = parser.help;
  return status;
}
