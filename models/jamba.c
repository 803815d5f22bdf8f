// Jamba: layers of Mamba 1 and, at a period, of attention without rotary positions; at another period, a
// mixture of experts in place of the MLP.
#include <stdio.h>

#include "models/shared/mamba1.h"

#define ATTENTION .layers = MLX_ATTENTION_LAYERS
#define RECURRENT .layers = MLX_RECURRENT_LAYERS
#define IN_MIXTURE .layers = MLX_MIXTURE_LAYERS

static bool is_dense(const mlx_config_t *c, int layer) { return !c->mixture[layer]; }

#define MLP(hf, gguf, rows, columns)                                                         \
  MLX_LAYER_MATRIX("mlp." hf ".weight", gguf ".weight", rows, columns, .in_layer = is_dense, \
                   .hf_stored = "model.layers.%d.feed_forward." hf ".weight")
#define EXPERTS(hf, gguf, rows, columns, stored, part)                                                    \
  MLX_EXPERTS("model.layers.%d.feed_forward.experts.%e." hf ".weight", "blk.%d." gguf ".weight", rows,    \
              columns, .hf_stacked = true, .hf_stored = "model.layers.%d.feed_forward.experts." stored,   \
              .hf_fused_part = part, .mlx_name = "model.layers.%d.feed_forward.switch_mlp." hf ".weight", \
              IN_MIXTURE)

static const mlx_tensor_rule_t jamba_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_MAMBA1("model.layers.%d.mamba.", RECURRENT),
    MLX_RULES_MAMBA1_NORMS("model.layers.%d.mamba.", RECURRENT),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED, ATTENTION),
    MLX_LAYER_NORM("pre_ff_layernorm", "ffn_norm"),
    MLP("gate_proj", "ffn_gate", MLX_DIM(ffn), MLX_DIM(hidden)),
    MLP("up_proj", "ffn_up", MLX_DIM(ffn), MLX_DIM(hidden)),
    MLP("down_proj", "ffn_down", MLX_DIM(hidden), MLX_DIM(ffn)),
    MLX_LAYER_MATRIX("feed_forward.router.weight", "ffn_gate_inp.weight", MLX_DIM(experts), MLX_DIM(hidden),
                     IN_MIXTURE),
    EXPERTS("gate_proj", "ffn_gate_exps", MLX_DIM(ffn), MLX_DIM(hidden), "gate_up_proj",
            MLX_FUSED_FIRST_HALF),
    EXPERTS("up_proj", "ffn_up_exps", MLX_DIM(ffn), MLX_DIM(hidden), "gate_up_proj", MLX_FUSED_SECOND_HALF),
    EXPERTS("down_proj", "ffn_down_exps", MLX_DIM(hidden), MLX_DIM(ffn), "down_proj", MLX_NOT_FUSED),
    MLX_VECTOR("model.norm.weight", "output_norm.weight", MLX_DIM(hidden),
               .hf_stored = "model.final_layernorm.weight"),
    MLX_RULE_HEAD,
};

// Layers at |offset| + k * |period|.
static mlx_status_t read_period(const mlx_source_t *source, const char *period_key, const char *offset_key,
                                int64_t period, int64_t offset, const mlx_config_t *c, bool *out) {
  bool found;
  MLX_TRY(mlx_source_int(source, period_key, NULL, 1, MLX_MAX_LAYERS, &period, &found));
  MLX_TRY(mlx_source_int(source, offset_key, NULL, 0, MLX_MAX_LAYERS, &offset, &found));
  if (offset >= period)
    return mlx_source_field_error(source, offset_key, NULL, MLX_INVALID_INPUT,
                                  "is %lld, but must be less than %s, %lld", (long long)offset, period_key,
                                  (long long)period);
  for (int64_t i = 0; i < c->layers; ++i) out[i] = i % period == offset;
  return NULL;
}

// GGUF files tell which layers they are by KV heads and by tensors.
static mlx_status_t read_layers(const mlx_source_t *source, mlx_config_t *c) {
  char name[64];
  if (mlx_source_is_gguf(source)) {
    MLX_TRY(mlx_read_layers_without_kv(source, c));
    for (int64_t i = 0; i < c->layers; ++i) {
      snprintf(name, sizeof name, "blk.%lld.ffn_gate_inp.weight", (long long)i);
      c->mixture[i] = mlx_source_tensor(source, NULL, name) != NULL;
    }
    return NULL;
  }
  bool attention[MLX_MAX_LAYERS];
  MLX_TRY(read_period(source, "attn_layer_period", "attn_layer_offset", 8, 4, c, attention));
  for (int64_t i = 0; i < c->layers; ++i) c->recurrent[i] = !attention[i];
  MLX_TRY(read_period(source, "expert_layer_period", "expert_layer_offset", 2, 1, c, c->mixture));
  for (int64_t i = 0; i < c->layers && c->experts == 1; ++i) c->mixture[i] = false;
  return NULL;
}

static mlx_status_t jamba_read_config(const mlx_source_t *source, mlx_config_t *c) {
  static const mlx_mamba1_names_t names = {.expand = "mamba_expand",
                                           .state_size = "mamba_d_state",
                                           .taps = "mamba_d_conv",
                                           .step_rank = "mamba_dt_rank",
                                           .conv_bias = "mamba_conv_bias",
                                           .bias = "mamba_proj_bias"};
  const bool gguf = mlx_source_is_gguf(source);
  const char *experts =
      mlx_source_has(source, "num_local_experts", NULL) ? "num_local_experts" : "num_experts";
  bool found;
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  if (c->act != MLX_ACT_SILU)
    return mlx_source_field_error(source, "hidden_act", NULL, MLX_UNSUPPORTED, "must be silu");
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_kv_heads = 8}, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  c->experts = gguf ? 1 : 16;
  c->experts_used = gguf ? 1 : 2;
  MLX_TRY(mlx_source_int(source, experts, ".expert_count", 0, 4096, &c->experts, &found));
  MLX_TRY(
      mlx_source_int(source, "num_experts_per_tok", ".expert_used_count", 0, 64, &c->experts_used, &found));
  MLX_TRY(read_layers(source, c));
  return mlx_read_mamba1(source, &names, true, c);
}

static mlx_value_t mixture(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const mlx_experts_t experts = mlx_experts_of(c);
  const mlx_value_t scores = mlx_op_linear(g, "router", h, MLX_W("feed_forward.router"));  // [M, experts]
  return mlx_op_experts(g, "experts", &experts, h, scores, MLX_W("feed_forward.experts.all.gate_proj"),
                        MLX_W("feed_forward.experts.all.up_proj"),
                        MLX_W("feed_forward.experts.all.down_proj"));
}

static mlx_value_t attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const mlx_attention_t a = mlx_attention_of(c, layer);
  const mlx_qkv_t p = mlx_block_qkv(g, c, layer, h);
  return mlx_block_output(g, c, layer, mlx_op_attention(g, &a, p.q, p.k, p.v));
}

static mlx_value_t jamba_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  h = c->recurrent[layer] ? mlx_block_mamba1(g, c, layer, h) : attention(g, c, layer, h);
  x = mlx_op_add(g, "after_attn", x, h);
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("pre_ff_layernorm"), c->norm_eps);
  h = c->mixture[layer] ? mixture(g, c, layer, h) : mlx_block_gated_mlp(g, c, layer, h);
  return mlx_op_add(g, "out", x, h);
}

static const char *const jamba_types[] = {"jamba", NULL};

const mlx_arch_t mlx_arch_jamba = {
    .hf_types = jamba_types,
    .gguf_types = jamba_types,
    MLX_TENSORS(jamba_tensors),
    .read_config = jamba_read_config,
    .layer = jamba_layer,
};
