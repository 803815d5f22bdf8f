// MiniCPM, up to 2 and of MiniCPM4 those without sparse attention: Llama with factors for the embedding, what
// each half of a layer adds, and the logits.
#include <math.h>

#include "models/shared/blocks.h"

static const mlx_tensor_rule_t minicpm_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_RULES_ATTENTION_OF(MLX_ROWS_INTERLEAVED_HALVES, MLX_ROWS_AS_STORED),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_RULES_GATED_MLP,
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

// GGUF has the factors themselves, and files without them, which are older, are not read.
static mlx_status_t read_factors(const mlx_source_t *source, mlx_config_t *c) {
  double divisor, depth = 1.0, base = 1.0;
  if (mlx_source_is_gguf(source)) {
    MLX_TRY(mlx_source_number(source, NULL, ".embedding_scale", &c->embed_scale, NULL));
    MLX_TRY(mlx_source_number(source, NULL, ".residual_scale", &c->residual_scale, NULL));
    MLX_TRY(mlx_source_number(source, NULL, ".logit_scale", &divisor, NULL));
  } else {
    MLX_TRY(mlx_read_number(source, "scale_emb", NULL, 1.0, &c->embed_scale));
    MLX_TRY(mlx_read_number(source, "scale_depth", NULL, 1.0, &depth));
    MLX_TRY(mlx_read_number(source, "dim_model_base", NULL, 1.0, &base));
    c->residual_scale = depth / sqrt((double)c->layers);
    divisor = (double)c->hidden / base;
  }
  if (!(divisor > 0.0 && isfinite(divisor))) {
    return mlx_source_field_error(source, "dim_model_base", ".logit_scale", MLX_INVALID_INPUT,
                                  "must be greater than 0");
  }
  c->logit_scale = 1.0 / divisor;
  return NULL;
}

// The model's own table of positions is made once, for all it can have: their number chooses the long or the
// short factors.
static mlx_status_t settle_longrope(const mlx_source_t *source, mlx_config_t *c) {
  static const char *const fixed[] = {"rope_scaling.factor", "rope_scaling.attention_factor"};
  if (!c->local_context) return NULL;
  for (int i = 0; i < 2; ++i) {
    if (mlx_source_has(source, fixed[i], NULL)) {
      return mlx_source_field_error(source, fixed[i], NULL, MLX_UNSUPPORTED,
                                    "is given, which this model's longrope does not use");
    }
  }
  if (mlx_source_is_gguf(source) || c->context < c->local_context) {
    return mlx_source_field_error(source, "rope_scaling.original_max_position_embeddings",
                                  ".rope.scaling.type", MLX_UNSUPPORTED,
                                  "means a longrope that mlxcel does not know");
  }
  if (c->context == c->local_context) c->rope = c->local_rope;
  c->local_rope = (mlx_rope_t){0};
  c->local_context = 0;
  return NULL;
}

static mlx_status_t refuse_others(const mlx_source_t *source) {
  int64_t experts = 0, slices = 1;
  bool found;
  if (mlx_source_has(source, "sparse_config", NULL)) {
    return mlx_source_field_error(source, "sparse_config", NULL, MLX_UNSUPPORTED,
                                  "is given; sparse attention is not supported");
  }
  MLX_TRY(mlx_source_int(source, "num_experts", ".expert_count", 0, 1 << 20, &experts, &found));
  if (experts) {
    return mlx_source_field_error(source, "num_experts", ".expert_count", MLX_UNSUPPORTED,
                                  "is %lld; experts are not supported", (long long)experts);
  }
  MLX_TRY(mlx_source_int(source, "pretraining_tp", NULL, 0, 1 << 20, &slices, &found));
  if (slices <= 1) return NULL;
  return mlx_source_field_error(source, "pretraining_tp", NULL, MLX_UNSUPPORTED,
                                "is %lld; only 1 is supported", (long long)slices);
}

static mlx_status_t minicpm_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(refuse_others(source));
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, NULL, true, c));
  MLX_TRY(mlx_read_eps(source, "rms_norm_eps", ".attention.layer_norm_rms_epsilon", c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(read_factors(source, c));
  MLX_TRY(mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope));
  return settle_longrope(source, c);
}

static const char *const minicpm_types[] = {"minicpm", NULL};

const mlx_arch_t mlx_arch_minicpm = {
    .hf_types = minicpm_types,
    .gguf_types = minicpm_types,
    MLX_TENSORS(minicpm_tensors),
    .read_config = minicpm_read_config,
    .forward = mlx_llama_forward,
    .head = mlx_block_head,
};
