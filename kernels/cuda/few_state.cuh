// Few tokens (few.cu): sizes, shared memory, and the words that blocks exchange.
#pragma once

#include "attention_pages.cuh"
#include "decode_copies.cuh"

constexpr int HIDDEN = config.hidden, FFN = config.ffn, Q_WIDTH = config.q_width, KV_WIDTH = config.kv_width,
              VOCAB = config.vocab, SLICES = config.slices;
constexpr int TOKENS = 8;
constexpr int UNIT = 8;
constexpr int WARPS = MLX_DECODE_WARPS;  // consumers; the producer comes after them
constexpr int THREADS = WARPS * 32;
constexpr int STAGES = 6;
constexpr int IN_FLIGHT =
    2;                    // stages whose copies are in flight; more only delay the words that blocks exchange
constexpr int BATCH = 4;  // tiles whose sums are completed together
constexpr int SLICE = FFN / SLICES;
constexpr int HEAD_UNITS = HEAD_DIM / UNIT;
constexpr u64 NOWHERE = ~0ull;
constexpr u32 MAX_POLLS = 1u << 24;  // of a word: about ten seconds
constexpr u32 EMPTY = 0xffffffffu;   // a NaN that no arithmetic produces

static __host__ __device__ constexpr int max_of(int a, int b) { return a > b ? a : b; }
static constexpr int COLUMNS = max_of(max_of(HIDDEN, Q_WIDTH), SLICE);  // most columns of x
static constexpr int PIECES = COLUMNS / 32 / WARPS;                     // most pieces of 32 columns of a warp
static constexpr int COUNTS = (HIDDEN | Q_WIDTH | SLICE) / 32 / WARPS;  // bits of all numbers of pieces
static constexpr int GROUP = COUNTS % 4 == 0 ? 4 : COUNTS % 2 == 0 ? 2 : 1;  // pieces multiplied together
static constexpr int PITCH = COLUMNS * 2 + 16;  // of a row in a stage: the 8 rows of a matrix use all banks
static_assert(HIDDEN % (32 * WARPS) == 0 && Q_WIDTH % (32 * WARPS) == 0 && SLICE % (32 * WARPS) == 0, "");
static_assert(VOCAB % UNIT == 0 && HEAD_DIM % UNIT == 0 && SLICES * SLICE == FFN && PIECES <= 8, "");

// Parts of a launch.
enum {
#define FEW_PART(name, bit) PART_##name = bit,
  MLX_FEW_PART_TABLE(FEW_PART)
#undef FEW_PART
};

struct Shared {
  u8 ring[STAGES][UNIT * PITCH];
  float sums[BATCH][WARPS][32][4];
  float gain[2][HIDDEN];        // of the norms before the MLP and before q, k and v
  float square[WARPS][TOKENS];  // sum of squares of a warp's columns
  u64 keys[TOKENS];             // where a token's first key head is in the KV pool; NOWHERE for padding
  u64 full[STAGES], free[STAGES], gains;
};
static_assert(sizeof(Shared) <= config.shared_bytes, "shared memory");

// Layers use two sets of buffers in turn. A launch marks the other set EMPTY, which no launch uses then. The
// first launch of a step uses none and marks the first set.
struct Buffers {
  float after_attention[TOKENS * HIDDEN];
  float after_mlp[TOKENS * HIDDEN];
  float hidden[TOKENS * FFN];
  float partial[SLICES * TOKENS * HIDDEN];
};
static_assert(2 * sizeof(Buffers) == 4 * config.scratch_words, "scratch");

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

template <Weight W>
static __device__ __forceinline__ const u8 *weight_at(const Launch &l, int layer) {
  return l.weights + W.at + (u64)layer * W.step;
}

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

struct RingPosition {
  u32 stage, parity;
  __device__ __forceinline__ void next() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};
