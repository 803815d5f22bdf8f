// Ministral 3: Mistral with a yarn rope and queries scaled by 1 + beta * log(1 + floor(position / original
// context)). GGUF files with the architecture mistral3 can also hold the text model of Mistral Small 3,
// which has neither.
#include "models/shared/blocks.h"

static const mlx_tensor_rule_t ministral3_tensors[] = {MLX_RULES_LLAMA(MLX_ROWS_INTERLEAVED_HALVES)};

static mlx_status_t ministral3_read_config(const mlx_source_t *source, mlx_config_t *c) {
  const char *original = "rope_parameters.original_max_position_embeddings";
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(
      mlx_read_sizes(source, &(mlx_size_names_t){.default_head_dim = 128, .default_kv_heads = 8}, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_windows(source, 0, 0, c));
  const bool scales_queries =
      !mlx_source_is_gguf(source) || mlx_source_has(source, NULL, ".attention.temperature_scale");
  if (scales_queries) {
    MLX_TRY(mlx_source_number(source, "rope_parameters.llama_4_scaling_beta", ".attention.temperature_scale",
                              &c->query_scale_beta, NULL));
    MLX_TRY(mlx_source_int(source, original, ".rope.scaling.original_context_length", 1, 1 << 30,
                           &c->query_scale_period, NULL));
  }
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static mlx_value_t ministral3_attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const mlx_attention_t attention = mlx_attention_of(c, layer);
  mlx_qkv_t p = mlx_block_qkv(g, c, layer, h);
  p.q = mlx_op_rope(g, "q_rope", p.q, c->head_dim, &c->rope);
  p.k = mlx_op_rope(g, "k_rope", p.k, c->head_dim, &c->rope);
  if (c->query_scale_period) {
    p.q = mlx_op_grow(g, "q_grown", p.q, c->query_scale_beta, c->query_scale_period);
  }
  h = mlx_op_attention(g, &attention, p.q, p.k, p.v);
  return mlx_block_output(g, c, layer, h);
}

static mlx_value_t ministral3_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  x = mlx_op_add(g, "after_attn", x, ministral3_attention(g, c, layer, h));
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("post_attention_layernorm"), c->norm_eps);
  return mlx_op_add(g, "out", x, mlx_block_gated_mlp(g, c, layer, h));
}

static const char *const ministral3_types[] = {"ministral3", NULL};
static const char *const ministral3_gguf_types[] = {"mistral3", NULL};

const mlx_arch_t mlx_arch_ministral3 = {
    .hf_types = ministral3_types,
    .gguf_types = ministral3_gguf_types,
    MLX_TENSORS(ministral3_tensors),
    .read_config = ministral3_read_config,
    .layer = ministral3_layer,
};
