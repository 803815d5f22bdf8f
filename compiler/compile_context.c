// Context length, and the memory of the KV cache that follows from it.
#include "base/cpu.h"
#include "base/memory.h"
#include "compiler/compile_job.h"
#include "compiler/emit.h"

// Default context length of a model that supports more. Loading a model allocates KV memory for all of it.
#define DEFAULT_CONTEXT 2048

// LongRoPE has one set of frequencies for texts of up to local_context tokens and another set for longer
// texts. A compiled model has only one set. The default context is therefore at most local_context: output is
// then exact for every text that fits.
static mlx_status_t choose_context(const mlx_config_t *config, int64_t requested, int64_t *out_context) {
  const int64_t longest = config->local_context && config->local_context < config->context
                              ? config->local_context
                              : config->context;
  *out_context = requested;
  if (requested == 0) *out_context = longest < DEFAULT_CONTEXT ? longest : DEFAULT_CONTEXT;
  if (requested == MLX_CONTEXT_OF_MODEL) *out_context = config->context;
  if (*out_context >= 1 && *out_context <= config->context) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_USAGE, "context length %lld is not possible: the model supports 1 to %lld",
                (long long)requested, (long long)config->context),
      "use -c %lld or less", (long long)config->context);
}

bool mlx_job_kv_bytes(const mlx_compile_job_t *job, int64_t positions, size_t *out_bytes) {
  const size_t numbers = (size_t)mlx_graph_kv_numbers(job->graph);
  const mlx_dtype_info_t *info = mlx_dtype_info(job->module.kv);
  if (!mlx_mul(numbers, info->block_bytes, out_bytes)) return false;
  *out_bytes /= info->block_elements;
  return mlx_mul(*out_bytes, (size_t)positions, out_bytes);
}

int64_t mlx_job_pool_positions(const mlx_module_options_t *module) {
  return mlx_module_pool_pages(module) * module->page_size;
}

// Refuses a context that cannot fit before the compilation, instead of failing in an allocation at run time.
// Skips the check if the memory is unknown: the target is not this CPU and options->memory is 0.
mlx_status_t mlx_job_check_kv(const mlx_compile_job_t *job) {
  const uint64_t memory = job->options->memory ? job->options->memory
                          : job->target.cpu[0] ? mlx_physical_memory()
                                               : UINT64_MAX;
  const mlx_module_options_t *module = &job->module;
  size_t bytes;
  bool fits = mlx_job_kv_bytes(job, mlx_job_pool_positions(module), &bytes);
  if (fits && bytes <= memory) return NULL;
  return mlx_status_hint(
      mlx_error(
          MLX_OUT_OF_MEMORY, "the KV cache for context length %lld needs %.1f GiB; the device has %.1f GiB",
          (long long)module->context, fits ? (double)bytes / (1 << 30) : 1e9, (double)memory / (1 << 30)),
      "use a smaller context length: -c N");
}

mlx_status_t mlx_job_module_options(const mlx_model_t *model, const mlx_compile_options_t *options,
                                    mlx_form_t form, mlx_module_options_t *out_module) {
  int64_t context;
  MLX_TRY(choose_context(&model->config, options->context, &context));
  if (model->config.local_context && context > model->config.local_context) {
    mlx_report_note(
        options->report,
        "context length over %lld: the model uses its long-context RoPE frequencies for every text; "
        "output for shorter texts may differ from Hugging Face's",
        (long long)model->config.local_context);
  }
  if (options->sequences < 0 || options->sequences > MLX_MAX_SEQUENCES) {
    return mlx_error(MLX_USAGE, "%lld sequences are not possible: use 1 to %d", (long long)options->sequences,
                     MLX_MAX_SEQUENCES);
  }
  if (!mlx_dtype_info(options->dtype)->from_f32) {
    return mlx_error(MLX_USAGE, "weights cannot be stored as %s", mlx_dtype_info(options->dtype)->name);
  }
  mlx_module_options_initialize(context, out_module);
  out_module->form = form;
  out_module->dtype = options->dtype;
  out_module->as_stored = options->weights != MLX_WEIGHTS_FLOAT;
  out_module->narrow = options->weights == MLX_WEIGHTS_FLOAT && options->dtype != MLX_F32;
  out_module->kv = options->kv_given ? options->kv : options->dtype;
  if (options->sequences) out_module->sequences = options->sequences;
  return NULL;
}

mlx_status_t mlx_compile_stablehlo(const char *model_path, const mlx_compile_options_t *options,
                                   char **out_text, size_t *out_length) {
  *out_text = NULL;
  mlx_model_t *model;
  mlx_module_options_t module;
  MLX_TRY(mlx_model_open(model_path, &model));
  mlx_status_t status = mlx_job_module_options(model, options, MLX_FORM_PURE, &module);
  mlx_graph_t *graph = NULL;
  if (!status) status = mlx_model_build_graph(model, module.context, &graph);
  if (!status) status = mlx_module_emit(model, graph, &module, out_text, out_length);
  mlx_graph_free(graph);
  mlx_model_close(model);
  return status;
}
