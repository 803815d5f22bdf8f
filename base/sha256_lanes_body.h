// The SHA-256 of several equally long streams at once, one per lane of a vector. sha256_lanes.c includes this
// file once per vector size, with LANES, VECTOR (a type), ADD_BLOCKS (the function's name) and TARGET (an
// attribute) defined. The names a to h and the order of operations are those of FIPS 180-4, section 6.2.2.
#define ROTATE(x, bits) ((x) >> (bits) | (x) << (32 - (bits)))
#define ROUND(a, b, c, d, e, f, g, h, i)                                                                  \
  do {                                                                                                    \
    h += (ROTATE(e, 6) ^ ROTATE(e, 11) ^ ROTATE(e, 25)) + (g ^ (e & (f ^ g))) + mlx_sha256_constants[i] + \
         w[(i) & 15];                                                                                     \
    d += h;                                                                                               \
    h += (ROTATE(a, 2) ^ ROTATE(a, 13) ^ ROTATE(a, 22)) + ((a & b) | (c & (a | b)));                      \
  } while (0)

// |state| is [8][LANES]. Lane n reads its blocks at |blocks| + n |stride|.
TARGET static void ADD_BLOCKS(uint32_t *state, const uint8_t *blocks, size_t stride, size_t count) {
  VECTOR s[8], w[16];
  memcpy(s, state, sizeof s);
  for (; count; --count, blocks += MLX_SHA256_BLOCK) {
    uint32_t words[16][LANES];
    for (size_t lane = 0; lane < LANES; ++lane) {
      uint32_t block[16];
      memcpy(block, blocks + lane * stride, sizeof block);
      for (int i = 0; i < 16; ++i) words[i][lane] = big_endian(block[i]);
    }
    memcpy(w, words, sizeof w);
    VECTOR a = s[0], b = s[1], c = s[2], d = s[3], e = s[4], f = s[5], g = s[6], h = s[7];
    for (int i = 0; i < 64; i += 16) {
#pragma GCC unroll 16
      for (int j = 0; i && j < 16; ++j) {
        const VECTOR x = w[(j + 1) & 15], y = w[(j + 14) & 15];
        w[j] += (ROTATE(x, 7) ^ ROTATE(x, 18) ^ x >> 3) + w[(j + 9) & 15] +
                (ROTATE(y, 17) ^ ROTATE(y, 19) ^ y >> 10);
      }
#pragma GCC unroll 2
      for (int j = i; j < i + 16; j += 8) {
        ROUND(a, b, c, d, e, f, g, h, j);
        ROUND(h, a, b, c, d, e, f, g, j + 1);
        ROUND(g, h, a, b, c, d, e, f, j + 2);
        ROUND(f, g, h, a, b, c, d, e, j + 3);
        ROUND(e, f, g, h, a, b, c, d, j + 4);
        ROUND(d, e, f, g, h, a, b, c, j + 5);
        ROUND(c, d, e, f, g, h, a, b, j + 6);
        ROUND(b, c, d, e, f, g, h, a, j + 7);
      }
    }
    s[0] += a, s[1] += b, s[2] += c, s[3] += d, s[4] += e, s[5] += f, s[6] += g, s[7] += h;
  }
  memcpy(state, s, sizeof s);
}

#undef ROTATE
#undef ROUND
#undef LANES
#undef VECTOR
#undef ADD_BLOCKS
#undef TARGET
