// Plan: recognizes a decoder in its graph, and describes it for kernels/cuda/decode.cu, which computes
// a whole network. The form is Llama's, with the differences that mlx_decode_form_t lists.
#ifndef MLXCEL_COMPILER_PLAN_H_
#define MLXCEL_COMPILER_PLAN_H_

#include "compiler/module_options.h"
#include "kernels/decode_tables.h"

typedef enum mlx_decode_weight {
#define WEIGHT(name, field, in_layers) MLX_DECODE_##name,
  MLX_DECODE_WEIGHT_TABLE(WEIGHT)
#undef WEIGHT
      MLX_DECODE_WEIGHTS,
} mlx_decode_weight_t;
#define MLX_DECODE_ROPES 2

// Whether each layer has its own weight.
bool mlx_decode_in_layers(mlx_decode_weight_t weight);

// Where the weights of one role are in the archive, in bytes.
typedef struct mlx_decode_offset {
  uint64_t first, stride;  // of layer 0, and from one layer to the next
} mlx_decode_offset_t;

// How a network differs from Llama's.
typedef struct mlx_decode_form {
  int64_t counts[MLX_DECODE_WEIGHTS];  // layers that have the weight
  mlx_act_t act;
  const float *act_numbers[MLX_MAX_LAYERS];  // borrowed from the graph: MLX_ACT_NUMBERS each; NULL: none
  int64_t norms[3];   // layers with a norm of the input of attention, of the MLP; 1: with a final norm
  bool layer_norms;   // they are LayerNorm, with or without gains and biases
  bool parallel;      // attention and MLP have the same input; both outputs are added to it
  int64_t positions;  // rows of the table of learned positions
  double clip;        // largest absolute value of queries, keys and values; 0: none
  double late_clip;   // the same, after the norms of queries and keys
  double embed_scale, residual_scale, logit_scale;  // 1: none
  double logit_softcap;                             // 0: none
  bool norm_after_rope;                             // norms of queries and keys follow RoPE
  bool whole_norms;                                 // norms of queries and keys are over all heads
  bool qk_layer_norms;  // norms of queries and keys are LayerNorm, and each head has its own gains
  double grow_beta;     // of queries: see mlx_op_grow; 0: none
  int64_t grow_period;
  int64_t window;  // of the layers with a sliding window; 0: none has one
  bool windowed[MLX_MAX_LAYERS];
  int rope_count;
  const mlx_rope_t *ropes[MLX_DECODE_ROPES];  // NULL: no rotation
  uint8_t rope_of[MLX_MAX_LAYERS];            // index of the rope of each layer
  // Mixture of experts instead of the MLP; 0 experts: none.
  int64_t experts, used;
  bool sum_to_one;
  double limit, slope;  // as in mlx_experts_t
  mlx_dtype_t router;   // of its weight
  int64_t shared_ffn;   // width of the expert that every token uses; 0: there is none
  mlx_dtype_t score;    // of MLX_DECODE_SHARED_SCORE, unless that is in tiles
  // Recurrent layers, and the nodes that keep their states: the convolution, and the delta rule or 0.
  int64_t recurrent_layers;
  bool recurrent[MLX_MAX_LAYERS];
  int state_nodes[MLX_MAX_LAYERS][2];
  int64_t taps;            // of the convolution; 0: no layer is recurrent
  mlx_delta_t delta;       // value_heads 0: the convolution is between two gates
  mlx_dtype_t delta_rows;  // of MLX_DECODE_DELTA_BETA and MLX_DECODE_DELTA_STEP, unless they are in tiles
  int delta_rows_format;  // 1 or 2: they have the first or second format of the role RECURRENT; 0: another one
  bool gated_heads;       // the queries of a head are followed by a gate of its output
} mlx_decode_form_t;

typedef enum mlx_decode_role {
#define ROLE(name, field) MLX_DECODE_ROLE_##name,
  MLX_DECODE_ROLE_TABLE(ROLE)
#undef ROLE
      MLX_DECODE_ROLES,
} mlx_decode_role_t;

// Nodes of a layer, as the network computes them before RoPE: products, or columns of one.
typedef struct mlx_layer_nodes {
  int q, k, v, attention;
} mlx_layer_nodes_t;

// The kernel for up to MLX_FEW_SEQUENCES tokens (kernels/cuda/few.cu).
#define MLX_FEW_SEQUENCES 8
typedef struct mlx_few_plan {
  int64_t slices;           // of the columns of the down projection; 0: the network does not fit the kernel
  int64_t shared_bytes;     // of the launch
  int64_t words_at, words;  // of its part of the scratch memory, which follows that of the decode kernel
} mlx_few_plan_t;

// Why the decode kernel does not take a network.
typedef struct mlx_misfit {
  int node;         // 0: no single node
  const char *why;  // static text: what the kernel does not support; NULL: it takes the network
} mlx_misfit_t;

typedef struct mlx_decode_plan {
  mlx_decode_offset_t offsets[MLX_DECODE_WEIGHTS];
  bool regular;  // the offsets of all weights have a stride; else layers differ in size
  // Tile formats of a network with quantized matrices; the second has bits 0 if unused. A role whose matrices
  // are rows of 16-bit numbers has MLX_DECODE_ROWS bits. All bits are 0 if no matrix is quantized.
  mlx_tiles_t tiles[MLX_DECODE_ROLES][2];
  // Matrices that have the second format of their role: bits of MLX_DECODE_MATRIX_TABLE.
  uint8_t second[MLX_MAX_LAYERS];
  mlx_dtype_t dtype;    // of all matrices with 16 bits
  int64_t hidden, ffn;  // ffn: of the MLP, or of one expert
  mlx_attention_t attention;
  double norm_eps;
  mlx_decode_form_t form;
  int64_t blocks, shared_bytes;  // of the launch
  int64_t segment;               // largest number of columns in a stage of the ring buffer
  int64_t scratch_words;         // 32-bit words
  int64_t max_steps;             // tokens in one launch, limited so that output keeps streaming
  // For few tokens: the last nodes before the first layer and of the last one, and those that other kernels
  // share with the layers.
  int first_node, last_node;
  mlx_layer_nodes_t nodes[MLX_MAX_LAYERS];
  mlx_few_plan_t few;
  mlx_misfit_t misfit;
} mlx_decode_plan_t;

// *|out_fits| is false if the network has another form, or a layout or size that the decode kernel does not
// support on this GPU: see misfit.
mlx_status_t mlx_decode_plan_make(const mlx_model_t *model, const mlx_graph_t *graph,
                                  const mlx_module_options_t *options, mlx_decode_plan_t *out_plan,
                                  bool *out_fits) MLX_MUST_USE;

#define MLX_WEIGHT_ABSENT SIZE_MAX
// The weights of a network of that form, whatever their sizes and layout.
typedef struct mlx_network_plan {
  bool fits;        // the network has that form; else the rest is unspecified
  bool gated;       // its MLP has a gate
  bool shared;      // it has a shared expert
  size_t *weights;  // owned [layers][MLX_DECODE_WEIGHTS]: index of each weight in the model. Weights that are
      // not part of a layer are in the first row. MLX_WEIGHT_ABSENT for those that the layer lacks.
} mlx_network_plan_t;

// A network that does not fit is no error. Release with mlx_network_plan_clear.
mlx_status_t mlx_network_plan_make(const mlx_model_t *model, const mlx_graph_t *graph,
                                   mlx_network_plan_t *out_plan) MLX_MUST_USE;
void mlx_network_plan_clear(mlx_network_plan_t *plan);

#endif  // MLXCEL_COMPILER_PLAN_H_
