// Chat settings: what /set, /think and /nothink change. They start from the options of the command line.
#ifndef MLXCEL_CLI_CHAT_SETTINGS_H_
#define MLXCEL_CLI_CHAT_SETTINGS_H_

#include "base/text.h"
#include "cli/turn.h"

// Owns what it changes. Must stay where it is: |setup| points into it.
typedef struct mlx_chat_settings {
  mlx_chat_setup_t setup;           // a copy, for mlx_turns_create
  mlx_generate_options_t generate;  // of |setup|
  mlx_sampling_t sampling;          // of |generate|
  char *variables;                  // owned: the template variables of |setup|; NULL until they are changed
} mlx_chat_settings_t;

void mlx_chat_settings_initialize(const mlx_chat_setup_t *setup, mlx_chat_settings_t *out_settings);
void mlx_chat_settings_clear(mlx_chat_settings_t *settings);

// Applies "temperature 0.2", also as Ollama's "parameter temperature 0.2", and appends the new value to
// |out|. An empty |text| appends all values. *|inout_answers| is the number of answers since the seed was
// set: the seed of the next answer is larger by it. Setting the seed resets it to 0.
mlx_status_t mlx_chat_settings_set(mlx_chat_settings_t *settings, const char *text, uint64_t *inout_answers,
                                   mlx_text_t *out) MLX_MUST_USE;
// Sets the variable of the chat template that switches thinking: "on", "off", or an effort ("low", "medium",
// "high") if the template has efforts. Fails if the template has no such variable.
mlx_status_t mlx_chat_settings_think(mlx_chat_settings_t *settings, const char *value,
                                     mlx_text_t *out) MLX_MUST_USE;

// "/set temperature", ... for completion; ends with NULL.
const char *const *mlx_chat_settings_words(void);

#endif  // MLXCEL_CLI_CHAT_SETTINGS_H_
