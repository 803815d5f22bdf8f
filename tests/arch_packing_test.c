// Every architecture, quantized: a directory in the format of MLX, GPTQ or AWQ gives the same weights, to the
// bit, as a directory with the dequantized matrices. The MLX directory stores all experts of a layer in one
// tensor, as mlx-lm does.
//
// The matrices are those of the fixtures of tests/arch_test.c. MLXCEL_ARCH=NAME tests one fixture.
#include "compiler/weights.h"
#include "tests/packed_files.h"

#define FIXTURES MLXCEL_SOURCE_DIR "/tests/fixtures/"

static const struct {
  const char *name, *config;
  int group;
  void (*put)(folder_t *f, const matrix_t *m);
} kinds[] = {
    [MLX_PACKED_MLX] = {"MLX", "{\"quantization\":{\"group_size\":32,\"bits\":4},", 32, put_mlx},
    [MLX_PACKED_GPTQ] = {"GPTQ",
                         "{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":16,"
                         "\"desc_act\":true},",
                         16, put_gptq},
    [MLX_PACKED_AWQ] = {"AWQ",
                        "{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":16},",
                        16, put_awq},
};

static void put_plain(folder_t *f, const mlx_tensor_t *t) {
  const bool stacked = t->rank == 3;
  f->stack = stacked ? (int)t->dims[0] : 0;
  put(f, t->name, t->dtype, stacked ? t->dims[0] * t->dims[1] : t->dims[0],
      t->rank > 1 ? t->dims[t->rank - 1] : 0, t->data);
  f->stack = 0;
}

static void split_name(const char *name, char *module, size_t size) {
  snprintf(module, size, "%.*s", (int)(strlen(name) - strlen(".weight")), name);
}

// mlx-lm's name for all experts of a layer: "…mlp.experts.all.up_proj" is "…mlp.switch_mlp.up_proj".
// Mixtral's w1, w2 and w3 become gate_proj, down_proj and up_proj.
static void mlx_module(const char *name, char *module, size_t size) {
  static const char *const names[][2] = {
      {"w1.weight", "gate_proj"}, {"w2.weight", "down_proj"}, {"w3.weight", "up_proj"}};
  const char *mark = strstr(name, "experts.all."), *last = mark + strlen("experts.all.");
  char part[32];
  split_name(last, part, sizeof part);
  for (int i = 0; i < 3; ++i) {
    if (!strcmp(last, names[i][0])) snprintf(part, sizeof part, "%s", names[i][1]);
  }
  snprintf(module, size, "%.*sswitch_mlp.%s", (int)(mark - name), name, part);
}

// Quantizes a matrix [rows, columns] and adds it to |packed|. Leaves the result in |dequantized_values|.
static void put_quantized(mlx_packing_kind_t kind, const char *module, const float *values, int64_t rows,
                          int64_t columns, folder_t *packed) {
  const matrix_t m = {.module = module,
                      .values = values,
                      .rows = (int)rows,
                      .columns = (int)columns,
                      .bits = 4,
                      .group = kinds[kind].group};
  quantize(&m, kind);
  kinds[kind].put(packed, &m);
}

// Adds the experts of a layer: one tensor per expert to |dequantized|, one tensor for all to |packed|.
// Returns false if they stay unquantized because MLX's group size does not divide the columns.
static bool put_experts(const mlx_weight_t *weight, folder_t *packed, folder_t *dequantized) {
  static float values[MAX_ELEMENTS];
  char module[160], name[200];
  const int64_t count = weight->tensor.dims[0], rows = weight->tensor.dims[1],
                columns = weight->tensor.dims[2], each = rows * columns;
  const bool quantized = columns % 32 == 0;
  CHECK(count * each <= MAX_ELEMENTS);
  for (int64_t i = 0; i < count; ++i) {
    mlx_dtype_info(weight->tensor.dtype)->to_f32(weight->parts[i]->data, (size_t)each, values + i * each);
  }
  mlx_module(weight->name, module, sizeof module);
  snprintf(name, sizeof name, "%s.weight", module);
  packed->stack = (int)count;
  if (quantized) {
    put_quantized(MLX_PACKED_MLX, module, values, count * rows, columns, packed);
  } else {
    put(packed, name, MLX_F32, count * rows, columns, values);
  }
  packed->stack = 0;
  for (int64_t i = 0; i < count; ++i)
    put(dequantized, weight->parts[i]->name, MLX_F32, rows, columns,
        (quantized ? dequantized_values : values) + i * each);
  return quantized;
}

// Adds one matrix. Returns false if it stays unquantized because its shape does not fit the format.
static bool put_matrix(mlx_packing_kind_t kind, const mlx_tensor_t *t, folder_t *packed,
                       folder_t *dequantized) {
  static float values[MAX_ELEMENTS];
  char module[160];
  const int64_t rows = t->dims[0], columns = t->rank == 2 ? t->dims[1] : 0;
  if (!columns || columns % kinds[kind].group || rows % 8 || rows * columns > MAX_ELEMENTS) {
    put_plain(packed, t);
    put_plain(dequantized, t);
    return false;
  }
  mlx_dtype_info(t->dtype)->to_f32(t->data, (size_t)(rows * columns), values);
  split_name(t->name, module, sizeof module);
  put_quantized(kind, module, values, rows, columns, packed);
  put(dequantized, t->name, MLX_F32, rows, columns, dequantized_values);
  return true;
}

// Adds one weight. Returns whether any of its matrices was quantized.
static bool put_weight(mlx_packing_kind_t kind, const mlx_model_t *model, const mlx_weight_t *weight,
                       folder_t *packed, folder_t *dequantized) {
  bool any = false;
  if (weight->fused_part == MLX_FUSED_SECOND_HALF || weight->fused_part == MLX_FUSED_ODD_ROWS)
    return false;  // the weight that is the first half or the even rows adds the tensor
  if (weight->parts && weight->tensor.rank == 3 && kind == MLX_PACKED_MLX)
    return put_experts(weight, packed, dequantized);
  for (int64_t i = 0; weight->parts && i < weight->tensor.dims[0]; ++i)
    any |= put_matrix(kind, weight->parts[i], packed, dequantized);
  if (weight->parts) return any;
  const mlx_tensor_t *t = mlx_source_tensor(model->source, weight->tensor.name, NULL);
  if (weight->order == MLX_ROWS_AS_STORED) return put_matrix(kind, t, packed, dequantized);
  put_plain(packed, t);
  put_plain(dequantized, t);
  return false;
}

static void write_config(const folder_t *f, const char *name, const char *start) {
  char path[256], *text;
  size_t length;
  bytes_t config = {0};
  snprintf(path, sizeof path, FIXTURES "%s/config.json", name);
  CHECK_OK(mlx_read_file(path, 1 << 20, &text, &length));
  mlx_text_printf(&config, "%s%s", start, text + 1);
  CHECK_OK(mlx_write_file(path_in(f, "config.json"), config.data, config.length));
  mlx_text_clear(&config);
  mlx_free(text);
}

static void check_same_weights(const folder_t *packed, const folder_t *dequantized) {
  const folder_t *folders[] = {packed, dequantized};
  char *bytes[2];
  size_t lengths[2];
  for (int i = 0; i < 2; ++i) {
    mlx_model_t *model;
    CHECK_OK(mlx_model_open(folders[i]->path, &model));
    CHECK_OK(
        mlx_weights_write(model, (mlx_storage_t){.dtype = MLX_F32}, path_in(folders[i], "w.irpa"), NULL));
    CHECK_OK(mlx_read_file(path_in(folders[i], "w.irpa"), 1 << 24, &bytes[i], &lengths[i]));
    mlx_model_close(model);
  }
  CHECK_INT(lengths[0], lengths[1]);
  CHECK(!memcmp(bytes[0], bytes[1], lengths[0]));
  for (int i = 0; i < 2; ++i) mlx_free(bytes[i]);
}

static size_t check_kind(mlx_packing_kind_t kind, const char *name, const mlx_model_t *model) {
  folder_t packed, dequantized;
  size_t count = 0;
  begin(&packed);
  begin(&dequantized);
  for (size_t i = 0; i < model->weight_count; ++i)
    count += put_weight(kind, model, &model->weights[i], &packed, &dequantized);
  write_tensors(&packed);
  write_tensors(&dequantized);
  write_config(&packed, name, kinds[kind].config);
  write_config(&dequantized, name, "{");
  check_same_weights(&packed, &dequantized);
  end(&packed);
  end(&dequantized);
  return count;
}

static mlx_status_t check_fixture(void *user, const char *name) {
  size_t *checked = user, counts[MLX_PACKING_COUNT];
  char path[256];
  const char *only = getenv("MLXCEL_ARCH");
  mlx_model_t *model;
  snprintf(path, sizeof path, FIXTURES "%s/model.safetensors", name);
  if (!mlx_is_file(path) || (only && strcmp(only, name))) return NULL;
  snprintf(path, sizeof path, FIXTURES "%s", name);
  CHECK_OK(mlx_model_open(path, &model));
  for (size_t i = 0; i < model->weight_count; ++i) {
    if (!model->weights[i].packing.kind) continue;
    mlx_model_close(model);  // already quantized
    return NULL;
  }
  for (int kind = MLX_PACKED_MLX; kind <= MLX_PACKED_AWQ; ++kind)
    counts[kind] = check_kind((mlx_packing_kind_t)kind, name, model);
  fprintf(stderr, "  %-18s quantized matrices: MLX %zu, GPTQ %zu, AWQ %zu of %zu weights, all equal\n", name,
          counts[MLX_PACKED_MLX], counts[MLX_PACKED_GPTQ], counts[MLX_PACKED_AWQ], model->weight_count);
  mlx_model_close(model);
  ++*checked;
  return NULL;
}

TEST(every_architecture_equals_its_dequantized_weights) {
  size_t checked = 0;
  CHECK_OK(mlx_list_dir(FIXTURES, check_fixture, &checked));
  CHECK(checked > 0);
}

// One unquantized expert among quantized ones must not be read as codes.
TEST(experts_with_mixed_types_are_refused_by_name) {
  folder_t packed, unused;
  mlx_model_t *model;
  CHECK_OK(mlx_model_open(FIXTURES "qwen3_moe", &model));
  begin(&packed);
  begin(&unused);
  for (size_t i = 0; i < model->weight_count; ++i) {
    const mlx_weight_t *weight = &model->weights[i];
    if (!weight->parts) put_plain(&packed, mlx_source_tensor(model->source, weight->tensor.name, NULL));
    for (int64_t e = 0; weight->parts && e < weight->tensor.dims[0]; ++e) {
      if (e == 1) {
        put_plain(&packed, weight->parts[e]);
      } else {
        put_matrix(MLX_PACKED_GPTQ, weight->parts[e], &packed, &unused);
      }
    }
  }
  mlx_model_close(model);
  write_tensors(&packed);
  write_config(&packed, "qwen3_moe", kinds[MLX_PACKED_GPTQ].config);
  CHECK_ERROR(mlx_model_open(packed.path, &model), MLX_UNSUPPORTED,
              "tensor 'model.layers.0.mlp.experts.1.gate_proj.weight' has a different type from the first "
              "tensor of its stack");
  end(&packed);
  end(&unused);
}

TEST_MAIN(CASE(every_architecture_equals_its_dequantized_weights),
          CASE(experts_with_mixed_types_are_refused_by_name))
