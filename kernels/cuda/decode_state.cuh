// Decode: shared memory, global memory for the exchange between blocks, and the weights of a layer.
//
// Members and functions that only some networks need use Room and templates, so that they cost nothing in
// others: a function template that no code calls is not compiled.
#pragma once

#include "decode_formats.cuh"

// ----------------------------------------------------------------------------------------------------------
// Shared memory

constexpr int QUERY_BATCH = 4;  // queries processed together

// Elements of the KV pool. With codes of 8 bits, each page of a head ends with PAGE f32 scales.
using kv_t = Select<KV_16, u16, Select<KV_Q8, u8, float>::Type>::Type;

// Memory of attention; it overlaps the staged activations: see union Work. VALUE_WARPS warps share the same
// positions, and each accumulates some columns of the values.
struct Attention32 {  // over f32 or 8-bit keys and values
  static constexpr int VALUE_WARPS = HEAD_DIM <= 128 || GROUP <= 4 ? 1 : 2;
  __align__(16) float k[HEAD_DIM], v[HEAD_DIM];  // key and value of the newest position
  __align__(16) float query_data[GROUP][HEAD_DIM];
  [[no_unique_address]] Room<0, float[HEAD_DIM], GATED_HEADS ? GROUP : 0> gate;  // its sigmoid
  float4 factors[WARPS][16];  // softmax weights of four queries
  float acc[WARPS / VALUE_WARPS][GROUP][HEAD_DIM];
  float peak[WARPS / VALUE_WARPS][GROUP], sum[WARPS / VALUE_WARPS][GROUP];
};

struct Attention16 {  // over 16-bit keys and values
  static constexpr int KEY_BLOCKS = ceil_div(HEAD_DIM, 32);
  static constexpr int VALUE_WARPS = HEAD_DIM <= 64 ? 1 : HEAD_DIM <= 128 ? 2 : 4;  // 64 columns per warp
  __align__(16) u16 k[HEAD_DIM], v[HEAD_DIM];
  __align__(16) u16 query_data[ceil_div(GROUP, QUERY_BATCH)][2 * KEY_BLOCKS][32][8];
  [[no_unique_address]] Room<0, float[HEAD_DIM], GATED_HEADS ? GROUP : 0> gate;
  float acc[WARPS / VALUE_WARPS][GROUP][HEAD_DIM];
  float peak[WARPS / VALUE_WARPS][GROUP], sum[WARPS / VALUE_WARPS][GROUP];
};

using Attention = Select<KV_16, Attention16, Attention32>::Type;

struct Merge {  // partial attention results of one head
  float acc[WARPS][HEAD_DIM];
  float peak[WARPS], sum[WARPS];
};

constexpr int STAGED_BYTES =
    max_of(max_of(max_of(QkvInput::staged_bytes, GateInput::staged_bytes), HeadInput::staged_bytes),
           max_of(max_of(OInput::staged_bytes, OutInput::staged_bytes), DownInput::staged_bytes));
constexpr int SHARED_STAGED_BYTES =
    SHARED_EXPERT ? max_of(SharedGateInput::staged_bytes, SharedDownInput::staged_bytes) : 0;

union Work {
  __align__(16) u8 runs[WARPS][max_of(STAGED_BYTES, SHARED_STAGED_BYTES)];
  Attention attention;
  Merge merge;
};

struct Rows {
  int begin, end;
};

struct Draw {   // options of sampling: see prepare_draw
  u64 random;   // mlx_sample_stream of the seed
  int k;        // number of candidates that take part
  int typical;  // 1: typical sampling
  float top_p, log_min_p, temperature;
};

struct State {
  Work work;
  Draw draw;
  float partial[2][WARPS][BATCH * TILE];
  float cosine[ROPES][HEAD_DIM / 2], sine[ROPES][HEAD_DIM / 2];
  float square[WARPS];  // sum of squares of the residual stream, per warp
  // Of the columns of each warp: see measure_row.
  [[no_unique_address]] Room<1, float, LAYER_NORMS ? WARPS : 0> mean;
  [[no_unique_address]] Room<2, float, LAYER_NORMS ? WARPS : 0> deviation;
  [[no_unique_address]] Room<3, float, LAYER_NORMS ? WARPS : 0> columns;
  [[no_unique_address]] Room<4, int, PARALLEL ? 1 : 0> parity;  // of the layer
  // Sums of squares of all queries and all keys.
  [[no_unique_address]] Room<5, float[WARPS], config.qk_norm_whole ? 2 : 0> whole_square;
  [[no_unique_address]] Room<6, float, POST_NORMS ? WARPS : 0>
      output_square;  // the same of a sublayer's output
  // The residual stream; each warp reads and writes its own columns.
  [[no_unique_address]] Room<7, float4,
                             KEEPS_ROW                ? ceil_div(HIDDEN, 4)
                             : POST_NORMS || PARALLEL ? 1
                                                      : 0> residual;
  [[no_unique_address]] Room<8, float4, ORDERED ? ceil_div(max_of(HIDDEN, Q_WIDTH), 4) : 0>
      row;  // of reorder()
  float reduce[WARPS];
  int reduce_index[WARPS];
  int blocks, block, epoch;  // number of blocks that take part, index of this block, tokens before this one
  Rows qkv, width, ffn, vocab;  // rows of each matrix that this block computes
  [[no_unique_address]] Room<9, float, MIXTURE ? WARPS : 0> router_sum;  // of one expert's score
  [[no_unique_address]] Room<10, int, MIXTURE ? USED : 0> chosen;        // experts of the token
  [[no_unique_address]] Room<11, float, MIXTURE ? USED : 0> weight;
  [[no_unique_address]] Room<12, int, MIXTURE ? 1 : 0>
      choices;  // layers of this launch whose experts are chosen
  [[no_unique_address]] Room<13, Rows, SHARED_EXPERT ? 1 : 0>
      shared;  // rows of gate and up of the shared expert
  [[no_unique_address]] Room<14, float, SHARED_EXPERT ? 1 : 0> shared_weight;
  // Rows of |recurrent_in| and |delta_z|, or channels of the convolution between b and c.
  [[no_unique_address]] Room<17, Rows, RECURRENT ? 1 : 0> in;
  [[no_unique_address]] Room<18, float, DELTA ? WARPS : 0> delta_sum;  // of one row; of squares
  int stopped;                    // 1: no token follows; the producer must stop
  int not_finite;                 // 1: a logit of this block is not finite
  int sampled[MLX_BURST_TOKENS];  // tokens of this launch
};

// The largest stage of a role with the formats F and G.
template <typename F, typename G, int K, int ROWS = 1>
constexpr int STAGE_OF = max_of(F::template Stage<K, ROWS>::bytes, G::template Stage<K, ROWS>::bytes);

static __host__ __device__ constexpr int shared_stage_bytes() {
  if constexpr (SHARED_EXPERT)
    return max_of(STAGE_OF<SharedGateFormat, SharedGateFormat2, HIDDEN, SHARED_PAIR_ROWS>,
                  STAGE_OF<SharedDownFormat, SharedDownFormat2, part_of(SHARED_FFN, 0)>);
  return 0;
}
static __host__ __device__ constexpr int recurrent_stage_bytes() {
  if constexpr (RECURRENT)
    return max_of(STAGE_OF<InFormat, InFormat2, HIDDEN>, STAGE_OF<OFormat, OFormat2, OUT_WIDTH>);
  return 0;
}
constexpr int STAGE_BYTES =
    max_of(max_of(max_of(STAGE_OF<QkvFormat, QkvFormat2, HIDDEN>, STAGE_OF<OFormat, OFormat2, Q_WIDTH>),
                  max_of(STAGE_OF<GateFormat, GateFormat2, HIDDEN, PAIR_ROWS>,
                         STAGE_OF<HeadFormat, HeadFormat, HIDDEN>)),
           max_of(STAGE_OF<DownFormat, DownFormat2, DOWN_WIDTH>,
                  max_of(shared_stage_bytes(), recurrent_stage_bytes())));
// As many stages as fit.
constexpr int STAGES = (int)((SHARED_BYTES - sizeof(State) - 128) / (STAGE_BYTES + 2 * sizeof(u64)));

struct Shared : State {
  u64 full[STAGES], free[STAGES];
  __align__(128) u8 ring[STAGES * STAGE_BYTES];
};
static_assert(STAGES > IN_FLIGHT && sizeof(Shared) <= SHARED_BYTES,
              "the ring is too small: compiler/plan.c must reject this shape");

// ----------------------------------------------------------------------------------------------------------
// Global memory for the exchange between blocks. Every word starts EMPTY.

struct Scratch {
  u32 arrived, left, blocks, epoch;  // of the launch; counters start at EMPTY, which is -1
  u32 padding[60];
  float best[4][BLOCKS][2];  // largest logit of a block and its token; four tokens in rotation
  float candidates[4][BLOCKS][2 + 2 * MAX_CANDIDATES];  // one list: see publish_candidates
  float scores[(VOCAB + 3) / 4 * 4];                    // logits after mask, biases and penalties; no flags
  // Residual stream at the input of a layer, and at the input of the MLP (layers alternate). With norms
  // of outputs, the outputs of the MLP and of attention, which are not added to it yet. With PARALLEL, x1 has
  // no flags: the thread that stores a word reads it. There layers alternate in the use of x0 and |attended|.
  float x0[1 + PARALLEL][HIDDEN];
  float x1[2 - PARALLEL][HIDDEN];
  float qkv[QKV_WIDTH];
  float attended[1 + PARALLEL][Q_WIDTH];
  float hidden[2][USED * FFN_STRIDE];
  [[no_unique_address]] Room<15, float[(SCORES + 3) / 4 * 4], MIXTURE ? 2 : 0>
      router;  // scores; layers alternate
  // Hidden values of the shared expert, without its weight.
  [[no_unique_address]] Room<16, float[SHARED_FFN], SHARED_EXPERT ? 2 : 0> shared;
  // Of a recurrent layer: q, k and v of the delta rule after the convolution, then silu(z); sigmoid(beta) of
  // each value head, then its decay; and its output. That of the delta rule is multiplied with silu(z) and
  // the gain of its norm, but not yet divided by the lengths of its heads: |squares| are sums of squares of
  // DELTA_COLUMNS numbers of a head.
  [[no_unique_address]] Room<19, float[IN_WIDTH], DELTA ? 1 : 0> mixed;
  [[no_unique_address]] Room<20, float[ceil_div(DELTA_ROWS, 4) * 4], DELTA ? 1 : 0> gates;
  [[no_unique_address]] Room<21, float[OUT_WIDTH], RECURRENT ? 1 : 0> output;
  [[no_unique_address]] Room<22, float[4], DELTA ? VALUE_HEADS : 0> squares;
  float split[HEADS][MAX_SPLITS][HEAD_DIM + 2];  // attention over one split: values, peak, sum
};
static_assert(sizeof(Scratch) == config.scratch_words * 4ull,
              "compiler/plan.c computes the same scratch size");

struct PlainModel {
  const u8 *weights;
  kv_t *kv;  // [pages][LAYERS][KV_HEADS][2][PAGE][HEAD_DIM]; with KV_Q8 also the scales. See kv_address
  Scratch *scratch;
  float *logits;        // [VOCAB]
  const int *batch;     // step.h
  const int *pages;     // page table of the sequence
  const int *sampling;  // how to sample; NULL: greedy
  int *history;         // tokens of the sequence
  int start;            // position of the first token of this launch
};
struct WindowModel : PlainModel {
  const int *window_pages;  // the sequence's table of window pages
  u64 before;               // layers of all window pages, which are before the pages
};
struct RecurrentModel : PlainModel {
  const float *old_state;  // before the first token of this launch; NULL: zero
  float *state;            // after each token
};
using Model = Select<(config.window_layers > 0), WindowModel,
                     Select<RECURRENT, RecurrentModel, PlainModel>::Type>::Type;

// ----------------------------------------------------------------------------------------------------------
// Weights of a layer

template <Weight W>
static __device__ __forceinline__ const u8 *weight_at(const Model &m, int layer) {
  if constexpr (config.layer_weights > 0)
    return m.weights + constant_at<Tables::layer_offsets>(layer * config.layer_weights + W.nth);
  else
    return m.weights + W.at + (u64)layer * W.step;
}

template <Weight W>
static __device__ __forceinline__ float vector_at(const Model &m, int layer, int i) {
  return ((const float *)weight_at<W>(m, layer))[i];
}

// The same of a bias, 0 if the network does not have it.
template <Weight W>
static __device__ __forceinline__ float bias_at(const Model &m, int layer, int i) {
  if constexpr (W.present()) return vector_at<W>(m, layer, i);
  return 0.0f;
}

template <Weight W>
static __device__ __forceinline__ const u8 *optional_weight(const Model &m, int layer) {
  if constexpr (W.present()) return weight_at<W>(m, layer);
  return nullptr;
}

template <Weight W>
static __device__ __forceinline__ const int *order_at(const Model &m, int layer) {
  return (const int *)optional_weight<W>(m, layer);
}

// A weight that is in no layer; NULL if the network does not have it.
template <Weight W>
static __device__ __forceinline__ const u8 *model_weight(const Model &m) {
  if constexpr (W.present()) return m.weights + W.at;
  return nullptr;
}

// Of the input of a product; NULL: gains of 1, no biases. No function returns it: NVRTC would keep copies in
// local memory.
struct Norm {
  const u8 *gain, *bias;
};

// The norm of the input of the MLP; with PARALLEL it may be that of attention.
constexpr Weight BEFORE_MLP = MLP_NORMS ? config.mlp_norm : config.attn_norm;
constexpr Weight BEFORE_MLP_BIAS = MLP_NORMS ? config.mlp_norm_bias : config.attn_norm_bias;
