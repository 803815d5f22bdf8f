// Few tokens (few.cu): the warps that multiply.
#pragma once

#include "few_state.cuh"
#include "overlap.cuh"
#include "parts.cuh"

static __device__ __forceinline__ void sync_consumers() { sync_threads<THREADS>(); }

static __device__ __forceinline__ void load4(float *v, const float *words) {
  const float4 loaded = load_relaxed4(words);
  v[0] = loaded.x, v[1] = loaded.y, v[2] = loaded.z, v[3] = loaded.w;
}

static __device__ __forceinline__ bool is_empty(float v) { return __float_as_uint(v) == EMPTY; }
static __device__ __forceinline__ bool any_empty(const float *v) {
  return is_empty(v[0]) || is_empty(v[1]) || is_empty(v[2]) || is_empty(v[3]);
}

// Called in loops that wait for other blocks. Blocks that are not resident would never answer: an error is
// better than a launch without end.
static __device__ __forceinline__ void count_poll(u32 &polls) {
  if (++polls == MAX_POLLS) __trap();
}

// This lane's eight words of each of |count| pieces, where place() says. Polls the first ones: most arrive
// together.
static __device__ __forceinline__ void receive(float (&v)[PIECES][8], const float *from, int count) {
  u32 polls = 0;
  for (load4(v[0], from); __any_sync(~0u, any_empty(v[0])); load4(v[0], from)) count_poll(polls);
#pragma unroll
  for (int i = 1; i < 2 * PIECES; ++i)
    if (i < 2 * count) load4(v[i / 2] + i % 2 * 4, from + i * 128);
  for (;;) {
    bool again = false;
#pragma unroll
    for (int i = 1; i < 2 * PIECES; ++i) again |= i < 2 * count && any_empty(v[i / 2] + i % 2 * 4);
    if (!__any_sync(~0u, again)) return;  // lanes leave the loop together
    count_poll(polls);
#pragma unroll
    for (int i = 1; i < 2 * PIECES; ++i)
      if (i < 2 * count && any_empty(v[i / 2] + i % 2 * 4)) load4(v[i / 2] + i % 2 * 4, from + i * 128);
  }
}

// The same from rows in the usual order. A warp loads 128 columns of a row at a time, because requests of
// few bytes from many rows take several times as long, and exchanges them through |stage|, 2 KB.
static __device__ __forceinline__ void load_rows(float (&v)[PIECES][8], const float *rows, int stride,
                                                 float *stage, int count) {
  constexpr int LOADS = (PIECES + 3) / 4;  // of a row
  const int lane = threadIdx.x & 31, token = lane >> 2, quad = lane & 3;
  float row[TOKENS][LOADS][4];
#pragma unroll
  for (int i = 0; i < TOKENS * LOADS; ++i)
    if (i % LOADS * 128 + lane * 4 < count * 32)
      load4(row[i / LOADS][i % LOADS], rows + (u64)(i / LOADS) * stride + i % LOADS * 128 + lane * 4);
#pragma unroll
  for (int round = 0; round < (PIECES + 1) / 2; ++round) {  // two pieces; 16 lanes have them
    __syncwarp();
#pragma unroll
    for (int t = 0; t < TOKENS; ++t)
      if (lane >> 4 == round % 2)
        *(float4 *)(stage + t * 64 + ((lane & 15) * 4 ^ (t & 3) * 8)) = *(float4 *)row[t][round / 2];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 8 && round * 2 + i / 4 < PIECES; ++i) {
      const float2 pair = *(const float2 *)(stage + token * 64 + ((i ^ (token & 3)) * 8 + quad * 2));
      v[round * 2 + i / 4][i % 4 * 2] = pair.x, v[round * 2 + i / 4][i % 4 * 2 + 1] = pair.y;
    }
  }
}

enum { PHASE_O, PHASE_GATE_UP, PHASE_DOWN, PHASE_QKV, PHASE_HEAD };

// A matrix and what it is multiplied with.
struct Product {
  int phase;
  int units;          // of the matrix, in this block
  const float *rows;  // x: rows of |stride| numbers; stride 0: words of Buffers, which may be EMPTY yet
  int stride;
  int count;  // pieces of a warp
  int norm;   // before the product: its index in Shared::gain; -1: none
};

struct Consumer {
  Shared *s;
  RingPosition at;
  u32 x[PIECES][3][4];  // this warp's columns of x: piece, part, pair of columns

  // Loads x. With a norm, x is multiplied by its gain, and |square| gets the sums of squares.
  __device__ __forceinline__ void load(const Product &p) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, quad = lane & 3, column = warp * p.count * 32;
    float v[PIECES][8];
    if (p.stride)
      load_rows(v, p.rows + column, p.stride, &s->sums[0][0][0][0] + warp * 512, p.count);
    else
      receive(v, p.rows + column * TOKENS + lane * 4, p.count);
    float square = 0;
#pragma unroll
    for (int i = 0; i < PIECES * 4; ++i) {
      if (i >= p.count * 4) break;
      float low = v[i / 4][i % 4 * 2], high = v[i / 4][i % 4 * 2 + 1];
      if (p.norm >= 0) {
        const float2 g = *(const float2 *)(s->gain[p.norm] + column + i * 8 + quad * 2);
        square += low * low + high * high;
        low *= g.x, high *= g.y;
      }
      u32 parts[3];
      split_bf16(parts, low, high);
#pragma unroll
      for (int part = 0; part < 3; ++part) x[i / 4][part][i % 4] = parts[part];
    }
    if (p.norm < 0) return;
    square += __shfl_xor_sync(~0u, square, 1);
    square += __shfl_xor_sync(~0u, square, 2);
    if (quad == 0) s->square[warp][lane >> 2] = square;
  }

  // Sums of this warp's columns over a tile. Products of 32 columns have their own sum, which is then added:
  // tensor cores do not round sums to nearest. Smallest parts first, for accuracy.
  __device__ __forceinline__ void multiply(const u8 *upper, const u8 *lower, int count, float (&sum)[4]) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    // A lane has the address of 8 columns of a row.
    const u32 from = shared_address((lane & 8 ? lower : upper) + (lane & 7) * PITCH + warp * count * 64 +
                                    (lane >> 4) * 16);
    sum[0] = sum[1] = sum[2] = sum[3] = 0;
#pragma unroll
    for (int first = 0; first < PIECES; first += GROUP) {
      if (first >= count) break;
      u32 w[GROUP * 2][4];
#pragma unroll
      for (int i = 0; i < GROUP * 2; ++i) load_matrices(w[i], from + (first * 2 + i) * 32);
      float d[GROUP][4] = {};
#pragma unroll
      for (int i = 0; i < GROUP * 6; ++i) {
        const int piece = i % GROUP, half = i / GROUP % 2, part = 2 - i / GROUP / 2;
        const u32(&p)[4] = x[first + piece][part];
        mma(d[piece], w[piece * 2 + half], p[half * 2], p[half * 2 + 1]);
      }
#pragma unroll
      for (int i = 0; i < GROUP * 4; ++i) sum[i % 4] += d[i / 4][i % 4];
    }
  }

  // Each thread completes two sums of a tile of a batch: a row of either unit, and a token.
  static __device__ __forceinline__ int my_tile() { return threadIdx.x >> 6; }
  static __device__ __forceinline__ int my_row() { return threadIdx.x >> 3 & 7; }
  static __device__ __forceinline__ int my_token() { return threadIdx.x & 7; }

  // The same of q, k and v: rows |my_pair| and |my_pair| + 4 of one unit, which RoPE combines.
  static __device__ __forceinline__ int my_pair() { return threadIdx.x >> 3 & 3; }
  static __device__ __forceinline__ int my_half() { return threadIdx.x >> 5 & 1; }  // the unit of the tile

  // Multiplies the units of the ring. store(tile, upper, lower) gets the sums of a thread's two rows.
  template <typename Store>
  __device__ __forceinline__ void products(const Product &p, Store store) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, units = p.units, tiles = (units + 1) / 2;
    const bool pairs = p.phase == PHASE_QKV;
    const int row = pairs ? my_pair() : my_row(), column = my_token() % 2 + (pairs ? my_half() * 2 : 0),
              step = pairs ? UNIT / 2 * 16 : 2;  // to the other sum
#pragma unroll 1
    for (int first = 0; first < tiles; first += BATCH) {
      const int count = tiles - first < BATCH ? tiles - first : BATCH;
      sync_consumers();  // all have read the sums of the last batch
#pragma unroll 1
      for (int t = 0; t < count; ++t) {
        const bool two = (first + t) * 2 + 1 < units;
        const RingPosition upper = at;
        barrier_wait(&s->full[upper.stage], upper.parity);
        at.next();
        const RingPosition lower = two ? at : upper;
        if (two) {
          barrier_wait(&s->full[lower.stage], lower.parity);
          at.next();
        }
        float sum[4];
        multiply(s->ring[upper.stage], s->ring[lower.stage], p.count, sum);
        __syncwarp();
        if (lane == 0) {
          barrier_arrive(&s->free[upper.stage]);
          if (two) barrier_arrive(&s->free[lower.stage]);
        }
        *(float4 *)s->sums[t][warp][lane] = make_float4(sum[0], sum[1], sum[2], sum[3]);
      }
      sync_consumers();
      if (my_tile() >= count) continue;
      const float *from = s->sums[my_tile()][0][row * 4 + my_token() / 2] + column;
      float upper = 0, lower = 0;
#pragma unroll
      for (int i = 0; i < WARPS; ++i) upper += from[i * 128], lower += from[i * 128 + step];
      store(first + my_tile(), upper, lower);
    }
  }

  // The scale of the norm of a token, after the first sync_consumers() that follows load().
  __device__ __forceinline__ float scale() const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) sum += s->square[i][my_token()];
    return 1 / sqrtf(sum / HIDDEN + config.norm_eps);
  }
};

static __device__ __forceinline__ void mark_empty(const Launch &l, float *words, int count) {
#pragma unroll 1
  for (int i = (l.block * THREADS + threadIdx.x) * 4; i < count; i += l.blocks * THREADS * 4)
    *(uint4 *)(words + i) = make_uint4(EMPTY, EMPTY, EMPTY, EMPTY);
}

// ----------------------------------------------------------------------------------------------------------
// Phases
//
// A launch is one loop over its products, so that the code that loads and multiplies exists once: it stays
// in the instruction cache, and ptxas takes a third of the time.

static __device__ __forceinline__ int pieces_of(int columns) {
  // A constant if all matrices have as many columns.
  return HIDDEN == COLUMNS && Q_WIDTH == COLUMNS && SLICE == COLUMNS ? PIECES : columns / 32 / WARPS;
}

struct Phases {
  const Launch &l;
  Consumer &c;
  Buffers *now, *old;
  Range r;                // rows of this block, in units
  float early[2], scale;  // of the first batch: residuals, or cosine and sine; scale of the norm

  __device__ __forceinline__ Product product(int phase) {
    switch (phase) {
      case PHASE_O:
        r = share(HIDDEN, l.block, l.blocks);
        return {phase, r.end - r.begin, l.attended, Q_WIDTH, pieces_of(Q_WIDTH), -1};
      case PHASE_GATE_UP:
        r = share(FFN, l.block, l.blocks);
        return {phase, (r.end - r.begin) * 2, now->after_attention, 0, pieces_of(HIDDEN), 0};
      case PHASE_DOWN:
        r = down_share(l);
        return {phase, r.end - r.begin,  now->hidden + l.block % SLICES * SLICE * TOKENS,
                0,     pieces_of(SLICE), -1};
      case PHASE_QKV:
        r = share(Q_WIDTH + 2 * KV_WIDTH, l.block, l.blocks);
        return {phase,
                r.end - r.begin,
                l.parts & PART_LAYER ? now->after_mlp : l.x,
                l.parts & PART_LAYER ? 0 : HIDDEN,
                pieces_of(HIDDEN),
                1};
      default:
        r = share(VOCAB, l.block, l.blocks);
        return {phase, r.end - r.begin, l.x, HIDDEN, pieces_of(HIDDEN), -1};
    }
  }

  // ---- o: the residual of attention ----

  __device__ __forceinline__ int first_row() const { return (r.begin + c.my_tile() * 2) * UNIT + c.my_row(); }
  __device__ __forceinline__ float before_o(int column) const {
    const int token = c.my_token();
    return l.layer ? load_relaxed(old->after_mlp + place(column, token))
                   : load_relaxed(l.x + token * HIDDEN + column);
  }
  __device__ __forceinline__ void load_residual() {
    const int mine = first_row(), end = r.end * UNIT;
    early[0] = mine < end ? before_o(mine) : 0;
    early[1] = mine + UNIT < end ? before_o(mine + UNIT) : 0;
  }

  // ---- down: the sums of the slices. Those of unit u are added in the block of slice u % SLICES ----

  static __device__ __forceinline__ int sum_row() { return threadIdx.x & 7; }
  static __device__ __forceinline__ int sum_token() { return threadIdx.x >> 3 & 7; }
  __device__ __forceinline__ int first_unit() const {
    const int slice = l.block % SLICES;
    return r.begin + (slice - r.begin % SLICES + SLICES) % SLICES + (int)(threadIdx.x >> 6) * SLICES;
  }
  // The word has been stored, because other blocks computed |hidden| from it. But without a fence a load may
  // still return EMPTY: relaxed loads of two words are not ordered by causality.
  __device__ __forceinline__ float before_down(int unit) const {
    const float *word = now->after_attention + place(unit * UNIT + sum_row(), sum_token());
    float v = load_relaxed(word);
    for (u32 polls = 0; is_empty(v); count_poll(polls)) v = load_relaxed(word);
    return v;
  }
  // After the last layer x is also stored in the usual order.
  __device__ __forceinline__ void add_slices() {
    const int mine = first_unit(), token = sum_token();
#pragma unroll 1
    for (int unit = mine; unit < r.end; unit += THREADS / 64 * SLICES) {
      const int column = unit * UNIT + sum_row();
      const float *from = now->partial + token * HIDDEN + column;
      float v[SLICES], sum = 0;
#pragma unroll
      for (int i = 0; i < SLICES; ++i) v[i] = load_relaxed(from + i * TOKENS * HIDDEN);
#pragma unroll
      for (int i = 0; i < SLICES; ++i) {
        for (u32 polls = 0; is_empty(v[i]); count_poll(polls))
          v[i] = load_relaxed(from + i * TOKENS * HIDDEN);
        sum += v[i];
      }
      sum += unit == mine ? early[0] : before_down(unit);
      publish(now->after_mlp + place(column, token), sum);
      if (!(l.parts & PART_QKV)) l.out[0][token * HIDDEN + column] = sum;
    }
  }

  // ---- q, k and v ----

  // The first of a thread's two rows of a tile: its head, counted over q, k and v, and its index in the head.
  struct HeadRow {
    int head, at;
  };
  __device__ __forceinline__ HeadRow head_row(int tile) const {
    const int unit = r.begin + tile * 2 + c.my_half();
    return {unit / HEAD_UNITS, unit % HEAD_UNITS * (UNIT / 2) + c.my_pair()};
  }
  __device__ __forceinline__ float2 rotation(int at) const {
    const int word = c.my_token() * (HEAD_DIM / 2) + at;
    return {load_relaxed(l.cosine + word), load_relaxed(l.sine + word)};
  }
  // Loads what takes several dependent loads, or would be waited for at the end of the launch. The last warp
  // finds the tokens' keys: it seldom has sums of slices to add.
  __device__ __forceinline__ void prepare_append() {
    const int token = (int)threadIdx.x - (THREADS - TOKENS);
    const float2 turn = rotation(head_row(c.my_tile()).at);
    early[0] = turn.x, early[1] = turn.y;
    if (token < 0) return;
    const int slots = l.batch[MLX_STEP_AT_SLOTS], positions = l.batch[MLX_STEP_AT_POSITIONS];
    u64 key = 0;
    const bool valid =
        token < l.batch[MLX_STEP_TOKEN_COUNT] && token < positions - slots &&
        Pages(l.batch, l.batch[slots + token], l.pages).find_key(key, l.batch[positions + token], 0);
    c.s->keys[token] = valid ? key : NOWHERE;
  }
  // Not for codes of 8 bits: they need the largest number of the head first. T is pool_t.
  template <typename T>
  __device__ __forceinline__ void append(T *pool, HeadRow row, float2 turn, float low, float high) const {
    constexpr int HEADS = Q_WIDTH / HEAD_DIM, KV_HEADS = KV_WIDTH / HEAD_DIM;
    const int token = c.my_token();
    const bool value = row.head >= HEADS + KV_HEADS;
    const float first = value ? low : rotate(low, turn.x, -high, turn.y),
                second = value ? high : rotate(high, turn.x, low, turn.y);
    if (row.head < HEADS) {
      float *to = l.out[0] + token * Q_WIDTH + row.head * HEAD_DIM + row.at;
      to[0] = first, to[HEAD_DIM / 2] = second;
    } else if (c.s->keys[token] != NOWHERE) {
      const int head = (row.head - HEADS) % KV_HEADS * 2 + value;  // keys and values alternate
      T *to = pool + c.s->keys[token] + head * PAGE * HEAD_DIM + row.at;
      store1(to, first), store1(to + HEAD_DIM / 2, second);
    }
  }
  __device__ __forceinline__ void store_qkv(int tile, float low, float high) {
    if (r.begin + tile * 2 + c.my_half() >= r.end) return;
    if (tile < BATCH) scale = c.scale();
    const HeadRow row = head_row(tile);
    low *= scale, high *= scale;
    if constexpr (config.kv != Dtype::Q8_0) {
      if (l.parts & PART_APPEND)
        return append(l.pool, row, tile < BATCH ? float2{early[0], early[1]} : rotation(row.at), low, high);
    }
    const int word = row.head * HEAD_DIM + row.at, token = c.my_token();
    float *to = word < Q_WIDTH ? l.out[0] + token * Q_WIDTH + word
                               : l.out[word < Q_WIDTH + KV_WIDTH ? 1 : 2] + token * KV_WIDTH +
                                     (word - Q_WIDTH) % KV_WIDTH;
    to[0] = low, to[HEAD_DIM / 2] = high;
  }

  // ---- results of a thread: a row of either unit of a tile, and a token ----

  __device__ __forceinline__ void store(int phase, int tile, float upper, float lower) {
    if (phase == PHASE_QKV) return store_qkv(tile, upper, lower);
    const int unit = r.begin + tile * 2, row = unit * UNIT + c.my_row(), token = c.my_token();
    const bool two = unit + 1 < r.end;
    if (phase == PHASE_O) {
      const bool mine = row == first_row();
      publish(now->after_attention + place(row, token), (mine ? early[0] : before_o(row)) + upper);
      if (two)
        publish(now->after_attention + place(row + UNIT, token),
                (mine ? early[1] : before_o(row + UNIT)) + lower);
    } else if (phase == PHASE_GATE_UP) {  // a tile is one unit of gate and one of up
      if (tile < BATCH) scale = c.scale();
      const float gate = upper * scale, up = lower * scale;
      publish(now->hidden + place((r.begin + tile) * UNIT + c.my_row(), token),
              gate / (1.0f + expf(-gate)) * up);
    } else if (phase == PHASE_DOWN) {
      float *to = now->partial + (l.block % SLICES * TOKENS + token) * HIDDEN + row;
      publish(to, upper);
      if (two) publish(to + UNIT, lower);
    } else {
      float *to = l.out[0] + (u64)token * VOCAB + row;
      to[0] = upper;
      if (two) to[UNIT] = lower;
    }
  }

  // Words of the other set that no block reads any more.
  __device__ __forceinline__ void clear_old(int phase) const {
    if (phase == PHASE_O) mark_empty(l, old->after_attention, TOKENS * HIDDEN);
    if (phase == PHASE_GATE_UP)  // |hidden| and |partial| are neighbours
      mark_empty(l, old->hidden, TOKENS * FFN + SLICES * TOKENS * HIDDEN);
    if (phase == PHASE_DOWN)  // |now->after_attention| is complete: all have read it
      mark_empty(l, old->after_mlp, TOKENS * HIDDEN);
  }

  __device__ __forceinline__ void run(int phase) {
    const Product p = product(phase);
    if (phase == PHASE_O) load_residual();
    if constexpr (config.kv != Dtype::Q8_0) {
      if (phase == PHASE_QKV && l.parts & PART_APPEND) prepare_append();
    }
    if (p.norm >= 0) barrier_wait(&c.s->gains, 0);
    c.load(p);
    if (phase == PHASE_DOWN) early[0] = first_unit() < r.end ? before_down(first_unit()) : 0;
    c.products(p, [&](int tile, float upper, float lower) { store(phase, tile, upper, lower); });
    if (phase == PHASE_DOWN) add_slices();
    clear_old(phase);
  }
};

static __device__ __forceinline__ void consume(const Launch &l, Shared *s) {
  Consumer c;
  c.s = s, c.at = {0, 0};
  Phases phases = {l, c, l.buffers + (l.layer & 1), l.buffers + (~l.layer & 1), {0, 0}, {0, 0}, 0};
  wait_for_previous_kernel();
  // A step begins: the last layer of an odd number of layers left values in the first set.
  if (l.parts & PART_QKV && !(l.parts & PART_LAYER))
    mark_empty(l, (float *)phases.now, sizeof *phases.now / 4);
  int phase = l.parts & PART_LAYER ? PHASE_O : l.parts & PART_QKV ? PHASE_QKV : PHASE_HEAD;
  const int last = l.parts & PART_QKV ? PHASE_QKV : l.parts & PART_LAYER ? PHASE_DOWN : PHASE_HEAD;
#pragma unroll 1
  for (; phase <= last; ++phase) phases.run(phase);
}
