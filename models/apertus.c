// Apertus: Llama with head norms of q and k, and an ungated MLP with the activation xIELU, whose numbers each
// layer has learned.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/shared/blocks.h"

static const mlx_tensor_rule_t apertus_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("attention_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_RULES_HEAD_QK_NORM(),
    MLX_LAYER_NORM("feedforward_layernorm", "ffn_norm"),
    MLX_LAYER_MATRIX("mlp.up_proj.weight", "ffn_up.weight", MLX_DIM(ffn), MLX_DIM(hidden)),
    MLX_LAYER_MATRIX("mlp.down_proj.weight", "ffn_down.weight", MLX_DIM(hidden), MLX_DIM(ffn)),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

// One number of one layer: a tensor of a Hugging Face directory, or an element of a field of a GGUF file,
// which may have one number for all layers.
static mlx_status_t read_number(const mlx_source_t *source, const char *name, int64_t layer, double *out) {
  char tensor_name[64], key[32];
  snprintf(tensor_name, sizeof tensor_name, "model.layers.%lld.mlp.act_fn.%s", (long long)layer, name);
  snprintf(key, sizeof key, "xielu.%s", name);
  if (mlx_source_is_gguf(source)) {
    return mlx_source_array_length(source, NULL, key)
               ? mlx_source_number_at(source, NULL, key, (size_t)layer, out)
               : mlx_source_number(source, NULL, key, out, NULL);
  }
  const mlx_tensor_t *tensor = mlx_source_tensor(source, tensor_name, NULL);
  const mlx_dtype_info_t *info = tensor ? mlx_dtype_info(tensor->dtype) : NULL;
  float number;
  if (!info || info->block_elements != 1 || tensor->size != info->block_bytes || !info->to_f32) {
    return mlx_error(MLX_INVALID_INPUT, "%s: tensor '%s' must be one float", mlx_source_path(source),
                     tensor_name);
  }
  info->to_f32(tensor->data, 1, &number);
  *out = number;
  return isfinite(number) ? NULL
                          : mlx_error(MLX_INVALID_INPUT, "%s: tensor '%s' is not finite",
                                      mlx_source_path(source), tensor_name);
}

static double softplus(double x) { return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }

static mlx_status_t read_xielu(const mlx_source_t *source, int64_t layer, float *out) {
  double alpha_p, alpha_n, beta, eps;
  MLX_TRY(read_number(source, "alpha_p", layer, &alpha_p));
  MLX_TRY(read_number(source, "alpha_n", layer, &alpha_n));
  MLX_TRY(read_number(source, "beta", layer, &beta));
  MLX_TRY(read_number(source, "eps", layer, &eps));
  out[0] = (float)softplus(alpha_p);
  out[1] = (float)(beta + softplus(alpha_n));
  out[2] = (float)beta;
  out[3] = (float)eps;
  return NULL;
}

// xIELU by default. Only this architecture has its numbers, so mlx_read_act does not know it.
static mlx_status_t read_act(const mlx_source_t *source, mlx_config_t *c) {
  const char *name;
  bool found;
  MLX_TRY(mlx_source_string(source, "hidden_act", NULL, &name, &found));
  if (found && strcmp(name, "xielu")) return mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act);
  c->act = MLX_ACT_XIELU;
  for (int64_t i = 0; i < c->layers; ++i) MLX_TRY(read_xielu(source, i, c->act_numbers[i]));
  return NULL;
}

static mlx_status_t apertus_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_sizes(source, NULL, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  c->qk_norm = true;
  MLX_TRY(read_act(source, c));
  // Hugging Face's default is a llama3 scaling, which published models have in their files.
  if (!mlx_source_is_gguf(source) && !mlx_source_has(source, "rope_parameters", NULL) &&
      !mlx_source_has(source, "rope_scaling", NULL))
    return mlx_source_field_error(source, "rope_parameters", NULL, MLX_INVALID_INPUT, "is missing");
  return mlx_read_rope(source, &(mlx_rope_fields_t){.default_theta = 12000000}, c, &c->rope);
}

static mlx_value_t apertus_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("attention_layernorm"), c->norm_eps);
  x = mlx_op_add(g, "after_attn", x, mlx_block_attention(g, c, layer, h));
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("feedforward_layernorm"), c->norm_eps);
  h = mlx_op_linear(g, "up", h, MLX_W("mlp.up_proj"));  // [M, ffn]
  h = mlx_op_activate(g, "act", c->act, c->act_numbers[layer], h);
  return mlx_op_add(g, "out", x, mlx_op_linear(g, "down", h, MLX_W("mlp.down_proj")));
}

// The numbers of the activation, which read_config has read.
static const char *const apertus_ignored[] = {".act_fn.alpha_p", ".act_fn.alpha_n", ".act_fn.beta",
                                              ".act_fn.eps", NULL};
static const char *const apertus_types[] = {"apertus", NULL};

const mlx_arch_t mlx_arch_apertus = {
    .hf_types = apertus_types,
    .gguf_types = apertus_types,
    MLX_TENSORS(apertus_tensors),
    .ignored = apertus_ignored,
    .read_config = apertus_read_config,
    .layer = apertus_layer,
};
