// Decode: sizes that follow from the configuration, and how rows of weights are divided.
#pragma once

#include "config.cuh"
#include "experts_shape.cuh"
#include "ptx.cuh"
#include "step.h"

static __host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
static __host__ __device__ constexpr int max_of(int a, int b) { return a > b ? a : b; }
static __host__ __device__ constexpr int min_of(int a, int b) { return a < b ? a : b; }

template <typename A, typename B>
struct Same {
  static constexpr bool value = false;
};
template <typename A>
struct Same<A, A> {
  static constexpr bool value = true;
};

// COUNT elements of a struct that only some networks need. Without elements it takes no space as a member
// with
// [[no_unique_address]], and may only be used in code that is discarded. NTH: differs between the members of
// a struct, because two empty members of the same type have different addresses.
template <int NTH, typename T, int COUNT>
struct Room {
  T values[COUNT];
  __device__ __forceinline__ T &operator[](int i) { return values[i]; }
  __device__ __forceinline__ const T &operator[](int i) const { return values[i]; }
};
template <int NTH, typename T>
struct Room<NTH, T, 0> {
  __device__ T &operator[](int i);
  __device__ const T &operator[](int i) const;
};

// ----------------------------------------------------------------------------------------------------------
// Sizes

constexpr int HIDDEN = config.hidden, FFN = config.ffn, HEADS = config.heads, KV_HEADS = config.kv_heads,
              HEAD_DIM = config.head_dim, LAYERS = config.layers, VOCAB = config.vocab;
constexpr int BLOCKS = config.blocks, SHARED_BYTES = config.shared_bytes, SEGMENT = config.segment;
constexpr int ROPES = config.ropes, ROPE_DIMS = config.rope_dims ? config.rope_dims : HEAD_DIM;
constexpr bool PARALLEL = config.parallel, LAYER_NORMS = config.layer_norms, PACKED = config.packed;
constexpr int WINDOW = config.window;
constexpr float NORM_EPS = config.norm_eps;

constexpr int PAGE = MLX_KV_PAGE;
constexpr int WARPS = MLX_DECODE_WARPS;
constexpr int THREADS = WARPS * 32;  // consumer threads; the producer warp comes after them
constexpr u32 EMPTY =
    0xffffffffu;  // a word of |scratch| without a value; the scratch tensor is initialized to it
#define MINUS_INFINITY __uint_as_float(0xff800000u)  // no constant: the function is not constexpr

constexpr int GROUP = HEADS / KV_HEADS;
constexpr int Q_WIDTH = HEADS * HEAD_DIM, KV_WIDTH = KV_HEADS * HEAD_DIM;
// Rows of the queries: those of a head are followed by those of its gate, if there is one.
constexpr bool GATED_HEADS = config.gated_heads;
constexpr int QUERY_STRIDE = GATED_HEADS ? 2 * HEAD_DIM : HEAD_DIM, Q_ROWS = HEADS * QUERY_STRIDE;
constexpr int QKV_WIDTH = Q_ROWS + 2 * KV_WIDTH;
// Whether keys and values have 16 bits, so that tensor cores multiply them.
constexpr bool KV_16 = config.kv == Dtype::BF16 || config.kv == Dtype::F16, KV_Q8 = config.kv == Dtype::Q8_0;
// Positions of an attention task, as long as there are enough blocks for all tasks: few rounds of all warps.
constexpr int SPLIT = KV_16 ? 256 : HEAD_DIM <= 128 ? 128 : 64;
constexpr int MAX_SPLITS = max_of(1, BLOCKS / KV_HEADS);
constexpr int TILE = 8;  // rows of a stage
// Stages whose copies are in flight; more only lengthen the queue that other blocks wait in.
constexpr int IN_FLIGHT = 3;
constexpr int MAX_CANDIDATES = MLX_BURST_TOP_K;
constexpr int MLP_MATRICES = config.gate.present() ? 2 : 1;  // gate and up, or up
// Sizes that are 1 without experts (EXPERTS too), so that types and functions that are not used are valid.
constexpr bool MIXTURE = config.experts > 0, SHARED_EXPERT = config.shared_ffn > 0;
constexpr int SHARED_FFN = max_of(1, config.shared_ffn);
constexpr int SCORES = EXPERTS + (SHARED_EXPERT ? 1 : 0);  // the last one is that of the shared expert

// Recurrent layers. IN_WIDTH: rows of the matrices that their input is multiplied with; OUT_WIDTH: columns of
// the one that their output is multiplied with. Sizes of the delta rule are 1 without it.
constexpr bool RECURRENT = config.filter_taps > 0, DELTA = config.value_heads > 0;
constexpr int ATTENTION_LAYERS = RECURRENT ? config.attention_layers : LAYERS;
constexpr int TAPS = max_of(2, config.filter_taps);
constexpr int KEY_HEADS = max_of(1, config.key_heads), VALUE_HEADS = max_of(1, config.value_heads),
              KEY_DIM = max_of(1, config.key_dim), VALUE_DIM = max_of(1, config.value_dim);
constexpr int KEY_WIDTH = KEY_HEADS * KEY_DIM, VALUE_WIDTH = VALUE_HEADS * VALUE_DIM,
              CHANNELS = DELTA ? 2 * KEY_WIDTH + VALUE_WIDTH : HIDDEN;  // of the convolution
constexpr bool DELTA_APART = DELTA && config.delta_rows_format == 0;
constexpr int IN_WIDTH = DELTA ? CHANNELS + VALUE_WIDTH : 3 * HIDDEN,
              OUT_WIDTH = DELTA ? VALUE_WIDTH : HIDDEN;
constexpr int DELTA_COLUMNS = 32, DELTA_PARTS = ceil_div(VALUE_DIM, DELTA_COLUMNS);  // of a head: see Delta
constexpr int DELTA_ROWS = 2 * VALUE_HEADS;  // of delta_beta, then of delta_step
constexpr int IN_ROWS = IN_WIDTH + (DELTA && !DELTA_APART ? DELTA_ROWS : 0);
static_assert(!RECURRENT || !(PARALLEL || LAYER_NORMS || WINDOW || config.post_attn_norm.present()),
              "compiler/plan_network.c rejects this network");
static_assert(!DELTA || (KEY_DIM <= 256 && VALUE_DIM <= 4 * DELTA_COLUMNS && VALUE_DIM % 4 == 0),
              "compiler/plan_network.c rejects these sizes");

constexpr int STAGE_LIMIT = 24 << 10;  // largest number of bytes in a stage of quantized rows
constexpr bool LARGE_STAGES = PACKED && SHARED_BYTES >= 160 << 10;
constexpr int PAIR_ROWS = LARGE_STAGES ? MLP_MATRICES : 1;  // 2: a stage has rows of both gate and up
constexpr int MAX_RUNS = PACKED ? 16 : 8;  // most runs (see Tiling) whose activations are kept in registers
constexpr int MLP_TILES = ceil_div(USED * FFN, TILE *BLOCKS);  // of gate, or of up, in a block
// Tiles whose sums are completed together: all rows of gate and up of a block, if there is shared memory.
constexpr int BATCH = LARGE_STAGES ? max_of(8, min_of(32, MLP_MATRICES *MLP_TILES)) : 8;
constexpr int SHARE_UNIT = PACKED ? TILE : 1;  // a block's share of rows is a multiple of this

// ----------------------------------------------------------------------------------------------------------
// Form of the network

constexpr bool GAINS = config.attn_norm.present();  // of the layers' inputs
constexpr bool PRE_NORMS = GAINS || LAYER_NORMS, NORM_BIASES = config.final_norm_bias.present();
constexpr bool POST_NORMS = config.post_attn_norm.present(), MLP_NORMS = config.mlp_norm.present();
constexpr bool ORDERED =
    config.qkv_order.present() || config.o_order.present() || config.gate_order.present();

enum {
#define SECOND_BIT(weight, role, bit) SECOND_##weight = bit,
  MLX_DECODE_MATRIX_TABLE(SECOND_BIT)
#undef SECOND_BIT
};

// Whether a matrix has the second format of its role.
static __device__ __forceinline__ bool uses_second(int layer, int matrix) {
  if constexpr (config.second_formats) return constant_at<Tables::second_formats>(layer) & matrix;
  return false;
}

static __device__ __forceinline__ bool is_recurrent(int layer) {
  if constexpr (RECURRENT) return constant_at<Tables::recurrent_layers>(layer);
  return false;
}

static __device__ __forceinline__ int rope_of(int layer) {
  if constexpr (ROPES > 1) return constant_at<Tables::rope_layers>(layer);
  return 0;
}

static __device__ __forceinline__ bool is_windowed(int layer) {
  if constexpr (WINDOW > 0) return constant_at<Tables::windowed_layers>(layer);
  return false;
}

// Factor of the queries.
static __device__ __forceinline__ float query_scale(int position) {
  if constexpr (config.query_grow_beta != 0)
    return config.scale *
           (1.0f + config.query_grow_beta * logf((float)(1 + position / config.query_grow_period)));
  return config.scale;
}

static __device__ __forceinline__ float clip(float x, float limit) {
  return x > limit ? limit : x < -limit ? -limit : x;
}

static __device__ __forceinline__ float clip_qkv(float x) {
  if constexpr (config.qkv_clip != 0) return clip(x, config.qkv_clip);
  return x;
}

static __device__ __forceinline__ float clip_normed(float x) {
  if constexpr (config.qkv_late_clip != 0) return clip(x, config.qkv_late_clip);
  return x;
}

static __device__ __forceinline__ float softcap(float x, float cap) { return cap * tanhf(x / cap); }

static __device__ __forceinline__ float cap_logit(float logit) {
  if constexpr (config.logit_softcap != 0) return softcap(logit, config.logit_softcap);
  return logit;
}

// ----------------------------------------------------------------------------------------------------------
// Division of rows

// How rows of K columns are divided: into segments of a multiple of 256 columns, one per stage; a segment
// into runs of 128 columns, which are assigned to the warps round-robin. A run is four pieces of 32 columns.
//
// Activations of up to MAX_RUNS runs are kept in registers. The hidden values of a wider MLP are divided into
// parts, multiplied one after the other; K = part_of(FFN, part) stands for the segments of one part.
//
// The time of a row grows with the largest number of runs of a warp. |best_segments| makes it small: 2560
// columns are 3 segments of 7 runs, one per warp, rather than 2 segments of 10, which take the time of 16.
static __host__ __device__ constexpr int runs_of(int width, int segments) {
  return segments * ceil_div(ceil_div(ceil_div(width, segments), 128), WARPS);
}
static __host__ __device__ constexpr int best_segments(int width) {
  int best = ceil_div(width, SEGMENT);
  for (int i = best + 1; i <= 2 * ceil_div(width, SEGMENT); ++i)
    if (runs_of(width, i) < runs_of(width, best)) best = i;
  return best;
}

constexpr int PART_UNIT = 1 << 24;
static __host__ __device__ constexpr int part_of(int k, int part) { return k + (part + 1) * PART_UNIT; }
// The columns of the chosen experts, one after the other (decode_experts.cuh). Each expert has FFN_STRIDE
// columns, whole pairs of tiles, of which the first FFN are used.
constexpr int GROUPED_PARTS = 127;
constexpr int FFN_STRIDE = MIXTURE && PACKED ? ceil_div(FFN, 256) * 256 : FFN;
constexpr int DOWN_WIDTH = MIXTURE ? USED * FFN_STRIDE + GROUPED_PARTS * PART_UNIT : FFN;
template <int K>
struct Tiling {
  static constexpr bool grouped = K / PART_UNIT == GROUPED_PARTS;
  static constexpr int width = K % PART_UNIT, part = grouped ? -1 : K / PART_UNIT - 1;
  static constexpr int all_segments = best_segments(width),
                       columns = ceil_div(ceil_div(width, all_segments), 256) * 256;
  static constexpr int segment_runs = ceil_div(columns / 128, WARPS);  // runs of a warp in a segment
  static constexpr int parts = ceil_div(all_segments * segment_runs, MAX_RUNS);
  static constexpr int part_segments = part < 0 ? all_segments : ceil_div(all_segments, parts);
  static constexpr int first = part < 0 ? 0 : part * part_segments;  // first segment of this part
  static constexpr int segments = min_of(part_segments, all_segments - first);
  static constexpr int runs = segments * segment_runs;  // runs of a warp in total
  static constexpr bool even = width % columns == 0 && columns % (128 * WARPS) == 0 &&
                               (!grouped || FFN_STRIDE == FFN);  // every warp has every run
  static constexpr bool in_registers = runs <= MAX_RUNS;         // activations stay in registers

  static __device__ __forceinline__ int column(int run) {  // first column of this warp's |run|
    return (first + run / segment_runs) * columns +
           (run % segment_runs * WARPS + (int)threadIdx.x / 32) * 128;
  }
  static __device__ __forceinline__ bool has(int run, int column) {
    return even || ((run % segment_runs * WARPS + (int)threadIdx.x / 32) * 128 < columns && column < width &&
                    (!grouped || column % FFN_STRIDE < FFN));
  }
  static __device__ constexpr int segment_columns(int segment) {  // of a segment of this part
    return min_of(columns, width - (first + segment) * columns);
  }
};

constexpr int FFN_PARTS = Tiling<DOWN_WIDTH>::parts;
