// GLM-4.7-Flash: the latent attention and the experts of DeepSeek V3. Its GGUF files are files of DeepSeek V3
// (models/deepseek_v3.c). The layer for multi-token prediction is not used.
#include "models/shared/latent.h"

static const mlx_tensor_rule_t glm4_moe_lite_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_LATENT_ATTENTION,
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_RULES_ROUTED_MLP("mlp.gate.weight", "mlp.gate.e_score_correction_bias", "mlp.shared_experts."),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

static mlx_status_t glm4_moe_lite_read_config(const mlx_source_t *source, mlx_config_t *c) {
  const mlx_routed_fields_t experts = {.default_dense = 1, .default_scale = 1.8, .default_sum = true};
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_kv_heads = 20, .latent = true}, false, c));
  MLX_TRY(mlx_read_draft_layers(source, 1, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  c->sigmoid_scores = c->choice_bias = true;
  c->expert_sum_eps = 1e-20;
  MLX_TRY(mlx_read_routed(source, &experts, c));
  return mlx_read_latent(source,
                         &(mlx_latent_fields_t){.kv_rank = 512,
                                                .query_rank = 768,
                                                .nope_dim = 192,
                                                .rope_dim = 64,
                                                .value_dim = 256,
                                                .interleaved = true},
                         c);
}

static const char *const glm4_moe_lite_types[] = {"glm4_moe_lite", NULL};
static const char *const glm4_moe_lite_gguf_types[] = {NULL};

const mlx_arch_t mlx_arch_glm4_moe_lite = {
    .hf_types = glm4_moe_lite_types,
    .gguf_types = glm4_moe_lite_gguf_types,
    MLX_TENSORS(glm4_moe_lite_tensors),
    .read_config = glm4_moe_lite_read_config,
    .layer = mlx_latent_layer,
};
