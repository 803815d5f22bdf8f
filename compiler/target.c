// Parses --target and derives the flags of iree-compile.
#include "compiler/target.h"

#include <stdio.h>
#include <string.h>

#include "artifact/manifest.h"
#include "base/cpu.h"
#include "base/gpu.h"
#include "base/text.h"

#define MAX_TARGETS 40

static mlx_status_t unknown_target(const char *text) {
  char names[MAX_TARGETS][32];
  const char *known[MAX_TARGETS + 3] = {"cpu", MLX_TARGET_PORTABLE};
  size_t count = 0;
  for (size_t i = 0; mlx_cpu_level(i) && count < MAX_TARGETS; ++i)
    snprintf(names[count++], sizeof *names, "cpu:%s", mlx_cpu_level(i)->name);
  for (size_t i = 0; mlx_gpu_kind_at(i) && count < MAX_TARGETS; ++i)
    snprintf(names[count++], sizeof *names, "cuda:sm_%d", mlx_gpu_kind_at(i)->sm);
  mlx_text_t list = {0};
  for (size_t i = 0; i < count; ++i) mlx_text_printf(&list, ", %s", known[2 + i] = names[i]);
  const char *nearest = mlx_nearest_name(text, known);
  mlx_status_t status = mlx_error(MLX_USAGE, "unknown target '%s'", text);
  status =
      mlx_status_hint(status, "%s%s%stargets: cpu (this machine), cuda (its GPU), " MLX_TARGET_PORTABLE "%s",
                      nearest ? "did you mean '" : "", nearest ? nearest : "", nearest ? "'? " : "",
                      list.data ? list.data : "");
  mlx_text_clear(&list);
  return status;
}

static void add_flag(mlx_target_t *t, const char *flag) { t->flags[t->flag_count++] = flag; }

// Calls return before they are done: each function takes a fence to wait for and a fence to signal.
static void add_common_flags(mlx_target_t *t) { add_flag(t, "--iree-execution-model=async-external"); }

static void use_cpu(mlx_target_t *t, const char *level) {
  t->cpu_level = level;
  snprintf(t->name, sizeof t->name, "cpu:%s", level);
  snprintf(t->arch_flag, sizeof t->arch_flag, "--iree-llvmcpu-target-cpu=%s", level);
  add_common_flags(t);
  add_flag(t, "--iree-hal-target-device=local");
  add_flag(t, "--iree-hal-local-target-device-backends=llvm-cpu");
  add_flag(t, t->arch_flag);
}

// Names the triple too, so that a level gives the same code on every build machine.
static void use_cpu_level(mlx_target_t *t, const mlx_cpu_level_t *level) {
  const bool arm = level->arch == MLX_AARCH64;
  use_cpu(t, level->name);
  if (arm)
    snprintf(t->arch_flag, sizeof t->arch_flag,
             "--iree-llvmcpu-target-cpu=generic");  // LLVM's name of the baseline
  add_flag(t, arm ? "--iree-llvmcpu-target-triple=aarch64-linux-gnu"
                  : "--iree-llvmcpu-target-triple=x86_64-linux-gnu");
}

static void use_gpu(mlx_target_t *t, const mlx_gpu_kind_t *gpu) {
  t->gpu = gpu;
  snprintf(t->name, sizeof t->name, "cuda:sm_%d", gpu->sm);
  snprintf(t->arch_flag, sizeof t->arch_flag, "--iree-cuda-target=%s", gpu->iree_target);
  add_common_flags(t);
  add_flag(t, "--iree-hal-target-device=cuda");
  add_flag(t, t->arch_flag);
}

mlx_status_t mlx_target_parse(const char *text, mlx_target_t *t) {
  *t = (mlx_target_t){0};
  if (!strcmp(text, "cpu") || !strcmp(text, "cpu:host")) {
    mlx_cpu_identity(t->cpu);
    use_cpu(t, "host");
    return NULL;
  }
  if (!strcmp(text, MLX_TARGET_PORTABLE)) {
    t->portable = true;
    snprintf(t->name, sizeof t->name, "%s", MLX_TARGET_PORTABLE);
    return NULL;
  }
  const mlx_cpu_level_t *level = strncmp(text, "cpu:", 4) ? NULL : mlx_cpu_level_find(text + 4);
  if (level) {
    use_cpu_level(t, level);
    return NULL;
  }
  const mlx_gpu_kind_t *gpu = strncmp(text, "cuda:", 5) ? NULL : mlx_gpu_kind_parse(text + 5);
  if (!gpu) return unknown_target(text);
  use_gpu(t, gpu);
  return NULL;
}
