// The start and the end of a step on the kernel path.
//
// Macros: NAME, and PLACE for place. place_config.cuh has the other constants.
//
// place    (batch, history in/out, placed, N of the function, SHORT_TILES, LONG_TILES, LONG_FROM, VOCAB)
//          Finds the ID of each token, stores it in |history|, and divides the segments into tiles for the
//          attention kernels (Tile of attention_tiles.cuh). Tiles of a segment that see more keys come
//          first. placed: i32 [N rounded up to 4] token IDs, then [SHORT_TILES][8], then [LONG_TILES][8]
//          SHORT_TILES and LONG_TILES are the tiles of a grid. A segment is long from LONG_FROM tokens on;
//          LONG_TILES 0: every segment is short.
//          Short tiles without work name a padding token, whose result the attention kernel sets to zero.
//          grid (1, 1, 1), block (512, 1, 1)
// pick     (x f32 [N, WIDTH], batch, hidden f32 [at least W, WIDTH] in/out, picked f32 [W, WIDTH], WIDTH)
//          Copies the rows of the wanted tokens to both.
//          grid (W, 1, 1), block (256, 1, 1)

#include "config.cuh"
#include "overlap.cuh"
#include "step.h"

#ifdef PLACE
constexpr int THREADS = 512, WARPS = THREADS / 32;
constexpr int TILE_WORDS = MLX_TILE_WORDS, SHORT_AT = MLX_PLACED_TILES_AT;

struct Segment {
  int slot, first, tokens, position;
};

__device__ __forceinline__ Segment read_segment(const int *batch, int n, int nth) {
  Segment s = {0, 0, 0, 0};
  const int count = batch[MLX_STEP_SEGMENT_COUNT];
  if (nth >= count || nth >= n) return s;
  const int *words = batch + MLX_STEP_SEGMENTS_AT(n) + 4 * nth;
  s = {words[0], words[1], words[2], words[3]};
  // A wrong batch may give wrong numbers, but never an access outside the arguments.
  const bool valid = (u32)s.slot < (u32)batch[MLX_STEP_SLOT_COUNT] && (u32)s.first < (u32)n && s.tokens > 0 &&
                     s.tokens <= n - s.first && s.position >= 0;
  if (!valid) s.tokens = 0;
  return s;
}

__device__ __forceinline__ void write_tile(int *tiles, int nth, int capacity, int slot, int first, int tokens,
                                           int position, int query) {
  if (nth >= capacity) return;
  int4 *words = (int4 *)(tiles + nth * TILE_WORDS);
  words[0] = make_int4(slot, first, tokens, position);
  words[1] = make_int4(query, 0, 0, 0);
}

__device__ __forceinline__ void write_tiles(int *tiles, int at, int count, int capacity, const Segment &s,
                                            int queries) {
  for (int i = 0; i < count; i++) {  // the last tiles first, then ascending: long and short ones side by side
    const int tile = i < count / 2 ? count - 1 - i : i - count / 2;
    write_tile(tiles, at + i, capacity, s.slot, s.first, s.tokens, s.position, tile * queries);
  }
}

// Sum of |value| over the threads before this one; *|total|: over all threads.
__device__ __forceinline__ int scan(int value, int *sums, int *total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  int before = 0;
  *total = 0;
  for (int i = 0; i < WARPS; i++) {
    if (i < warp) before += sums[i];
    *total += sums[i];
  }
  __syncthreads();  // before the next call writes |sums|
  return before + sum - value;
}

__device__ __forceinline__ void resolve_tokens(const int *batch, int n, int *history, int vocab, int *ids) {
  const int count = batch[MLX_STEP_TOKEN_COUNT], slots = batch[MLX_STEP_SLOT_COUNT],
            width = batch[MLX_STEP_HISTORY_WIDTH];
  for (int t = threadIdx.x; t < n; t += THREADS) {
    int id = 0;
    if (t < count) {
      const int slot = batch[MLX_STEP_SLOTS_AT(n) + t], position = batch[MLX_STEP_POSITIONS_AT(n) + t];
      id = batch[MLX_STEP_TOKENS_AT + t];
      if ((u32)slot < (u32)slots && (u32)position < (u32)width) {
        int *at = history + (long long)slot * width + position;
        if (id == MLX_TOKEN_SAMPLED) id = *at;
        *at = id;
      }
    }
    ids[t] = id < 0 ? 0 : id < vocab ? id : vocab - 1;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    NAME(const int *__restrict__ batch, int *__restrict__ history, int *__restrict__ placed, int n,
         int short_count, int long_count, int long_from, int vocab) {
  start_next_kernel();
  wait_for_previous_kernel();
  batch = after_wait(batch);
  history = after_wait(history);
  __shared__ int sums[WARPS];
  const int long_at = SHORT_AT + short_count * TILE_WORDS, ids_at = long_at + long_count * TILE_WORDS;
  int *short_tiles = placed + SHORT_AT, *long_tiles = placed + long_at;
  int shorts = 0, longs = 0;  // tiles written so far
  if (threadIdx.x == 0) *(int4 *)placed = make_int4(SHORT_AT, long_at, 0, 0);
  resolve_tokens(batch, n, history, vocab, placed + ids_at);
  for (int start = 0; start < n; start += THREADS) {
    const Segment s = read_segment(batch, n, start + threadIdx.x);
    const bool is_long = long_count > 0 && s.tokens >= long_from;
    const int queries = is_long ? s.tokens * config.long_share : s.tokens * config.short_share;
    const int mine = is_long ? (queries + config.long_queries - 1) / config.long_queries
                             : (queries + config.short_queries - 1) / config.short_queries;
    int total;
    int at = scan(is_long ? 0 : mine, sums, &total);
    if (!is_long) write_tiles(short_tiles, shorts + at, mine, short_count, s, config.short_queries);
    shorts += total;
    at = scan(is_long ? mine : 0, sums, &total);
    if (is_long) write_tiles(long_tiles, longs + at, mine, long_count, s, config.long_queries);
    longs += total;
  }
  const int count = batch[MLX_STEP_TOKEN_COUNT] > 0 ? batch[MLX_STEP_TOKEN_COUNT] : 0;
  for (int i = shorts + threadIdx.x; i < short_count; i += THREADS) {
    const int padding = count + i - shorts;
    write_tile(short_tiles, i, short_count, -1, padding < n ? padding : -1, 0, 0, 0);
  }
  for (int i = longs + threadIdx.x; i < long_count; i += THREADS)
    write_tile(long_tiles, i, long_count, -1, -1, 0, 0, 0);
}
#else
extern "C" __global__ void __launch_bounds__(256)
    NAME(const float *__restrict__ x, const int *__restrict__ batch, float *__restrict__ hidden,
         float *__restrict__ picked, int width) {
  start_next_kernel();
  wait_for_previous_kernel();
  x = after_wait(x);
  batch = after_wait(batch);
  const int row = blockIdx.x, wanted = batch[batch[MLX_STEP_AT_WANTED] + row];
  const int tokens = batch[MLX_STEP_AT_POSITIONS] - batch[MLX_STEP_AT_SLOTS];  // N
  const int token = (u32)wanted < (u32)tokens ? wanted : 0;
  for (int i = threadIdx.x; i < width; i += 256) {
    const float value = x[(long long)token * width + i];
    hidden[(long long)row * width + i] = value;
    picked[(long long)row * width + i] = value;
  }
}
#endif
