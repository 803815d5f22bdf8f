// MiniCPM 1 and 2, and MiniCPM4 without sparse attention: Llama with factors for the embedding, the output
// of each sublayer, and the logits.
#include <math.h>

#include "models/shared/blocks.h"

// llama.cpp's converter reorders the rows of q and k, but not their biases.
static const mlx_tensor_rule_t minicpm_tensors[] = {
    MLX_RULES_LLAMA_ORDERED(MLX_ROWS_INTERLEAVED_HALVES, MLX_ROWS_AS_STORED)};

// GGUF stores the factors themselves. Older files without them are refused.
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

// MiniCPM's code builds its rope table once for the model's full context, so max_position_embeddings and not
// the length of the text chooses between the long and the short factors.
static mlx_status_t choose_longrope(const mlx_source_t *source, mlx_config_t *c) {
  static const char *const fixed[] = {"rope_scaling.factor", "rope_scaling.attention_factor"};
  if (!c->local_context) return NULL;
  for (int i = 0; i < 2; ++i) {
    if (mlx_source_has(source, fixed[i], NULL)) {
      return mlx_source_field_error(source, fixed[i], NULL, MLX_UNSUPPORTED,
                                    "is given, but MiniCPM's longrope ignores it");
    }
  }
  if (mlx_source_is_gguf(source) || c->context < c->local_context) {
    return mlx_source_field_error(source, "rope_scaling.original_max_position_embeddings",
                                  ".rope.scaling.type", MLX_UNSUPPORTED,
                                  "means an unsupported kind of longrope");
  }
  if (c->context == c->local_context) c->rope = c->local_rope;
  c->local_rope = (mlx_rope_t){0};
  c->local_context = 0;
  return NULL;
}

static mlx_status_t refuse_unsupported(const mlx_source_t *source) {
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
  MLX_TRY(refuse_unsupported(source));
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, NULL, true, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(read_factors(source, c));
  MLX_TRY(mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope));
  return choose_longrope(source, c);
}

static const char *const minicpm_types[] = {"minicpm", NULL};

const mlx_arch_t mlx_arch_minicpm = {
    .hf_types = minicpm_types,
    .gguf_types = minicpm_types,
    MLX_TENSORS(minicpm_tensors),
    .read_config = minicpm_read_config,
    .layer = mlx_llama_layer,
};
