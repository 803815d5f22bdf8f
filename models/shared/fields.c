// Readers of config fields that several architectures share; see fields.h.
#include "models/shared/fields.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"

bool mlx_has_untied_head(const mlx_config_t *c) { return !c->tied_head; }
bool mlx_has_q_bias(const mlx_config_t *c) { return c->q_bias; }
bool mlx_has_kv_bias(const mlx_config_t *c) { return c->kv_bias; }
bool mlx_has_o_bias(const mlx_config_t *c) { return c->o_bias; }
bool mlx_has_conv_bias(const mlx_config_t *c) { return c->conv_bias; }
bool mlx_has_mlp_bias(const mlx_config_t *c) { return c->mlp_bias; }
bool mlx_has_head_bias(const mlx_config_t *c) { return c->head_bias; }
bool mlx_has_qk_norm(const mlx_config_t *c) { return c->qk_norm; }

// ----------------------------------------------------------------------------------------------------------
// Sizes

// GGUF files of hybrid models have a list: 0 for a layer without attention.
static mlx_status_t read_kv_heads(const mlx_source_t *source, const char *hf_key, mlx_config_t *c) {
  const char *key = ".attention.head_count_kv";
  const size_t listed = mlx_source_array_length(source, NULL, key);
  int64_t most = 0, heads;
  bool found;
  if (!listed) return mlx_source_int(source, hf_key, key, 1, 4096, &c->kv_heads, &found);
  if (listed != (size_t)c->layers)
    return mlx_source_field_error(source, NULL, key, MLX_INVALID_INPUT,
                                  "must have one entry for each of the %lld layers", (long long)c->layers);
  for (size_t i = 0; i < listed; ++i) {
    MLX_TRY(mlx_source_int_at(source, key, i, &heads));
    if (heads > most) most = heads;
  }
  if (most < 1 || most > 4096)
    return mlx_source_field_error(source, NULL, key, MLX_INVALID_INPUT, "must have a number from 1 to 4096");
  c->kv_heads = most;
  return NULL;
}

static mlx_status_t read_heads(const mlx_source_t *source, const mlx_size_names_t *names, mlx_config_t *c) {
  const char *kv_name = names->kv_heads ? names->kv_heads : "num_key_value_heads";
  bool found;
  MLX_TRY(mlx_source_int(source, names->heads ? names->heads : "num_attention_heads", ".attention.head_count",
                         1, 4096, &c->heads, NULL));
  const bool hf = !mlx_source_is_gguf(source);  // the class's defaults apply only there
  c->kv_heads = hf && names->default_kv_heads && !mlx_source_mentions(source, kv_name)
                    ? names->default_kv_heads
                    : c->heads;
  MLX_TRY(read_kv_heads(source, kv_name, c));
  if (c->heads % c->kv_heads) {
    return mlx_source_field_error(source, kv_name, ".attention.head_count_kv", MLX_INVALID_INPUT,
                                  "is %lld, which does not divide the %lld query heads",
                                  (long long)c->kv_heads, (long long)c->heads);
  }
  if (names->latent) return NULL;
  const bool fixed = hf && names->default_head_dim && !mlx_source_mentions(source, "head_dim");
  c->head_dim = fixed ? names->default_head_dim : c->hidden / c->heads;
  MLX_TRY(mlx_source_int(source, "head_dim", ".attention.key_length", 2, 2 * MLX_MAX_FREQUENCIES,
                         &c->head_dim, &found));
  const bool uneven = !found && !fixed && c->hidden % c->heads;
  if (c->head_dim < 2 || c->head_dim > 2 * MLX_MAX_FREQUENCIES || c->head_dim % 2 || uneven) {
    return mlx_source_field_error(source, "head_dim", ".attention.key_length", MLX_INVALID_INPUT,
                                  "must be even (hidden size %lld, %lld heads)", (long long)c->hidden,
                                  (long long)c->heads);
  }
  int64_t value_dim = c->head_dim;
  MLX_TRY(mlx_source_int(source, NULL, ".attention.value_length", 1, 1 << 20, &value_dim, &found));
  if (value_dim == c->head_dim) return NULL;
  return mlx_source_field_error(source, NULL, ".attention.value_length", MLX_UNSUPPORTED,
                                "is %lld; only the width of the keys, %lld, is supported",
                                (long long)value_dim, (long long)c->head_dim);
}

// GGUF files of encoders declare bidirectional attention. Other files declare nothing: |expected|.
static mlx_status_t require_causality(const mlx_source_t *source, bool expected) {
  bool causal = expected, found;
  MLX_TRY(mlx_source_bool(source, NULL, ".attention.causal", &causal, &found));
  if (causal == expected) return NULL;
  return mlx_source_field_error(source, NULL, ".attention.causal", MLX_UNSUPPORTED,
                                "is %s, which is not supported for this architecture",
                                causal ? "true" : "false");
}

// GGUF stores neither the vocabulary size nor whether the head is tied. Both follow from the tensors.
static mlx_status_t read_vocab(const mlx_source_t *source, bool tied_by_default, mlx_config_t *c) {
  const mlx_tensor_t *table = mlx_source_tensor(source, NULL, "token_embd.weight");
  bool found;
  if (mlx_source_is_gguf(source)) {
    c->vocab = table ? table->dims[0] : 0;
    c->tied_head = !mlx_source_tensor(source, NULL, "output.weight");
    return NULL;
  }
  c->tied_head = tied_by_default;
  MLX_TRY(mlx_source_int(source, "vocab_size", NULL, 1, 1 << 26, &c->vocab, NULL));
  if (mlx_source_multimodal(source)) {
    // Versions of transformers read tie_word_embeddings from different objects, with different defaults.
    c->tied_head = !mlx_source_tensor(source, "lm_head.weight", NULL) &&
                   !mlx_source_tensor(source, "lm_head.qweight", NULL);
    return NULL;
  }
  return mlx_source_bool(source, "tie_word_embeddings", NULL, &c->tied_head, &found);
}

// The sizes of attention and MLPs, which GGUF files of a model without them have as 0.
static mlx_status_t read_no_attention(const mlx_source_t *source, mlx_config_t *c) {
  int64_t none = 0;
  bool found;
  MLX_TRY(mlx_source_int(source, NULL, ".feed_forward_length", 0, 0, &none, &found));
  MLX_TRY(mlx_source_int(source, NULL, ".attention.head_count", 0, 0, &none, &found));
  c->heads = c->kv_heads = 1;
  c->head_dim = MLX_NO_HEAD_DIM;
  c->context = 1 << 20;
  return mlx_source_int(source, "max_position_embeddings", ".context_length", 1, 1 << 30, &c->context,
                        &found);
}

static mlx_status_t read_attention_and_mlp(const mlx_source_t *source, const mlx_size_names_t *names,
                                           mlx_config_t *c) {
  bool found;
  c->ffn = 4 * c->hidden;  // the default of gpt2's n_inner
  const char *ffn = names->ffn ? names->ffn : "intermediate_size";
  // A list: the caller reads it.
  if (!mlx_source_array_length(source, names->ffn_lists ? ffn : NULL, ".feed_forward_length"))
    MLX_TRY(
        mlx_source_int(source, ffn, ".feed_forward_length", 1, 1 << 20, &c->ffn, names->ffn ? &found : NULL));
  MLX_TRY(read_heads(source, names, c));
  MLX_TRY(require_causality(source, !names->encoder));
  return mlx_source_int(source, names->context ? names->context : "max_position_embeddings",
                        ".context_length", 1, 1 << 30, &c->context, NULL);
}

mlx_status_t mlx_read_sizes(const mlx_source_t *source, const mlx_size_names_t *names, bool tied_by_default,
                            mlx_config_t *c) {
  static const mlx_size_names_t usual;
  const int64_t big = 1 << 20;
  bool found;
  if (!names) names = &usual;
  c->layers = names->default_layers;
  MLX_TRY(mlx_source_int(source, names->layers ? names->layers : "num_hidden_layers", ".block_count", 1,
                         MLX_MAX_LAYERS, &c->layers, names->default_layers ? &found : NULL));
  MLX_TRY(mlx_source_int(source, names->hidden ? names->hidden : "hidden_size", ".embedding_length", 1, big,
                         &c->hidden, NULL));
  MLX_TRY(names->no_attention ? read_no_attention(source, c) : read_attention_and_mlp(source, names, c));
  MLX_TRY(read_vocab(source, tied_by_default, c));
  c->qkv_width = (c->heads + 2 * c->kv_heads) * c->head_dim;
  c->gate_up_width = 2 * c->ffn;
  c->attention_scale = 1.0 / sqrt((double)c->head_dim);
  c->embed_scale = c->residual_scale = c->logit_scale = 1.0;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Single fields

mlx_status_t mlx_read_eps(const mlx_source_t *source, const char *hf_key, const char *gguf_key,
                          mlx_config_t *c) {
  MLX_TRY(mlx_source_number(source, hf_key, gguf_key, &c->norm_eps, NULL));
  if (c->norm_eps >= 0.0 && c->norm_eps < 1.0) return NULL;
  return mlx_source_field_error(source, hf_key, gguf_key, MLX_INVALID_INPUT, "must be in [0, 1)");
}

mlx_status_t mlx_read_rms_eps(const mlx_source_t *source, mlx_config_t *c) {
  return mlx_read_eps(source, "rms_norm_eps", ".attention.layer_norm_rms_epsilon", c);
}

#define GGUF_ACT ".hidden_activation"

mlx_status_t mlx_read_act(const mlx_source_t *source, const char *hf_key, mlx_act_t fallback,
                          mlx_act_t *out) {
  static const struct {
    const char *name;
    mlx_act_t act;
  } known[] = {
      {"silu", MLX_ACT_SILU},
      {"swish", MLX_ACT_SILU},
      {"gelu", MLX_ACT_GELU},
      {"gelu_new", MLX_ACT_GELU_TANH},
      {"gelu_pytorch_tanh", MLX_ACT_GELU_TANH},
      {"gelu_fast", MLX_ACT_GELU_TANH},
      {"relu", MLX_ACT_RELU},
      {"relu2", MLX_ACT_RELU2},
  };
  const char *name;
  bool found;
  *out = fallback;
  MLX_TRY(mlx_source_string(source, hf_key, GGUF_ACT, &name, &found));
  if (!found) return NULL;
  for (size_t i = 0; i < sizeof known / sizeof *known; ++i) {
    if (strcmp(name, known[i].name)) continue;
    *out = known[i].act;
    return NULL;
  }
  return mlx_source_field_error(source, hf_key, GGUF_ACT, MLX_UNSUPPORTED,
                                "is '%s', an unsupported activation function", name);
}

bool mlx_gguf_is_nonzero(const mlx_source_t *source, const char *gguf_key) {
  int64_t value = 0;
  bool found;
  mlx_status_t status = mlx_source_int(source, NULL, gguf_key, INT64_MIN, INT64_MAX, &value, &found);
  if (!status) return value != 0;
  mlx_status_free(status);  // present but not an integer: reading the config reports it
  return true;
}

mlx_status_t mlx_read_number(const mlx_source_t *source, const char *hf_key, const char *gguf_key,
                             double fallback, double *out) {
  bool found;
  *out = fallback;
  return mlx_source_number(source, hf_key, gguf_key, out, &found);
}

mlx_status_t mlx_read_flag(const mlx_source_t *source, const char *hf_key, const char *gguf_tensor,
                           bool fallback, bool *out) {
  bool found;
  *out = fallback;
  if (!mlx_source_is_gguf(source)) return hf_key ? mlx_source_bool(source, hf_key, NULL, out, &found) : NULL;
  if (gguf_tensor) *out = mlx_source_tensor(source, NULL, gguf_tensor) != NULL;
  return NULL;
}

mlx_status_t mlx_read_attention_bias(const mlx_source_t *source, const char *hf_key, bool fallback,
                                     mlx_config_t *c) {
  MLX_TRY(mlx_read_flag(source, hf_key, "blk.0.attn_q.bias", fallback, &c->q_bias));
  MLX_TRY(mlx_read_flag(source, hf_key, "blk.0.attn_k.bias", fallback, &c->kv_bias));
  return mlx_read_flag(source, hf_key, "blk.0.attn_output.bias", fallback, &c->o_bias);
}

mlx_status_t mlx_require_flag(const mlx_source_t *source, const char *hf_key, bool expected) {
  bool on = expected, found;
  MLX_TRY(mlx_source_bool(source, hf_key, NULL, &on, &found));
  if (on == expected) return NULL;
  return mlx_source_field_error(source, hf_key, NULL, MLX_UNSUPPORTED, "is %s, which is not supported",
                                on ? "true" : "false");
}

mlx_status_t mlx_read_multipliers(const mlx_source_t *source, mlx_config_t *c) {
  double divisor;
  MLX_TRY(mlx_read_number(source, "embedding_multiplier", ".embedding_scale", 1.0, &c->embed_scale));
  MLX_TRY(mlx_read_number(source, "attention_multiplier", ".attention.scale", 1.0, &c->attention_scale));
  MLX_TRY(mlx_read_number(source, "residual_multiplier", ".residual_scale", 1.0, &c->residual_scale));
  MLX_TRY(mlx_read_number(source, "logits_scaling", ".logit_scale", 1.0, &divisor));
  if (divisor == 0.0)
    return mlx_source_field_error(source, "logits_scaling", ".logit_scale", MLX_INVALID_INPUT,
                                  "must not be 0");
  c->logit_scale = 1.0 / divisor;
  return NULL;
}

mlx_status_t mlx_read_query_scalar(const mlx_source_t *source, int64_t largest_layers, mlx_config_t *c) {
  double scalar = (double)(c->layers == largest_layers ? c->hidden / c->heads : c->head_dim);
  if (!mlx_source_is_gguf(source))
    MLX_TRY(mlx_source_number(source, "query_pre_attn_scalar", NULL, &scalar, NULL));
  if (!(scalar > 0.0))
    return mlx_source_field_error(source, "query_pre_attn_scalar", NULL, MLX_INVALID_INPUT,
                                  "must be greater than 0");
  c->attention_scale = 1.0 / sqrt(scalar);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Experts

mlx_status_t mlx_read_expert_counts(const mlx_source_t *source, mlx_config_t *c) {
  const char *name = mlx_source_has(source, "num_local_experts", NULL) ? "num_local_experts" : "num_experts";
  MLX_TRY(mlx_source_int(source, name, ".expert_count", 1, 4096, &c->experts, NULL));
  return mlx_source_int(source, "num_experts_per_tok", ".expert_used_count", 1, 64, &c->experts_used, NULL);
}

mlx_status_t mlx_read_expert_weights(const mlx_source_t *source, bool fallback, mlx_config_t *c) {
  const int64_t supported = c->sigmoid_scores ? 2 : 1;
  int64_t gating = supported;
  double scale = 1;
  bool found;
  c->experts_sum_to_one = fallback;
  MLX_TRY(mlx_source_bool(source, "norm_topk_prob", ".expert_weights_norm", &c->experts_sum_to_one, &found));
  MLX_TRY(mlx_source_int(source, NULL, ".expert_gating_func", 0, 1 << 20, &gating, &found));
  if (gating != supported && (gating || c->sigmoid_scores)) {
    return mlx_source_field_error(source, NULL, ".expert_gating_func", MLX_UNSUPPORTED,
                                  "is %lld; only %lld (%s) is supported", (long long)gating,
                                  (long long)supported, c->sigmoid_scores ? "sigmoid" : "softmax");
  }
  MLX_TRY(mlx_source_number(source, c->sigmoid_scores ? "routed_scaling_factor" : NULL,
                            ".expert_weights_scale", &scale, &found));
  if (c->sigmoid_scores) c->expert_scale = scale;
  if (c->sigmoid_scores || scale == 1.0 || scale == 0.0) return NULL;  // 0 means unscaled
  return mlx_source_field_error(source, NULL, ".expert_weights_scale", MLX_UNSUPPORTED,
                                "is %g; only 1 is supported", scale);
}

mlx_status_t mlx_read_shared_experts(const mlx_source_t *source, bool sum_to_one, mlx_config_t *c) {
  MLX_TRY(mlx_read_expert_counts(source, c));
  MLX_TRY(mlx_source_int(source, "moe_intermediate_size", ".expert_feed_forward_length", 1, 1 << 20,
                         &c->expert_ffn, NULL));
  MLX_TRY(mlx_source_int(source, "shared_expert_intermediate_size", ".expert_shared_feed_forward_length", 1,
                         1 << 20, &c->shared_ffn, NULL));
  c->one = 1;
  return mlx_read_expert_weights(source, sum_to_one, c);
}

mlx_status_t mlx_require_experts_everywhere(const mlx_source_t *source) {
  int64_t step = 1;
  bool found;
  MLX_TRY(mlx_source_int(source, "decoder_sparse_step", NULL, 1, 1 << 20, &step, &found));
  if (step != 1)
    return mlx_source_field_error(source, "decoder_sparse_step", NULL, MLX_UNSUPPORTED,
                                  "is %lld; only 1 is supported", (long long)step);
  if (!mlx_source_array_length(source, "mlp_only_layers", NULL)) return NULL;
  return mlx_source_field_error(source, "mlp_only_layers", NULL, MLX_UNSUPPORTED,
                                "is not empty, which is not supported");
}

// ----------------------------------------------------------------------------------------------------------
// Sliding windows

// Sets |out| for the layers that layer_types calls |type|.
static mlx_status_t read_layer_types(const mlx_source_t *source, const char *wanted, const mlx_config_t *c,
                                     bool *out) {
  if (mlx_source_array_length(source, "layer_types", NULL) != (size_t)c->layers) {
    return mlx_source_field_error(source, "layer_types", NULL, MLX_INVALID_INPUT,
                                  "must have one entry for each of the %lld layers", (long long)c->layers);
  }
  for (int64_t i = 0; i < c->layers; ++i) {
    const char *type;
    MLX_TRY(mlx_source_string_at(source, "layer_types", (size_t)i, &type));
    out[i] = !strcmp(type, wanted);
    if (!out[i] && strcmp(type, "full_attention")) {
      return mlx_source_field_error(source, "layer_types", NULL, MLX_UNSUPPORTED,
                                    "has '%s', an unsupported layer type", type);
    }
  }
  return NULL;
}

mlx_status_t mlx_read_recurrent_layers(const mlx_source_t *source, const char *type, mlx_config_t *c) {
  return read_layer_types(source, type, c, c->recurrent);
}

mlx_status_t mlx_read_layers_without_kv(const mlx_source_t *source, mlx_config_t *c) {
  const char *key = ".attention.head_count_kv";
  for (int64_t i = 0; i < c->layers; ++i) {
    int64_t heads;
    MLX_TRY(mlx_source_int_at(source, key, (size_t)i, &heads));
    c->recurrent[i] = heads == 0;
    if (heads && heads != c->kv_heads)
      return mlx_source_field_error(source, NULL, key, MLX_UNSUPPORTED, "has layers with different KV heads");
  }
  return NULL;
}

// GGUF stores either one bool per layer or one integer n: every n-th layer has full attention.
static mlx_status_t read_pattern(const mlx_source_t *source, int64_t *every, mlx_config_t *c) {
  const char *key = ".attention.sliding_window_pattern";
  const size_t listed = mlx_source_array_length(source, NULL, key);
  bool found;
  if (!listed) return mlx_source_int(source, NULL, key, 0, 1 << 20, every, &found);
  if (listed != (size_t)c->layers) {
    return mlx_source_field_error(source, NULL, key, MLX_INVALID_INPUT,
                                  "must have one entry for each of the %lld layers", (long long)c->layers);
  }
  for (int64_t i = 0; i < c->layers; ++i) {
    int64_t windowed;
    MLX_TRY(mlx_source_int_at(source, key, (size_t)i, &windowed));
    c->windowed[i] = windowed != 0;
  }
  return NULL;
}

mlx_status_t mlx_read_windows(const mlx_source_t *source, int64_t every, int64_t default_width,
                              mlx_config_t *c) {
  bool found;
  c->window = mlx_source_is_gguf(source) || mlx_source_mentions(source, "sliding_window") ? 0 : default_width;
  MLX_TRY(
      mlx_source_int(source, "sliding_window", ".attention.sliding_window", 0, 1 << 30, &c->window, &found));
  MLX_TRY(read_pattern(source, &every, c));
  if (mlx_source_has(source, "layer_types", NULL)) {
    MLX_TRY(read_layer_types(source, "sliding_attention", c, c->windowed));
  } else if (!mlx_source_array_length(source, NULL, ".attention.sliding_window_pattern")) {
    for (int64_t i = 0; i < c->layers; ++i) c->windowed[i] = every == 0 || (i + 1) % every != 0;
  }
  for (int64_t i = 0; i < c->layers && !c->window; ++i) c->windowed[i] = false;
  return NULL;
}

mlx_status_t mlx_read_qwen_windows(const mlx_source_t *source, mlx_config_t *c) {
  bool on, found;
  int64_t first = 28;
  MLX_TRY(mlx_read_flag(source, "use_sliding_window", NULL, false, &on));
  if (!on) return NULL;
  MLX_TRY(mlx_read_windows(source, 0, 4096, c));
  MLX_TRY(mlx_source_int(source, "max_window_layers", NULL, 0, 1 << 20, &first, &found));
  if (mlx_source_has(source, "layer_types", NULL)) return NULL;
  for (int64_t i = 0; i < c->layers && i < first; ++i) c->windowed[i] = false;
  return NULL;
}
