// What a chat is made of: turns (cli/turn.c), and the person's side of it (cli/chat.c).
#ifndef MLXCEL_CLI_CHAT_H_
#define MLXCEL_CLI_CHAT_H_

#include "runtime/mlxcel.h"

// Everything is borrowed.
typedef struct mlx_chat_setup {
  const char *model;  // for the greeting
  mlx_engine_t *engine;
  const mlx_chat_t *chat;
  mlx_chat_options_t render;  // tools, variables
  const mlx_generate_options_t *generate;
  const char *system;  // NULL: none
  bool verbose;        // print the figures of every answer
} mlx_chat_setup_t;

// ----------------------------------------------------------------------------------------------------------
// Turns: a conversation, the session that holds what was read of it, and an answer to its last message

typedef struct mlx_turn_stats {
  size_t prompt_count, kept, output_count;  // kept: of the prompt, what the session held already
  double prompt_seconds, decode_seconds;
  mlx_finish_reason_t finish_reason;
} mlx_turn_stats_t;

typedef struct mlx_turns {
  const mlx_chat_setup_t *setup;
  mlx_session_t *session;
  mlx_conversation_t *conversation;
  size_t first;      // messages before it (but the system's) no longer fit into the context
  uint64_t answers;  // given so far: each has a seed of its own
  mlx_turn_stats_t last;
  bool stdout_failed;
} mlx_turns_t;

mlx_status_t mlx_turns_create(const mlx_chat_setup_t *setup, mlx_turns_t *out_turns) MLX_MUST_USE;
void mlx_turns_clear(mlx_turns_t *turns);
// Takes the place of the conversation, which it frees.
void mlx_turns_replace(mlx_turns_t *turns, mlx_conversation_t *conversation);
// Answers the last message: on stdout, and as a message of the conversation's unless nothing came. Oldest
// turns that the context has no room for are left out, and that is said on stderr.
mlx_status_t mlx_turns_answer(mlx_turns_t *turns, bool *out_answered) MLX_MUST_USE;
// "12 tokens read (30 known already), 310.0 tok/s; ..." on stderr.
void mlx_turns_print_stats(const mlx_turns_t *turns);

// Talks with a person at a terminal until they leave.
mlx_status_t mlx_cli_chat(const mlx_chat_setup_t *setup) MLX_MUST_USE;

#endif  // MLXCEL_CLI_CHAT_H_
