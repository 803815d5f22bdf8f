// The longest text that a module supports, and the options that decide its shape.
#include "base/memory.h"
#include "compiler/compile_job.h"
#include "compiler/emit.h"

#define PURE_CONTEXT 2048  // default context length of the pure form

// LongRoPE has one set of frequencies for texts of up to local_context tokens and another set for longer
// texts. A compiled model has only one set: the first, with which output is exact for every text that fits,
// unless the user wants longer texts. No other model depends on |requested|. An encoder takes any: a server
// opens chat models and encoders with the same options.
static mlx_status_t choose_context(const mlx_config_t *config, int64_t requested, int64_t *out_context) {
  const bool has_two = config->local_context && config->local_context < config->context;
  const bool is_long = requested == MLX_CONTEXT_OF_MODEL || requested > config->local_context;
  *out_context = has_two && !is_long ? config->local_context : config->context;
  const int64_t most = config->encoder ? INT64_MAX : config->context;
  if (requested == MLX_CONTEXT_OF_MODEL || (requested >= 0 && requested <= most)) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_USAGE, "context length %lld is not possible: the model supports 1 to %lld",
                (long long)requested, (long long)config->context),
      "use -c %lld or less", (long long)config->context);
}

int64_t mlx_job_longest_text(const mlx_compile_job_t *job) {
  const int64_t wanted = job->options->context > 0    ? job->options->context
                         : job->options->context == 0 ? MLX_DEFAULT_CONTEXT
                                                      : job->module.context;
  return wanted < job->module.context ? wanted : job->module.context;
}

bool mlx_job_kv_bytes(const mlx_compile_job_t *job, int64_t positions, size_t *out_bytes) {
  const bool shares = mlx_graph_is_encoder(job->graph);
  size_t bytes = 0, layer;
  for (int id = 1; id <= (int)job->graph->count; ++id) {
    const mlx_node_t *node = mlx_graph_node(job->graph, id);
    const mlx_attention_t *a = &node->attention;
    if (!mlx_node_stores_kv(node)) continue;
    const size_t head = (size_t)mlx_module_kv_head_bytes(&job->module, a->head_dim);
    if (!mlx_mul((size_t)(mlx_attention_kv_parts(a) * a->kv_heads), head, &layer)) return false;
    if (shares)
      bytes = layer > bytes ? layer : bytes;
    else if (!mlx_add(bytes, layer, &bytes))
      return false;
  }
  return mlx_mul(bytes, (size_t)positions, out_bytes);
}

// The pure form has the KV pages of one sequence as arguments, so it needs a length.
static int64_t pure_context(int64_t requested, int64_t longest) {
  const int64_t wanted = requested > 0 ? requested : requested == 0 ? PURE_CONTEXT : longest;
  return wanted < longest ? wanted : longest;
}

mlx_status_t mlx_job_module_options(const mlx_model_t *model, const mlx_compile_options_t *options,
                                    mlx_form_t form, mlx_module_options_t *out_module) {
  int64_t context;
  MLX_TRY(choose_context(&model->config, options->context, &context));
  if (form == MLX_FORM_PURE) context = pure_context(options->context, context);
  if (model->config.local_context && context > model->config.local_context) {
    mlx_report_note(
        options->report,
        "context length over %lld: the model uses its long-context RoPE frequencies for every text; "
        "output for shorter texts may differ from Hugging Face's",
        (long long)model->config.local_context);
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
  return NULL;
}

mlx_status_t mlx_compile_stablehlo(const char *model_path, const mlx_compile_options_t *options,
                                   char **out_text, size_t *out_length) {
  *out_text = NULL;
  mlx_model_t *model;
  mlx_module_options_t module;
  MLX_TRY(mlx_model_open(model_path, &model));
  if (options->weights == MLX_WEIGHTS_FLOAT) mlx_model_unsort_columns(model);
  mlx_status_t status = mlx_job_module_options(model, options, MLX_FORM_PURE, &module);
  mlx_graph_t *graph = NULL;
  if (!status) status = mlx_model_build_graph(model, module.context, &graph);
  if (!status) status = mlx_module_emit(model, graph, &module, out_text, out_length);
  mlx_graph_free(graph);
  mlx_model_close(model);
  return status;
}
