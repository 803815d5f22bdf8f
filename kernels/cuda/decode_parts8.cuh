// Decode: activations as integers of four signed bytes, for quantized weights, whose codes are bytes too.
//
// The activations of a piece (32 columns) are multiples of its unit, a power of two. The largest has up to 30
// bits, so all 24 bits of every activation down to 1/64 of the largest are kept. Digit |part| of an integer
// has the weight 256^part.
//
// A staged piece is 16 groups of two words, for each part and quad, then its unit and 2^16 times its unit.
// Word |half| of a group has the bytes of columns 2 * quad + 16 * half + {0, 8, 1, 9}, the order of
// TileFormat::four_bytes.
#pragma once

#include "decode_state.cuh"

static __device__ __forceinline__ const u8 *staged_piece(const Shared *s, int run, int piece) {
  return s->work.runs[threadIdx.x >> 5] + run * RUN8_BYTES + piece * PIECE8_BYTES;
}

// This lane's B fragment of pieces 2 * pair and 2 * pair + 1 of a staged run.
static __device__ __forceinline__ uint2 staged_fragment8(const Shared *s, int run, int pair) {
  const int lane = threadIdx.x & 31, quad = lane & 3, part = lane >> 2 & 3;
  return *(const uint2 *)(staged_piece(s, run, 2 * pair + (lane >> 4)) + (part * 4 + quad) * 8);
}

// The unit of this lane's sums: quads 0 and 1 have those of the first piece, even quads those of parts 0
// and 1.
static __device__ __forceinline__ float staged_unit(const Shared *s, int run, int pair) {
  const int quad = threadIdx.x & 3;
  return *(const float *)(staged_piece(s, run, 2 * pair + (quad >> 1)) + 128 + (quad & 1) * 4);
}

template <int K, typename S>
static __device__ __forceinline__ uint2 fragment_of(const S *s, const Activations8<K> &x, int run, int pair) {
  return Tiling<K>::in_registers ? x.fragment[Tiling<K>::in_registers ? run : 0][pair]
                                 : staged_fragment8(s, run, pair);
}

template <int K, typename S>
static __device__ __forceinline__ float unit_of(const S *s, const Activations8<K> &x, int run, int pair) {
  return Tiling<K>::in_registers ? x.unit[Tiling<K>::in_registers ? run : 0][pair]
                                 : staged_unit(s, run, pair);
}

// The digits of x / unit, as bytes.
static __device__ __forceinline__ u32 digits(float x, float inverse) {
  return ((u32)__float2int_rn(x * inverse) + 0x00808080u) ^ 0x00808080u;
}

// Replaces a run of f32 activations in shared memory, of which lane i has 4i to 4i + 3, by a staged run.
static __device__ __forceinline__ void stage_run(u8 *run) {
  const int lane = threadIdx.x & 31;
  const bool upper = lane & 2;  // columns 8 to 15 of a half
  const float4 x = *(const float4 *)(run + lane * 16);
  float largest = largest_of(largest_of(x.x, x.y), largest_of(x.z, x.w));
  [[maybe_unused]] float sum = (x.x + x.y) + (x.z + x.w);
#pragma unroll
  for (int lanes = 1; lanes < 8; lanes <<= 1) {
    largest = largest_of(largest, __shfl_xor_sync(~0u, largest, lanes));
    if constexpr (config.offsets) sum += __shfl_xor_sync(~0u, sum, lanes);
  }
  const u32 exponent = max(__float_as_uint(largest) >> 23, 30u);  // biased; that of the unit is 29 less
  const float inverse = __uint_as_float((127 + 127 + 29 - exponent) << 23);
  const u32 a = digits(x.x, inverse), b = digits(x.y, inverse), c = digits(x.z, inverse),
            d = digits(x.w, inverse);
  // Of two lanes with the same quads, the first gets the digits of the first quad, the other of the second.
  const u32 even = __shfl_xor_sync(~0u, upper ? a : c, 2), odd = __shfl_xor_sync(~0u, upper ? b : d, 2);
  const u32 e0 = upper ? even : a, e1 = upper ? c : even, o0 = upper ? odd : b, o1 = upper ? d : odd;
  const u32 el = __byte_perm(e0, e1, 0x5140), eh = __byte_perm(e0, e1, 0x7362),
            ol = __byte_perm(o0, o1, 0x5140), oh = __byte_perm(o0, o1, 0x7362);
  u8 *to = run + (lane >> 3) * PIECE8_BYTES;
  u32 *words = (u32 *)to + ((lane & 1) * 2 + upper) * 2 + (lane >> 2 & 1);
  // The shuffles made every lane of the warp wait for all loads of the run.
  words[0] = __byte_perm(el, ol, 0x5410);
  words[8] = __byte_perm(el, ol, 0x7632);
  words[16] = __byte_perm(eh, oh, 0x5410);
  words[24] = __byte_perm(eh, oh, 0x7632);
  // A piece with NaN or infinity has the unit NaN, so that no sum with it is finite.
  const float unit = exponent < 255 ? __uint_as_float((exponent - 29) << 23) : __uint_as_float(0x7fc00000u);
  if (lane & 7) return;
  *(float2 *)(to + 128) = {unit, unit * 65536.0f};
  if constexpr (config.offsets) *(float *)(to + 136) = sum;
}

// Not inlined: one copy of the code for all roles. |count| is even.
static __device__ __noinline__ void stage_runs(u8 *runs, int count) {
  __syncwarp();
#pragma unroll 1
  for (int i = 0; i < count; i += 2) {
    stage_run(runs + i * RUN8_BYTES);
    stage_run(runs + (i + 1) * RUN8_BYTES);
  }
  __syncwarp();
}

// Converts the values of this warp's columns to activation fragments.
template <int K>
static __device__ __forceinline__ void stage_all(Shared *s, Activations8<K> &x,
                                                 float4 (&value)[Tiling<K>::runs]) {
  using C = Tiling<K>;
  constexpr int most = Activations8<K>::staged;
  const int lane = threadIdx.x & 31;
  u8 *runs = s->work.runs[threadIdx.x >> 5];
#pragma unroll
  for (int begin = 0; begin < C::runs; begin += most) {
    const int count = min_of(most, C::runs - begin);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < count; ++i) *(float4 *)(runs + i * RUN8_BYTES + lane * 16) = value[begin + i];
    stage_runs(runs, count + count % 2);
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (config.offsets) x.sum[begin + i] = *(const float *)(staged_piece(s, i, lane & 3) + 136);
      if (!C::in_registers) continue;
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        x.fragment[begin + i][pair] = staged_fragment8(s, i, pair);
        x.unit[begin + i][pair] = staged_unit(s, i, pair);
      }
    }
  }
}
