// Mistral 4: the latent attention of DeepSeek V3 with queries scaled by 1 + beta * log(1 + floor(position /
// original context)), and experts chosen by a softmax in groups.
#include "models/shared/latent.h"

static const mlx_tensor_rule_t mistral4_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_LATENT_ATTENTION,
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_RULES_ROUTED_MLP("mlp.gate.weight", "mlp.gate.e_score_correction_bias", "mlp.shared_experts."),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

static mlx_status_t mistral4_read_config(const mlx_source_t *source, mlx_config_t *c) {
  const char *original = "rope_parameters.original_max_position_embeddings";
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.default_kv_heads = 32, .latent = true}, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  c->expert_sum_eps = 1e-20;
  MLX_TRY(mlx_read_routed(source, &(mlx_routed_fields_t){.default_scale = 1, .default_sum = true}, c));
  MLX_TRY(
      mlx_source_number(source, "rope_parameters.llama_4_scaling_beta", NULL, &c->query_scale_beta, NULL));
  MLX_TRY(mlx_source_int(source, original, NULL, 1, 1 << 30, &c->query_scale_period, NULL));
  return mlx_read_latent(source,
                         &(mlx_latent_fields_t){.kv_rank = 256,
                                                .query_rank = 1024,
                                                .nope_dim = 64,
                                                .rope_dim = 64,
                                                .value_dim = 128,
                                                .interleaved = true,
                                                .partial = "partial_rotary_factor"},
                         c);
}

static const char *const mistral4_types[] = {"mistral4", NULL};
static const char *const mistral4_gguf_types[] = {NULL};

const mlx_arch_t mlx_arch_mistral4 = {
    .hf_types = mistral4_types,
    .gguf_types = mistral4_gguf_types,
    MLX_TENSORS(mistral4_tensors),
    .read_config = mistral4_read_config,
    .layer = mlx_latent_layer,
};
