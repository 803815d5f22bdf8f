#include "base/cpu.h"

#include <stdint.h>
#include <string.h>

// Of each architecture ascending: who runs one runs those before it.
static const mlx_cpu_level_t levels[] = {{"x86-64", MLX_X86_64},          {"x86-64-v2", MLX_X86_64}, {"x86-64-v3", MLX_X86_64},
                                         {"x86-64-v4", MLX_X86_64},       {"sapphirerapids", MLX_X86_64},
                                         {"aarch64", MLX_AARCH64},        {NULL, MLX_X86_64}};

#if defined(__x86_64__)
#include <cpuid.h>

#define HERE MLX_X86_64

// The tiles' registers are large, and systems give them only to who asks.
bool mlx_cpu_enable_tiles(void) {
  unsigned a, b, c, d;
  const unsigned tiles = 1u << 22 | 1u << 24, fp16 = 1u << 23;  // AMX-BF16 and AMX-TILE; who has them has AVX512-FP16
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (tiles | fp16)) != (tiles | fp16)) return false;
  return mlx_cpu_ask_for_tiles();
}

bool mlx_cpu_has_level(const char *level) {
  // The builtin also checks that the operating system saves the registers; the rest of each level are plain cpuid bits.
  __builtin_cpu_init();
  unsigned a, b, basic = 0, extended = 0, d;
  __get_cpuid(1, &a, &b, &basic, &d);
  __get_cpuid(0x80000001u, &a, &b, &extended, &d);
  const unsigned cx16 = 1u << 13, movbe = 1u << 22, f16c = 1u << 29, lahf = 1u << 0, lzcnt = 1u << 5;
  bool v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("ssse3") &&
            (basic & cx16) && (extended & lahf);
  bool v3 = v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
            __builtin_cpu_supports("bmi") && (basic & movbe) && (basic & f16c) && (extended & lzcnt);
  bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd");
  unsigned one = 0;
  if (v4) __get_cpuid_count(7, 1, &one, &b, &a, &d);
  const unsigned avx_vnni = 1u << 4, avx512_bf16 = 1u << 5;
  bool sapphire = v4 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi2") &&
                  (one & (avx_vnni | avx512_bf16)) == (avx_vnni | avx512_bf16) && mlx_cpu_enable_tiles();
  const bool has[] = {true, v2, v3, v4, sapphire};
  for (size_t i = 0; i < sizeof has; ++i) {
    if (!strcmp(levels[i].name, level)) return has[i];
  }
  return false;
}

static void add_features(mlx_digest_t *digest) {
  static const unsigned leaves[][2] = {{1, 0}, {7, 0}, {7, 1}, {0x0d, 1}, {0x14, 0}, {0x19, 0}, {0x1e, 0}, {0x80000001u, 0}};
  for (size_t i = 0; i < sizeof leaves / sizeof *leaves; ++i) {
    unsigned r[4] = {0, 0, 0, 0};
    if (!__get_cpuid_count(leaves[i][0], leaves[i][1], &r[0], &r[1], &r[2], &r[3])) continue;
    // Leaf 1 and the size words of leaf 0xd differ from core to core: only feature bits count.
    if (leaves[i][0] == 1) r[1] = 0, r[0] &= 0x0fff0ff0u;
    if (leaves[i][0] == 0x0d) r[1] = 0;
    mlx_digest_field(digest, "cpuid", r, sizeof r);
  }
}

#elif defined(__aarch64__)
#include <sys/auxv.h>

#define HERE MLX_AARCH64

bool mlx_cpu_enable_tiles(void) { return false; }

bool mlx_cpu_has_level(const char *level) { return !strcmp(level, "aarch64"); }

static void add_features(mlx_digest_t *digest) {
  unsigned long words[2] = {getauxval(AT_HWCAP), getauxval(AT_HWCAP2)};
  mlx_digest_field(digest, "hwcap", words, sizeof words);
}

#else
#error "mlxcel knows x86-64 and aarch64"
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
    if (level->arch == HERE && mlx_cpu_has_level(level->name)) best = level;
  }
  return best;
}

void mlx_cpu_identity(char out_hex[MLX_DIGEST_HEX]) {
  mlx_digest_t digest;
  mlx_digest_begin(&digest);
  add_features(&digest);
  mlx_digest_end(&digest, out_hex);
}
