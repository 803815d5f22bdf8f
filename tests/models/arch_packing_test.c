// Every architecture, quantized: a directory in the format of MLX, GPTQ or AWQ gives the same weights, to the
// bit, as a directory with the dequantized matrices. The MLX directory stores all experts of a layer in one
// tensor, as mlx-lm does.
//
// The matrices are those of the fixtures of tests/models/arch_test.c. MLXCEL_ARCH=NAME tests one fixture.
#include "compiler/weights.h"
#include "tests/support/listed.h"
#include "tests/support/packed_model.h"

#define FIXTURES MLXCEL_SOURCE_DIR "/tests/fixtures/"

static const packed_kind_t kinds[] = {
    {"MLX", MLX_PACKED_MLX, 4, 32, MLX_F16, true, ACT_ORDER_NONE, false, NULL},
    {"GPTQ", MLX_PACKED_GPTQ, 4, 16, MLX_F16, true, ACT_ORDER, false, NULL},
    {"AWQ", MLX_PACKED_AWQ, 4, 16, MLX_F16, true, ACT_ORDER_NONE, false, NULL},
};
#define KINDS (sizeof kinds / sizeof *kinds)

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

static size_t check_kind(const packed_kind_t *kind, const char *path, const mlx_model_t *model) {
  folder_t packed, dequantized;
  const size_t count = write_packed_model(kind, path, model, &packed, &dequantized);
  check_same_weights(&packed, &dequantized);
  end(&packed);
  end(&dequantized);
  return count;
}

static mlx_status_t check_fixture(void *user, const char *name) {
  size_t *checked = user, counts[KINDS];
  char path[256];
  const char *only = getenv("MLXCEL_ARCH");
  mlx_model_t *model;
  snprintf(path, sizeof path, FIXTURES "%s/model.safetensors", name);
  if (!mlx_is_file(path) || (only && strcmp(only, name))) return NULL;
  snprintf(path, sizeof path, FIXTURES "%s", name);
  CHECK_OK(mlx_model_open(path, &model));
  ++*checked;
  for (size_t i = 0; i < model->weight_count; ++i) {
    if (!model->weights[i].packing.kind) continue;
    mlx_model_close(model);  // already quantized
    return NULL;
  }
  for (size_t kind = 0; kind < KINDS; ++kind) counts[kind] = check_kind(&kinds[kind], path, model);
  fprintf(stderr, "  %-18s quantized matrices: MLX %zu, GPTQ %zu, AWQ %zu of %zu weights, all equal\n", name,
          counts[0], counts[1], counts[2], model->weight_count);
  mlx_model_close(model);
  return NULL;
}

TEST(every_architecture_equals_its_dequantized_weights) {
  size_t checked = 0;
  CHECK_OK(mlx_list_dir(FIXTURES, check_fixture, &checked));
  check_compared(checked, listed_files("fixtures/", "/model.safetensors"));
}

// One unquantized expert among quantized ones must not be read as codes.
TEST(experts_with_mixed_types_are_refused_by_name) {
  packed_model_t to = {.kind = &kinds[1]};
  mlx_model_t *model;
  CHECK_OK(mlx_model_open(FIXTURES "qwen3_moe", &model));
  begin(&to.packed);
  for (size_t i = 0; i < model->weight_count; ++i) {
    const mlx_weight_t *weight = &model->weights[i];
    if (!weight->parts) put_plain(&to, mlx_source_tensor(model->source, weight->tensor.name, NULL));
    for (int64_t e = 0; weight->parts && e < weight->tensor.dims[0]; ++e) {
      if (e == 1) {
        put_plain(&to, weight->parts[e]);
      } else {
        put_matrix(&to, weight->parts[e]);
      }
    }
  }
  mlx_model_close(model);
  write_tensors(&to.packed);
  write_packed_config(FIXTURES "qwen3_moe", to.kind, &to.packed);
  CHECK_ERROR(mlx_model_open(to.packed.path, &model), MLX_UNSUPPORTED,
              "tensor 'model.layers.0.mlp.experts.1.gate_proj.weight' has a different type from the first "
              "tensor of its stack");
  end(&to.packed);
}

// The tensors of |model| as mlx-lm writes them: convolutions as [channels, taps, 1] and whole norm weights.
static void write_as_mlx(const mlx_model_t *model, const char *path, folder_t *out) {
  packed_model_t to = {0};
  begin(&to.packed);
  for (size_t i = 0; i < mlx_source_tensor_count(model->source); ++i) {
    const mlx_tensor_t *t = mlx_source_tensor_at(model->source, i);
    float values[64];
    if (strstr(t->name, ".conv1d.")) {
      to.packed.stack = (int)t->dims[0];
      put(&to.packed, t->name, t->dtype, t->dims[0] * t->dims[2], 1, t->data);
      to.packed.stack = 0;
    } else if (strstr(t->name, "norm.weight") && !strstr(t->name, ".linear_attn.")) {
      CHECK(t->dims[0] <= 64);
      mlx_dtype_info(t->dtype)->to_f32(t->data, (size_t)t->dims[0], values);
      for (int64_t k = 0; k < t->dims[0]; ++k) values[k] += 1;
      put(&to.packed, t->name, MLX_F32, t->dims[0], 0, values);
    } else {
      put_plain(&to, t);
    }
  }
  write_tensors(&to.packed);
  write_packed_config(path, NULL, &to.packed);
  *out = to.packed;
}

TEST(norm_weights_of_qwen3_5_in_mlx_directories_are_whole) {
  folder_t as_mlx, as_stored;
  mlx_model_t *model;
  CHECK_OK(mlx_model_open(FIXTURES "qwen3_5", &model));
  write_as_mlx(model, FIXTURES "qwen3_5", &as_mlx);
  begin(&as_stored);
  for (size_t i = 0; i < mlx_source_tensor_count(model->source); ++i) {
    packed_model_t to = {.packed = as_stored};
    put_plain(&to, mlx_source_tensor_at(model->source, i));
    as_stored = to.packed;
  }
  write_tensors(&as_stored);
  write_packed_config(FIXTURES "qwen3_5", NULL, &as_stored);
  mlx_model_close(model);
  check_same_weights(&as_mlx, &as_stored);
  end(&as_mlx);
  end(&as_stored);
}

TEST_MAIN(CASE(every_architecture_equals_its_dequantized_weights),
          CASE(norm_weights_of_qwen3_5_in_mlx_directories_are_whole),
          CASE(experts_with_mixed_types_are_refused_by_name))
