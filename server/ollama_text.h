// Values in Ollama's answers, and times in lists of models.
#ifndef MLXCEL_SERVER_OLLAMA_TEXT_H_
#define MLXCEL_SERVER_OLLAMA_TEXT_H_

#include <stdint.h>

#include "base/text.h"

void mlx_ollama_put_string(const char *text, mlx_text_t *out);  // a JSON string; "" for NULL
// Seconds since 1970 as a JSON string: "2026-11-16T10:26:56Z".
void mlx_ollama_put_time(int64_t seconds, mlx_text_t *out);

#endif  // MLXCEL_SERVER_OLLAMA_TEXT_H_
