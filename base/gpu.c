// The table of supported GPUs.
#include "base/gpu.h"

#include <stdio.h>
#include <string.h>

// IREE 3.13 supports sm_75 80 86 87 89 120 121 (and sm_70) and rejects the others. It emits PTX 7.6 up to
// sm_87, 8.4 for sm_89, 8.7 for sm_120 and 8.8 for sm_121. The driver must be at least as new as the CUDA
// release that introduced that PTX version.
// clang-format off
static const mlx_gpu_kind_t kinds[] = {
    // sm, family, IREE target, its sm, minimum driver, kernel sm, blocks, shared bytes, bandwidth
    {75, "Turing", "sm_75", 75, 11060, 0, 72, 64 << 10, 300},
    {80, "Ampere", "sm_80", 80, 11060, 80, 108, 163 << 10, 900},
    {86, "Ampere", "sm_86", 86, 11060, 86, 84, 99 << 10, 200},
    {87, "Ampere", "sm_87", 87, 11060, 87, 16, 163 << 10, 60},
    {89, "Ada", "sm_89", 89, 12040, 89, 142, 99 << 10, 250},
    {90, "Hopper", "sm_80", 80, 11060, 90, 132, 227 << 10, 2000},
    {100, "Blackwell", "sm_80", 80, 11060, 100, 148, 227 << 10, 7000},
    {103, "Blackwell", "sm_80", 80, 11060, 103, 160, 227 << 10, 7000},
    {110, "Blackwell", "sm_80", 80, 11060, 110, 20, 227 << 10, 270},
    {120, "Blackwell", "sm_120", 120, 12080, 120, 188, 99 << 10, 300},
    {121, "Blackwell", "sm_121", 121, 12090, 121, 48, 99 << 10, 270},
};
// clang-format on
#define KIND_COUNT (sizeof kinds / sizeof *kinds)

const mlx_gpu_kind_t *mlx_gpu_kind_at(size_t index) { return index < KIND_COUNT ? &kinds[index] : NULL; }

const mlx_gpu_kind_t *mlx_gpu_kind_find(int sm) {
  for (size_t i = 0; i < KIND_COUNT; ++i) {
    if (kinds[i].sm == sm) return &kinds[i];
  }
  return NULL;
}

const mlx_gpu_kind_t *mlx_gpu_kind_parse(const char *text) {
  int sm, end = 0;
  return sscanf(text, "sm_%d%n", &sm, &end) == 1 && !text[end] ? mlx_gpu_kind_find(sm) : NULL;
}

const mlx_gpu_kind_t *mlx_gpu_kind_parse_capability(const char *text) {
  int major, minor, end = 0;
  if (sscanf(text, "%3d.%1d%n", &major, &minor, &end) == 2 && !text[end])
    return mlx_gpu_kind_find(major * 10 + minor);
  end = 0;
  return sscanf(text, "%4d%n", &major, &end) == 1 && !text[end] ? mlx_gpu_kind_find(major) : NULL;
}
