// Directories quantized by MLX, GPTQ and AWQ, computed on the kernel path with quantized weights, give the
// same logits as the dequantized model on the generic path.
#include <math.h>

#include "compiler/weights.h"
#include "tests/compiled.h"
#include "tests/distance.h"
#include "tests/packed_files.h"
#include "tests/random_llama.h"

#define VOCAB 160
#define STEPS 6

static char root[] = "/tmp/mlxcel-packed-directory-XXXXXX";

typedef struct kind {
  const char *name, *config;
  mlx_packing_kind_t rounding;  // how codes are chosen: MLX_PACKED_MLX, or MLX_PACKED_AWQ for no act order
  int bits, group;
  void (*put)(folder_t *f, const matrix_t *m);
} kind_t;

static const kind_t kinds[] = {
    {"MLX, 4 bits, groups of 32", "{\"quantization\":{\"group_size\":32,\"bits\":4},", MLX_PACKED_MLX, 4, 32,
     put_mlx},
    {"MLX, 8 bits, groups of 32", "{\"quantization\":{\"group_size\":32,\"bits\":8},", MLX_PACKED_MLX, 8, 32,
     put_mlx},
    {"GPTQ",
     "{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":32,\"desc_act\":false},",
     MLX_PACKED_AWQ, 4, 32, put_gptq},
    {"AWQ", "{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32},",
     MLX_PACKED_AWQ, 4, 32, put_awq},
};

// Adds a tensor to both directories. GPTQ and AWQ leave the embedding unquantized.
static void put_weight(const kind_t *kind, const mlx_tensor_t *t, folder_t *packed, folder_t *dequantized) {
  static float values[MAX_ELEMENTS];
  char module[160];
  const bool embedding = strstr(t->name, "embed_tokens") != NULL;
  if (t->rank < 2 || (embedding && kind->rounding != MLX_PACKED_MLX)) {
    put(packed, t->name, t->dtype, t->dims[0], t->rank > 1 ? t->dims[1] : 0, t->data);
    put(dequantized, t->name, t->dtype, t->dims[0], t->rank > 1 ? t->dims[1] : 0, t->data);
    return;
  }
  snprintf(module, sizeof module, "%.*s", (int)(strlen(t->name) - strlen(".weight")), t->name);
  CHECK(t->dtype == MLX_F32 && t->size <= sizeof values);
  memcpy(values, t->data, t->size);
  const matrix_t m = {.module = module,
                      .values = values,
                      .rows = (int)t->dims[0],
                      .columns = (int)t->dims[1],
                      .bits = kind->bits,
                      .group = kind->group};
  quantize(&m, kind->rounding);
  kind->put(packed, &m);
  put(dequantized, t->name, MLX_F32, t->dims[0], t->dims[1], dequantized_values);
}

static void write_rest(const char *model, const folder_t *f, const char *start) {
  char path[300], *text;
  size_t length;
  bytes_t config = {0};
  snprintf(path, sizeof path, "%s/config.json", model);
  CHECK_OK(mlx_read_file(path, 1 << 20, &text, &length));
  mlx_text_printf(&config, "%s%s", start, text + 1);
  CHECK_OK(mlx_write_file(path_in(f, "config.json"), config.data, config.length));
  mlx_text_clear(&config);
  mlx_free(text);
  snprintf(path, sizeof path, "%s/tokenizer.json", model);
  CHECK_OK(mlx_copy_file(path, path_in(f, "tokenizer.json")));
}

// The logits after a prompt, and after STEPS more tokens: |forced|, or greedily generated ones if NULL.
static void run_model(const char *folder, mlx_compile_options_t options, const int32_t *forced, int32_t *ids,
                      float logits[2][VOCAB]) {
  mlx_engine_t *engine = open_compiled(folder, &options, NULL, 2);
  mlx_session_t *session;
  int32_t prompt[40];
  for (int i = 0; i < 40; ++i) prompt[i] = i * 37 % VOCAB;
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_OK(mlx_session_read(session, prompt, 40, &ids[0]));
  CHECK_OK(mlx_session_logits(session, logits[0], VOCAB));
  if (forced) CHECK_OK(mlx_session_read(session, forced, STEPS, &ids[STEPS]));
  if (!forced) CHECK_OK(mlx_session_steps(session, ids + 1, STEPS));
  CHECK_OK(mlx_session_logits(session, logits[1], VOCAB));
  if (options.weights == MLX_WEIGHTS_QUANTIZED) CHECK_TEXT(mlx_engine_info(engine).dtype, "quantized");
  mlx_session_free(session);
  mlx_engine_close(engine);
}

static void check_kind(const kind_t *kind, const char *path) {
  folder_t packed, dequantized;
  mlx_model_t *model;
  int32_t ids[STEPS + 1], expected_ids[STEPS + 1];
  float logits[2][VOCAB], expected[2][VOCAB];
  begin(&packed);
  begin(&dequantized);
  CHECK_OK(mlx_model_open(path, &model));
  for (size_t i = 0; i < model->weight_count; ++i) {
    put_weight(kind, mlx_source_tensor(model->source, model->weights[i].tensor.name, NULL), &packed,
               &dequantized);
  }
  mlx_model_close(model);
  write_tensors(&packed);
  write_tensors(&dequantized);
  write_rest(path, &packed, kind->config);
  write_rest(path, &dequantized, "{");
  run_model(
      packed.path,
      (mlx_compile_options_t){
          .target = "cpu", .context = 64, .weights = MLX_WEIGHTS_QUANTIZED, .kernels = MLX_KERNELS_REQUIRED},
      NULL, ids, logits);
  run_model(dequantized.path,
            (mlx_compile_options_t){.target = "cpu", .context = 64, .kernels = MLX_KERNELS_OFF}, ids,
            expected_ids, expected);
  for (int i = 0; i < 2; ++i) {
    const double error = distance(logits[i], expected[i], VOCAB);
    fprintf(stderr, "  %s, %s: logits within %.1e\n", kind->name, i ? "decode" : "prefill", error);
    CHECK(error < 2e-5);
  }
  CHECK_INT(ids[0], expected_ids[0]);
  CHECK_INT(ids[STEPS], expected_ids[STEPS]);
  end(&packed);
  end(&dequantized);
}

TEST(quantized_directories_match_dequantized_ones) {
  static const random_llama_t shape = {128, 160, 4, 2, 32, 2, VOCAB, true, 10000};
  char path[300];
  CHECK(mkdtemp(root));
  snprintf(path, sizeof path, "%s", random_llama_write(&shape, root, "model"));
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i) check_kind(&kinds[i], path);
  CHECK_OK(mlx_remove_tree(root));
}

TEST_MAIN(CASE(quantized_directories_match_dequantized_ones))
