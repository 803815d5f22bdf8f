// SHA-256 of several chunks at once, for CPUs without SHA instructions. See sha256.h.
#include <stdatomic.h>
#include <string.h>

#include "base/sha256.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static uint32_t big_endian(uint32_t word) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  return __builtin_bswap32(word);
#else
  return word;
#endif
}

typedef uint32_t vector4_t __attribute__((vector_size(16)));
#define LANES 4
#define VECTOR vector4_t
#define ADD_BLOCKS add_4_lanes
#define TARGET
#include "base/sha256_lanes_body.h"

#if defined(__x86_64__)
typedef uint32_t vector8_t __attribute__((vector_size(32)));
#define LANES 8
#define VECTOR vector8_t
#define ADD_BLOCKS add_8_lanes
#define TARGET __attribute__((target("avx2")))
#include "base/sha256_lanes_body.h"

typedef uint32_t vector16_t __attribute__((vector_size(64)));
#define LANES 16
#define VECTOR vector16_t
#define ADD_BLOCKS add_16_lanes
#define TARGET __attribute__((target("avx512f")))
#include "base/sha256_lanes_body.h"

// The vector registers that the system saves: bit 2 for 256 bits, bits 5 to 7 for 512 bits.
static unsigned saved_registers(void) {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & 1u << 27)) return 0;  // OSXSAVE
  __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  return a;
}

static size_t find_widest(void) {
  const unsigned avx2 = 1u << 5, avx512f = 1u << 16, saved = saved_registers();
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 4;
  if (b & avx512f && (saved & 0xe6) == 0xe6) return 16;
  return b & avx2 && (saved & 6) == 6 ? 8 : 4;
}
#else
static size_t find_widest(void) { return 4; }
#endif

// CPUID is slow in a virtual machine, so it is asked once.
static size_t widest(void) {
  static _Atomic size_t known;
  if (!known) known = find_widest();
  return known;
}

mlx_sha256_lanes_t mlx_sha256_lanes(size_t most) {
  const size_t here = widest(), lanes = most < here ? most : here;
#if defined(__x86_64__)
  if (lanes >= 16) return (mlx_sha256_lanes_t){add_16_lanes, 16};
  if (lanes >= 8) return (mlx_sha256_lanes_t){add_8_lanes, 8};
#endif
  return lanes >= 4 ? (mlx_sha256_lanes_t){add_4_lanes, 4} : (mlx_sha256_lanes_t){NULL, 1};
}
