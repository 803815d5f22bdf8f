// Tile formats: how a tile of quantized weights, 8 rows x 128 columns, is stored and read. The only place
// that knows it; packed.cu and decode.cu include it. docs/internals/quantized-tiles.md describes the layout
// in words, compiler/tiles.c writes it.
//
// A tile is read by a warp. Lane 4 * row + quad owns eight codes of each piece of 32 columns: the four pairs
// that a tensor-core instruction takes from that lane. Pair j of 0..3 is columns 2 * quad + {0, 1} +
// {0, 16, 8, 24}[j] of its piece. Functions take |run|, the index of the tile in its row of tiles: some
// formats keep one number of 256 columns in the first of two tiles, and another in the second.
//
// |Memory| says how to load: Plain, or a struct with the same functions.

#pragma once

#include "kernel_tables.h"
#include "ptx.cuh"

// KIND: how scales and offsets are stored.
enum TileNumbers {
#define NUMBERS_ENUMERATOR(name, text) NUMBERS_##name,
  MLX_TILE_NUMBERS_TABLE(NUMBERS_ENUMERATOR)
#undef NUMBERS_ENUMERATOR
};

// ZERO is subtracted from the stored code, or it is one of these tables.
#define TABLE_E2M1 MLX_TILE_E2M1
#define TABLE_IQ4 MLX_TILE_IQ4

struct Plain {
  static __device__ __forceinline__ u32 load8(const u8 *from) { return *from; }
  static __device__ __forceinline__ u32 load16(const u8 *from) { return *(const u16 *)from; }
  static __device__ __forceinline__ u32 load32(const u8 *from) { return *(const u32 *)from; }
  static __device__ __forceinline__ uint2 load64(const u8 *from) { return *(const uint2 *)from; }
  static __device__ __forceinline__ uint4 load128(const u8 *from) { return *(const uint4 *)from; }
};

__device__ __forceinline__ float f16_to_float(u32 bits) { return F16::widen_word(bits); }

__device__ __forceinline__ u32 sub_pair(u32 a, u32 b) { return fma_pair(b, 0xbf80bf80u, a); }

// a & mask | more, in one instruction. The compiler makes two of it if mask and more are constants, which
// needs no registers for them: better for a kernel that has none left (FEW_REGISTERS).
template <bool FEW_REGISTERS>
__device__ __forceinline__ u32 and_or(u32 a, u32 mask, u32 more) {
  if constexpr (FEW_REGISTERS) return a & mask | more;
  return and_or_once(a, mask, more);
}

__device__ __forceinline__ u32 shift_right(u32 v, int by) { return by < 0 ? v << -by : v >> by; }

// CODE_BITS: 2 to 6, or 8 (signed). OFFSET_COUNT: offsets for each 32 columns, 0 to 2. HALF_SCALES: each 16
// columns have a scale. FEW_REGISTERS: see and_or. IN_F16: unpack() gives f16 instead of bf16.
template <int CODE_BITS, int KIND, int OFFSET_COUNT, bool HALF_SCALES, int ZERO, bool FEW_REGISTERS = false,
          bool IN_F16 = false>
struct TileFormat {
  static constexpr bool grouped = KIND >= NUMBERS_K6;
  // One load has a lane's codes of all four pieces; with 8 bits, of two.
  static constexpr u32 ones = IN_F16 ? 0x3c003c00u : 0x3f803f80u;  // a pair
  static constexpr int loads = CODE_BITS == 8 ? 2 : 1, words = CODE_BITS == 8 ? 4 : CODE_BITS,
                       pieces = 4 / loads;
  static constexpr int number = KIND == NUMBERS_F32 ? 4 : KIND <= NUMBERS_BF16 ? 2 : 1;
  static constexpr int row_scales = 4 * (1 + HALF_SCALES),
                       row_offsets = 4 * OFFSET_COUNT;           // numbers of a row
  static constexpr int scales_at = 128 * CODE_BITS, record = 8;  // record: bytes of a row with NUMBERS_K6
  static constexpr int offsets_at = scales_at + 8 * row_scales * number;
  // f16 numbers that the others multiply. With offsets: of the scales in even tiles, of the offsets in odd.
  static constexpr int blocks_at = KIND == NUMBERS_K6 ? scales_at + 6 : offsets_at,
                       block_step = KIND == NUMBERS_K6 ? record : 2;
  static constexpr int bytes = KIND == NUMBERS_K6 ? scales_at + 8 * record
                               : grouped          ? offsets_at + 16
                                                  : offsets_at + 8 * row_offsets * number;

  // ---- codes ----

  template <typename Memory>
  static __device__ __forceinline__ void load_codes(u32 (&w)[words], const u8 *tile, int lane, int nth) {
    if constexpr (words >= 4) {
      const uint4 v = Memory::load128(tile + nth * 512 + lane * 16);
      w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
    } else {
      const uint2 v = Memory::load64(tile + lane * 8);
      w[0] = v.x, w[1] = v.y;
    }
    if constexpr (words == 6) {
      const uint2 v = Memory::load64(tile + 512 + lane * 8);
      w[4] = v.x, w[5] = v.y;
    }
    if constexpr (words == 5) w[4] = Memory::load32(tile + 512 + lane * 4);
    if constexpr (words == 3) w[2] = Memory::load32(tile + 256 + lane * 4);
  }

  // Codes of pair |nth| of 0..15 at bits 0 and 16, ORed with |more|. A half word has as many codes as fit,
  // one after the other; the codes that are left are spread over the remaining bits of the half words.
  static __device__ __forceinline__ u32 code_pair(const u32 (&w)[words], int nth, u32 more) {
    constexpr int each = 16 / CODE_BITS;
    constexpr u32 mask = ((1u << CODE_BITS) - 1) * 0x10001u;
    if (nth < each * CODE_BITS)
      return and_or<FEW_REGISTERS>(w[nth / each % words] >> nth % each * CODE_BITS, mask, more);
    if constexpr (CODE_BITS ==
                  6) {  // four codes: the low four bits in words 0 to 3, the others in words 4 and 5
      const int left = nth - 12;
      return and_or<FEW_REGISTERS>(
          w[left] >> 12, 0x000f000fu,
          and_or<FEW_REGISTERS>(w[4 + left / 2] >> 8 + left % 2 * 2, 0x00300030u, more));
    } else {
#pragma unroll
      for (int i = 0; i < CODE_BITS; i++)
        more = and_or<FEW_REGISTERS>(w[i % words] >> 15 - i, 0x00010001u << i, more);
      return more;
    }
  }

  // A pair as f16, exact. 0x6400 is 1024, whose last mantissa bit is worth 1. So a small integer in the
  // mantissa is added to 1024, and subtracting 1024 is exact.
  static __device__ __forceinline__ u32 pair_f16(const u32 (&w)[words], int piece, int j) {
    if constexpr (CODE_BITS == 8) {  // 128 more than a signed byte is the byte with its sign flipped
      const u32 t = w[piece % 2 * 2 + j / 2] >> j % 2 * 8;
      return sub_pair_f16(and_xor(t, 0x00ff00ffu, 0x64806480u), 0x64806480u);
    } else if constexpr (ZERO == TABLE_E2M1) {
      // Exponent and mantissa at their place in f16, where zero and 0.5 are subnormal too.
      const u32 value = shift_right(w[piece], 4 * j - 9) & 0x0e000e00u;
      return fma_pair_f16(w[piece] << 12 - 4 * j & 0x80008000u | value, 0x74007400u, 0x80008000u);  // * 2^14
    } else if constexpr (ZERO == TABLE_IQ4) {
      const u32 t = __byte_perm(iq4(w[piece]), iq4(w[piece] >> 16), 0x0400 + j * 0x0101);
      return sub_pair_f16(and_xor(t, 0x00ff00ffu, 0x64806480u), 0x64806480u);
    } else {
      return sub_pair_f16(code_pair(w, piece * 4 + j, 0x64006400u), 0x64006400u + ZERO * 0x00010001u);
    }
  }

  // A pair as bf16, exact. |w| is from the load piece / pieces. 0x4300 is 128, whose last mantissa bit is
  // worth
  // 1. So a small integer in the mantissa is added to 128, and subtracting 128 is exact.
  static __device__ __forceinline__ u32 pair(const u32 (&w)[words], int piece, int j) {
    if constexpr (IN_F16) {
      return pair_f16(w, piece, j);
    } else if constexpr (CODE_BITS == 8) {  // 128 + seven low bits, minus 128 or 256 for the sign
      const u32 t = w[piece % 2 * 2 + j / 2] >> j % 2 * 8;
      return sub_pair(and_or<FEW_REGISTERS>(t, 0x007f007fu, 0x43004300u),
                      and_or<FEW_REGISTERS>(t, 0x00800080u, 0x43004300u));
    } else if constexpr (ZERO == TABLE_E2M1) {
      // Exponent and mantissa at their place in bf16, where zero and 0.5 are subnormal too.
      const u32 value = shift_right(w[piece], 4 * j - 6) & 0x01c001c0u;
      return fma_pair(w[piece] << 12 - 4 * j & 0x80008000u | value, 0x7e807e80u, 0x80008000u);  // * 2^126
    } else if constexpr (ZERO == TABLE_IQ4) {
      const u32 t = __byte_perm(iq4(w[piece]), iq4(w[piece] >> 16), 0x0400 + j * 0x0101);
      return sub_pair(and_or<FEW_REGISTERS>(t, 0x007f007fu, 0x43004300u),
                      and_or<FEW_REGISTERS>(t, 0x00800080u, 0x43004300u));
    } else {
      return sub_pair(code_pair(w, piece * 4 + j, 0x43004300u), 0x43004300u + ZERO * 0x00010001u);
    }
  }

  // The signed bytes for four indices in the low half of |w|.
  static __device__ __forceinline__ u32 iq4(u32 w) {
    const u32 low = __byte_perm(0xbfad9881u, 0xf6eaddcfu, w & 0x7777u),  // -127 -104 -83 -65 -49 -35 -22 -10
        high = __byte_perm(0x26190d01u, 0x71594535u, w & 0x7777u);       // 1 13 25 38 53 69 89 113
    return __byte_perm(low, high, (w & 0x8888u) >> 1 | 0x3210u);
  }
  static __device__ __forceinline__ u32 e2m1_twice(u32 w) {
    const u32 low = __byte_perm(0x03020100u, 0x0c080604u, w & 0x7777u),  // 0 1 2 3 4 6 8 12
        high = __byte_perm(0xfdfeff00u, 0xf4f8fafcu, w & 0x7777u);       // the same, negative
    return __byte_perm(low, high, (w & 0x8888u) >> 1 | 0x3210u);
  }

  // Four weights of 16 columns of a piece, starting at 16 * half, as signed bytes: the first of pairs |half|
  // and |half| + 2, then the second of both. They are |byte_unit| times too large.
  static constexpr bool centered_nibbles = CODE_BITS == 4 && ZERO == 8;
  static constexpr int byte_unit = centered_nibbles ? 16 : ZERO == TABLE_E2M1 ? 2 : 1;
  static __device__ __forceinline__ u32 four_bytes(const u32 (&w)[words], int piece, int half) {
    if constexpr (CODE_BITS == 8) {
      return __byte_perm(w[piece % 2 * 2], w[piece % 2 * 2 + 1], half ? 0x7351 : 0x6240);
    } else if constexpr (ZERO < 0) {
      const u32 even = ZERO == TABLE_IQ4 ? iq4(w[piece]) : e2m1_twice(w[piece]),
                odd = ZERO == TABLE_IQ4 ? iq4(w[piece] >> 16) : e2m1_twice(w[piece] >> 16);
      return __byte_perm(even, odd, half ? 0x7531 : 0x6420);
    } else if constexpr (centered_nibbles) {  // the upper four bits of a byte: 8 more is a sign bit flipped
      return and_xor(half ? w[piece] : w[piece] << 4, 0xf0f0f0f0u, 0x80808080u);
    } else if constexpr (CODE_BITS == 4 && ZERO == 0) {
      return (half ? w[piece] >> 4 : w[piece]) & 0x0f0f0f0fu;
    } else {
      const u32 first = code_pair(w, piece * 4 + half, 0), second = code_pair(w, piece * 4 + half + 2, 0);
      if constexpr (ZERO == 0) return first | second << 8;
      // With the highest bit set, no byte borrows from the next one.
      return ((first | second << 8 | 0x80808080u) - ZERO * 0x01010101u) ^ 0x80808080u;
    }
  }

  // The A operand of an m16k16 product: rows g and g + 8 (of the upper and the lower tile), 16 columns of a
  // piece starting at 16 * half.
  static __device__ __forceinline__ void unpack(u32 (&a)[4], const u32 (&upper)[words],
                                                const u32 (&lower)[words], int piece, int half) {
    a[0] = pair(upper, piece, half);
    a[1] = pair(lower, piece, half);
    a[2] = pair(upper, piece, half + 2);
    a[3] = pair(lower, piece, half + 2);
  }

  // ---- scales and offsets ----
  // They are loaded as stored and converted when they are used, so that loads can be ahead of their use.

  struct Scale {  // of one row and piece
    u32 stored[1 + (HALF_SCALES || grouped)];
  };
  struct Offset {
    u32 stored[KIND == NUMBERS_K6 ? 3 : OFFSET_COUNT == 2 || grouped ? 2 : 1];
  };

  static __device__ __forceinline__ float to_float(u32 stored) {
    if constexpr (KIND == NUMBERS_F32) return __uint_as_float(stored);
    if constexpr (KIND == NUMBERS_BF16) return __uint_as_float(stored << 16);
    if constexpr (KIND == NUMBERS_E8M0) return fmaxf(__uint_as_float(stored << 23), 0x1p-127f);
    return f16_to_float(stored);
  }

  template <typename Memory>
  static __device__ __forceinline__ u32 load_number(const u8 *from) {
    if constexpr (number == 4) return Memory::load32(from);
    if constexpr (number == 2) return Memory::load16(from);
    return Memory::load8(from);
  }

  // The f16 number of the row's scales, or of its offsets.
  template <typename Memory>
  static __device__ __forceinline__ u32 load_block(const u8 *tile, int run, int row, bool offset) {
    const u8 *even = OFFSET_COUNT ? tile - (run & 1) * bytes : tile;
    return Memory::load16(even + (offset ? bytes : 0) + blocks_at + row * block_step);
  }

  template <typename Memory>
  static __device__ __forceinline__ void load_scale(Scale &to, const u8 *tile, int run, int row, int piece) {
    if constexpr (KIND == NUMBERS_K6) {
      to.stored[0] = Memory::load8(tile + scales_at + row * record + piece);
    } else if constexpr (grouped && HALF_SCALES) {
      to.stored[0] = Memory::load16(tile + scales_at + row * 8 + piece * 2);
    } else {
#pragma unroll
      for (int h = 0; h <= HALF_SCALES; h++)
        to.stored[h] =
            load_number<Memory>(tile + scales_at + ((row * 4 + piece) * (1 + HALF_SCALES) + h) * number);
    }
    if constexpr (grouped) to.stored[1] = load_block<Memory>(tile, run, row, false);
  }

  // Byte |nth| of |word| times |block|, minus 128 times |block| with NUMBERS_K8. Exact: a byte in the
  // mantissa of 2^15 is added to it, and no intermediate result is rounded.
  static __device__ __forceinline__ float times(u32 word, int nth, float block) {
    constexpr float base = KIND == NUMBERS_K8 ? 32768 + 128 : 32768;
    return fmaf(__uint_as_float(__byte_perm(word, 0x4700, 0x5404 + nth * 16)), block, -base * block);
  }

  static __device__ __forceinline__ float scale_of(const Scale &s, int half) {
    if constexpr (grouped) {
      constexpr u32 mask = KIND == NUMBERS_K6 ? 0x3f : KIND == NUMBERS_K4 ? 0x0f0f : 0xffff;
      return times(s.stored[0] & mask, HALF_SCALES ? half : 0, f16_to_float(s.stored[1]));
    } else {
      return to_float(s.stored[HALF_SCALES ? half : 0]);
    }
  }

  template <typename Memory>
  static __device__ __forceinline__ void load_offset(Offset &to, const u8 *tile, int run, int row,
                                                     int piece) {
    if constexpr (KIND == NUMBERS_K6) {
      to.stored[0] = Memory::load8(tile + scales_at + row * record + piece);
      to.stored[1] = load_block<Memory>(tile, run, row, true);
      to.stored[2] = Memory::load16(tile + scales_at + row * record + 4);
    } else if constexpr (KIND == NUMBERS_K4) {
      to.stored[0] = Memory::load16(tile + scales_at + row * 8 + piece * 2);
      to.stored[1] = load_block<Memory>(tile, run, row, true);
    } else {
#pragma unroll
      for (int h = 0; h < OFFSET_COUNT; h++)
        to.stored[h] =
            load_number<Memory>(tile + offsets_at + ((row * 4 + piece) * OFFSET_COUNT + h) * number);
    }
  }

  // |piece| is that of load_offset.
  static __device__ __forceinline__ float offset_of(const Offset &o, int piece, int half) {
    if constexpr (KIND == NUMBERS_K6)
      return times(o.stored[2] >> piece * 4 & 15 | o.stored[0] >> 2 & 0x30, 0, f16_to_float(o.stored[1]));
    if constexpr (KIND == NUMBERS_K4)
      return times(o.stored[0] >> 4 & 0x0f0f, half, f16_to_float(o.stored[1]));
    return to_float(o.stored[OFFSET_COUNT == 2 ? half : 0]);
  }

  // All scales of a row.
  template <typename Memory>
  static __device__ __forceinline__ void load_row_scales(float (&out)[row_scales], const u8 *tile, int run,
                                                         int row) {
    const u8 *from = tile + scales_at + row * (KIND == NUMBERS_K6 ? record : row_scales * number);
    constexpr int count = row_scales * number / 4;  // words
    u32 w[count];
#pragma unroll
    for (int i = 0; i < count; i++) w[i] = 0;
    if constexpr (count == 1) w[0] = Memory::load32(from);
    if constexpr (count == 2) {
      const uint2 v = Memory::load64(from);
      w[0] = v.x, w[1] = v.y;
    }
#pragma unroll
    for (int i = 0; i + 3 < count; i += 4) {
      const uint4 v = Memory::load128(from + i * 4);
      w[i] = v.x, w[i + 1] = v.y, w[i + 2] = v.z, w[i + 3] = v.w;
    }
    const float block = grouped ? f16_to_float(load_block<Memory>(tile, run, row, false)) : 0;
    constexpr u32 mask = KIND == NUMBERS_K6 ? 0x3f3f3f3f : KIND == NUMBERS_K4 ? 0x0f0f0f0f : ~0u;
#pragma unroll
    for (int i = 0; i < row_scales; i++) {
      constexpr int each = 4 / number;  // numbers of a word
      if constexpr (grouped)
        out[i] = times(w[i / 4] & mask, i % 4, block);
      else
        out[i] = to_float(w[i / each] >> i % each * number * 8 & (number == 1 ? 255 : ~0u));
    }
  }

  // All scales of a row, and with OFFSET_COUNT 1 the offset of its piece |quad|.
  template <typename Memory>
  static __device__ __forceinline__ void load_row(float (&out)[row_scales], float &offset, const u8 *tile,
                                                  int run, int row, int quad) {
    if constexpr (KIND == NUMBERS_K6) {
      const uint2 v = Memory::load64(tile + scales_at + row * record);
      const float block = f16_to_float(load_block<Memory>(tile, run, row, false));
#pragma unroll
      for (int i = 0; i < 4; i++) out[i] = times(v.x & 0x3f3f3f3f, i, block);
      offset = offset_of({v.x >> quad * 8 & 255, load_block<Memory>(tile, run, row, true), v.y}, quad, 0);
    } else {
      load_row_scales<Memory>(out, tile, run, row);
      if constexpr (OFFSET_COUNT == 1) {
        Offset o;
        load_offset<Memory>(o, tile, run, row, quad);
        offset = offset_of(o, quad, 0);
      }
    }
  }

  // The scales of pieces |upper| and 2 + |upper| of a row, and with OFFSET_COUNT 1 the offset of piece
  // |quad|.
  template <typename Memory>
  static __device__ __forceinline__ void load_half_row(float (&out)[2][1 + HALF_SCALES], float &offset,
                                                       const u8 *tile, int run, int row, int quad) {
    const int upper = quad >> 1;
    if constexpr (KIND == NUMBERS_K6) {
      const uint2 v = Memory::load64(tile + scales_at + row * record);
      const float block = f16_to_float(load_block<Memory>(tile, run, row, false));
      out[0][0] = times(v.x & 0x3f3f3f3f, upper, block);
      out[1][0] = times(v.x & 0x3f3f3f3f, 2 + upper, block);
      offset = offset_of({v.x >> quad * 8 & 255, load_block<Memory>(tile, run, row, true), v.y}, quad, 0);
    } else {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        Scale s;
        load_scale<Memory>(s, tile, run, row, 2 * i + upper);
#pragma unroll
        for (int h = 0; h <= HALF_SCALES; h++) out[i][h] = scale_of(s, h);
      }
      if constexpr (OFFSET_COUNT == 1) {
        Offset o;
        load_offset<Memory>(o, tile, run, row, quad);
        offset = offset_of(o, quad, 0);
      }
    }
  }

  // ---- single weights ----

  // Word |i| of what load_codes reads, for an index that is not known when the kernel is compiled.
  template <typename Memory>
  static __device__ __forceinline__ u32 load_word(const u8 *tile, int lane, int nth, int i) {
    constexpr int first = words >= 4 ? 4 : 2;  // words of the first load
    if (i < first) return Memory::load32(tile + nth * 512 + (lane * first + i) * 4);
    return Memory::load32(tile + (first * 32 + lane * (words - first) + i - first) * 4);
  }

  // pair() for such a piece, from memory. It loads only the words that it needs.
  template <typename Memory>
  static __device__ __forceinline__ u32 load_pair_codes(const u8 *tile, int lane, int piece, int j) {
    constexpr int each = 16 / CODE_BITS;
    const int nth = piece * 4 + j, left = nth - each * CODE_BITS;
    u32 t;
    if constexpr (CODE_BITS == 8) {
      t = load_word<Memory>(tile, lane, piece / 2, piece % 2 * 2 + j / 2) >> j % 2 * 8;
    } else if (left < 0) {
      t = load_word<Memory>(tile, lane, 0, nth / each) >> nth % each * CODE_BITS &
          ((1u << CODE_BITS) - 1) * 0x10001u;
    } else if constexpr (CODE_BITS == 6) {
      t = load_word<Memory>(tile, lane, 0, left) >> 12 & 0x000f000fu |
          load_word<Memory>(tile, lane, 0, 4 + left / 2) >> 8 + left % 2 * 2 & 0x00300030u;
    } else {
      t = 0;
#pragma unroll 1
      for (int i = 0; i < CODE_BITS; i++)
        t |= load_word<Memory>(tile, lane, 0, i % words) >> 15 - i & 0x00010001u << i;
    }
    if constexpr (ZERO == TABLE_E2M1)
      return fma_pair((t & 0x00080008u) << 12 | (t & 0x00070007u) << 6, 0x7e807e80u, 0x80008000u);
    if constexpr (ZERO == TABLE_IQ4) t = __byte_perm(iq4(t), iq4(t >> 16), 0x0400);
    if constexpr (ZERO == TABLE_IQ4 || CODE_BITS == 8)
      return sub_pair(and_or<FEW_REGISTERS>(t, 0x007f007fu, 0x43004300u),
                      and_or<FEW_REGISTERS>(t, 0x00800080u, 0x43004300u));
    return sub_pair(t | 0x43004300u, 0x43004300u + ZERO * 0x00010001u);
  }

  // The two weights of pair j of a piece, as dequantized.
  template <typename Memory>
  static __device__ __forceinline__ float2 load_pair(const u8 *tile, int run, int row, int quad, int piece,
                                                     int j) {
    Scale s;
    load_scale<Memory>(s, tile, run, row, piece);
    const u32 codes = load_pair_codes<Memory>(tile, row * 4 + quad, piece, j);
    const float scale = scale_of(s, j % 2);
    float2 out = {__fmul_rn(scale, __uint_as_float(codes << 16)),
                  __fmul_rn(scale, __uint_as_float(codes & 0xffff0000u))};
    if constexpr (OFFSET_COUNT) {
      Offset o;
      load_offset<Memory>(o, tile, run, row, piece);
      const float offset = offset_of(o, piece, j % 2);
      out = {__fadd_rn(out.x, offset), __fadd_rn(out.y, offset)};
    }
    return out;
  }
};
