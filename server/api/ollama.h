// What the server needs of Ollama's API beside mlx_api_ollama_chat and mlx_api_ollama_generate: the bodies of
// the endpoints that generate nothing.
#ifndef MLXCEL_SERVER_API_OLLAMA_H_
#define MLXCEL_SERVER_API_OLLAMA_H_

#include "server/api/api.h"

// The model that the body of POST /api/show names. Release with mlx_free.
mlx_status_t mlx_ollama_parse_show(const char *body, size_t length, mlx_text_t *unknown,
                                   char **out_model) MLX_MUST_USE;

// A model, as clients see it. All texts are borrowed; NULL: unknown, except |name|. Its digest is made of its
// name, size and time.
typedef struct mlx_ollama_model {
  const char *name;
  const char *family;           // the architecture: "llama"
  const char *format;           // "gguf", "safetensors", "mlxb"
  const char *parameter_size;   // "1.2B"
  const char *quantization;     // "Q4_0"
  const char *template_source;  // of the chat template
  uint64_t size, size_vram;     // bytes: of the weights, and in GPU memory
  uint64_t parameter_count;     // 0: unknown
  int64_t context;              // positions; 0: unknown
  int64_t modified;             // seconds since 1970
  int64_t expires;              // when it is unloaded; 0: when its memory is needed
  bool is_loaded, is_encoder, has_tools, has_thinking;
} mlx_ollama_model_t;

void mlx_ollama_write_tags(const mlx_ollama_model_t *models, size_t count, mlx_text_t *out);  // /api/tags
void mlx_ollama_write_ps(const mlx_ollama_model_t *models, size_t count, mlx_text_t *out);    // /api/ps
void mlx_ollama_write_show(const mlx_ollama_model_t *model, mlx_text_t *out);                 // /api/show
void mlx_ollama_write_version(const char *version, mlx_text_t *out);                          // /api/version
void mlx_ollama_write_error(const mlx_api_error_t *error, mlx_text_t *out);

#endif  // MLXCEL_SERVER_API_OLLAMA_H_
