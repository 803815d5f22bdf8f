// Copies 16 rows of a GGUF type into a panel without converting numbers or codes one by one: packing all
// weights of a model waits for this. panels.c writes the same bytes from codes.
#include <string.h>

#include "compiler/panels.h"
#include "compiler/vectors.h"
#include "graph/half.h"
#include "graph/kquants.h"

#define ROWS MLX_PANEL_ROWS
#define OCTETS (MLX_PANEL_BLOCK / 8)

// 16 codes of a row in bytes, two in each lane. A shift moves bits into the neighbouring byte, so that a mask
// follows it.
typedef mlx_halves_t codes_t;

static inline codes_t load_codes(const uint8_t *from) { return (codes_t)mlx_load_bytes(from); }

// The low |bits| of each byte of |codes| >> |shift|.
static inline codes_t take_bits(codes_t codes, int shift, int bits) {
  return codes >> (uint16_t)shift & (uint16_t)(((1 << bits) - 1) * 0x0101);
}

static inline void put_word(uint32_t word, int nth, int row, uint8_t *out) {
  memcpy(out + (nth * ROWS + row) * 4, &word, sizeof word);
}

// Joins the low |bits| of each pair of bytes to a byte, and four of those to a word. Other bits are zero.
static inline void join_pairs(const codes_t codes[2], int bits, uint32_t out[OCTETS]) {
  // The mask lets gcc pack the bytes with one instruction.
  const mlx_bytes_t a = (mlx_bytes_t)((codes[0] | codes[0] >> (uint16_t)(8 - bits)) & 0xff),
                    b = (mlx_bytes_t)((codes[1] | codes[1] >> (uint16_t)(8 - bits)) & 0xff),
                    even = MLX_SHUFFLE(mlx_bytes_t, a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26,
                                       28, 30);
  memcpy(out, &even, sizeof even);
}

// Writes an f16 number. Returns whether it is finite.
static inline bool put_number(const uint8_t *from, bool negative, int nth, int row, uint8_t *out) {
  const uint16_t bits = mlx_load_u16(from), stored = (uint16_t)(negative ? bits ^ 0x8000 : bits);
  memcpy(out + (nth * ROWS + row) * 2, &stored, sizeof stored);
  return (bits & 0x7c00) != 0x7c00;
}

// Writes one row of a block, whose codes have |bits| bits.
static inline void put_codes(int bits, const codes_t codes[2], int row, uint8_t *out) {
  const codes_t low[2] = {take_bits(codes[0], 0, 4), take_bits(codes[1], 0, 4)},
                high[2] = {take_bits(codes[0], 4, bits - 4), take_bits(codes[1], 4, bits - 4)};
  uint32_t words[OCTETS];
  join_pairs(low, 4, words);
  for (int i = 0; i < OCTETS; ++i) put_word(words[i], i, row, out);
  if (bits == 4) return;
  join_pairs(high, bits - 4, words);
  if (bits == 5) {
    put_word(words[0] | words[1] << 2 | words[2] << 4 | words[3] << 6, OCTETS, row, out);
  } else {
    put_word(words[0] | words[1] << 4, OCTETS, row, out);
    put_word(words[2] | words[3] << 4, OCTETS + 1, row, out);
  }
}

// ----------------------------------------------------------------------------------------------------------
// Types with blocks of 32

// Byte j has column j in its low half and column j + 16 in its high half.
static inline void split_nibbles(const uint8_t *from, codes_t codes[2]) {
  for (int i = 0; i < 2; ++i) codes[i] = take_bits(load_codes(from), 4 * i, 4);
}

// From bit i of column i to the order of a panel: transposes a 4 x 4 matrix of pairs of bits, one row in each
// byte.
static inline uint32_t order_fifth_bits(uint32_t bits) {
  const uint32_t inner = (bits >> 6 ^ bits) & 0x00cc00cc;
  bits ^= inner ^ inner << 6;
  const uint32_t outer = (bits >> 12 ^ bits) & 0x0000f0f0;
  return bits ^ outer ^ outer << 12;
}

// |numbers|: a scale and perhaps an offset. |bits|: 4 or 5.
static inline bool copy_nibbles(int numbers, int bits, const uint8_t *from, int row, uint8_t *out) {
  bool finite = true;
  for (int i = 0; i < numbers; ++i) finite &= put_number(from + 2 * i, false, i, row, out);
  from += 2 * numbers;
  out += 2 * numbers * ROWS;
  if (bits == 5) {
    uint32_t fifth;
    memcpy(&fifth, from, sizeof fifth);
    put_word(order_fifth_bits(fifth), OCTETS, row, out);
    from += sizeof fifth;
  }
  codes_t codes[2];
  split_nibbles(from, codes);
  put_codes(4, codes, row, out);
  return finite;
}

// A panel stores -0, which is 8, as 0. All exponents are finite (mlx_mxfp4_half_scale).
static inline bool copy_mxfp4(const uint8_t *from, int row, uint8_t *out) {
  codes_t codes[2];
  out[row] = from[0];
  split_nibbles(from + 1, codes);
  for (int i = 0; i < 2; ++i) codes[i] &= take_bits((codes[i] ^ 0x0808) + 0x0f0f, 4, 1) * 15;
  put_codes(4, codes, row, out + ROWS);
  return true;
}

// Transposes 16 x 16 bytes, one row in each vector. Each step moves one bit of a byte's row number to the
// number of its column, and one bit back.
static inline void transpose(mlx_bytes_t x[ROWS]) {
  for (int step = 0; step < 4; ++step) {
    mlx_bytes_t next[ROWS];
    for (int i = 0; i < ROWS / 2; ++i) {
      next[2 * i] = mlx_zip_low(x[i], x[i + ROWS / 2]);
      next[2 * i + 1] = mlx_zip_high(x[i], x[i + ROWS / 2]);
    }
    memcpy(x, next, sizeof next);
  }
}

// Block |nth| of all rows.
static bool copy_q8_0(const uint8_t *const rows[ROWS], int64_t nth, uint8_t *out) {
  const size_t at = (size_t)nth * (2 + MLX_PANEL_BLOCK);
  bool finite = true;
  for (int row = 0; row < ROWS; ++row) finite &= put_number(rows[row] + at, false, 0, row, out);
  out += 2 * ROWS;
  for (int half = 0; half < 2; ++half) {
    mlx_bytes_t x[ROWS];
    for (int row = 0; row < ROWS; ++row) x[row] = mlx_load_bytes(rows[row] + at + 2 + 16 * half);
    transpose(x);
    for (int i = 0; i < 16; ++i) mlx_store_bytes(out + (16 * half + i) * ROWS, x[i]);
  }
  return finite;
}

// ----------------------------------------------------------------------------------------------------------
// Types with super-blocks of 256

// The codes of block |nth|, as a panel stores them.
static inline void read_codes(mlx_dtype_t dtype, const uint8_t *from, int nth, codes_t codes[2]) {
  if (dtype == MLX_IQ4_XS) {
    split_nibbles(from + 8 + 16 * nth, codes);
    return;
  }
  const int pairs = nth / 4 * 32, shift = nth % 4 * 2;  // bytes and bits of the fields of two bits
  for (int i = 0; i < 2; ++i, from += 16) {
    if (dtype == MLX_Q2_K) {
      codes[i] = take_bits(load_codes(from + 16 + pairs), shift, 2);
    } else if (dtype == MLX_Q3_K) {
      codes[i] = take_bits(load_codes(from + 32 + pairs), shift, 2) | take_bits(load_codes(from), nth, 1)
                                                                          << 2;
    } else if (dtype == MLX_Q6_K) {
      codes[i] = take_bits(load_codes(from + nth / 4 * 64 + nth % 2 * 32), nth % 4 / 2 * 4, 4) |
                 take_bits(load_codes(from + 128 + pairs), shift, 2) << 4;
    } else {
      codes[i] = take_bits(load_codes(from + (dtype == MLX_Q4_K ? 16 : 48) + nth / 2 * 32), nth % 2 * 4, 4);
      if (dtype == MLX_Q5_K) codes[i] |= take_bits(load_codes(from + 16), nth, 1) << 4;
    }
  }
}

// The scale and offset bytes of block |nth|, in the order of a panel. Returns their number.
static inline int read_factors(mlx_dtype_t dtype, const uint8_t *from, int nth, int factors[4]) {
  if (dtype == MLX_Q4_K || dtype == MLX_Q5_K) {
    mlx_group_factors(from + 4, nth, &factors[0], &factors[1]);
    return 2;
  }
  if (dtype == MLX_IQ4_XS) {
    factors[0] = mlx_iq4_xs_scale(from, nth);
    return 1;
  }
  for (int half = 0; half < 2; ++half) {
    const int group = 2 * nth + half;
    factors[half] = dtype == MLX_Q6_K   ? from[192 + group]
                    : dtype == MLX_Q3_K ? mlx_q3_k_scale(from + 96, group)
                                        : from[group] & 15;
    factors[2 + half] = from[group] >> 4;  // Q2_K
  }
  return dtype == MLX_Q2_K ? 4 : 2;
}

// Row |row| of a super-block. |dtype| is a constant at each call.
static inline bool copy_super_block(mlx_dtype_t dtype, const uint8_t *from, int row, uint8_t *out) {
  const bool offsets = dtype == MLX_Q2_K || dtype == MLX_Q4_K || dtype == MLX_Q5_K;
  const int numbers_at = dtype == MLX_Q2_K   ? 80
                         : dtype == MLX_Q3_K ? 108
                         : dtype == MLX_Q6_K ? 208
                                             : 0,
            bits = dtype == MLX_Q5_K   ? 5
                   : dtype == MLX_Q6_K ? 6
                                       : 4;
  bool finite = put_number(from + numbers_at, false, 0, row, out);
  if (offsets) finite &= put_number(from + numbers_at + 2, true, 1, row, out);  // the file has minimums
  out += (offsets ? 2 : 1) * 2 * ROWS;
  for (int nth = 0; nth < MLX_PANEL_GROUP; ++nth) {
    int factors[4];
    codes_t codes[2];
    const int count = read_factors(dtype, from, nth, factors);
    for (int i = 0; i < count; ++i) out[i * ROWS + row] = (uint8_t)factors[i];
    read_codes(dtype, from, nth, codes);
    put_codes(bits, codes, row, out + count * ROWS);
    out += count * ROWS + MLX_PANEL_BLOCK * ROWS / 8 * bits;
  }
  return finite;
}

// ----------------------------------------------------------------------------------------------------------

bool mlx_panel_copy(mlx_dtype_t dtype, const uint8_t *const rows[ROWS], int64_t columns, uint8_t *panel) {
  const mlx_dtype_info_t *info = mlx_dtype_info(dtype);
  const int64_t bytes = mlx_panel_bytes((int32_t)info->panel, (int64_t)info->block_elements);
  bool finite = true;
  for (int64_t nth = 0; finite && nth < columns / (int64_t)info->block_elements; ++nth, panel += bytes) {
    const size_t at = (size_t)nth * info->block_bytes;
// The loop is inside the cases, so that the compiler makes one for each type.
#define COPY(call)                        \
  for (int row = 0; row < ROWS; ++row) {  \
    const uint8_t *from = rows[row] + at; \
    finite &= (call);                     \
  }                                       \
  break
    switch (dtype) {
      case MLX_Q8_0: finite = copy_q8_0(rows, nth, panel); break;
      case MLX_IQ4_NL:
      case MLX_Q4_0: COPY(copy_nibbles(1, 4, from, row, panel));
      case MLX_Q4_1: COPY(copy_nibbles(2, 4, from, row, panel));
      case MLX_Q5_0: COPY(copy_nibbles(1, 5, from, row, panel));
      case MLX_Q5_1: COPY(copy_nibbles(2, 5, from, row, panel));
      case MLX_MXFP4: COPY(copy_mxfp4(from, row, panel));
      case MLX_Q2_K: COPY(copy_super_block(MLX_Q2_K, from, row, panel));
      case MLX_Q3_K: COPY(copy_super_block(MLX_Q3_K, from, row, panel));
      case MLX_Q4_K: COPY(copy_super_block(MLX_Q4_K, from, row, panel));
      case MLX_Q5_K: COPY(copy_super_block(MLX_Q5_K, from, row, panel));
      case MLX_Q6_K: COPY(copy_super_block(MLX_Q6_K, from, row, panel));
      case MLX_IQ4_XS: COPY(copy_super_block(MLX_IQ4_XS, from, row, panel));
      default: return false;
    }
#undef COPY
  }
  return finite;
}
