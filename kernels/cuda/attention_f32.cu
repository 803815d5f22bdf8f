// Attention with the accuracy of f32, over a paged KV pool of f32, 16-bit or 8-bit numbers: attention.cu
// without rounding queries and softmax weights to 16 bits.
//
// Kernels are deterministic: one thread writes each element, and sums run in a fixed order. The result of a
// query depends neither on other segments, nor on the tile it is in, nor, without warpgroups, on QUERIES,
// SPLIT, STAGES and THREADS: keys are added in units of STEP positions, each with its own softmax, and the
// units are merged in ascending order. A unit that a query does not see changes nothing, not even a rounding.
//
// Heads of more than 256 are read in pieces of PIECE columns, because a unit of whole keys and values
// does not fit shared memory: first the pieces of the keys, then those of the values, each of which is
// merged at once. The last piece of keys may be narrower with latent attention, whose values are read from
// the keys.
//
// Products run on tensor cores as TF32: a number is the sum of a part of 11 bits and the rest. The product
// of two rests is below 2^-23 of the result and left out. Numbers of a 16-bit or 8-bit pool have no rest.
// Tensor cores truncate sums, so sums are cut into pieces, which are added in f32.
//
// Sizes of a model other than the size of a head are parameters, so that one image serves many models.
//
// Macros:  NAME (symbol), APPEND (1: the kernel of attention_append.cuh, or with LATENT_ROWS that of
//          attention_append_latent.cuh, which have their own macros), else SINKS (1: the kernel has them),
//          SPLIT (cluster.cuh). attention_config.cuh has the other constants.
//
// attend   (q f32 [N, heads*HEAD_DIM] rotated, pool, batch, placed (place.cu), with SINKS also sinks f32
//           [heads], out f32 or 16-bit [N, heads*VALUE_DIM]: only rows of the tiles are written, and zeros
//           for padding tokens that a tile names; int layer, page, before (Layer), share, inverse (Share),
//           window (2^30: none), part_rows: if not 0, out has the bf16 parts of the result in the order of
//           16-bit weights (packed.cu), with this MP; heads*VALUE_DIM % 128 == 0)
//          grid (KV heads, tiles, SPLIT), block (THREADS, 1, 1)
//          dynamic shared memory: mlx_attend_f32_tile (compiler/cuda_launch.h)
//          A block has QUERIES queries (token x head, for the heads that share keys): 8, or 16 for each of
//          WQ warps (one warp with heads of more than 256). WK = THREADS / 32 / WQ groups of warps process
//          a unit each; STAGES units per group are in shared memory. SPLIT > 1 (sm_90 and later, not
//          sm_12x) divides the units among the blocks of a cluster, for few queries with a long history.
//          The compiler chooses these numbers.
//          With config.warpgroups, attention_warpgroups.cuh computes the tile.

#if APPEND && LATENT_ROWS
#include "attention_append_latent.cuh"
#elif APPEND
#include "attention_append.cuh"
#else
#include "attention_warpgroups.cuh"
#include "cluster.cuh"
#include "overlap.cuh"

// ---- keys and values in shared memory, as the pool stores them ----

// Rows have WIDTH columns. Those past HEAD_DIM are zero in queries and keys; in values they are not set, and
// their results are not used. Nor are those past VALUE_DIM.
constexpr int WIDTH = (HEAD_DIM + 15) / 16 * 16;
// Columns of keys and values that are in shared memory at a time: PIECES of keys, then VALUE_PIECES of
// values.
constexpr bool CUT = HEAD_DIM > 256;
constexpr int PIECE = !CUT                        ? WIDTH
                      : HEAD_DIM % 128 && !LATENT ? 64
                                                  : 128,
              PIECES = (WIDTH + PIECE - 1) / PIECE, VALUE_PIECES = !CUT ? 1 : (VALUE_DIM + PIECE - 1) / PIECE,
              ALL_PIECES = PIECES + VALUE_PIECES;
constexpr bool NARROW_LAST = CUT && HEAD_DIM % PIECE != 0;  // the last piece has fewer columns
static_assert(!CUT || HEAD_DIM % (LATENT ? 32 : PIECE) == 0, "pieces");
// Columns of a piece.
__device__ __forceinline__ constexpr int columns_of(int piece) {
  return NARROW_LAST && piece + 1 == PIECES ? HEAD_DIM % PIECE : PIECE;
}
// Bytes of a row. Lanes that read together use different banks: rows are padded, or their 16-byte chunks are
// swapped (SWAPPED).
constexpr int QUERY_PITCH = WIDTH % 32 ? WIDTH : WIDTH + 16;  // floats
constexpr bool SWAPPED = config.kv == Dtype::F32 && PIECE % 32 == 0;
constexpr int KEY_ROW = KV_Q8   ? PIECE + 16  // codes, then the scale
                        : KV_16 ? 2 * PIECE + (PIECE % 32 ? 0 : 32)
                                : 4 * PIECE;
constexpr int VALUE_ROW = KV_Q8 ? PIECE + 16 : KV_16 ? 2 * (PIECE + 8) : 4 * (SWAPPED ? PIECE : PIECE + 4);
constexpr int COLUMNS = CUT ? PIECE : HEAD_DIM;  // of a piece, without padding
// The chunk of a row of keys or values where chunk |nth| is stored.
__device__ __forceinline__ int key_chunk(int nth, int row) { return SWAPPED ? nth ^ row % 2 * 4 : nth; }
__device__ __forceinline__ int value_chunk(int nth, int row) { return SWAPPED ? nth ^ row / 2 % 4 * 2 : nth; }
// A key is copied in CHUNKS chunks: of 16 bytes, except in an 8-bit pool with an odd number of 8 bytes.
constexpr int CHUNK = HEAD_DIM * sizeof(pool_t) % 16 ? 8 : 16, CHUNKS = COLUMNS * sizeof(pool_t) / CHUNK;

template <int BYTES>  // 4, 8, or 16 past the first-level cache
__device__ __forceinline__ void copy_bytes(void *to, const void *from, bool valid) {  // or zeros
  if constexpr (BYTES == 16)
    copy_async16(shared_address(to), from, valid ? 16 : 0);
  else
    copy_async<BYTES>(shared_address(to), from, valid ? BYTES : 0);
}
// Four neighbouring numbers of a row, from column |at| on. An 8-bit row gives codes, without the scale.
__device__ __forceinline__ float4 row4(const unsigned char *row, int at) {
  if constexpr (KV_Q8) {
    const u32 codes = *(const u32 *)(row + at);
    return make_float4((float)(signed char)codes, (float)(signed char)(codes >> 8),
                       (float)(signed char)(codes >> 16), (float)(signed char)(codes >> 24));
  } else if constexpr (KV_16) {
    const uint2 raw = *(const uint2 *)(row + at * 2);
    const float2 low = PoolNumber::widen2(raw.x), high = PoolNumber::widen2(raw.y);
    return make_float4(low.x, low.y, high.x, high.y);
  } else {
    return *(const float4 *)(row + at * 4);
  }
}
__device__ __forceinline__ float2 row2(const unsigned char *row, int at) {
  if constexpr (KV_Q8) {
    const u32 codes = *(const u16 *)(row + at);
    return make_float2((float)(signed char)codes, (float)(signed char)(codes >> 8));
  } else if constexpr (KV_16) {
    return PoolNumber::widen2(*(const u32 *)(row + at * 2));
  } else {
    return *(const float2 *)(row + at * 4);
  }
}

// ---- products ----

// The part of 11 bits, rounded, and the rest.
__device__ __forceinline__ void split(u32 &high, u32 &low, float x) {
  high = (__float_as_uint(x) + 0x1000) & 0xffffe000u;
  low = __float_as_uint(x - __uint_as_float(high));
}

struct Operand {  // rows of a product: 16 rows x 8
  u32 high[4], low[4];
};
__device__ __forceinline__ Operand operand_of(float a0, float a1, float a2, float a3) {
  Operand o;
  split(o.high[0], o.low[0], a0);
  split(o.high[1], o.low[1], a1);
  split(o.high[2], o.low[2], a2);
  split(o.high[3], o.low[3], a3);
  return o;
}

// Sums of products: of the parts of 11 bits, and of the products with a rest.
struct Products {
  float large[4], small[4];
};
__device__ __forceinline__ void multiply_exact(Products &sum, const Operand &a, float b0, float b1) {
  u32 high[2] = {__float_as_uint(b0), __float_as_uint(b1)}, low[2];
  if constexpr (config.kv == Dtype::F32) {
    split(high[0], low[0], b0);
    split(high[1], low[1], b1);
  }
  mma_tf32(sum.small, a.low, high[0], high[1]);
  mma_tf32(sum.large, a.high, high[0], high[1]);
  if constexpr (config.kv == Dtype::F32) mma_tf32(sum.small, a.high, low[0], low[1]);
}

// ---- a unit of keys: STEP keys for the queries of a warp ----

// Lane 4 * row + quad has the queries |row| and |row| + 8 of its warp. Of a fragment of 8 keys it has the
// scores of keys 2 * quad and 2 * quad + 1: {row: a, b, row + 8: a, b}. Columns of a head are permuted, so
// that a lane reads neighbouring numbers. Query n of a segment belongs to token n / share.
constexpr int FRAGMENTS = STEP / 8, SIXTEENS = PIECE / 16, PAGES = STEP / PAGE;
static_assert(HEAD_DIM % 8 == 0 && STEP % PAGE == 0, "shape");

// Adds the products of |nth| of the pieces of queries and keys to |score|; those with a rest to |sums|, which
// the last piece adds.
__device__ __forceinline__ void score_piece(float (&score)[FRAGMENTS][4], Products (&sums)[FRAGMENTS],
                                            int nth, const float *queries, const unsigned char *keys) {
  queries += lane_row() * QUERY_PITCH + lane_quad() * 4;
  keys += lane_row() * KEY_ROW;
#pragma unroll 2
  for (int part = 0; part < columns_of(nth); part += 32) {
#pragma unroll
    for (int at = 0; at < 32; at += 16) {
      const int column = part + at;
      if (PIECE % 32 && column >= PIECE) break;
      const float4 upper = *(const float4 *)(queries + column);
      const float4 lower =
          HALVES == 2 ? *(const float4 *)(queries + 8 * QUERY_PITCH + column) : make_float4(0, 0, 0, 0);
      const int at_key = key_chunk(column / 4, lane_row()) * 4 + lane_quad() * 4;
      const Operand a = operand_of(upper.x, lower.x, upper.y, lower.y),
                    b = operand_of(upper.z, lower.z, upper.w, lower.w);
      float4 key[FRAGMENTS];
#pragma unroll
      for (int f = 0; f < FRAGMENTS; f++) key[f] = row4(keys + f * 8 * KEY_ROW, at_key);
#pragma unroll
      for (int f = 0; f < FRAGMENTS; f++) multiply_exact(sums[f], a, key[f].x, key[f].y);
#pragma unroll
      for (int f = 0; f < FRAGMENTS; f++) multiply_exact(sums[f], b, key[f].z, key[f].w);
    }
#pragma unroll
    for (int i = 0; i < FRAGMENTS * 4; i++)
      score[i / 4][i % 4] += sums[i / 4].large[i % 4], sums[i / 4].large[i % 4] = 0;
  }
  if (nth + 1 < PIECES) return;
#pragma unroll
  for (int f = 0; f < FRAGMENTS; f++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      score[f][e] += sums[f].small[e];
      if constexpr (KV_Q8)
        score[f][e] *=
            *(const float *)(keys + ((f * 8 - lane_row() + lane_quad() * 2 + e % 2) * KEY_ROW + PIECE));
    }
}

__device__ __forceinline__ void clear_scores(float (&score)[FRAGMENTS][4]) {
#pragma unroll
  for (int i = 0; i < FRAGMENTS * 4; i++) score[i / 4][i % 4] = 0;
}
__device__ __forceinline__ void score_keys(float (&score)[FRAGMENTS][4], const float *queries,
                                           const unsigned char *keys) {
  Products sums[FRAGMENTS] = {};
  clear_scores(score);
  score_piece(score, sums, PIECES - 1, queries, keys);
}

// The softmax of a unit, of this lane's queries.
struct Softmax {
  float peak[HALVES];    // largest score
  float weight[HALVES];  // sum of the weights
};

// Turns scores into softmax weights. `key` is the position of the lane's first key, `own` has the positions
// of its queries. `edge`: some query of the warp must not see all keys.
__device__ __forceinline__ Softmax softmax_weights(float (&score)[FRAGMENTS][4], int key,
                                                   const int (&own)[HALVES], int window, bool edge) {
  Softmax soft;
#pragma unroll
  for (int half = 0; half < HALVES; half++) {
    float peak = NO_SCORE, sum = 0;
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++)
#pragma unroll
      for (int e = half * 2; e < half * 2 + 2; e++) {
        score[f][e] = cap_score(score[f][e]);
        if (edge && is_masked(key + f * 8 + e % 2, own[half], window))
          score[f][e] = -__int_as_float(0x7f800000);
        peak = fmaxf(peak, score[f][e]);
      }
    peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 1));
    peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 2));
    const float now = __fmul_rn(peak, SCALE2);
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++)
#pragma unroll
      for (int e = half * 2; e < half * 2 + 2; e++) {
        score[f][e] = power2(fmaf(score[f][e], SCALE2, -now));
        sum += score[f][e];
      }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    soft.peak[half] = peak, soft.weight[half] = sum;
  }
  return soft;
}

// Multiplies weights and a piece of values. Calls use(sixteen, half, float4): columns 16 * sixteen + 4 * quad
// and the next three of query row + 8 * half.
template <typename Use>
__device__ __forceinline__ void add_values(const float (&weight)[FRAGMENTS][4], const unsigned char *values,
                                           Use use) {
  Operand weights[FRAGMENTS];
  values += lane_quad() * 2 * VALUE_ROW;
#pragma unroll
  for (int f = 0; f < FRAGMENTS; f++) {
    float a = 1, b = 1;
    if constexpr (KV_Q8) {
      a = *(const float *)(values + f * 8 * VALUE_ROW + PIECE);
      b = *(const float *)(values + (f * 8 + 1) * VALUE_ROW + PIECE);
    }
    weights[f] = HALVES == 2
                     ? operand_of(weight[f][0] * a, weight[f][2] * a, weight[f][1] * b, weight[f][3] * b)
                     : operand_of(weight[f][0] * a, 0, weight[f][1] * b, 0);
  }
#pragma unroll
  for (int column = 0; column < PIECE; column += 32) {
    Products sums[4] = {};
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++)
#pragma unroll
      for (int n = 0; n < 2; n++) {
        const int nth = column / 4 + n * 4 + lane_row() / 2;
        const int at = value_chunk(nth, lane_quad() * 2) * 4 + lane_row() % 2 * 2;
        if (PIECE % 32 && column + n * 16 >= PIECE) break;
        const float2 first = row2(values + f * 8 * VALUE_ROW, at),
                     second = row2(values + (f * 8 + 1) * VALUE_ROW, at);
        multiply_exact(sums[n * 2], weights[f], first.x, second.x);
        multiply_exact(sums[n * 2 + 1], weights[f], first.y, second.y);
      }
#pragma unroll
    for (int i = 0; i < 2 * HALVES; i++) {
      const int n = i / HALVES, e = i % HALVES * 2;
      if (PIECE % 32 && column + n * 16 >= PIECE) break;
      const Products &even = sums[n * 2], &odd = sums[n * 2 + 1];
      use(column / 16 + n, i % HALVES,
          make_float4(even.large[e] + even.small[e], odd.large[e] + odd.small[e],
                      even.large[e + 1] + even.small[e + 1], odd.large[e + 1] + odd.small[e + 1]));
    }
  }
}

// ---- merging units ----

// The factors of the old sums and of a unit's sums. |peak| becomes the larger one. If the query sees no key
// of the unit, they are 1 and 0.
struct Factors {
  float old, unit;
};
__device__ __forceinline__ Factors merge_peaks(float &peak, float unit) {
  const float before = __fmul_rn(peak, SCALE2), other = __fmul_rn(unit, SCALE2);
  peak = fmaxf(peak, unit);
  const float now = fmaxf(before, other);
  return {power2(before - now), power2(other - now)};
}
__device__ __forceinline__ float merge(Factors f, float old, float unit) {
  return fmaf(f.unit, unit, __fmul_rn(f.old, old));
}
__device__ __forceinline__ float4 merge4(Factors f, float4 t, float4 u) {
  return make_float4(merge(f, t.x, u.x), merge(f, t.y, u.y), merge(f, t.z, u.z), merge(f, t.w, u.w));
}

constexpr int RESIDENT = THREADS > 128 ? 1 : 2;  // blocks of a multiprocessor
constexpr bool MERGED = WK * SPLIT > 1;          // several warps or blocks have units of the same queries
constexpr int PART_PITCH = PIECE + 4;            // floats
constexpr int PART = MERGED ? QUERIES * PART_PITCH * 4 : 0;  // bytes of a unit's sums, in place of its values
constexpr int KEYS_SIZE = STAGES * STEP * KEY_ROW, VALUES_SIZE = STAGES * STEP * VALUE_ROW,
              SECOND_SIZE = PART > VALUES_SIZE ? PART : VALUES_SIZE;
// Pieces of keys and values alternate between two places, which therefore have one size. A round continues
// where the one before it ended.
constexpr int KEY_BYTES = CUT && SECOND_SIZE > KEYS_SIZE ? SECOND_SIZE : KEYS_SIZE,
              VALUE_BYTES = CUT ? KEY_BYTES : SECOND_SIZE;
static_assert(!MERGED || STAGES == 1, "parts replace values");
static_assert(!CUT || (MERGED && WQ == 1), "pieces");
// The place of a piece of the keys (|what| 0) or values (1) of a round.
__device__ __forceinline__ constexpr int place_of(int what, int piece, int round) {
  return CUT ? (what * PIECES + piece + (ALL_PIECES % 2 ? round : 0)) % 2 : what;
}

// Sums of a lane: of weight * value (columns 16 * i + 4 * quad and the next three of a piece), and the
// softmax.
struct Sums {
  float4 sum[HALVES][SIXTEENS];
  Softmax soft;
};
__device__ __forceinline__ void clear(Sums &s) {
#pragma unroll
  for (int half = 0; half < HALVES; half++) {
    s.soft.peak[half] = NO_SCORE, s.soft.weight[half] = 0;
#pragma unroll
    for (int i = 0; i < SIXTEENS; i++) s.sum[half][i] = make_float4(0, 0, 0, 0);
  }
}

// Merged sums: the threads of a query divide the groups of 4 columns of each piece of its result.
constexpr int OWN = (COLUMNS / 4 + THREADS / QUERIES - 1) / (THREADS / QUERIES);
struct Merged {
  float4 sum[VALUE_PIECES][OWN];
  float peak, weight;
};

// The sums of the units of a round in shared memory. With several blocks, a block gathers the sums of its
// LINES queries from the others.
constexpr int LINES = QUERIES / SPLIT;
struct Parts {
  unsigned char *places;   // of the first unit; those of the next one are KEY_BYTES + VALUE_BYTES later
  float *peaks, *weights;  // [WK][QUERIES]
  float *gathered;         // [LINES][WK * SPLIT][COLUMNS], then peaks and weights [LINES][WK * SPLIT]
  bool alone;              // the first block has all units
  int line, nth, threads;  // the query that this thread merges, and which of the query's threads it is
  __device__ __forceinline__ Parts(unsigned char *groups, bool only, int rank) {
    places = groups, alone = only;
    peaks = (float *)(groups + WK * (KEY_BYTES + VALUE_BYTES)), weights = peaks + WK * QUERIES;
    gathered = weights + WK * QUERIES;
    threads = THREADS / (only ? QUERIES : LINES), nth = threadIdx.x % threads;
    line = threadIdx.x / threads + (only ? 0 : rank * LINES);
  }
  __device__ __forceinline__ int column_of(int own) const { return (nth + own * threads) * 4; }
  // The sums of a unit, in place of a piece of its values.
  __device__ __forceinline__ float *sums_of(int group, int piece, int round) const {
    return (float *)(places + group * (KEY_BYTES + VALUE_BYTES) + place_of(1, piece, round) * KEY_BYTES);
  }
  __device__ __forceinline__ void store(int group, int piece, int round, int query, const Sums &s) const {
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
      const int line = query + lane_row() + half * 8;
      float *to = sums_of(group, piece, round) + line * PART_PITCH + lane_quad() * 4;
#pragma unroll
      for (int i = 0; i < SIXTEENS; i++) *(float4 *)(to + i * 16) = s.sum[half][i];
      if (lane_quad() > 0) continue;
      peaks[group * QUERIES + line] = s.soft.peak[half];
      weights[group * QUERIES + line] = s.soft.weight[half];
    }
  }
  static constexpr int ROUND = WK * SPLIT;
  __device__ __forceinline__ void gather(int piece, int round, int units, int first_line) const {
    constexpr int FOURS = COLUMNS / 4;
#pragma unroll 4
    for (int i = threadIdx.x; i < LINES * units * FOURS; i += THREADS) {
      const int unit = i / FOURS % units, nth = i / FOURS / units;
      const float *from = sums_of(unit % WK, piece, round) + (first_line + nth) * PART_PITCH + i % FOURS * 4;
      *(float4 *)(gathered + (nth * ROUND + unit) * COLUMNS + i % FOURS * 4) =
          read_cluster4(shared_address(from), unit / WK);
    }
    for (int i = threadIdx.x; i < LINES * units; i += THREADS) {
      const int unit = i % units, nth = i / units, at = unit % WK * QUERIES + first_line + nth;
      float *to = gathered + LINES * ROUND * COLUMNS + nth * ROUND + unit;
      to[0] = read_cluster(peaks + at, unit / WK);
      to[LINES * ROUND] = read_cluster(weights + at, unit / WK);
    }
  }
  // Merges a piece of the |units| units of a round in ascending order. A unit that a query does not see has
  // no peak and zeros. Called by all threads after store(); the pieces of a round have the same factors, so
  // that the last one changes the softmax of |total|.
  __device__ __forceinline__ void merge_units(Merged &total, int piece, int round, int units,
                                              int rank) const {
    const float *part = sums_of(0, piece, round) + line * PART_PITCH, *peak = peaks + line,
                *weight = weights + line;
    float top = total.peak, sum = total.weight;
    int part_pitch = (KEY_BYTES + VALUE_BYTES) / 4, pitch = QUERIES;
    if (SPLIT > 1 && !alone) {
      const int own_line = line - rank * LINES;
      wait_cluster();
      gather(piece, round, units, rank * LINES);
      wait_cluster();  // before a block overwrites its parts, or exits
      part = gathered + own_line * ROUND * COLUMNS, part_pitch = COLUMNS, pitch = 1;
      peak = gathered + LINES * ROUND * COLUMNS + own_line * ROUND, weight = peak + LINES * ROUND;
    }
    if (alone) __syncthreads();
#pragma unroll 1
    for (int first = 0; first < units && nth * 4 < COLUMNS; first += 4) {
      Factors factors[4];
#pragma unroll
      for (int n = 0; n < 4; n++) {
        const bool exists = first + n < units;
        factors[n] = merge_peaks(top, exists ? peak[(first + n) * pitch] : NO_SCORE);
        sum = merge(factors[n], sum, exists ? weight[(first + n) * pitch] : 0);
      }
#pragma unroll
      for (int own = 0; own < OWN; own++) {
        if (column_of(own) >= COLUMNS) break;
#pragma unroll
        for (int n = 0; n < 4; n++) {
          const float *from = part + (first + n) * part_pitch + column_of(own);
          total.sum[piece][own] = merge4(factors[n], total.sum[piece][own],
                                         first + n < units ? *(const float4 *)from : make_float4(0, 0, 0, 0));
        }
      }
    }
    if (piece + 1 == VALUE_PIECES) total.peak = top, total.weight = sum;
    if (alone) __syncthreads();  // before a warp overwrites its parts
  }
};

// Zeros for a padding token: its heads that share the keys of |head|.
__device__ __forceinline__ void clear_token(const Result &to, int token, int head, int share) {
  for (int i = threadIdx.x * 4; i < share * VALUE_DIM; i += THREADS * 4)
    put_result(to, token, head * share * VALUE_DIM + i, make_float4(0, 0, 0, 0));
}

// Copies of keys and values to shared memory, [STAGES][STEP] rows each; or of pieces of them.
struct Copies {
  const unsigned char *pool;
  unsigned char *keys, *values;
  u64 blocks[PAGES];  // of the unit whose keys were copied last
  bool valid[PAGES];
  // Copies the keys (WHAT 0) or then the values (1) of a round as a group of copies. Rows past the end are
  // zero; a round past the end is an empty group.
  template <int WHAT>
  __device__ __forceinline__ void start(const Work &work, const Pages &pages, int round, int piece = 0) {
    constexpr int PITCH = WHAT ? VALUE_ROW : KEY_ROW;
    constexpr int CUT_OFF =
        CUT ? (HEAD_DIM - COLUMNS) * (int)sizeof(pool_t) : 0;  // bytes between rows of a piece
    const int unit = work.unit_of(round), first = (work.begin + unit) * STEP;
    const int thread = threadIdx.x % (32 * WQ);
    unsigned char *to = place_of(WHAT, piece, round) ? values : keys;
    to += round % STAGES * STEP * PITCH;
#pragma unroll
    for (int page = 0; page < PAGES && WHAT == 0 && piece == 0; page++)
      valid[page] = unit < work.units && pages.find_block(blocks[page], first + page * PAGE, work.head);
#pragma unroll
    for (int page = 0; page < PAGES && unit < work.units; page++) {
      const unsigned char *from = pool + (valid[page] ? blocks[page] + (LATENT ? 0 : WHAT * BLOCK) : 0),
                          *columns = from + piece * COLUMNS * (int)sizeof(pool_t);
      const int rows = valid[page] ? work.visible - first - page * PAGE : 0;
#pragma unroll
      for (int i = 0; i < PAGE * CHUNKS; i += 32 * WQ) {
        constexpr bool WHOLE = 32 * WQ % CHUNKS == 0;  // whole rows at a time
        const int row = WHOLE ? thread / CHUNKS + i / CHUNKS : (thread + i) / CHUNKS;
        const int nth = WHOLE ? thread % CHUNKS : (thread + i) % CHUNKS;
        if (PAGE * CHUNKS % (32 * WQ) && thread + i >= PAGE * CHUNKS) break;
        if (NARROW_LAST && nth * CHUNK >= columns_of(piece) * (int)sizeof(pool_t)) continue;
        unsigned char *chunk =
            to + (page * PAGE + row) * PITCH + (WHAT ? value_chunk(nth, row) : key_chunk(nth, row)) * CHUNK;
        copy_bytes<CHUNK>(chunk, columns + (thread + i) * CHUNK + row * CUT_OFF, row < rows);
      }
      if (KV_Q8 && thread < PAGE)
        copy_bytes<4>(to + (page * PAGE + thread) * PITCH + PIECE,
                      from + (thread < rows ? PAGE * HEAD_DIM + thread * 4 : 0), thread < rows);
    }
    commit_copies();
  }
};

// Sets the COLUMNS columns of queries and keys past HEAD_DIM to zero. Called by all threads; |groups| as in
// the kernel.
template <int COLUMNS>
__device__ __forceinline__ void clear_padding(float *queries, unsigned char *groups) {
  constexpr int CHUNKS8 = COLUMNS * sizeof(pool_t) / 8;  // of 8 bytes, per key
  for (int i = threadIdx.x; i < QUERIES * COLUMNS; i += THREADS)
    queries[i / COLUMNS * QUERY_PITCH + HEAD_DIM + i % COLUMNS] = 0;
  for (int i = threadIdx.x; i < WK * STAGES * STEP * CHUNKS8; i += THREADS) {
    const int row = i / CHUNKS8 % (STAGES * STEP), nth = HEAD_DIM * sizeof(pool_t) / 8 + i % CHUNKS8;
    unsigned char *key = groups + i / CHUNKS8 / (STAGES * STEP) * (KEY_BYTES + VALUE_BYTES) + row * KEY_ROW;
    *(u64 *)(key + key_chunk(nth / 2, row) * 16 + nth % 2 * 8) = 0;
  }
}

// Waits for the warps that share keys.
__device__ __forceinline__ void wait_group() {
  if (WQ == 1)
    __syncwarp();
  else
    __syncthreads();
}

// Adds the units of all rounds to |sums|, or to |total| through |parts|. With one stage, keys arrive while
// values are added, and values while keys are scored.
__device__ __forceinline__ void add_units(Sums &sums, Merged &total, const Parts &parts, const Work &work,
                                          const float *queries, Copies &copies, const Pages &pages) {
  int own[HALVES];  // positions of the lane's queries
#pragma unroll
  for (int half = 0; half < HALVES; half++) own[half] = work.position_of(work.query + lane_row() + half * 8);
  for (int round = 0; round < work.rounds; round++) {
    const int unit = work.unit_of(round), stage = round % STAGES * STEP;
    const bool sees = work.sees(unit);
    float score[FRAGMENTS][4];
    Softmax soft;
    wait_copies<STAGES == 1 ? 1 : 2 * (STAGES - 2)>();
    wait_group();
    if (STAGES > 1) {
      copies.start<0>(work, pages, round + STAGES - 1);
      copies.start<1>(work, pages, round + STAGES - 1);
    }
    if (sees) score_keys(score, queries, copies.keys + stage * KEY_ROW);
    if (STAGES == 1) {
      wait_group();
      copies.start<0>(work, pages, round + 1);
    }
    if (sees)
      soft = softmax_weights(score, (work.begin + unit) * STEP + lane_quad() * 2, own, work.window,
                             work.is_edge(unit));
    if (STAGES == 1) {
      wait_copies<1>();
      wait_group();
    }
    if (MERGED) clear(sums);
    if (sees) {
      Factors factors[HALVES];
#pragma unroll
      for (int half = 0; half < HALVES; half++) {
        factors[half] = merge_peaks(sums.soft.peak[half], soft.peak[half]);
        sums.soft.weight[half] = merge(factors[half], sums.soft.weight[half], soft.weight[half]);
      }
      add_values(score, copies.values + stage * VALUE_ROW, [&](int i, int half, float4 sum) {
        sums.sum[half][i] = MERGED ? sum : merge4(factors[half], sums.sum[half][i], sum);
      });
    }
    if (STAGES == 1) wait_group();
    if (MERGED) {
      const int left = work.units - round * work.each;
      if (unit < work.units) parts.store(work.wk, 0, round, work.wq * 16, sums);
      parts.merge_units(total, 0, round, left < work.each ? left : work.each, work.rank);
    }
    if (STAGES == 1) copies.start<1>(work, pages, round + 1);
  }
}

// The same with pieces. A piece arrives while the one before it is used.
__device__ __forceinline__ void add_units_cut(Merged &total, const Parts &parts, const Work &work,
                                              const float *queries, Copies &copies, const Pages &pages) {
  int own[HALVES];
#pragma unroll
  for (int half = 0; half < HALVES; half++) own[half] = work.position_of(work.query + lane_row() + half * 8);
  for (int round = 0; round < work.rounds; round++) {
    const int unit = work.unit_of(round), left = work.units - round * work.each;
    const bool sees = work.sees(unit);
    float score[FRAGMENTS][4];
    Products products[FRAGMENTS] = {};
    Sums sums;
    clear(sums);
    clear_scores(score);
#pragma unroll 1
    for (int piece = 0; piece < PIECES; piece++) {
      __syncwarp();  // the warp has used the piece before
      if (piece + 1 < PIECES)
        copies.start<0>(work, pages, round, piece + 1);
      else
        copies.start<1>(work, pages, round, 0);
      wait_copies<1>();
      __syncwarp();
      if (sees)
        score_piece(score, products, piece, queries + piece * PIECE,
                    place_of(0, piece, round) ? copies.values : copies.keys);
    }
    if (sees)
      sums.soft = softmax_weights(score, (work.begin + unit) * STEP + lane_quad() * 2, own, work.window,
                                  work.is_edge(unit));
#pragma unroll
    for (int piece = 0; piece < VALUE_PIECES; piece++) {
      __syncwarp();  // as above; the parts of the piece before are merged
      if (piece + 1 < VALUE_PIECES)
        copies.start<1>(work, pages, round, piece + 1);
      else
        copies.start<0>(work, pages, round + 1);
      wait_copies<1>();
      __syncwarp();
      if (sees)
        add_values(score, place_of(1, piece, round) ? copies.values : copies.keys,
                   [&](int i, int half, float4 sum) { sums.sum[half][i] = sum; });
      __syncwarp();  // before the parts replace the values
      if (unit < work.units) parts.store(work.wk, piece, round, 0, sums);
      parts.merge_units(total, piece, round, left < work.each ? left : work.each, work.rank);
    }
  }
}

extern "C" __global__ void CLUSTER __launch_bounds__(config.threads, RESIDENT)
    NAME(const float *__restrict__ q, const pool_t *__restrict__ pool, const int *__restrict__ batch,
         const int *__restrict__ placed, SINKS_PARAMETER out_t *__restrict__ out, int layer, int page,
         int before, int share, u32 inverse, int window, int part_rows) {
  start_next_kernel();
  wait_for_previous_kernel();
  q = after_wait(q);
  pool = after_wait(pool);
  batch = after_wait(batch);
  extern __shared__ __align__(16) unsigned char memory[];
  const int kv_heads = gridDim.x, width = kv_heads * share * HEAD_DIM;
  const Result result = {out, part_rows, kv_heads * share * VALUE_DIM};
  const Tile tile = read_tile(placed, blockIdx.y);  // the same for all blocks of a cluster
  if (tile.slot < 0) {
    if (tile.first >= 0 && blockIdx.z == 0) clear_token(result, tile.first, blockIdx.x, share);
    return;
  }
  const Pages pages(batch, tile.slot, {layer, page, before});
  if constexpr (WARPGROUPS) {
    attend_with_warpgroups(q, (const float *)pool, result, pages, placed, {share, inverse}, window, sinks,
                           memory);
    return;
  }
  if (THREADS < config.threads && threadIdx.x >= THREADS) return;
  const Work work(tile, {share, inverse}, window, threadIdx.x / 32 % WQ * 16, HALVES * 8);
  if (work.alone && work.rank > 0) return;
  float *queries = (float *)memory;                            // [QUERIES][QUERY_PITCH]
  unsigned char *groups = memory + QUERIES * QUERY_PITCH * 4;  // [WK]: keys, then values; then Parts
  Copies copies;
  copies.pool = (const unsigned char *)pool;
  copies.keys = groups + work.wk * (KEY_BYTES + VALUE_BYTES), copies.values = copies.keys + KEY_BYTES;
  for (int i = threadIdx.x; i < QUERIES * HEAD_DIM / 4; i += THREADS) {
    const int line = i / (HEAD_DIM / 4), column = i % (HEAD_DIM / 4) * 4;
    const bool some = tile.query + line < work.end_query;
    copy_bytes<16>(queries + line * QUERY_PITCH + column,
                   some ? q + work.offset_of(tile.query + line, width) + column : q, some);
  }
  commit_copies();
  if constexpr (WIDTH > HEAD_DIM) clear_padding<WIDTH - HEAD_DIM>(queries, groups);
  constexpr int AHEAD = STAGES == 1 ? 1 : STAGES - 1;  // rounds
#pragma unroll
  for (int i = 0; i < AHEAD; i++) {
    copies.start<0>(work, pages, i);
    if constexpr (!CUT) copies.start<1>(work, pages, i);
  }
  wait_copies<CUT ? 1 : 2 * AHEAD>();
  __syncthreads();  // queries

  Sums sums;
  Merged total;
  const Parts parts(groups, work.alone, work.rank);
  clear(sums);
#pragma unroll
  for (int i = 0; i < VALUE_PIECES * OWN; i++) total.sum[i / OWN][i % OWN] = make_float4(0, 0, 0, 0);
  total.peak = NO_SCORE, total.weight = 0;
  if constexpr (CUT)
    add_units_cut(total, parts, work, queries, copies, pages);
  else
    add_units(sums, total, parts, work, queries + work.wq * 16 * QUERY_PITCH, copies, pages);

  auto store = [&](int nth, int column, float4 s, float peak, float weight) {
    if (nth >= work.end_query || (VALUE_PIECES * PIECE > VALUE_DIM && column >= VALUE_DIM)) return;
    const int head = work.head_of(nth);
    const float scale = final_scale(peak, weight, sinks, head);
    put_result(result, work.token_of(nth), head * VALUE_DIM + column,
               make_float4(s.x * scale, s.y * scale, s.z * scale, s.w * scale));
  };
#pragma unroll
  for (int i = 0; i < VALUE_PIECES * OWN && MERGED; i++)
    if (parts.column_of(i % OWN) < COLUMNS)
      store(tile.query + parts.line, i / OWN * PIECE + parts.column_of(i % OWN), total.sum[i / OWN][i % OWN],
            total.peak, total.weight);
#pragma unroll
  for (int i = 0; i < HALVES * SIXTEENS && !MERGED; i++) {
    const int half = i / SIXTEENS, column = i % SIXTEENS * 16 + lane_quad() * 4;
    store(work.query + lane_row() + half * 8, column, sums.sum[half][i % SIXTEENS], sums.soft.peak[half],
          sums.soft.weight[half]);
  }
}
#endif  // APPEND
