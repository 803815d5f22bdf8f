// Readers of config fields that several architectures share. Each reader refuses values it does not support,
// naming the field.
#ifndef MLXCEL_MODELS_SHARED_FIELDS_H_
#define MLXCEL_MODELS_SHARED_FIELDS_H_

#include "models/arch.h"
#include "models/shared/rope.h"

// The names of the sizes in config.json, where they are not the usual ones (NULL: the usual name), and the
// defaults of the Hugging Face class for missing sizes.
typedef struct mlx_size_names {
  const char *layers, *hidden, *ffn, *heads, *kv_heads, *context;
  int64_t default_head_dim;  // 0: hidden / heads
  int64_t default_kv_heads;  // 0: heads
  int64_t default_layers;    // 0: the field is required
  bool ffn_lists;            // |ffn| may be a list in config.json, too, which the caller reads
  bool encoder;              // attention is not causal
  bool no_attention;         // the model has neither attention nor MLPs; its context may be any
  bool latent;               // mlx_read_latent reads the sizes of heads
} mlx_size_names_t;

// Reads layers, hidden, ffn, heads, kv_heads, head_dim, context, vocab and tied_head, and sets the widths and
// scales that follow from them. |names| may be NULL. |tied_by_default| applies if config.json has no
// tie_word_embeddings.
mlx_status_t mlx_read_sizes(const mlx_source_t *source, const mlx_size_names_t *names, bool tied_by_default,
                            mlx_config_t *c) MLX_MUST_USE;

// Reads norm_eps, which must be in [0, 1).
mlx_status_t mlx_read_eps(const mlx_source_t *source, const char *hf_key, const char *gguf_key,
                          mlx_config_t *c) MLX_MUST_USE;
// The same under the usual names of RMSNorm.
mlx_status_t mlx_read_rms_eps(const mlx_source_t *source, mlx_config_t *c) MLX_MUST_USE;

// The activation that |hf_key| names, or |fallback| if it is missing. Most GGUF files have no field for it.
mlx_status_t mlx_read_act(const mlx_source_t *source, const char *hf_key, mlx_act_t fallback,
                          mlx_act_t *out) MLX_MUST_USE;

// A number, or |fallback| if it is missing. |gguf_key| may be NULL.
mlx_status_t mlx_read_number(const mlx_source_t *source, const char *hf_key, const char *gguf_key,
                             double fallback, double *out) MLX_MUST_USE;

// A boolean of config.json, or |fallback| if it is missing. In GGUF it is true if |gguf_tensor|, a tensor of
// layer 0, exists.
mlx_status_t mlx_read_flag(const mlx_source_t *source, const char *hf_key, const char *gguf_tensor,
                           bool fallback, bool *out) MLX_MUST_USE;
// q_bias, kv_bias and o_bias from one boolean. In GGUF each is true if its tensor exists.
mlx_status_t mlx_read_attention_bias(const mlx_source_t *source, const char *hf_key, bool fallback,
                                     mlx_config_t *c) MLX_MUST_USE;
// Refuses a boolean of config.json that differs from |expected|. A missing field counts as |expected|.
mlx_status_t mlx_require_flag(const mlx_source_t *source, const char *hf_key, bool expected) MLX_MUST_USE;

// True if GGUF metadata has the integer |gguf_key| and it is not 0. For the matches function of mlx_arch_t.
bool mlx_gguf_is_nonzero(const mlx_source_t *source, const char *gguf_key);

// Which layers have a sliding window, and its width. The layers come from layer_types in config.json or from
// attention.sliding_window_pattern in GGUF. Without these, every |every|-th layer has full attention (1: all
// layers, 0: none). |default_width| applies if config.json does not mention sliding_window. A width of 0
// means that no layer has a window.
mlx_status_t mlx_read_windows(const mlx_source_t *source, int64_t every, int64_t default_width,
                              mlx_config_t *c) MLX_MUST_USE;
// Which layers are recurrent: those that layer_types calls |type|. The others have full attention.
mlx_status_t mlx_read_recurrent_layers(const mlx_source_t *source, const char *type,
                                       mlx_config_t *c) MLX_MUST_USE;
// GGUF: recurrent are the layers without KV heads; attention.head_count_kv is a list.
mlx_status_t mlx_read_layers_without_kv(const mlx_source_t *source, mlx_config_t *c) MLX_MUST_USE;
// Qwen's windows: only if use_sliding_window is true. Without layer_types, layers from max_window_layers on
// have one.
mlx_status_t mlx_read_qwen_windows(const mlx_source_t *source, mlx_config_t *c) MLX_MUST_USE;

// Granite's factors: embed_scale, attention_scale, residual_scale and logit_scale. Call after mlx_read_sizes.
mlx_status_t mlx_read_multipliers(const mlx_source_t *source, mlx_config_t *c) MLX_MUST_USE;

// Gemma's attention_scale from query_pre_attn_scalar. GGUF does not store that number. It is hidden /
// heads in the largest model, which has |largest_layers| layers, and head_dim in all other models.
mlx_status_t mlx_read_query_scalar(const mlx_source_t *source, int64_t largest_layers,
                                   mlx_config_t *c) MLX_MUST_USE;

// experts and experts_used. transformers 5 writes num_local_experts, older files num_experts.
mlx_status_t mlx_read_expert_counts(const mlx_source_t *source, mlx_config_t *c) MLX_MUST_USE;
// experts_sum_to_one, or |fallback| if the file has no field for it.
mlx_status_t mlx_read_expert_weights(const mlx_source_t *source, bool fallback, mlx_config_t *c) MLX_MUST_USE;
// The fields of a mixture with a shared expert: mlx_read_expert_counts, mlx_read_expert_weights, expert_ffn
// and shared_ffn.
mlx_status_t mlx_read_shared_experts(const mlx_source_t *source, bool sum_to_one,
                                     mlx_config_t *c) MLX_MUST_USE;
// Refuses models in which some layers have a dense MLP instead of experts.
mlx_status_t mlx_require_experts_everywhere(const mlx_source_t *source) MLX_MUST_USE;

// For the present field of mlx_tensor_rule_t.
bool mlx_has_untied_head(const mlx_config_t *c);
bool mlx_has_q_bias(const mlx_config_t *c);
bool mlx_has_kv_bias(const mlx_config_t *c);
bool mlx_has_o_bias(const mlx_config_t *c);
bool mlx_has_conv_bias(const mlx_config_t *c);
bool mlx_has_mlp_bias(const mlx_config_t *c);
bool mlx_has_head_bias(const mlx_config_t *c);
bool mlx_has_qk_norm(const mlx_config_t *c);

#endif  // MLXCEL_MODELS_SHARED_FIELDS_H_
