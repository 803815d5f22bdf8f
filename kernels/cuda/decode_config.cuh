// Decode: the configuration of an image. compiler/emit_cuda.c sets the fields in this order. A default means
// "as in Llama", and then costs nothing; fields without a default are always set.
#pragma once

#include "decode_weight.cuh"

// Format of the matrices of a role: the arguments of Tiles (decode_tiles.cuh), or MLX_DECODE_ROWS bits for
// rows of 16-bit numbers.
struct TileArguments {
  int bits = MLX_DECODE_ROWS, numbers = 0, offset = 0;
  bool halves = false;
  int center = 0;
};

struct Config {
  // Sizes of the network. ffn: of the MLP, or of one expert.
  int hidden, ffn, heads, kv_heads, head_dim, layers, vocab;
  // Launch: the grid, dynamic shared memory in bytes, words of |scratch|, most columns of a stage of the
  // ring.
  int blocks, shared_bytes, scratch_words, segment;
  float norm_eps;
  float scale;  // of queries

  // Weights. Without a gate, the MLP is down(act(up(x))). The matrices of a role have their columns in the
  // order of its weight ..._order, if it has one (GPTQ in act order), so their input is put in the same
  // order; with |parallel| and without |mlp_norm|, gate and up have the order of q, k and v. |sinks| has a
  // score for each head, which takes part in the softmax of attention without a value.
  WEIGHT_FIELDS

  // Formats of the matrices of each role. bits 0 of ..._tiles_2: all of them have the first format.
#define ROLE_FIELDS(name, field) TileArguments field##_tiles, field##_tiles_2 = {.bits = 0};
  MLX_DECODE_ROLE_TABLE(ROLE_FIELDS)
#undef ROLE_FIELDS
  bool packed = false;          // gate, up and down are quantized
  bool offsets = false;         // some tiles have offsets
  bool second_formats = false;  // some matrices have the second format: table |second_formats|
  int layer_weights = 0;        // columns of the table |layer_offsets|; 0: offsets of weights have a step
  Dtype dtype = Dtype::BF16;    // of 16-bit matrices
  Dtype kv = Dtype::F32;        // of the KV pool

  Activation act = Activation::SILU;  // of the MLP
  bool act_has_numbers = false;       // table |act_numbers|
  // Norms of the inputs of attention, MLP and head are LayerNorm. Either all of them have a gain (..._norm)
  // or none; the same is true of biases (..._norm_bias).
  bool layer_norms = false;
  // Attention and MLP have the same input, and both outputs are added to it. The MLP has its own norm of it
  // if the network has |mlp_norm|.
  bool parallel = false;
  int position_rows = 0;    // of |positions|, in the format of the embedding, added to it
  float qkv_clip = 0;       // largest absolute value of queries, keys and values; 0: none
  float qkv_late_clip = 0;  // the same after the norms of queries and keys, before RoPE
  float embed_scale = 1, residual_scale = 1, logit_scale = 1;
  float logit_softcap = 0, softcap = 0;  // of logits and of attention scores; 0: none
  // Queries are multiplied by 1 + query_grow_beta * log(1 + floor(position / query_grow_period)).
  float query_grow_beta = 0;
  int query_grow_period = 1;
  // q_norm and k_norm are RMSNorm of each head before RoPE. after_rope: after it; whole: of all heads
  // together; qk_layer_norm: LayerNorm of each head, which has its own gains.
  bool qk_norm_after_rope = false, qk_norm_whole = false, qk_layer_norm = false;
  int window = 0;  // positions of a sliding window, in the layers of the table |windowed_layers|

  // Mixture of experts: number of experts of a layer, and those that a token uses; 0: none. |gate|, |up| and
  // |down| are the matrices of expert 0, which those of the others follow.
  int experts = 0, used = 1;
  bool sum_to_one = false;  // the weights of the used experts add up to 1
  Dtype router_dtype = Dtype::F32;
  float limit = 0, slope = 0;  // gate and up are clamped to |limit|, and the sigmoid has the factor |slope|
  // Width of one more expert, which every token uses; 0: none. Its weight is the sigmoid of the input times
  // |shared_score|, a row of score_dtype, or of tiles.
  int shared_ffn = 0;
  Dtype score_dtype = Dtype::F32;

  int window_layers = 0;  // layers of a window page; 0: the module has no window pages
  int ropes = 1;          // RoPE tables; more than one: table |rope_layers|
  int rope_dims = 0;      // numbers of a head that RoPE rotates; 0: all
  bool rope_adjacent = false;
  bool rope_scaled = false;  // sines and cosines have a factor: table |rope_scales|

  // A network with recurrent layers. Attention layers: their number, and whether their queries are followed
  // by a gate, head by head; the sigmoid of it multiplies the output of attention.
  int attention_layers = 0;  // 0: all layers; else the table |recurrent_layers| says which are not
  bool gated_heads = false;
  // Words of 4 bytes of the KV pool: of a page, and of the state of a sequence, which follows all pages.
  int page_words = 0, state_words = 0;
  // Causal convolution of |filter_taps| numbers of each channel. Its input is a part of the product with
  // |recurrent_in|: with the gated delta rule q, k and v; else b * x of the rows of b, c and x, and c
  // multiplies its result.
  int filter_taps = 0;
  // Gated delta rule (graph/ops.h); value_heads 0: none. |tiled_heads|: value head i has key head
  // i % key_heads. |log_rate|: the rates are logarithms.
  int key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  float delta_scale = 0, delta_eps = 0;
  bool log_rate = false, tiled_heads = false;
  // 1 or 2: |delta_beta| and |delta_step| have the first or second format of |delta_z|, so their rows follow
  // its rows. 0: they are multiplied apart from them, and have the type |delta_dtype|, unless they are tiles.
  int delta_rows_format = 0;
  Dtype delta_dtype = Dtype::F32;
};

// Tables of an image that does not need them. All but rope_frequencies and rope_scales have a row per layer.
struct NoTables {
  using second_formats = NoTable<u8>;       // bits of MLX_DECODE_MATRIX_TABLE
  using layer_offsets = NoTable<u64>;       // [layer][Weight::nth], in bytes
  using windowed_layers = NoTable<u8>;      // 1: the layer has a sliding window
  using page_layers = NoTable<u16>;         // its number in its page, if pages do not have all layers
  using recurrent_layers = NoTable<u8>;     // 1: the layer is recurrent
  using state_places = NoTable<u32>;        // [layer][2] of the convolution and of the delta rule in a state
  using rope_layers = NoTable<u8>;          // which of the ropes it uses
  using act_numbers = NoTable<float>;       // [layer][MLX_ACT_NUMBERS]
  using rope_frequencies = NoTable<float>;  // head_dim / 2 per rope; 0 for pairs that are not rotated
  using rope_scales = NoTable<float>;       // one per rope
};
