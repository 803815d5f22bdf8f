// SHA-1 (FIPS 180-4).
#include "base/sha1.h"

#include <stdio.h>
#include <string.h>

static uint32_t rotate(uint32_t x, int by) { return x << by | x >> (32 - by); }

static void mix(uint32_t state[5], const uint8_t block[64]) {
  uint32_t w[80], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
  for (int i = 0; i < 16; ++i) {
    w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
           block[4 * i + 3];
  }
  for (int i = 16; i < 80; ++i) w[i] = rotate(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
  for (int i = 0; i < 80; ++i) {
    const uint32_t f = i < 20   ? (b & c) | (~b & d)
                       : i < 40 ? b ^ c ^ d
                       : i < 60 ? (b & c) | (b & d) | (c & d)
                                : b ^ c ^ d;
    const uint32_t k = i < 20 ? 0x5a827999u : i < 40 ? 0x6ed9eba1u : i < 60 ? 0x8f1bbcdcu : 0xca62c1d6u;
    const uint32_t next = rotate(a, 5) + f + e + k + w[i];
    e = d, d = c, c = rotate(b, 30), b = a, a = next;
  }
  state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e;
}

void mlx_sha1_begin(mlx_sha1_t *sha1) {
  *sha1 = (mlx_sha1_t){.state = {0x67452301u, 0xefcdab89u, 0x98badcfeu, 0x10325476u, 0xc3d2e1f0u}};
}

void mlx_sha1_add(mlx_sha1_t *sha1, const void *bytes, size_t length) {
  const uint8_t *next = bytes;
  while (length) {
    const size_t used = sha1->length % 64, room = 64 - used, take = length < room ? length : room;
    memcpy(sha1->block + used, next, take);
    sha1->length += take, next += take, length -= take;
    if (take == room) mix(sha1->state, sha1->block);
  }
}

void mlx_sha1_end(mlx_sha1_t *sha1, char out_hex[MLX_SHA1_HEX]) {
  const uint64_t bits = sha1->length * 8;
  mlx_sha1_add(sha1, "\x80", 1);
  while (sha1->length % 64 != 56) mlx_sha1_add(sha1, "", 1);
  uint8_t tail[8];
  for (int i = 0; i < 8; ++i) tail[i] = (uint8_t)(bits >> (56 - 8 * i));
  mlx_sha1_add(sha1, tail, 8);
  for (int i = 0; i < 5; ++i) snprintf(out_hex + 8 * i, 9, "%08x", sha1->state[i]);
}
