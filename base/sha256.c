// The SHA-256 block functions, and the choice between them at run time. See sha256.h.
#include "base/sha256.h"

#include <stdatomic.h>
#include <stdbool.h>

const uint32_t mlx_sha256_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// ----------------------------------------------------------------------------------------------------------
// Portable C

static uint32_t rotate(uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

static uint32_t big_endian(const uint8_t *p) {
  return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void schedule(const uint8_t *block, uint32_t w[64]) {
  for (int i = 0; i < 16; ++i) w[i] = big_endian(block + 4 * i);
  for (int i = 16; i < 64; ++i) {
    const uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7] +
           (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
  }
}

// The names a to h and the order of operations are those of FIPS 180-4, section 6.2.2. The names rotate from
// round to round, so that no word is copied.
#define ROUND(a, b, c, d, e, f, g, h, i)                                                                  \
  do {                                                                                                    \
    h += (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + (g ^ (e & (f ^ g))) + mlx_sha256_constants[i] + \
         w[i];                                                                                            \
    d += h;                                                                                               \
    h += (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) | (c & (a | b)));                      \
  } while (0)

void mlx_sha256_portable(uint32_t state[8], const uint8_t *blocks, size_t count) {
  for (; count; --count, blocks += MLX_SHA256_BLOCK) {
    uint32_t w[64], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5],
                    g = state[6], h = state[7];
    schedule(blocks, w);
    for (int i = 0; i < 64; i += 8) {
      ROUND(a, b, c, d, e, f, g, h, i);
      ROUND(h, a, b, c, d, e, f, g, i + 1);
      ROUND(g, h, a, b, c, d, e, f, i + 2);
      ROUND(f, g, h, a, b, c, d, e, i + 3);
      ROUND(e, f, g, h, a, b, c, d, i + 4);
      ROUND(d, e, f, g, h, a, b, c, i + 5);
      ROUND(c, d, e, f, g, h, a, b, i + 6);
      ROUND(b, c, d, e, f, g, h, a, i + 7);
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
  }
}

// ----------------------------------------------------------------------------------------------------------
// x86-64

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#define FAST_NAME "SHA-NI"

static bool has_fast(void) {
  const unsigned ssse3 = 1u << 9, sse41 = 1u << 19, sha = 1u << 29;
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & (ssse3 | sse41)) != (ssse3 | sse41)) return false;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && b & sha;
}

#define WITH_SHA __attribute__((target("sha,ssse3,sse4.1")))

// The instructions keep the state as two vectors, ABEF and CDGH, highest lane first.
typedef struct vectors {
  __m128i abef, cdgh;
} vectors_t;

WITH_SHA static inline vectors_t load(const uint32_t state[8]) {
  const __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xb1),
                efgh = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1b);
  return (vectors_t){_mm_alignr_epi8(cdab, efgh, 8), _mm_blend_epi16(efgh, cdab, 0xf0)};
}

WITH_SHA static inline void store(vectors_t v, uint32_t state[8]) {
  const __m128i feba = _mm_shuffle_epi32(v.abef, 0x1b), dchg = _mm_shuffle_epi32(v.cdgh, 0xb1);
  _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

WITH_SHA static inline vectors_t add(vectors_t a, vectors_t b) {
  return (vectors_t){_mm_add_epi32(a.abef, b.abef), _mm_add_epi32(a.cdgh, b.cdgh)};
}

WITH_SHA static inline void load_block(const uint8_t *block, __m128i w[4]) {
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  for (int i = 0; i < 4; ++i)
    w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(block + 16 * i)), swap);
}

// The message words and constants of rounds 4 |i| to 4 |i| + 3. Replaces the words by those of four rounds
// later.
WITH_SHA static inline __m128i next_words(__m128i w[4], int i) {
  const __m128i sum =
      _mm_add_epi32(w[i & 3], _mm_loadu_si128((const __m128i *)(mlx_sha256_constants + 4 * i)));
  const __m128i last = w[(i + 3) & 3], middle = _mm_alignr_epi8(last, w[(i + 2) & 3], 4);
  if (i < 12)
    w[i & 3] =
        _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(w[i & 3], w[(i + 1) & 3]), middle), last);
  return sum;
}

WITH_SHA static void fast(uint32_t state[8], const uint8_t *blocks, size_t count) {
  vectors_t v = load(state);
  for (; count; --count, blocks += MLX_SHA256_BLOCK) {
    const vectors_t old = v;
    __m128i w[4];
    load_block(blocks, w);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {  // four rounds each
      const __m128i sum = next_words(w, i);
      v.cdgh = _mm_sha256rnds2_epu32(v.cdgh, v.abef, sum);
      v.abef = _mm_sha256rnds2_epu32(v.abef, v.cdgh, _mm_shuffle_epi32(sum, 0x0e));
    }
    v = add(v, old);
  }
  store(v, state);
}

// ----------------------------------------------------------------------------------------------------------
// ARMv8

#elif defined(__aarch64__)
#include <arm_neon.h>
#include <sys/auxv.h>

#define FAST_NAME "ARMv8 SHA2"
#ifdef __clang__
#define WITH_SHA2 __attribute__((target("sha2")))
#else
#define WITH_SHA2 __attribute__((target("+crypto")))
#endif

static bool has_fast(void) { return getauxval(AT_HWCAP) & 1u << 6; }  // HWCAP_SHA2

WITH_SHA2 static void fast(uint32_t state[8], const uint8_t *blocks, size_t count) {
  uint32x4_t abcd = vld1q_u32(state), efgh = vld1q_u32(state + 4);
  for (; count; --count, blocks += MLX_SHA256_BLOCK) {
    const uint32x4_t old_abcd = abcd, old_efgh = efgh;
    uint32x4_t w[4];
    for (int i = 0; i < 4; ++i) w[i] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(blocks + 16 * i)));
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {  // four rounds each
      const uint32x4_t sum = vaddq_u32(w[i & 3], vld1q_u32(mlx_sha256_constants + 4 * i)), before = abcd;
      abcd = vsha256hq_u32(abcd, efgh, sum);
      efgh = vsha256h2q_u32(efgh, before, sum);
      if (i < 12)
        w[i & 3] = vsha256su1q_u32(vsha256su0q_u32(w[i & 3], w[(i + 1) & 3]), w[(i + 2) & 3], w[(i + 3) & 3]);
    }
    abcd = vaddq_u32(abcd, old_abcd);
    efgh = vaddq_u32(efgh, old_efgh);
  }
  vst1q_u32(state, abcd);
  vst1q_u32(state + 4, efgh);
}
#endif

static bool use_fast(void) {
  static _Atomic int
      known;  // 0 before the first call, 1 portable, 2 fast; CPUID is slow in a virtual machine
  int kind = atomic_load_explicit(&known, memory_order_relaxed);
  if (!kind) {
    kind = has_fast() ? 2 : 1;
    atomic_store_explicit(&known, kind, memory_order_relaxed);
  }
  return kind == 2;
}

mlx_sha256_fn_t mlx_sha256_fastest(const char **out_name) {
  if (out_name) *out_name = use_fast() ? FAST_NAME : "portable C";
  return use_fast() ? fast : mlx_sha256_portable;
}
