// Decode: macros that describe how a network differs from Llama's. Each has a default that means "as in
// Llama", and then costs nothing.
//
// Weights that only some networks have are present if X_AT is defined: Q_BIAS K_BIAS V_BIAS O_BIAS GATE_BIAS
// UP_BIAS DOWN_BIAS HEAD_BIAS, ATTN_NORM and MLP_NORM (of the inputs of attention and MLP), POST_ATTN_NORM
// and POST_MLP_NORM (of their outputs, before they are added to the residual stream), Q_NORM and K_NORM
// (RMSNorm of each head before RoPE; QK_NORM_AFTER_ROPE: after it; QK_NORM_WHOLE: of all heads together;
// QK_LAYER_NORM: LayerNorm of each head, which has its own gains).
// Without GATE, the MLP is down(act(up(x))).
//
// LAYER_NORMS: the norms of inputs, and that of the head's, are LayerNorm. Either all of them have a gain
// (X_NORM) or none; the same is true of biases (X_NORM_BIAS).
//
// PARALLEL: attention and MLP have the same input, and both outputs are added to it. The MLP has its own norm
// of it if MLP_NORM is defined.
//
// POSITIONS: a table of POSITION_ROWS learned positions in the format of the embedding, added to it.
// QKV_CLIP: queries, keys and values are clamped to [-QKV_CLIP, QKV_CLIP]. QKV_LATE_CLIP: the same after the
// norms of queries and keys, before RoPE.
//
// QUERY_GROW_BETA and QUERY_GROW_PERIOD: queries are multiplied by 1 + BETA * log(1 + floor(position /
// PERIOD)).
//
// Mixtures of experts: EXPERTS of each layer, of which a token uses USED; SUM_TO_ONE as in
// experts_choose.cuh. ROUTER, and ROUTER_BIAS if it has one, are weights; a router is ROUTER_F32, ROUTER_BF16
// or ROUTER_F16. FFN is the width of one expert. GATE, UP and DOWN are the matrices of expert 0, which those
// of the others follow. With LIMIT, gate and up are clamped, and the sigmoid has the factor SLOPE (gpt-oss).
//
// SHARED_FFN: the width of one more expert, which every token uses: SHARED_GATE, SHARED_UP and SHARED_DOWN.
// Its weight is the sigmoid of the input times SHARED_SCORE, a row in the tile format SHARED_SCORE_TILES, or
// SHARED_SCORE_F32, SHARED_SCORE_BF16 or SHARED_SCORE_F16.
//
// SINKS: a vector with a score for each head, which takes part in the softmax of attention without a value.
//
// The activation of the MLP is ACT_GELU, ACT_GELU_TANH, ACT_RELU or ACT_RELU2; SiLU if none is defined.
//
// QKV_ORDER, O_ORDER and GATE_ORDER (of gate and up) are weights too: i32 [columns]. The matrices of the role
// have their columns in this order (GPTQ in act order), so their input is put in the same order. With
// PARALLEL and without MLP_NORM, gate and up have the order of q, k and v.
//
// SOFTCAP and LOGIT_SOFTCAP are undefined without a cap. Tables with one number per layer: WINDOWED_LAYERS
// (1: the layer has a sliding window of WINDOW positions), PAGE_LAYERS (its number in its page, if the module
// has window pages of WINDOW_LAYERS layers), ROPE_LAYERS (which of the ROPES ropes it uses).
// ROPE_FREQUENCIES has HEAD_DIM / 2 numbers per rope; pairs that are not rotated have frequency 0.
// ROPE_SCALES has one number per rope, undefined if all are 1.

//
// Quantized matrices of one role may have two formats: X_TILES_2 for a role X, and SECOND_FORMATS, a table of
// the matrices that have it, as bits SECOND_... per layer. Layers then differ in size: LAYER_OFFSETS is a
// table of the LAYER_WEIGHTS offsets of each layer, in which weight X has index X_NTH.

#define SECOND_Q 1
#define SECOND_K 2
#define SECOND_V 4
#define SECOND_O 8
#define SECOND_GATE 16  // gate and up
#define SECOND_DOWN 32
#define SECOND_SHARED_GATE 64  // gate and up
#define SECOND_SHARED_DOWN 128

#ifdef SECOND_FORMATS
__constant__ u8 second_formats[LAYERS] = {SECOND_FORMATS};
#endif

// Whether a matrix has the second format of its role.
static __device__ __forceinline__ bool uses_second(int layer, int matrix) {
#ifdef SECOND_FORMATS
  return second_formats[layer] & matrix;
#else
  (void)layer, (void)matrix;
  return false;
#endif
}

template <typename A, typename B>
struct Same {
  static constexpr bool value = false;
};
template <typename A>
struct Same<A, A> {
  static constexpr bool value = true;
};

#ifndef EMBED_SCALE
#define EMBED_SCALE 1
#endif
#ifndef RESIDUAL_SCALE
#define RESIDUAL_SCALE 1
#endif
#ifndef LOGIT_SCALE
#define LOGIT_SCALE 1
#endif
#ifndef WINDOW
#define WINDOW 0
#endif
#ifndef ROPES
#define ROPES 1
#endif
#ifndef ROPE_DIMS
#define ROPE_DIMS HEAD_DIM
#endif
#ifndef ROPE_ADJACENT
#define ROPE_ADJACENT 0
#endif

#ifndef QK_NORM_AFTER_ROPE
#define QK_NORM_AFTER_ROPE 0
#endif
#ifndef QK_NORM_WHOLE
#define QK_NORM_WHOLE 0
#endif
#ifndef QK_LAYER_NORM
#define QK_LAYER_NORM 0
#endif

#ifndef LAYER_NORMS
#define LAYER_NORMS 0
#endif
#ifdef SHARED_FFN
#define SCORES (EXPERTS + 1)  // the last one is that of the shared expert
#else
#define SCORES EXPERTS
#endif
#ifndef PARALLEL
#define PARALLEL 0
#endif

struct Norm {  // of the input of a product; NULL: gains of 1, no biases
  const u8 *gain, *bias;
};
#ifdef ATTN_NORM_AT
#define GAINS 1
#else
#define GAINS 0  // of the layers' inputs
#endif
#define PRE_NORMS (GAINS || LAYER_NORMS)
#ifdef FINAL_NORM_BIAS_AT
#define NORM_BIASES 1
#define NORM_OF(weight, layer) (Norm{AT(weight##_NORM, layer), AT(weight##_NORM_BIAS, layer)})
#define BEFORE_HEAD (Norm{m.weights + FINAL_NORM_AT, m.weights + FINAL_NORM_BIAS_AT})
#else
#define NORM_BIASES 0
#define NORM_OF(weight, layer) (Norm{AT(weight##_NORM, layer), nullptr})
#ifdef FINAL_NORM_AT
#define BEFORE_HEAD (Norm{m.weights + FINAL_NORM_AT, nullptr})
#else
#define BEFORE_HEAD (Norm{nullptr, nullptr})
#endif
#endif
#if GAINS
#define BEFORE_ATTENTION(layer) NORM_OF(ATTN, layer)
#else
#define BEFORE_ATTENTION(layer) (Norm{nullptr, nullptr})
#endif
#ifdef MLP_NORM_AT
#define BEFORE_MLP(layer) NORM_OF(MLP, layer)
#else
#define BEFORE_MLP(layer) BEFORE_ATTENTION(layer)
#endif
#ifdef POST_ATTN_NORM_AT
#define POST_NORMS 1
#else
#define POST_NORMS 0
#endif

#if defined(QKV_ORDER_AT) || defined(O_ORDER_AT) || defined(GATE_ORDER_AT)
#define ORDERED 1
#else
#define ORDERED 0
#endif
#ifdef QKV_ORDER_AT
#define QKV_ORDER_OF(layer) (const int *)AT(QKV_ORDER, layer)
#else
#define QKV_ORDER_OF(layer) nullptr
#endif
#ifdef O_ORDER_AT
#define O_ORDER_OF(layer) (const int *)AT(O_ORDER, layer)
#else
#define O_ORDER_OF(layer) nullptr
#endif
#ifdef GATE_ORDER_AT
#define GATE_ORDER_OF(layer) (const int *)AT(GATE_ORDER, layer)
#else
#define GATE_ORDER_OF(layer) nullptr
#endif

#if WINDOW
__constant__ u8 windowed_layers[LAYERS] = {WINDOWED_LAYERS};
#endif
#if WINDOW_LAYERS
__constant__ u16 page_layers[LAYERS] = {PAGE_LAYERS};
#endif
#if ROPES > 1
__constant__ u8 rope_layers[LAYERS] = {ROPE_LAYERS};
#define ROPE_OF(layer) rope_layers[layer]
#else
#define ROPE_OF(layer) 0
#endif
#ifdef ROPE_SCALES
__constant__ float rope_scales[ROPES] = {ROPE_SCALES};
#endif

// Factor of the queries.
static __device__ __forceinline__ float query_scale(int position) {
#ifdef QUERY_GROW_BETA
  return (float)SCALE * (1.0f + (float)QUERY_GROW_BETA * logf((float)(1 + position / QUERY_GROW_PERIOD)));
#else
  (void)position;
  return (float)SCALE;
#endif
}

static __device__ __forceinline__ float clip_qkv(float x) {
#ifdef QKV_CLIP
  x = x > (float)QKV_CLIP ? (float)QKV_CLIP : x < -(float)QKV_CLIP ? -(float)QKV_CLIP : x;
#endif
  return x;
}

static __device__ __forceinline__ float clip_normed(float x) {
#ifdef QKV_LATE_CLIP
  x = x > (float)QKV_LATE_CLIP ? (float)QKV_LATE_CLIP : x < -(float)QKV_LATE_CLIP ? -(float)QKV_LATE_CLIP : x;
#endif
  return x;
}

static __device__ __forceinline__ float cap_logit(float logit) {
#ifdef LOGIT_SOFTCAP
  logit = (float)LOGIT_SOFTCAP * tanhf(logit / (float)LOGIT_SOFTCAP);
#endif
  return logit;
}
