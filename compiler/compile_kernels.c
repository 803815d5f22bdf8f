// Chooses between the kernel path and the generic path, and how weights are stored.
#include <stdio.h>
#include <string.h>

#include "compiler/compile_job.h"
#include "compiler/emit.h"
#include "compiler/fusion.h"
#include "compiler/kernel_plan.h"
#include "graph/roles.h"

mlx_status_t mlx_kernel_choice_parse(const char *text, mlx_kernel_choice_t *out_choice) {
  static const char *const names[] = {
      [MLX_KERNELS_AUTO] = "auto", [MLX_KERNELS_REQUIRED] = "required", [MLX_KERNELS_OFF] = "off"};
  for (int i = 0; i < 3; ++i) {
    if (strcmp(text, names[i])) continue;
    *out_choice = (mlx_kernel_choice_t)i;
    return NULL;
  }
  return mlx_error(MLX_USAGE, "unknown value '%s' for --kernels: use auto, required or off", text);
}

mlx_status_t mlx_weights_choice_parse(const char *text, mlx_weights_choice_t *out_choice,
                                      mlx_dtype_t *out_dtype) {
  const bool automatic = !strcmp(text, "auto"), quantized = !strcmp(text, "quantized");
  *out_choice = automatic ? MLX_WEIGHTS_AUTO : quantized ? MLX_WEIGHTS_QUANTIZED : MLX_WEIGHTS_FLOAT;
  *out_dtype = MLX_F32;
  if (automatic || quantized) return NULL;
  mlx_status_t status = mlx_dtype_parse(text, out_dtype);
  if (!status) return NULL;
  mlx_status_free(status);
  return mlx_status_hint(mlx_error(MLX_USAGE, "unknown dtype '%s'", text),
                         "dtypes: auto, quantized, f32, f16, bf16");
}

static const struct {
  const char *name;
  mlx_dtype_t dtype;
} kv_dtypes[] = {{"f32", MLX_F32}, {"bf16", MLX_BF16}, {"f16", MLX_F16}, {"q8", MLX_Q8_0}};
#define KV_DTYPES (sizeof kv_dtypes / sizeof *kv_dtypes)

mlx_status_t mlx_kv_parse(const char *text, mlx_dtype_t *out_dtype) {
  for (size_t i = 0; i < KV_DTYPES; ++i) {
    if (strcmp(text, kv_dtypes[i].name)) continue;
    *out_dtype = kv_dtypes[i].dtype;
    return NULL;
  }
  return mlx_error(MLX_USAGE, "unknown value '%s' for --kv: use f32, bf16, f16 or q8", text);
}

const char *mlx_kv_name(mlx_dtype_t dtype) {
  for (size_t i = 0; i < KV_DTYPES; ++i) {
    if (kv_dtypes[i].dtype == dtype) return kv_dtypes[i].name;
  }
  return mlx_dtype_info(dtype)->mlir;
}

// Whether the user allows quantized weights, and |layout| can hold some of the model's.
static bool has_quantized(const mlx_compile_job_t *job, mlx_layout_t layout) {
  const mlx_storage_t storage = {.dtype = MLX_F32, .layout = layout, .quantize = job->options->quantize};
  return job->options->weights != MLX_WEIGHTS_FLOAT &&
         (mlx_weights_count(job->model, storage, MLX_STORED_CODES) ||
          mlx_weights_count(job->model, storage, MLX_STORED_QUANTIZED));
}

// The dtype of matrices that are stored as floats; the 16-bit one if some keep the dtype of their file.
static mlx_dtype_t float_dtype(const mlx_compile_job_t *job) {
  for (size_t i = 0; i < job->model->weight_count; ++i) {
    const mlx_weight_t *weight = &job->model->weights[i];
    const mlx_stored_t stored = mlx_weight_stored(weight, mlx_module_storage(&job->module));
    if (weight->tensor.rank >= 2 && stored.kind == MLX_STORED_FLOATS && stored.dtype != MLX_F32)
      return stored.dtype;
  }
  return job->module.dtype;
}

static bool stays_quantized(const mlx_compile_job_t *job) {
  return job->module.layout == MLX_LAYOUT_QUANTIZED_PANELS || job->module.layout == MLX_LAYOUT_TILES;
}

// The reason why this build has no kernels for the target and dtype; NULL if it has them.
static const char *why_no_kernels(const mlx_compile_job_t *job) {
  if (!job->target.gpu)
    return mlx_kernels_cpu_level(job->target.cpu_level)
               ? NULL
               : "this mlxcel was built without a kernel for that CPU";
  if (!job->target.gpu->kernel_sm) return "the kernels need an sm_80 or newer GPU";
  if (!has_quantized(job, MLX_LAYOUT_TILES) && float_dtype(job) == MLX_F32)
    return "the kernels need quantized or 16-bit weights (--dtype bf16 or f16)";
  return NULL;
}

const mlx_report_t *mlx_job_notes(const mlx_compile_job_t *job) {
  return job->levels_done ? NULL : job->options->report;
}

static mlx_status_t no_kernels(const mlx_compile_job_t *job, const char *why) {
  if (job->options->kernels != MLX_KERNELS_REQUIRED) {
    mlx_report_note(mlx_job_notes(job), "no fast kernels: %s; using the generic path (slower)", why);
    return NULL;
  }
  return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "no fast kernels: %s", why), "use --kernels=auto");
}

// Reports that the kernels do not support the model's network, or an op of it. |missing|: see
// mlx_module_use_kernels.
static mlx_status_t unsupported_network(const mlx_compile_job_t *job, const char *missing) {
  const char *architecture = mlx_source_architecture(job->model->source);
  char reason[160];
  if (job->module.kernels) {
    snprintf(reason, sizeof reason, "%.40s has no fast GPU kernel for %s", architecture, missing);
  } else {
    snprintf(reason, sizeof reason, "%.40s has no fast %s kernel yet (not supported: %s)", architecture,
             job->target.gpu ? "GPU" : "CPU", missing);
  }
  if (job->options->kernels == MLX_KERNELS_REQUIRED)
    return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "%s", reason), "use --kernels=auto");
  mlx_report_note(mlx_job_notes(job), "%s; using the generic path%s (slower)", reason,
                  job->module.kernels ? " for it" : "");
  return NULL;
}

// The first matrix that is quantized in its file and stored as floats, other than a router, which is small;
// NULL if there is none.
static const mlx_weight_t *first_expanded(const mlx_compile_job_t *job) {
  for (size_t i = 0; i < job->model->weight_count; ++i) {
    const mlx_weight_t *weight = &job->model->weights[i];
    if (mlx_weight_is_quantized(weight) && !(weight->roles & MLX_ROLE_ROUTER) &&
        (mlx_weight_is_matrix(weight) || mlx_weight_is_experts(weight)) &&
        mlx_weight_stored(weight, mlx_module_storage(&job->module)).kind == MLX_STORED_FLOATS)
      return weight;
  }
  return NULL;
}

static void note_expanded(const mlx_compile_job_t *job) {
  const mlx_weight_t *expanded = stays_quantized(job) ? first_expanded(job) : NULL;
  if (!expanded) return;
  mlx_report_note(
      mlx_job_notes(job),
      "some quantized weights ('%s' is the first) are expanded to %s: no kernel supports their format",
      expanded->name, mlx_dtype_info(job->module.dtype)->mlir);
}

static mlx_status_t use_cpu_kernels(mlx_compile_job_t *job) {
  if (has_quantized(job, MLX_LAYOUT_QUANTIZED_PANELS)) job->module.layout = MLX_LAYOUT_QUANTIZED_PANELS;
  job->module.quantize = job->options->quantize;
  job->kernels = (mlx_kernels_t){.cpu_level = mlx_kernels_cpu_level(job->target.cpu_level)};
  const char *missing;
  MLX_TRY(mlx_module_use_kernels(job->model, job->graph, &job->kernels, &job->module, &missing));
  if (!job->module.kernels) {
    job->module.layout = MLX_LAYOUT_ROWS;
    return unsupported_network(job, missing);
  }
  note_expanded(job);
  return NULL;
}

// Only kernels read quantized weights; the generic path reads floats.
mlx_status_t mlx_job_check_quantized(const mlx_compile_job_t *job) {
  if (stays_quantized(job)) return NULL;
  if (job->options->weights != MLX_WEIGHTS_QUANTIZED && job->options->quantize == MLX_QUANTIZE_NONE)
    return NULL;
  const char *why = job->module.kernels ? "its file has none that the kernels support"
                                        : "only the kernel path supports them";
  return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "cannot use quantized weights for this model: %s", why),
                         "use --dtype auto, f32 or bf16%s",
                         job->options->quantize ? ", without --quantize" : "");
}

// Refuses a model that already has as few bits: --quantize would have no effect.
mlx_status_t mlx_job_check_quantize(const mlx_compile_job_t *job) {
  const mlx_quantize_t kind = job->options->quantize;
  if (kind == MLX_QUANTIZE_NONE) return NULL;
  if (job->options->weights == MLX_WEIGHTS_FLOAT) {
    return mlx_status_hint(mlx_error(MLX_USAGE, "--quantize cannot be combined with a float --dtype"),
                           "remove --quantize or --dtype");
  }
  const mlx_storage_t storage = {.dtype = MLX_F32, .layout = MLX_LAYOUT_QUANTIZED_PANELS, .quantize = kind};
  if (mlx_weights_count(job->model, storage, MLX_STORED_QUANTIZED)) return NULL;
  return mlx_status_hint(mlx_error(MLX_UNSUPPORTED,
                                   "'%s' has no matrix to quantize to %s: a matrix needs more bits per "
                                   "weight and a multiple of 32 columns",
                                   mlx_source_path(job->model->source), mlx_quantize_name(kind)),
                         "remove --quantize: weights that are already quantized stay as they are");
}

const char *mlx_job_storage_name(const mlx_compile_job_t *job) {
  if (stays_quantized(job))
    return job->module.quantize ? mlx_quantize_name(job->module.quantize) : "quantized";
  return mlx_dtype_info(float_dtype(job))->mlir;
}

mlx_status_t mlx_job_check_kv_format(const mlx_compile_job_t *job) {
  if (job->module.kv != MLX_Q8_0) return NULL;
  bool generic = !job->module.kernels;
  if (job->module.kernels && job->target.gpu)
    generic = !mlx_network_attention(job->graph, &job->module).kernel;
  if (!generic) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_UNSUPPORTED, "cannot use --kv q8 for %s: only the attention kernels support it",
                job->target.name),
      "use --kv f32, bf16 or f16");
}

// Only the CPU kernel computes whole texts.
static mlx_status_t check_encoder(const mlx_compile_job_t *job) {
  if (!mlx_graph_is_encoder(job->graph)) return NULL;
  if (job->target.gpu || job->options->kernels == MLX_KERNELS_OFF)
    return mlx_encoder_needs_kernel(job->model);
  return NULL;
}

mlx_status_t mlx_job_choose_kernels(mlx_compile_job_t *job) {
  const char *why = why_no_kernels(job);
  MLX_TRY(check_encoder(job));
  job->module.window_pages = mlx_graph_mixes_windows(job->graph);
  if (job->options->kernels == MLX_KERNELS_OFF) return NULL;
  if (why) return no_kernels(job, why);
  if (!job->target.gpu) return use_cpu_kernels(job);
  mlx_status_t status = job->nvrtc ? NULL : mlx_nvrtc_open(NULL, &job->nvrtc);
  if (mlx_status_code(status) == MLX_UNAVAILABLE && job->options->kernels == MLX_KERNELS_AUTO) {
    mlx_report_note(job->options->report, "no fast kernels: %s; using the generic path (slower)",
                    mlx_status_message(status));
    mlx_status_free(status);
    return NULL;
  }
  if (status) return status;
  if (has_quantized(job, MLX_LAYOUT_TILES)) job->module.layout = MLX_LAYOUT_TILES;
  job->module.quantize = job->options->quantize;
  job->gpu = *job->target.gpu;
  if (job->options->shared_bytes && job->options->shared_bytes < job->gpu.shared_bytes)
    job->gpu.shared_bytes = job->options->shared_bytes;
  job->kernels = (mlx_kernels_t){.gpu = &job->gpu};
  const char *missing;
  MLX_TRY(mlx_module_use_kernels(job->model, job->graph, &job->kernels, &job->module, &missing));
  if (!job->module.kernels) job->module.layout = MLX_LAYOUT_ROWS;
  note_expanded(job);
  return missing || !job->module.kernels ? unsupported_network(job, missing ? missing : "this network")
                                         : NULL;
}
