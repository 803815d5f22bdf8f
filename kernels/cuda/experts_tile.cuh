// Mixture of experts: what the tensor-core kernel (packed_linear.cuh) does differently for the matrix of an
// expert. A block multiplies one tile of rows of one expert; |groups| has the tiles.

#ifdef ROWS16
#define MATRIX_BYTES ((u64)N * K * 2)
#else
#define MATRIX_BYTES ((u64)TILES * RUNS * TILE_BYTES)
#endif
static_assert(SPLIT == 1, "a tile is summed by one block");

// This block's tile: expert, first row, end of the rows.
__device__ __forceinline__ int4 tile_of(const int *groups) {
  int4 v;
  asm volatile("ld.global.v4.s32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(groups + 4 + blockIdx.x * 4));
  return v;
}

#if BIAS && EPILOGUE == 2
#define EXPERT_PARAMETERS \
  const float *__restrict__ bias, const float *__restrict__ bias2, const int *__restrict__ groups,
#define EXPERT_BIASES bias, bias2
#elif BIAS
#define EXPERT_PARAMETERS const float *__restrict__ bias, const int *__restrict__ groups,
#define EXPERT_BIASES bias, bias
#else
#define EXPERT_PARAMETERS const int *__restrict__ groups,
#define EXPERT_BIASES (const float *)0, (const float *)0
#endif

#if EPILOGUE == 2
#include "activation.cuh"
#endif

// The result for element |e| of a fragment; |at| is the index of its bias.
__device__ __forceinline__ float finish_expert(const float (&v)[WEIGHTS][4], int e, const float *bias,
                                               const float *bias2, u64 at) {
#if EPILOGUE == 2
  return gated(BIAS ? v[0][e] + bias[at] : v[0][e], BIAS ? v[1][e] + bias2[at] : v[1][e]);
#else
  return BIAS ? v[0][e] + bias[at] : v[0][e];
#endif
}
