// Decode kernel: tokens of one sequence through the whole model, one after the other, in one launch. It is
// the function burst of the contract (step.h), and with a burst count of 0 the network of step_1.
//
// Each block streams its share of every weight matrix, in the order of use, through a ring of shared-memory
// stages. The producer waits only for a free stage. So the memory system keeps reading while the other warps
// wait for activations that other blocks still compute. docs/internals/decode-kernel.md has the measurements
// and the alternatives that were tried.
//
//   producer   one warp: copies rows of weights into the ring
//   consumers  WARPS warps: multiply them (on tensor cores), compute attention and norms
//
// Blocks exchange activations through words in global memory that are their own ready flag. A word is EMPTY
// (a NaN that no arithmetic produces) until its value is stored, and readers poll the value itself. There is
// no barrier and no counter: a sum reaches its reader by one store and one load. The owner of a word marks
// it EMPTY again when every reader is known to be done (see reset_consumed).
//
// The grid may be larger than the number of blocks that fit on the GPU at once. Blocks that have not started
// JOIN_TIMEOUT_NS after the first one do not take part. The number of blocks changes which block computes a
// sum, but never how. So the kernel runs on small or busy GPUs, and the same input gives the same bits.
//
// Loops are unrolled only where arrays must be in registers: the code of a layer runs once per layer, and
// code that does not fit into the instruction caches is fetched again each time.
//
// Macros, set by the compiler: HIDDEN FFN HEADS KV_HEADS HEAD_DIM LAYERS VOCAB NORM_EPS SCALE BLOCKS (the
// grid) SHARED_BYTES (dynamic shared memory) SCRATCH_WORDS SEGMENT (maximum columns of a stage)
// ROPE_FREQUENCIES (HEAD_DIM / 2 numbers). For each weight X, X_AT is the byte offset of layer 0 in the
// archive and X_STEP the distance from one layer to the next. Matrices have 16 bits, DTYPE_BF16 or
// DTYPE_F16. With PACKED, gate, up and down are quantized: X_TILES for each role X has the arguments of Tiles
// (decode_tiles.cuh), or 16 if its matrices have 16 bits. The KV pool is KV_F32, KV_BF16, KV_F16 or KV_Q8.
// decode_form.cuh lists the macros of networks that differ from Llama's.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define MLX_SAMPLE_CALL __device__ __forceinline__
#include "sample.h"
#include "step.h"

#define PAGE MLX_KV_PAGE
#define WARPS 8
#define THREADS (WARPS * 32)  // consumer threads; the producer warp comes after them
#define EMPTY 0xffffffffu     // a word of |scratch| without a value; the scratch tensor is initialized to it
#define MINUS_INFINITY __uint_as_float(0xff800000u)

#define GROUP (HEADS / KV_HEADS)
#define Q_WIDTH (HEADS * HEAD_DIM)
#define KV_WIDTH (KV_HEADS * HEAD_DIM)
#define QKV_WIDTH (Q_WIDTH + 2 * KV_WIDTH)
// Positions of an attention task, as long as there are enough blocks for all tasks: few rounds of all warps.
#if defined(KV_BF16) || defined(KV_F16)
#define SPLIT 256
#else
#define SPLIT (HEAD_DIM <= 128 ? 128 : 64)
#endif
#define MAX_SPLITS max_of(1, BLOCKS / KV_HEADS)
#define TILE 8  // rows of a stage
#define IN_FLIGHT \
  3  // stages whose copies are in flight; more only lengthen the queue that other blocks wait in
#define MAX_CANDIDATES MLX_BURST_TOP_K
#ifdef GATE_AT
#define MLP_MATRICES 2  // gate and up
#else
#define MLP_MATRICES 1  // up
#endif
#ifdef PACKED
#define STAGE_LIMIT (24 << 10)                                    // largest number of bytes in a stage
#define PAIR_ROWS (SHARED_BYTES >= 160 << 10 ? MLP_MATRICES : 1)  // 2: a stage has rows of both gate and up
#define MAX_RUNS 16  // largest number of runs (see Tiling) whose activations are kept in registers
// Tiles whose sums are completed together: all rows of gate and up of a block, if there is shared memory.
#define BATCH (SHARED_BYTES >= 160 << 10 ? max_of(8, min_of(32, MLP_MATRICES * MLP_TILES)) : 8)
#define MLP_TILES ceil_div(USED *FFN, TILE *BLOCKS)  // of gate, or of up, in a block
#define SHARE_UNIT TILE                              // a block's share of rows is a multiple of this
#else
#define QKV_TILES 16
#define O_TILES 16
#define GATE_TILES 16
#define DOWN_TILES 16
#define SHARED_GATE_TILES 16
#define SHARED_DOWN_TILES 16
#define HEAD_TILES 16
#define EMBED_TILES 16
#define BATCH 8
#define PAIR_ROWS 1
#define MAX_RUNS 8
#define SHARE_UNIT 1
#endif

// ----------------------------------------------------------------------------------------------------------
// Shapes

#include "decode_form.cuh"

static __host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
static __host__ __device__ constexpr int max_of(int a, int b) { return a > b ? a : b; }
static __host__ __device__ constexpr int min_of(int a, int b) { return a < b ? a : b; }

// How rows of K columns are divided: into segments of a multiple of 256 columns, one per stage; a segment
// into runs of 128 columns, which are assigned to the warps round-robin. A run is four pieces of 32 columns.
//
// Activations of up to MAX_RUNS runs are kept in registers. The hidden values of a wider MLP are divided into
// parts, multiplied one after the other; K = PART_OF(FFN, part) stands for the segments of one part.
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

#define PART_UNIT (1 << 24)
#define PART_OF(k, part) ((k) + ((part) + 1) * PART_UNIT)
// The columns of the chosen experts, one after the other (decode_experts.cuh). Each expert has FFN_STRIDE
// columns, whole pairs of tiles, of which the first FFN are used.
#define GROUPED_PARTS 127
#define GROUPED(k) ((k) + GROUPED_PARTS * PART_UNIT)
#ifdef EXPERTS
#ifdef PACKED
#define FFN_STRIDE (ceil_div(FFN, 256) * 256)
#else
#define FFN_STRIDE FFN
#endif
#define DOWN_WIDTH GROUPED(USED *FFN_STRIDE)
#else
#define USED 1
#define FFN_STRIDE FFN
#define DOWN_WIDTH FFN
#endif
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

#define FFN_PARTS Tiling<DOWN_WIDTH>::parts

#include "decode_copies.cuh"
#include "decode_primitives.cuh"
#include "decode_rows16.cuh"
#ifdef PACKED
#include "decode_tiles.cuh"
#else
template <int, int, int, bool, int>
struct Tiles;
#endif

#include "decode_formats.cuh"

// Whether every block keeps the residual stream: to add norms of outputs to it; or because gate and up have
// the layer's input, but not in the form of the input of q, k and v.
#ifdef MLP_NORM_AT
#define MLP_NORMS 1
#else
#define MLP_NORMS 0
#endif
#define KEEPS_ROW (POST_NORMS || (PARALLEL && (MLP_NORMS || !Same<QkvInput, GateInput>::value)))

// ----------------------------------------------------------------------------------------------------------
// Shared memory

#define QUERY_BATCH 4  // queries processed together

// VALUE_WARPS warps share the same positions, and each accumulates some columns of the values.
#if defined(KV_F32) || defined(KV_Q8)
#define VALUE_WARPS (HEAD_DIM <= 128 || GROUP <= 4 ? 1 : 2)
#ifdef KV_Q8
typedef u8 kv_t;  // codes; each page of a head ends with PAGE f32 scales
#else
typedef float kv_t;
#endif
typedef float row_t;
static __device__ __forceinline__ row_t to_row(float x) { return x; }

struct Attention {                               // overlaps the staged activations: see union Work
  __align__(16) float k[HEAD_DIM], v[HEAD_DIM];  // key and value of the newest position
  __align__(16) float query_data[GROUP][HEAD_DIM];
  float4 factors[WARPS][16];  // softmax weights of four queries
  float acc[WARPS / VALUE_WARPS][GROUP][HEAD_DIM];
  float peak[WARPS / VALUE_WARPS][GROUP], sum[WARPS / VALUE_WARPS][GROUP];
};
#else
#define KEY_BLOCKS ceil_div(HEAD_DIM, 32)
// 64 columns per warp.
#define VALUE_WARPS (HEAD_DIM <= 64 ? 1 : HEAD_DIM <= 128 ? 2 : 4)
typedef u16 kv_t, row_t;
static __device__ __forceinline__ row_t to_row(float x) { return KvNumber::narrow(x); }

struct Attention {
  __align__(16) u16 k[HEAD_DIM], v[HEAD_DIM];
  __align__(16) u16 query_data[ceil_div(GROUP, QUERY_BATCH)][2 * KEY_BLOCKS][32][8];
  float acc[WARPS / VALUE_WARPS][GROUP][HEAD_DIM];
  float peak[WARPS / VALUE_WARPS][GROUP], sum[WARPS / VALUE_WARPS][GROUP];
};
#endif

struct Merge {  // partial attention results of one head
  float acc[WARPS][HEAD_DIM];
  float peak[WARPS], sum[WARPS];
};

#define STAGED_BYTES                                                                               \
  max_of(max_of(max_of(QkvInput::staged_bytes, GateInput::staged_bytes), HeadInput::staged_bytes), \
         max_of(OInput::staged_bytes, DownInput::staged_bytes))

#ifdef SHARED_FFN
#define SHARED_STAGED_BYTES max_of(SharedGateInput::staged_bytes, SharedDownInput::staged_bytes)
#else
#define SHARED_STAGED_BYTES 0
#endif

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
#if LAYER_NORMS
  float mean[WARPS], deviation[WARPS], columns[WARPS];  // of the columns of each warp: see measure_row
#endif
#if PARALLEL
  int parity;  // of the layer
#endif
#if QK_NORM_WHOLE
  float whole_square[2][WARPS];  // sums of squares of all queries and all keys
#endif
#if POST_NORMS
  float output_square[WARPS];  // the same of a sublayer's output
#endif
#if POST_NORMS || PARALLEL
  // The residual stream; each warp reads and writes its own columns.
  __align__(16) float residual[KEEPS_ROW ? HIDDEN : 4];
#endif
#if ORDERED
  __align__(16) float row[max_of(HIDDEN, Q_WIDTH)];  // of reorder()
#endif
  float reduce[WARPS];
  int reduce_index[WARPS];
  int blocks, block, epoch;  // number of blocks that take part, index of this block, tokens before this one
  Rows qkv, width, ffn, vocab;  // rows of each matrix that this block computes
#ifdef EXPERTS
  float router_sum[WARPS];  // of one expert's score
  int chosen[USED];         // experts of the token
  float weight[USED];
  int choices;  // layers of this launch whose experts are chosen
#endif
#ifdef SHARED_FFN
  Rows shared;  // rows of gate and up of the shared expert
  float shared_weight;
#endif
  int stopped;                    // 1: no token follows; the producer must stop
  int not_finite;                 // 1: a logit of this block is not finite
  int sampled[MLX_BURST_TOKENS];  // tokens of this launch
};

#define STAGE_OF(format, k) format::Stage<k>::bytes
#define LARGER_STAGE(format, k) max_of(STAGE_OF(format, k), STAGE_OF(format##2, k))
#define PAIR_STAGE \
  max_of((GateFormat::Stage<HIDDEN, PAIR_ROWS>::bytes), (GateFormat2::Stage<HIDDEN, PAIR_ROWS>::bytes))
#ifdef SHARED_FFN
#define SHARED_STAGE                                                          \
  max_of(max_of((SharedGateFormat::Stage<HIDDEN, SHARED_PAIR_ROWS>::bytes),   \
                (SharedGateFormat2::Stage<HIDDEN, SHARED_PAIR_ROWS>::bytes)), \
         LARGER_STAGE(SharedDownFormat, PART_OF(SHARED_FFN, 0)))
#else
#define SHARED_STAGE 0
#endif
#define STAGE_BYTES                                                                      \
  max_of(max_of(max_of(LARGER_STAGE(QkvFormat, HIDDEN), LARGER_STAGE(OFormat, Q_WIDTH)), \
                max_of(PAIR_STAGE, STAGE_OF(HeadFormat, HIDDEN))),                       \
         max_of(LARGER_STAGE(DownFormat, DOWN_WIDTH), SHARED_STAGE))
// As many stages as fit.
#define STAGES ((int)((SHARED_BYTES - sizeof(State) - 128) / (STAGE_BYTES + 2 * sizeof(u64))))

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
  // Residual stream at the input of a layer, and at the input of the MLP (layers alternate). With POST_NORMS
  // the outputs of the MLP and of attention, which are not added to it yet. With PARALLEL, x1 has no flags:
  // the thread that stores a word reads it. There layers alternate in the use of x0 and |attended|.
  float x0[1 + PARALLEL][HIDDEN];
  float x1[2 - PARALLEL][HIDDEN];
  float qkv[QKV_WIDTH];
  float attended[1 + PARALLEL][Q_WIDTH];
  float hidden[2][USED * FFN_STRIDE];
#ifdef EXPERTS
  float router[2][(SCORES + 3) / 4 * 4];  // scores of the experts; layers alternate
#endif
#ifdef SHARED_FFN
  float shared[2][SHARED_FFN];  // hidden values of the shared expert, without its weight
#endif
  float split[HEADS][MAX_SPLITS][HEAD_DIM + 2];  // attention over one split: values, peak, sum
};
static_assert(sizeof(Scratch) == SCRATCH_WORDS * 4ull, "compiler/plan.c computes the same scratch size");

struct Model {
  const u8 *weights;
  kv_t *kv;  // [pages][LAYERS][KV_HEADS][2][PAGE][HEAD_DIM]; with KV_Q8 also the scales. See kv_address
  Scratch *scratch;
  float *logits;        // [VOCAB]
  const int *batch;     // step.h
  const int *pages;     // page table of the sequence
  const int *sampling;  // how to sample; NULL: greedy
  int *history;         // tokens of the sequence
  int start;            // position of the first token of this launch
#if WINDOW_LAYERS
  const int *window_pages;  // its table of window pages
  u64 before;               // layers of all window pages, which are before the pages
#endif
};

__constant__ float rope_frequencies[ROPES * HEAD_DIM / 2] = {ROPE_FREQUENCIES};

#include "decode_ring.cuh"
#include "decode_sums.cuh"

#include "decode_attention.cuh"  // uses decode_sums.cuh
#ifdef EXPERTS
#include "decode_experts.cuh"
#endif
#ifdef SHARED_FFN
#include "decode_shared.cuh"
#endif

#include "decode_reset.cuh"

// ----------------------------------------------------------------------------------------------------------
// Consumers: one token

// The registers of |x|, if the input of gate and up has the same form.
static __device__ __forceinline__ GateInput &same_or_own(GateInput &x, GateInput &) { return x; }
template <typename A>
static __device__ __forceinline__ GateInput &same_or_own(A &, GateInput &own) {
  return own;
}

// The last layer computes the input of the head in the form of its own input.
#define HEAD_LIKE_QKV Same<QkvInput, HeadInput>::value

// The words of the residual stream at the input of a layer, and at that of the MLP. The output of a layer is
// the input of one of the other parity.
static __device__ __forceinline__ float *input_words(Scratch *w, int parity) {
  return w->x0[PARALLEL ? parity : 0];
}
static __device__ __forceinline__ float *middle_words(Scratch *w, int parity) {
  return w->x1[PARALLEL ? 0 : parity];
}

// The hidden values of the MLP. |first|: see Consumer::pairs.
template <typename First>
static __device__ __forceinline__ void compute_hidden(const Model &m, Consumer &c, int l, int parity,
                                                      const GateInput &h, First first) {
  Shared *s = c.s;
  c.pairs<GateFormat, GateFormat2>(
      h, s->ffn, uses_second(l, SECOND_GATE), first, [&](int row) { return mlp_biases(m, s, l, row); },
      [&](int row, float gate, float up, float2 bias, bool last) {
        // Orders the EMPTY words and the new keys and values before some results: other blocks need all of
        // them.
        if (last && !PARALLEL) __threadfence();
        const float scale = layer_scale(s), value = gated(gate * scale + bias.x, up * scale + bias.y);
        publish(&m.scratch->hidden[parity][hidden_word(row)], value * expert_weight(s, row));
      });
}

// |x| is the layer's normalized input; replaced by that of the next layer. With PARALLEL the hidden values of
// the MLP are computed before attention, so that blocks do not wait for each other's queries meanwhile.
static __device__ __forceinline__ void layer(const Model &m, Consumer &c, int l, int parity, Plan plan,
                                             int token, int position, int epoch, QkvInput &x) {
  Shared *s = c.s;
  Scratch *w = m.scratch;
  prefetch_kv(m, s, l, plan, position);
  c.rows<QkvFormat, QkvFormat2>(
      x, s->qkv, [&](int row) { return uses_second(l, qkv_role(row)); },
      [&](int row) { return qkv_bias(m, l, row); },
      [&](int row, float sum, float bias) { publish(&w->qkv[row], clip_qkv(sum * layer_scale(s) + bias)); });
#if PARALLEL
  if (threadIdx.x == 0) s->parity = parity;
  {
    GateInput own;
    GateInput &h = same_or_own(x, own);
    if constexpr (KEEPS_ROW) normalize_kept(s, BEFORE_MLP(l), GATE_ORDER_OF(l), h);
    compute_hidden(m, c, l, parity, h, [] {});
  }
#endif
  attend(m, s, l, plan, position);
  merge_heads(m, s, l, plan.splits);
  {
    OInput attended;
    receive_activations(s, attended_words(m, s), O_ORDER_OF(l), attended);
    const auto residual = [&](int row) {
      if (POST_NORMS) return 0.0f;
      return l ? receive(&input_words(w, parity)[row]) : embedded1(m, token, position, row);
    };
    c.rows<OFormat, OFormat2>(
        attended, s->width, [&](int) { return uses_second(l, SECOND_O); }, residual,
        [&](int row, float sum, float old) {
          publish(&middle_words(w, parity)[row], old + (sum + O_BIAS_OF(l, row)) * (float)RESIDUAL_SCALE);
        });
  }
  const auto reset = [&] {
    reset_consumed(m, s, parity, plan);
    if (l == 0) reset_choice(m, s, epoch);
  };
#if PARALLEL
  reset();
#else
  GateInput own;
  GateInput &h = same_or_own(x, own);
#ifdef EXPERTS
#ifdef SHARED_FFN
  score_and_compute_shared(m, c, l, parity, h);
#else
  receive_and_score(m, s, l, parity, h);
#endif
  choose_experts(s, w->router[parity]);
#else
  receive_and_normalize(s, w->x1[parity], AFTER_ATTENTION(l), BEFORE_MLP(l), GATE_ORDER_OF(l), h);
#endif
  compute_hidden(m, c, l, parity, h, reset);
#endif
  [[maybe_unused]] const bool second_down = uses_second(l, SECOND_DOWN);
  const auto residual = [&](int row) {
    const float bias = down_bias(m, s, l, row) * (float)RESIDUAL_SCALE;
    return POST_NORMS ? bias : receive(&middle_words(w, parity)[row]) + bias;
  };
  const auto store_x0 = [&](int row, float sum, float old) {
    if (PARALLEL) __threadfence();  // as in compute_hidden
    publish(&input_words(w, parity ^ 1)[row], old + sum * (float)RESIDUAL_SCALE);
  };
#ifdef SHARED_FFN
  rows_of_all_experts(m, c, l, parity, residual, store_x0);
#else
  if constexpr (FFN_PARTS > 1) {
    c.rows_in_parts<DownFormat, DownFormat2>(w->hidden[parity], s->width, second_down, residual, store_x0);
  } else {
    DownInput hidden;
    receive_activations(s, w->hidden[parity], nullptr, hidden);
    c.rows<DownFormat, DownFormat2>(hidden, s->width, [&](int) { return second_down; }, residual, store_x0);
  }
#endif
  if (HEAD_LIKE_QKV || l + 1 < LAYERS) {
    receive_and_normalize(s, input_words(w, parity ^ 1), AFTER_MLP(l),
                          l + 1 < LAYERS ? BEFORE_ATTENTION(l + 1) : BEFORE_HEAD,
                          l + 1 < LAYERS ? QKV_ORDER_OF(l + 1) : nullptr, x);
  }
}

struct Best {
  float value;
  int token;
  __device__ __forceinline__ void update(float v, int t) {
    if (v > value || (v == value && t < token)) value = v, token = t;
  }
};

// The largest logit of all consumer threads, returned to every thread.
static __device__ __forceinline__ Best best_of_block(Shared *s, Best best) {
#pragma unroll
  for (int i = 16; i; i >>= 1)
    best.update(__shfl_xor_sync(~0u, best.value, i), __shfl_xor_sync(~0u, best.token, i));
  if ((threadIdx.x & 31) == 0)
    s->reduce[threadIdx.x >> 5] = best.value, s->reduce_index[threadIdx.x >> 5] = best.token;
  sync_consumers();
#pragma unroll
  for (int i = 0; i < WARPS; ++i) best.update(s->reduce[i], s->reduce_index[i]);
  sync_consumers();
  return best;
}

#include "decode_sample.cuh"

// Chooses the next token. All threads of all blocks get it. *not_finite: a logit is NaN or infinite.
static __device__ __forceinline__ int choose_token(const Model &m, Consumer &c, int epoch, int position,
                                                   const HeadInput &x, bool *not_finite) {
  Shared *s = c.s;
  Best best = {MINUS_INFINITY, VOCAB - 1};
  c.rows<HeadFormat, HeadFormat>(
      x, s->vocab, [](int) { return false; }, [&](int row) { return head_bias(m, row); },
      [&](int row, float sum, float bias) {
        sum *= norm_scale(s);
#ifdef HEAD_BIAS_AT
        sum += bias;
#endif
        const float logit = cap_logit(sum * (float)LOGIT_SCALE);
        m.logits[row] = logit;
        if (!mlx_bits_are_finite(__float_as_uint(logit))) s->not_finite = 1;
        best.update(m.sampling ? store_score(m, row, logit) : logit, row);
      });
  best = best_of_block(s, best);  // also makes the logits and |not_finite| visible to the block
  if (m.sampling && adjusts_scores(m.sampling)) best = adjust_scores(m, s, position);
  float(*words)[2] = m.scratch->best[epoch & 3];
  if (threadIdx.x == 0) {
    publish(&words[s->block][0], best.value);
    publish(&words[s->block][1], __int_as_float(best.token | s->not_finite << 30));
  }
  if (m.sampling) return draw_token(m, s, epoch, position, not_finite);
  best = {MINUS_INFINITY, VOCAB - 1};
  int flags = 0;
#pragma unroll 1
  for (int i = threadIdx.x; i < s->blocks; i += THREADS) {
    const float2 word = receive2(words[i]);
    flags |= __float_as_int(word.y) >> 30;
    best.update(word.x, __float_as_int(word.y) & 0x3fffffff);
  }
  if (flags) s->not_finite = 1;
  best = best_of_block(s, best);
  *not_finite = s->not_finite;
  return best.token;
}

// The words of the last layer's output.
static __device__ __forceinline__ float *output_words(const Model &m, const Shared *s) {
#if PARALLEL
  return m.scratch->x0[s->parity ^ 1];
#else
  (void)s;
  return m.scratch->x0[0];
#endif
}

static __device__ __forceinline__ float vector_element(const u8 *vector, int i, float missing) {
  return vector ? ((const float *)vector)[i] : missing;
}

// The input of the output head, for step_1. The words of x0 are valid until all blocks have chosen a token.
static __device__ __forceinline__ void store_hidden(const Model &m, const Shared *s, float *hidden) {
  sync_consumers();  // the sums of squares of all warps are complete
#pragma unroll 1
  for (int i = threadIdx.x; i < HIDDEN; i += THREADS) {
#if POST_NORMS
    const float x = s->residual[i];
#else
    const float x = receive(&output_words(m, s)[i]);
#endif
#if LAYER_NORMS
    const float2 moments = row_moments(s);
    hidden[i] = (x - moments.x) * moments.y * vector_element(BEFORE_HEAD.gain, i, 1.0f) +
                vector_element(BEFORE_HEAD.bias, i, 0.0f);
#else
    hidden[i] = x * vector_element(BEFORE_HEAD.gain, i, 1.0f) * norm_scale(s);
#endif
  }
}

// |x| is the input of the head, if it has the form of a layer's input.
template <typename A>
static __device__ __forceinline__ int finish_token(const Model &m, Consumer &c, int step, int position,
                                                   const A &x, float *hidden, bool *not_finite) {
  if constexpr (Same<A, HeadInput>::value) {
    if (hidden && c.s->block == 0) store_hidden(m, c.s, hidden);
    return choose_token(m, c, c.s->epoch + step, position, x, not_finite);
  } else {
    HeadInput own;
    receive_and_normalize(c.s, output_words(m, c.s), AFTER_MLP(LAYERS - 1), BEFORE_HEAD, nullptr, own);
    return finish_token(m, c, step, position, own, hidden, not_finite);
  }
}

static __device__ __forceinline__ bool is_end(const int *batch, int token) {
  const int count = min(batch[MLX_STEP_EOS_COUNT], MLX_STEP_MAX_EOS);
  bool end = false;
#pragma unroll 1
  for (int i = 0; i < count; ++i) end |= batch[MLX_STEP_EOS + i] == token;
  return end;
}

// Decodes up to |steps| tokens and returns their number. |results| is NULL in step_1, |hidden| in burst.
static __device__ __forceinline__ int consume(const Model &m, Shared *s, int steps, int token, int position,
                                              float *hidden, int *results) {
  Consumer c = {s, {0, 0}, 0};
  const bool writes = s->block == 0 && threadIdx.x == 0;
  int parity = 0, step = 0;
  if (writes) m.history[position] = token;
#pragma unroll 1
  for (bool end = false; step < steps && !end; ++step, ++position) {
    fill_rope_table(s, position);
    const Plans plans = plans_of(position);
    QkvInput x;
    embed(m, s, token, position, x);
#pragma unroll 1
    for (int l = 0; l < LAYERS; ++l, parity ^= 1)
      layer(m, c, l, parity, plans.of(l), token, position, s->epoch + step, x);
    bool not_finite;
    token = finish_token(m, c, step, position, x, hidden, &not_finite);
    end = token < 0 || is_end(m.batch, token);
    if (threadIdx.x == 0) s->sampled[step] = token;
    if (writes && results) {
      results[step * MLX_RESULT_WORDS + MLX_RESULT_TOKEN] = token;
      results[step * MLX_RESULT_WORDS + MLX_RESULT_FLAGS] = not_finite;
      m.history[position + 1] = token;
    }
  }
  sync_consumers();
  if (threadIdx.x == 0) *(volatile int *)&s->stopped = 1;
  // All blocks have read everything except the last choice; the next launch resets that.
  reset_last_layer(m, s, parity);
  return step;
}

// ----------------------------------------------------------------------------------------------------------
// The launch

#define CLOSED 0x40000000u
#define JOIN_TIMEOUT_NS 20000

static __device__ __forceinline__ u64 nanoseconds() {
  u64 t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

static __device__ __forceinline__ u32 load_acquire(u32 *address) {
  u32 value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

// The first block waits JOIN_TIMEOUT_NS for other blocks and publishes the number of blocks that joined.
// Blocks that start later do nothing.
static __device__ void join(Scratch *w, Shared *s) {
  s->epoch = (int)load_acquire(&w->epoch) + 1;
  s->block = (int)(atomicAdd(&w->arrived, 1) + 1);
  if (s->block == 0) {
    const u64 start = nanoseconds();
    while (load_acquire(&w->arrived) + 1 < BLOCKS && nanoseconds() - start < JOIN_TIMEOUT_NS) {}
    atomicExch(&w->blocks, atomicAdd(&w->arrived, CLOSED) + 1);
  }
  if ((u32)s->block >= CLOSED) {
    s->blocks = 0;
    return;
  }
  u32 blocks;
  do blocks = load_acquire(&w->blocks);
  while (blocks == EMPTY);
  s->blocks = (int)blocks;
  s->qkv = rows_of_block(QKV_WIDTH, s->block, s->blocks);
  s->width = rows_of_block(HIDDEN, s->block, s->blocks);
  s->ffn = rows_of_block(USED * FFN, s->block, s->blocks);
  s->vocab = rows_of_block(VOCAB, s->block, s->blocks);
#ifdef SHARED_FFN
  s->shared = rows_of_block(SHARED_FFN, s->block, s->blocks);
#endif
}

// The last block of the grid resets the counters for the next launch.
static __device__ void leave(Scratch *w, const Shared *s, int steps) {
  __threadfence();
  if (s->block == 0) w->epoch = (u32)(s->epoch + steps - 1);
  if (atomicAdd(&w->left, 1) + 2 != gridDim.x) return;
  w->arrived = w->blocks = w->left = EMPTY;
}

// The sequence of the batch, with every index inside its array.
static __device__ __forceinline__ Model open_batch(const u8 *weights, const int *batch, int *history,
                                                   kv_t *kv, Scratch *scratch, float *logits) {
  const int slots = batch[MLX_STEP_SLOT_COUNT],
            slot = min(max(batch[batch[MLX_STEP_AT_SLOTS]], 0), slots - 1);
  const int position = max(batch[batch[MLX_STEP_AT_POSITIONS]], 0);
  const int *sampling = batch + batch[MLX_STEP_AT_SAMPLING];
  const bool samples = batch[MLX_STEP_BURST_COUNT] && needs_sampling(sampling);
  return {weights,
          kv,
          scratch,
          logits,
          batch,
          batch + batch[MLX_STEP_AT_PAGES] + slot * batch[MLX_STEP_SLOT_PAGES],
          samples ? sampling : nullptr,
          history + (u64)slot * batch[MLX_STEP_HISTORY_WIDTH],
          position,
#if WINDOW_LAYERS
          batch + batch[MLX_STEP_AT_WINDOW_PAGES] + slot * batch[MLX_STEP_SLOT_PAGES],
          (u64)batch[MLX_STEP_WINDOW_POOL_PAGES] * WINDOW_LAYERS
#endif
  };
}

extern "C" __global__ void __launch_bounds__(THREADS + 32, 1)
    mlx_decode(const u8 *weights, const int *batch, int *history, kv_t *kv, float *logits, float *hidden,
               int *results, Scratch *scratch) {
  extern __shared__ __align__(128) u8 memory[];
  Shared *s = (Shared *)memory;
  if (batch[MLX_STEP_TOKEN_COUNT] < 1) return;
  const Model m = open_batch(weights, batch, history, kv, scratch, logits);
  const int burst = batch[MLX_STEP_BURST_COUNT], given = batch[batch[MLX_STEP_AT_TOKENS]];
  const int room = min(batch[MLX_STEP_SLOT_PAGES] * PAGE, batch[MLX_STEP_HISTORY_WIDTH] - 1) - m.start;
  const int steps = min(burst ? min(burst, MLX_BURST_TOKENS) : 1, room);
  if (steps < 1) return;
  const int first = min(max(given == MLX_TOKEN_SAMPLED ? m.history[m.start] : given, 0), VOCAB - 1);
  if (threadIdx.x == 0) {
    s->stopped = s->not_finite = 0;
#ifdef EXPERTS
    s->choices = 0;
#endif
#pragma unroll 1
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(&s->full[i], FULL_ARRIVALS);
      barrier_init(&s->free[i], THREADS);
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    join(scratch, s);
  }
  __syncthreads();
  int done = 0;
  if (s->blocks) {
    if (threadIdx.x >= THREADS) {
      produce(m, s, steps);
    } else {
      done = consume(m, s, steps, first, m.start, burst ? nullptr : hidden, burst ? results : nullptr);
#pragma unroll 1
      for (int i = done + threadIdx.x; burst && s->block == 0 && i < burst; i += THREADS)
        results[i * MLX_RESULT_WORDS + MLX_RESULT_TOKEN] = -1;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) leave(scratch, s, done);
}
