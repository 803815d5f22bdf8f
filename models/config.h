// The configuration of a model: sizes and options of every supported architecture in one struct. A field that
// an architecture does not use stays 0.
#ifndef MLXCEL_MODELS_CONFIG_H_
#define MLXCEL_MODELS_CONFIG_H_

#include "graph/ops.h"

#define MLX_MAX_LAYERS 1024

typedef struct mlx_config {
  int64_t layers;
  int64_t hidden;    // width of the residual stream
  int64_t ffn;       // width inside the MLP
  int64_t heads;     // query heads
  int64_t kv_heads;  // key and value heads; divides heads
  int64_t head_dim;
  int64_t vocab;
  int64_t context;  // context length the model was trained for
  double norm_eps;
  bool tied_head;  // the LM head shares the embedding table

  // Extents of tensor rules that follow from the sizes above.
  int64_t qkv_width;      // (heads + 2 * kv_heads) * head_dim, for a fused q, k and v
  int64_t gate_up_width;  // 2 * ffn, for a fused gate and up
  int64_t one;            // 1, for a matrix with one row

  // Mixture of experts.
  int64_t experts;                // per layer
  int64_t experts_used;           // per token
  int64_t expert_ffn;             // width inside one expert
  int64_t shared_ffn;             // width inside the expert that every token uses
  bool experts_sum_to_one;        // the weights of a token's experts are normalised to sum to 1
  double gate_limit, gate_slope;  // as in mlx_experts_t

  mlx_act_t act;
  bool q_bias, kv_bias, o_bias, mlp_bias;
  bool parallel;  // attention and MLP read the same input and are added to it together
  double embed_scale, residual_scale, logit_scale;  // factors; residual: of each sublayer's output
  double logit_softcap;                             // 0: none

  // Attention.
  double attention_scale;         // factor of the scores
  double attention_softcap;       // 0: none
  bool qk_norm;                   // queries and keys are normalised
  double clip;                    // q, k and v are clamped to [-clip, clip]; 0: no clamping
  bool sinks;                     // each head has an attention sink
  int64_t window;                 // positions that a query of a windowed layer sees
  bool windowed[MLX_MAX_LAYERS];  // layers with sliding-window attention
  double query_scale_beta;        // queries are scaled by 1 + beta * log(1 + floor(position / period))
  int64_t query_scale_period;     // 0: no scaling

  // Rotary positions.
  mlx_rope_t rope;
  mlx_rope_t local_rope;         // of windowed layers, if they differ; for longrope the one of short contexts
  int64_t local_context;         // longrope: context length up to which local_rope applies; 0: no longrope
  bool no_rope[MLX_MAX_LAYERS];  // layers without rotary positions
} mlx_config_t;

#endif  // MLXCEL_MODELS_CONFIG_H_
