// MLPs with a router, which several architectures share: a dense MLP in the first layers; in the others
// experts, chosen for each token by scores, and an expert that every token uses.
#ifndef MLXCEL_MODELS_SHARED_ROUTED_H_
#define MLXCEL_MODELS_SHARED_ROUTED_H_

#include "models/shared/blocks.h"

// |router| and |bias|: names of the router and of its bias of the choice in Hugging Face's files. |shared|:
// what the names of the shared expert begin with there.
// clang-format off
#define MLX_RULES_ROUTED_MLP(router, bias, shared)                                                          \
  MLX_RULES_MLP_OF("mlp.", "mlp.", "", MLX_DIM(ffn), NULL, mlx_has_mlp_bias, MLX_IN_DENSE),                 \
  MLX_LAYER_MATRIX("mlp.gate.weight", "ffn_gate_inp.weight", MLX_DIM(experts), MLX_DIM(hidden),             \
                   .hf_stored = "model.layers.%d." router, MLX_IN_EXPERTS),                                 \
  MLX_LAYER_VECTOR("mlp.gate.e_score_correction_bias", "exp_probs_b.bias", MLX_DIM(experts),                \
                   .hf_stored = "model.layers.%d." bias, .flat = true, .present = mlx_has_choice_bias,      \
                   MLX_IN_EXPERTS),                                                                         \
  MLX_STACKED_EXPERTS("mlp.", "gate_proj", "ffn_gate_exps", MLX_DIM(expert_ffn), MLX_DIM(hidden),           \
                      "gate_up_proj", MLX_FUSED_FIRST_HALF, MLX_IN_EXPERTS),                                \
  MLX_STACKED_EXPERTS("mlp.", "up_proj", "ffn_up_exps", MLX_DIM(expert_ffn), MLX_DIM(hidden),               \
                      "gate_up_proj", MLX_FUSED_SECOND_HALF, MLX_IN_EXPERTS),                               \
  MLX_STACKED_EXPERTS("mlp.", "down_proj", "ffn_down_exps", MLX_DIM(hidden), MLX_DIM(expert_ffn),           \
                      "down_proj", MLX_NOT_FUSED, MLX_IN_EXPERTS),                                          \
  MLX_RULES_MLP_OF("mlp.shared_experts.", shared, "_shexp", MLX_DIM(shared_ffn), mlx_has_shared_expert,     \
                   mlx_has_shared_bias, MLX_IN_EXPERTS)

// A gated MLP of width |width|. |name|: what our names begin with, |stored| those of Hugging Face's files.
#define MLX_RULES_MLP_OF(name, stored, gguf, width, has, has_bias, ...)                                     \
  MLX_LAYER_MATRIX(name "gate_proj.weight", "ffn_gate" gguf ".weight", width, MLX_DIM(hidden),              \
                   .hf_stored = "model.layers.%d." stored "gate_proj.weight", .present = has, __VA_ARGS__), \
  MLX_LAYER_MATRIX(name "up_proj.weight", "ffn_up" gguf ".weight", width, MLX_DIM(hidden),                  \
                   .hf_stored = "model.layers.%d." stored "up_proj.weight", .present = has, __VA_ARGS__),   \
  MLX_LAYER_MATRIX(name "down_proj.weight", "ffn_down" gguf ".weight", MLX_DIM(hidden), width,              \
                   .hf_stored = "model.layers.%d." stored "down_proj.weight", .present = has, __VA_ARGS__), \
  MLX_LAYER_VECTOR(name "gate_proj.bias", "ffn_gate" gguf ".bias", width, .present = has_bias,              \
                   .hf_stored = "model.layers.%d." stored "gate_proj.bias", __VA_ARGS__),                   \
  MLX_LAYER_VECTOR(name "up_proj.bias", "ffn_up" gguf ".bias", width, .present = has_bias,                  \
                   .hf_stored = "model.layers.%d." stored "up_proj.bias", __VA_ARGS__),                     \
  MLX_LAYER_VECTOR(name "down_proj.bias", "ffn_down" gguf ".bias", MLX_DIM(hidden), .present = has_bias,    \
                   .hf_stored = "model.layers.%d." stored "down_proj.bias", __VA_ARGS__)
// clang-format on

// The fields of config.json, and their defaults where the class has usual ones. NULL: there is no such field.
typedef struct mlx_routed_fields {
  const char *experts, *used, *width;  // NULL: "n_routed_experts", "num_experts_per_tok" and
                                       // "moe_intermediate_size"
  const char *shared;                  // number of experts that every token uses; NULL: "n_shared_experts"
  const char *dense;                   // number of dense layers; NULL: "first_k_dense_replace"
  int64_t default_dense;
  const char *scale;  // factor of the weights; NULL: "routed_scaling_factor"
  double default_scale;
  int64_t default_groups, default_groups_used;  // 0: 1
  const char *sum_to_one;  // NULL: "norm_topk_prob". GGUF files without a field for it have |default_sum|
  bool default_sum;
} mlx_routed_fields_t;

// Reads the sizes of the experts and what the router does: c->experts to c->dense_layers of mlx_config_t.
// c->sigmoid_scores, c->choice_bias and c->expert_sum_eps are the caller's.
mlx_status_t mlx_read_routed(const mlx_source_t *source, const mlx_routed_fields_t *fields,
                             mlx_config_t *c) MLX_MUST_USE;
// The layers for multi-token prediction after c->layers, which are not used. GGUF's block_count has them.
// |fallback|: the number that config.json means without a field for it.
mlx_status_t mlx_read_draft_layers(const mlx_source_t *source, int64_t fallback,
                                   mlx_config_t *c) MLX_MUST_USE;

// The MLP of a layer with MLX_RULES_ROUTED_MLP, from h [M, hidden] to [M, hidden].
mlx_value_t mlx_block_routed_mlp(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h);
// Llama's layer with that MLP.
mlx_value_t mlx_routed_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x);

// For the present field of mlx_tensor_rule_t.
bool mlx_has_choice_bias(const mlx_config_t *c);
bool mlx_has_shared_expert(const mlx_config_t *c);
bool mlx_has_shared_bias(const mlx_config_t *c);

#endif  // MLXCEL_MODELS_SHARED_ROUTED_H_
