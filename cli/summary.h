// Summary: name, size, quantization, license, chat template, context length and kernels of a model, for
// `show` and for /show in a chat.
#ifndef MLXCEL_CLI_SUMMARY_H_
#define MLXCEL_CLI_SUMMARY_H_

#include "artifact/manifest.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "models/import/format.h"
#include "models/model.h"

typedef struct mlx_summary {
  char name[128];  // general.name of a GGUF file, else the name of the file or folder; safe to print
  char architecture[64];
  char multimodal[64];  // model_type of a multimodal directory, which runs as its text model; else ""
  uint64_t bytes;       // of all files
  uint64_t parameters;  // 0 if unknown
  char quantization[MLX_MAX_FORMATS * 18];  // "Q4_1, F32", the format with the most bytes first
  char license[64];                         // "" if the model declares none
  char templates[128];    // names of the chat templates: "default, tool_use"; "" if there is none
  int64_t context;        // of the model
  mlx_variant_t here;     // target and ops of this machine; the target is "" if they are unknown
  uint64_t here_weights;  // bytes of the weights as they are stored for this machine; 0 if unknown
  uint64_t here_memory;   // of the GPU, or RAM
} mlx_summary_t;

// Reads the summary of a source model or a bundle. The op paths are those that `run` would use here.
mlx_status_t mlx_summary_read(const char *path, mlx_summary_t *out_summary) MLX_MUST_USE;
// The same for an open model.
mlx_status_t mlx_summary_of_model(mlx_model_t *model, mlx_summary_t *out_summary) MLX_MUST_USE;
// Appends the lines "name  ...", "size  ..." and so on.
void mlx_summary_print(const mlx_summary_t *summary, mlx_text_t *out);
// Appends the members of a JSON object, without braces, each followed by a comma.
void mlx_summary_json(const mlx_summary_t *summary, mlx_json_writer_t *json);

// Size and stored type of one weight.
typedef struct mlx_weight_facts {
  uint64_t elements, bytes;
  char type[MLX_FORMAT_NAME];  // "Q4_1", "GPTQ 4-bit"
} mlx_weight_facts_t;
mlx_weight_facts_t mlx_weight_facts(const mlx_weight_t *weight);

#endif  // MLXCEL_CLI_SUMMARY_H_
