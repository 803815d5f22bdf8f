// Attention: numbers of the KV pool, and their addresses.
//
// Pool: [pages][layers of a page], and of a layer [KV heads][2: key, value][PAGE][HEAD_DIM] numbers of type
// config.kv; with latent attention, a layer has one KV head and only keys. A module may have window pages
// too (step.h), which come first. Layers may have other numbers and sizes of heads, so the kernels know only
// where their layer is in a page.
#pragma once

#include "config.cuh"
#include "ptx.cuh"
#include "step.h"

constexpr int PAGE = MLX_KV_PAGE, HEAD_DIM = config.head_dim;

// ---- numbers of the pool ----

constexpr bool KV_16 = config.kv == Dtype::BF16 || config.kv == Dtype::F16, KV_Q8 = config.kv == Dtype::Q8_0;
using PoolNumber = Select<config.kv == Dtype::F16, F16, Bf16>::Type;  // with KV_16
using pool_t = Select<KV_16, u16, Select<KV_Q8, u8, float>::Type>::Type;

__device__ __forceinline__ u32 narrow(float low, float high) {  // rounds to nearest even
  return PoolNumber::narrow2(low, high);
}
__device__ __forceinline__ void store4(u16 *to, float4 f) {
  *(uint2 *)to = make_uint2(narrow(f.x, f.y), narrow(f.z, f.w));
}
__device__ __forceinline__ void store4(float *to, float4 f) { *(float4 *)to = f; }
__device__ __forceinline__ void store1(u16 *to, float f) { *to = (u16)narrow(f, f); }
__device__ __forceinline__ void store1(float *to, float f) { *to = f; }

// Bytes of the keys, or of the values, of a page and head: with 8 bits, the scales of the rows are at its
// end.
constexpr int BLOCK = PAGE * (HEAD_DIM * (int)sizeof(pool_t) + (KV_Q8 ? 4 : 0));
constexpr int LINE = 64;  // bytes; layers and pages are whole lines
static_assert(BLOCK % LINE == 0, "lines");

// RoPE of a number: a*c + b*s, with both products rounded
__device__ __forceinline__ float rotate(float a, float c, float b, float s) {
  return __fadd_rn(__fmul_rn(a, c), __fmul_rn(b, s));
}

// The pages of a layer, in lines. Sizes of a model are parameters, so that one image serves many models.
struct Layer {
  int at, page;  // where the layer is in a page, a page
  int before;    // size of a window page; window pages come first. 0: none; -1: these are window pages
};
// The pages of a sequence. A wrong page table may give wrong numbers, but never an access outside the pool.
struct Pages {
  const int *table;
  int positions;  // that the table has pages for
  int pool;       // pages of the pool
  u64 start;      // of the layer in page 0, in bytes
  u64 page_bytes;
  __device__ __forceinline__ Pages(const int *batch, int slot, Layer layer) {
    const int pages = batch[MLX_STEP_SLOT_PAGES];
    const bool valid = (u32)slot < (u32)batch[MLX_STEP_SLOT_COUNT], window = layer.before < 0;
    table = batch + batch[window ? MLX_STEP_AT_WINDOW_PAGES : MLX_STEP_AT_PAGES] + (valid ? slot * pages : 0);
    positions = valid ? pages * PAGE : 0;
    pool = batch[window ? MLX_STEP_WINDOW_POOL_PAGES : MLX_STEP_POOL_PAGES];
    // The choice is between two 32-bit numbers: with a choice between a 64-bit product and zero, ptxas 13.0
    // let the sum read the register before it was zero (append, heads of 64, an 8-bit pool, sm_90).
    const int windows = layer.before > 0 ? batch[MLX_STEP_WINDOW_POOL_PAGES] : 0;
    start = (layer.at + (u64)windows * layer.before) * LINE;
    page_bytes = (u64)layer.page * LINE;
  }
  // Offset of the keys of a position's page and head in the pool, in bytes; the values are BLOCK later,
  // unless they are parts of the keys. False for an invalid position or page.
  __device__ __forceinline__ bool find_block(u64 &block, int position, int head) const {
    if ((u32)position >= (u32)positions) return false;
    const int page = table[position / PAGE];
    block = start + page * page_bytes + (u64)head * (2 * BLOCK);
    return (u32)page < (u32)pool;
  }
  // Offset of a position's key in the pool, in numbers; its value is PAGE * HEAD_DIM later. False for an
  // invalid position or page. Not for 8 bits.
  __device__ __forceinline__ bool find_key(u64 &offset, int position, int head) const {
    u64 block = 0;
    const bool valid = find_block(block, position, head);
    offset = block / sizeof(pool_t) + position % PAGE * HEAD_DIM;
    return valid;
  }
};
