// Answer: what a model generated for a call, in one form for all APIs: as events while it is generated, and
// as a whole when it is done.
//
// Threads: an answer belongs to one thread at a time.
#ifndef MLXCEL_OUTPUT_ANSWER_H_
#define MLXCEL_OUTPUT_ANSWER_H_

#include "base/json_writer.h"
#include "output/output_format.h"

typedef enum mlx_event_kind {
  MLX_EVENT_TEXT,            // text of the answer
  MLX_EVENT_REASONING,       // text of the model's reasoning
  MLX_EVENT_TOOL_BEGIN,      // a tool call: |id| and |name|
  MLX_EVENT_TOOL_ARGUMENTS,  // a part of its arguments, as JSON text
  MLX_EVENT_TOOL_END,
  MLX_EVENT_FINISH  // of this choice: |finish| and |stop|
} mlx_event_kind_t;

typedef struct mlx_answer_logprob {
  int32_t id;
  double logprob;
  const char *bytes;  // of the token; may be part of a character
  size_t length;
} mlx_answer_logprob_t;

// A generated token with its log-probabilities; only if the call asked for them.
typedef struct mlx_answer_token {
  mlx_answer_logprob_t chosen;
  const mlx_answer_logprob_t *top;  // the most likely tokens
  size_t top_count;
} mlx_answer_token_t;

// The experts of |tokens| tokens: [tokens][layers][used]. NULL: the call did not ask for them.
typedef struct mlx_answer_routes {
  const int16_t *experts;
  size_t tokens;
  int64_t layers, used;
} mlx_answer_routes_t;

// Everything is borrowed for the call that gets the event.
typedef struct mlx_event {
  mlx_event_kind_t kind;
  size_t choice;     // 0 <= choice < call.n * prompts
  const char *text;  // TEXT, REASONING, TOOL_ARGUMENTS
  size_t length;
  size_t tool;                       // index of the tool call in this choice
  const char *id, *name;             // TOOL_BEGIN
  const mlx_answer_token_t *tokens;  // TEXT and REASONING: the tokens since the last event
  size_t token_count;
  mlx_finish_reason_t finish;  // FINISH
  // FINISH: all tokens of the choice. TEXT of a completion: those since the last event.
  const int32_t *ids;
  size_t id_count;
  // FINISH: the tokens of the prompt, if the call asked for their log-probabilities.
  const mlx_answer_token_t *prompt_tokens;
  size_t prompt_token_count;
  const char *stop;            // FINISH: the stop string of the call that ended the text; NULL: none
  double mean_logprob;         // FINISH: of the choice's tokens; 0: unknown
  mlx_answer_routes_t routes;  // FINISH
} mlx_event_t;

typedef struct mlx_tool_call {
  char *id, *name;
  mlx_text_t arguments;  // JSON text
} mlx_tool_call_t;

typedef struct mlx_answer_choice {
  mlx_text_t text, reasoning;
  mlx_tool_call_t *tools;
  size_t tool_count, tool_capacity;
  mlx_finish_reason_t finish;
  const char *stop;     // the stop string that ended the text, borrowed from the call; NULL: none
  double mean_logprob;  // of the tokens; 0: unknown
  // Only with log-probabilities. The bytes and |top| are copies that the choice owns.
  mlx_answer_token_t *tokens;
  size_t token_count, token_capacity;
  mlx_answer_token_t *prompt_tokens;  // the same of the prompt, if the call asked for them
  size_t prompt_token_count;
  int32_t *ids;  // [id_count] of all tokens, also of one that ended the text
  size_t id_count;
  mlx_answer_routes_t routes;  // a copy that the choice owns
} mlx_answer_choice_t;

typedef struct mlx_answer {
  char id[40];        // unique: letters, digits and '-', without the API's prefix
  const char *model;  // the model's public name; borrowed
  int64_t created;    // seconds since 1970
  mlx_answer_choice_t *choices;
  size_t choice_count;
  // Usage. The prompt is counted once, also for several choices.
  int64_t prompt_tokens, cached_tokens, output_tokens, reasoning_tokens;
  double queue_seconds, prompt_seconds, decode_seconds;
} mlx_answer_t;

// Collects an event into the answer, for a response that is sent as a whole. |choices| grows as needed.
// Arguments without TOOL_BEGIN are MLX_INTERNAL.
mlx_status_t mlx_answer_add(mlx_answer_t *answer, const mlx_event_t *event) MLX_MUST_USE;
// Members of OpenAI's messages: "content", which is the text, or null if there are only tool calls; and
// "tool_calls".
void mlx_answer_put_content(mlx_json_writer_t *json, const mlx_answer_choice_t *choice);
void mlx_answer_put_tool_calls(mlx_json_writer_t *json, const mlx_answer_choice_t *choice);
void mlx_answer_clear(mlx_answer_t *answer);  // releases the choices and zeroes the answer

#endif  // MLXCEL_OUTPUT_ANSWER_H_
