// Llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU. Also SmolLM2 and other models with
// model_type llama.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t llama_tensors[] = {MLX_RULES_LLAMA(MLX_ROWS_INTERLEAVED_HALVES)};

// GGUF files of Mistral and Mixtral also declare the architecture llama.
static bool llama_matches(const mlx_source_t *source) {
  return !mlx_gguf_is_nonzero(source, ".attention.sliding_window") &&
         !mlx_gguf_is_nonzero(source, ".expert_count");
}

static mlx_status_t llama_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, NULL, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(mlx_read_flag(source, "mlp_bias", "blk.0.ffn_up.bias", false, &c->mlp_bias));
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

mlx_value_t mlx_llama_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  h = mlx_block_attention(g, c, layer, h);
  x = mlx_op_add(g, "after_attn", x, mlx_op_scale(g, "attn_scaled", h, c->residual_scale));
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("post_attention_layernorm"), c->norm_eps);
  h = mlx_block_gated_mlp(g, c, layer, h);
  return mlx_op_add(g, "out", x, mlx_op_scale(g, "mlp_scaled", h, c->residual_scale));
}

static const char *const llama_types[] = {"llama", NULL};

const mlx_arch_t mlx_arch_llama = {
    .hf_types = llama_types,
    .gguf_types = llama_types,
    .matches = llama_matches,
    MLX_TENSORS(llama_tensors),
    .read_config = llama_read_config,
    .layer = mlx_llama_layer,
};
