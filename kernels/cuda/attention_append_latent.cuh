// append of latent attention: completes queries, and stores the keys of new tokens, which are their values
// too, in the KV pool (attention_pages.cuh).
//
// A key is a row of HEAD_DIM numbers: the first VALUE_DIM are normalized, the others are rotated. A query has
// VALUE_DIM numbers that were multiplied by a matrix of its head (absorbed) and as many rotated ones as a
// key.
//
// Macros:  NAME. attention_config.cuh has the other constants.
// Operands absorbed f32 [N, heads, VALUE_DIM]; q f32 [N, heads, query_dim], of which the numbers from |start|
//          on rotate; row f32 [N, HEAD_DIM]; gain f32 [VALUE_DIM] of the norm; cosine and sine f32
//          [N, ROTARY/2]; batch (kernels/step.h); pool in/out; queries f32 [N, heads, HEAD_DIM]; int layer,
//          page, before (Layer), heads, query_dim, start
// Launch   grid (heads + 1, N, 1), block (128, 1, 1), no dynamic shared memory. Rows of padding tokens are
//          not written.
#pragma once

#include "attention_pages.cuh"
#include "overlap.cuh"

constexpr int VALUE_DIM = config.value_dim, ROTARY = HEAD_DIM - VALUE_DIM, PAIRS = ROTARY / 2,
              BLOCK_THREADS = 128;
constexpr int OWN = (HEAD_DIM / 4 + BLOCK_THREADS - 1) / BLOCK_THREADS;  // groups of four numbers of a thread
static_assert(HEAD_DIM % 4 == 0 && VALUE_DIM % 4 == 0 && HEAD_DIM <= 4 * BLOCK_THREADS * OWN, "shape");

// RoPE of numbers |at| to |at| + 3 of ROTARY numbers.
__device__ __forceinline__ float4 rotate_part(const float *from, int at, const float *cosine,
                                              const float *sine) {
  float to[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int nth = at + i;
    const bool first = config.adjacent ? i % 2 == 0 : nth < PAIRS;
    const int pair = config.adjacent ? nth / 2 : first ? nth : nth - PAIRS;
    const float other = from[config.adjacent ? nth ^ 1 : first ? nth + PAIRS : pair];
    to[i] = rotate(from[nth], cosine[pair], first ? -other : other, sine[pair]);
  }
  return make_float4(to[0], to[1], to[2], to[3]);
}

__device__ __forceinline__ float4 scale4(float4 v, float factor) {
  return make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
}

// The factor of the queries of a position: 1 + beta * log(1 + number of whole periods).
__device__ __forceinline__ float growth_at(int position) {
  return __fadd_rn(1, __fmul_rn(config.grow_beta, log1pf((float)(position / config.grow_period))));
}

// Combines a number of each thread of the block in a fixed order. Called once with each |shared|.
template <typename Combine>
__device__ __forceinline__ float combine_block(float value, float *shared, Combine combine) {
#pragma unroll
  for (int i = 16; i; i /= 2) value = combine(value, __shfl_xor_sync(~0u, value, i));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared[0];
#pragma unroll
  for (int i = 1; i < BLOCK_THREADS / 32; i++) value = combine(value, shared[i]);
  return value;
}

__device__ __forceinline__ u32 code_of(float v, float inverse) {
  return (u32)(__float2int_rn(v * inverse) & 255);
}

// Stores the key whose numbers from 4 * thread + 512 * i on are |key[i]|, at row |nth| of the page's keys,
// which start at byte |block|.
template <typename T>  // pool_t
__device__ __forceinline__ void store_key(T *pool, u64 block, int nth, const float4 (&key)[OWN]) {
  __shared__ float largest[BLOCK_THREADS / 32];
  const u64 first = block / sizeof(pool_t) + nth * HEAD_DIM;
  float top = 0, inverse = 0;
  if constexpr (KV_Q8) {
#pragma unroll
    for (int i = 0; i < OWN; i++)
      top =
          fmaxf(top, fmaxf(fmaxf(fabsf(key[i].x), fabsf(key[i].y)), fmaxf(fabsf(key[i].z), fabsf(key[i].w))));
    top = combine_block(top, largest, [](float a, float b) { return fmaxf(a, b); });
    inverse = top > 0 ? 127 / top : 0;
    if (threadIdx.x == 0) *(float *)(pool + block + PAGE * HEAD_DIM + nth * 4) = top / 127;
  }
#pragma unroll
  for (int i = 0; i < OWN; i++) {
    const int at = (threadIdx.x + i * BLOCK_THREADS) * 4;
    if (at >= HEAD_DIM) break;
    if constexpr (KV_Q8)
      *(u32 *)(pool + first + at) = code_of(key[i].x, inverse) | code_of(key[i].y, inverse) << 8 |
                                    code_of(key[i].z, inverse) << 16 | code_of(key[i].w, inverse) << 24;
    else
      store4(pool + first + at, key[i]);
  }
}

// A block writes one query, or the key.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    NAME(const float *__restrict__ absorbed, const float *__restrict__ q, const float *__restrict__ row,
         const float *__restrict__ gain, const float *__restrict__ cosine, const float *__restrict__ sine,
         const int *__restrict__ batch, pool_t *__restrict__ pool, float *__restrict__ queries, int layer,
         int page, int before, int heads, int query_dim, int start) {
  start_next_kernel();
  wait_for_previous_kernel();
  absorbed = after_wait(absorbed);
  q = after_wait(q);
  row = after_wait(row);
  batch = after_wait(batch);
  const int token = blockIdx.y, head = blockIdx.x;
  const int slots = batch[MLX_STEP_AT_SLOTS], positions = batch[MLX_STEP_AT_POSITIONS];
  if (token >= batch[MLX_STEP_TOKEN_COUNT] || token >= positions - slots) return;  // n, and N
  const int position = batch[positions + token];
  const bool is_query = head < heads;
  const u64 nth = (u64)token * heads + head;
  const float *plain = is_query ? absorbed + nth * VALUE_DIM : row + (u64)token * HEAD_DIM,
              *rotary = is_query ? q + nth * query_dim + start : plain + VALUE_DIM,
              *c = after_wait(cosine) + (u64)token * PAIRS, *s = after_wait(sine) + (u64)token * PAIRS;
  __shared__ float squares[BLOCK_THREADS / 32];
  float4 v[OWN];
  float square = 0;
#pragma unroll
  for (int i = 0; i < OWN; i++) {
    const int at = (threadIdx.x + i * BLOCK_THREADS) * 4;
    v[i] = make_float4(0, 0, 0, 0);
    if (at >= HEAD_DIM) break;
    v[i] = at < VALUE_DIM ? *(const float4 *)(plain + at) : rotate_part(rotary, at - VALUE_DIM, c, s);
    if (at < VALUE_DIM) square += (v[i].x * v[i].x + v[i].y * v[i].y) + (v[i].z * v[i].z + v[i].w * v[i].w);
  }
  if (is_query) {
    const float factor = config.grow_period ? growth_at(position) : 1;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
      const int at = (threadIdx.x + i * BLOCK_THREADS) * 4;
      if (at >= HEAD_DIM) break;
      *(float4 *)(queries + nth * HEAD_DIM + at) = config.grow_period ? scale4(v[i], factor) : v[i];
    }
    return;
  }
  square = combine_block(square, squares, [](float a, float b) { return a + b; });
  const float factor = 1 / sqrtf(square / VALUE_DIM + config.head_norm_eps);
#pragma unroll
  for (int i = 0; i < OWN; i++) {
    const int at = (threadIdx.x + i * BLOCK_THREADS) * 4;
    if (at >= VALUE_DIM) break;
    const float4 g = *(const float4 *)(gain + at);
    v[i] = make_float4(v[i].x * factor * g.x, v[i].y * factor * g.y, v[i].z * factor * g.z,
                       v[i].w * factor * g.w);
  }
  u64 block;
  const Pages pages(batch, batch[slots + token], {layer, page, before});
  if (!pages.find_block(block, position, 0)) return;  // all threads
  store_key(pool, block, position % PAGE, v);
}
