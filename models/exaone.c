// EXAONE 3 and 3.5: Llama with the names of GPT-2.
#include "models/shared/blocks.h"

#define STORED(name) .hf_stored = "transformer.h.%d." name ".weight"

static const mlx_tensor_rule_t exaone_tensors[] = {
    MLX_MATRIX("model.embed_tokens.weight", "token_embd.weight", MLX_DIM(vocab), MLX_DIM(hidden),
               .hf_stored = "transformer.wte.weight"),
    MLX_LAYER_NORM("input_layernorm", "attn_norm", STORED("ln_1")),
    MLX_LAYER_MATRIX("self_attn.q_proj.weight", "attn_q.weight", MLX_HEADS(heads), MLX_DIM(hidden),
                     STORED("attn.attention.q_proj")),
    MLX_LAYER_MATRIX("self_attn.k_proj.weight", "attn_k.weight", MLX_HEADS(kv_heads), MLX_DIM(hidden),
                     STORED("attn.attention.k_proj")),
    MLX_LAYER_MATRIX("self_attn.v_proj.weight", "attn_v.weight", MLX_HEADS(kv_heads), MLX_DIM(hidden),
                     STORED("attn.attention.v_proj")),
    MLX_LAYER_MATRIX("self_attn.o_proj.weight", "attn_output.weight", MLX_DIM(hidden), MLX_HEADS(heads),
                     STORED("attn.attention.out_proj")),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm", STORED("ln_2")),
    MLX_LAYER_MATRIX("mlp.gate_proj.weight", "ffn_gate.weight", MLX_DIM(ffn), MLX_DIM(hidden),
                     STORED("mlp.c_fc_0")),
    MLX_LAYER_MATRIX("mlp.up_proj.weight", "ffn_up.weight", MLX_DIM(ffn), MLX_DIM(hidden),
                     STORED("mlp.c_fc_1")),
    MLX_LAYER_MATRIX("mlp.down_proj.weight", "ffn_down.weight", MLX_DIM(hidden), MLX_DIM(ffn),
                     STORED("mlp.c_proj")),
    MLX_RULE_FINAL_NORM(.hf_stored = "transformer.ln_f.weight"),
    MLX_RULE_HEAD,
};

static mlx_status_t exaone_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "activation_function", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.layers = "num_layers"}, false, c));
  MLX_TRY(mlx_read_eps(source, "layer_norm_epsilon", ".attention.layer_norm_rms_epsilon", c));
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static const char *const exaone_types[] = {"exaone", NULL};

const mlx_arch_t mlx_arch_exaone = {
    .hf_types = exaone_types,
    .gguf_types = exaone_types,
    MLX_TENSORS(exaone_tensors),
    .read_config = exaone_read_config,
    .layer = mlx_llama_layer,
};
