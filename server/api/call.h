// Call: what a client asks a model to generate, in one form for all APIs. An API (server/api/api.h) parses a
// request into a call; server/core/prompt.c renders and tokenizes it; server/core/serving.c runs it.
//
// Threads: a call belongs to one thread at a time.
#ifndef MLXCEL_SERVER_API_CALL_H_
#define MLXCEL_SERVER_API_CALL_H_

#include "runtime/mlxcel.h"
#include "server/api/stored_responses.h"

#define MLX_MAX_N 128         // answers for each prompt
#define MLX_MAX_PROMPTS 1024  // prompts of one completion
#define MLX_MAX_LOGPROBS 20   // most likely tokens for each token

// One prompt: a text, token ids if |ids| is not NULL, or both in turn if |parts| is not NULL. core/prompt.h
// adds the ids of a text and of parts, and the text of ids if the answer begins with it.
typedef struct mlx_api_prompt {
  char *text;
  size_t length;
  int32_t *ids;
  size_t id_count;
  struct mlx_api_prompt *parts;  // texts and token ids, without parts
  size_t part_count;
} mlx_api_prompt_t;

// A bias of each token of a text.
typedef struct mlx_api_bias_text {
  char *text;
  double bias;
} mlx_api_bias_text_t;

// A text to fill in: the only prompt is the text before the gap.
typedef struct mlx_api_file {
  char *name, *text;
  size_t length;
} mlx_api_file_t;
typedef struct mlx_api_infill {
  bool is_wanted;
  char *suffix;  // the text after the gap
  size_t suffix_length;
  char *typed;  // text before the gap that is never left out; NULL: none
  size_t typed_length;
  mlx_api_file_t *files;  // other files, the nearest last
  size_t file_count;
} mlx_api_infill_t;

// All pointers are owned unless stated otherwise. Zero-initialize; release with mlx_api_call_clear.
typedef struct mlx_api_call {
  char *model;  // the name in the request; NULL: the server's first model
  // Gets the paths of unknown fields while the request is parsed; borrowed. NULL: they are refused.
  mlx_text_t *unknown;

  // Input: a chat (messages is not NULL) or prompts.
  char *messages;  // JSON list, ready for the chat template: roles system, user, assistant and tool; content
                   // is a string; tool_calls in OpenAI's form, with arguments as a JSON object
  size_t messages_length;
  char *tools;  // JSON list in OpenAI's form, functions only; NULL: none
  size_t tools_length;
  char *variables;            // JSON object of template variables; NULL: none
  bool no_generation_prompt;  // the prompt ends after the last message
  bool continue_final;        // the last message is the beginning of the answer: continue it
  // Special tokens in prompts and in messages other than the assistant's are text (parse_special is false);
  // -1: the server's default.
  int plain;
  mlx_api_prompt_t *prompts;  // of a chat: the rendered one, once it is prepared
  size_t prompt_count;
  mlx_api_infill_t infill;

  // Generation
  int64_t max_tokens;       // -1: until the model stops or the context is full
  mlx_sampling_t sampling;  // |biases| points to |biases_storage|; |dry_breakers| may point to |breakers|
  mlx_logit_bias_t *biases_storage;
  mlx_api_bias_text_t *bias_texts;
  size_t bias_text_count;
  int32_t *stop_ids, *allowed_ids;  // as in mlx_generate_options_t
  size_t stop_id_count, allowed_id_count;
  int64_t min_tokens;
  char **bad_words;  // texts that are not generated
  size_t bad_word_count;
  int64_t truncate_prompt;  // keep so many tokens at the end of each prompt; 0: the context; -1: all
  int64_t prompt_logprobs;  // as |logprobs|, of the tokens of the prompts
  bool return_ids;          // the answer has the ids of its tokens and of the prompts
  bool return_routes;       // the answer has the experts of its tokens and of the prompts,
  int64_t routes_from;      // from this token of a prompt on
  char **breakers;
  size_t breaker_count;
  char **stops;
  size_t stop_count;
  int64_t n;              // answers for each prompt, at least 1
  int64_t best;           // write only so many of them: those with the highest mean log-probability; 0: all
  int64_t logprobs;       // -1: none; N: of each token and of the N most likely
  bool sampled_logprobs;  // of the distribution that the tokens are drawn from
  bool ignore_eos;
  bool forbids_ends;  // ignore_eos means that end-of-text tokens are forbidden
  // The answer ends before a line that is indented by fewer spaces and tabs, and at the first line break
  // after so many milliseconds; 0 or less: off.
  int64_t least_indent, most_milliseconds;
  bool echo;         // the answer begins with the prompt; with log-probabilities, also those of its tokens
  int64_t priority;  // a higher one is served first
  mlx_answer_format_t format;
  char *format_text;
  size_t format_length;
  const char *format_path;  // JSON path of |format_text| in the request, for errors; static; NULL: none
  mlx_tool_choice_t tool_choice;
  char *tool_name;
  bool one_tool_call;  // parallel_tool_calls is false

  // Output
  bool stream;
  bool return_progress;            // a stream tells how much of the prompt is read
  bool verbose;                    // the answer has llama.cpp's "__verbose"
  mlx_stored_responses_t *stored;  // borrowed; NULL: nothing is stored
  void *details;                   // what only the api needs (echo, include_usage, ...); released by the api
} mlx_api_call_t;

// A call with the defaults of all APIs: llama.cpp's sampling, a random seed, n 1, no logprobs, no limit.
mlx_status_t mlx_api_call_initialize(mlx_api_call_t *out_call) MLX_MUST_USE;
// The part of a call that concerns the form of the output. Borrowed from the call.
mlx_output_options_t mlx_api_call_output_options(const mlx_api_call_t *call);
// Releases everything but |details|.
void mlx_api_call_clear(mlx_api_call_t *call);

#endif  // MLXCEL_SERVER_API_CALL_H_
