// Values in Ollama's answers, and times in lists of models.
#ifndef MLXCEL_SERVER_API_OLLAMA_TEXT_H_
#define MLXCEL_SERVER_API_OLLAMA_TEXT_H_

#include "base/json_writer.h"

void mlx_ollama_put_text(mlx_json_writer_t *json, const char *key, const char *text);  // "" for NULL
// Seconds since 1970: "2026-11-16T10:26:56Z".
void mlx_ollama_put_time(mlx_json_writer_t *json, const char *key, int64_t seconds);

#endif  // MLXCEL_SERVER_API_OLLAMA_TEXT_H_
