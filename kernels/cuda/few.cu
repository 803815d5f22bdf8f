// Few tokens: what a layer computes between two attentions, for up to 8 tokens, in one launch: o, residual,
// norm, gate and up, down, residual, norm, and q, k and v of the next layer, with RoPE; k and v are stored in
// the KV pool. Also the LM head. Weights are bf16; activations are f32, as three bf16 parts, so that products
// have the accuracy of f32.
//
// The design is that of the decode kernel (decode.cu): one warp of each block copies its share of all
// matrices through a ring in shared memory, in the order of use, and never waits for other blocks. It starts
// before attention ends. The other warps multiply. Blocks exchange activations through words in global
// memory that are EMPTY until they have a value. docs/internals/cuda-kernels.md has measurements.
//
//   unit    8 rows of a matrix: a stage of the ring. Of q, k and v: 4 rows of a head's lower half and the 4
//           rows of its upper half that RoPE pairs with them
//   tile    two units: the 16 rows of a tensor-core instruction. Gate and up: one unit of each
//   slice   the columns of a block in the down projection; the sums of all slices are added by another block
//
// All warps multiply the same rows. A warp has its own columns of x, which it keeps in registers; the
// columns of the instruction are the 8 tokens. So a token's result depends on no other token.
//
// The grid must not be larger than the number of multiprocessors: blocks wait for each other. Blocks past
// that number return at once.
//
// Macros, set by the compiler: HIDDEN FFN Q_WIDTH KV_WIDTH HEAD_DIM VOCAB NORM_EPS SLICES (of FFN)
// SHARED_BYTES SCRATCH_AT and SCRATCH_WORDS (Buffers, in words), the type of the KV pool as in
// attention_pages.cuh, and X_AT and X_STEP of the weights, as in decode.cu.

#include "overlap.cuh"

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#include "attention_pages.cuh"
#include "parts.cuh"

#define TOKENS 8
#define UNIT 8
#define WARPS 8  // consumers; the producer comes after them
#define THREADS (WARPS * 32)
#define STAGES 6
#define IN_FLIGHT 2  // stages whose copies are in flight; more only delay the words that blocks exchange
#define BATCH 4      // tiles whose sums are completed together
#define SLICE (FFN / SLICES)
#define HEAD_UNITS (HEAD_DIM / UNIT)
#define NOWHERE (~0ull)
#define MAX_POLLS (1u << 24)  // of a word: about ten seconds
#define EMPTY 0xffffffffu     // a NaN that no arithmetic produces

static __host__ __device__ constexpr int max_of(int a, int b) { return a > b ? a : b; }
static constexpr int COLUMNS = max_of(max_of(HIDDEN, Q_WIDTH), SLICE);  // most columns of x
static constexpr int PIECES = COLUMNS / 32 / WARPS;                     // most pieces of 32 columns of a warp
static constexpr int COUNTS = (HIDDEN | Q_WIDTH | SLICE) / 32 / WARPS;  // bits of all numbers of pieces
static constexpr int GROUP = COUNTS % 4 == 0 ? 4 : COUNTS % 2 == 0 ? 2 : 1;  // pieces multiplied together
static constexpr int PITCH = COLUMNS * 2 + 16;  // of a row in a stage: the 8 rows of a matrix use all banks
static_assert(HIDDEN % (32 * WARPS) == 0 && Q_WIDTH % (32 * WARPS) == 0 && SLICE % (32 * WARPS) == 0, "");
static_assert(VOCAB % UNIT == 0 && HEAD_DIM % UNIT == 0 && SLICES * SLICE == FFN && PIECES <= 8, "");

// Parts of a launch.
#define PART_LAYER 1   // from o to down, of |layer|
#define PART_QKV 2     // of |layer|, or of the next one after PART_LAYER
#define PART_HEAD 4    // logits
#define PART_APPEND 8  // with PART_QKV: applies RoPE to q and k, and stores k and v in the KV pool. Not KV_Q8

struct Shared {
  u8 ring[STAGES][UNIT * PITCH];
  float sums[BATCH][WARPS][32][4];
  float gain[2][HIDDEN];        // of the norms before the MLP and before q, k and v
  float square[WARPS][TOKENS];  // sum of squares of a warp's columns
  u64 keys[TOKENS];             // where a token's first key head is in the KV pool; NOWHERE for padding
  u64 full[STAGES], free[STAGES], gains;
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "shared memory");

// Layers use two sets of buffers in turn. A launch marks the other set EMPTY, which no launch uses then. The
// first launch of a step uses none and marks the first set.
struct Buffers {
  float after_attention[TOKENS * HIDDEN];
  float after_mlp[TOKENS * HIDDEN];
  float hidden[TOKENS * FFN];
  float partial[SLICES * TOKENS * HIDDEN];
};
static_assert(2 * sizeof(Buffers) == 4 * SCRATCH_WORDS, "scratch");

// Where a number of x is in these buffers: a warp reads the numbers that its lanes hold of a piece with two
// instructions, each of 512 neighbouring bytes.
static __device__ __forceinline__ int place(int column, int token) {
  const int chunk = column >> 3 & 3, quad = column >> 1 & 3;
  return (column >> 5) * 256 + (chunk >> 1) * 128 + token * 16 + quad * 4 + (chunk & 1) * 2 + (column & 1);
}

struct Launch {
  const u8 *weights;
  const float *attended, *x;  // x: before the first layer, or what the LM head multiplies
  Buffers *buffers;
  const float *cosine, *sine;  // of the tokens, HEAD_DIM / 2 each
  const int *batch;            // step.h
  pool_t *pool;
  float *out[3];  // q, k, v, with PART_APPEND only q; after the last layer, x; logits
  Layer pages;    // of q, k and v
  int layer, parts, block, blocks;
};

#define AT(weight, layer) (l.weights + weight##_AT + (u64)(layer) * weight##_STEP)

struct Range {  // of units
  int begin, end;
};
static __device__ __forceinline__ Range share(int rows, int nth, int count) {
  return {rows / UNIT * nth / count, rows / UNIT * (nth + 1) / count};
}
// The rows of the down projection that block |l.block| multiplies with its slice.
static __device__ __forceinline__ Range down_share(const Launch &l) {
  const int slice = l.block % SLICES;
  return share(HIDDEN, l.block / SLICES, (l.blocks - slice + SLICES - 1) / SLICES);
}

#include "decode_copies.cuh"

struct RingPosition {
  u32 stage, parity;
  __device__ __forceinline__ void next() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

// ----------------------------------------------------------------------------------------------------------
// The producer: one warp

struct Producer {
  Shared *s;
  RingPosition at, oldest;  // oldest: the oldest copy in flight
  int started;

  __device__ __forceinline__ void expect(u64 *barrier, int bytes) {
    if ((threadIdx.x & 31) == 0)
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
                   "r"(bytes)
                   : "memory");
    __syncwarp();
  }

  // Copies a unit of |columns| columns. |stride|: bytes from one row to the next, |gap|: bytes between its
  // first four rows and the others.
  __device__ __forceinline__ void unit(const u8 *from, int columns, u64 stride, u64 gap = 0) {
    const int lane = threadIdx.x & 31;
    barrier_wait(&s->free[at.stage], at.parity ^ 1);
    if (started >= IN_FLIGHT) {
      barrier_wait(&s->full[oldest.stage], oldest.parity);
      oldest.next();
    } else {
      ++started;
    }
    expect(&s->full[at.stage], UNIT * columns * 2);
    if (lane < UNIT)
      copy_bytes(s->ring[at.stage] + lane * PITCH, from + lane * stride + (lane >> 2) * gap, columns * 2, 0,
                 1, &s->full[at.stage]);
    __syncwarp();
    at.next();
  }

  __device__ __forceinline__ void units(const u8 *from, Range r, int columns, u64 stride) {
#pragma unroll 1
    for (int u = r.begin; u < r.end; ++u) unit(from + (u64)u * UNIT * stride, columns, stride);
  }
};

static __device__ __forceinline__ const u8 *qkv_unit(const Launch &l, int layer, int unit) {
  int row = unit / HEAD_UNITS * HEAD_DIM + unit % HEAD_UNITS * (UNIT / 2);
  if (row < Q_WIDTH) return AT(Q, layer) + (u64)row * HIDDEN * 2;
  row -= Q_WIDTH;
  if (row < KV_WIDTH) return AT(K, layer) + (u64)row * HIDDEN * 2;
  return AT(V, layer) + (u64)(row - KV_WIDTH) * HIDDEN * 2;
}

static __device__ __forceinline__ int qkv_layer(const Launch &l) {
  return l.layer + (l.parts & PART_LAYER ? 1 : 0);
}

static __device__ __forceinline__ void produce(const Launch &l, Shared *s) {
  Producer p = {s, {0, 0}, {0, 0}, 0};
  const int lane = threadIdx.x & 31;
  p.expect(&s->gains, (l.parts & PART_LAYER ? HIDDEN * 4 : 0) + (l.parts & PART_QKV ? HIDDEN * 4 : 0));
  if (l.parts & PART_LAYER)
    copy_bytes((u8 *)s->gain[0], AT(MLP_NORM, l.layer), HIDDEN * 4, lane, 32, &s->gains);
  if (l.parts & PART_QKV)
    copy_bytes((u8 *)s->gain[1], AT(ATTN_NORM, qkv_layer(l)), HIDDEN * 4, lane, 32, &s->gains);
  __syncwarp();
  if (l.parts & PART_LAYER) {
    p.units(AT(O, l.layer), share(HIDDEN, l.block, l.blocks), Q_WIDTH, Q_WIDTH * 2);
    const Range r = share(FFN, l.block, l.blocks);
#pragma unroll 1
    for (int u = r.begin; u < r.end; ++u) {
      p.unit(AT(GATE, l.layer) + (u64)u * UNIT * HIDDEN * 2, HIDDEN, HIDDEN * 2);
      p.unit(AT(UP, l.layer) + (u64)u * UNIT * HIDDEN * 2, HIDDEN, HIDDEN * 2);
    }
    p.units(AT(DOWN, l.layer) + l.block % SLICES * SLICE * 2, down_share(l), SLICE, FFN * 2);
  }
  if (l.parts & PART_QKV) {
    const Range r = share(Q_WIDTH + 2 * KV_WIDTH, l.block, l.blocks);
#pragma unroll 1
    for (int u = r.begin; u < r.end; ++u)
      p.unit(qkv_unit(l, qkv_layer(l), u), HIDDEN, HIDDEN * 2, (HEAD_DIM / 2 - UNIT / 2) * HIDDEN * 2);
  }
  if (l.parts & PART_HEAD) p.units(AT(HEAD, 0), share(VOCAB, l.block, l.blocks), HIDDEN, HIDDEN * 2);
}

#include "few_consumer.cuh"

extern "C" __global__ void __launch_bounds__(THREADS + 32, 1)
    mlx_few(const u8 *weights, const float *attended, const float *x, const float *cosine, const float *sine,
            const int *batch, u32 *scratch, pool_t *pool, float *first, float *second, float *third,
            int page_layer, int page_layers, int before, int layer, int parts) {
  extern __shared__ __align__(128) u8 memory[];
  Shared *s = (Shared *)memory;
  u32 processors;
  asm("mov.u32 %0, %%nsmid;" : "=r"(processors));
  start_next_kernel();
  const int blocks = gridDim.x < processors ? gridDim.x : processors;
  const Launch l = {weights,
                    attended,
                    x,
                    (Buffers *)(scratch + SCRATCH_AT),
                    cosine,
                    sine,
                    batch,
                    pool,
                    {first, second, third},
                    {page_layer, page_layers, before, KV_WIDTH / HEAD_DIM},
                    layer,
                    parts,
                    (int)blockIdx.x,
                    blocks};
  if (l.block >= blocks) {
    wait_for_previous_kernel();
    return;
  }
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int i = 0; i < STAGES; ++i) barrier_init(&s->full[i], 1), barrier_init(&s->free[i], WARPS);
    barrier_init(&s->gains, 1);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x >= THREADS)
    produce(l, s);
  else
    consume(l, s);
}
