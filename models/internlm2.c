// InternLM2 and InternLM2.5: Llama with q, k and v in one tensor, grouped by KV head: the query heads that
// share it, then k, then v.
#include "models/shared/blocks.h"

#define QKV(row) \
  .hf_stored = "model.layers.%d.attention.wqkv.weight", .hf_row = row, .fused_rows = MLX_DIM(qkv_width)
#define STORED(name) .hf_stored = "model.layers.%d." name ".weight"

// Row |row| of a part with |count| heads for each KV head, which starts at head |first| of each group.
static int64_t grouped_row(const mlx_config_t *c, int64_t row, int64_t first, int64_t count) {
  const int64_t all = c->heads / c->kv_heads + 2, head = row / c->head_dim;
  return (head / count * all + first + head % count) * c->head_dim + row % c->head_dim;
}

static int64_t q_row(const mlx_config_t *c, int64_t row) {
  return grouped_row(c, row, 0, c->heads / c->kv_heads);
}
static int64_t k_row(const mlx_config_t *c, int64_t row) {
  return grouped_row(c, row, c->heads / c->kv_heads, 1);
}
static int64_t v_row(const mlx_config_t *c, int64_t row) {
  return grouped_row(c, row, c->heads / c->kv_heads + 1, 1);
}

static const mlx_tensor_rule_t internlm2_tensors[] = {
    MLX_MATRIX("model.embed_tokens.weight", "token_embd.weight", MLX_DIM(vocab), MLX_DIM(hidden),
               .hf_stored = "model.tok_embeddings.weight"),
    MLX_LAYER_NORM("input_layernorm", "attn_norm", STORED("attention_norm")),
    MLX_LAYER_MATRIX("self_attn.q_proj.weight", "attn_q.weight", MLX_HEADS(heads), MLX_DIM(hidden),
                     QKV(q_row), .gguf_order = MLX_ROWS_INTERLEAVED_HALVES),
    MLX_LAYER_MATRIX("self_attn.k_proj.weight", "attn_k.weight", MLX_HEADS(kv_heads), MLX_DIM(hidden),
                     QKV(k_row), .gguf_order = MLX_ROWS_INTERLEAVED_HALVES),
    MLX_LAYER_MATRIX("self_attn.v_proj.weight", "attn_v.weight", MLX_HEADS(kv_heads), MLX_DIM(hidden),
                     QKV(v_row)),
    MLX_LAYER_MATRIX("self_attn.o_proj.weight", "attn_output.weight", MLX_DIM(hidden), MLX_HEADS(heads),
                     STORED("attention.wo")),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm", STORED("ffn_norm")),
    MLX_LAYER_MATRIX("mlp.gate_proj.weight", "ffn_gate.weight", MLX_DIM(ffn), MLX_DIM(hidden),
                     STORED("feed_forward.w1")),
    MLX_LAYER_MATRIX("mlp.up_proj.weight", "ffn_up.weight", MLX_DIM(ffn), MLX_DIM(hidden),
                     STORED("feed_forward.w3")),
    MLX_LAYER_MATRIX("mlp.down_proj.weight", "ffn_down.weight", MLX_DIM(hidden), MLX_DIM(ffn),
                     STORED("feed_forward.w2")),
    MLX_RULE_FINAL_NORM(),
    MLX_MATRIX("lm_head.weight", "output.weight", MLX_DIM(vocab), MLX_DIM(hidden),
               .hf_stored = "output.weight", .present = mlx_has_untied_head),
};

static mlx_status_t internlm2_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, NULL, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_require_flag(source, "bias", false));
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static const char *const internlm2_types[] = {"internlm2", NULL};

const mlx_arch_t mlx_arch_internlm2 = {
    .hf_types = internlm2_types,
    .gguf_types = internlm2_types,
    MLX_TENSORS(internlm2_tensors),
    .read_config = internlm2_read_config,
    .layer = mlx_llama_layer,
};
