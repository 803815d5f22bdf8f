// The path of each kind of op and what it costs, for the manifest and for --verbose.
#include <stdio.h>
#include <string.h>

#include "compiler/compile_job.h"
#include "compiler/launches.h"
#include "compiler/weights.h"

#define GENERIC "generic"

typedef struct description {
  const mlx_compile_job_t *job;
  mlx_launches_t decode, prefill;  // owned
  mlx_variant_t *out;
} description_t;

// The kernel that computes node |id|.
static const char *path_of(const mlx_launches_t *launches, int id) {
  const mlx_launch_t *launch = &launches->list[launches->first_of[id - 1]];
  return launch->kind == MLX_LAUNCH_STABLEHLO ? GENERIC : mlx_launch_kernel_name(launch);
}

// ----------------------------------------------------------------------------------------------------------
// Cost of a node of a launch

// Bytes of operand |nth| that one token reads, if it is a weight. A token reads one row of an embedding and
// only the experts it uses.
static int64_t weight_bytes(const description_t *d, const mlx_node_t *node, int nth) {
  const mlx_node_t *weight = mlx_graph_operand(d->job->graph, node, nth);
  if (!weight || weight->kind != MLX_NODE_WEIGHT) return 0;
  const uint64_t bytes = mlx_weight_stored_bytes(&d->job->model->weights[weight->weight_index],
                                                 mlx_module_storage(&d->job->module));
  if (node->kind == MLX_NODE_EMBED) return (int64_t)(bytes / (uint64_t)weight->dims[0]);
  if (node->kind == MLX_NODE_EXPERTS)
    return (int64_t)(bytes / (uint64_t)weight->dims[0]) * node->experts.used;
  return (int64_t)bytes;
}

static int64_t cost_of(const description_t *d, const mlx_node_t *node) {
  const mlx_attention_t *a = &node->attention;
  if (node->kind == MLX_NODE_ATTENTION)
    return mlx_attention_kv_numbers(a) / a->head_dim * mlx_module_kv_head_bytes(&d->job->module, a->head_dim);
  int64_t bytes = 0;
  for (int i = 0; i < MLX_NODE_OPERANDS; ++i) bytes += weight_bytes(d, node, i);
  return bytes;
}

// ----------------------------------------------------------------------------------------------------------
// The launches of a decode step, by kind of node and path

static bool computes(mlx_node_kind_t kind) {
  return !mlx_node_is_input(kind) && kind != MLX_NODE_WANTED && kind != MLX_NODE_LOGITS;
}

// |first|: no launch before this one computes the node.
static void add_op(const description_t *d, int id, bool first) {
  mlx_variant_t *v = d->out;
  const mlx_node_t *node = mlx_graph_node(d->job->graph, id);
  if (!computes(node->kind)) return;
  const char *name = mlx_node_kind_name(node->kind), *decode = path_of(&d->decode, id),
             *prefill = path_of(&d->prefill, id);
  size_t at = 0;
  while (at < v->op_count && (strcmp(v->ops[at].op, name) || strcmp(v->ops[at].decode, decode) ||
                              strcmp(v->ops[at].prefill, prefill)))
    ++at;
  if (at == MLX_MAX_OPS) return;  // more combinations than any network has
  mlx_variant_op_t *op = &v->ops[at];
  if (at == v->op_count) {
    ++v->op_count;
    *op = (mlx_variant_op_t){0};
    snprintf(op->op, sizeof op->op, "%s", name);
    snprintf(op->decode, sizeof op->decode, "%s", decode);
    snprintf(op->prefill, sizeof op->prefill, "%s", prefill);
  }
  op->count += first;
  op->bytes += cost_of(d, node);
}

// A node that several launches compute, such as a norm, is one op, but each launch reads its weights.
static void describe(const description_t *d) {
  const mlx_launches_t *launches = &d->decode;
  for (size_t i = 0; i < launches->count; ++i) {
    const mlx_node_ids_t nodes = launches->list[i].nodes;
    for (int n = 0; n < nodes.count; ++n)
      add_op(d, nodes.ids[n], launches->first_of[nodes.ids[n] - 1] == (int)i);
  }
}

mlx_status_t mlx_job_describe_ops(const mlx_compile_job_t *job, mlx_variant_t *out) {
  const mlx_module_options_t *o = &job->module;
  description_t d = {.job = job, .out = out};
  mlx_decode_plan_t plan;
  bool fits;
  out->op_count = 0;
  MLX_TRY(mlx_decode_plan_make(job->model, job->graph, o, &plan, &fits));
  MLX_TRY(mlx_launches_make(job->model, job->graph, o, o->steps[0], fits ? &plan : NULL, &d.decode));
  mlx_status_t status =
      mlx_launches_make(job->model, job->graph, o, o->steps[o->step_count - 1], NULL, &d.prefill);
  if (!status) describe(&d);
  if (!status) status = mlx_launches_bytes(&d.prefill, o, &out->step_bytes);
  mlx_launches_clear(&d.decode);
  mlx_launches_clear(&d.prefill);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Launches

// Why the decode kernel does not compute the network.
static void add_misfit(const mlx_compile_job_t *job, mlx_misfit_t misfit, mlx_text_t *out) {
  const mlx_node_t *node = misfit.node ? mlx_graph_node(job->graph, misfit.node) : NULL;
  mlx_text_printf(out, "decode kernel: not used: %s%s%s%s%s\n", node ? node->scope : "",
                  node && node->scope[0] ? "." : "", node ? node->name : "", node ? " " : "", misfit.why);
}

static void add_line(void *user, int count, const char *text) {
  mlx_text_printf(user, "%d %s\n", count, text);
}

// The lines of |text|, which holds for the functions of |first| to |last| tokens.
static void add_launches(int64_t first, int64_t last, const char *text, mlx_text_t *out) {
  for (const char *end; (end = strchr(text, '\n')); text = end + 1) {
    mlx_text_printf(out, "launches: step_%lld", (long long)first);
    if (last != first) mlx_text_printf(out, " to step_%lld", (long long)last);
    mlx_text_printf(out, ": %.*s\n", (int)(end - text), text);
  }
}

static mlx_status_t summarize(const mlx_compile_job_t *job, mlx_step_size_t size,
                              const mlx_decode_plan_t *plan, mlx_text_t *out) {
  mlx_launches_t launches;
  MLX_TRY(mlx_launches_make(job->model, job->graph, &job->module, size, plan, &launches));
  mlx_status_t status = mlx_launches_summarize(&launches, add_line, out);
  mlx_launches_clear(&launches);
  return status ? status : mlx_text_finish(out);
}

// The launches of each function of a module with kernels, a line for each different one. Functions with the
// same launches share their lines.
static mlx_status_t list_launches(const mlx_compile_job_t *job, mlx_text_t *out) {
  const mlx_module_options_t *o = &job->module;
  mlx_decode_plan_t plan;
  bool fits;
  if (!o->kernels) return NULL;
  MLX_TRY(mlx_decode_plan_make(job->model, job->graph, o, &plan, &fits));
  if (!fits && o->kernels->gpu) add_misfit(job, plan.misfit, out);
  mlx_text_t before = {0};
  mlx_status_t status = NULL;
  size_t first = 0;
  for (size_t i = 0; i < o->step_count && !status; ++i) {
    mlx_text_t text = {0};
    status = summarize(job, o->steps[i], fits ? &plan : NULL, &text);
    if (!status && i && strcmp(before.data, text.data)) {
      add_launches(o->steps[first].tokens, o->steps[i - 1].tokens, before.data, out);
      first = i;
    }
    mlx_text_clear(&before);
    before = text;
  }
  if (!status) add_launches(o->steps[first].tokens, o->steps[o->step_count - 1].tokens, before.data, out);
  mlx_text_clear(&before);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Without compiling

// A job that has chosen its kernels. |options| must outlive it. Finish with end_job, also after an error.
static mlx_status_t begin_job(mlx_model_t *model, const mlx_compile_options_t *options,
                              mlx_compile_job_t *out_job) {
  *out_job = (mlx_compile_job_t){.options = options, .model = model};
  MLX_TRY(mlx_target_parse(options->target, &out_job->target));
  MLX_TRY(mlx_job_module_options(model, options, MLX_FORM_IREE, &out_job->module));
  MLX_TRY(mlx_model_build_graph(model, out_job->module.context, &out_job->graph));
  return mlx_job_choose_kernels(out_job);
}

static void end_job(mlx_compile_job_t *job) {
  mlx_kernels_clear(&job->kernels);
  mlx_nvrtc_close(job->nvrtc);
  mlx_graph_free(job->graph);
}

mlx_status_t mlx_compile_describe_ops(mlx_model_t *model, const char *target, mlx_variant_t *out,
                                      uint64_t *out_weights) {
  const mlx_compile_options_t options = {.target = target, .weights = MLX_WEIGHTS_AUTO};
  mlx_compile_job_t job;
  *out = (mlx_variant_t){0};
  *out_weights = 0;
  snprintf(out->target, sizeof out->target, "%s", target);
  mlx_status_t status = begin_job(model, &options, &job);
  if (!status) status = mlx_job_describe_ops(&job, out);
  if (!status) snprintf(out->dtype, sizeof out->dtype, "%s", mlx_job_storage_name(&job));
  if (!status) status = mlx_job_weight_bytes(&job, out_weights);
  size_t position = 0;
  if (!status && mlx_job_kv_bytes(&job, 1, &position)) out->kv_bytes = (int64_t)position;
  end_job(&job);
  return status;
}

mlx_status_t mlx_compile_describe_launches(mlx_model_t *model, const char *target, mlx_text_t *out) {
  const mlx_compile_options_t options = {.target = target, .weights = MLX_WEIGHTS_AUTO};
  mlx_compile_job_t job;
  mlx_status_t status = begin_job(model, &options, &job);
  if (!status) status = list_launches(&job, out);
  end_job(&job);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Notes

static void write_path(const mlx_variant_op_t *op, char *out, size_t size) {
  const bool same = !strcmp(op->decode, op->prefill);
  const char *decode = strcmp(op->decode, GENERIC) ? "kernel " : "",
             *prefill = strcmp(op->prefill, GENERIC) ? "kernel " : "";
  if (same) {
    snprintf(out, size, "%s%s%s", decode, op->decode, decode[0] ? "" : " path");
  } else {
    snprintf(out, size, "%s%s%s in decode, %s%s%s in prefill", decode, op->decode, decode[0] ? "" : " path",
             prefill, op->prefill, prefill[0] ? "" : " path");
  }
}

mlx_status_t mlx_job_explain_ops(const mlx_compile_job_t *job) {
  mlx_variant_t v = {0};
  MLX_TRY(mlx_job_describe_ops(job, &v));
  const int64_t total = mlx_variant_weight_bytes(&v);
  for (size_t i = 0; i < v.op_count; ++i) {
    const mlx_variant_op_t *op = &v.ops[i];
    char path[96], cost[64] = "";
    write_path(op, path, sizeof path);
    mlx_variant_op_cost(op, total, cost, sizeof cost);
    mlx_report_note(mlx_job_notes(job), "ops: %lld %s: %s%s%s", (long long)op->count, op->op, path,
                    cost[0] ? "; " : "", cost);
  }
  mlx_text_t text = {0};
  mlx_status_t status = list_launches(job, &text);
  if (!status) status = mlx_text_finish(&text);
  const char *line = status ? "" : text.data;
  for (const char *end; (end = strchr(line, '\n')); line = end + 1)
    mlx_report_note(mlx_job_notes(job), "%.*s", (int)(end - line), line);
  mlx_text_clear(&text);
  return status;
}
