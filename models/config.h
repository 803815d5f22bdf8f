// The configuration of a model: sizes and options of every supported architecture in one struct. A field that
// an architecture does not use stays 0.
#ifndef MLXCEL_MODELS_CONFIG_H_
#define MLXCEL_MODELS_CONFIG_H_

#include "graph/ops.h"

#define MLX_MAX_LAYERS 1024
#define MLX_MAX_DENSE 2          // layers after the pool
#define MLX_MAX_SCORE_ROW 16384  // numbers of a decoder's class head
#define MLX_NO_HEAD_DIM 8  // head_dim of a model without attention, which has one head; no layer uses it

// What follows the product of a layer after the pool.
typedef enum mlx_dense_act {
  MLX_DENSE_NO_ACT = 0,
  MLX_DENSE_TANH,
  MLX_DENSE_GELU,
  MLX_DENSE_RELU,
  MLX_DENSE_SILU,
} mlx_dense_act_t;

typedef struct mlx_dense {
  int64_t width;  // of its output
  int64_t bias;   // 1: it has one
  mlx_dense_act_t act;
} mlx_dense_t;

typedef struct mlx_config {
  int64_t layers;
  int64_t draft_layers;  // layers after these, which only speculative decoding uses
  int64_t hidden;        // width of the residual stream
  int64_t ffn;           // width inside the MLP
  int64_t heads;         // query heads
  int64_t kv_heads;      // key and value heads; divides heads
  int64_t head_dim;
  int64_t vocab;
  int64_t context;  // context length the model was trained for
  double norm_eps;
  double post_norm_eps;  // of norms after attention and MLP, if it may differ
  bool norm_centered;    // LayerNorm in an architecture that has RMSNorm or LayerNorm
  bool whole_norms;      // the file has whole norm weights where Hugging Face's files have weight - 1
  bool tied_head;        // the LM head shares the embedding table

  // Extents of tensor rules that follow from the sizes above.
  int64_t qkv_width;      // (heads + 2 * kv_heads) * head_dim, for a fused q, k and v
  int64_t gate_up_width;  // 2 * ffn, for a fused gate and up
  int64_t one;            // 1, for a matrix with one row

  // Layers that differ from others.
  int64_t wide_ffn;                    // width inside the MLP of the last |shared_kv_layers|
  float layer_scales[MLX_MAX_LAYERS];  // factor of each layer's output; 0: 1
  // Per-layer embeddings: each layer adds its own embedding of the token.
  int64_t layer_embedding;   // width of it; 0: there is none
  int64_t layer_embeddings;  // of all layers side by side
  int64_t layer_vocab;       // rows of their table; tokens after the last one have the first row's embedding
  // Residual streams (AltUp), numbers for the extents of rules, and the rank of the product beside attention.
  int64_t streams, more_streams, stream_pairs, laurel_rank;
  bool altup_scaled;               // the first stream has a gain before the per-layer embedding
  bool sparse[MLX_MAX_LAYERS];     // only the largest numbers of the gate of the layer's MLP count: those
  float sparsity[MLX_MAX_LAYERS];  // that are so many standard deviations above their mean

  // Mixture of experts.
  int64_t experts;                            // per layer
  int64_t experts_used;                       // per token
  int64_t expert_ffn;                         // width inside one expert
  int64_t shared_ffn;                         // width inside the expert that every token uses
  bool experts_sum_to_one;                    // the weights of a token's experts are normalised to sum to 1
  double gate_limit, gate_slope;              // as in mlx_experts_t
  bool sigmoid_scores;                        // the weights of experts are sigmoids, not a softmax
  bool choice_bias;                           // a bias of the choice of experts
  double expert_sum_eps, expert_scale;        // sum_eps and weight_scale of mlx_experts_t
  double expert_spread;                       // spread of mlx_experts_t
  int64_t expert_groups, expert_groups_used;  // 0 or 1: no groups
  bool expert_groups_by_best;                 // groups_by_best of mlx_experts_t
  int64_t dense_layers;                       // layers with an MLP instead, the first ones
  bool mixture[MLX_MAX_LAYERS];               // layers with a mixture, if any layers may have one
  int64_t expert_hidden;                      // width of what the experts read and write, if it may differ

  mlx_act_t act;
  float act_numbers[MLX_MAX_LAYERS][MLX_ACT_NUMBERS];  // of an activation with numbers, as in mlx_op_activate
  bool q_bias, kv_bias, o_bias, mlp_bias, head_bias;
  bool fused_mlp;  // gate and up of the shared expert are one matrix
  bool parallel;   // attention and MLP read the same input and are added to it together
  double embed_scale, residual_scale, logit_scale;  // factors; residual: of each sublayer's output
  double logit_softcap;                             // 0: none

  // Attention.
  double attention_scale;         // factor of the scores
  double attention_softcap;       // 0: none
  bool qk_norm;                   // queries and keys are normalised
  double clip;                    // q, k and v are clamped to [-clip, clip]; 0: no clamping
  bool sinks;                     // each head has an attention sink
  int64_t window;                 // positions that a query of a windowed layer sees
  int64_t global_head_dim;        // head_dim of layers without a window, if it may differ
  int64_t global_kv_heads;        // their KV heads, likewise
  bool values_are_keys;           // in layers without a window: values are keys before their norm
  int64_t shared_kv_layers;       // the last layers: they attend to the keys and values of earlier layers
  bool windowed[MLX_MAX_LAYERS];  // layers with sliding-window attention
  double query_scale_beta;        // queries are scaled by 1 + beta * log(1 + floor(position / period))
  int64_t query_scale_period;     // 0: no scaling

  // Latent attention: the cache keeps a row of kv_rank + rope_dim numbers for all heads, which are
  // head_dim.
  int64_t kv_rank;             // width of the compressed keys and values; 0: no latent attention
  int64_t query_rank;          // width of the compressed queries; 0: they are not compressed
  int64_t nope_dim, rope_dim;  // parts of a head of queries and keys without and with rotary positions
  int64_t query_dim;           // nope_dim + rope_dim
  int64_t value_dim;           // of a head's values
  int64_t key_value_dim;       // nope_dim + value_dim: rows of a head in the projection of the compressed row

  // Recurrent layers.
  bool recurrent[MLX_MAX_LAYERS];  // layers without attention; their KV heads are not stored
  bool mlp_only[MLX_MAX_LAYERS];   // layers with an MLP or a mixture instead of attention
  int64_t conv_taps, conv_width;   // of the convolution: taps and channels
  bool conv_bias;
  int64_t conv_in_width;                 // rows of the input projection of LFM2 (3 * hidden) and of Mamba 2
  mlx_delta_t delta;                     // of the gated delta rule
  int64_t gated_heads;                   // 2 * heads, for queries with a gate
  int64_t delta_qkvz, delta_ba;          // rows of Qwen3-Next's fused projections
  mlx_scan_t scan;                       // of Mamba 2
  int64_t scan_norm_groups;              // heads are normalised in so many groups; 0: no norm
  bool scan_norm_first;                  // the norm is before the gate
  bool scan_in_bias, scan_out_bias;      // of the input and of the output projection
  int64_t step_rank;                     // of Mamba 1: width of what the steps are a product of
  int64_t scan_x_width;                  // step_rank + 2 * scan.state_size
  bool scan_part_norms;                  // that, B and C have norms
  double scan_in_scale, scan_scales[5];  // factors of the input, and of z, x, B, C and dt
  double key_scale, attention_in_scale, attention_out_scale, scan_out_scale;  // Falcon-H1
  double gate_scale, down_scale;                                              // of its MLP

  // Encoders.
  bool encoder;           // attention sees whole texts, and each text gives one vector
  mlx_pooling_t pooling;  // how
  bool normalize;         // that vector gets the Euclidean norm 1
  bool headless;          // a decoder without an LM head: its files are those of an embedding model
  size_t dense_count;     // layers of the pooled vector
  mlx_dense_t dense[MLX_MAX_DENSE];
  int64_t positions;      // that the table of learned positions has
  int64_t position_rows;  // its rows in the file, which may begin with rows of no position
  int64_t labels;     // scores of a text that the class head gives; 0: there is no class head. Of a decoder
                      // 1: the runtime computes the score of its hidden state (models/import/classifier.h)
  int64_t distances;  // buckets of distances that a bias of attention scores depends on
  int64_t types;      // of tokens; 0 and 1: all tokens have the same type

  // Rotary positions.
  mlx_rope_t rope;
  mlx_rope_t local_rope;         // of windowed layers, if they differ; for longrope the one of short contexts
  int64_t local_context;         // longrope: context length up to which local_rope applies; 0: no longrope
  bool no_rope[MLX_MAX_LAYERS];  // layers without rotary positions
} mlx_config_t;

#endif  // MLXCEL_MODELS_CONFIG_H_
