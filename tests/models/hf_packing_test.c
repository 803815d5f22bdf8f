// Quantized Hugging Face directories: which configs open, which are refused with which message, and that a
// quantized model generates the same tokens as the same model with dequantized weights.
#include <math.h>

#include "compiler/weights.h"
#include "models/model.h"
#include "tests/support/golden.h"
#include "tests/support/packed_files.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define GOLDENS MLXCEL_SOURCE_DIR "/tests/goldens/tiny-llama.json"

// ----------------------------------------------------------------------------------------------------------
// One matrix "m.weight" with 8 rows and 64 columns

#define ROWS 8
#define COLUMNS 64

static mlx_status_t read_packing(folder_t *f, const char *quantization, mlx_packing_t *out) {
  char config[600];
  mlx_source_t *source;
  snprintf(config, sizeof config, "{\"model_type\":\"llama\",%s}", quantization);
  write_text(f, "config.json", config);
  write_tensors(f);
  MLX_TRY(mlx_source_open(f->path, &source));
  mlx_status_t status = mlx_source_packing(source, "m.weight", 0, ROWS, COLUMNS, out);
  mlx_source_close(source);
  return status;
}

typedef void (*put_parts_t)(folder_t *f);

static void check_refused(put_parts_t put_parts, const char *quantization, mlx_code_t code,
                          const char *part) {
  folder_t f;
  mlx_packing_t packing;
  begin(&f);
  put_parts(&f);
  CHECK_ERROR(read_packing(&f, quantization, &packing), code, part);
  end(&f);
}

static void check_kind(put_parts_t put_parts, const char *quantization, mlx_packing_kind_t kind, int bits,
                       int64_t group, bool minus_one) {
  folder_t f;
  mlx_packing_t packing;
  begin(&f);
  put_parts(&f);
  CHECK_OK(read_packing(&f, quantization, &packing));
  CHECK_INT(packing.kind, kind);
  CHECK_INT(packing.bits, bits);
  CHECK_INT(packing.group, group);
  CHECK(packing.zeros_minus_one == minus_one);
  end(&f);
}

static void plain(folder_t *f) { put(f, "m.weight", MLX_F16, ROWS, COLUMNS, NULL); }

static void mlx_of(folder_t *f, int bits, int group) {
  put(f, "m.weight", MLX_U32, ROWS, COLUMNS * bits / 32, NULL);
  put(f, "m.scales", MLX_BF16, ROWS, COLUMNS / group, NULL);
  put(f, "m.biases", MLX_BF16, ROWS, COLUMNS / group, NULL);
}
static void mlx_4_64(folder_t *f) { mlx_of(f, 4, 64); }
static void mlx_6_32(folder_t *f) { mlx_of(f, 6, 32); }

#define MLX(rest) "\"quantization\":{" rest "}"
#define MLX_4_64 "\"group_size\":64,\"bits\":4"

TEST(mlx_fields_and_overrides_are_read) {
  check_kind(mlx_4_64, MLX(MLX_4_64), MLX_PACKED_MLX, 4, 64, false);
  check_kind(mlx_4_64,
             MLX(MLX_4_64 ",\"mode\":\"affine\",\"other\":false") ",\"quantization_config\":{\"bits\":4}",
             MLX_PACKED_MLX, 4, 64, false);
  check_kind(mlx_6_32, MLX(MLX_4_64 ",\"m\":{\"group_size\":32,\"bits\":6}"), MLX_PACKED_MLX, 6, 32, false);
  check_kind(mlx_4_64, MLX(MLX_4_64 ",\"m\":true"), MLX_PACKED_MLX, 4, 64, false);
  check_kind(plain, MLX(MLX_4_64), MLX_NOT_PACKED, 0, 0, false);
  check_kind(plain, MLX(MLX_4_64 ",\"m\":false"), MLX_NOT_PACKED, 0, 0, false);
  check_kind(plain, "\"quantization\":null,\"quantization_config\":null", MLX_NOT_PACKED, 0, 0, false);
}

TEST(unsupported_mlx_values_are_refused_by_field) {
  check_refused(mlx_4_64, MLX("\"group_size\":64,\"bits\":5"), MLX_UNSUPPORTED,
                "config.json: field 'quantization.bits' is 5; 2, 3, 4, 6 and 8 are supported");
  check_refused(mlx_4_64, MLX("\"group_size\":64,\"bits\":32"), MLX_UNSUPPORTED,
                "field 'quantization.bits' is 32");
  check_refused(mlx_4_64, MLX("\"group_size\":16,\"bits\":4"), MLX_UNSUPPORTED,
                "field 'quantization.group_size' is 16; 32, 64 and 128 are supported");
  check_refused(mlx_4_64, MLX("\"group_size\":128,\"bits\":4"), MLX_INVALID_INPUT,
                "is 128, which does not divide the 64 columns of 'm'");
  check_refused(mlx_4_64, MLX("\"bits\":4"), MLX_INVALID_INPUT, "field 'quantization.group_size' is missing");
  check_refused(mlx_4_64, MLX("\"group_size\":64,\"bits\":\"4\""), MLX_INVALID_INPUT,
                "field 'quantization.bits' must be an integer");
  check_refused(mlx_4_64, MLX(MLX_4_64 ",\"mode\":\"mxfp4\""), MLX_UNSUPPORTED,
                "field 'quantization.mode' is 'mxfp4'; only affine is supported");
  check_refused(mlx_4_64, MLX(MLX_4_64 ",\"m\":{\"bits\":7,\"group_size\":64}"), MLX_UNSUPPORTED,
                "field 'quantization.m.bits' is 7");
  check_refused(mlx_4_64, MLX(MLX_4_64 ",\"m\":{\"bits\":4}"), MLX_INVALID_INPUT,
                "field 'quantization.m.group_size' is missing");
  check_refused(mlx_4_64, MLX(MLX_4_64 ",\"rotate\":3"), MLX_UNSUPPORTED,
                "field 'quantization.rotate' is not supported");
  check_refused(mlx_4_64, "\"quantization\":4", MLX_INVALID_INPUT, "field 'quantization' must be an object");
}

static void mlx_without_scales(folder_t *f) { put(f, "m.weight", MLX_U32, ROWS, COLUMNS / 8, NULL); }
static void mlx_without_biases(folder_t *f) {
  mlx_without_scales(f);
  put(f, "m.scales", MLX_F16, ROWS, 1, NULL);
}
static void mlx_with_long_biases(folder_t *f) {
  mlx_without_biases(f);
  put(f, "m.biases", MLX_F16, ROWS, 2, NULL);
}
static void mlx_with_flat_scales(folder_t *f) {
  mlx_without_scales(f);
  put(f, "m.scales", MLX_F16, ROWS, 0, NULL);
  put(f, "m.biases", MLX_F16, ROWS, 1, NULL);
}
static void mlx_with_integer_scales(folder_t *f) {
  mlx_without_scales(f);
  put(f, "m.scales", MLX_I32, ROWS, 1, NULL);
  put(f, "m.biases", MLX_F16, ROWS, 1, NULL);
}

TEST(mismatched_mlx_tensors_are_refused_by_file_and_name) {
  check_refused(mlx_without_scales, MLX(MLX_4_64), MLX_INVALID_INPUT, ": tensor 'm.scales' is missing");
  check_refused(mlx_without_biases, MLX(MLX_4_64), MLX_INVALID_INPUT, ": tensor 'm.biases' is missing");
  check_refused(mlx_with_long_biases, MLX(MLX_4_64), MLX_INVALID_INPUT,
                "model.safetensors: tensor 'm.biases' has shape [8, 2]; expected [8, 1]");
  check_refused(mlx_with_flat_scales, MLX(MLX_4_64), MLX_INVALID_INPUT,
                "model.safetensors: tensor 'm.scales' has shape [8]; expected [8, 1]");
  check_refused(
      mlx_with_integer_scales, MLX(MLX_4_64), MLX_UNSUPPORTED,
      "model.safetensors: tensor 'm.scales' has type I32; this quantization format needs F32, F16 or BF16");
  check_refused(mlx_6_32, MLX(MLX_4_64), MLX_INVALID_INPUT,
                "tensor 'm.weight' has shape [8, 12]; expected [8, 8]");
  check_refused(plain, MLX(MLX_4_64 ",\"m\":true"), MLX_UNSUPPORTED,
                "tensor 'm.weight' has type F16; this quantization format needs U32");
}

static void gptq_of(folder_t *f, int64_t group, const int32_t *groups) {
  put(f, "m.qweight", MLX_I32, COLUMNS / 8, ROWS, NULL);
  put(f, "m.scales", MLX_F16, COLUMNS / group, ROWS, NULL);
  put(f, "m.qzeros", MLX_I32, COLUMNS / group, ROWS / 8, NULL);
  if (groups) put(f, "m.g_idx", MLX_I32, COLUMNS, 0, groups);
}
static void gptq(folder_t *f) { gptq_of(f, 32, NULL); }
static void gptq_whole(folder_t *f) { gptq_of(f, COLUMNS, (int32_t[COLUMNS]){0}); }
static void gptq_index_outside(folder_t *f) { gptq_of(f, 32, (int32_t[COLUMNS]){[0] = 1, [9] = 2}); }
static void gptq_index_negative(folder_t *f) { gptq_of(f, 32, (int32_t[COLUMNS]){[63] = -1}); }
static void gptq_without_zeros(folder_t *f) {
  put(f, "m.qweight", MLX_I32, COLUMNS / 8, ROWS, NULL);
  put(f, "m.scales", MLX_F16, 2, ROWS, NULL);
}
static void gptq_with_short_index(folder_t *f) {
  gptq(f);
  put(f, "m.g_idx", MLX_I32, COLUMNS - 1, 0, NULL);
}
static void awq(folder_t *f) {
  put(f, "m.qweight", MLX_I32, COLUMNS, ROWS / 8, NULL);
  put(f, "m.scales", MLX_F16, 2, ROWS, NULL);
  put(f, "m.qzeros", MLX_I32, 2, ROWS / 8, NULL);
}

#define HF(method, rest) "\"quantization_config\":{\"quant_method\":\"" method "\"" rest "}"
#define HF_4_32 ",\"bits\":4,\"group_size\":32"

TEST(gptq_and_awq_fields_are_read) {
  check_kind(gptq, HF("gptq", HF_4_32), MLX_PACKED_GPTQ, 4, 32, true);
  check_kind(
      gptq,
      HF("gptq", HF_4_32 ",\"checkpoint_format\":\"gptq\",\"sym\":true,\"desc_act\":false,\"dynamic\":{}"),
      MLX_PACKED_GPTQ, 4, 32, true);
  check_kind(gptq, HF("gptq", HF_4_32 ",\"checkpoint_format\":\"gptq_v2\",\"pack_dtype\":\"int32\""),
             MLX_PACKED_GPTQ, 4, 32, false);
  check_kind(gptq, HF("gptq", HF_4_32 ",\"format\":\"gptq_v2\""), MLX_PACKED_GPTQ, 4, 32, false);
  check_kind(gptq_whole, HF("gptq", ",\"bits\":4,\"group_size\":-1"), MLX_PACKED_GPTQ, 4, COLUMNS, true);
  check_kind(plain, HF("gptq", HF_4_32), MLX_NOT_PACKED, 0, 0, false);
  check_kind(awq, HF("awq", HF_4_32 ",\"version\":\"GEMM\",\"zero_point\":true"), MLX_PACKED_AWQ, 4, 32,
             false);
}

TEST(unsupported_gptq_and_awq_values_are_refused_by_field) {
  check_refused(gptq, HF("gptq", ",\"bits\":3,\"group_size\":32"), MLX_UNSUPPORTED,
                "field 'quantization_config.bits' is 3; only 4 is supported");
  check_refused(gptq, HF("gptq", ",\"bits\":4,\"group_size\":0"), MLX_UNSUPPORTED,
                "field 'quantization_config.group_size' is 0; -1 and multiples of 8");
  check_refused(gptq, HF("gptq", ",\"bits\":4,\"group_size\":48"), MLX_INVALID_INPUT,
                "is 48, which does not divide the 64 columns of 'm'");
  check_refused(gptq, HF("gptq", HF_4_32 ",\"checkpoint_format\":\"marlin\""), MLX_UNSUPPORTED,
                "field 'quantization_config.checkpoint_format' is 'marlin'; only gptq or gptq_v2");
  check_refused(gptq, HF("gptq", HF_4_32 ",\"is_marlin_format\":true"), MLX_UNSUPPORTED,
                "field 'quantization_config.is_marlin_format' is true");
  check_refused(gptq, HF("gptq", HF_4_32 ",\"pack_dtype\":\"int64\""), MLX_UNSUPPORTED,
                "field 'quantization_config.pack_dtype' is 'int64'");
  check_refused(gptq, HF("gptq", HF_4_32 ",\"dynamic\":{\"-:m\":{}}"), MLX_UNSUPPORTED,
                "field 'quantization_config.dynamic' is given");
  check_refused(awq, HF("awq", HF_4_32 ",\"version\":\"gemv\""), MLX_UNSUPPORTED,
                "field 'quantization_config.version' is 'gemv'; only gemm is supported");
  check_refused(awq, HF("awq", HF_4_32 ",\"zero_point\":false"), MLX_UNSUPPORTED,
                "field 'quantization_config.zero_point' is false");
  check_refused(plain, HF("fp8", ""), MLX_UNSUPPORTED,
                "field 'quantization_config.quant_method' is 'fp8'; gptq, awq and mxfp4 are supported");
  check_refused(plain, "\"quantization_config\":{}", MLX_INVALID_INPUT,
                "field 'quantization_config.quant_method' is missing");
}

TEST(mismatched_gptq_and_awq_tensors_are_refused_by_file_and_name) {
  check_refused(gptq_without_zeros, HF("gptq", HF_4_32), MLX_INVALID_INPUT, ": tensor 'm.qzeros' is missing");
  check_refused(gptq_with_short_index, HF("gptq", HF_4_32), MLX_INVALID_INPUT,
                "model.safetensors: tensor 'm.g_idx' has shape [63]; expected [64]");
  check_refused(gptq_index_outside, HF("gptq", HF_4_32), MLX_INVALID_INPUT,
                "model.safetensors: tensor 'm.g_idx': element 9 is 2; there are 2 groups");
  check_refused(gptq_index_negative, HF("gptq", HF_4_32), MLX_INVALID_INPUT,
                "tensor 'm.g_idx': element 63 is -1; there are 2 groups");
  check_refused(awq, HF("gptq", HF_4_32), MLX_INVALID_INPUT,
                "tensor 'm.qweight' has shape [64, 1]; expected [8, 8]");
  check_refused(gptq, HF("awq", HF_4_32), MLX_INVALID_INPUT,
                "tensor 'm.qweight' has shape [8, 8]; expected [64, 1]");
}

// ----------------------------------------------------------------------------------------------------------
// Experts "m" as MXFP4: 2 experts with 8 rows and 64 columns

static void put_zeros_of(folder_t *f, const char *name, mlx_dtype_t dtype, const char *shape,
                         size_t elements) {
  const size_t start = f->data.length, size = elements * mlx_dtype_info(dtype)->block_bytes;
  mlx_text_printf(&f->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                  start ? "," : "{", name, mlx_dtype_info(dtype)->safetensors, shape, start, start + size);
  for (size_t i = 0; i < size; ++i) put_uint(&f->data, 0, 1);
}

static void mxfp4_blocks(folder_t *f) { put_zeros_of(f, "m_blocks", MLX_U8, "2,8,2,16", 512); }
static void mxfp4(folder_t *f) {
  mxfp4_blocks(f);
  put_zeros_of(f, "m_scales", MLX_U8, "2,8,2", 32);
}
static void mxfp4_with_short_scales(folder_t *f) {
  mxfp4_blocks(f);
  put_zeros_of(f, "m_scales", MLX_U8, "2,8,1", 16);
}
static void mxfp4_with_flat_blocks(folder_t *f) {
  put_zeros_of(f, "m_blocks", MLX_U8, "2,8,32", 512);
  put_zeros_of(f, "m_scales", MLX_U8, "2,8,2", 32);
}
static void mxfp4_with_float_scales(folder_t *f) {
  mxfp4_blocks(f);
  put_zeros_of(f, "m_scales", MLX_F32, "2,8,2", 32);
}

static mlx_status_t read_experts(put_parts_t put_parts, const char *quantization, int64_t columns,
                                 mlx_packing_t *out) {
  folder_t f;
  char config[200];
  mlx_source_t *source;
  begin(&f);
  put_parts(&f);
  snprintf(config, sizeof config, "{\"model_type\":\"gpt_oss\",%s}", quantization);
  write_text(&f, "config.json", config);
  write_tensors(&f);
  CHECK_OK(mlx_source_open(f.path, &source));
  mlx_status_t status = mlx_source_packing(source, "m", 2, 8, columns, out);
  mlx_source_close(source);
  end(&f);
  return status;
}

TEST(mxfp4_experts_are_found_and_mismatches_are_refused_by_name) {
  mlx_packing_t p;
  CHECK_OK(read_experts(mxfp4, HF("mxfp4", ""), COLUMNS, &p));
  CHECK(p.kind == MLX_PACKED_MXFP4 && p.stack == 2 && p.rows == 16 && p.columns == COLUMNS && p.group == 32);
  CHECK_OK(read_experts(plain, HF("mxfp4", ""), COLUMNS, &p));
  CHECK_INT(p.kind, MLX_NOT_PACKED);
  check_kind(mxfp4, HF("mxfp4", ""), MLX_NOT_PACKED, 0, 0, false);  // MXFP4 applies to experts only
  CHECK_ERROR(read_experts(mxfp4_blocks, HF("mxfp4", ""), COLUMNS, &p), MLX_INVALID_INPUT,
              ": tensor 'm_scales' is missing");
  CHECK_ERROR(read_experts(mxfp4_with_short_scales, HF("mxfp4", ""), COLUMNS, &p), MLX_INVALID_INPUT,
              "model.safetensors: tensor 'm_scales' has shape [2, 8, 1]; expected [2, 8, 2]");
  CHECK_ERROR(read_experts(mxfp4_with_flat_blocks, HF("mxfp4", ""), COLUMNS, &p), MLX_INVALID_INPUT,
              "tensor 'm_blocks' has shape [2, 8, 32]; expected [2, 8, 2, 16]");
  CHECK_ERROR(read_experts(mxfp4_with_float_scales, HF("mxfp4", ""), COLUMNS, &p), MLX_UNSUPPORTED,
              "tensor 'm_scales' has type F32; this quantization format needs U8");
  CHECK_ERROR(read_experts(mxfp4, HF("mxfp4", ""), 48, &p), MLX_INVALID_INPUT,
              "config.json: 'm' has 48 columns; MXFP4 needs a multiple of 32");
  CHECK_ERROR(read_experts(mxfp4, HF("fp8", ""), COLUMNS, &p), MLX_UNSUPPORTED,
              "field 'quantization_config.quant_method' is 'fp8'");
}

// ----------------------------------------------------------------------------------------------------------
// The tiny model quantized, and the same model with its dequantized weights as f32

#define LEFT_PLAIN "model.layers.0.self_attn.o_proj"
#define WITH_8_BITS "model.layers.1.mlp.down_proj"

// The config of each kind. MLX's leaves one matrix unquantized and stores another in 8 bits.
static const struct {
  const char *config;
  int group;
  void (*put)(folder_t *f, const matrix_t *m);
} kinds[] = {
    [MLX_PACKED_MLX] = {"{\"quantization\":{\"group_size\":32,\"bits\":4,\"" LEFT_PLAIN
                        "\":false,\"" WITH_8_BITS "\":{\"group_size\":64,\"bits\":8}},",
                        32, put_mlx},
    [MLX_PACKED_GPTQ] = {"{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":16,"
                         "\"desc_act\":true},",
                         16, put_gptq},
    [MLX_PACKED_AWQ] = {"{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":16,"
                        "\"version\":\"gemm\",\"zero_point\":true},",
                        16, put_awq},
};

// GPTQ and AWQ leave the embedding and the head unquantized.
static bool is_unquantized(mlx_packing_kind_t kind, const mlx_weight_t *weight) {
  if (weight->tensor.rank < 2) return true;
  if (kind == MLX_PACKED_MLX) return !strcmp(weight->name, LEFT_PLAIN ".weight");
  return strstr(weight->name, "embed") || strstr(weight->name, "lm_head");
}

static void put_both(mlx_packing_kind_t kind, const mlx_weight_t *weight, folder_t *packed,
                     folder_t *dequantized) {
  const mlx_tensor_t *t = &weight->tensor;
  const int64_t columns = t->rank > 1 ? t->dims[1] : 0;
  char module[128];
  CHECK(t->dtype == MLX_F32);
  if (is_unquantized(kind, weight)) {
    put(packed, weight->name, MLX_F32, t->dims[0], columns, t->data);
    put(dequantized, weight->name, MLX_F32, t->dims[0], columns, t->data);
    return;
  }
  snprintf(module, sizeof module, "%.*s", (int)(strlen(weight->name) - strlen(".weight")), weight->name);
  matrix_t m = {.module = module,
                .values = (const float *)(const void *)t->data,
                .rows = (int)t->dims[0],
                .columns = (int)columns,
                .bits = 4,
                .group = kinds[kind].group,
                .scales = MLX_F16,
                .act_order = kind == MLX_PACKED_GPTQ};
  if (kind == MLX_PACKED_MLX && !strcmp(module, WITH_8_BITS)) m.bits = 8, m.group = 64;
  quantize(&m, kind);
  kinds[kind].put(packed, &m);
  put(dequantized, weight->name, MLX_F32, m.rows, m.columns, dequantized_values);
}

static void copy_rest(const folder_t *f, const char *config_start) {
  char *text;
  size_t length;
  bytes_t config = {0};
  CHECK_OK(mlx_read_file(TINY "/tokenizer.json", 1 << 20, &text, &length));
  CHECK_OK(mlx_write_file(path_in(f, "tokenizer.json"), text, length));
  mlx_free(text);
  CHECK_OK(mlx_read_file(TINY "/config.json", 1 << 20, &text, &length));
  mlx_text_printf(&config, "%s%s", config_start, text + 1);
  CHECK_OK(mlx_write_file(path_in(f, "config.json"), config.data, config.length));
  mlx_text_clear(&config);
  mlx_free(text);
}

static void write_pair(mlx_packing_kind_t kind, const char *extra, folder_t *packed, folder_t *dequantized) {
  mlx_model_t *model;
  begin(packed);
  begin(dequantized);
  CHECK_OK(mlx_model_open(TINY, &model));
  for (size_t i = 0; i < model->weight_count; ++i) put_both(kind, &model->weights[i], packed, dequantized);
  mlx_model_close(model);
  if (extra) put(packed, extra, MLX_F16, 32, 1, NULL);
  write_tensors(packed);
  write_tensors(dequantized);
  copy_rest(packed, kinds[kind].config);
  copy_rest(dequantized, "{");
}

// Generates from |prompt|; *|out_json| is the output of --json.
static void run_model(const folder_t *f, const char *prompt, command_t *run, mlx_json_t *out_json) {
  RUN(run, "run", "--raw", "--temp", "0", "-m", f->path, "-p", prompt, "--json", "--ignore-eos", "-n", "48");
  if (run->exit_code) CHECK_FAIL("exit status %d: %s", run->exit_code, run->err);
  CHECK_OK(mlx_json_parse("stdout", run->out, run->out_length, out_json));
}

static void check_same_tokens(const folder_t *packed, const folder_t *dequantized) {
  golden_t golden = golden_open(GOLDENS);
  size_t number, count;
  yyjson_val *result;
  yyjson_arr_foreach(golden.results, number, count, result) {
    const char *prompt = yyjson_get_str(yyjson_obj_get(result, "prompt"));
    command_t runs[2];
    mlx_json_t json[2];
    run_model(packed, prompt, &runs[0], &json[0]);
    run_model(dequantized, prompt, &runs[1], &json[1]);
    yyjson_val *ids[2] = {yyjson_obj_get(json[0].root, "output_ids"),
                          yyjson_obj_get(json[1].root, "output_ids")};
    CHECK_INT(yyjson_arr_size(ids[1]), 48);
    check_ids("output_ids", number, ids[0], ids[1]);
    for (int i = 0; i < 2; ++i) {
      mlx_json_close(&json[i]);
      command_free(&runs[i]);
    }
  }
  golden_close(&golden);
}

// Compares the weight archives bit for bit.
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

TEST(a_quantized_model_equals_its_dequantized_weights) {
  for (int kind = MLX_PACKED_MLX; kind <= MLX_PACKED_AWQ; ++kind) {
    folder_t packed, dequantized;
    write_pair((mlx_packing_kind_t)kind, NULL, &packed, &dequantized);
    check_same_weights(&packed, &dequantized);
    check_same_tokens(&packed, &dequantized);
    end(&packed);
    end(&dequantized);
  }
}

TEST(unused_tensors_are_refused_by_name) {
  static const struct {
    mlx_packing_kind_t kind;
    const char *extra;
  } cases[] = {
      {MLX_PACKED_MLX, "model.norm.scales"},
      {MLX_PACKED_MLX, LEFT_PLAIN ".scales"},
      {MLX_PACKED_MLX, "model.layers.0.mlp.up_proj.g_idx"},
      {MLX_PACKED_GPTQ, "model.layers.0.mlp.up_proj.weight"},
      {MLX_PACKED_AWQ, "model.layers.1.mlp.gate_proj.g_idx"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    folder_t packed, dequantized;
    char expected[160];
    mlx_model_t *model;
    write_pair(cases[i].kind, cases[i].extra, &packed, &dequantized);
    snprintf(expected, sizeof expected, "%s: tensor '%s' is not part of the llama architecture", packed.path,
             cases[i].extra);
    CHECK_ERROR(mlx_model_open(packed.path, &model), MLX_UNSUPPORTED, expected);
    end(&packed);
    end(&dequantized);
  }
}

TEST(quantized_tensors_without_a_quantization_config_are_refused) {
  folder_t packed, dequantized;
  mlx_model_t *model;
  write_pair(MLX_PACKED_MLX, NULL, &packed, &dequantized);
  copy_rest(&packed, "{");
  CHECK_ERROR(mlx_model_open(packed.path, &model), MLX_INVALID_INPUT,
              "tensor 'model.embed_tokens.weight' has shape [320, 4]");
  end(&packed);
  end(&dequantized);
}

TEST_MAIN(CASE(mlx_fields_and_overrides_are_read), CASE(unsupported_mlx_values_are_refused_by_field),
          CASE(mismatched_mlx_tensors_are_refused_by_file_and_name), CASE(gptq_and_awq_fields_are_read),
          CASE(unsupported_gptq_and_awq_values_are_refused_by_field),
          CASE(mismatched_gptq_and_awq_tensors_are_refused_by_file_and_name),
          CASE(mxfp4_experts_are_found_and_mismatches_are_refused_by_name),
          CASE(a_quantized_model_equals_its_dequantized_weights), CASE(unused_tensors_are_refused_by_name),
          CASE(quantized_tensors_without_a_quantization_config_are_refused))
