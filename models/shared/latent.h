// Multi-head latent attention (MLA), which several architectures share. Keys and values of all heads are
// products of one row of kv_rank numbers, and all heads share rope_dim more numbers with the rotary positions
// of a key. The cache keeps only these. The first product is applied to the queries (absorbed) and the second
// to the attended rows, in prefill and in decode.
#ifndef MLXCEL_MODELS_SHARED_LATENT_H_
#define MLXCEL_MODELS_SHARED_LATENT_H_

#include "models/shared/routed.h"

// kv_b_proj has nope_dim rows of keys and then value_dim rows of values for each head. The network reads it
// as two weights: of keys, transposed, and of values. Newer GGUF files store these two.
// clang-format off
#define MLX_RULES_LATENT_ATTENTION                                                                              \
  MLX_LAYER_MATRIX("self_attn.q_proj.weight", "attn_q.weight", MLX_PRODUCT(heads, query_dim), MLX_DIM(hidden),   \
                   .present = mlx_has_plain_queries),                                                            \
  MLX_LAYER_MATRIX("self_attn.q_a_proj.weight", "attn_q_a.weight", MLX_DIM(query_rank), MLX_DIM(hidden),         \
                   .present = mlx_has_query_rank),                                                               \
  MLX_LAYER_VECTOR("self_attn.q_a_proj.bias", "attn_q_a.bias", MLX_DIM(query_rank), .present = mlx_has_q_bias),  \
  MLX_LAYER_VECTOR("self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight", MLX_DIM(query_rank),                \
                   .present = mlx_has_query_rank),                                                               \
  MLX_LAYER_MATRIX("self_attn.q_b_proj.weight", "attn_q_b.weight", MLX_PRODUCT(heads, query_dim),                \
                   MLX_DIM(query_rank), .present = mlx_has_query_rank),                                          \
  MLX_LAYER_MATRIX("self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight", MLX_DIM(head_dim),             \
                   MLX_DIM(hidden)),                                                                             \
  MLX_LAYER_VECTOR("self_attn.kv_a_proj_with_mqa.bias", "attn_kv_a_mqa.bias", MLX_DIM(head_dim),                 \
                   .present = mlx_has_kv_bias),                                                                  \
  MLX_LAYER_VECTOR("self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight", MLX_DIM(kv_rank)),                \
  MLX_RULE_OF_HEADS("k_b", MLX_DIM(kv_rank), MLX_DIM(nope_dim), .whole_transposed = true),                       \
  MLX_RULE_OF_HEADS("v_b", MLX_DIM(value_dim), MLX_DIM(kv_rank), .whole_first = MLX_DIM(nope_dim)),              \
  MLX_LAYER_MATRIX("self_attn.o_proj.weight", "attn_output.weight", MLX_DIM(hidden),                             \
                   MLX_PRODUCT(heads, value_dim)),                                                               \
  MLX_LAYER_VECTOR("self_attn.o_proj.bias", "attn_output.bias", MLX_DIM(hidden), .present = mlx_has_o_bias)

#define MLX_RULE_OF_HEADS(part, rows, columns, ...)                                                              \
  {.hf_name = "model.layers.%d.self_attn." part "_proj.weight", .gguf_name = "blk.%d.attn_" part ".weight",      \
   .rank = 3, .dims = {MLX_DIM(heads), rows, columns}, .hf_whole = "model.layers.%d.self_attn.kv_b_proj.weight", \
   .gguf_whole = "blk.%d.attn_kv_b.weight", .fused_rows = MLX_DIM(key_value_dim), __VA_ARGS__}
// clang-format on

// Defaults of the class for missing fields of config.json. 0: the field is required.
typedef struct mlx_latent_fields {
  int64_t kv_rank, query_rank, nope_dim, rope_dim, value_dim;
  bool hidden_values;      // a missing value_dim is hidden / heads
  bool interleaved;        // the rope's default: neighbouring elements are a pair
  bool fixed_interleaved;  // config.json has no field for that
  const char *partial;     // as in mlx_rope_fields_t: of the whole head, of which rope_dim elements rotate
} mlx_latent_fields_t;

// Reads what latent attention is made of: c->kv_rank to c->key_value_dim of mlx_config_t, head_dim,
// kv_heads, attention_scale, the biases and the rope. Call after mlx_read_sizes with |latent|.
mlx_status_t mlx_read_latent(const mlx_source_t *source, const mlx_latent_fields_t *fields,
                             mlx_config_t *c) MLX_MUST_USE;

// The attention of a layer with MLX_RULES_LATENT_ATTENTION, from h [M, hidden] to [M, hidden].
mlx_value_t mlx_block_latent_attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h);
// Llama's layer with it, and with the MLP of MLX_RULES_ROUTED_MLP.
mlx_value_t mlx_latent_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x);

// Whether a GGUF file has experts chosen by sigmoids, as DeepSeek V3, or by a softmax, as DeepSeek V2. Files
// without a field for that have a bias of the choice if they have sigmoids.
bool mlx_gguf_has_sigmoids(const mlx_source_t *source);

// For the present field of mlx_tensor_rule_t.
bool mlx_has_query_rank(const mlx_config_t *c);
bool mlx_has_plain_queries(const mlx_config_t *c);

#endif  // MLXCEL_MODELS_SHARED_LATENT_H_
