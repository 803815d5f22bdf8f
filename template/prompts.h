// Prompts: a file of prompts, one JSON object per line (docs/cli.md, "Several prompts"). Each line has either
// "prompt", a text, or "messages", a conversation. The other fields are optional and replace the options of
// the command for that line.
#ifndef MLXCEL_TEMPLATE_PROMPTS_H_
#define MLXCEL_TEMPLATE_PROMPTS_H_

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define MLX_PROMPTS_MAX 65536             // prompts in a file
#define MLX_PROMPTS_MAX_TOKENS (1 << 24)  // largest "max_tokens"
#define MLX_PROMPTS_MAX_STOPS 64          // texts of "stop"
#define MLX_PROMPTS_MAX_STOP_LENGTH 4096  // bytes of such a text
#define MLX_PROMPTS_MAX_TEMPERATURE 1000000

typedef struct mlx_prompt_line {
  int64_t line;  // in the file, from 1
  // Owned. |text| is the prompt, or the JSON list of messages if |is_chat| is true.
  char *text;
  size_t length;
  bool is_chat;
  bool has_max_tokens, has_seed, has_temperature, has_stops;  // which of the fields below the line has
  int64_t max_tokens;                                         // -1: until the model stops
  uint64_t seed;
  double temperature;
  char **stops;  // owned; [stop_count] NUL-terminated, not empty
  size_t stop_count;
} mlx_prompt_line_t;

typedef struct mlx_prompts {
  mlx_prompt_line_t *lines;  // owned; [count], at least one
  size_t count, capacity;
} mlx_prompts_t;

// Reads all lines and checks every field. An error names the file, the line and the field:
// "prompts.jsonl:3: field 'seed' must be ...". Blank lines are skipped. Release with mlx_prompts_clear.
mlx_status_t mlx_prompts_parse(const char *name, const char *bytes, size_t length,
                               mlx_prompts_t *out_prompts) MLX_MUST_USE;
void mlx_prompts_clear(mlx_prompts_t *prompts);

#endif  // MLXCEL_TEMPLATE_PROMPTS_H_
