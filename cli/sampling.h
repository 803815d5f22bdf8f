// The flags that say how tokens are chosen, for every verb that generates: rows of its table, and what they
// come to.
#ifndef MLXCEL_CLI_SAMPLING_H_
#define MLXCEL_CLI_SAMPLING_H_

#include "base/text.h"
#include "cli/cli.h"

typedef struct mlx_sampling_flags {
  mlx_sampling_t options;
  int64_t seed;      // -1: any
  int64_t logprobs;  // -1: none
  mlx_flag_list_t bias_texts, breakers;
  mlx_logit_bias_t biases[MLX_MAX_LIST];
  const char *grammar_text, *grammar_file, *json_schema;
  mlx_grammar_t *grammar;  // owned
} mlx_sampling_flags_t;

void mlx_sampling_flags_initialize(mlx_sampling_flags_t *out_flags);
// Reads what the table filled in, before anything slow. Release with mlx_sampling_flags_clear.
mlx_status_t mlx_sampling_flags_read(mlx_sampling_flags_t *flags) MLX_MUST_USE;
void mlx_sampling_flags_clear(mlx_sampling_flags_t *flags);
// Borrowed by |options|. |say_seed|: on stderr.
void mlx_sampling_flags_apply(const mlx_sampling_flags_t *flags, bool say_seed,
                              mlx_generate_options_t *options);

// Appends the "logprobs" of --json, as OpenAI's API has them, with |best| alternatives a token.
mlx_status_t mlx_cli_put_logprobs(const mlx_engine_t *engine, const mlx_generation_t *generation, size_t best,
                                  mlx_text_t *json) MLX_MUST_USE;

// The rows. What comes after them is part of their last group, up to an MLX_GROUP_END.
#define MLX_SAMPLING_FLAGS(f)                                                                                 \
  {"--temp",                                                                                                  \
   MLX_FLAG_NUMBER,                                                                                           \
   "T",                                                                                                       \
   "temperature (default: 0.8; 0: always the likeliest token)",                                               \
   &(f).options.temperature,                                                                                  \
   0,                                                                                                         \
   1000000},                                                                                                  \
      {"-s, --seed", MLX_FLAG_INT, "N",       "of the random numbers (default: -1, another one each time)",   \
       &(f).seed,    -1,           4294967295},                                                               \
      {"--top-k", MLX_FLAG_INT, "N", "keep the N likeliest tokens (default: 40; 0: all)", &(f).options.top_k, \
       0,         1 << 30},                                                                                   \
      {"--top-p",                                                                                             \
       MLX_FLAG_NUMBER,                                                                                       \
       "P",                                                                                                   \
       "keep the likeliest that add up to P (default: 0.95; 1: all)",                                         \
       &(f).options.top_p,                                                                                    \
       0,                                                                                                     \
       1},                                                                                                    \
      MLX_GROUP_SHORT("more about choosing tokens"),                                                          \
      {"--min-p",                                                                                             \
       MLX_FLAG_NUMBER,                                                                                       \
       "P",                                                                                                   \
       "keep what is at least P times as likely as the best (default: 0.05)",                                 \
       &(f).options.min_p,                                                                                    \
       0,                                                                                                     \
       1},                                                                                                    \
      {"--typical",                                                                                           \
       MLX_FLAG_NUMBER,                                                                                       \
       "P",                                                                                                   \
       "keep the most typical that add up to P (default: 1: all)",                                            \
       &(f).options.typical_p,                                                                                \
       0,                                                                                                     \
       1},                                                                                                    \
      {"--top-nsigma",                                                                                        \
       MLX_FLAG_NUMBER,                                                                                       \
       "N",                                                                                                   \
       "keep logits within N deviations of the largest (default: -1: all)",                                   \
       &(f).options.top_n_sigma,                                                                              \
       -1,                                                                                                    \
       1000000},                                                                                              \
      {"--xtc-probability",                                                                                   \
       MLX_FLAG_NUMBER,                                                                                       \
       "P",                                                                                                   \
       "how often to drop top choices (default: 0: never)",                                                   \
       &(f).options.xtc_probability,                                                                          \
       0,                                                                                                     \
       1},                                                                                                    \
      {"--xtc-threshold",                                                                                     \
       MLX_FLAG_NUMBER,                                                                                       \
       "P",                                                                                                   \
       "... that are at least this likely (default: 0.1)",                                                    \
       &(f).options.xtc_threshold,                                                                            \
       0,                                                                                                     \
       1},                                                                                                    \
      {"--repeat-last-n",                                                                                     \
       MLX_FLAG_INT,                                                                                          \
       "N",                                                                                                   \
       "tokens that penalties look back on (default: 64; -1: the context)",                                   \
       &(f).options.repeat_last_n,                                                                            \
       -1,                                                                                                    \
       1 << 30},                                                                                              \
      {"--repeat-penalty",                                                                                    \
       MLX_FLAG_NUMBER,                                                                                       \
       "X",                                                                                                   \
       "divide logits of tokens that were there (default: 1: off)",                                           \
       &(f).options.repeat_penalty,                                                                           \
       0,                                                                                                     \
       1000000},                                                                                              \
      {"--presence-penalty",                                                                                  \
       MLX_FLAG_NUMBER,                                                                                       \
       "X",                                                                                                   \
       "take off logits of tokens that were there (default: 0)",                                              \
       &(f).options.presence_penalty,                                                                         \
       -1000000,                                                                                              \
       1000000},                                                                                              \
      {"--frequency-penalty",                                                                                 \
       MLX_FLAG_NUMBER,                                                                                       \
       "X",                                                                                                   \
       "... for each time that they were there (default: 0)",                                                 \
       &(f).options.frequency_penalty,                                                                        \
       -1000000,                                                                                              \
       1000000},                                                                                              \
      {"--dry, --dry-multiplier",                                                                             \
       MLX_FLAG_NUMBER,                                                                                       \
       "X",                                                                                                   \
       "penalise going on with a repetition (default: 0: off)",                                               \
       &(f).options.dry_multiplier,                                                                           \
       0,                                                                                                     \
       1000000},                                                                                              \
      {"--dry-base",                                                                                          \
       MLX_FLAG_NUMBER,                                                                                       \
       "X",                                                                                                   \
       "... this much more for each token of it (default: 1.75)",                                             \
       &(f).options.dry_base,                                                                                 \
       1,                                                                                                     \
       1000000},                                                                                              \
      {"--dry-allowed-length",                                                                                \
       MLX_FLAG_INT,                                                                                          \
       "N",                                                                                                   \
       "... from this length on (default: 2)",                                                                \
       &(f).options.dry_allowed_length,                                                                       \
       1,                                                                                                     \
       1 << 30},                                                                                              \
      {"--dry-penalty-last-n",  MLX_FLAG_INT, "N",    "... of the last N tokens (default: -1: the context)",  \
       &(f).options.dry_last_n, -1,           1 << 30},                                                       \
      {"--dry-sequence-breaker",                                                                              \
       MLX_FLAG_LIST,                                                                                         \
       "TEXT",                                                                                                \
       "... not across TEXT (default: newline : \" *; 'none': nothing)",                                      \
       &(f).breakers,                                                                                         \
       0,                                                                                                     \
       0},                                                                                                    \
      {"--mirostat",                                                                                          \
       MLX_FLAG_INT,                                                                                          \
       "N",                                                                                                   \
       "keep surprise at a target by Mirostat 1 or 2 (default: 0: off)",                                      \
       &(f).options.mirostat,                                                                                 \
       0,                                                                                                     \
       2},                                                                                                    \
      {"--mirostat-ent",                                                                                      \
       MLX_FLAG_NUMBER,                                                                                       \
       "X",                                                                                                   \
       "its target in bits (default: 5)",                                                                     \
       &(f).options.mirostat_tau,                                                                             \
       0,                                                                                                     \
       1000000},                                                                                              \
      {"--mirostat-lr",                                                                                       \
       MLX_FLAG_NUMBER,                                                                                       \
       "X",                                                                                                   \
       "its learning rate (default: 0.1)",                                                                    \
       &(f).options.mirostat_eta,                                                                             \
       0,                                                                                                     \
       1000000},                                                                                              \
      {"-l, --logit-bias",                                                                                    \
       MLX_FLAG_LIST,                                                                                         \
       "ID+X",                                                                                                \
       "add X to the logit of token ID; ID-inf: never choose it",                                             \
       &(f).bias_texts,                                                                                       \
       0,                                                                                                     \
       0},                                                                                                    \
      {"-j, --json-schema",                                                                                   \
       MLX_FLAG_TEXT,                                                                                         \
       "JSON",                                                                                                \
       "write only JSON that this schema describes; @FILE reads it from a file",                              \
       &(f).json_schema,                                                                                      \
       0,                                                                                                     \
       0},                                                                                                    \
      {"--grammar", MLX_FLAG_TEXT, "GBNF", "write only texts of this grammar", &(f).grammar_text, 0, 0},      \
      {"--grammar-file", MLX_FLAG_TEXT, "FILE", "the same from a file", &(f).grammar_file, 0, 0},             \
      {"--logprobs",  MLX_FLAG_INT,                                                                           \
       "N",           "with --json: each token's log-probability and the N best",                             \
       &(f).logprobs, 0,                                                                                      \
       1 << 24}

#endif  // MLXCEL_CLI_SAMPLING_H_
