// Chooses the variant of a model that runs best on this machine, or explains why none runs.
#include "runtime/variant.h"

#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/gpu.h"
#include "runtime/rooms.h"

#define GPU_RANK 1000  // above the ranks of all CPU levels

// A bundle that was pulled for one target lists all its targets, but has only the code of that one.
static bool has_code(const mlx_engine_t *engine, const mlx_variant_t *variant) {
  bool found = !engine->bundle;
  for (size_t i = 0; i < mlx_variant_module_count(variant) && !found; ++i)
    found = mlx_bundle_has(engine->bundle, mlx_variant_module(variant, i).text);
  return found;
}

// ----------------------------------------------------------------------------------------------------------
// CPUs

static mlx_status_t cpu_level_error(const char *name, const char *target) {
  return mlx_status_hint(
      mlx_error(MLX_UNAVAILABLE, "%s was compiled for %s, which this CPU (%s) does not run", name, target,
                mlx_cpu_level_here()->name),
      "compile it here: mlxcel compile MODEL --target cpu; or for every kind of CPU: "
      "--target " MLX_TARGET_PORTABLE);
}

// The highest level of a portable variant that this CPU runs, or NULL.
static const char *best_level(const mlx_variant_t *variant) {
  const char *best = NULL;
  for (size_t i = 0; i < variant->level_count; ++i) {
    if (mlx_cpu_has_level(variant->levels[i])) best = variant->levels[i];
  }
  return best;
}

bool mlx_variant_is_cpu(const mlx_variant_t *variant) { return !strncmp(variant->target, "cpu:", 4); }

// Ranks a variant on this CPU: 0 if it does not run here, more for a higher level, and SIZE_MAX for code
// compiled on this machine.
static size_t cpu_rank(const mlx_engine_t *engine, const mlx_variant_t *variant) {
  const char *level = variant->level_count ? best_level(variant) : variant->target + 4;
  char here[MLX_DIGEST_HEX];
  if (!mlx_variant_is_cpu(variant) || !level || !has_code(engine, variant)) return 0;
  if (!strcmp(level, "host")) {
    mlx_cpu_identity(here);
    return strcmp(here, variant->cpu) ? 0 : SIZE_MAX;
  }
  if (!mlx_cpu_has_level(level)) return 0;
  for (size_t i = 0; mlx_cpu_level(i); ++i) {
    if (!strcmp(mlx_cpu_level(i)->name, level)) return i + 1;
  }
  return 0;
}

static bool has_level(const mlx_variant_t *variant, const char *level) {
  if (!variant->level_count) return mlx_variant_is_cpu(variant) && !strcmp(variant->target + 4, level);
  for (size_t i = 0; i < variant->level_count; ++i) {
    if (!strcmp(variant->levels[i], level)) return true;
  }
  return false;
}

static mlx_status_t missing_code_error(const char *name, const mlx_manifest_t *m) {
  return mlx_status_hint(
      mlx_error(MLX_UNAVAILABLE, "%s was compiled for %s, but this copy has no code that runs here", name,
                mlx_manifest_targets_text(m).text),
      "the copy was pulled for another machine: pull it again on this one, or choose with --target");
}

static mlx_status_t no_cpu_variant_error(const mlx_engine_t *engine, const char *name) {
  const mlx_manifest_t *m = &engine->manifest;
  bool any = false, other_machine = false;
  for (size_t i = 0; i < m->variant_count; ++i) {
    any = any || mlx_variant_is_cpu(&m->variants[i]);
    other_machine = other_machine || !strcmp(m->variants[i].target, "cpu:host");
  }
  const mlx_targets_text_t targets = mlx_manifest_targets_text(m);
  for (size_t i = 0; i < m->variant_count; ++i) {
    if (mlx_variant_is_cpu(&m->variants[i]) && !has_code(engine, &m->variants[i]))
      return missing_code_error(name, m);
  }
  if (!any) {
    return mlx_status_hint(
        mlx_error(MLX_UNAVAILABLE, "%s was compiled for %s, not for a CPU", name, targets.text),
        "compile it for the CPU: mlxcel compile MODEL --target cpu");
  }
  if (other_machine && m->variant_count == 1) {
    return mlx_status_hint(mlx_error(MLX_UNAVAILABLE, "%s was compiled for another machine's CPU", name),
                           "compile it on this machine, or for a level of both machines: mlxcel compile "
                           "MODEL --target cpu:LEVEL");
  }
  return cpu_level_error(name, m->variant_count == 1 && m->variants[0].level_count
                                   ? mlx_variant_levels_text(&m->variants[0]).text
                                   : targets.text);
}

// Chooses the level that the user requested, from any variant that has it.
static mlx_status_t choose_level(mlx_engine_t *engine, const char *name, const char *wanted) {
  const mlx_manifest_t *m = &engine->manifest;
  for (size_t i = 0; i < m->variant_count && !engine->variant; ++i) {
    if (has_level(&m->variants[i], wanted) && has_code(engine, &m->variants[i]))
      engine->variant = &m->variants[i];
  }
  if (!engine->variant) {
    const mlx_variant_t *first = &m->variants[0];
    return mlx_status_hint(mlx_error(MLX_USAGE, "%s was compiled for %s; it has no code for '%s'", name,
                                     mlx_manifest_targets_text(m).text, wanted),
                           "omit --cpu-level, or compile the model with --target " MLX_TARGET_PORTABLE "%s%s",
                           first->level_count ? "; it has code for " : "",
                           mlx_variant_levels_text(first).text);
  }
  for (size_t i = 0; i < engine->variant->level_count; ++i) {
    if (!strcmp(engine->variant->levels[i], wanted)) engine->level = engine->variant->levels[i];
  }
  if (!strcmp(wanted, "host") ? cpu_rank(engine, engine->variant) > 0 : mlx_cpu_has_level(wanted))
    return NULL;
  return mlx_status_hint(mlx_error(MLX_UNAVAILABLE, "cannot run code for %s: this CPU is %s", wanted,
                                   mlx_cpu_level_here()->name),
                         "omit --cpu-level: the best level for this CPU is chosen");
}

mlx_status_t mlx_variant_choose_cpu(mlx_engine_t *engine, const char *name, const char *wanted_level) {
  const mlx_manifest_t *m = &engine->manifest;
  size_t best = 0;
  if (wanted_level) return choose_level(engine, name, wanted_level);
  for (size_t i = 0; i < m->variant_count; ++i) {
    const size_t rank = cpu_rank(engine, &m->variants[i]);
    if (rank <= best) continue;
    best = rank;
    engine->variant = &m->variants[i];
    engine->level = best_level(engine->variant);
  }
  return best ? NULL : no_cpu_variant_error(engine, name);
}

// ----------------------------------------------------------------------------------------------------------
// GPUs

// Code for one GPU runs on every later GPU, because the driver compiles its PTX. The driver must be new
// enough to read that PTX.
mlx_status_t mlx_variant_check_gpu(const char *name, const mlx_variant_t *variant,
                                   const mlx_gpu_info_t *gpu) {
  const char *target = variant->target;
  const mlx_gpu_kind_t *kind = strncmp(target, "cuda:", 5) ? NULL : mlx_gpu_kind_parse(target + 5);
  if (!kind) {
    return mlx_status_hint(mlx_error(MLX_UNAVAILABLE, "%s was compiled for %s, not for a GPU", name, target),
                           "compile it for this GPU: mlxcel compile MODEL --target cuda:sm_%d", gpu->sm);
  }
  if (gpu->sm < (variant->kernel_count ? kind->kernel_sm : kind->iree_sm)) {
    return mlx_status_hint(mlx_error(MLX_UNAVAILABLE, "%s was compiled for %s; this GPU (%s) is sm_%d", name,
                                     target, gpu->name, gpu->sm),
                           "compile it for this GPU: mlxcel compile MODEL --target cuda:sm_%d", gpu->sm);
  }
  const int needed = variant->driver > kind->min_driver ? (int)variant->driver : kind->min_driver;
  if (gpu->driver >= needed) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_UNAVAILABLE, "%s needs a driver for CUDA %d.%d%s; this one is for CUDA %d.%d", name,
                needed / 1000, needed % 1000 / 10,
                needed == kind->min_driver ? "" : ", because of its linked kernels", gpu->driver / 1000,
                gpu->driver % 1000 / 10),
      needed == kind->min_driver ? "update the NVIDIA driver, or use --device cpu"
                                 : "update the NVIDIA driver, or compile the model with --kernels=off");
}

// The compute capability that a variant was compiled for (90 for sm_90); 0 for a CPU.
static int variant_sm(const mlx_variant_t *variant) {
  const mlx_gpu_kind_t *kind =
      strncmp(variant->target, "cuda:", 5) ? NULL : mlx_gpu_kind_parse(variant->target + 5);
  return kind ? kind->sm : 0;
}

// Chooses the variant for the newest GPU among those that this GPU runs. If it runs none, the error is about
// the first variant in the manifest.
mlx_status_t mlx_variant_choose_gpu(mlx_engine_t *engine, const char *name, const mlx_gpu_info_t *gpu) {
  const mlx_manifest_t *m = &engine->manifest;
  mlx_status_t refused = NULL;
  for (size_t i = 0; i < m->variant_count; ++i) {
    const mlx_variant_t *variant = &m->variants[i];
    if ((m->variant_count > 1 && !variant_sm(variant)) || !has_code(engine, variant)) continue;
    mlx_status_t status = mlx_variant_check_gpu(name, variant, gpu);
    if (!status && (!engine->variant || variant_sm(variant) > variant_sm(engine->variant)))
      engine->variant = variant;
    refused = mlx_status_join(refused, status);
  }
  if (engine->variant) {
    mlx_status_free(refused);
    return NULL;
  }
  if (refused) return refused;
  for (size_t i = 0; i < m->variant_count; ++i) {
    if (variant_sm(&m->variants[i])) return missing_code_error(name, m);
  }
  return mlx_status_hint(mlx_error(MLX_UNAVAILABLE, "%s was compiled for %s, not for a GPU", name,
                                   mlx_manifest_targets_text(m).text),
                         "compile it for this GPU: mlxcel compile MODEL --target cuda:sm_%d", gpu->sm);
}

// ----------------------------------------------------------------------------------------------------------
// Targets by name

size_t mlx_engine_rank_target(const char *target, const char *cpu) {
  const mlx_engine_t engine = {0};  // without a bundle, has_code is always true
  mlx_variant_t variant = {0};
  mlx_gpu_info_t gpu;
  snprintf(variant.target, sizeof variant.target, "%s", target);
  snprintf(variant.cpu, sizeof variant.cpu, "%s", cpu);
  if (!strcmp(target, MLX_TARGET_PORTABLE))
    snprintf(variant.levels[variant.level_count++], sizeof variant.levels[0], "%s",
             mlx_cpu_level_here()->name);
  if (mlx_variant_is_cpu(&variant)) {
    const size_t rank = cpu_rank(&engine, &variant);
    return rank < GPU_RANK ? rank : GPU_RANK - 1;
  }
  mlx_status_t status = mlx_gpu_query(0, &gpu);
  if (!status) status = mlx_variant_check_gpu(target, &variant, &gpu);
  const size_t rank = status ? 0 : GPU_RANK + (size_t)variant_sm(&variant);
  mlx_status_free(status);
  return rank;
}
