// Small models quantized as the tools of Hugging Face directories publish them. packed_directory_test.c
// compares the CPU kernel with the dequantized models, packed_gpu_test.c the GPU kernels with the CPU kernel.
#ifndef MLXCEL_TESTS_PACKED_SUBJECTS_H_
#define MLXCEL_TESTS_PACKED_SUBJECTS_H_

#include "tests/support/packed_model.h"
#include "tests/support/random_llama.h"
#include "tests/support/wide_fixtures.h"

typedef struct packed_subject {
  packed_kind_t kind;
  bool experts;   // a mixture of experts, else a Llama
  bool portable;  // also compiled for sm_80
} packed_subject_t;

static const packed_subject_t packed_subjects[] = {
    {{"gptq", MLX_PACKED_GPTQ, 4, 128, MLX_F16, false, 0, false, NULL}, false, true},
    {{"gptq-symmetric", MLX_PACKED_GPTQ, 4, 128, MLX_F16, false, 0, true, NULL}, false, false},
    {{"gptq-act-order", MLX_PACKED_GPTQ, 4, 64, MLX_F16, false, ACT_ORDER, false, NULL}, false, true},
    {{"gptq-act-order-of-v", MLX_PACKED_GPTQ, 4, 32, MLX_BF16, false, ACT_ORDER_OF_V, true, NULL},
     false,
     false},
    {{"gptq-experts", MLX_PACKED_GPTQ, 4, 32, MLX_F16, false, 0, false, NULL}, true, false},
    {{"awq", MLX_PACKED_AWQ, 4, 128, MLX_F16, false, 0, false, NULL}, false, false},
    {{"awq-bf16", MLX_PACKED_AWQ, 4, 64, MLX_BF16, false, 0, false, NULL}, false, false},
    {{"awq-f32", MLX_PACKED_AWQ, 4, 32, MLX_F32, false, 0, false, NULL}, false, false},
    {{"mlx4", MLX_PACKED_MLX, 4, 64, MLX_F16, true, 0, false, NULL}, false, false},
    {{"mlx4-bf16", MLX_PACKED_MLX, 4, 32, MLX_BF16, true, 0, false, NULL}, false, false},
    {{"mlx8", MLX_PACKED_MLX, 8, 64, MLX_BF16, true, 0, false, NULL}, false, false},
    {{"mlx8-f16", MLX_PACKED_MLX, 8, 32, MLX_F16, true, 0, false, NULL}, false, false},
    {{"mlx4-experts", MLX_PACKED_MLX, 4, 32, MLX_BF16, true, 0, false, NULL}, true, false},
};
#define PACKED_SUBJECTS (sizeof packed_subjects / sizeof *packed_subjects)

// Writes the unquantized model into the folder |out_path| of |root|, unless it is there.
static inline void write_unquantized(bool experts, const char *root, char out_path[128]) {
  static const random_llama_t shape = {256, 384, 4, 2, 64, 2, VOCAB, false, 10000};
  const char *before = random_llama_dtype;
  snprintf(out_path, 128, "%s/%s", root, experts ? "experts" : "dense");
  if (mlx_is_dir(out_path)) return;
  if (experts) {
    CHECK_OK(mlx_make_dirs(out_path, 0700));
    write_wide_model("qwen3_moe", out_path);
    return;
  }
  random_llama_dtype = "F16";
  random_llama_write(&shape, root, "dense");
  random_llama_dtype = before;
}

// Writes |subject| into the new folder |out_packed|, and dequantized into |out_dequantized| unless NULL, both
// with a tokenizer. |root|: a folder for the unquantized model. Release with end().
static inline void write_packed_subject(const packed_subject_t *subject, const char *root,
                                        folder_t *out_packed, folder_t *out_dequantized) {
  char path[128];
  mlx_model_t *model;
  write_unquantized(subject->experts, root, path);
  CHECK_OK(mlx_model_open(path, &model));
  CHECK(write_packed_model(&subject->kind, path, model, out_packed, out_dequantized) > 0);
  mlx_model_close(model);
  CHECK_OK(mlx_copy_file(TOKENIZER, path_in(out_packed, "tokenizer.json")));
  if (out_dequantized) CHECK_OK(mlx_copy_file(TOKENIZER, path_in(out_dequantized, "tokenizer.json")));
}

#endif  // MLXCEL_TESTS_PACKED_SUBJECTS_H_
