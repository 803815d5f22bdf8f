// Fields that many architectures share, read and checked in one way. Each function refuses by name what it
// does not handle.
#ifndef MLXCEL_MODELS_SHARED_FIELDS_H_
#define MLXCEL_MODELS_SHARED_FIELDS_H_

#include "models/model.h"

// Names of the sizes in config.json, where they are not the usual ones. NULL: the usual one. And what Hugging
// Face's class takes them for when config.json does not have them, where that is a number of its own.
typedef struct mlx_size_names {
  const char *layers, *hidden, *ffn, *heads, *kv_heads, *context;
  int64_t default_head_dim;  // 0: hidden / heads
  int64_t default_kv_heads;  // 0: as many as heads
} mlx_size_names_t;

// layers, hidden, ffn, heads, kv_heads, head_dim, context, vocab, tied_head, and the widths that follow from
// them. |names| may be NULL. |tied_by_default| is what the architecture means when tie_word_embeddings is not
// there.
mlx_status_t mlx_read_sizes(const mlx_source_t *source, const mlx_size_names_t *names, bool tied_by_default,
                            mlx_config_t *c) MLX_MUST_USE;

// norm_eps, which must lie in [0, 1)
mlx_status_t mlx_read_eps(const mlx_source_t *source, const char *hf_key, const char *gguf_key,
                          mlx_config_t *c) MLX_MUST_USE;

// The activation that field |hf_key| names. Where it is not there, and in GGUF, which has no field for it:
// |otherwise|.
mlx_status_t mlx_read_act(const mlx_source_t *source, const char *hf_key, mlx_act_t otherwise,
                          mlx_act_t *out) MLX_MUST_USE;

// True when GGUF metadata has the whole number |gguf_key|, and it is not 0. For mlx_arch_t's takes.
bool mlx_gguf_says(const mlx_source_t *source, const char *gguf_key);

// A number with a default. The GGUF key may be NULL.
mlx_status_t mlx_read_number(const mlx_source_t *source, const char *hf_key, const char *gguf_key,
                             double otherwise, double *out) MLX_MUST_USE;

// A switch of config.json with a default; in GGUF it is on when |gguf_tensor| (of layer 0, without a %d) is
// there.
mlx_status_t mlx_read_switch(const mlx_source_t *source, const char *hf_key, const char *gguf_tensor,
                             bool otherwise, bool *out) MLX_MUST_USE;
// q_bias, kv_bias and o_bias, which one switch turns on together; in GGUF each is on when its tensor is
// there.
mlx_status_t mlx_read_attention_bias(const mlx_source_t *source, const char *hf_key, bool otherwise,
                                     mlx_config_t *c) MLX_MUST_USE;
// Refuses a switch that is not |expected|; one that is not there is as expected.
mlx_status_t mlx_require_switch(const mlx_source_t *source, const char *hf_key, bool expected) MLX_MUST_USE;

// Which layers have a window, and how wide it is. config.json says it in layer_types, GGUF in
// attention.sliding_window_pattern; where they do not, every |every|-th layer has none (1: none has one, 0:
// all have). A config.json that does not mention the width means |otherwise|; without a width no layer has
// one.
mlx_status_t mlx_read_windows(const mlx_source_t *source, int64_t every, int64_t otherwise,
                              mlx_config_t *c) MLX_MUST_USE;

// Qwen's windows: only with use_sliding_window, and where there are no layer_types, from layer
// max_window_layers on.
mlx_status_t mlx_read_late_windows(const mlx_source_t *source, mlx_config_t *c) MLX_MUST_USE;

// Granite's factors: embed_scale, attention_scale, residual_scale and logit_scale. After mlx_read_sizes.
mlx_status_t mlx_read_multipliers(const mlx_source_t *source, mlx_config_t *c) MLX_MUST_USE;

// experts, which transformers 5 calls num_local_experts where files had num_experts before
mlx_status_t mlx_read_expert_count(const mlx_source_t *source, mlx_config_t *c) MLX_MUST_USE;

// experts_sum_to_one. |otherwise| is what a file means that does not say it.
mlx_status_t mlx_read_expert_weights(const mlx_source_t *source, bool otherwise,
                                     mlx_config_t *c) MLX_MUST_USE;

// import/rope.c. What an architecture's ropes have besides the usual fields.
typedef struct mlx_rope_fields {
  const char *group;       // of rope_parameters, where it has one a kind of layer; NULL: it has one
  const char *theta;       // name of the base outside of rope_parameters; NULL: "rope_theta"
  const char *gguf_theta;  // NULL: ".rope.freq_base"
  double default_theta;    // 0: 10000
  const char
      *partial;  // name of the share of a head that is turned, outside of rope_parameters; NULL: all is
  double default_partial;  // 0: 1
  const char *alpha;  // name of a number that makes "dynamic" a fixed stretch of the base; NULL: it has none
  bool adjacent;      // as in mlx_rope_t
  bool unscaled;      // rope_scaling is not for it
  bool gguf_untruncated;  // yarn's range is not rounded to whole pairs; GGUF has no field for it
} mlx_rope_fields_t;

// Reads one rope of scaling type default, linear, dynamic, yarn, llama3 or longrope. After mlx_read_sizes. A
// longrope also fills c->local_rope and c->local_context.
mlx_status_t mlx_read_rope(const mlx_source_t *source, const mlx_rope_fields_t *fields, mlx_config_t *c,
                           mlx_rope_t *out) MLX_MUST_USE;

// Rules of the present field of mlx_tensor_rule_t.
bool mlx_has_own_head(const mlx_config_t *c);
bool mlx_has_q_bias(const mlx_config_t *c);
bool mlx_has_kv_bias(const mlx_config_t *c);
bool mlx_has_o_bias(const mlx_config_t *c);
bool mlx_has_mlp_bias(const mlx_config_t *c);
bool mlx_has_qk_norm(const mlx_config_t *c);

#endif  // MLXCEL_MODELS_SHARED_FIELDS_H_
