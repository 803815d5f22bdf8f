// Batch: generates text for all prompts of a .jsonl file at once (run -f FILE.jsonl).
#ifndef MLXCEL_CLI_BATCH_H_
#define MLXCEL_CLI_BATCH_H_

#include "runtime/mlxcel.h"
#include "template/prompts.h"

#define MLX_CLI_BATCH_PARALLEL 64  // default of --parallel: at most so many sequences at the same time

typedef struct mlx_cli_batch {
  const char *path;  // borrowed; for messages
  mlx_prompts_t prompts;
  bool *thinking;  // owned; [prompts.count] the prompt ends with <think>
} mlx_cli_batch_t;

// True if |path| names a file of prompts: it ends with ".jsonl".
bool mlx_cli_batch_is_file(const char *path);
// Reads and checks the whole file. Release with mlx_cli_batch_clear.
mlx_status_t mlx_cli_batch_read(const char *path, mlx_cli_batch_t *out_batch) MLX_MUST_USE;
void mlx_cli_batch_clear(mlx_cli_batch_t *batch);
bool mlx_cli_batch_has_messages(const mlx_cli_batch_t *batch);  // in any line

// Replaces the messages of each line by the text that the chat template renders. A "prompt" is a user
// message, after the message |system| if that is not NULL.
mlx_status_t mlx_cli_batch_render(mlx_cli_batch_t *batch, const mlx_chat_t *chat,
                                  const mlx_chat_options_t *options, const char *system) MLX_MUST_USE;

// Generates all texts and prints them in the order of the lines, each as soon as it and all before it are
// done: as JSON lines, or as blocks of text. |options| applies to lines that do not replace it; its sampling
// must not be NULL. With |no_special|, special tokens in prompts without a chat template are text. The seed
// of prompt i, from 0, is the seed of |options| plus i. If a prompt fails, the others are still generated,
// and the result is the first failure. Ctrl-C ends it with MLX_CANCELLED.
mlx_status_t mlx_cli_batch_generate(const mlx_cli_batch_t *batch, mlx_engine_t *engine,
                                    const mlx_generate_options_t *options, bool no_special,
                                    bool json) MLX_MUST_USE;

#endif  // MLXCEL_CLI_BATCH_H_
