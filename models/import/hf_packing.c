// Finds the tensors of a quantized matrix in a Hugging Face directory. The object `quantization` (MLX) or
// `quantization_config` (GPTQ, AWQ, MXFP4) of config.json describes the format, and the tensors must match
// it. Unsupported values are errors that name the field and its value.
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/memory.h"
#include "base/text.h"
#include "models/import/hf.h"
#include "models/import/name.h"

// The quantization of one module by config.json.
typedef struct scheme {
  mlx_packing_kind_t kind;  // MLX_NOT_PACKED: not quantized
  int64_t bits, group;      // group -1: all columns form one group
  bool zeros_minus_one;
  bool listed;            // config.json lists the module as quantized; otherwise its tensors decide
  const char *group_key;  // the field of |group|, for errors
} scheme_t;

static mlx_status_t refuse(const mlx_hf_t *hf, const char *key, const char *fmt, ...)
    MLX_PRINTF(3, 4) MLX_MUST_USE;
static mlx_status_t refuse(const mlx_hf_t *hf, const char *key, const char *fmt, ...) {
  char message[512];
  va_list args;
  va_start(args, fmt);
  vsnprintf(message, sizeof message, fmt, args);
  va_end(args);
  return mlx_error(MLX_UNSUPPORTED, "%s: field '%s' %s", hf->config.name, mlx_name_printable(key), message);
}

// ----------------------------------------------------------------------------------------------------------
// MLX: {"group_size": 64, "bits": 4, "mode": "affine", "model.layers.0.mlp.down_proj": {…} or true or false}

// |path|: the path of |object| in config.json, for errors.
static mlx_status_t read_mlx_fields(const mlx_hf_t *hf, yyjson_val *object, const char *path, scheme_t *out) {
  char bits_key[400], group_key[400], mode_key[400];
  snprintf(bits_key, sizeof bits_key, "%s.bits", path);
  snprintf(group_key, sizeof group_key, "%s.group_size", path);
  snprintf(mode_key, sizeof mode_key, "%s.mode", path);
  yyjson_val *bits = mlx_json_find(object, "bits"), *group = mlx_json_find(object, "group_size");
  yyjson_val *mode = mlx_json_find(object, "mode");
  if (!bits) return mlx_json_error(&hf->config, bits_key, "is missing");
  if (!group) return mlx_json_error(&hf->config, group_key, "is missing");
  MLX_TRY(mlx_json_check_int(&hf->config, bits, bits_key, 1, 32, &out->bits));
  MLX_TRY(mlx_json_check_int(&hf->config, group, group_key, 1, INT32_MAX, &out->group));
  if (!(out->bits <= 8 && (1 << out->bits & (1 << 2 | 1 << 3 | 1 << 4 | 1 << 6 | 1 << 8)))) {
    return refuse(hf, bits_key, "is %d; 2, 3, 4, 6 and 8 are supported", (int)out->bits);
  }
  if (out->group != 32 && out->group != 64 && out->group != 128) {
    return refuse(hf, group_key, "is %d; 32, 64 and 128 are supported", (int)out->group);
  }
  if (!mode || yyjson_equals_str(mode, "affine")) return NULL;
  if (!yyjson_is_str(mode)) return mlx_json_error(&hf->config, mode_key, "must be a string");
  return refuse(hf, mode_key, "is '%s'; only affine is supported", mlx_name_printable(yyjson_get_str(mode)));
}

// Refuses unknown keys that are not modules, because they could change the computation.
static mlx_status_t check_mlx_keys(const mlx_hf_t *hf, yyjson_val *object) {
  size_t index, max;
  yyjson_val *key, *value;
  yyjson_obj_foreach(object, index, max, key, value) {
    const char *name = yyjson_get_str(key);
    if (yyjson_is_obj(value) || yyjson_is_bool(value) || !strcmp(name, "bits") ||
        !strcmp(name, "group_size") || !strcmp(name, "mode")) {
      continue;
    }
    char path[400];
    snprintf(path, sizeof path, "quantization.%s", mlx_name_printable(name));
    return refuse(hf, path, "is not supported");
  }
  return NULL;
}

// The entry of |module|. In a multimodal directory the entries have the longer names of its tensors.
static mlx_status_t find_override(const mlx_hf_t *hf, yyjson_val *object, const char *module,
                                  yyjson_val **out) {
  yyjson_val *key, *value;
  size_t index, max;
  mlx_text_t name = {0};
  *out = mlx_json_find(object, module);
  if (!hf->multimodal || *out) return NULL;
  yyjson_obj_foreach(object, index, max, key, value) {
    if (!strchr(yyjson_get_str(key), '.') || !mlx_hf_text_name(yyjson_get_str(key), &name)) continue;
    if (!name.failed && !strcmp(name.data, module)) *out = value;
  }
  mlx_status_t status = mlx_text_finish(&name);
  mlx_text_clear(&name);
  return status;
}

static mlx_status_t read_mlx(const mlx_hf_t *hf, yyjson_val *object, const char *module, scheme_t *out) {
  if (!yyjson_is_obj(object)) return mlx_json_error(&hf->config, "quantization", "must be an object");
  MLX_TRY(check_mlx_keys(hf, object));
  yyjson_val *override;
  MLX_TRY(find_override(hf, object, module, &override));
  out->group_key = "quantization.group_size";
  if (override && yyjson_is_bool(override) && !yyjson_get_bool(override)) return NULL;
  out->kind = MLX_PACKED_MLX;
  out->listed = override != NULL;
  if (!yyjson_is_obj(override)) return read_mlx_fields(hf, object, "quantization", out);
  char path[320];
  snprintf(path, sizeof path, "quantization.%s", module);
  return read_mlx_fields(hf, override, path, out);
}

// ----------------------------------------------------------------------------------------------------------
// GPTQ and AWQ: {"quant_method": "gptq", "bits": 4, "group_size": 128, …}

#define FIELD(name) "quantization_config." name

static mlx_status_t read_common(const mlx_hf_t *hf, scheme_t *out) {
  MLX_TRY(mlx_hf_int(hf, FIELD("bits"), 1, 32, &out->bits, NULL));
  if (out->bits != 4) return refuse(hf, FIELD("bits"), "is %d; only 4 is supported", (int)out->bits);
  out->group_key = FIELD("group_size");
  MLX_TRY(mlx_hf_int(hf, FIELD("group_size"), -1, INT32_MAX, &out->group, NULL));
  if (out->group == -1 || (out->group > 0 && out->group % 8 == 0)) return NULL;
  return refuse(hf, FIELD("group_size"), "is %d; -1 and multiples of 8 are supported", (int)out->group);
}

// The value of |key| must be |first| or |second|, ignoring case. Missing means |first|. |second| may be NULL.
static mlx_status_t read_choice(const mlx_hf_t *hf, const char *key, const char *first, const char *second,
                                bool *out_second) {
  const char *value = first;
  bool found;
  MLX_TRY(mlx_hf_string(hf, key, &value, &found));
  *out_second = second && !strcasecmp(value, second);
  if (*out_second || !strcasecmp(value, first)) return NULL;
  return refuse(hf, key, "is '%s'; only %s%s%s is supported", mlx_name_printable(value), first,
                second ? " or " : "", second ? second : "");
}

static mlx_status_t read_gptq(const mlx_hf_t *hf, scheme_t *out) {
  bool second, newer, marlin = false, found;
  out->kind = MLX_PACKED_GPTQ;
  MLX_TRY(read_choice(hf, FIELD("pack_dtype"), "int32", NULL, &second));
  MLX_TRY(read_choice(hf, FIELD("checkpoint_format"), "gptq", "gptq_v2", &second));
  MLX_TRY(read_choice(hf, FIELD("format"), "gptq", "gptq_v2", &newer));
  out->zeros_minus_one = !second && !newer;
  MLX_TRY(mlx_hf_bool(hf, FIELD("is_marlin_format"), &marlin, &found));
  if (marlin) return refuse(hf, FIELD("is_marlin_format"), "is true; the Marlin layout is not supported");
  // Overrides of bits or groups for modules, by regular expression.
  yyjson_val *dynamic = mlx_hf_find(hf, FIELD("dynamic"));
  if (dynamic && !(yyjson_is_obj(dynamic) && !yyjson_obj_size(dynamic))) {
    return refuse(hf, FIELD("dynamic"), "is given; per-module overrides are not supported");
  }
  return read_common(hf, out);
}

static mlx_status_t read_awq(const mlx_hf_t *hf, scheme_t *out) {
  bool second, zeros = true, found;
  out->kind = MLX_PACKED_AWQ;
  MLX_TRY(read_choice(hf, FIELD("version"), "gemm", NULL, &second));
  MLX_TRY(mlx_hf_bool(hf, FIELD("zero_point"), &zeros, &found));
  if (!zeros) return refuse(hf, FIELD("zero_point"), "is false; only files with zero points are supported");
  return read_common(hf, out);
}

static mlx_status_t read_scheme(const mlx_hf_t *hf, const char *module, scheme_t *out) {
  // MLX writes both objects; its quantization_config, for Hugging Face, has no quant_method.
  yyjson_val *mlx = mlx_hf_find(hf, "quantization");
  if (mlx) return read_mlx(hf, mlx, module, out);
  if (!mlx_hf_find(hf, "quantization_config")) return NULL;
  const char *method;
  MLX_TRY(mlx_hf_string(hf, FIELD("quant_method"), &method, NULL));
  if (!strcmp(method, "gptq")) return read_gptq(hf, out);
  if (!strcmp(method, "awq")) return read_awq(hf, out);
  if (!strcmp(method, "mxfp4")) {  // no field changes how weights are read
    *out = (scheme_t){.kind = MLX_PACKED_MXFP4, .bits = 4, .group = 32};
    return NULL;
  }
  return refuse(hf, FIELD("quant_method"), "is '%s'; gptq, awq and mxfp4 are supported",
                mlx_name_printable(method));
}

// ----------------------------------------------------------------------------------------------------------
// Tensors

typedef enum extent {
  NONE = 0,
  ROWS,
  ROW_WORDS,
  COLUMNS,
  COLUMN_WORDS,
  CODE_WORDS,
  GROUPS,
  GROUP_BYTES,
  EXTENT_COUNT,
} extent_t;

// The tensors of each kind.
static const struct {
  const char *suffix;  // after the module's name; NULL: no such part
  enum { WORDS_U32, WORDS_I32, BYTES, FLOATS } type;
  extent_t dims[3];
} layouts[MLX_PACKING_COUNT][MLX_PART_COUNT] = {
    [MLX_PACKED_MLX] = {{".weight", WORDS_U32, {ROWS, CODE_WORDS}},
                        {".scales", FLOATS, {ROWS, GROUPS}},
                        {".biases", FLOATS, {ROWS, GROUPS}}},
    [MLX_PACKED_GPTQ] = {{".qweight", WORDS_I32, {COLUMN_WORDS, ROWS}},
                         {".scales", FLOATS, {GROUPS, ROWS}},
                         {".qzeros", WORDS_I32, {GROUPS, ROW_WORDS}},
                         {".g_idx", WORDS_I32, {COLUMNS, NONE}}},
    [MLX_PACKED_AWQ] = {{".qweight", WORDS_I32, {COLUMNS, ROW_WORDS}},
                        {".scales", FLOATS, {GROUPS, ROWS}},
                        {".qzeros", WORDS_I32, {GROUPS, ROW_WORDS}}},
    [MLX_PACKED_MXFP4] = {{"_blocks", BYTES, {ROWS, GROUPS, GROUP_BYTES}},
                          {"_scales", BYTES, {ROWS, GROUPS}}},
};

static const char *file_of(const mlx_hf_t *hf, const mlx_tensor_t *tensor) {
  for (size_t i = 0; i < hf->shard_count; ++i) {
    const mlx_safetensors_t *file = hf->shards[i].file;
    if (tensor >= file->tensors && tensor < file->tensors + file->tensor_count) return file->name;
  }
  return hf->folder;
}

static mlx_status_t check_type(const mlx_hf_t *hf, const mlx_packing_t *p, int part) {
  const mlx_tensor_t *tensor = p->parts[part];
  const mlx_dtype_info_t *info = mlx_dtype_info(tensor->dtype);
  bool right = info->to_f32 != NULL;
  const char *expected = "F32, F16 or BF16";
  if (layouts[p->kind][part].type != FLOATS) {
    static const mlx_dtype_t types[] = {[WORDS_U32] = MLX_U32, [WORDS_I32] = MLX_I32, [BYTES] = MLX_U8};
    const mlx_dtype_t words = types[layouts[p->kind][part].type];
    right = tensor->dtype == words;
    expected = mlx_dtype_info(words)->name;
  }
  if (right) return NULL;
  return mlx_error(MLX_UNSUPPORTED, "%s: tensor '%s' has type %s; this quantization format needs %s",
                   file_of(hf, tensor), tensor->name, info->name, expected);
}

static mlx_status_t check_shape(const mlx_hf_t *hf, const mlx_packing_t *p, int part) {
  const int64_t extents[EXTENT_COUNT] = {[ROWS] = p->rows,
                                         [ROW_WORDS] = p->rows / 8,
                                         [COLUMNS] = p->columns,
                                         [COLUMN_WORDS] = p->columns / 8,
                                         [CODE_WORDS] = p->columns / 32 * p->bits,
                                         [GROUPS] = p->columns / p->group,
                                         [GROUP_BYTES] = p->group * p->bits / 8};
  const mlx_tensor_t *tensor = p->parts[part];
  const extent_t *dims = layouts[p->kind][part].dims;
  int rank = 0;
  while (rank < 3 && dims[rank]) ++rank;
  const int stacked = p->stack ? 1 : 0;
  bool same = tensor->rank == rank + stacked;
  mlx_text_t expected_shape = {0}, shape = {0};
  for (int i = 0; i < rank + stacked; ++i) {
    int64_t extent = i < stacked ? p->stack : extents[dims[i - stacked]];
    if (stacked && i && dims[i - stacked] == ROWS) extent /= p->stack;
    same = same && tensor->dims[i] == extent;
    mlx_text_printf(&expected_shape, "%s%lld", i ? ", " : "", (long long)extent);
  }
  for (int i = 0; i < tensor->rank; ++i)
    mlx_text_printf(&shape, "%s%lld", i ? ", " : "", (long long)tensor->dims[i]);
  mlx_status_t status = NULL;
  if (!same) {
    status =
        mlx_error(MLX_INVALID_INPUT, "%s: tensor '%s' has shape [%s]; expected [%s] from the model's fields",
                  file_of(hf, tensor), tensor->name, shape.data ? shape.data : "",
                  expected_shape.data ? expected_shape.data : "");
  }
  mlx_text_clear(&expected_shape);
  mlx_text_clear(&shape);
  return status;
}

// Group indices select scales. They are the only stored values that could read out of bounds.
static mlx_status_t check_groups(const mlx_hf_t *hf, const mlx_packing_t *p) {
  const mlx_tensor_t *tensor = p->parts[MLX_PART_GROUPS];
  const int64_t groups = p->columns / p->group;
  for (int64_t i = 0; tensor && i < p->columns; ++i) {
    const uint8_t *b = tensor->data + 4 * i;
    const uint32_t group = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    if (group < groups) continue;
    return mlx_error(MLX_INVALID_INPUT, "%s: tensor '%s': element %lld is %ld; there are %lld groups",
                     file_of(hf, tensor), tensor->name, (long long)i, (long)(int32_t)group,
                     (long long)groups);
  }
  return NULL;
}

static mlx_status_t check_parts(const mlx_hf_t *hf, const char *module, const mlx_packing_t *p) {
  for (int i = 0; i < MLX_PART_COUNT; ++i) {
    const char *suffix = layouts[p->kind][i].suffix;
    if (!suffix) continue;
    if (!p->parts[i] && i != MLX_PART_GROUPS) {
      return mlx_error(MLX_INVALID_INPUT, "%s: tensor '%s%s' is missing", hf->folder, module, suffix);
    }
    if (!p->parts[i]) continue;
    MLX_TRY(check_type(hf, p, i));
    MLX_TRY(check_shape(hf, p, i));
  }
  return check_groups(hf, p);
}

static mlx_status_t check_extents(const mlx_hf_t *hf, const char *module, const scheme_t *scheme,
                                  const mlx_packing_t *p) {
  if (p->kind == MLX_PACKED_MXFP4) {
    if (p->columns % p->group == 0) return NULL;
    return mlx_error(MLX_INVALID_INPUT, "%s: '%s' has %lld columns; MXFP4 needs a multiple of %lld",
                     hf->config.name, module, (long long)p->columns, (long long)p->group);
  }
  if (p->columns % p->group || p->columns % 8) {
    return mlx_error(
        MLX_INVALID_INPUT, "%s: field '%s' is %lld, which does not divide the %lld columns of '%s'",
        hf->config.name, scheme->group_key, (long long)scheme->group, (long long)p->columns, module);
  }
  if (p->kind == MLX_PACKED_MLX || p->rows % 8 == 0) return NULL;
  return mlx_error(MLX_INVALID_INPUT,
                   "%s: '%s' has %lld rows; this quantization format needs a multiple of 8", hf->config.name,
                   module, (long long)p->rows);
}

static void find_parts(const mlx_hf_t *hf, const char *module, mlx_packing_t *p) {
  for (int i = 0; i < MLX_PART_COUNT; ++i) {
    char name[320];
    if (!layouts[p->kind][i].suffix) continue;
    snprintf(name, sizeof name, "%s%s", module, layouts[p->kind][i].suffix);
    p->parts[i] = mlx_hf_tensor(hf, name);
  }
}

// MLX gives the codes the name of the unquantized matrix, so scales or the u32 type decide. Other formats use
// a different name.
static bool is_quantized(const scheme_t *scheme, const mlx_packing_t *p) {
  const mlx_tensor_t *codes = p->parts[MLX_PART_CODES];
  if (p->kind != MLX_PACKED_MLX) return codes != NULL;
  return scheme->listed || p->parts[MLX_PART_SCALES] || (codes && codes->dtype == MLX_U32);
}

mlx_status_t mlx_hf_packing(const mlx_hf_t *hf, const char *name, int64_t stack, int64_t rows,
                            int64_t columns, mlx_packing_t *out) {
  static const char suffix[] = ".weight";
  char module[256];
  size_t length = strlen(name);
  *out = (mlx_packing_t){0};
  if (length >= sizeof module) return NULL;
  // MXFP4 applies to experts only, whose tensors do not end in ".weight". All other matrices do.
  const bool named = length >= sizeof suffix && !strcmp(name + length - (sizeof suffix - 1), suffix);
  snprintf(module, sizeof module, "%.*s", (int)(length - (named ? sizeof suffix - 1 : 0)), name);
  scheme_t scheme = {0};
  MLX_TRY(read_scheme(hf, module, &scheme));
  const bool mxfp4 = scheme.kind == MLX_PACKED_MXFP4;
  if (!scheme.kind || mxfp4 == named || (mxfp4 && !stack)) return NULL;
  mlx_packing_t p = {.kind = scheme.kind,
                     .bits = (int)scheme.bits,
                     .stack = stack,
                     .rows = stack ? stack * rows : rows,
                     .columns = columns,
                     .group = scheme.group < 0 ? columns : scheme.group,
                     .zeros_minus_one = scheme.zeros_minus_one};
  find_parts(hf, module, &p);
  if (!is_quantized(&scheme, &p)) return NULL;
  if (stack && p.kind != MLX_PACKED_MLX && p.kind != MLX_PACKED_MXFP4) {
    return mlx_error(MLX_UNSUPPORTED,
                     "%s: '%s' holds several quantized matrices, which is supported only for MLX "
                     "and MXFP4",
                     hf->folder, module);
  }
  MLX_TRY(check_extents(hf, module, &scheme, &p));
  MLX_TRY(check_parts(hf, module, &p));
  p.symmetric = mlx_packing_is_symmetric(&p);
  *out = p;
  return NULL;
}
