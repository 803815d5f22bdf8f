// CUDA for tests/kernels/emulated_kernels.py. The blocks of a cluster run together (fibers.hpp); a cluster ends before the next one starts.
#include <math.h>

#include "fibers.hpp"

struct alignas(8) uint2 {
  unsigned x, y;
};
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
static float2 make_float2(float x, float y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

static float cluster_number(const float *mine, unsigned rank) { return *(float *)(shared_of(block->first + rank) + ((char *)mine - shared())); }
static float4 cluster_numbers(unsigned address, unsigned rank) { return *(float4 *)(shared_of(block->first + rank) + address); }
static void sync_cluster() { wait_for(*block->cluster, block->threads * gridDim.z); }

static float half_to_float(unsigned bits) {  // f16
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  return ldexpf(exponent ? 1024 + fraction : fraction, (exponent ? exponent : 1) - 25) * (bits & 0x8000 ? -1 : 1);
}

static unsigned half_from(double value) {  // rounded to nearest even
  const double size = fabs(value);
  const unsigned sign = signbit(value) ? 0x8000 : 0;
  if (!(size < 65520)) return sign | (value != value ? 0x7e00 : 0x7c00);
  const int exponent = size < 0x1p-14 ? -14 : ilogb(size);
  return sign | (unsigned)((exponent + 14) * 1024 + nearbyint(ldexp(size, 10 - exponent)));
}
static unsigned half_pair(double low, double high) { return half_from(low) | half_from(high) << 16; }
static float element_of(bool in_f16, unsigned pair, int nth) {
  return in_f16 ? half_to_float(nth ? pair >> 16 : pair & 0xffff) : half_of(pair, nth);
}

// d += a . b for one fragment of 16 rows and 8 tokens. |value_of| gives b at (token, column). bf16, or f16.
template <bool IN_F16 = false, class B>
static void multiply_fragment(float (&d)[4], const unsigned (&a)[4], B value_of) {
  const int lane = threadIdx.x % 32;
  unsigned *words = warp_words();
  for (int i = 0; i < 4; ++i) words[lane * 6 + i] = a[i];
  sync_warp();
  for (int e = 0; e < 4; ++e) {
    for (int k = 0; k < 16; ++k) {
      const unsigned pair = words[(lane / 4 * 4 + k % 8 / 2) * 6 + e / 2 + k / 8 * 2];
      d[e] += element_of(IN_F16, pair, k % 2) * value_of(lane % 4 * 2 + e % 2, k);
    }
  }
}

// As mma, mma_f16 and load_matrices of kernels/cuda/ptx.cuh.
template <bool IN_F16 = false>
static void multiply_pairs(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  unsigned *words = warp_words();
  words[threadIdx.x % 32 * 6 + 4] = b0;
  words[threadIdx.x % 32 * 6 + 5] = b1;
  multiply_fragment<IN_F16>(d, a, [=](int token, int k) { return element_of(IN_F16, words[(token * 4 + k % 8 / 2) * 6 + 4 + k / 8], k % 2); });
}
static void read_matrices(unsigned (&v)[4], unsigned from) {
  const int lane = threadIdx.x % 32;
  unsigned *words = warp_words();
  words[lane] = from;
  sync_warp();
  for (int i = 0; i < 4; ++i) memcpy(&v[i], shared() + words[i * 8 + lane / 4] + lane % 4 * 4, 4);
}

// |split|: blocks of a cluster, which is the z axis of the grid.
static void launch(int grid_x, int grid_y, int split, int threads, size_t bytes, const std::function<void()> &kernel) {
  gridDim = {grid_x, grid_y, split};
  std::vector<Block> blocks(split);
  for (int i = 0; i < grid_x * grid_y; ++i) {
    Group cluster = {};
    for (int z = 0; z < split; ++z) {
      initialize(blocks[z], threads, bytes, {i % grid_x, i / grid_x, z});
      blocks[z].first = blocks.data(), blocks[z].cluster = &cluster;
    }
    run_blocks(blocks, kernel);
  }
}

#define __device__
#define __host__
#define __constant__
#define __global__
#define __shared__ static  // blocks run one after the other, except those of a cluster
#define __restrict__
#define __forceinline__ inline __attribute__((always_inline))  // two files may have functions of the same name
#define __launch_bounds__(...)
#define __cluster_dims__(...)

// A number whose bf16 parts are stored in the order of 16-bit weights: pair i of the 8 columns of a quad is at
// column 8 * i + 2 * quad of 32. |rows|: of a part.
static float part_number(const void *parts, int rows, int row, int column) {
  const int place = column / 32 % 2 * 32 + column % 8 / 2 * 8 + column % 32 / 8 * 2 + column % 2;
  float sum = 0;
  for (int i = 2; i >= 0; i--)
    sum += half_of(((const uint16_t *)parts)[((column / 64 * 3 + i) * rows + row) * 64 + (place / 8 ^ row % 8) * 8 + place % 8], 0);
  return sum;
}
