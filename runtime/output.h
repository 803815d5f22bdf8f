// Output: the text that one sequence generates. Adds tokens to a generation, decodes them, looks for stop
// strings and ends of text, keeps the limits and calls on_text. Sessions and the scheduler share it.
//
// Ownership: an output is a plain struct; mlx_output_clear releases it. Threads: one thread at a time.
#ifndef MLXCEL_RUNTIME_OUTPUT_H_
#define MLXCEL_RUNTIME_OUTPUT_H_

#include "runtime/mlxcel.h"
#include "runtime/visible.h"
#include "tokenizer/tokenizer.h"

typedef struct mlx_output {
  const mlx_tokenizer_t *tokenizer;  // borrowed
  const int32_t *eos;                // [eos_count] borrowed
  size_t eos_count;
  int64_t max_tokens, logprobs;  // as in the options
  bool ignore_eos;
  bool (*on_text)(void *user, const char *text, size_t length);
  void *user;
  mlx_visible_t visible;
  char **stops;  // [stop_count] owned
  size_t stop_count;
  int32_t *stop_ids;  // [stop_id_count] owned
  size_t stop_id_count;

  mlx_generation_t generation;  // its text is borrowed from |text| until mlx_output_finish
  size_t id_capacity, logprob_capacity;
  mlx_detokenizer_t detokenizer;
  mlx_text_t text;
  size_t emitted;   // bytes of |text| that on_text has got
  size_t searched;  // no stop string begins before this byte
  bool cut;         // the text ends before a stop string
  bool ended;       // generation.finish_reason is final
} mlx_output_t;

// Checks and copies |options|. |tokenizer| and |eos| are borrowed. Release with mlx_output_clear, also after
// a failure.
mlx_status_t mlx_output_initialize(const mlx_generate_options_t *options, const mlx_tokenizer_t *tokenizer,
                                   const int32_t *eos, size_t eos_count, int64_t vocab,
                                   mlx_output_t *out_output) MLX_MUST_USE;
void mlx_output_clear(mlx_output_t *output);  // also clears the generation

// Adds a token. |logprobs| has options.logprobs + 1 entries; NULL if none were requested. Sets |ended| after
// an end-of-text token, a stop string, and the last token of max_tokens. Must not be called once |ended| is
// set.
mlx_status_t mlx_output_add(mlx_output_t *output, int32_t id, const mlx_logprob_t *logprobs) MLX_MUST_USE;
// Passes the new text to on_text, except what may be the beginning of a stop string. Sets |ended| if on_text
// returns false.
void mlx_output_emit(mlx_output_t *output);
// Ends the output, with |reason| unless |ended| is set: emits the rest and completes the generation.
mlx_status_t mlx_output_finish(mlx_output_t *output, mlx_finish_reason_t reason) MLX_MUST_USE;
// How many more tokens max_tokens allows.
size_t mlx_output_left(const mlx_output_t *output);

#endif  // MLXCEL_RUNTIME_OUTPUT_H_
