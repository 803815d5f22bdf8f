// CPU levels, and the CPUID checks that find the highest level this machine can run.
#include "base/cpu.h"

#include <stdint.h>
#include <string.h>

// Ascending per architecture: a CPU that runs a level runs the levels before it.
// clang-format off
static const mlx_cpu_level_t levels[] = {
    {"x86-64", MLX_X86_64},
    {"x86-64-v2", MLX_X86_64},
    {"x86-64-v3", MLX_X86_64},
    {"x86-64-v4", MLX_X86_64},
    {"sapphirerapids", MLX_X86_64},
    {"aarch64", MLX_AARCH64},
    {NULL, MLX_X86_64},
};
// clang-format on

#if defined(__x86_64__)
#include <cpuid.h>

#define THIS_ARCH MLX_X86_64

// Linux grants AMX tile state only after an arch_prctl request (mlx_cpu_request_tiles).
bool mlx_cpu_enable_tiles(void) {
  unsigned a, b, c, d;
  const unsigned tiles = 1u << 22 | 1u << 24, fp16 = 1u << 23;  // AMX-BF16, AMX-TILE; AVX512-FP16
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (tiles | fp16)) != (tiles | fp16)) return false;
  return mlx_cpu_request_tiles();
}

// Register state that the operating system saves: bits 1 and 2 are AVX, bits 5 to 7 AVX-512.
static unsigned saved_registers(void) {
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

static bool has_bits(unsigned word, unsigned bits) { return (word & bits) == bits; }

bool mlx_cpu_has_level(const char *level) {
  unsigned a, d, basic = 0, extended = 0, seven = 0, seven_c = 0, one = 0, unused;
  __get_cpuid(1, &a, &unused, &basic, &d);
  __get_cpuid(0x80000001u, &a, &unused, &extended, &d);
  __get_cpuid_count(7, 0, &a, &seven, &seven_c, &d);
  __get_cpuid_count(7, 1, &one, &unused, &a, &d);
  const unsigned ssse3 = 1u << 9, fma = 1u << 12, cx16 = 1u << 13, sse42 = 1u << 20, movbe = 1u << 22,
                 popcnt = 1u << 23, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29, lahf = 1u << 0,
                 lzcnt = 1u << 5, bmi = 1u << 3, avx2 = 1u << 5, bmi2 = 1u << 8,
                 avx512 = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31 /* F, DQ, CD, BW, VL */,
                 vbmi2_vnni = 1u << 6 | 1u << 11, avx_vnni = 1u << 4, avx512_bf16 = 1u << 5;
  const unsigned saved = has_bits(basic, osxsave) ? saved_registers() : 0;
  bool v2 = has_bits(basic, ssse3 | sse42 | popcnt | cx16) && has_bits(extended, lahf);
  bool v3 = v2 && has_bits(basic, avx | fma | movbe | f16c) && has_bits(seven, avx2 | bmi | bmi2) &&
            has_bits(extended, lzcnt) && has_bits(saved, 0x06);
  bool v4 = v3 && has_bits(seven, avx512) && has_bits(saved, 0xe6);
  bool sapphire =
      v4 && has_bits(seven_c, vbmi2_vnni) && has_bits(one, avx_vnni | avx512_bf16) && mlx_cpu_enable_tiles();
  const bool has[] = {true, v2, v3, v4, sapphire};
  for (size_t i = 0; i < sizeof has; ++i) {
    if (!strcmp(levels[i].name, level)) return has[i];
  }
  return false;
}

static void add_features(mlx_digest_t *digest) {
  static const unsigned leaves[][2] = {{1, 0},    {7, 0},    {7, 1},    {0x0d, 1},
                                       {0x14, 0}, {0x19, 0}, {0x1e, 0}, {0x80000001u, 0}};
  for (size_t i = 0; i < sizeof leaves / sizeof *leaves; ++i) {
    unsigned r[4] = {0, 0, 0, 0};
    if (!__get_cpuid_count(leaves[i][0], leaves[i][1], &r[0], &r[1], &r[2], &r[3])) continue;
    // Leaf 1 and the sizes in leaf 0xd differ between cores: keep only the feature bits.
    if (leaves[i][0] == 1) r[1] = 0, r[0] &= 0x0fff0ff0u;
    if (leaves[i][0] == 0x0d) r[1] = 0;
    mlx_digest_field(digest, "cpuid", r, sizeof r);
  }
}

#elif defined(__aarch64__)
#include <sys/auxv.h>

#define THIS_ARCH MLX_AARCH64

bool mlx_cpu_enable_tiles(void) { return false; }

bool mlx_cpu_has_level(const char *level) { return !strcmp(level, "aarch64"); }

static void add_features(mlx_digest_t *digest) {
  unsigned long words[2] = {getauxval(AT_HWCAP), getauxval(AT_HWCAP2)};
  mlx_digest_field(digest, "hwcap", words, sizeof words);
}

#else
#error "mlxcel supports x86-64 and aarch64"
#endif

const mlx_cpu_level_t *mlx_cpu_level(size_t index) {
  return index < sizeof levels / sizeof *levels && levels[index].name ? &levels[index] : NULL;
}

const mlx_cpu_level_t *mlx_cpu_level_find(const char *name) {
  for (const mlx_cpu_level_t *level = levels; level->name; ++level) {
    if (!strcmp(level->name, name)) return level;
  }
  return NULL;
}

const mlx_cpu_level_t *mlx_cpu_level_here(void) {
  const mlx_cpu_level_t *best = NULL;
  for (const mlx_cpu_level_t *level = levels; level->name; ++level) {
    if (level->arch == THIS_ARCH && mlx_cpu_has_level(level->name)) best = level;
  }
  return best;
}

void mlx_cpu_identity(char out_hex[MLX_DIGEST_HEX]) {
  mlx_digest_t digest;
  mlx_digest_begin(&digest);
  add_features(&digest);
  mlx_digest_end(&digest, out_hex);
}
