// Llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU. Also SmolLM2 and other models of the same type.
#include "models/fields.h"
#include "models/ops.h"

static const mlx_tensor_rule_t llama_tensors[] = {
    MLX_MATRIX("model.embed_tokens.weight", "token_embd.weight", MLX_DIM(vocab), MLX_DIM(hidden)),
    MLX_VECTOR("model.layers.%d.input_layernorm.weight", "blk.%d.attn_norm.weight", MLX_DIM(hidden)),
    MLX_MATRIX("model.layers.%d.self_attn.q_proj.weight", "blk.%d.attn_q.weight", MLX_HEADS(heads), MLX_DIM(hidden), .gguf_order = MLX_ROWS_INTERLEAVED_HALVES),
    MLX_MATRIX("model.layers.%d.self_attn.k_proj.weight", "blk.%d.attn_k.weight", MLX_HEADS(kv_heads), MLX_DIM(hidden), .gguf_order = MLX_ROWS_INTERLEAVED_HALVES),
    MLX_MATRIX("model.layers.%d.self_attn.v_proj.weight", "blk.%d.attn_v.weight", MLX_HEADS(kv_heads), MLX_DIM(hidden)),
    MLX_MATRIX("model.layers.%d.self_attn.o_proj.weight", "blk.%d.attn_output.weight", MLX_DIM(hidden), MLX_HEADS(heads)),
    MLX_VECTOR("model.layers.%d.post_attention_layernorm.weight", "blk.%d.ffn_norm.weight", MLX_DIM(hidden)),
    MLX_MATRIX("model.layers.%d.mlp.gate_proj.weight", "blk.%d.ffn_gate.weight", MLX_DIM(ffn), MLX_DIM(hidden)),
    MLX_MATRIX("model.layers.%d.mlp.up_proj.weight", "blk.%d.ffn_up.weight", MLX_DIM(ffn), MLX_DIM(hidden)),
    MLX_MATRIX("model.layers.%d.mlp.down_proj.weight", "blk.%d.ffn_down.weight", MLX_DIM(hidden), MLX_DIM(ffn)),
    MLX_VECTOR("model.norm.weight", "output_norm.weight", MLX_DIM(hidden)),
    MLX_MATRIX("lm_head.weight", "output.weight", MLX_DIM(vocab), MLX_DIM(hidden), .present = mlx_has_own_head),
};

static mlx_status_t llama_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_require_switch(source, "attention_bias", false));
  MLX_TRY(mlx_require_switch(source, "mlp_bias", false));
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, NULL, false, c));
  MLX_TRY(mlx_read_eps(source, "rms_norm_eps", ".attention.layer_norm_rms_epsilon", c));
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

// ---------------------------------------------------------------------------------------------------------------------
// Network

static mlx_value_t llama_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
#define W(name) mlx_op_weight(g, "model.layers.%d." name ".weight", layer)
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, W("input_layernorm"), c->norm_eps);
  mlx_value_t q = mlx_op_linear(g, "q", h, W("self_attn.q_proj"));  // [M, heads * head_dim]
  mlx_value_t k = mlx_op_linear(g, "k", h, W("self_attn.k_proj"));  // [M, kv_heads * head_dim]
  mlx_value_t v = mlx_op_linear(g, "v", h, W("self_attn.v_proj"));
  q = mlx_op_rope(g, "q_rope", q, c->head_dim, &c->rope);
  k = mlx_op_rope(g, "k_rope", k, c->head_dim, &c->rope);
  const mlx_attention_t attention = {.layer = layer,
                                     .heads = c->heads,
                                     .kv_heads = c->kv_heads,
                                     .head_dim = c->head_dim,
                                     .scale = c->attention_scale};
  h = mlx_op_attention(g, &attention, q, k, v);
  h = mlx_op_linear(g, "o", h, W("self_attn.o_proj"));
  x = mlx_op_add(g, "after_attn", x, h);

  h = mlx_op_rmsnorm(g, "mlp_in", x, W("post_attention_layernorm"), c->norm_eps);
  mlx_value_t gate = mlx_op_linear(g, "gate", h, W("mlp.gate_proj"));  // [M, ffn]
  mlx_value_t up = mlx_op_linear(g, "up", h, W("mlp.up_proj"));
  h = mlx_op_gated(g, "act", c->act, gate, up);
  h = mlx_op_linear(g, "down", h, W("mlp.down_proj"));
  return mlx_op_add(g, "out", x, h);
#undef W
}

static mlx_value_t llama_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  const mlx_config_t *c = &model->config;
  mlx_value_t x = mlx_op_embed(g, mlx_op_weight(g, "model.embed_tokens.weight"), tokens);  // [M, hidden]
  for (int layer = 0; layer < c->layers; ++layer) x = llama_layer(g, c, layer, x);
  mlx_op_scope(g, "%s", "");
  return mlx_op_rmsnorm(g, "final", x, mlx_op_weight(g, "model.norm.weight"), c->norm_eps);
}

static mlx_value_t llama_head(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t hidden) {
  const char *name = model->config.tied_head ? "model.embed_tokens.weight" : "lm_head.weight";
  return mlx_op_linear(g, "logits", hidden, mlx_op_weight(g, "%s", name));  // [rows, vocab]
}

static const char *const llama_types[] = {"llama", NULL};

const mlx_arch_t mlx_arch_llama = {
    .hf_types = llama_types,
    .gguf_types = llama_types,
    .tensors = llama_tensors,
    .tensor_count = sizeof llama_tensors / sizeof *llama_tensors,
    .read_config = llama_read_config,
    .forward = llama_forward,
    .head = llama_head,
};
