// Decode: recurrent layers. recurrent.cu computes the same ops for several tokens; both keep the same state
// of a sequence, in the KV pool.
//
// The block that computes a row of a matrix owns its channel of the convolution: it alone reads and writes
// that part of the state. So the convolution needs no exchange. Between two gates (LFM2) the same thread has
// the sums of b, c and x of a channel, and publishes the layer's output at once.
//
// A task of the delta rule is DELTA_COLUMNS columns of a value head. Each warp has four of them: eight lanes
// share a column, and each has every eighth of the rows of the state, or of the runs of four rows, as in
// recurrent.cu. A warp receives all that it needs itself, so a task has no barrier before its results are
// published. The norm of a head needs the sum of squares of all its columns: a task publishes that of its
// own, and the blocks that receive the results divide by the length.
#pragma once

#include "decode_experts.cuh"

// The state before the token at |position|; NULL: zero.
template <typename M>
static __device__ __forceinline__ const float *state_before(const M &m, int position) {
  return position == m.start ? m.old_state : m.state;
}

// ----------------------------------------------------------------------------------------------------------
// Convolution

// Of one channel: the inputs of the last tokens, the oldest first, and the filter.
struct Channel {
  float inputs[TAPS - 1], filter[TAPS], bias;
};

static __device__ __forceinline__ u32 convolution_place(int layer) {
  return constant_at<Tables::state_places>(2 * layer);
}

template <typename M>
static __device__ __forceinline__ Channel load_channel(const M &m, int layer, int position, int channel) {
  const float *state = state_before(m, position), *filter = (const float *)weight_at<config.filter>(m, layer);
  Channel c;
#pragma unroll
  for (int i = 0; i + 1 < TAPS; ++i)
    c.inputs[i] = state ? state[convolution_place(layer) + i * CHANNELS + channel] : 0.0f;
#pragma unroll
  for (int i = 0; i < TAPS; ++i) c.filter[i] = __ldg(filter + channel * TAPS + i);
  c.bias = bias_at<config.filter_bias>(m, layer, channel);
  return c;
}

// The result for the input |x|, which becomes part of the state.
template <typename M>
static __device__ __forceinline__ float convolve(const M &m, int layer, int channel, const Channel &c,
                                                 float x) {
  float *state = m.state + convolution_place(layer) + channel;
  float sum = c.bias;
#pragma unroll
  for (int i = 0; i + 1 < TAPS; ++i) sum = fmaf(c.filter[i], c.inputs[i], sum);
#pragma unroll
  for (int i = 0; i + 1 < TAPS; ++i) state[i * CHANNELS] = i + 2 < TAPS ? c.inputs[i + 1] : x;
  return fmaf(c.filter[TAPS - 1], x, sum);
}

static __device__ __forceinline__ float silu(float x) { return x / __fadd_rn(1.0f, expf(-x)); }

// Between two gates: c * convolution(b * x).
template <typename M>
static __device__ __forceinline__ void convolve_gated(const M &m, Consumer &consumer, int l, int position,
                                                      const QkvInput &h) {
  const Shared *s = consumer.s;
  consumer.triples<InFormat, InFormat2>(
      h, s->in[0], uses_second(l, SECOND_RECURRENT_IN),
      [&](int row) { return load_channel(m, l, position, row); },
      [&](int row, float b, float c, float x, const Channel &channel) {
        const float scale = layer_scale(s);
        const auto biased = [&](float sum, int nth) {
          return sum * scale + bias_at<config.recurrent_in_bias>(m, l, nth * HIDDEN + row);
        };
        const float y = convolve(m, l, row, channel, biased(b, 0) * biased(x, 2));
        publish(&m.scratch->output[0][row], biased(c, 1) * y);
      });
}

// ----------------------------------------------------------------------------------------------------------
// Delta rule: the numbers of each head

// Of a row of |delta_beta| or |delta_step|, which follow each other.
struct DeltaHead {
  float bias, rate;  // of a step
};

static __device__ __forceinline__ DeltaHead load_delta_head(const Model &m, int layer, int nth) {
  if (nth < VALUE_HEADS) return {0, 0};
  return {vector_at<config.delta_step_bias>(m, layer, nth - VALUE_HEADS),
          vector_at<config.delta_rate>(m, layer, nth - VALUE_HEADS)};
}

// sigmoid(beta), or the decay exp(rate * softplus(step)).
static __device__ __forceinline__ float delta_number(int nth, float x, DeltaHead head) {
  if (nth < VALUE_HEADS) return 1 / (1 + expf(-x));
  x += head.bias;
  const float softplus = x > 20 ? x : log1pf(expf(x));
  return expf(softplus * (config.log_rate ? -expf(head.rate) : head.rate));
}

// Rows in a format that others do not have (DELTA_APART). They are few, so a block computes one or none,
// without the ring. Loaded before the wait for the layer's input.
struct DeltaRow {
  const Model &m;
  Shared *s;
  int layer;  // LAYERS: none
  float4 row[Tiling<HIDDEN>::runs];
  DeltaHead numbers;

  __device__ __forceinline__ DeltaRow(const Model &model, Shared *shared, int l)
      : m(model), s(shared), layer(l < LAYERS && is_recurrent(l) ? l : LAYERS) {
    if (layer < LAYERS) load(s->block);
  }

  __device__ __forceinline__ void load(int nth) {
    using C = Tiling<HIDDEN>;
    constexpr TileArguments T = config.delta_tiles;
    const bool is_step = nth >= VALUE_HEADS;
    const int head = nth % VALUE_HEADS;
    if (nth >= DELTA_ROWS) return;
    const u8 *from =
        is_step ? weight_at<config.delta_step>(m, layer) : weight_at<config.delta_beta>(m, layer);
#pragma unroll
    for (int i = 0; i < C::runs; ++i) {
      const int column = C::column(i) + (threadIdx.x & 31) * 4;
      row[i] = {0, 0, 0, 0};
      if (!C::has(i, column)) continue;
      if constexpr (T.bits != MLX_DECODE_ROWS)
        row[i] = FormatOf<T>::Type::template load4<HIDDEN>(from, head, column);
      else
        row[i] = load_numbers<config.delta_dtype>(
            from + (u64)head * HIDDEN * (config.delta_dtype == Dtype::F32 ? 4 : 2), column);
    }
    numbers = load_delta_head(m, layer, nth);
  }

  // Publishes the numbers of this block. |value|: the layer's input times the gain of its norm.
  __device__ __forceinline__ void operator()(const float4 (&value)[Tiling<HIDDEN>::runs]) {
    if (layer == LAYERS) return;
#pragma unroll 1
    for (int nth = s->block; nth < DELTA_ROWS; nth += s->blocks) {
      if (nth != s->block) {
        sync_consumers();  // the last row's sums have been read
        load(nth);
      }
      float sum = 0;
#pragma unroll
      for (int i = 0; i < Tiling<HIDDEN>::runs; ++i) {
        sum = fmaf(value[i].x, row[i].x, sum);
        sum = fmaf(value[i].y, row[i].y, sum);
        sum = fmaf(value[i].z, row[i].z, sum);
        sum = fmaf(value[i].w, row[i].w, sum);
      }
      sum = warp_sum(sum);
      if ((threadIdx.x & 31) == 0) s->delta_sum[threadIdx.x >> 5] = sum;
      sync_consumers();
      if (threadIdx.x) continue;
      sum = 0;
#pragma unroll
      for (int i = 0; i < WARPS; ++i) sum += s->delta_sum[i];
      publish(&m.scratch->gates[0][nth], delta_number(nth, sum * norm_scale(s), numbers));
    }
  }
};

// What is done with the input of layer |l| when it is received.
template <bool APART>
struct InputUse {
  using Type = DeltaRow;
};
template <>
struct InputUse<false> {
  struct Type : NoUse {
    __device__ __forceinline__ Type(const Model &, const Shared *, int) {}
  };
};
using LayerInputUse = InputUse<DELTA_APART>::Type;

// ----------------------------------------------------------------------------------------------------------
// Delta rule: the state

constexpr int SLICES = 8, RUN = KEY_DIM % (4 * SLICES) == 0 ? 4 : 1,
              RUNS = ceil_div(KEY_DIM, SLICES *RUN);  // rows of the state of a lane
constexpr int DELTA_TASKS = VALUE_HEADS * DELTA_PARTS;
static_assert(THREADS == SLICES * DELTA_COLUMNS);

struct DeltaTask {
  int head, part;
  __device__ __forceinline__ explicit DeltaTask(int task)
      : head(task / DELTA_PARTS), part(task % DELTA_PARTS) {}
  __device__ __forceinline__ int key_head() const {
    return config.tiled_heads ? head % KEY_HEADS : head / (VALUE_HEADS / KEY_HEADS);
  }
};

// Where the numbers of a head's row start in the state.
static __device__ __forceinline__ u32 delta_place(int layer, int head, int row) {
  return constant_at<Tables::state_places>(2 * layer + 1) + (u32)(head * KEY_DIM + row) * VALUE_DIM;
}

// Prefetches the state of this block's first task into the L2 cache.
template <typename M>
static __device__ __forceinline__ void prefetch_state(const M &m, const Shared *s, int layer, int position) {
  const float *state = state_before(m, position);
  const DeltaTask t(s->block);
  if (s->block >= DELTA_TASKS || !state) return;
#pragma unroll 1
  for (int row = threadIdx.x; row < KEY_DIM; row += THREADS)
    prefetch_l2(state + delta_place(layer, t.head, row) + t.part * DELTA_COLUMNS);
}

// A lane's rows of q and k, and the numbers of its column.
struct DeltaWords {
  float q[RUNS][RUN], k[RUNS][RUN], value, gate, beta, decay;
};

template <int COUNT>
static __device__ __forceinline__ bool receive_run(float (&v)[COUNT], const float *words) {
  if constexpr (COUNT == 4) {
    if (is_empty(v[0]) || is_empty(v[1]) || is_empty(v[2]) || is_empty(v[3])) {
      const float4 four = load_relaxed4(words);
      v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    }
    return is_empty(v[0]) || is_empty(v[1]) || is_empty(v[2]) || is_empty(v[3]);
  } else {
    if (is_empty(v[0])) v[0] = load_relaxed(words);
    return is_empty(v[0]);
  }
}

static __device__ __forceinline__ bool receive_one(float &v, const float *word) {
  if (is_empty(v)) v = load_relaxed(word);
  return is_empty(v);
}

template <int = 0>
static __device__ __forceinline__ void receive_delta(const Scratch *w, DeltaTask t, int slice, int column,
                                                     DeltaWords &d) {
  const float empty = __uint_as_float(EMPTY), *mixed = w->mixed[0], *gates = w->gates[0];
  const float *q = mixed + t.key_head() * KEY_DIM, *value = mixed + 2 * KEY_WIDTH + t.head * VALUE_DIM;
  const bool active = column < VALUE_DIM;
#pragma unroll
  for (int i = 0; i < RUNS * RUN; ++i) {
    const bool exists = (i / RUN * SLICES + slice) * RUN < KEY_DIM;
    d.q[i / RUN][i % RUN] = d.k[i / RUN][i % RUN] = exists ? empty : 0.0f;
  }
  d.value = d.gate = active ? empty : 0.0f;
  d.beta = d.decay = empty;
  for (bool again = true; again;) {
    again = false;
#pragma unroll
    for (int j = 0; j < RUNS; ++j) {
      const float *run = q + (j * SLICES + slice) * RUN;
      again |= receive_run(d.q[j], run);
      again |= receive_run(d.k[j], run + KEY_WIDTH);
    }
    again |= receive_one(d.value, value + column);
    again |= receive_one(d.gate, value + VALUE_WIDTH + column);
    again |= receive_one(d.beta, gates + t.head);
    again |= receive_one(d.decay, gates + VALUE_HEADS + t.head);
    again = __any_sync(~0u, again);
  }
}

// The sum over the lanes of a column, in all of them.
static __device__ __forceinline__ float sum_slices(float sum) {
#pragma unroll
  for (int i = 4; i < 32; i *= 2) sum += __shfl_xor_sync(~0u, sum, i);
  return sum;
}

static __device__ __forceinline__ float sum_run(const float (&v)[RUN]) {
  if constexpr (RUN == 4)
    return (v[0] + v[1]) + (v[2] + v[3]);
  else
    return v[0];
}

// One token: changes the state and returns the result of the column. With S the state before the token and d
// the change,
//   q . (decay * S + k d) = decay * (q . S) + (q . k) d
// and both products with the state have one reduction. q and k are divided by their lengths afterwards.
static __device__ __forceinline__ float apply_delta(const DeltaWords &d, float (&state)[RUNS][RUN]) {
  float seen[RUN] = {}, asked[RUN] = {}, qq[RUN] = {}, kk[RUN] = {}, qk[RUN] = {};
#pragma unroll
  for (int i = 0; i < RUNS * RUN; ++i) {
    const float q = d.q[i / RUN][i % RUN], k = d.k[i / RUN][i % RUN], x = state[i / RUN][i % RUN];
    seen[i % RUN] = fmaf(x, k, seen[i % RUN]);
    asked[i % RUN] = fmaf(x, q, asked[i % RUN]);
    qq[i % RUN] = fmaf(q, q, qq[i % RUN]);
    kk[i % RUN] = fmaf(k, k, kk[i % RUN]);
    qk[i % RUN] = fmaf(q, k, qk[i % RUN]);
  }
  const float q_factor = config.delta_scale / sqrtf(sum_slices(sum_run(qq)) + config.delta_eps),
              k_factor = 1 / sqrtf(sum_slices(sum_run(kk)) + config.delta_eps);
  const float change = d.beta * (d.value - d.decay * (sum_slices(sum_run(seen)) * k_factor)),
              result = fmaf(sum_slices(sum_run(qk)) * q_factor * k_factor, change,
                            d.decay * (sum_slices(sum_run(asked)) * q_factor));
#pragma unroll
  for (int i = 0; i < RUNS * RUN; ++i) {
    float &x = state[i / RUN][i % RUN];
    x = fmaf(d.k[i / RUN][i % RUN] * k_factor, change, d.decay * x);
  }
  return result;
}

template <typename M>
static __device__ __forceinline__ void run_delta_task(const M &m, Shared *s, int layer, DeltaTask t,
                                                      int position) {
  const int lane = threadIdx.x & 31, slice = lane / 4,
            column = t.part * DELTA_COLUMNS + (int)threadIdx.x / 32 * 4 + lane % 4;
  const bool active = column < VALUE_DIM;
  const float *from = state_before(m, position);
  const u32 place = delta_place(layer, t.head, slice * RUN) + column;
  const auto has = [&](int i) { return active && (i / RUN * SLICES + slice) * RUN < KEY_DIM; };
  const auto at = [&](int i) { return place + (u32)(i / RUN * SLICES * RUN + i % RUN) * VALUE_DIM; };
  float state[RUNS][RUN];
#pragma unroll
  for (int i = 0; i < RUNS * RUN; ++i) state[i / RUN][i % RUN] = from && has(i) ? from[at(i)] : 0.0f;
  const float gain = active ? vector_at<config.delta_norm>(m, layer, column) : 0.0f;
  DeltaWords d;
  receive_delta(m.scratch, t, slice, column, d);
  const float result = apply_delta(d, state);
  if (active && !slice) publish(&m.scratch->output[0][t.head * VALUE_DIM + column], result * gain * d.gate);
  float square = active ? result * result : 0.0f;
  square += __shfl_xor_sync(~0u, square, 1);
  square += __shfl_xor_sync(~0u, square, 2);
  if (lane == 0) s->delta_sum[threadIdx.x >> 5] = square;
#pragma unroll
  for (int i = 0; i < RUNS * RUN; ++i)
    if (has(i)) m.state[at(i)] = state[i / RUN][i % RUN];
  sync_consumers();
  if (threadIdx.x == 0) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) sum += s->delta_sum[i];
    publish(&m.scratch->squares[t.head][t.part], sum);
  }
}

// ----------------------------------------------------------------------------------------------------------
// Layers

struct DeltaRowWeights {  // for a row of q, k and v, or for one of beta and step
  Channel channel;
  DeltaHead head;
};

// From a layer's input |h| to its output, which is published.
template <typename M>
static __device__ __forceinline__ void recur(const M &m, Consumer &c, int l, int position,
                                             const QkvInput &h) {
  if constexpr (!DELTA) {
    convolve_gated(m, c, l, position, h);
  } else {
    Shared *s = c.s;
    prefetch_state(m, s, l, position);
    c.rows<InFormat, InFormat2>(
        h, s->in[0], [&](int row) { return uses_second_delta(l, row); },
        [&](int row) {
          DeltaRowWeights w = {};
          if (row < CHANNELS) w.channel = load_channel(m, l, position, row);
          if (row >= IN_WIDTH) w.head = load_delta_head(m, l, row - IN_WIDTH);
          return w;
        },
        [&](int row, float sum, const DeltaRowWeights &w) {
          sum *= layer_scale(s);
          if (!DELTA_APART && row >= IN_WIDTH)
            return publish(&m.scratch->gates[0][row - IN_WIDTH], delta_number(row - IN_WIDTH, sum, w.head));
          if (row < CHANNELS) sum = convolve(m, l, row, w.channel, sum);
          publish(&m.scratch->mixed[0][row], silu(sum));
        });
#pragma unroll 1
    for (int task = s->block; task < DELTA_TASKS; task += s->blocks) {
      if (task != s->block) sync_consumers();  // the last task's sums have been read
      run_delta_task(m, s, l, DeltaTask(task), position);
    }
  }
}

// The sums of squares of a head.
static __device__ __forceinline__ float4 load_squares(const Scratch *w, int head) {
  float4 v = load_relaxed4(w->squares[head]);
  if (DELTA_PARTS < 2) v.y = 0;
  if (DELTA_PARTS < 3) v.z = 0;
  if (DELTA_PARTS < 4) v.w = 0;
  return v;
}

// Receives the output of a recurrent layer.
template <int K>
static __device__ __forceinline__ void receive_output(const Scratch *w, float4 (&value)[Tiling<K>::runs]) {
  using C = Tiling<K>;
  if constexpr (!DELTA) {
    receive_all<K>(w->output[0], value);
    return;
  } else {
    float4 squares[C::runs];
    const auto head = [](int i) { return (C::column(i) + (int)(threadIdx.x & 31) * 4) / VALUE_DIM; };
    const auto has = [](int i) { return C::has(i, C::column(i) + (int)(threadIdx.x & 31) * 4); };
#pragma unroll
    for (int i = 0; i < C::runs; ++i) squares[i] = has(i) ? load_squares(w, head(i)) : float4{0, 0, 0, 0};
    receive_all<K>(w->output[0], value);
    for (bool again = true; again;) {
      again = false;
#pragma unroll
      for (int i = 0; i < C::runs; ++i)
        if (any_empty(squares[i])) squares[i] = load_squares(w, head(i));
#pragma unroll
      for (int i = 0; i < C::runs; ++i) again |= any_empty(squares[i]);
      again = __any_sync(~0u, again);
    }
#pragma unroll
    for (int i = 0; i < C::runs; ++i) {
      const float4 q = squares[i], v = value[i];
      const float scale = rsqrtf(((q.x + q.y) + (q.z + q.w)) / VALUE_DIM + NORM_EPS);
      value[i] = {v.x * scale, v.y * scale, v.z * scale, v.w * scale};
    }
  }
}

// Marks the words of a recurrent layer EMPTY, when x1 of the layer is complete: see reset_serial.
template <int = 0>
static __device__ __forceinline__ void reset_recurrent(const Model &m, const Shared *s) {
  Scratch *w = m.scratch;
  if constexpr (!DELTA) {
#pragma unroll 1
    for (int r = s->in[0].begin + (int)threadIdx.x; r < s->in[0].end; r += THREADS)
      mark_empty(&w->output[0][r]);
    return;
  } else {
#pragma unroll 1
    for (int r = s->in[0].begin + (int)threadIdx.x; r < s->in[0].end; r += THREADS)
      mark_empty(r < IN_WIDTH ? &w->mixed[0][r] : &w->gates[0][r - IN_WIDTH]);
    for (int i = s->block + (int)threadIdx.x * s->blocks; DELTA_APART && i < DELTA_ROWS;
         i += THREADS * s->blocks)
      mark_empty(&w->gates[0][i]);
#pragma unroll 1
    for (int task = s->block; task < DELTA_TASKS; task += s->blocks) {
      const DeltaTask t(task);
      const int column = t.part * DELTA_COLUMNS + (int)threadIdx.x;
      if (threadIdx.x < DELTA_COLUMNS && column < VALUE_DIM)
        mark_empty(&w->output[0][t.head * VALUE_DIM + column]);
      if (threadIdx.x == 0) mark_empty(&w->squares[t.head][t.part]);
    }
  }
}
