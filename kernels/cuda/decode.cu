// Decode: a whole model, STEPS tokens of one sequence, in one launch.
//
// Each block streams its share of every weight matrix, in the order they are needed, through a ring of shared-memory stages,
// and never waits for anything but room in the ring: while the other warps wait for activations that other blocks are still
// computing, the memory keeps reading. docs/decode-kernel.md says what that buys, and what was tried instead.
//
//   producer   one warp: copies rows of weights into the ring
//   consumers  WARPS warps: multiply them (on tensor cores), attend, normalise
//
// Activations travel between blocks through global words that carry their own flag: a word is EMPTY (a NaN that no
// arithmetic makes) until its value is stored, and readers poll the value itself. There is no barrier and no counter, one
// store and one load is all that lies between a sum and its use. A word's owner empties it again at a time when every reader
// is known to be done (see empty_what_all_have_read).
//
// The grid may be larger than what fits on the GPU at once: blocks that have not started when the first one has waited a
// moment do not take part, and how many do changes who computes a sum but never how. So no GPU is too small, none that
// others use too busy, and the same input gives the same bits on all of them.
//
// Loops are unrolled where registers must be, and nowhere else: a layer's code runs once a layer, and what does not fit into the
// instruction caches is fetched again each time.
//
// Macros, all from compiler/kernel_ops.c: HIDDEN FFN HEADS KV_HEADS HEAD_DIM LAYERS VOCAB PAGE POOL_PAGES NORM_EPS SCALE
// BLOCKS (the grid) SHARED_BYTES (dynamic shared memory) SCRATCH_WORDS; DTYPE_BF16 or DTYPE_F16 (weights and KV pool); ROPE_FREQUENCIES
// (HEAD_DIM / 2 numbers); X_AT and X_STEP for each weight X: bytes from the archive's start to layer 0's, and from one layer's
// to the next one's.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define WARPS 8
#define THREADS (WARPS * 32)  // consumers; the producer's warp comes after them
#define EMPTY 0xffffffffu     // in a word of |scratch|; the whole of it starts so
#define NOTHING __uint_as_float(0xff800000u)  // minus infinity

#define GROUP (HEADS / KV_HEADS)
#define Q_WIDTH (HEADS * HEAD_DIM)
#define KV_WIDTH (KV_HEADS * HEAD_DIM)
#define QKV_WIDTH (Q_WIDTH + 2 * KV_WIDTH)
#define SPLIT 256             // positions that an attention task covers, while there are blocks for all tasks
#define MAX_SPLITS max_of(1, BLOCKS / KV_HEADS)
#define TILE 8                // rows of a stage
#define BATCH 8               // tiles whose sums are finished together
#define PARTS 3               // 16-bit numbers that add up to an activation: with three, all 24 bits of it are there
#define SEGMENT 1024          // columns of a stage, at most
#define IN_FLIGHT 3           // stages asked for and not yet there: more only lengthens the queue that others wait in

// ---------------------------------------------------------------------------------------------------------------------
// Shapes

static __host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
static __host__ __device__ constexpr int max_of(int a, int b) { return a > b ? a : b; }

// How rows of K columns are cut: into segments, one a stage; and those into runs of 128 columns, which the warps take in turn.
// A run is four pieces of 32 columns: what one tensor-core instruction takes of eight rows.
template <int K>
struct Cut {
  static constexpr int segments = ceil_div(K, SEGMENT), columns = ceil_div(ceil_div(K, segments), 128) * 128;
  static constexpr int stride = columns * 2 + 64;  // bytes of a row in a stage: eight rows' 64 bytes fall into different banks
  static constexpr int turns = ceil_div(columns / 128, WARPS), runs = segments * turns;  // of a warp, in a segment and in all
  static constexpr bool even = K % columns == 0 && columns % (128 * WARPS) == 0;         // every warp has every run
  static constexpr bool kept = runs <= 8;                                                // its activations fit into registers
  static constexpr int staged = kept ? (runs < 2 ? runs : 2) : runs;                     // runs in shared memory at a time

  static __device__ __forceinline__ int column(int run) {  // first of this warp's run
    return run / turns * columns + (run % turns * WARPS + (int)threadIdx.x / 32) * 128;
  }
  static __device__ __forceinline__ bool has(int run, int column) {
    return even || ((run % turns * WARPS + (int)threadIdx.x / 32) * 128 < columns && column < K);
  }
};

#define LARGEST(field) max_of(max_of(Cut<HIDDEN>::field, Cut<FFN>::field), Cut<Q_WIDTH>::field)
#define STAGE_BYTES (TILE * LARGEST(stride))

// ---------------------------------------------------------------------------------------------------------------------
// Shared memory

#define PIECE_BYTES (PARTS * 64)
#define RUN_BYTES (4 * PIECE_BYTES)

#define ASKED 4  // queries that are answered together
#define KEY_BLOCKS ceil_div(HEAD_DIM, 32)
#define SIDES (HEAD_DIM <= 64 ? 1 : HEAD_DIM <= 128 ? 2 : 4)  // warps that mix the same positions' values, 64 columns each

struct Attention {  // lives where the activations are when there are none
  __align__(16) u16 k[HEAD_DIM], v[HEAD_DIM];  // of the newest position
  __align__(16) u16 question[ceil_div(GROUP, ASKED)][2 * KEY_BLOCKS][32][8];
  float mixed[WARPS / SIDES][GROUP][HEAD_DIM];
  float peak[WARPS / SIDES][GROUP], sum[WARPS / SIDES][GROUP];
};

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
  float square[WARPS];                      // of the residual stream: the warps' shares
  float reduce[WARPS];
  int reduce_index[WARPS];
  int blocks, block, epoch;                 // how many take part, which one we are
  Rows qkv, width, ffn, vocab;              // our share of the rows
};

#define STAGES ((int)((SHARED_BYTES - sizeof(State) - 128) / (STAGE_BYTES + 2 * sizeof(u64))))  // what there is room for

struct Shared : State {
  u64 full[STAGES], room[STAGES];
  __align__(128) u8 ring[STAGES * STAGE_BYTES];
};
static_assert(STAGES > IN_FLIGHT && sizeof(Shared) <= SHARED_BYTES, "the ring is too small: compiler/trace.c should have seen that");

// ---------------------------------------------------------------------------------------------------------------------
// Global memory: what blocks tell each other. Every word starts EMPTY.

struct Scratch {
  u32 arrived, left, blocks, epoch;         // of the launch; EMPTY is -1 and counts from there
  u32 padding[60];
  float best[4][BLOCKS][2];                 // a block's largest logit and its token, for four tokens in turn
  float x0[HIDDEN];                         // residual stream into a layer
  float x1[2][HIDDEN];                      // and into its MLP; layers take turns
  float qkv[QKV_WIDTH];
  float attended[Q_WIDTH];
  float hidden[2][FFN];
  float split[HEADS][MAX_SPLITS][HEAD_DIM + 2];  // attention over a part of the positions: values, peak, sum
};
static_assert(sizeof(Scratch) == SCRATCH_WORDS * 4ull, "compiler/trace.c makes room for another scratch");

struct Model {
  const u8 *weights;
  u16 *kv;            // [LAYERS][POOL_PAGES][KV_HEADS][2][PAGE][HEAD_DIM]
  Scratch *scratch;
  float *logits;      // [VOCAB]
  const int *pages;
};

__constant__ float rope_frequencies[HEAD_DIM / 2] = {ROPE_FREQUENCIES};

// ---------------------------------------------------------------------------------------------------------------------
// Numbers

#ifdef DTYPE_F16
static __device__ __forceinline__ u16 to16(float x) { u16 y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
static __device__ __forceinline__ float from16(u16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }
#define TO_PAIR "cvt.rn.f16x2.f32"
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#else
static __device__ __forceinline__ u16 to16(float x) { u16 y; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
static __device__ __forceinline__ float from16(u16 x) { return __uint_as_float((u32)x << 16); }
#define TO_PAIR "cvt.rn.bf16x2.f32"
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
#endif

static __device__ __forceinline__ u32 to16x2(float low, float high) {
  u32 pair;
  asm(TO_PAIR " %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

static __device__ __forceinline__ float low16(u32 pair) { return from16((u16)pair); }
#ifdef DTYPE_F16
static __device__ __forceinline__ float high16(u32 pair) { return from16((u16)(pair >> 16)); }
#else
static __device__ __forceinline__ float high16(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
#endif

static __device__ __forceinline__ void multiply(float (&sum)[4], uint4 a, uint2 b) {
  asm volatile(MMA " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
}

static __device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int i = 16; i; i >>= 1) x += __shfl_xor_sync(~0u, x, i);
  return x;
}

// ---------------------------------------------------------------------------------------------------------------------
// Words that carry their own flag

static __device__ __forceinline__ void tell(float *word, float value) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(word), "f"(value) : "memory");
}

static __device__ __forceinline__ void empty(float *word) { tell(word, __uint_as_float(EMPTY)); }

static __device__ __forceinline__ bool is_empty(float value) { return __float_as_uint(value) == EMPTY; }

static __device__ __forceinline__ float look(const float *word) {
  float value;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(value) : "l"(word));
  return value;
}

static __device__ __forceinline__ float hear(const float *word) {
  float value;
  do value = look(word);
  while (is_empty(value));
  return value;
}

static __device__ __forceinline__ float4 look4(const float *words) {
  float4 v;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(words));
  return v;
}

static __device__ __forceinline__ bool any_empty(float4 v) { return is_empty(v.x) || is_empty(v.y) || is_empty(v.z) || is_empty(v.w); }

// ---------------------------------------------------------------------------------------------------------------------
// The ring

static __device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

static __device__ __forceinline__ void barrier_init(u64 *barrier, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

static __device__ __forceinline__ void barrier_arrive(u64 *barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(shared_address(barrier)) : "memory");
}

static __device__ __forceinline__ bool barrier_passed(u64 *barrier, u32 parity) {
  u32 passed;
  asm volatile(
#if __CUDA_ARCH__ >= 900
      "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
#else
      "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
#endif
      : "=r"(passed)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return passed;
}

static __device__ __forceinline__ void barrier_wait(u64 *barrier, u32 parity) {
  while (!barrier_passed(barrier, parity)) {
  }
}

struct Place {  // in the ring: the producer has one, every consumer warp has one
  u32 stage, turn;
  __device__ __forceinline__ void next() {
    if (++stage == STAGES) stage = 0, turn ^= 1;
  }
};

// One copy of |bytes| (a multiple of 16) by one lane, which counts towards |full|.
static __device__ __forceinline__ void copy_row(u8 *to, const u8 *from, int bytes, u64 *full) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(full))
               : "memory");
#else
  (void)full;
#pragma unroll 1
  for (int i = 0; i < bytes; i += 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to + i)), "l"(from + i) : "memory");
  }
#endif
}

struct Producer {
  Shared *s;
  Place at, landed;  // landed: IN_FLIGHT stages behind
  int started;

  // A stage of |rows| rows; this lane's row begins at |from|, or has none when it is NULL.
  template <int K>
  __device__ __forceinline__ void put(int segment, int rows, const u8 *from) {
    using C = Cut<K>;
    const int lane = threadIdx.x & 31, columns = min(C::columns, K - segment * C::columns);
    u64 *full = &s->full[at.stage];
    barrier_wait(&s->room[at.stage], at.turn ^ 1);
    if (started >= IN_FLIGHT) {
      barrier_wait(&s->full[landed.stage], landed.turn);
      landed.next();
    } else {
      ++started;
    }
    u8 *to = s->ring + at.stage * STAGE_BYTES + lane * C::stride;
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(full)), "r"(rows * columns * 2) : "memory");
    }
    __syncwarp();
    if (from) copy_row(to, from + segment * C::columns * 2, columns * 2, full);
#else
    (void)rows;
    if (from) copy_row(to, from + segment * C::columns * 2, columns * 2, full);
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(full)) : "memory");
#endif
    at.next();
  }
};

#if __CUDA_ARCH__ >= 900
#define FULL_ARRIVALS 1
#else
#define FULL_ARRIVALS 32
#endif

// ---------------------------------------------------------------------------------------------------------------------
// Who computes which rows

static __device__ Rows share(int rows, int block, int blocks) {
  return {(int)((u64)rows * (u32)block / (u32)blocks), (int)((u64)rows * ((u32)block + 1) / (u32)blocks)};
}

#define AT(weight, layer) (m.weights + weight##_AT + (u64)(layer) * weight##_STEP)

static __device__ __forceinline__ const u8 *qkv_row(const Model &m, int layer, int row) {
  if (row < Q_WIDTH) return AT(Q, layer) + (u64)row * HIDDEN * 2;
  row -= Q_WIDTH;
  if (row < KV_WIDTH) return AT(K, layer) + (u64)row * HIDDEN * 2;
  return AT(V, layer) + (u64)(row - KV_WIDTH) * HIDDEN * 2;
}

// ---------------------------------------------------------------------------------------------------------------------
// The producer's day

template <int K, typename Row>
static __device__ __forceinline__ void stream_rows(Producer &p, Rows rows, Row row) {
  const int lane = threadIdx.x & 31;
#pragma unroll 1
  for (int r = rows.begin; r < rows.end; r += TILE) {
    const int count = min(TILE, rows.end - r);
    const u8 *from = lane < count ? row(r + lane) : nullptr;
#pragma unroll 1
    for (int segment = 0; segment < Cut<K>::segments; ++segment) p.put<K>(segment, count, from);
  }
}

// Rows of the gate and the same rows of the matrix beside it: their sums meet in one thread.
static __device__ __forceinline__ void stream_pairs(Producer &p, Rows rows, const u8 *gate, const u8 *up) {
  const int lane = threadIdx.x & 31, half = TILE / 2;
#pragma unroll 1
  for (int r = rows.begin; r < rows.end; r += half) {
    const int count = min(half, rows.end - r);
    const u8 *matrix = lane < half ? gate : up;
    const u8 *from = lane < TILE && lane % half < count ? matrix + (u64)(r + lane % half) * HIDDEN * 2 : nullptr;
#pragma unroll 1
    for (int segment = 0; segment < Cut<HIDDEN>::segments; ++segment) p.put<HIDDEN>(segment, 2 * count, from);
  }
}

static __device__ void produce(const Model &m, Shared *s, int steps) {
  Producer p = {s, {0, 0}, {0, 0}, 0};
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
#pragma unroll 1
    for (int l = 0; l < LAYERS; ++l) {
      stream_rows<HIDDEN>(p, s->qkv, [&](int row) { return qkv_row(m, l, row); });
      stream_rows<Q_WIDTH>(p, s->width, [&](int row) { return AT(O, l) + (u64)row * Q_WIDTH * 2; });
      stream_pairs(p, s->ffn, AT(GATE, l), AT(UP, l));
      stream_rows<FFN>(p, s->width, [&](int row) { return AT(DOWN, l) + (u64)row * FFN * 2; });
    }
    stream_rows<HIDDEN>(p, s->vocab, [&](int row) { return m.weights + HEAD_AT + (u64)row * HIDDEN * 2; });
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Consumers: activations
//
// One tensor-core instruction multiplies a 16 x 16 matrix with a 16 x 8 one. Eight rows of weights, 32 columns of them, fill the
// first: lane 4 * row + quad holds eight neighbouring weights of that row, of which the instruction takes pairs 0 and 2 for its
// row |row| and pairs 1 and 3 for its row |row| + 8. The second matrix's column |part| holds that part of the activations that
// meet pairs 0 and 2, its column 4 + |part| those that meet pairs 1 and 3. So a lane needs two words of activations a piece.

static __device__ __forceinline__ void consumers_meet() { asm volatile("barrier.sync 1, %0;" ::"n"(THREADS) : "memory"); }

template <int K>
struct Activations {
  uint2 word[Cut<K>::kept ? Cut<K>::runs : 1][4];
};

// This lane's two words of a staged piece; a part that there is not is zero.
static __device__ __forceinline__ uint2 staged_words(const Shared *s, int run, int piece) {
  const int lane = threadIdx.x & 31, quad = lane & 3, part = lane >> 2 & 3, half = lane >> 4;
  const u8 *from = s->work.runs[threadIdx.x >> 5] + run * RUN_BYTES + piece * PIECE_BYTES + ((half * 4 + quad) * PARTS + part) * 8;
  return part < PARTS ? *(const uint2 *)from : uint2{0, 0};
}

// Lane i has activations 4i to 4i + 3 of the run: their parts go where the instruction wants them.
static __device__ __forceinline__ void stage(Shared *s, int run, float4 x) {
  const int lane = threadIdx.x & 31, piece = lane >> 3, quad = lane >> 1 & 3, word = lane & 1;
  u8 *to = s->work.runs[threadIdx.x >> 5] + run * RUN_BYTES + piece * PIECE_BYTES + quad * PARTS * 8 + word * 4;
#pragma unroll
  for (int i = 0; i < PARTS; ++i) {
    const u32 first = to16x2(x.x, x.y), second = to16x2(x.z, x.w);
    *(u32 *)(to + i * 8) = first;
    *(u32 *)(to + i * 8 + 4 * PARTS * 8) = second;
    x = {x.x - low16(first), x.y - high16(first), x.z - low16(second), x.w - high16(second)};
  }
}

// The values of this warp's columns become its activations.
template <int K>
static __device__ __forceinline__ void stage_all(Shared *s, Activations<K> &x, const float4 (&value)[Cut<K>::runs]) {
  using C = Cut<K>;
#pragma unroll
  for (int begin = 0; begin < C::runs; begin += C::staged) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < C::staged && begin + i < C::runs; ++i) stage(s, i, value[begin + i]);
    __syncwarp();
    if (!C::kept) return;
#pragma unroll
    for (int i = 0; i < 4 * C::staged && begin + i / 4 < C::runs; ++i) x.word[begin + i / 4][i % 4] = staged_words(s, i / 4, i % 4);
  }
}

// All words are asked for before any is looked at, and all that were empty again.
template <int K>
static __device__ __forceinline__ void hear_all(const float *words, float4 (&value)[Cut<K>::runs]) {
  using C = Cut<K>;
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int i = 0; i < C::runs; ++i) {
    const int column = C::column(i) + lane * 4;
    value[i] = C::has(i, column) ? look4(words + column) : float4{0, 0, 0, 0};
  }
  for (bool again = true; again;) {
    again = false;
#pragma unroll
    for (int i = 0; i < C::runs; ++i) again |= any_empty(value[i]);
    if (!again) break;
#pragma unroll
    for (int i = 0; i < C::runs; ++i) {
      if (any_empty(value[i])) value[i] = look4(words + C::column(i) + lane * 4);
    }
  }
}

template <int K>
static __device__ __forceinline__ void hear_activations(Shared *s, const float *words, Activations<K> &x) {
  float4 value[Cut<K>::runs];
  hear_all<K>(words, value);
  stage_all<K>(s, x, value);
}

static __device__ __forceinline__ void load_gain(const u8 *weight, float4 (&gain)[Cut<HIDDEN>::runs]) {
  using C = Cut<HIDDEN>;
#pragma unroll
  for (int i = 0; i < C::runs; ++i) {
    const int column = C::column(i) + (threadIdx.x & 31) * 4;
    gain[i] = C::has(i, column) ? *(const float4 *)((const float *)weight + column) : float4{0, 0, 0, 0};
  }
}

// The residual stream times the norm's gain. Its length divides the sums, when they are there: see norm_scale.
static __device__ __forceinline__ void normalise(Shared *s, float4 (&value)[Cut<HIDDEN>::runs], const float4 (&gain)[Cut<HIDDEN>::runs],
                                                 Activations<HIDDEN> &x) {
  float square = 0;
#pragma unroll
  for (int i = 0; i < Cut<HIDDEN>::runs; ++i) {
    const float4 v = value[i], g = gain[i];
    square += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    value[i] = {v.x * g.x, v.y * g.y, v.z * g.z, v.w * g.w};
  }
  square = warp_sum(square);
  if ((threadIdx.x & 31) == 0) s->square[threadIdx.x >> 5] = square;
  stage_all<HIDDEN>(s, x, value);
}

static __device__ __forceinline__ float norm_scale(const Shared *s) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < WARPS; ++i) sum += s->square[i];
  return rsqrtf(sum / HIDDEN + NORM_EPS);
}

static __device__ __forceinline__ void hear_and_normalise(Shared *s, const float *words, const u8 *weight, Activations<HIDDEN> &x) {
  float4 value[Cut<HIDDEN>::runs], gain[Cut<HIDDEN>::runs];
  load_gain(weight, gain);
  hear_all<HIDDEN>(words, value);
  normalise(s, value, gain, x);
}

static __device__ __forceinline__ const u16 *embedding(const Model &m, int token) {
  return (const u16 *)(m.weights + EMBED_AT) + (u64)token * HIDDEN;
}

static __device__ __forceinline__ void embed(const Model &m, Shared *s, int token, Activations<HIDDEN> &x) {
  using C = Cut<HIDDEN>;
  float4 value[C::runs], gain[C::runs];
  load_gain(AT(ATTN_NORM, 0), gain);
#pragma unroll
  for (int i = 0; i < C::runs; ++i) {
    const int column = C::column(i) + (threadIdx.x & 31) * 4;
    const uint2 raw = C::has(i, column) ? *(const uint2 *)(embedding(m, token) + column) : uint2{0, 0};
    value[i] = {low16(raw.x), high16(raw.x), low16(raw.y), high16(raw.y)};
  }
  normalise(s, value, gain, x);
}

// ---------------------------------------------------------------------------------------------------------------------
// Consumers: sums of rows

struct Consumer {
  Shared *s;
  Place at;
  int buffer;  // of partial sums

  // One stage: this warp multiplies its runs of it into the tile's sums.
  template <int K>
  __device__ __forceinline__ void take(int segment, const Activations<K> &x, float (&sum)[4][4]) {
    using C = Cut<K>;
    const int lane = threadIdx.x & 31, row = lane >> 2, quad = lane & 3;
    const u8 *weights = s->ring + at.stage * STAGE_BYTES + row * C::stride + (threadIdx.x >> 5) * 256 + quad * 16;
    uint4 a[C::turns * 4];
    barrier_wait(&s->full[at.stage], at.turn);
#pragma unroll
    for (int i = 0; i < C::turns * 4; ++i) {
      const int run = segment * C::turns + i / 4;
      const bool there = C::has(run, C::column(run) + i % 4 * 32 + quad * 8);
      a[i] = there ? *(const uint4 *)(weights + i / 4 * WARPS * 256 + i % 4 * 64) : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int i = 0; i < C::turns * 4; ++i) {
      const int run = segment * C::turns + i / 4;
      const uint2 b = C::kept ? x.word[C::kept ? run : 0][i % 4] : staged_words(s, run, i % 4);
      multiply(sum[i & 3], a[i], b);
    }
    barrier_arrive(&s->room[at.stage]);
    at.next();
  }

  template <int K>
  __device__ __forceinline__ void take_tile(const Activations<K> &x, int nth) {
    const int lane = threadIdx.x & 31;
    float sum[4][4] = {};
#pragma unroll
    for (int segment = 0; segment < Cut<K>::segments; ++segment) take<K>(segment, x, sum);
    const int first = lane & 2;  // quads 0 and 1 hold the row's sums with the first half of the parts' columns, 2 and 3 the other
    float total = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) total += first ? sum[i][2] + sum[i][3] : sum[i][0] + sum[i][1];
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    if ((lane & 3) == 0) s->partial[buffer][threadIdx.x >> 5][nth * TILE + (lane >> 2)] = total;
  }

  __device__ __forceinline__ float total(int row) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) sum += s->partial[buffer][i][row];
    return sum;
  }

  // done(row, sum, before(row)) for each row, by one thread each; before() is called long before the sum is there.
  template <int K, typename Before, typename Done>
  __device__ __forceinline__ void rows(const Activations<K> &x, Rows rows, Before before, Done done) {
#pragma unroll 1
    for (int begin = rows.begin; begin < rows.end; begin += BATCH * TILE) {
      const int count = min(BATCH * TILE, rows.end - begin), row = begin + (int)threadIdx.x;
      const float old = (int)threadIdx.x < count ? before(row) : 0.0f;
#pragma unroll 1
      for (int i = 0; i * TILE < count; ++i) take_tile<K>(x, i);
      consumers_meet();
      if ((int)threadIdx.x < count) done(row, total(threadIdx.x), old);
      buffer ^= 1;
    }
  }

  // done(row, gate's sum, up's sum). first() is called by all threads, when all have their activations, before the first done().
  template <typename First, typename Done>
  __device__ __forceinline__ void pairs(const Activations<HIDDEN> &x, Rows rows, First first, Done done) {
    const int half = TILE / 2, t = threadIdx.x, low = t / half * TILE + t % half;
#pragma unroll 1
    for (int begin = rows.begin; begin < rows.end; begin += BATCH * half) {
      const int count = min(BATCH * half, rows.end - begin);
#pragma unroll 1
      for (int i = 0; i * half < count; ++i) take_tile<HIDDEN>(x, i);
      consumers_meet();
      if (begin == rows.begin) {
        first();
        consumers_meet();
      }
      if (t < count) done(begin + t, total(low), total(low + half));
      buffer ^= 1;
    }
  }
};

// ---------------------------------------------------------------------------------------------------------------------
// Consumers: attention. A task is one KV head, some of its queries and a range of positions; a head's tasks are merged by the
// head's owner.

// Angle less its whole turns first, as the plain lowering does.
static __device__ __forceinline__ void turn_table(Shared *s, int position) {
  if (threadIdx.x >= HEAD_DIM / 2) return;
  float angle = (float)position * rope_frequencies[threadIdx.x];
  const float turns = rintf(angle * 0.15915494309189535f);
  angle = __fsub_rn(angle, __fmul_rn(turns, 6.28125f));
  angle = __fsub_rn(angle, __fmul_rn(turns, 0.0019350051879882812f));
  angle = __fsub_rn(angle, __fmul_rn(turns, 3.019916050561733e-07f));
  sincosf(angle, &s->sine[threadIdx.x], &s->cosine[threadIdx.x]);
}

static __device__ __forceinline__ u16 *kv_place(const Model &m, int layer, int head, int page, int position) {
  return m.kv + ((((u64)layer * POOL_PAGES + (u32)page) * KV_HEADS + head) * 2 * PAGE + position % PAGE) * HEAD_DIM;
}

// How the work on |position| is divided. Only the position and the grid's size decide, so that sums do not depend on who takes part.
struct Plan {
  int splits, positions;  // ranges of positions, and how many are in each but the last
  int queries;            // of a task: one while there are blocks for all tasks, else all that share a KV head
  __device__ __forceinline__ int tasks() const { return HEADS / queries * splits; }
  __device__ __forceinline__ int query(int task) const { return task % (HEADS / queries) * queries; }
  __device__ __forceinline__ int split(int task) const { return task / (HEADS / queries); }
};

static __device__ __forceinline__ Plan plan_of(int position) {
  const int splits = min(MAX_SPLITS, position / SPLIT + 1);
  return {splits, splits == 1 ? position + 1 : (position / splits / PAGE + 1) * PAGE, HEADS * splits <= BLOCKS ? 1 : GROUP};
}

// Puts a number of a query where mix_pass wants it: columns 2i and 2i + 1 of one operand are the first two parts of query i, column
// 2i of the other is its third part.
static __device__ __forceinline__ void ask(Attention *a, int query, int d, float value) {
  u16(*to)[8] = &a->question[query / ASKED][d / 32 * 2 + d / 4 % 2][query % ASKED * 8 + d / 8 % 4];
#pragma unroll
  for (int part = 0; part < 3; ++part) {
    const u16 rounded = to16(value);
    to[part % 2 * 4][part / 2 * 4 + d % 4] = rounded;
    value -= from16(rounded);
  }
}

// |count| queries, turned; and if |newest|, the key and value of their head, which the head's first task puts into the cache.
static __device__ __forceinline__ void hear_qkv(const Model &m, Shared *s, int layer, int query, int count, int position, bool newest) {
  Attention *a = &s->work.attention;
  const float *words = m.scratch->qkv;
  const int half = HEAD_DIM / 2, query_pairs = count * half, head = query / GROUP;
#pragma unroll 1
  for (int i = threadIdx.x; i < query_pairs + (newest ? 2 * half : 0); i += THREADS) {
    const bool asks = i < query_pairs, value = i >= query_pairs + half;
    const int pair = i % half, nth = i / half;
    const int first = (asks ? (query + nth) * HEAD_DIM : Q_WIDTH + (value ? KV_WIDTH : 0) + head * HEAD_DIM) + pair;
    float low, high;
    do {
      low = look(words + first);
      high = look(words + first + half);
    } while (is_empty(low) || is_empty(high));
    if (!value) {
      const float c = s->cosine[pair], n = s->sine[pair], turned = low * c - high * n;
      high = high * c + low * n;
      low = turned;
    }
    if (asks) {
      ask(a, nth, pair, low * (float)SCALE);
      ask(a, nth, pair + half, high * (float)SCALE);
      continue;
    }
    u16 *row = value ? a->v : a->k, l = to16(low), h = to16(high);
    row[pair] = l;
    row[pair + half] = h;
    if (query % GROUP) continue;
    u16 *cached = kv_place(m, layer, head, m.pages[position / PAGE], position) + (value ? PAGE * HEAD_DIM : 0);
    cached[pair] = l;
    cached[pair + half] = h;
  }
}

// A pass of a warp is 16 positions for four queries, on tensor cores. Lane 4 * row + quad has of the keys of |row| and |row| + 8 the
// eight numbers from 8 * quad on, of every 32; and of the values of |quad| and 4, 8, 12 further on the eight numbers from 8 * row
// on. Those are 64 columns: where values have more, as many warps take the same positions. Which numbers of a row an instruction
// takes together is free, as long as both operands agree.
#define PASS 16
#define ROUND (WARPS / SIDES * PASS)
#define BUFFERS (HEAD_DIM <= 64 ? 2 : 1)  // passes that are loaded before the first is used
static_assert(PAGE % PASS == 0, "a pass lies in one page");

struct Pass {
  int first;
  uint4 k[2][KEY_BLOCKS], v[4];
};

static __device__ __forceinline__ uint4 load16(const u16 *from) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}

static __device__ __forceinline__ int lane_row() { return (threadIdx.x & 31) >> 2; }
static __device__ __forceinline__ int lane_quad() { return threadIdx.x & 3; }
static __device__ __forceinline__ constexpr int value_row(int i) { return (i & 1) * 8 + (i & 2) * 2; }  // from the quad's on

static __device__ __forceinline__ int value_column() { return (int)(threadIdx.x >> 5) % SIDES * 64 + lane_row() * 8; }

// Positions from |first| on that are below |end|; the newest one is not there yet.
static __device__ __forceinline__ void load_pass(const Model &m, Pass &pass, int layer, int head, int first, int end) {
  const int row = lane_row(), quad = lane_quad();
  const u16 *from = kv_place(m, layer, head, first < end ? __ldg(m.pages + first / PAGE) : 0, first);
  const u16 *k = from + row * HEAD_DIM + quad * 8, *v = from + (PAGE + quad) * HEAD_DIM + value_column();
  pass.first = first;
#pragma unroll
  for (int i = 0; i < 2 * KEY_BLOCKS; ++i) {
    const int further = i % 2 * 8, column = i / 2 * 32;
    const bool there = first + row + further < end && column + quad * 8 < HEAD_DIM;
    pass.k[i % 2][i / 2] = there ? load16(k + further * HEAD_DIM + column) : uint4{0, 0, 0, 0};
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool there = first + quad + value_row(i) < end && value_column() < HEAD_DIM;
    pass.v[i] = there ? load16(v + value_row(i) * HEAD_DIM) : uint4{0, 0, 0, 0};
  }
}

// Lanes whose position is the newest take it from shared memory.
static __device__ __forceinline__ void put_newest(const Attention *a, Pass &pass, int position) {
  const int nth = position - pass.first;
  if (nth >= PASS) return;
#pragma unroll
  for (int i = 0; i < 2 * KEY_BLOCKS; ++i) {
    const int column = i / 2 * 32 + lane_quad() * 8;
    if (lane_row() + i % 2 * 8 == nth && column < HEAD_DIM) pass.k[i % 2][i / 2] = *(const uint4 *)(a->k + column);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (lane_quad() + value_row(i) == nth && value_column() < HEAD_DIM) pass.v[i] = *(const uint4 *)(a->v + value_column());
  }
}

// Brings what this block's first task will load into the L2 cache.
static __device__ __forceinline__ void expect_keys(const Model &m, const Shared *s, int layer, Plan plan, int position) {
  if (s->block >= plan.tasks()) return;
  const int head = plan.query(s->block) / GROUP, begin = plan.split(s->block) * plan.positions, end = min(begin + plan.positions, position);
#pragma unroll 1
  for (int i = threadIdx.x; i < 2 * (end - begin); i += THREADS) {
    const int at = begin + i / 2;
    const u16 *row = kv_place(m, layer, head, __ldg(m.pages + at / PAGE), at) + i % 2 * PAGE * HEAD_DIM;
#pragma unroll 1
    for (int d = 0; d < HEAD_DIM; d += 64) asm volatile("prefetch.global.L2 [%0];" ::"l"(row + d));
  }
}

// Of query |quad|, at positions |row| and |row| + 8.
static __device__ __forceinline__ float2 scores_of(const Pass &pass, const u16 (&question)[2 * KEY_BLOCKS][32][8], int end) {
  const int row = lane_row();
  float upper[4] = {}, lower[4] = {};
#pragma unroll
  for (int i = 0; i < 2 * KEY_BLOCKS; ++i) {
    const uint4 low = pass.k[0][i / 2], high = pass.k[1][i / 2], q = *(const uint4 *)question[i][threadIdx.x & 31];
    const uint4 keys = i % 2 ? uint4{low.z, high.z, low.w, high.w} : uint4{low.x, high.x, low.y, high.y};
    multiply(upper, keys, {q.x, q.y});
    multiply(lower, keys, row % 2 ? uint2{0, 0} : uint2{q.z, q.w});
  }
  return {pass.first + row < end ? upper[0] + upper[1] + lower[0] : NOTHING,
          pass.first + row + 8 < end ? upper[2] + upper[3] + lower[2] : NOTHING};
}

struct Mix {
  float peak, sum;                    // of query |quad|; the sum of this lane's positions
  float mixed[8][4];                  // rows of the sums: one of a query's first two parts, and its third
};

// The scores as factors of the values: an operand whose rows are the first parts of the queries, the second, the third.
static __device__ __forceinline__ uint4 weigh(Mix &mix, float2 score) {
  const int row = lane_row(), from = lane_quad() * 4 + (row & 3);
  float peak = fmaxf(mix.peak, fmaxf(score.x, score.y));
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes <<= 1) peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, lanes));
  const float keep = __expf(mix.peak - peak);
  float2 p = {__expf(score.x - peak), __expf(score.y - peak)};
  mix.peak = peak;
  mix.sum = mix.sum * keep + p.x + p.y;
  const float ours = __shfl_sync(~0u, keep, row & 3);
  if (__any_sync(~0u, ours != 1.0f)) {
#pragma unroll
    for (int i = 0; i < 32; ++i) mix.mixed[i / 4][i % 4] *= ours;
  }
  u32 word[2][3];
#pragma unroll
  for (int part = 0; part < 3; ++part) {
    const u32 pair = to16x2(p.x, p.y);
    word[0][part] = __shfl_sync(~0u, pair, from);
    word[1][part] = __shfl_sync(~0u, pair, from + 16);
    p = {p.x - low16(pair), p.y - high16(pair)};
  }
  const bool second = row & 4;
  return {second ? word[0][1] : word[0][0], second ? 0 : word[0][2], second ? word[1][1] : word[1][0], second ? 0 : word[1][2]};
}

static __device__ __forceinline__ u32 word_of(uint4 v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

static __device__ __forceinline__ void mix_in(Mix &mix, const Pass &pass, uint4 weights) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    u32 v[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) v[n] = word_of(pass.v[n], i);
    multiply(mix.mixed[2 * i], weights, {__byte_perm(v[0], v[1], 0x5410), __byte_perm(v[2], v[3], 0x5410)});
    multiply(mix.mixed[2 * i + 1], weights, {__byte_perm(v[0], v[1], 0x7632), __byte_perm(v[2], v[3], 0x7632)});
  }
}

// What this warp found, for the block.
static __device__ __forceinline__ void tell_block(Attention *a, Mix &mix, int query, int count) {
  const int warp = threadIdx.x >> 5, quad = lane_quad(), row = lane_row(), column = warp % SIDES * 64 + quad * 16;
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes <<= 1) mix.sum += __shfl_xor_sync(~0u, mix.sum, lanes);
  if (row == 0 && quad < count) a->peak[warp / SIDES][query + quad] = mix.peak, a->sum[warp / SIDES][query + quad] = mix.sum;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float value = mix.mixed[i % 8][i / 8] + mix.mixed[i % 8][i / 8 + 2];
    value += __shfl_xor_sync(~0u, value, 16);
    if (row < count && column < HEAD_DIM) a->mixed[warp / SIDES][query + row][column + i] = value;
  }
}

// What the warps found, as one split of the head, or as the head's result where it has only one.
static __device__ __forceinline__ void tell_split(const Model &m, const Attention *a, int query, int count, int split, int splits) {
#pragma unroll 1
  for (int i = threadIdx.x; i < count * HEAD_DIM; i += THREADS) {
    const int nth = i / HEAD_DIM, d = i % HEAD_DIM;
    float top = NOTHING, sum = 0, value = 0;
#pragma unroll
    for (int w = 0; w < WARPS / SIDES; ++w) top = fmaxf(top, a->peak[w][nth]);
#pragma unroll
    for (int w = 0; w < WARPS / SIDES; ++w) {
      const float factor = __expf(a->peak[w][nth] - top);
      sum += a->sum[w][nth] * factor;
      value += a->mixed[w][nth][d] * factor;
    }
    if (splits == 1) {
      tell(&m.scratch->attended[(query + nth) * HEAD_DIM + d], value / sum);
      continue;
    }
    float *words = m.scratch->split[query + nth][split];
    tell(words + d, value);
    if (d == 0) tell(words + HEAD_DIM, top), tell(words + HEAD_DIM + 1, sum);
  }
}

static __device__ __forceinline__ void attend_task(const Model &m, Shared *s, int layer, int task, Plan plan, int position) {
  Attention *a = &s->work.attention;
  const int query = plan.query(task), split = plan.split(task), begin = split * plan.positions;
  const int end = min(begin + plan.positions, position + 1), cached = min(end, position);
  const int head = query / GROUP, mine = begin + (int)threadIdx.x / 32 / SIDES * PASS;
  Pass pass[BUFFERS];
#pragma unroll
  for (int i = 0; i < BUFFERS; ++i) load_pass(m, pass[i], layer, head, mine + i * ROUND, cached);
  hear_qkv(m, s, layer, query, plan.queries, position, end == position + 1);
  consumers_meet();
#pragma unroll 1
  for (int asked = 0; asked < plan.queries; asked += ASKED) {
    Mix mix = {NOTHING, 0, {}};
#pragma unroll 1
    for (int first = mine; first < end; first += BUFFERS * ROUND) {
#pragma unroll
      for (int i = 0; i < BUFFERS; ++i) {
        if (pass[i].first >= end) break;
        put_newest(a, pass[i], position);
        mix_in(mix, pass[i], weigh(mix, scores_of(pass[i], a->question[asked / ASKED], end)));
        load_pass(m, pass[i], layer, head, first + (i + BUFFERS) * ROUND, cached);
      }
    }
    if (asked + ASKED < plan.queries) {
#pragma unroll
      for (int i = 0; i < BUFFERS; ++i) load_pass(m, pass[i], layer, head, mine + i * ROUND, cached);
    }
    tell_block(a, mix, asked, min(ASKED, plan.queries - asked));
  }
  consumers_meet();
  tell_split(m, a, query, plan.queries, split, plan.splits);
  consumers_meet();
}

static __device__ __forceinline__ void attend(const Model &m, Shared *s, int layer, Plan plan, int position) {
#pragma unroll 1
  for (int task = s->block; task < plan.tasks(); task += s->blocks) attend_task(m, s, layer, task, plan, position);
}

// The head's splits: each warp merges every WARPS-th, in order, then all warps' results meet.
static __device__ __forceinline__ void merge_head(const Model &m, Shared *s, int head, int splits) {
  Merge *g = &s->work.merge;
  constexpr int words = ceil_div(HEAD_DIM + 2, 32), mine = ceil_div(MAX_SPLITS, WARPS);  // lanes hold the values, then peak and sum
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  float value[mine][words];
  bool again;
#pragma unroll
  for (int i = 0; i < mine * words; ++i) value[i / words][i % words] = __uint_as_float(EMPTY);
  do {
#pragma unroll
    for (int i = 0; i < mine * words; ++i) {
      const int split = warp + i / words * WARPS, word = i % words * 32 + lane;
      float &v = value[i / words][i % words];
      if (split >= splits || word >= HEAD_DIM + 2) v = 0;
      if (is_empty(v)) v = look(m.scratch->split[head][split] + word);
    }
    again = false;
#pragma unroll
    for (int i = 0; i < mine * words; ++i) again |= is_empty(value[i / words][i % words]);
  } while (again);
  float peak = NOTHING, sum = 0, mixed[ceil_div(HEAD_DIM, 32)] = {};
#pragma unroll
  for (int i = 0; i < mine; ++i) {
    const float its_peak = __shfl_sync(~0u, value[i][HEAD_DIM / 32], HEAD_DIM % 32);
    const float its_sum = __shfl_sync(~0u, value[i][(HEAD_DIM + 1) / 32], (HEAD_DIM + 1) % 32);
    if (warp + i * WARPS >= splits) break;
    const float top = fmaxf(peak, its_peak), old = __expf(peak - top), its = __expf(its_peak - top);
    sum = sum * old + its_sum * its;
    peak = top;
#pragma unroll
    for (int d = 0; d < ceil_div(HEAD_DIM, 32); ++d) mixed[d] = mixed[d] * old + value[i][d] * its;
  }
#pragma unroll
  for (int i = 0; i < ceil_div(HEAD_DIM, 32); ++i) {
    if (i * 32 + lane < HEAD_DIM) g->mixed[warp][i * 32 + lane] = mixed[i];
  }
  if (lane == 0) g->peak[warp] = peak, g->sum[warp] = sum;
  consumers_meet();
  if (threadIdx.x < HEAD_DIM) {
    float top = NOTHING, weights = 0, value = 0;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) top = fmaxf(top, g->peak[i]);
#pragma unroll
    for (int i = 0; i < WARPS; ++i) {
      const float factor = __expf(g->peak[i] - top);
      weights += g->sum[i] * factor;
      value += g->mixed[i][threadIdx.x] * factor;
    }
    tell(&m.scratch->attended[head * HEAD_DIM + threadIdx.x], value / weights);
  }
  consumers_meet();
}

// Heads belong to the last blocks: with few positions those have no tasks.
static __device__ __forceinline__ void merge_heads(const Model &m, Shared *s, int splits) {
  if (splits == 1) return;
#pragma unroll 1
  for (int head = s->blocks - 1 - s->block; head < HEADS; head += s->blocks) merge_head(m, s, head, splits);
}

// ---------------------------------------------------------------------------------------------------------------------
// Emptying words

static __device__ __forceinline__ void empty_rows(float *words, Rows rows) {
#pragma unroll 1
  for (int r = rows.begin + (int)threadIdx.x; r < rows.end; r += THREADS) empty(words + r);
}

// Called when x1 of this layer is complete: then every block has read what went into it, and everything of the layer before.
// The words are used again a layer later at the earliest, by blocks that have heard from us after our next fence.
static __device__ __forceinline__ void empty_what_all_have_read(const Model &m, const Shared *s, int turn, Plan plan) {
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
    for (int i = threadIdx.x; i < plan.queries * words; i += THREADS) empty(&w->split[query + i / words][plan.split(task)][i % words]);
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

// ---------------------------------------------------------------------------------------------------------------------
// Consumers: a token

// |x|: the layer's input times its norm's gain.
static __device__ __forceinline__ void layer(const Model &m, Consumer &c, int l, int turn, Plan plan, int token, int position, int epoch,
                                             Activations<HIDDEN> &x) {
  Shared *s = c.s;
  Scratch *w = m.scratch;
  const auto nothing = [](int) { return 0.0f; };
  expect_keys(m, s, l, plan, position);
  c.rows<HIDDEN>(x, s->qkv, nothing, [&](int row, float sum, float) { tell(&w->qkv[row], sum * norm_scale(s)); });
  attend(m, s, l, plan, position);
  merge_heads(m, s, plan.splits);
  {
    Activations<Q_WIDTH> attended;
    hear_activations<Q_WIDTH>(s, w->attended, attended);
    c.rows<Q_WIDTH>(attended, s->width, [&](int row) { return l ? hear(&w->x0[row]) : from16(embedding(m, token)[row]); },
                    [&](int row, float sum, float old) { tell(&w->x1[turn][row], old + sum); });
  }
  hear_and_normalise(s, w->x1[turn], AT(MLP_NORM, l), x);
  const auto first = [&] {
    empty_what_all_have_read(m, s, turn, plan);
    if (l == 0) empty_best(m, s, epoch - 1);
  };
  bool fenced = false;
  c.pairs(x, s->ffn, first, [&](int row, float gate, float up) {
    if (!fenced) __threadfence();  // the emptied words and the new keys and values first
    fenced = true;
    const float scale = norm_scale(s);
    gate *= scale;
    tell(&w->hidden[turn][row], gate / (1.0f + __expf(-gate)) * (up * scale));
  });
  {
    Activations<FFN> hidden;
    hear_activations<FFN>(s, w->hidden[turn], hidden);
    c.rows<FFN>(hidden, s->width, [&](int row) { return hear(&w->x1[turn][row]); },
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
  for (int i = 16; i; i >>= 1) best.better(__shfl_xor_sync(~0u, best.value, i), __shfl_xor_sync(~0u, best.token, i));
  if ((threadIdx.x & 31) == 0) s->reduce[threadIdx.x >> 5] = best.value, s->reduce_index[threadIdx.x >> 5] = best.token;
  consumers_meet();
#pragma unroll
  for (int i = 0; i < WARPS; ++i) best.better(s->reduce[i], s->reduce_index[i]);
  consumers_meet();
  return best;
}

static __device__ __forceinline__ int choose(const Model &m, Consumer &c, int epoch, const Activations<HIDDEN> &x) {
  Shared *s = c.s;
  const Best none = {NOTHING, VOCAB - 1};
  Best best = none;
  c.rows<HIDDEN>(x, s->vocab, [](int) { return 0.0f; }, [&](int row, float sum, float) {
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
  for (int i = threadIdx.x; i < s->blocks; i += THREADS) best.better(hear(&words[i][0]), __float_as_int(hear(&words[i][1])));
  return best_of_block(s, best).token;
}

static __device__ __forceinline__ int consume(const Model &m, Shared *s, int steps, int token, int position, int *out_tokens) {
  Consumer c = {s, {0, 0}, 0};
  int turn = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step, ++position) {
    turn_table(s, position);
    const Plan plan = plan_of(position);
    Activations<HIDDEN> x;
    embed(m, s, token, x);
#pragma unroll 1
    for (int l = 0; l < LAYERS; ++l, turn ^= 1) layer(m, c, l, turn, plan, token, position, s->epoch + step, x);
    token = choose(m, c, s->epoch + step, x);
    if (s->block == 0 && threadIdx.x == 0) out_tokens[step] = token;
  }
  // Everyone has read everything but the last bests; the next launch empties those.
  empty_rows(m.scratch->x0, s->width);
  empty_rows(m.scratch->x1[turn ^ 1], s->width);
  empty_rows(m.scratch->hidden[turn ^ 1], s->ffn);
  return token;
}

// ---------------------------------------------------------------------------------------------------------------------
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
    while (look_word(&w->arrived) + 1 < BLOCKS && nanoseconds() - start < PATIENCE) {
    }
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
    mlx_decode(const u8 *weights, const int *pages, const int *active, u16 *kv, Scratch *scratch, int *token, int *position, float *logits,
               int *out_tokens, int steps) {
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
