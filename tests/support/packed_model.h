// Writes a model of a Hugging Face directory again with its matrices quantized by MLX, GPTQ or AWQ, and
// beside it the same model with the dequantized matrices. MLX stores all experts of a layer in one tensor, as
// mlx-lm does; GPTQ and AWQ store each expert.
#ifndef MLXCEL_TESTS_PACKED_MODEL_H_
#define MLXCEL_TESTS_PACKED_MODEL_H_

#include "tests/support/packed_files.h"

typedef struct packed_kind {
  const char *name;
  mlx_packing_kind_t format;
  int bits, group;
  mlx_dtype_t scales;
  bool all;       // also embedding, LM head and routers are quantized, as MLX does
  int act_order;  // ACT_ORDER_*
  bool symmetric;
  const char *left;  // matrices with this part in their name stay unquantized; NULL: none
} packed_kind_t;

// Without |dequantized| only the quantized model is written.
typedef struct packed_model {
  const packed_kind_t *kind;
  folder_t packed, *dequantized;
} packed_model_t;

static inline void put_plain(packed_model_t *to, const mlx_tensor_t *t) {
  folder_t *folders[] = {&to->packed, to->dequantized};
  const bool stacked = t->rank == 3;
  for (int i = 0; i < 2 && folders[i]; ++i) {
    folders[i]->stack = stacked ? (int)t->dims[0] : 0;
    put(folders[i], t->name, t->dtype,
        stacked   ? t->dims[0] * t->dims[1]
        : t->rank ? t->dims[0]
                  : 1,
        t->rank > 1 ? t->dims[t->rank - 1] : 0, t->data);
    folders[i]->stack = 0;
  }
}

static inline void put_dequantized(packed_model_t *to, const char *name, int64_t rows, int64_t columns,
                                   const float *values) {
  if (to->dequantized) put(to->dequantized, name, MLX_F32, rows, columns, values);
}

static inline void split_name(const char *name, char *module, size_t size) {
  snprintf(module, size, "%.*s", (int)(strlen(name) - strlen(".weight")), name);
}

// mlx-lm's name for all experts of a layer: "…mlp.experts.all.up_proj" is "…mlp.switch_mlp.up_proj".
// Mixtral's w1, w2 and w3 become gate_proj, down_proj and up_proj; up_proj and down_proj of experts without a
// gate become fc1 and fc2.
static inline void mlx_module(const char *name, char *module, size_t size) {
  static const char *const gated[][2] = {
      {"w1.weight", "gate_proj"}, {"w2.weight", "down_proj"}, {"w3.weight", "up_proj"}};
  static const char *const plain[][2] = {{"up_proj.weight", "fc1"}, {"down_proj.weight", "fc2"}};
  const char *mark = strstr(name, "experts.all."), *last = mark + strlen("experts.all.");
  char part[32];
  split_name(last, part, sizeof part);
  const bool is_plain = strstr(name, ".mixer.experts.");  // Nemotron-H
  for (int i = 0; i < (is_plain ? 2 : 3); ++i) {
    const char *const *pair = is_plain ? plain[i] : gated[i];
    if (!strcmp(last, pair[0])) snprintf(part, sizeof part, "%s", pair[1]);
  }
  snprintf(module, size, "%.*sswitch_mlp.%s", (int)(mark - name), name, part);
}

// Quantizes a matrix [rows, columns] and adds it to |to|->packed. Leaves the result in |dequantized_values|.
static inline void put_quantized(packed_model_t *to, const char *module, const float *values, int64_t rows,
                                 int64_t columns) {
  static void (*const put_codes[])(folder_t *, const matrix_t *) = {
      [MLX_PACKED_MLX] = put_mlx, [MLX_PACKED_GPTQ] = put_gptq, [MLX_PACKED_AWQ] = put_awq};
  const packed_kind_t *kind = to->kind;
  const matrix_t m = {.module = module,
                      .values = values,
                      .rows = (int)rows,
                      .columns = (int)columns,
                      .bits = kind->bits,
                      .group = kind->group,
                      .scales = kind->scales,
                      .act_order = kind->act_order,
                      .symmetric = kind->symmetric};
  quantize(&m, kind->format);
  put_codes[kind->format](&to->packed, &m);
}

// Adds the experts of a layer: one tensor for all to the quantized model, one per expert to the other.
// Returns false if they stay unquantized because MLX's group size does not divide the columns.
static inline bool put_experts(packed_model_t *to, const mlx_weight_t *weight) {
  static float values[MAX_ELEMENTS];
  char module[160], name[200];
  const int64_t count = weight->tensor.dims[0], rows = weight->tensor.dims[1],
                columns = weight->tensor.dims[2], each = rows * columns;
  const bool quantized = columns % to->kind->group == 0;
  CHECK(count * each <= MAX_ELEMENTS);
  for (int64_t i = 0; i < count; ++i) {
    mlx_dtype_info(weight->tensor.dtype)->to_f32(weight->parts[i]->data, (size_t)each, values + i * each);
  }
  mlx_module(weight->name, module, sizeof module);
  snprintf(name, sizeof name, "%s.weight", module);
  to->packed.stack = (int)count;
  if (quantized) {
    put_quantized(to, module, values, count * rows, columns);
  } else {
    put(&to->packed, name, MLX_F32, count * rows, columns, values);
  }
  to->packed.stack = 0;
  for (int64_t i = 0; i < count; ++i)
    put_dequantized(to, weight->parts[i]->name, rows, columns,
                    (quantized ? dequantized_values : values) + i * each);
  return quantized;
}

// A parameter that is no matrix of a linear layer, such as the rates of Mamba.
static inline bool is_parameter(const char *name) {
  const size_t length = strlen(name), end = strlen(".weight");
  return length < end || strcmp(name + length - end, ".weight");
}

// GPTQ and AWQ leave these unquantized.
static inline bool is_left(const char *name) {
  return strstr(name, "embed_tokens") || strstr(name, "embed_in") || strstr(name, "embed_out") ||
         strstr(name, "lm_head") || strstr(name, ".gate.weight");
}

// Adds one matrix. Returns false if it stays unquantized: its shape does not fit the format, or the format
// leaves it.
static inline bool put_matrix(packed_model_t *to, const mlx_tensor_t *t) {
  static float values[MAX_ELEMENTS];
  char module[160];
  const int64_t rows = t->dims[0], columns = t->rank == 2 ? t->dims[1] : 0;
  if (!columns || columns % to->kind->group || rows % 8 || rows * columns > MAX_ELEMENTS ||
      is_parameter(t->name) || (!to->kind->all && is_left(t->name)) ||
      (to->kind->left && strstr(t->name, to->kind->left))) {
    put_plain(to, t);
    return false;
  }
  mlx_dtype_info(t->dtype)->to_f32(t->data, (size_t)(rows * columns), values);
  split_name(t->name, module, sizeof module);
  put_quantized(to, module, values, rows, columns);
  put_dequantized(to, t->name, rows, columns, dequantized_values);
  return true;
}

// Adds one weight. Returns whether any of its matrices was quantized.
static inline bool put_weight(packed_model_t *to, const mlx_model_t *model, const mlx_weight_t *weight) {
  bool any = false;
  if ((weight->fused_part || weight->picked_row || weight->head_rows) && weight > model->weights &&
      !strcmp(weight->tensor.name, weight[-1].tensor.name))
    return false;  // the weight before it, another part of the tensor, has added it
  if (weight->parts && strstr(weight->name, "experts.all.") && to->kind->format == MLX_PACKED_MLX)
    return put_experts(to, weight);
  for (int64_t i = 0; weight->parts && i < weight->tensor.dims[0]; ++i)
    any |= put_matrix(to, weight->parts[i]);
  if (weight->parts) return any;
  const mlx_tensor_t *t = mlx_source_tensor(model->source, weight->tensor.name, NULL);
  if (weight->order == MLX_ROWS_AS_STORED || weight->head_rows) return put_matrix(to, t);
  put_plain(to, t);
  return false;
}

// Writes config.json: that of the folder |path|, with the quantization of |kind| unless NULL.
static inline void write_packed_config(const char *path, const packed_kind_t *kind, const folder_t *to) {
  static const char *const methods[] = {[MLX_PACKED_GPTQ] = "gptq", [MLX_PACKED_AWQ] = "awq"};
  char file[300], *text;
  bytes_t config = {0};
  snprintf(file, sizeof file, "%s/config.json", path);
  CHECK_OK(mlx_read_file(file, 1 << 20, &text, NULL));
  mlx_text_puts(&config, "{");
  if (kind && kind->format == MLX_PACKED_MLX) {
    mlx_text_printf(&config, "\"quantization\":{\"group_size\":%d,\"bits\":%d},", kind->group, kind->bits);
  } else if (kind) {
    mlx_text_printf(&config, "\"quantization_config\":{\"quant_method\":\"%s\",\"bits\":%d,\"group_size\":%d",
                    methods[kind->format], kind->bits, kind->group);
    if (kind->format == MLX_PACKED_GPTQ)
      mlx_text_printf(&config, ",\"desc_act\":%s", kind->act_order ? "true" : "false");
    mlx_text_puts(&config, "},");
  }
  mlx_text_puts(&config, strchr(text, '{') + 1);
  CHECK_OK(mlx_text_finish(&config));
  CHECK_OK(mlx_write_file(path_in(to, "config.json"), config.data, config.length));
  mlx_text_clear(&config);
  mlx_free(text);
}

// Writes |model|, the folder |path|, as |kind| into the new folder |out_packed|, and the dequantized model
// into the new folder |out_dequantized| unless NULL. No tokenizer is written. Returns the number of weights
// with quantized matrices. Release the folders with end().
static inline size_t write_packed_model(const packed_kind_t *kind, const char *path, const mlx_model_t *model,
                                        folder_t *out_packed, folder_t *out_dequantized) {
  packed_model_t to = {.kind = kind, .dequantized = out_dequantized};
  size_t count = 0;
  begin(&to.packed);
  if (out_dequantized) begin(out_dequantized);
  for (size_t i = 0; i < model->weight_count; ++i) count += put_weight(&to, model, &model->weights[i]);
  for (size_t i = 0; i < mlx_source_tensor_count(model->source); ++i) {  // numbers that the config needs
    const mlx_tensor_t *tensor = mlx_source_tensor_at(model->source, i);
    if (tensor->size == mlx_dtype_info(tensor->dtype)->block_bytes && strstr(tensor->name, ".act_fn."))
      put_plain(&to, tensor);
  }
  write_tensors(&to.packed);
  write_packed_config(path, kind, &to.packed);
  if (out_dequantized) {
    write_tensors(out_dequantized);
    write_packed_config(path, NULL, out_dequantized);
  }
  *out_packed = to.packed;
  return count;
}

#endif  // MLXCEL_TESTS_PACKED_MODEL_H_
