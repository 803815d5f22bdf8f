// Sampling flags: table rows for every verb that generates text, and their values as runtime options.
#ifndef MLXCEL_CLI_SAMPLING_H_
#define MLXCEL_CLI_SAMPLING_H_

#include "base/json_writer.h"
#include "base/text.h"
#include "cli/flags.h"
#include "runtime/mlxcel.h"

typedef struct mlx_sampling_flags {
  mlx_sampling_t options;
  int64_t seed;      // -1 for a random seed
  int64_t logprobs;  // -1 for none
  mlx_flag_list_t bias_texts, breakers;
  mlx_logit_bias_t biases[MLX_MAX_LIST];
  const char *grammar_text, *grammar_file, *json_schema;
  mlx_grammar_t *grammar;  // owned
} mlx_sampling_flags_t;

void mlx_sampling_flags_initialize(mlx_sampling_flags_t *out_flags);
// Checks the parsed values and reads the grammar; call it before anything slow. Release with
// mlx_sampling_flags_clear.
mlx_status_t mlx_sampling_flags_read(mlx_sampling_flags_t *flags) MLX_MUST_USE;
void mlx_sampling_flags_clear(mlx_sampling_flags_t *flags);
// Makes |options| point into |flags|, which must outlive it.
void mlx_sampling_flags_apply(const mlx_sampling_flags_t *flags, mlx_generate_options_t *options);

// Appends the "logprobs" member of --json, in the format of OpenAI's API, with |best| alternatives per token.
// |layout| is that of the list of tokens.
mlx_status_t mlx_cli_put_logprobs(const mlx_engine_t *engine, const mlx_generation_t *generation, size_t best,
                                  mlx_json_layout_t layout, mlx_json_writer_t *json) MLX_MUST_USE;

// The rows; |f| is a field of type mlx_sampling_flags_t. They open a collapsed group, which lasts until the
// next group or MLX_GROUP_END.
// clang-format off
#define MLX_SAMPLING_FLAGS(type, f) \
  MLX_NUMBER_FLAG(type, f.options.temperature, "--temp", "T", \
                  "sampling temperature (default: 0.8; 0: greedy)", 0, 1000000), \
  MLX_INT_FLAG(type, f.seed, "-s, --seed", "N", \
               "random seed (default: -1: a new one each run)", -1, 4294967295), \
  MLX_INT_FLAG(type, f.options.top_k, "--top-k", "N", \
               "keep the N most probable tokens (default: 40; 0: all)", 0, 1 << 30), \
  MLX_NUMBER_FLAG(type, f.options.top_p, "--top-p", "P", \
                  "keep the fewest tokens of total probability P (default: 0.95)", 0, 1), \
  MLX_COLLAPSED_GROUP("sampling, penalties and grammars"), \
  MLX_NUMBER_FLAG(type, f.options.min_p, "--min-p", "P", \
                  "keep tokens with at least P times the best probability (default: 0.05)", 0, 1), \
  MLX_NUMBER_FLAG(type, f.options.typical_p, "--typical", "P", \
                  "locally typical sampling with total probability P (default: 1: off)", 0, 1), \
  MLX_NUMBER_FLAG(type, f.options.top_n_sigma, "--top-nsigma", "N", \
                  "keep logits within N standard deviations of the largest (default: -1: off)", \
                  -1, 1000000), \
  MLX_NUMBER_FLAG(type, f.options.xtc_probability, "--xtc-probability", "P", \
                  "XTC: probability of removing the top tokens (default: 0: off)", 0, 1), \
  MLX_NUMBER_FLAG(type, f.options.xtc_threshold, "--xtc-threshold", "P", \
                  "XTC: minimum probability of a removed token (default: 0.1)", 0, 1), \
  MLX_INT_FLAG(type, f.options.repeat_last_n, "--repeat-last-n", "N", \
               "tokens that penalties look back on (default: 64; -1: the whole context)", -1, 1 << 30), \
  MLX_NUMBER_FLAG(type, f.options.repeat_penalty, "--repeat-penalty", "X", \
                  "divide the logits of repeated tokens by X (default: 1: off)", 0, 1000000), \
  MLX_NUMBER_FLAG(type, f.options.presence_penalty, "--presence-penalty", "X", \
                  "subtract X from the logits of repeated tokens (default: 0: off)", -1000000, 1000000), \
  MLX_NUMBER_FLAG(type, f.options.frequency_penalty, "--frequency-penalty", "X", \
                  "subtract X for each occurrence of a repeated token (default: 0: off)", \
                  -1000000, 1000000), \
  MLX_NUMBER_FLAG(type, f.options.dry_multiplier, "--dry, --dry-multiplier", "X", \
                  "DRY: penalty for continuing a repeated sequence (default: 0: off)", 0, 1000000), \
  MLX_NUMBER_FLAG(type, f.options.dry_base, "--dry-base", "X", \
                  "DRY: growth of the penalty per repeated token (default: 1.75)", 1, 1000000), \
  MLX_INT_FLAG(type, f.options.dry_allowed_length, "--dry-allowed-length", "N", \
               "DRY: longest repetition without a penalty, in tokens (default: 2)", 1, 1 << 30), \
  MLX_INT_FLAG(type, f.options.dry_last_n, "--dry-penalty-last-n", "N", \
               "DRY: tokens to look back on (default: -1: the whole context)", -1, 1 << 30), \
  MLX_LIST_FLAG(type, f.breakers, "--dry-sequence-breaker", "TEXT", \
                "DRY: text that ends a repetition (default: newline : \" *; 'none': nothing)"), \
  MLX_INT_FLAG(type, f.options.mirostat, "--mirostat", "N", \
               "Mirostat sampling, version 1 or 2 (default: 0: off)", 0, 2), \
  MLX_NUMBER_FLAG(type, f.options.mirostat_tau, "--mirostat-ent", "X", \
                  "Mirostat: target entropy in bits (default: 5)", 0, 1000000), \
  MLX_NUMBER_FLAG(type, f.options.mirostat_eta, "--mirostat-lr", "X", \
                  "Mirostat: learning rate (default: 0.1)", 0, 1000000), \
  MLX_LIST_FLAG(type, f.bias_texts, "-l, --logit-bias", "ID+X", \
                "add X to the logit of token ID; ID-inf: never sample it"), \
  MLX_TEXT_FLAG(type, f.json_schema, "-j, --json-schema", "JSON", \
                "generate only JSON that matches this schema; @FILE reads it from a file"), \
  MLX_TEXT_FLAG(type, f.grammar_text, "--grammar", "GBNF", "generate only text that matches this grammar"), \
  MLX_TEXT_FLAG(type, f.grammar_file, "--grammar-file", "FILE", "read the grammar from a file"), \
  MLX_INT_FLAG(type, f.logprobs, "--logprobs", "N", \
               "with --json: log-probabilities of each token and of the N best", 0, 1 << 24)
// clang-format on

#endif  // MLXCEL_CLI_SAMPLING_H_
