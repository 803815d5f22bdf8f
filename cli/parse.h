// Parse: fills a verb's options from the command line, then from the environment and the configuration file.
#ifndef MLXCEL_CLI_PARSE_H_
#define MLXCEL_CLI_PARSE_H_

#include "cli/verb.h"

// Fills |options| with the verb's defaults, then with the given values. Arguments that are not flags go to
// |words|, at most |max_words|, except the model of a verb with model_word; "--" ends the flags. Options of
// other programs are translated, ignored with a note on stderr, or refused (cli/foreign.h). --help prints the
// help and --version the version on stdout; both set *|out_help|, after which the verb must return. Texts are
// valid until mlx_config_release.
mlx_status_t mlx_command_line_parse(const mlx_command_line_t *line, void *options, const char **words,
                                    size_t max_words, size_t *out_word_count, bool *out_help) MLX_MUST_USE;

// Parses the command line into |options| and calls |run| with them and all words, except after --help.
mlx_status_t mlx_command_line_run(const mlx_command_line_t *line, void *options,
                                  mlx_status_t (*run)(void *options, const char **words,
                                                      size_t count)) MLX_MUST_USE;

// Replaces the escapes \n \t \r \\ \" \' and \xHH in *|inout_text|, as llama.cpp does. Other backslashes
// stay. NULL stays NULL. The new text is valid until mlx_config_release.
mlx_status_t mlx_unescape(const char **inout_text) MLX_MUST_USE;
// The same for a text that ends with a NUL byte after |length| bytes. Returns the new length.
size_t mlx_unescape_in_place(char *text, size_t length);

#endif  // MLXCEL_CLI_PARSE_H_
