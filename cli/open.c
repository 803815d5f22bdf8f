// Reads the flags of verbs that run a model, and prints the device line.
#include "cli/open.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "cli/terminal.h"
#include "open/locate.h"

// ----------------------------------------------------------------------------------------------------------
// Flags

int64_t mlx_context_option(int64_t flag) { return flag < 0 ? 0 : flag == 0 ? -1 : flag; }

static mlx_status_t parse_device(const char *text, mlx_device_choice_t *out) {
  static const char *const names[] = {
      [MLX_USE_CPU] = "cpu", [MLX_USE_CUDA] = "cuda", [MLX_USE_AUTO] = "auto"};
  for (int i = 0; i < 3; ++i) {
    if (strcmp(text, names[i])) continue;
    *out = (mlx_device_choice_t)i;
    return NULL;
  }
  return mlx_error(MLX_USAGE, "option --device expects cpu, cuda or auto, not '%s'", text);
}

mlx_status_t mlx_size_parse(const char *text, const char *option, uint64_t *out_bytes) {
  static const char units[] = "KMGT";
  *out_bytes = 0;
  if (!text) return NULL;
  char *end;
  errno = 0;
  const unsigned long long number = strtoull(text, &end, 10);
  const char *unit = *end ? strchr(units, *end >= 'a' ? *end - 'a' + 'A' : *end) : NULL;
  const int shift = unit ? 10 * (int)(unit - units + 1) : 0;
  if (*text >= '0' && *text <= '9' && !errno && number && number <= UINT64_MAX >> shift &&
      !end[unit ? 1 : 0]) {
    *out_bytes = (uint64_t)number << shift;
    return NULL;
  }
  return mlx_error(MLX_USAGE, "option %s expects a size such as 512M or 8G, not '%s'", option, text);
}

void mlx_open_flags_initialize(mlx_open_flags_t *out_flags) {
  *out_flags = (mlx_open_flags_t){.device = "auto", .context = -1};
  mlx_engine_options_initialize(&out_flags->engine);
  out_flags->engine.report = mlx_terminal_report();
}

static mlx_status_t gpu_error(const char *text) {
  return mlx_status_hint(
      mlx_error(MLX_USAGE, "option --gpu expects numbers of GPUs from 0 on, separated by commas, not '%s'",
                text),
      "`mlxcel doctor` lists the GPUs");
}

static mlx_status_t parse_gpus(const char *text, int *out, size_t *out_count) {
  char *end;
  for (const char *at = text;; at = end + 1) {
    errno = 0;
    const long number = *at >= '0' && *at <= '9' ? strtol(at, &end, 10) : -1;
    if (number < 0 || number > 9999 || errno || (*end && *end != ',')) return gpu_error(text);
    if (*out_count == MLX_MOST_GPUS)
      return mlx_error(MLX_USAGE, "option --gpu: more than %d GPUs are not supported", MLX_MOST_GPUS);
    for (size_t i = 0; i < *out_count; ++i) {
      if (out[i] == number)
        return mlx_status_hint(mlx_error(MLX_USAGE, "option --gpu: GPU %ld is given twice", number),
                               "mlxcel serve --gpu %ld --engines 2 runs two engines on it", number);
    }
    out[(*out_count)++] = (int)number;
    if (!*end) return NULL;
  }
}

// --gpu says that the device is a GPU.
static mlx_status_t read_gpus(mlx_open_flags_t *flags) {
  flags->gpu_count = 0;
  if (!flags->gpu) return NULL;
  if (flags->engine.device == MLX_USE_CPU)
    return mlx_status_hint(mlx_error(MLX_USAGE, "--gpu cannot be used with --device cpu"),
                           "give one of them");
  MLX_TRY(parse_gpus(flags->gpu, flags->gpus, &flags->gpu_count));
  if (flags->gpu_count > 1 && !flags->many_gpus)
    return mlx_status_hint(mlx_error(MLX_USAGE, "this command runs on one GPU, not on %s", flags->gpu),
                           "give one GPU; `mlxcel serve --gpu %s` runs an engine on each", flags->gpu);
  flags->engine.device = MLX_USE_CUDA;
  flags->engine.gpu = flags->gpus[0];
  return NULL;
}

mlx_status_t mlx_open_flags_read(mlx_open_flags_t *flags) {
  mlx_engine_options_t *engine = &flags->engine;
  MLX_TRY(parse_device(flags->device, &engine->device));
  MLX_TRY(read_gpus(flags));
  MLX_TRY(mlx_size_parse(flags->memory, "--memory", &engine->memory));
  engine->threads = (int)flags->threads;
  engine->ranks = (int)flags->ranks;
  engine->context = mlx_context_option(flags->context);
  return NULL;
}

mlx_status_t mlx_cli_open(const mlx_open_flags_t *flags, mlx_engine_t **out_engine,
                          mlx_open_times_t *out_times) {
  char *path;
  *out_engine = NULL;
  MLX_TRY(mlx_locate(flags->model, flags->engine.report, &path));
  mlx_status_t status = mlx_open_located(path, &flags->engine, NULL, out_engine, out_times);
  mlx_free(path);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// The device line

mlx_device_text_t mlx_cli_device_text(const mlx_engine_info_t *info) {
  mlx_device_text_t out;
  if (info->gpu[0] && info->gpu_number) {
    snprintf(out.text, sizeof out.text, "%s, GPU %d, %s", info->device, info->gpu_number, info->gpu);
  } else if (info->gpu[0]) {
    snprintf(out.text, sizeof out.text, "%s, %s", info->device, info->gpu);
  } else {
    snprintf(out.text, sizeof out.text, "%s, %d thread%s", info->device, info->threads,
             info->threads == 1 ? "" : "s");
  }
  return out;
}

void mlx_cli_print_device(const mlx_engine_info_t *info, bool verbose) {
  mlx_terminal_note("device: %s, %s", mlx_cli_device_text(info).text, info->dtype);
  if (strcmp(info->kv, info->activations)) mlx_terminal_note(", KV cache %s", info->kv);
  if (verbose && info->device_reason[0]) mlx_terminal_note(" (auto: %s)", info->device_reason);
  mlx_terminal_note("\n");
  if (info->is_unsigned)
    mlx_terminal_note("unsigned: this bundle was neither compiled here nor signed by a trusted key\n");
  if (!verbose) return;
  mlx_terminal_note("target: %s\nkernels: %s\n", info->target, info->kernels);
  mlx_terminal_note("activations: %s\nKV cache: %s\n", info->activations, info->kv);
  if (info->cpu_level[0]) mlx_terminal_note("cpu level: %s (of %s)\n", info->cpu_level, info->levels);
}
