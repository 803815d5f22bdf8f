// Ops with a recurrent state (graph/ops.h): a segment reads the state of its sequence in the KV pool and
// writes the new one (step.h). One kernel per NVRTC compilation. The result of a token does not depend on how
// its sequence is divided into steps, to the last bit.
//
// Macros: NAME, and CONVOLVE, DELTA or SCAN. recurrent_config.cuh has the other constants.
//
// CONVOLVE  (x f32 [N, CHANNELS], weight f32 [CHANNELS, taps], bias f32 [CHANNELS], batch, kv in/out,
//           y f32 [N, CHANNELS], N, CHANNELS, PLACE)
//           state [taps - 1][CHANNELS]: the last rows of x, the oldest first
//           grid (ceil(CHANNELS / (256 / groups)), LANES, 1), block (256, 1, 1)
// DELTA     (qkv f32 [N, 2 * KEY_HEADS * key_dim + VALUE_HEADS * VALUE_DIM], step f32 [N, VALUE_HEADS],
//           beta f32 [N, VALUE_HEADS], rate f32 [VALUE_HEADS], bias f32 [VALUE_HEADS], batch, kv in/out,
//           y f32 [N, VALUE_HEADS * VALUE_DIM], N, KEY_HEADS, VALUE_HEADS, VALUE_DIM, PLACE)
//           state [VALUE_HEADS][key_dim][VALUE_DIM]
//           grid (VALUE_HEADS * ceil(VALUE_DIM / 32), LANES, 1), block (256, 1, 1)
//           dynamic shared memory: SHARED_BYTES below (compiler/lower_cuda_recurrent.c)
// SCAN      (xbc f32 [N, HEADS * HEAD_DIM + 2 * GROUPS * key_dim], step f32 [N, HEADS], rate f32 [HEADS],
//           bias f32 [HEADS], skip f32 [HEADS], batch, kv in/out, y f32 [N, HEADS * HEAD_DIM], N, GROUPS,
//           HEADS, HEAD_DIM, PLACE); key_dim is the size of the state of a column
//           With |state_rates|, HEADS and GROUPS are 1, a column has its own step, bias and skip, and each
//           row of its state its own rate: step f32 [N, HEAD_DIM], rate f32 [HEAD_DIM, key_dim], bias and
//           skip f32 [HEAD_DIM]; state [HEAD_DIM][key_dim]
//           state [HEADS][key_dim][HEAD_DIM]
//           grid (HEADS * ceil(HEAD_DIM / 32), LANES, 1), block (256, 1, 1)
//           dynamic shared memory: as DELTA
//
// LANES is any number: block y computes the segments y, y + LANES, ... Rows of padding become 0.
// PLACE: words of a window page, of a page and of a state, and where the state of this op starts in a state.

#include "config.cuh"
#include "overlap.cuh"
#include "step.h"

struct Place {
  int window_page_words, page_words, state_words, at;
};

// The rows of a segment, and the part of the state of its sequence that the op keeps.
struct Segment {
  int first, tokens;  // tokens 0: there is no such segment
  const float *from;  // null: the state is zero
  float *to;          // may be |from|
};

// A wrong number is that of state 0, which belongs to no sequence.
__device__ __forceinline__ float *state_at(const int *batch, float *kv, int number, const Place &place) {
  const u64 pages = (u64)batch[MLX_STEP_WINDOW_POOL_PAGES] * place.window_page_words +
                    (u64)batch[MLX_STEP_POOL_PAGES] * place.page_words;
  const u64 valid = (u32)number < (u32)batch[MLX_STEP_STATES] ? number : 0;
  return kv + pages + valid * place.state_words + place.at;
}

// A wrong batch may give wrong numbers, but never an access outside the arguments.
__device__ __forceinline__ Segment read_segment(const int *batch, float *kv, int n, int nth,
                                                const Place &place) {
  const int *words = batch + MLX_STEP_SEGMENTS_AT(n) + 4 * nth;
  const int slot = words[0], first = words[1], tokens = words[2], position = words[3];
  if ((u32)slot >= (u32)batch[MLX_STEP_SLOT_COUNT] || (u32)first >= (u32)n || tokens <= 0 ||
      tokens > n - first || position < 0 || batch[MLX_STEP_STATES] <= 0)
    return {0, 0, nullptr, nullptr};
  const int *states = batch + batch[MLX_STEP_AT_STATES] + 2 * slot;
  return {first, tokens, position ? state_at(batch, kv, states[0], place) : nullptr,
          state_at(batch, kv, states[1], place)};
}

__device__ __forceinline__ int segment_count(const int *batch, int n) {
  return min(batch[MLX_STEP_SEGMENT_COUNT], n);
}

#if defined(CONVOLVE)

constexpr int TAPS = config.taps, GROUPS = config.groups, CHANNELS = THREADS / GROUPS;
static_assert(TAPS >= 2 && TAPS <= MLX_CUDA_MAX_TAPS && THREADS % GROUPS == 0);

// The input of one channel at row |row| of a segment; negative rows are in the state.
__device__ __forceinline__ float input(const float *x, const Segment &s, int row, int channels, int channel) {
  if (row >= 0) return x[(u64)(s.first + row) * channels + channel];
  return s.from ? s.from[(u64)(TAPS - 1 + row) * channels + channel] : 0;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    NAME(const float *__restrict__ x, const float *__restrict__ weight, const float *__restrict__ bias,
         const int *__restrict__ batch, float *kv, float *__restrict__ y, int n, int channels,
         int window_page_words, int page_words, int state_words, int at) {
  start_next_kernel();
  wait_for_previous_kernel();
  x = after_wait(x);
  batch = after_wait(batch);
  kv = after_wait(kv);
  const Place place = {window_page_words, page_words, state_words, at};
  const int channel = blockIdx.x * CHANNELS + threadIdx.x % CHANNELS, group = threadIdx.x / CHANNELS;
  const bool active = channel < channels;
  float filter[TAPS], start = 0;
#pragma unroll
  for (int i = 0; i < TAPS; i++) filter[i] = active ? weight[(u64)channel * TAPS + i] : 0;
  if (config.biased && active) start = bias[channel];
  for (int nth = blockIdx.y; nth < segment_count(batch, n); nth += gridDim.y) {
    const Segment s = read_segment(batch, kv, n, nth, place);
    const int each = (s.tokens + GROUPS - 1) / GROUPS, begin = group * each,
              end = active ? min(begin + each, s.tokens) : 0;
    float rows[TAPS];  // the last ones, the oldest first
#pragma unroll
    for (int i = 0; i + 1 < TAPS; i++)
      rows[i] = begin < end ? input(x, s, begin - (TAPS - 1) + i, channels, channel) : 0;
    __syncthreads();  // all groups have read the state
#pragma unroll 8
    for (int row = begin; row < end; row++) {
      rows[TAPS - 1] = x[(u64)(s.first + row) * channels + channel];
      float sum = start;
#pragma unroll
      for (int i = 0; i < TAPS; i++) sum = fmaf(filter[i], rows[i], sum);
#pragma unroll
      for (int i = 0; i + 1 < TAPS; i++) rows[i] = rows[i + 1];
      y[(u64)(s.first + row) * channels + channel] = config.silu ? sum / __fadd_rn(1.0f, expf(-sum)) : sum;
    }
    // A short segment moves rows of the old state, each to a place that was read before.
    for (int i = 0; i + 1 < TAPS && group == 0 && active && s.tokens; i++)
      s.to[(u64)i * channels + channel] = input(x, s, s.tokens - (TAPS - 1) + i, channels, channel);
  }
  const int tokens = min(max(batch[MLX_STEP_TOKEN_COUNT], 0), n);
  for (int row = tokens + blockIdx.y; row < n && group == 0 && active; row += gridDim.y)
    y[(u64)row * channels + channel] = 0;
}

#elif defined(DELTA) || defined(SCAN)

#if defined(DELTA)
#include "recurrent_delta.cuh"
#else
#include "recurrent_scan.cuh"
#endif

// Starts to copy |count| tokens from row |row| on.
__device__ __forceinline__ void copy_chunk(const Inputs &in, int row, int count, float *to) {
  for (int i = threadIdx.x; i < count * TOKEN; i += THREADS) {
    const float *from = find_input(in, row + i / TOKEN, i % TOKEN);
    copy_async<4>(shared_address(to + i), from ? from : in.step, from ? 4 : 0);
  }
}

// The tokens of a segment. |own|: the column of this thread in the block; |y|: its column in the result,
// whose rows have |width| numbers. All threads of a block.
__device__ __forceinline__ void run_segment(const Inputs &in, const Segment &s, const Columns &columns,
                                            int own, const Head &head, float *chunks, float *y, u64 width) {
  const int warp = threadIdx.x / 32, offset = columns.slice * RUN;
  float state[RUNS][RUN];
  copy_chunk(in, s.first, min(CHUNK, s.tokens), chunks);
  commit_copies();
  columns.load(state, s.from);
  for (int done = 0; done < s.tokens; done += CHUNK) {
    const int count = min(CHUNK, s.tokens - done), odd = done / CHUNK % 2;
    float *chunk = chunks + odd * CHUNK * TOKEN, *other = chunks + (1 - odd) * CHUNK * TOKEN;
    copy_chunk(in, s.first + done + count, min(CHUNK, s.tokens - done - count), other);
    commit_copies();
    wait_copies<1>();
    __syncthreads();
    for (int t = warp; t < count; t += WARPS) prepare(chunk + t * TOKEN, head);
    __syncthreads();
    for (int t = 0; t < count; t++) {
      const float *token = chunk + t * TOKEN;
      const float result =
          step(token + offset, token + PADDED + offset, token + NUMBERS_AT, token[V_AT + own], head, state);
      if (columns.active && !columns.slice) y[(s.first + done + t) * width] = result;
    }
    __syncthreads();  // before the chunk is overwritten
  }
  columns.store(state, s.to);
}

// All segments of a block: columns from |in.column| on of head |nth_head|, of |heads| of |dim| columns.
__device__ __forceinline__ void run_head(const Inputs &in, const Place &place, const Head &head, int nth_head,
                                         int dim, int heads, const int *batch, float *kv, int n,
                                         float *chunks, float *y) {
  const int slice = threadIdx.x % 32 / 4, own = own_column(), column = in.column + own;
  const u64 first = ((u64)nth_head * KEYS + slice * RUN) * dim + column;
  const Columns columns = {config.state_rates ? (u64)column * KEYS + slice * RUN : first,
                           config.state_rates ? 1 : dim, slice, column < dim};
  const u64 width = (u64)heads * dim;
  y += nth_head * dim + column;
  for (int nth = blockIdx.y; nth < segment_count(batch, n); nth += gridDim.y) {
    const Segment s = read_segment(batch, kv, n, nth, place);
    if (s.tokens)  // in all threads or in none
      run_segment(in, s, columns, own, head, chunks, y, width);
  }
  const int tokens = min(max(batch[MLX_STEP_TOKEN_COUNT], 0), n);
  for (int row = tokens + blockIdx.y; row < n && columns.active && !slice; row += gridDim.y)
    y[row * width] = 0;
}

#if defined(DELTA)

extern "C" __global__ void __launch_bounds__(THREADS)
    NAME(const float *__restrict__ qkv, const float *__restrict__ steps, const float *__restrict__ betas,
         const float *__restrict__ rates, const float *__restrict__ biases, const int *__restrict__ batch,
         float *kv, float *__restrict__ y, int n, int key_heads, int value_heads, int value_dim,
         int window_page_words, int page_words, int state_words, int at) {
  extern __shared__ __align__(16) unsigned char memory[];
  start_next_kernel();
  wait_for_previous_kernel();
  qkv = after_wait(qkv);
  steps = after_wait(steps);
  betas = after_wait(betas);
  batch = after_wait(batch);
  kv = after_wait(kv);
  const Place place = {window_page_words, page_words, state_words, at};
  const int blocks = (value_dim + COLUMNS - 1) / COLUMNS, head = blockIdx.x / blocks,
            key_head = config.tiled ? head % key_heads : head / (value_heads / key_heads);
  const Inputs in = {qkv,       steps,       betas,
                     key_heads, value_heads, value_dim,
                     key_head,  head,        (int)(blockIdx.x % blocks) * COLUMNS};
  const Head numbers = {config.log_rate ? -expf(rates[head]) : rates[head], biases[head], 0};
  run_head(in, place, numbers, head, value_dim, value_heads, batch, kv, n, (float *)memory, y);
}

#else

extern "C" __global__ void __launch_bounds__(THREADS)
    NAME(const float *__restrict__ xbc, const float *__restrict__ steps, const float *__restrict__ rates,
         const float *__restrict__ biases, const float *__restrict__ skips, const int *__restrict__ batch,
         float *kv, float *__restrict__ y, int n, int groups, int heads, int head_dim, int window_page_words,
         int page_words, int state_words, int at) {
  extern __shared__ __align__(16) unsigned char memory[];
  start_next_kernel();
  wait_for_previous_kernel();
  xbc = after_wait(xbc);
  steps = after_wait(steps);
  batch = after_wait(batch);
  kv = after_wait(kv);
  const Place place = {window_page_words, page_words, state_words, at};
  const int blocks = (head_dim + COLUMNS - 1) / COLUMNS, head = blockIdx.x / blocks;
  const Inputs in = {xbc,      steps,
                     groups,   heads,
                     head_dim, head / (heads / groups),
                     head,     (int)(blockIdx.x % blocks) * COLUMNS};
  const int column = in.column + own_column(),
            nth = config.state_rates ? min(column, head_dim - 1) : head;  // of the vectors
  Head numbers = {config.log_rate ? -expf(rates[nth]) : rates[nth], biases[nth], skips[nth]};
  if constexpr (config.state_rates) {
#pragma unroll
    for (int j = 0; j < RUNS; j++)
#pragma unroll
      for (int i = 0; i < RUN; i++) {
        const int state_row = (j * SLICES + threadIdx.x % 32 / 4) * RUN + i;
        const float rate = state_row < KEYS ? rates[(u64)nth * KEYS + state_row] : 0;
        numbers.rates[j][i] = config.log_rate ? -expf(rate) : rate;
      }
  }
  run_head(in, place, numbers, head, head_dim, heads, batch, kv, n, (float *)memory, y);
}

#endif

#endif
