// Named texts that an embedding model puts before other texts. A model's files and a bundle's manifest have
// them.
#ifndef MLXCEL_BASE_PROMPT_H_
#define MLXCEL_BASE_PROMPT_H_

#define MLX_MAX_PROMPT 1024     // bytes of a prompt, with its NUL
#define MLX_MAX_PROMPT_NAME 64  // bytes of its name, with its NUL
#define MLX_MODEL_PROMPTS 32    // of a model

typedef struct mlx_named_prompt {
  char name[MLX_MAX_PROMPT_NAME], text[MLX_MAX_PROMPT];  // |text| may be empty
} mlx_named_prompt_t;

#endif  // MLXCEL_BASE_PROMPT_H_
