// Turns: a conversation, the session that holds its tokens, and the answers to its last message.
#ifndef MLXCEL_CLI_TURN_H_
#define MLXCEL_CLI_TURN_H_

#include "runtime/mlxcel.h"

// Everything is borrowed.
typedef struct mlx_chat_setup {
  const char *model;  // for the greeting
  const char *path;   // of the model
  mlx_engine_t *engine;
  const mlx_chat_t *chat;
  mlx_chat_options_t render;  // tools and variables of the chat template
  const mlx_generate_options_t *generate;
  const char *system;  // NULL if there is no system message
  bool verbose;        // print the statistics of every answer
} mlx_chat_setup_t;

typedef struct mlx_turn_stats {
  size_t prompt_count, output_count;  // tokens
  size_t kept;                        // prompt tokens that the session held already
  double prompt_seconds, decode_seconds;
  mlx_finish_reason_t finish_reason;
} mlx_turn_stats_t;

typedef struct mlx_turns {
  const mlx_chat_setup_t *setup;
  mlx_session_t *session;
  mlx_conversation_t *conversation;
  size_t first;      // earlier messages, except the system message, were dropped from the prompt
  uint64_t answers;  // number of answers since the seed was set; each answer uses its own seed
  mlx_turn_stats_t last;
  bool stdout_failed;
} mlx_turns_t;

mlx_status_t mlx_turns_create(const mlx_chat_setup_t *setup, mlx_turns_t *out_turns) MLX_MUST_USE;
void mlx_turns_clear(mlx_turns_t *turns);
// Frees the old conversation and takes ownership of |conversation|.
void mlx_turns_replace(mlx_turns_t *turns, mlx_conversation_t *conversation);
// Answers the last message on stdout and adds the answer to the conversation, unless Ctrl-C stopped it before
// any text. If the context is full, drops the oldest turns from the prompt and prints a note on stderr.
mlx_status_t mlx_turns_answer(mlx_turns_t *turns, bool *out_answered) MLX_MUST_USE;
// Prints "stop: prompt 86 tokens, 18 of them new, 50.1 tok/s; ..." on stderr, if the conversation has an
// answer of this chat, and how full the context is.
void mlx_turns_print_stats(const mlx_turns_t *turns);

#endif  // MLXCEL_CLI_TURN_H_
