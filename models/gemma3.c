// Gemma 3 text model: Gemma 2 with head norms of q and k instead of softcaps. Five of six layers have a
// sliding window and a separate rope. EmbeddingGemma is this network as an encoder.
#include <math.h>
#include <string.h>

#include "models/shared/encoder.h"

static const mlx_tensor_rule_t gemma3_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm", .hf_value_offset = 1.0),
    MLX_RULES_ATTENTION(MLX_ROWS_AS_STORED),
    MLX_RULES_HEAD_QK_NORM(.hf_value_offset = 1.0),
    MLX_LAYER_NORM("post_attention_layernorm", "post_attention_norm", .hf_value_offset = 1.0),
    MLX_LAYER_NORM("pre_feedforward_layernorm", "ffn_norm", .hf_value_offset = 1.0),
    MLX_RULES_GATED_MLP,
    MLX_LAYER_NORM("post_feedforward_layernorm", "post_ffw_norm", .hf_value_offset = 1.0),
    MLX_RULE_FINAL_NORM(.hf_value_offset = 1.0),
    MLX_RULE_HEAD,
};

static const mlx_rope_fields_t global_rope = {.group = "full_attention", .default_theta = 1000000.0};
static const mlx_rope_fields_t local_rope = {.group = "sliding_attention",
                                             .theta = "rope_local_base_freq",
                                             .gguf_theta = ".rope.freq_base_swa",
                                             .unscaled = true};

static mlx_status_t read_bidirectional(const mlx_source_t *source, bool *out) {
  bool found;
  *out = mlx_source_is_gguf(source) && !strcmp(mlx_source_architecture(source), "gemma-embedding");
  return mlx_source_bool(source, "use_bidirectional_attention", NULL, out, &found);
}

static mlx_status_t gemma3_read_config(const mlx_source_t *source, mlx_config_t *c) {
  int64_t every = 6;
  bool found, encoder;
  MLX_TRY(read_bidirectional(source, &encoder));
  MLX_TRY(mlx_read_act(source, "hidden_activation", MLX_ACT_GELU_TANH, &c->act));
  const mlx_size_names_t names = {.default_head_dim = 256, .default_kv_heads = 4, .encoder = encoder};
  MLX_TRY(mlx_read_sizes(source, &names, true, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(mlx_read_query_scalar(source, 62, c));
  MLX_TRY(mlx_read_number(source, "attn_logit_softcapping", ".attn_logit_softcapping", 0.0,
                          &c->attention_softcap));
  MLX_TRY(
      mlx_read_number(source, "final_logit_softcapping", ".final_logit_softcapping", 0.0, &c->logit_softcap));
  MLX_TRY(mlx_source_int(source, "sliding_window_pattern", NULL, 1, 1 << 20, &every, &found));
  MLX_TRY(mlx_read_windows(source, every, 4096, c));
  c->qk_norm = true;
  c->embed_scale = sqrt((double)c->hidden);
  MLX_TRY(mlx_read_rope(source, &global_rope, c, &c->rope));
  MLX_TRY(mlx_read_rope(source, &local_rope, c, &c->local_rope));
  if (!encoder) return NULL;
  c->window /= 2;  // on each side
  return mlx_read_encoder(source, c);
}

static const char *const gemma3_types[] = {"gemma3_text", NULL};
static const char *const gemma3_gguf_types[] = {"gemma3", "gemma-embedding", NULL};

const mlx_arch_t mlx_arch_gemma3 = {
    .hf_types = gemma3_types,
    .gguf_types = gemma3_gguf_types,
    MLX_TENSORS(gemma3_tensors),
    .read_config = gemma3_read_config,
    .layer = mlx_gemma2_layer,
};
