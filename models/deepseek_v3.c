// DeepSeek V3 and R1, Kimi K2 and Moonlight: latent attention, and experts after the first layers, chosen by
// sigmoids with a bias and in groups. The layers for multi-token prediction are not used.
#include "models/shared/latent.h"

static const mlx_tensor_rule_t deepseek_v3_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_LATENT_ATTENTION,
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_RULES_ROUTED_MLP("mlp.gate.weight", "mlp.gate.e_score_correction_bias", "mlp.shared_experts."),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

static mlx_status_t deepseek_v3_read_config(const mlx_source_t *source, mlx_config_t *c) {
  const mlx_routed_fields_t experts = {.default_dense = 3,
                                       .default_scale = 2.5,
                                       .default_sum = true,
                                       .default_groups = 8,
                                       .default_groups_used = 4};
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_kv_heads = 128, .latent = true}, false, c));
  MLX_TRY(mlx_read_draft_layers(source, 1, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  c->sigmoid_scores = c->choice_bias = true;
  c->expert_sum_eps = 1e-20;
  MLX_TRY(mlx_read_routed(source, &experts, c));
  return mlx_read_latent(source,
                         &(mlx_latent_fields_t){.kv_rank = 512,
                                                .query_rank = 1536,
                                                .nope_dim = 128,
                                                .rope_dim = 64,
                                                .value_dim = 128,
                                                .interleaved = true},
                         c);
}

static const char *const deepseek_v3_types[] = {"deepseek_v3", "kimi_k2", NULL};
static const char *const deepseek_v3_gguf_types[] = {"deepseek2", NULL};

const mlx_arch_t mlx_arch_deepseek_v3 = {
    .hf_types = deepseek_v3_types,
    .gguf_types = deepseek_v3_gguf_types,
    .matches = mlx_gguf_has_sigmoids,
    MLX_TENSORS(deepseek_v3_tensors),
    .read_config = deepseek_v3_read_config,
    .layer = mlx_latent_layer,
};
