// Call: what a client asks a model to generate, in one form for all APIs. A shape (server/shape.h) parses a
// request into a call; server/prompt.c renders and tokenizes it; server/serving.c runs it.
//
// Threads: a call belongs to one thread at a time.
#ifndef MLXCEL_SERVER_CALL_H_
#define MLXCEL_SERVER_CALL_H_

#include "runtime/mlxcel.h"

#define MLX_MAX_N 128         // answers for each prompt
#define MLX_MAX_PROMPTS 1024  // prompts of one completion
#define MLX_MAX_LOGPROBS 20   // most likely tokens for each token

typedef enum mlx_call_format {
  MLX_FORMAT_TEXT,         // any text
  MLX_FORMAT_JSON,         // any JSON object
  MLX_FORMAT_JSON_SCHEMA,  // |format_text| is a JSON schema
  MLX_FORMAT_GBNF          // |format_text| is a grammar
} mlx_call_format_t;

typedef enum mlx_tool_choice {
  MLX_TOOLS_AUTO,      // the model decides
  MLX_TOOLS_NONE,      // tools are rendered, but the output is not parsed for calls
  MLX_TOOLS_REQUIRED,  // at least one call: the output is constrained to one
  MLX_TOOLS_NAMED      // a call of |tool_name|
} mlx_tool_choice_t;

// One prompt of a completion: a text, or token ids if |ids| is not NULL.
typedef struct mlx_call_prompt {
  char *text;
  size_t length;
  int32_t *ids;
  size_t id_count;
} mlx_call_prompt_t;

// All pointers are owned unless stated otherwise. Zero-initialize; release with mlx_call_clear.
typedef struct mlx_call {
  char *model;  // the name in the request; NULL: the server's first model

  // Input: a chat (messages is not NULL) or prompts.
  char *messages;  // JSON list, ready for the chat template: roles system, user, assistant and tool; content
                   // is a string; tool_calls in OpenAI's form, with arguments as a JSON object
  size_t messages_length;
  char *tools;  // JSON list in OpenAI's form, functions only; NULL: none
  size_t tools_length;
  char *variables;      // JSON object of template variables; NULL: none
  bool continue_final;  // the last message is the beginning of the answer: continue it
  mlx_call_prompt_t *prompts;
  size_t prompt_count;

  // Generation
  int64_t max_tokens;       // -1: until the model stops or the context is full
  mlx_sampling_t sampling;  // |biases| points to |biases_storage|; |dry_breakers| may point to |breakers|
  mlx_logit_bias_t *biases_storage;
  char **breakers;
  size_t breaker_count;
  char **stops;
  size_t stop_count;
  int64_t n;         // answers for each prompt, at least 1
  int64_t logprobs;  // -1: none; N: of each token and of the N most likely
  bool ignore_eos;
  bool echo;         // the answer begins with the prompt; with log-probabilities, also those of its tokens
  int64_t priority;  // a higher one is served first
  mlx_call_format_t format;
  char *format_text;
  size_t format_length;
  const char *format_path;  // JSON path of |format_text| in the request, for errors; static; NULL: none
  mlx_tool_choice_t tool_choice;
  char *tool_name;
  bool one_tool_call;  // parallel_tool_calls is false

  // Output
  bool stream;
  void *details;  // what only the shape needs (echo, include_usage, ...); released by the shape
} mlx_call_t;

// A call with the defaults of all APIs: llama.cpp's sampling, a random seed, n 1, no logprobs, no limit.
mlx_status_t mlx_call_initialize(mlx_call_t *out_call) MLX_MUST_USE;
// Releases everything but |details|.
void mlx_call_clear(mlx_call_t *call);

#endif  // MLXCEL_SERVER_CALL_H_
