// DeepSeek V2: latent attention, and experts after the first layers, chosen by a softmax.
#include <string.h>

#include "models/shared/latent.h"

static const mlx_tensor_rule_t deepseek_v2_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_LATENT_ATTENTION,
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_RULES_ROUTED_MLP("mlp.gate.weight", "mlp.gate.e_score_correction_bias", "mlp.shared_experts."),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

// Which experts a token may use: all, or those of the best groups.
static mlx_status_t read_method(const mlx_source_t *source, mlx_config_t *c) {
  const char *method = "greedy";
  bool found;
  c->expert_groups_by_best = true;
  MLX_TRY(mlx_source_string(source, "topk_method", NULL, &method, &found));
  if (mlx_source_is_gguf(source) || !strcmp(method, "group_limited_greedy")) return NULL;
  c->expert_groups = c->expert_groups_used = 1;
  if (!strcmp(method, "greedy")) return NULL;
  return mlx_source_field_error(source, "topk_method", NULL, MLX_UNSUPPORTED,
                                "is '%s', an unsupported way to choose experts", method);
}

static mlx_status_t deepseek_v2_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &(mlx_size_names_t){.latent = true}, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  // transformers does not normalize the weights, whatever the field says.
  MLX_TRY(mlx_require_flag(source, "norm_topk_prob", false));
  MLX_TRY(mlx_read_routed(source, &(mlx_routed_fields_t){.default_scale = 1}, c));
  MLX_TRY(read_method(source, c));
  MLX_TRY(mlx_read_flag(source, "mlp_bias", "blk.0.ffn_gate.bias", false, &c->mlp_bias));
  return mlx_read_latent(source,
                         &(mlx_latent_fields_t){.kv_rank = 512,
                                                .query_rank = 1536,
                                                .nope_dim = 128,
                                                .rope_dim = 64,
                                                .value_dim = 128,
                                                .interleaved = true,
                                                .fixed_interleaved = true},
                         c);
}

// DeepSeek V3 has the same name in GGUF.
static bool has_softmax(const mlx_source_t *source) { return !mlx_gguf_has_sigmoids(source); }

static const char *const deepseek_v2_types[] = {"deepseek_v2", NULL};
static const char *const deepseek_v2_gguf_types[] = {"deepseek2", NULL};

const mlx_arch_t mlx_arch_deepseek_v2 = {
    .hf_types = deepseek_v2_types,
    .gguf_types = deepseek_v2_gguf_types,
    .matches = has_softmax,
    MLX_TENSORS(deepseek_v2_tensors),
    .read_config = deepseek_v2_read_config,
    .layer = mlx_latent_layer,
};
