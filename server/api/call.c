// Calls: defaults and release.
#include "server/api/call.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/memory.h"

mlx_status_t mlx_api_call_initialize(mlx_api_call_t *out_call) {
  uint32_t seed;
  *out_call = (mlx_api_call_t){
      .max_tokens = -1, .n = 1, .logprobs = -1, .prompt_logprobs = -1, .truncate_prompt = -1, .plain = -1};
  mlx_sampling_initialize(&out_call->sampling);
  if (getrandom(&seed, sizeof seed, 0) != sizeof seed)
    return mlx_error(MLX_IO, "cannot get a random seed: getrandom failed: %s", strerror(errno));
  out_call->sampling.seed = seed;
  return NULL;
}

mlx_output_options_t mlx_api_call_output_options(const mlx_api_call_t *call) {
  return (mlx_output_options_t){.tools = call->tools,
                                .tools_length = call->tools_length,
                                .tool_choice = call->tool_choice,
                                .tool_name = call->tool_name,
                                .one_tool_call = call->one_tool_call,
                                .format = call->format,
                                .format_text = call->format_text,
                                .format_length = call->format_length,
                                .format_path = call->format_path,
                                .continue_final = call->continue_final,
                                .stream = call->stream};
}

static void clear_prompt(mlx_api_prompt_t *prompt) {
  for (size_t i = 0; i < prompt->part_count; ++i) clear_prompt(&prompt->parts[i]);
  mlx_free(prompt->parts);
  mlx_free(prompt->text);
  mlx_free(prompt->ids);
}

static void free_texts(char **texts, size_t count) {
  for (size_t i = 0; i < count; ++i) mlx_free(texts[i]);
  mlx_free(texts);
}

static void clear_infill(mlx_api_infill_t *infill) {
  for (size_t i = 0; i < infill->file_count; ++i) {
    mlx_free(infill->files[i].name);
    mlx_free(infill->files[i].text);
  }
  mlx_free(infill->files);
  mlx_free(infill->suffix);
  mlx_free(infill->typed);
}

void mlx_api_call_clear(mlx_api_call_t *call) {
  for (size_t i = 0; i < call->prompt_count; ++i) clear_prompt(&call->prompts[i]);
  mlx_free(call->prompts);
  clear_infill(&call->infill);
  free_texts(call->stops, call->stop_count);
  free_texts(call->breakers, call->breaker_count);
  free_texts(call->bad_words, call->bad_word_count);
  for (size_t i = 0; i < call->bias_text_count; ++i) mlx_free(call->bias_texts[i].text);
  mlx_free(call->bias_texts);
  mlx_free(call->stop_ids);
  mlx_free(call->allowed_ids);
  mlx_free(call->biases_storage);
  mlx_free(call->model);
  mlx_free(call->messages);
  mlx_free(call->tools);
  mlx_free(call->variables);
  mlx_free(call->format_text);
  mlx_free(call->tool_name);
  *call = (mlx_api_call_t){.details = call->details};
}
