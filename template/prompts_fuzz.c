// Fuzz target: a file of prompts. Accepted lines must keep the limits of the header.
#include <string.h>

#include "base/memory.h"
#include "template/conversation.h"
#include "template/prompts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_line(const mlx_prompt_line_t *line) {
  mlx_conversation_t *conversation;
  if (!line->text || line->text[line->length]) __builtin_trap();
  if (line->is_chat) {
    if (mlx_conversation_parse("messages", line->text, line->length, &conversation)) __builtin_trap();
    if (!mlx_conversation_count(conversation)) __builtin_trap();
    mlx_conversation_free(conversation);
  }
  if (line->has_max_tokens && (line->max_tokens < -1 || line->max_tokens > MLX_PROMPTS_MAX_TOKENS))
    __builtin_trap();
  if (line->has_temperature && !(line->temperature >= 0 && line->temperature <= MLX_PROMPTS_MAX_TEMPERATURE))
    __builtin_trap();
  if (line->seed > UINT32_MAX || line->stop_count > MLX_PROMPTS_MAX_STOPS) __builtin_trap();
  for (size_t i = 0; i < line->stop_count; ++i) {
    const size_t length = strlen(line->stops[i]);
    if (!length || length > MLX_PROMPTS_MAX_STOP_LENGTH) __builtin_trap();
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  mlx_prompts_t prompts;
  mlx_status_t status = mlx_prompts_parse("fuzz", (const char *)data, size, &prompts);
  if (status) {
    if (prompts.count || prompts.lines) __builtin_trap();
    mlx_status_free(status);
    return 0;
  }
  if (!prompts.count || prompts.count > MLX_PROMPTS_MAX) __builtin_trap();
  for (size_t i = 0; i < prompts.count; ++i) {
    check_line(&prompts.lines[i]);
    if (i && prompts.lines[i].line <= prompts.lines[i - 1].line) __builtin_trap();
  }
  mlx_prompts_clear(&prompts);
  return 0;
}
