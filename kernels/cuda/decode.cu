// Decode: a whole model, STEPS tokens of one sequence, in one launch.
//
// Each block streams its share of every weight matrix, in the order they are needed, through a ring of
// shared-memory stages, and never waits for anything but room in the ring: while the other warps wait for
// activations that other blocks are still computing, the memory keeps reading. docs/decode-kernel.md says
// what that buys, and what was tried instead.
//
//   producer   one warp: copies rows of weights into the ring
//   consumers  WARPS warps: multiply them (on tensor cores), attend, normalise
//
// Activations travel between blocks through global words that carry their own flag: a word is EMPTY (a NaN
// that no arithmetic makes) until its value is stored, and readers poll the value itself. There is no barrier
// and no counter, one store and one load is all that lies between a sum and its use. A word's owner empties
// it again at a time when every reader is known to be done (see empty_what_all_have_read).
//
// The grid may be larger than what fits on the GPU at once: blocks that have not started when the first one
// has waited a moment do not take part, and how many do changes who computes a sum but never how. So no GPU
// is too small, none that others use too busy, and the same input gives the same bits on all of them.
//
// Loops are unrolled where registers must be, and nowhere else: a layer's code runs once a layer, and what
// does not fit into the instruction caches is fetched again each time.
//
// Macros, all from compiler/kernel_ops.c: HIDDEN FFN HEADS KV_HEADS HEAD_DIM LAYERS VOCAB PAGE POOL_PAGES
// NORM_EPS SCALE BLOCKS (the grid) SHARED_BYTES (dynamic shared memory) SCRATCH_WORDS SEGMENT (columns of a
// stage, at most); ROPE_FREQUENCIES (HEAD_DIM / 2 numbers); X_AT and X_STEP for each weight X: bytes from the
// archive's start to layer 0's, and from one layer's to the next one's. Weights and KV pool are DTYPE_BF16 or
// DTYPE_F16; or the weights are PACKED (decode_tiles.cuh), with X_TILES for each role X, and the pool is
// KV_F32.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define WARPS 8
#define THREADS (WARPS * 32)                  // consumers; the producer's warp comes after them
#define EMPTY 0xffffffffu                     // in a word of |scratch|; the whole of it starts so
#define NOTHING __uint_as_float(0xff800000u)  // minus infinity

#define GROUP (HEADS / KV_HEADS)
#define Q_WIDTH (HEADS * HEAD_DIM)
#define KV_WIDTH (KV_HEADS * HEAD_DIM)
#define QKV_WIDTH (Q_WIDTH + 2 * KV_WIDTH)
#define SPLIT 256  // positions that an attention task covers, while there are blocks for all tasks
#define MAX_SPLITS max_of(1, BLOCKS / KV_HEADS)
#define TILE 8   // rows of a stage
#define BATCH 8  // tiles whose sums are finished together
#define PARTS 3  // 16-bit numbers that add up to an activation: with three, all 24 bits of it are there
#ifdef PACKED
#define IN_FLIGHT 5  // stages asked for and not yet there
#else
#define IN_FLIGHT 3  // more only lengthens the queue that others wait in
#endif

// ----------------------------------------------------------------------------------------------------------
// Shapes

static __host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
static __host__ __device__ constexpr int max_of(int a, int b) { return a > b ? a : b; }

// How rows of K columns are cut: into segments, one a stage; and those into runs of 128 columns, which the
// warps take in turn. A run is four pieces of 32 columns: what one tensor-core instruction takes of eight
// rows.
template <int K>
struct Cut {
  static constexpr int segments = ceil_div(K, SEGMENT), columns = ceil_div(ceil_div(K, segments), 128) * 128;
  static constexpr int turns = ceil_div(columns / 128, WARPS),
                       runs = segments * turns;  // of a warp, in a segment and in all
  static constexpr bool even = K % columns == 0 && columns % (128 * WARPS) == 0;  // every warp has every run
  static constexpr bool kept = runs <= 8;                             // its activations fit into registers
  static constexpr int staged = kept ? (runs < 2 ? runs : 2) : runs;  // runs in shared memory at a time

  static __device__ __forceinline__ int column(int run) {  // first of this warp's run
    return run / turns * columns + (run % turns * WARPS + (int)threadIdx.x / 32) * 128;
  }
  static __device__ __forceinline__ bool has(int run, int column) {
    return even || ((run % turns * WARPS + (int)threadIdx.x / 32) * 128 < columns && column < K);
  }
};

#define LARGEST(field) max_of(max_of(Cut<HIDDEN>::field, Cut<FFN>::field), Cut<Q_WIDTH>::field)

// Of a warp's columns: the two words that an instruction takes, for each piece of each run.
template <int K>
struct Activations {
  uint2 word[Cut<K>::kept ? Cut<K>::runs : 1][4];
  float sum[Cut<K>::runs];  // of piece |quad|: what an offset is multiplied with
};

template <int K, typename S>
static __device__ __forceinline__ uint2 words_of(const S *s, const Activations<K> &x, int run, int piece);

#include "decode_copies.cuh"
#include "decode_words.cuh"
#ifdef PACKED
#include "decode_tiles.cuh"
#else
#include "decode_rows16.cuh"
#endif

// ----------------------------------------------------------------------------------------------------------
// Shared memory

#define PIECE_BYTES (PARTS * 64)
#define RUN_BYTES (4 * PIECE_BYTES)

#define ASKED 4  // queries that are answered together

#ifdef KV_F32
#define SIDES 1
typedef float kv_t;
static __device__ __forceinline__ kv_t to_kv(float x) { return x; }

struct Attention {                               // lives where the activations are when there are none
  __align__(16) float k[HEAD_DIM], v[HEAD_DIM];  // of the newest position
  __align__(16) float question[GROUP][HEAD_DIM];
  float4 factors[WARPS][16];  // of four queries
  float mixed[WARPS][GROUP][HEAD_DIM];
  float peak[WARPS][GROUP], sum[WARPS][GROUP];
};
#else
#define KEY_BLOCKS ceil_div(HEAD_DIM, 32)
#define SIDES            \
  (HEAD_DIM <= 64    ? 1 \
   : HEAD_DIM <= 128 ? 2 \
                     : 4)  // warps that mix the same positions' values, 64 columns each
typedef u16 kv_t;
static __device__ __forceinline__ kv_t to_kv(float x) { return to16(x); }

struct Attention {
  __align__(16) u16 k[HEAD_DIM], v[HEAD_DIM];
  __align__(16) u16 question[ceil_div(GROUP, ASKED)][2 * KEY_BLOCKS][32][8];
  float mixed[WARPS / SIDES][GROUP][HEAD_DIM];
  float peak[WARPS / SIDES][GROUP], sum[WARPS / SIDES][GROUP];
};
#endif

struct Merge {  // partial results of one head
  float mixed[WARPS][HEAD_DIM];
  float peak[WARPS], sum[WARPS];
};

union Work {
  __align__(16) u8 runs[WARPS][LARGEST(staged) * RUN_BYTES];
  Attention attention;
  Merge merge;
};

struct Rows {
  int begin, end;
};

struct State {
  Work work;
  float partial[2][WARPS][BATCH * TILE];
  float cosine[HEAD_DIM / 2], sine[HEAD_DIM / 2];
  float square[WARPS];  // of the residual stream: the warps' shares
  float reduce[WARPS];
  int reduce_index[WARPS];
  int blocks, block, epoch;     // how many take part, which one we are
  Rows qkv, width, ffn, vocab;  // our share of the rows
};

#define STAGE_OF(format, k) format::Stage<k>::bytes
#define STAGE_BYTES                                                    \
  max_of(                                                              \
      max_of(STAGE_OF(QkvFormat, HIDDEN), STAGE_OF(OFormat, Q_WIDTH)), \
      max_of(max_of(STAGE_OF(GateFormat, HIDDEN), STAGE_OF(HeadFormat, HIDDEN)), STAGE_OF(DownFormat, FFN)))
#define STAGES \
  ((int)((SHARED_BYTES - sizeof(State) - 128) / (STAGE_BYTES + 2 * sizeof(u64))))  // what there is room for

struct Shared : State {
  u64 full[STAGES], room[STAGES];
  __align__(128) u8 ring[STAGES * STAGE_BYTES];
};
static_assert(STAGES > IN_FLIGHT && sizeof(Shared) <= SHARED_BYTES,
              "the ring is too small: compiler/trace.c should have seen that");

// ----------------------------------------------------------------------------------------------------------
// Global memory: what blocks tell each other. Every word starts EMPTY.

struct Scratch {
  u32 arrived, left, blocks, epoch;  // of the launch; EMPTY is -1 and counts from there
  u32 padding[60];
  float best[4][BLOCKS][2];  // a block's largest logit and its token, for four tokens in turn
  float x0[HIDDEN];          // residual stream into a layer
  float x1[2][HIDDEN];       // and into its MLP; layers take turns
  float qkv[QKV_WIDTH];
  float attended[Q_WIDTH];
  float hidden[2][FFN];
  float split[HEADS][MAX_SPLITS][HEAD_DIM + 2];  // attention over a part of the positions: values, peak, sum
};
static_assert(sizeof(Scratch) == SCRATCH_WORDS * 4ull, "compiler/trace.c makes room for another scratch");

struct Model {
  const u8 *weights;
  kv_t *kv;  // [LAYERS][POOL_PAGES][KV_HEADS][2][PAGE][HEAD_DIM]
  Scratch *scratch;
  float *logits;  // [VOCAB]
  const int *pages;
};

__constant__ float rope_frequencies[HEAD_DIM / 2] = {ROPE_FREQUENCIES};

#include "decode_attention.cuh"
#include "decode_ring.cuh"
#include "decode_sums.cuh"

// ----------------------------------------------------------------------------------------------------------
// Emptying words

static __device__ __forceinline__ void empty_rows(float *words, Rows rows) {
#pragma unroll 1
  for (int r = rows.begin + (int)threadIdx.x; r < rows.end; r += THREADS) empty(words + r);
}

// Called when x1 of this layer is complete: then every block has read what went into it, and everything of
// the layer before. The words are used again a layer later at the earliest, by blocks that have heard from us
// after our next fence.
static __device__ __forceinline__ void empty_what_all_have_read(const Model &m, const Shared *s, int turn,
                                                                Plan plan) {
  Scratch *w = m.scratch;
  empty_rows(w->qkv, s->qkv);
  empty_rows(w->x0, s->width);
  empty_rows(w->x1[turn ^ 1], s->width);
  empty_rows(w->hidden[turn ^ 1], s->ffn);
#pragma unroll 1
  for (int task = s->block; task < plan.tasks(); task += s->blocks) {
    const int query = plan.query(task), words = HEAD_DIM + 2;
    if (plan.splits == 1) {
      empty_rows(w->attended, {query * HEAD_DIM, (query + plan.queries) * HEAD_DIM});
      continue;
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < plan.queries * words; i += THREADS)
      empty(&w->split[query + i / words][plan.split(task)][i % words]);
  }
  if (plan.splits == 1) return;
#pragma unroll 1
  for (int head = s->blocks - 1 - s->block; head < HEADS; head += s->blocks) {
    empty_rows(w->attended, {head * HEAD_DIM, (head + 1) * HEAD_DIM});
  }
}

static __device__ __forceinline__ void empty_best(const Model &m, const Shared *s, int epoch) {
  if (threadIdx.x >= 2) return;
#pragma unroll 1
  for (int i = s->block; i < BLOCKS; i += s->blocks) empty(&m.scratch->best[epoch & 3][i][threadIdx.x]);
}

// ----------------------------------------------------------------------------------------------------------
// Consumers: a token

// |x|: the layer's input times its norm's gain.
static __device__ __forceinline__ void layer(const Model &m, Consumer &c, int l, int turn, Plan plan,
                                             int token, int position, int epoch, Activations<HIDDEN> &x) {
  Shared *s = c.s;
  Scratch *w = m.scratch;
  const auto nothing = [](int) { return 0.0f; };
  expect_keys(m, s, l, plan, position);
  c.rows<QkvFormat>(x, s->qkv, nothing,
                    [&](int row, float sum, float) { tell(&w->qkv[row], sum * norm_scale(s)); });
  attend(m, s, l, plan, position);
  merge_heads(m, s, plan.splits);
  {
    Activations<Q_WIDTH> attended;
    hear_activations<Q_WIDTH>(s, w->attended, attended);
    const auto residual = [&](int row) {
      return l ? hear(&w->x0[row]) : EmbedFormat::one<HIDDEN>(m.weights + EMBED_AT, token, row);
    };
    c.rows<OFormat>(attended, s->width, residual,
                    [&](int row, float sum, float old) { tell(&w->x1[turn][row], old + sum); });
  }
  hear_and_normalise(s, w->x1[turn], AT(MLP_NORM, l), x);
  const auto first = [&] {
    empty_what_all_have_read(m, s, turn, plan);
    if (l == 0) empty_best(m, s, epoch - 1);
  };
  bool fenced = false;
  c.pairs<GateFormat>(x, s->ffn, first, [&](int row, float gate, float up) {
    if (!fenced) __threadfence();  // the emptied words and the new keys and values first
    fenced = true;
    const float scale = norm_scale(s);
    gate *= scale;
    tell(&w->hidden[turn][row], gate / (1.0f + exp_of(-gate)) * (up * scale));
  });
  {
    Activations<FFN> hidden;
    hear_activations<FFN>(s, w->hidden[turn], hidden);
    c.rows<DownFormat>(
        hidden, s->width, [&](int row) { return hear(&w->x1[turn][row]); },
        [&](int row, float sum, float old) { tell(&w->x0[row], old + sum); });
  }
  hear_and_normalise(s, w->x0, l + 1 < LAYERS ? AT(ATTN_NORM, l + 1) : m.weights + FINAL_NORM_AT, x);
}

struct Best {
  float value;
  int token;
  __device__ __forceinline__ void better(float v, int t) {
    if (v > value || (v == value && t < token)) value = v, token = t;
  }
};

// The best of all consumers' bests, in every thread.
static __device__ __forceinline__ Best best_of_block(Shared *s, Best best) {
#pragma unroll
  for (int i = 16; i; i >>= 1)
    best.better(__shfl_xor_sync(~0u, best.value, i), __shfl_xor_sync(~0u, best.token, i));
  if ((threadIdx.x & 31) == 0)
    s->reduce[threadIdx.x >> 5] = best.value, s->reduce_index[threadIdx.x >> 5] = best.token;
  consumers_meet();
#pragma unroll
  for (int i = 0; i < WARPS; ++i) best.better(s->reduce[i], s->reduce_index[i]);
  consumers_meet();
  return best;
}

static __device__ __forceinline__ int choose(const Model &m, Consumer &c, int epoch,
                                             const Activations<HIDDEN> &x) {
  Shared *s = c.s;
  const Best none = {NOTHING, VOCAB - 1};
  Best best = none;
  c.rows<HeadFormat>(
      x, s->vocab, [](int) { return 0.0f; },
      [&](int row, float sum, float) {
        const float logit = sum * norm_scale(s);
        m.logits[row] = logit;
        best.better(logit, row);
      });
  best = best_of_block(s, best);
  float(*words)[2] = m.scratch->best[epoch & 3];
  if (threadIdx.x == 0) {
    tell(&words[s->block][0], best.value);
    tell(&words[s->block][1], __int_as_float(best.token));
  }
  best = none;
#pragma unroll 1
  for (int i = threadIdx.x; i < s->blocks; i += THREADS)
    best.better(hear(&words[i][0]), __float_as_int(hear(&words[i][1])));
  return best_of_block(s, best).token;
}

static __device__ __forceinline__ int consume(const Model &m, Shared *s, int steps, int token, int position,
                                              int *out_tokens) {
  Consumer c = {s, {0, 0}, 0};
  int turn = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step, ++position) {
    turn_table(s, position);
    const Plan plan = plan_of(position);
    Activations<HIDDEN> x;
    embed(m, s, token, x);
#pragma unroll 1
    for (int l = 0; l < LAYERS; ++l, turn ^= 1)
      layer(m, c, l, turn, plan, token, position, s->epoch + step, x);
    token = choose(m, c, s->epoch + step, x);
    if (s->block == 0 && threadIdx.x == 0) out_tokens[step] = token;
  }
  // Everyone has read everything but the last bests; the next launch empties those.
  empty_rows(m.scratch->x0, s->width);
  empty_rows(m.scratch->x1[turn ^ 1], s->width);
  empty_rows(m.scratch->hidden[turn ^ 1], s->ffn);
  return token;
}

// ----------------------------------------------------------------------------------------------------------
// The launch

#define CLOSED 0x40000000u
#define PATIENCE 20000  // nanoseconds

static __device__ __forceinline__ u64 nanoseconds() {
  u64 t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

static __device__ __forceinline__ u32 look_word(u32 *word) {
  u32 value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

// The first block waits a moment for the others and says how many came; who comes later has no part in this.
static __device__ void join(Scratch *w, Shared *s) {
  s->epoch = (int)look_word(&w->epoch) + 1;
  s->block = (int)(atomicAdd(&w->arrived, 1) + 1);
  if (s->block == 0) {
    const u64 start = nanoseconds();
    while (look_word(&w->arrived) + 1 < BLOCKS && nanoseconds() - start < PATIENCE) {}
    atomicExch(&w->blocks, atomicAdd(&w->arrived, CLOSED) + 1);
  }
  if ((u32)s->block >= CLOSED) {
    s->blocks = 0;
    return;
  }
  u32 blocks;
  do blocks = look_word(&w->blocks);
  while (blocks == EMPTY);
  s->blocks = (int)blocks;
  s->qkv = share(QKV_WIDTH, s->block, s->blocks);
  s->width = share(HIDDEN, s->block, s->blocks);
  s->ffn = share(FFN, s->block, s->blocks);
  s->vocab = share(VOCAB, s->block, s->blocks);
}

// The last of the grid's blocks puts things back for the next launch.
static __device__ void leave(Scratch *w, const Shared *s, int steps) {
  __threadfence();
  if (s->block == 0) w->epoch = (u32)(s->epoch + steps - 1);
  if (atomicAdd(&w->left, 1) + 2 != gridDim.x) return;
  w->arrived = w->blocks = w->left = EMPTY;
}

extern "C" __global__ void __launch_bounds__(THREADS + 32, 1)
    mlx_decode(const u8 *weights, const int *pages, const int *active, kv_t *kv, Scratch *scratch, int *token,
               int *position, float *logits, int *out_tokens, int steps) {
  extern __shared__ __align__(128) u8 memory[];
  Shared *s = (Shared *)memory;
  const Model m = {weights, kv, scratch, logits, pages};
  if (!active[0]) {
#pragma unroll 1
    for (int i = threadIdx.x; blockIdx.x == 0 && i < steps; i += blockDim.x) out_tokens[i] = token[0];
    return;
  }
  const int first = min(max(token[0], 0), VOCAB - 1), start = position[0];
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(&s->full[i], FULL_ARRIVALS);
      barrier_init(&s->room[i], THREADS);
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    join(scratch, s);
  }
  __syncthreads();
  if (s->blocks) {
    if (threadIdx.x >= THREADS) {
      produce(m, s, steps);
    } else {
      const int last = consume(m, s, steps, first, start, out_tokens);
      if (s->block == 0 && threadIdx.x == 0) {
        token[0] = last;
        position[0] = start + steps;
      }
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) leave(scratch, s, steps);
}
