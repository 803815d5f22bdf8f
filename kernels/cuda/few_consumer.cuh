// Few tokens (few.cu): the warps that multiply.

static __device__ __forceinline__ void sync_consumers() {
  asm volatile("barrier.sync 1, %0;" ::"n"(THREADS) : "memory");
}

static __device__ __forceinline__ void publish(float *word, float value) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(word), "f"(value) : "memory");
}

static __device__ __forceinline__ float load1(const float *word) {
  float v;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(v) : "l"(word));
  return v;
}

static __device__ __forceinline__ void load4(float *v, const float *words) {
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "l"(words));
}

static __device__ __forceinline__ bool is_empty(float v) { return __float_as_uint(v) == EMPTY; }
static __device__ __forceinline__ bool any_empty(const float *v) {
  return is_empty(v[0]) || is_empty(v[1]) || is_empty(v[2]) || is_empty(v[3]);
}

static __device__ __forceinline__ u32 narrow2(float low, float high) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

static __device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Called in loops that wait for other blocks. Blocks that are not resident would never answer: an error is
// better than a launch without end.
static __device__ __forceinline__ void count_poll(u32 &polls) {
  if (++polls == MAX_POLLS) __trap();
}

// This lane's eight words of each piece, where place() says. Polls the first ones: most arrive together.
template <int COUNT>
static __device__ __forceinline__ void receive(float (&v)[PIECES][8], const float *from) {
  u32 polls = 0;
  for (load4(v[0], from); __any_sync(~0u, any_empty(v[0])); load4(v[0], from)) count_poll(polls);
#pragma unroll
  for (int i = 1; i < 2 * COUNT; ++i) load4(v[i / 2] + i % 2 * 4, from + i * 128);
  for (;;) {
    bool again = false;
#pragma unroll
    for (int i = 1; i < 2 * COUNT; ++i) again |= any_empty(v[i / 2] + i % 2 * 4);
    if (!__any_sync(~0u, again)) return;  // lanes leave the loop together
    count_poll(polls);
#pragma unroll
    for (int i = 1; i < 2 * COUNT; ++i)
      if (any_empty(v[i / 2] + i % 2 * 4)) load4(v[i / 2] + i % 2 * 4, from + i * 128);
  }
}

// The same from rows in the usual order. A warp loads 128 columns of a row at a time, because requests of
// few bytes from many rows take several times as long, and exchanges them through |stage|, 2 KB.
template <int COUNT>
static __device__ __forceinline__ void load_rows(float (&v)[PIECES][8], const float *rows, int stride,
                                                 float *stage) {
  constexpr int LOADS = (COUNT + 3) / 4;  // of a row
  const int lane = threadIdx.x & 31, token = lane >> 2, quad = lane & 3;
  float row[TOKENS][LOADS][4];
#pragma unroll
  for (int i = 0; i < TOKENS * LOADS; ++i)
    if (COUNT % 4 == 0 || i % LOADS * 128 + lane * 4 < COUNT * 32)
      load4(row[i / LOADS][i % LOADS], rows + (u64)(i / LOADS) * stride + i % LOADS * 128 + lane * 4);
#pragma unroll
  for (int round = 0; round < (COUNT + 1) / 2; ++round) {  // two pieces; 16 lanes have them
    __syncwarp();
#pragma unroll
    for (int t = 0; t < TOKENS; ++t)
      if (lane >> 4 == round % 2)
        *(float4 *)(stage + t * 64 + ((lane & 15) * 4 ^ (t & 3) * 8)) = *(float4 *)row[t][round / 2];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 8 && round * 2 + i / 4 < COUNT; ++i) {
      const float2 pair = *(const float2 *)(stage + token * 64 + ((i ^ (token & 3)) * 8 + quad * 2));
      v[round * 2 + i / 4][i % 4 * 2] = pair.x, v[round * 2 + i / 4][i % 4 * 2 + 1] = pair.y;
    }
  }
}

struct Consumer {
  Shared *s;
  RingPosition at;
  u32 x[PIECES][3][4];  // this warp's columns of x: piece, part, pair of columns

  // Loads K columns of x. EXCHANGED: from Buffers, whose words may be EMPTY yet; else from rows of |stride|
  // numbers. With a gain, x is multiplied by it, and |square| gets the sums of squares.
  template <int K, bool EXCHANGED>
  __device__ __forceinline__ void load(const float *rows, int stride, const float *gain) {
    constexpr int COUNT = K / 32 / WARPS;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, quad = lane & 3, column = warp * COUNT * 32;
    float v[PIECES][8];
    if constexpr (EXCHANGED)
      receive<COUNT>(v, rows + column * TOKENS + lane * 4);
    else
      load_rows<COUNT>(v, rows + column, stride, &s->sums[0][0][0][0] + warp * 512);
    float square = 0;
#pragma unroll
    for (int i = 0; i < COUNT * 4; ++i) {
      float low = v[i / 4][i % 4 * 2], high = v[i / 4][i % 4 * 2 + 1];
      if (gain) {
        const float2 g = *(const float2 *)(gain + column + i * 8 + quad * 2);
        square += low * low + high * high;
        low *= g.x, high *= g.y;
      }
#pragma unroll
      for (int part = 0; part < 3; ++part) {
        const u32 pair = narrow2(low, high);
        x[i / 4][part][i % 4] = pair;
        low -= __uint_as_float(pair << 16), high -= __uint_as_float(pair & 0xffff0000u);
      }
    }
    if (!gain) return;
    square += __shfl_xor_sync(~0u, square, 1);
    square += __shfl_xor_sync(~0u, square, 2);
    if (quad == 0) s->square[warp][lane >> 2] = square;
  }

  // Sums of this warp's columns over a tile. Products of 32 columns have their own sum, which is then added:
  // tensor cores do not round sums to nearest. Smallest parts first, for accuracy.
  template <int K>
  __device__ __forceinline__ void multiply(const u8 *upper, const u8 *lower, float (&sum)[4]) {
    constexpr int COUNT = K / 32 / WARPS, GROUP = COUNT % 4 == 0 ? 4 : COUNT % 2 == 0 ? 2 : 1;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    // A lane has the address of 8 columns of a row.
    const u32 from = shared_address((lane & 8 ? lower : upper) + (lane & 7) * PITCH + warp * COUNT * 64 +
                                    (lane >> 4) * 16);
    sum[0] = sum[1] = sum[2] = sum[3] = 0;
#pragma unroll
    for (int first = 0; first < COUNT; first += GROUP) {
      u32 w[GROUP * 2][4];
#pragma unroll
      for (int i = 0; i < GROUP * 2; ++i)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(w[i][0]), "=r"(w[i][1]), "=r"(w[i][2]), "=r"(w[i][3])
                     : "r"(from + (first * 2 + i) * 32)
                     : "memory");
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

  // Multiplies |units| units of the ring. store(tile, upper, lower) gets the sums of a thread's rows.
  template <int K, typename Store>
  __device__ __forceinline__ void products(int units, Store store) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, tiles = (units + 1) / 2;
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
        multiply<K>(s->ring[upper.stage], s->ring[lower.stage], sum);
        __syncwarp();
        if (lane == 0) {
          barrier_arrive(&s->free[upper.stage]);
          if (two) barrier_arrive(&s->free[lower.stage]);
        }
        *(float4 *)s->sums[t][warp][lane] = make_float4(sum[0], sum[1], sum[2], sum[3]);
      }
      sync_consumers();
      if (my_tile() >= count) continue;
      const float *from = s->sums[my_tile()][0][my_row() * 4 + my_token() / 2] + my_token() % 2;
      float upper = 0, lower = 0;
#pragma unroll
      for (int i = 0; i < WARPS; ++i) upper += from[i * 128], lower += from[i * 128 + 2];
      store(first + my_tile(), upper, lower);
    }
  }

  // The scale of the norm of a token, after the first sync_consumers() that follows load().
  __device__ __forceinline__ float scale() const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) sum += s->square[i][my_token()];
    return 1 / sqrtf(sum / HIDDEN + NORM_EPS);
  }
};

static __device__ __forceinline__ void mark_empty(const Launch &l, float *words, int count) {
#pragma unroll 1
  for (int i = (l.block * THREADS + threadIdx.x) * 4; i < count; i += l.blocks * THREADS * 4)
    *(uint4 *)(words + i) = make_uint4(EMPTY, EMPTY, EMPTY, EMPTY);
}

// The output projection of attention and its residual.
static __device__ __forceinline__ void project(const Launch &l, Consumer &c, Buffers *now, Buffers *old) {
  const Range r = share(HIDDEN, l.block, l.blocks);
  const int token = c.my_token(), end = r.end * UNIT;
  auto before = [&](int column) {
    return l.layer ? load1(old->after_mlp + place(column, token)) : load1(l.x + token * HIDDEN + column);
  };
  const int mine = (r.begin + c.my_tile() * 2) * UNIT + c.my_row();  // in the first batch
  const float upper_x = mine < end ? before(mine) : 0, lower_x = mine + UNIT < end ? before(mine + UNIT) : 0;
  c.load<Q_WIDTH, false>(l.attended, Q_WIDTH, nullptr);
  c.products<Q_WIDTH>(r.end - r.begin, [&](int tile, float upper, float lower) {
    const int column = (r.begin + tile * 2) * UNIT + c.my_row();
    float *to = now->after_attention;
    publish(to + place(column, token), (column == mine ? upper_x : before(column)) + upper);
    if (column + UNIT < end)
      publish(to + place(column + UNIT, token), (column == mine ? lower_x : before(column + UNIT)) + lower);
  });
}

static __device__ __forceinline__ void gate_and_up(const Launch &l, Consumer &c, Buffers *now) {
  const Range r = share(FFN, l.block, l.blocks);
  float scale = 0;
  barrier_wait(&c.s->gains, 0);
  c.load<HIDDEN, true>(now->after_attention, 0, c.s->gain[0]);
  c.products<HIDDEN>((r.end - r.begin) * 2, [&](int tile, float gate, float up) {
    if (tile < BATCH) scale = c.scale();
    gate *= scale, up *= scale;
    publish(now->hidden + place((r.begin + tile) * UNIT + c.my_row(), c.my_token()),
            gate / (1.0f + expf(-gate)) * up);
  });
}

// The down projection of a slice. Then adds the slices of unit u in the block of slice u % SLICES.
// After the last layer x is also stored in the usual order.
static __device__ __forceinline__ void down(const Launch &l, Consumer &c, Buffers *now) {
  const int slice = l.block % SLICES, row = threadIdx.x & 7, token = threadIdx.x >> 3 & 7;
  const Range r = down_share(l);
  c.load<SLICE, true>(now->hidden + slice * SLICE * TOKENS, 0, nullptr);
  const int mine = r.begin + (slice - r.begin % SLICES + SLICES) % SLICES + (int)(threadIdx.x >> 6) * SLICES;
  auto before = [&](int unit) { return load1(now->after_attention + place(unit * UNIT + row, token)); };
  const float x = mine < r.end ? before(mine) : 0;
  c.products<SLICE>(r.end - r.begin, [&](int tile, float upper, float lower) {
    float *to =
        now->partial + (slice * TOKENS + c.my_token()) * HIDDEN + (r.begin + tile * 2) * UNIT + c.my_row();
    publish(to, upper);
    if (r.begin + tile * 2 + 1 < r.end) publish(to + UNIT, lower);
  });
#pragma unroll 1
  for (int unit = mine; unit < r.end; unit += THREADS / 64 * SLICES) {
    const int column = unit * UNIT + row;
    const float *from = now->partial + token * HIDDEN + column;
    float v[SLICES], sum = 0;
#pragma unroll
    for (int i = 0; i < SLICES; ++i) v[i] = load1(from + i * TOKENS * HIDDEN);
#pragma unroll
    for (int i = 0; i < SLICES; ++i) {
      for (u32 polls = 0; is_empty(v[i]); count_poll(polls)) v[i] = load1(from + i * TOKENS * HIDDEN);
      sum += v[i];
    }
    sum += unit == mine ? x : before(unit);
    publish(now->after_mlp + place(column, token), sum);
    if (!(l.parts & PART_QKV)) l.out[0][token * HIDDEN + column] = sum;
  }
}

static __device__ __forceinline__ void queries_and_keys(const Launch &l, Consumer &c, const Buffers *now) {
  const Range r = share(Q_WIDTH + 2 * KV_WIDTH, l.block, l.blocks);
  float scale = 0;
  barrier_wait(&c.s->gains, 0);
  if (l.parts & PART_LAYER)
    c.load<HIDDEN, true>(now->after_mlp, 0, c.s->gain[1]);
  else
    c.load<HIDDEN, false>(l.x, HIDDEN, c.s->gain[1]);
  auto store = [&](int row, float value) {
    const int token = c.my_token();
    if (row < Q_WIDTH)
      l.out[0][token * Q_WIDTH + row] = value;
    else
      l.out[row < Q_WIDTH + KV_WIDTH ? 1 : 2][token * KV_WIDTH + (row - Q_WIDTH) % KV_WIDTH] = value;
  };
  c.products<HIDDEN>(r.end - r.begin, [&](int tile, float upper, float lower) {
    if (tile < BATCH) scale = c.scale();
    const int unit = r.begin + tile * 2;
    store(unit * UNIT + c.my_row(), upper * scale);
    if (unit + 1 < r.end) store((unit + 1) * UNIT + c.my_row(), lower * scale);
  });
}

static __device__ __forceinline__ void head(const Launch &l, Consumer &c) {
  const Range r = share(VOCAB, l.block, l.blocks);
  c.load<HIDDEN, false>(l.x, HIDDEN, nullptr);
  c.products<HIDDEN>(r.end - r.begin, [&](int tile, float upper, float lower) {
    const int unit = r.begin + tile * 2;
    float *to = l.out[0] + (u64)c.my_token() * VOCAB + unit * UNIT + c.my_row();
    to[0] = upper;
    if (unit + 1 < r.end) to[UNIT] = lower;
  });
}

static __device__ __forceinline__ void consume(const Launch &l, Shared *s) {
  Consumer c;
  c.s = s, c.at = {0, 0};
  Buffers *now = l.buffers + (l.layer & 1), *old = l.buffers + (~l.layer & 1);
  wait_for_previous_kernel();
  if (l.parts & PART_LAYER) {
    project(l, c, now, old);
    mark_empty(l, old->after_attention, TOKENS * HIDDEN);
    gate_and_up(l, c, now);
    mark_empty(l, old->hidden, TOKENS * FFN);
    mark_empty(l, old->partial, SLICES * TOKENS * HIDDEN);
    down(l, c, now);
    mark_empty(l, old->after_mlp, TOKENS * HIDDEN);  // |now->after_attention| is complete: all have read it
  }
  if (l.parts == PART_QKV)  // a step begins: the last layer of an odd number left values in the first set
    mark_empty(l, (float *)now, sizeof *now / 4);
  if (l.parts & PART_QKV) queries_and_keys(l, c, now);
  if (l.parts & PART_HEAD) head(l, c);
}
