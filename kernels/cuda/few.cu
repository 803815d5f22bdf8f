// Few tokens: what a layer computes between two attentions, for up to 8 tokens, in one launch: o, residual,
// norm, gate and up, down, residual, norm, and q, k and v of the next layer, with RoPE; k and v are stored in
// the KV pool. Also the LM head. Weights are bf16; activations are f32, as three bf16 parts, so that products
// have the accuracy of f32.
//
// The design is that of the decode kernel (decode.cu): one warp of each block copies its share of all
// matrices through a ring in shared memory, in the order of use, and never waits for other blocks. It starts
// before attention ends. The other warps multiply. Blocks exchange activations through words in global
// memory that are EMPTY until they have a value. docs/internals/cuda-kernels.md has measurements.
//
//   unit    8 rows of a matrix: a stage of the ring. Of q, k and v: 4 rows of a head's lower half and the 4
//           rows of its upper half that RoPE pairs with them
//   tile    two units: the 16 rows of a tensor-core instruction. Gate and up: one unit of each
//   slice   the columns of a block in the down projection; the sums of all slices are added by another block
//
// All warps multiply the same rows. A warp has its own columns of x, which it keeps in registers; the
// columns of the instruction are the 8 tokens. So a token's result depends on no other token.
//
// The grid must not be larger than the number of multiprocessors: blocks wait for each other. Blocks past
// that number return at once.
//
// few_config.cuh describes the configuration.

#include "few_consumer.cuh"

// ----------------------------------------------------------------------------------------------------------
// The producer: one warp

struct Producer {
  Shared *s;
  RingPosition at, oldest;  // oldest: the oldest copy in flight
  int started;

  __device__ __forceinline__ void expect(u64 *barrier, int bytes) {
    if ((threadIdx.x & 31) == 0) barrier_expect(barrier, bytes);
    __syncwarp();
  }

  // Copies a unit of |columns| columns. |stride|: bytes from one row to the next, |gap|: bytes between its
  // first four rows and the others.
  __device__ __forceinline__ void unit(const u8 *from, int columns, u64 stride, u64 gap = 0) {
    const int lane = threadIdx.x & 31;
    barrier_wait(&s->free[at.stage], at.parity ^ 1);
    if (started >= IN_FLIGHT) {
      barrier_wait(&s->full[oldest.stage], oldest.parity);
      oldest.next();
    } else {
      ++started;
    }
    expect(&s->full[at.stage], UNIT * columns * 2);
    if (lane < UNIT)
      copy_bytes(s->ring[at.stage] + lane * PITCH, from + lane * stride + (lane >> 2) * gap, columns * 2, 0,
                 1, &s->full[at.stage]);
    __syncwarp();
    at.next();
  }

  __device__ __forceinline__ void units(const u8 *from, Range r, int columns, u64 stride) {
#pragma unroll 1
    for (int u = r.begin; u < r.end; ++u) unit(from + (u64)u * UNIT * stride, columns, stride);
  }
};

static __device__ __forceinline__ const u8 *qkv_unit(const Launch &l, int layer, int unit) {
  int row = unit / HEAD_UNITS * HEAD_DIM + unit % HEAD_UNITS * (UNIT / 2);
  if (row < Q_WIDTH) return weight_at<config.q>(l, layer) + (u64)row * HIDDEN * 2;
  row -= Q_WIDTH;
  if (row < KV_WIDTH) return weight_at<config.k>(l, layer) + (u64)row * HIDDEN * 2;
  return weight_at<config.v>(l, layer) + (u64)(row - KV_WIDTH) * HIDDEN * 2;
}

static __device__ __forceinline__ int qkv_layer(const Launch &l) {
  return l.layer + (l.parts & PART_LAYER ? 1 : 0);
}

static __device__ __forceinline__ void produce(const Launch &l, Shared *s) {
  Producer p = {s, {0, 0}, {0, 0}, 0};
  const int lane = threadIdx.x & 31;
  p.expect(&s->gains, (l.parts & PART_LAYER ? HIDDEN * 4 : 0) + (l.parts & PART_QKV ? HIDDEN * 4 : 0));
  if (l.parts & PART_LAYER)
    copy_bytes((u8 *)s->gain[0], weight_at<config.mlp_norm>(l, l.layer), HIDDEN * 4, lane, 32, &s->gains);
  if (l.parts & PART_QKV)
    copy_bytes((u8 *)s->gain[1], weight_at<config.attn_norm>(l, qkv_layer(l)), HIDDEN * 4, lane, 32,
               &s->gains);
  __syncwarp();
  if (l.parts & PART_LAYER) {
    p.units(weight_at<config.o>(l, l.layer), share(HIDDEN, l.block, l.blocks), Q_WIDTH, Q_WIDTH * 2);
    const Range r = share(FFN, l.block, l.blocks);
#pragma unroll 1
    for (int u = r.begin; u < r.end; ++u) {
      p.unit(weight_at<config.gate>(l, l.layer) + (u64)u * UNIT * HIDDEN * 2, HIDDEN, HIDDEN * 2);
      p.unit(weight_at<config.up>(l, l.layer) + (u64)u * UNIT * HIDDEN * 2, HIDDEN, HIDDEN * 2);
    }
    p.units(weight_at<config.down>(l, l.layer) + l.block % SLICES * SLICE * 2, down_share(l), SLICE, FFN * 2);
  }
  if (l.parts & PART_QKV) {
    const Range r = share(Q_WIDTH + 2 * KV_WIDTH, l.block, l.blocks);
#pragma unroll 1
    for (int u = r.begin; u < r.end; ++u)
      p.unit(qkv_unit(l, qkv_layer(l), u), HIDDEN, HIDDEN * 2, (HEAD_DIM / 2 - UNIT / 2) * HIDDEN * 2);
  }
  if (l.parts & PART_HEAD)
    p.units(weight_at<config.head>(l, 0), share(VOCAB, l.block, l.blocks), HIDDEN, HIDDEN * 2);
}

extern "C" __global__ void __launch_bounds__(MLX_DECODE_THREADS, 1)
    mlx_few(const u8 *weights, const float *attended, const float *x, const float *cosine, const float *sine,
            const int *batch, u32 *scratch, pool_t *pool, float *first, float *second, float *third,
            int page_layer, int page, int before, int layer, int parts) {
  extern __shared__ __align__(128) u8 memory[];
  Shared *s = (Shared *)memory;
  const u32 processors = processor_count();
  start_next_kernel();
  const int blocks = gridDim.x < processors ? gridDim.x : processors;
  const Launch l = {weights,
                    attended,
                    x,
                    (Buffers *)(scratch + config.scratch_at),
                    cosine,
                    sine,
                    batch,
                    pool,
                    {first, second, third},
                    {page_layer, page, before},
                    layer,
                    parts,
                    (int)blockIdx.x,
                    blocks};
  if (l.block >= blocks) {
    wait_for_previous_kernel();
    return;
  }
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int i = 0; i < STAGES; ++i) barrier_init(&s->full[i], 1), barrier_init(&s->free[i], WARPS);
    barrier_init(&s->gains, 1);
    fence_async_proxy();
  }
  __syncthreads();
  if (threadIdx.x >= THREADS)
    produce(l, s);
  else
    consume(l, s);
}
