// Tables that the compiler and the decode kernels share: one row per fact. Plain preprocessor, for C and NVRTC.
#ifndef MLXCEL_KERNELS_DECODE_TABLES_H_
#define MLXCEL_KERNELS_DECODE_TABLES_H_

// Weights: X(enumerator, field of struct Config, whether each layer has its own). Those after HEAD are weights
// that only some networks have, in all layers or in none.
//
// GATE, UP, DOWN and their biases of a mixture of experts are those of expert 0, which the others follow.
// Q_NORM and K_NORM: norms of queries and keys, of each head or of all. POST_...: norm of the output of attention
// or of the MLP, before it is added to the residual stream. SINKS: of attention. POSITIONS: a table of learned
// positions. SHARED_...: matrices of an expert that every token uses; SHARED_SCORE is the row whose product is
// the logit of its weight. RECURRENT_IN to RECURRENT_OUT_BIAS: of recurrent layers, which have no Q, K, V and O.
// RECURRENT_IN has the rows of q, k and v of the delta rule, or of b, c and x around a convolution. FILTER: of
// the convolution. ..._ORDER: column orders of matrices of GPTQ in act order, i32; GATE_ORDER is that of
// gate and up. The orders are the last weights.
#define MLX_DECODE_WEIGHT_TABLE(X)        \
  X(EMBED, embed, 0)                      \
  X(ATTN_NORM, attn_norm, 1)              \
  X(Q, q, 1)                              \
  X(K, k, 1)                              \
  X(V, v, 1)                              \
  X(O, o, 1)                              \
  X(MLP_NORM, mlp_norm, 1)                \
  X(GATE, gate, 1)                        \
  X(UP, up, 1)                            \
  X(DOWN, down, 1)                        \
  X(FINAL_NORM, final_norm, 0)            \
  X(HEAD, head, 0)                        \
  X(Q_BIAS, q_bias, 1)                    \
  X(K_BIAS, k_bias, 1)                    \
  X(V_BIAS, v_bias, 1)                    \
  X(O_BIAS, o_bias, 1)                    \
  X(GATE_BIAS, gate_bias, 1)              \
  X(UP_BIAS, up_bias, 1)                  \
  X(DOWN_BIAS, down_bias, 1)              \
  X(Q_NORM, q_norm, 1)                    \
  X(K_NORM, k_norm, 1)                    \
  X(POST_ATTN_NORM, post_attn_norm, 1)    \
  X(POST_MLP_NORM, post_mlp_norm, 1)      \
  X(SINKS, sinks, 1)                      \
  X(ROUTER, router, 1)                    \
  X(ROUTER_BIAS, router_bias, 1)          \
  X(ATTN_NORM_BIAS, attn_norm_bias, 1)    \
  X(MLP_NORM_BIAS, mlp_norm_bias, 1)      \
  X(FINAL_NORM_BIAS, final_norm_bias, 0)  \
  X(HEAD_BIAS, head_bias, 0)              \
  X(POSITIONS, positions, 0)              \
  X(SHARED_GATE, shared_gate, 1)          \
  X(SHARED_UP, shared_up, 1)              \
  X(SHARED_DOWN, shared_down, 1)          \
  X(SHARED_SCORE, shared_score, 1)        \
  X(RECURRENT_IN, recurrent_in, 1)        \
  X(RECURRENT_IN_BIAS, recurrent_in_bias, 1) \
  X(FILTER, filter, 1)                    \
  X(FILTER_BIAS, filter_bias, 1)          \
  X(DELTA_Z, delta_z, 1)                  \
  X(DELTA_BETA, delta_beta, 1)            \
  X(DELTA_STEP, delta_step, 1)            \
  X(DELTA_STEP_BIAS, delta_step_bias, 1)  \
  X(DELTA_RATE, delta_rate, 1)            \
  X(DELTA_NORM, delta_norm, 1)            \
  X(RECURRENT_OUT, recurrent_out, 1)      \
  X(RECURRENT_OUT_BIAS, recurrent_out_bias, 1) \
  X(QKV_ORDER, qkv_order, 1)              \
  X(O_ORDER, o_order, 1)                  \
  X(GATE_ORDER, gate_order, 1)

// Roles: X(enumerator, name of the fields of struct Config). Matrices of one role have the same tile format, or,
// in roles before HEAD, one of two. q, k and v are one role; so are gate and up, which have the same format in
// each layer, and those of the shared expert. DELTA: DELTA_BETA and DELTA_STEP.
#define MLX_DECODE_ROLE_TABLE(X) \
  X(QKV, qkv)                    \
  X(O, o)                        \
  X(GATE, gate)                  \
  X(DOWN, down)                  \
  X(SHARED_GATE, shared_gate)    \
  X(SHARED_DOWN, shared_down)    \
  X(RECURRENT, recurrent)        \
  X(HEAD, head)                  \
  X(EMBED, embed)                \
  X(SHARED_SCORE, shared_score)  \
  X(DELTA, delta)

// Matrices: X(weight, role, bit of a layer whose matrix has the second format of the role; 0: never). Attention
// layers and recurrent ones may have the same bits.
#define MLX_DECODE_MATRIX_TABLE(X)    \
  X(Q, QKV, 1)                        \
  X(K, QKV, 2)                        \
  X(V, QKV, 4)                        \
  X(O, O, 8)                          \
  X(GATE, GATE, 16)                   \
  X(UP, GATE, 16)                     \
  X(DOWN, DOWN, 32)                   \
  X(SHARED_GATE, SHARED_GATE, 64)     \
  X(SHARED_UP, SHARED_GATE, 64)       \
  X(SHARED_DOWN, SHARED_DOWN, 128)    \
  X(SHARED_SCORE, SHARED_SCORE, 0)    \
  X(RECURRENT_IN, RECURRENT, 1)       \
  X(DELTA_Z, RECURRENT, 2)            \
  X(DELTA_BETA, DELTA, 0)             \
  X(DELTA_STEP, DELTA, 0)             \
  X(RECURRENT_OUT, O, 8)              \
  X(HEAD, HEAD, 0)                    \
  X(EMBED, EMBED, 0)                  \
  X(POSITIONS, EMBED, 0)

// Bits of a tile format whose matrices are rows of 16-bit numbers.
#define MLX_DECODE_ROWS 16

// Threads of a block of decode.cu and of few.cu: warps that multiply, and one that copies.
#define MLX_DECODE_WARPS 8
#define MLX_DECODE_THREADS (32 * MLX_DECODE_WARPS + 32)

// Parts of a launch of few.cu.
#define MLX_FEW_PART_TABLE(X)                                                                           \
  X(LAYER, 1)  /* from o to down, of |layer| */                                                         \
  X(QKV, 2)    /* of |layer|, or of the next one after LAYER */                                         \
  X(HEAD, 4)   /* logits */                                                                             \
  X(APPEND, 8) /* with QKV: applies RoPE to q and k, and stores k and v in the KV pool; not a Q8_0 one */

#endif  // MLXCEL_KERNELS_DECODE_TABLES_H_
