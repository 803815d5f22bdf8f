// The path of each kind of op and what it costs, for the manifest and for --verbose.
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "compiler/compile_job.h"
#include "compiler/cuda_launch.h"
#include "compiler/paths.h"
#include "compiler/plan.h"
#include "compiler/weights.h"

#define GENERIC "generic"

typedef struct description {
  const mlx_compile_job_t *job;
  mlx_paths_t paths;
  bool whole;         // one CPU kernel computes the whole network
  bool whole_decode;  // the CUDA decode kernel computes it
  int64_t rows;       // tokens of the function that is described
  mlx_variant_t *out;
} description_t;

// ----------------------------------------------------------------------------------------------------------
// Path of one node

static mlx_stored_t stored_weight(const description_t *d, const mlx_node_t *weight) {
  return mlx_weight_stored(&d->job->model->weights[weight->weight_index],
                           mlx_module_storage(&d->job->module));
}

// Long segments have a kernel of their own if attention rounds to 16 bits.
static const char *attention_kernel(const description_t *d) {
  const bool narrow = mlx_module_rounds_attention(&d->job->module) && d->rows >= MLX_LONG_STEP;
  return mlx_kernel_kind_name(narrow ? MLX_KERNEL_ATTENTION : MLX_KERNEL_ATTENTION_F32);
}

// Whether rows.cu computes such a node, unless a kernel of another node does.
static bool is_of_rows(mlx_node_kind_t kind) {
  return kind != MLX_NODE_EMBED && kind != MLX_NODE_LINEAR && kind != MLX_NODE_EXPERTS &&
         kind != MLX_NODE_ATTENTION;
}

// Whether |id|, a fused bias, belongs to attention.
static bool is_of_attention(const mlx_graph_t *graph, int id) {
  for (int user = id + 1; user <= (int)graph->count; ++user) {
    const mlx_node_t *node = mlx_graph_node(graph, user);
    for (int i = 0; i < MLX_NODE_OPERANDS; ++i)
      if (node->operands[i] == id)
        return node->kind == MLX_NODE_ATTENTION || node->kind == MLX_NODE_ROPE ||
               node->kind == MLX_NODE_HEAD_RMSNORM;
  }
  return false;
}

// The kernel of a node on the kernel path.
static const char *kernel_of(const description_t *d, const mlx_node_t *node) {
  if (node->kind == MLX_NODE_ATTENTION) return attention_kernel(d);
  const bool embeds = node->kind == MLX_NODE_EMBED;
  if (is_of_rows(node->kind) ||
      (embeds && !stored_weight(d, mlx_graph_operand(d->job->graph, node, 0)).tiles.bits))
    return mlx_kernel_kind_name(MLX_KERNEL_ROWS);
  if (node->kind == MLX_NODE_EXPERTS) return mlx_kernel_kind_name(MLX_KERNEL_EXPERTS);
  if (node->kind != MLX_NODE_LINEAR) return mlx_kernel_kind_name(MLX_KERNEL_PACKED);
  const mlx_stored_t stored = stored_weight(d, mlx_graph_operand(d->job->graph, node, 1));
  if (!stored.tiles.bits && stored.dtype == MLX_F32) return mlx_kernel_kind_name(MLX_KERNEL_EXPERTS);
  const bool linear = !stored.tiles.bits && (d->job->module.narrow || mlx_cuda_uses_gemv(d->rows));
  return mlx_kernel_kind_name(linear ? MLX_KERNEL_LINEAR : MLX_KERNEL_PACKED);
}

// The kernel that computes |id| in a function for which mlx_paths_fuse was called.
static const char *path_of(const description_t *d, int id) {
  const mlx_graph_t *graph = d->job->graph;
  const mlx_node_t *node = mlx_graph_node(graph, id);
  if (d->whole) return mlx_kernel_kind_name(MLX_KERNEL_NETWORK);
  if (d->paths.parts[id - 1] || d->paths.token[id - 1]) return mlx_kernel_kind_name(MLX_KERNEL_PACKED);
  if (node->kind == MLX_NODE_BIAS && d->paths.leaders[id - 1]) return mlx_kernel_kind_name(MLX_KERNEL_PACKED);
  const bool by_attention = node->kind == MLX_NODE_HEAD_RMSNORM || node->kind == MLX_NODE_ROPE ||
                            (node->kind == MLX_NODE_BIAS && is_of_attention(graph, id));
  if (by_attention && d->paths.fused[id - 1]) return attention_kernel(d);
  const bool fuses =
      node->kind == MLX_NODE_ADD || node->kind == MLX_NODE_GATED || node->kind == MLX_NODE_SCALE;
  for (int i = 0; fuses && i < 2 && node->operands[i]; ++i) {
    const int operand = node->operands[i];
    if (!d->paths.fused[operand - 1]) continue;
    return d->paths.leaders[operand - 1] ? mlx_kernel_kind_name(MLX_KERNEL_PACKED)
                                         : kernel_of(d, mlx_graph_node(graph, operand));
  }
  return d->paths.nodes[id - 1].kernel ? kernel_of(d, node) : GENERIC;
}

// ----------------------------------------------------------------------------------------------------------
// Cost of one node

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
    return 2 * a->kv_heads * mlx_module_kv_head_bytes(&d->job->module, a->head_dim);
  int64_t bytes = 0;
  for (int i = 0; i < MLX_NODE_OPERANDS; ++i) bytes += weight_bytes(d, node, i);
  return bytes;
}

// ----------------------------------------------------------------------------------------------------------
// All nodes, by kind and path

static bool computes(mlx_node_kind_t kind) {
  return kind != MLX_NODE_TOKENS && kind != MLX_NODE_POSITIONS && kind != MLX_NODE_WEIGHT &&
         kind != MLX_NODE_WANTED && kind != MLX_NODE_LOGITS;
}

static void add_op(const description_t *d, const mlx_node_t *node, const char *decode, const char *prefill) {
  mlx_variant_t *v = d->out;
  const char *name = mlx_node_kind_name(node->kind);
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
  ++op->count;
  op->bytes += cost_of(d, node);
}

static mlx_status_t describe(description_t *d) {
  const mlx_graph_t *graph = d->job->graph;
  const mlx_module_options_t *o = &d->job->module;
  const mlx_step_size_t decode_size = o->steps[0], prefill_size = o->steps[o->step_count - 1];
  const char **decode;
  MLX_TRY(mlx_alloc(graph->count, sizeof *decode, &decode));
  d->rows = decode_size.tokens;
  mlx_paths_fuse(d->job->model, graph, o, d->rows, decode_size.wanted, &d->paths);
  for (int id = 1; id <= (int)graph->count; ++id)
    decode[id - 1] = d->whole_decode ? mlx_kernel_kind_name(MLX_KERNEL_DECODE) : path_of(d, id);
  d->rows = prefill_size.tokens;
  mlx_paths_fuse(d->job->model, graph, o, d->rows, prefill_size.wanted, &d->paths);
  for (int id = 1; id <= (int)graph->count; ++id) {
    const mlx_node_t *node = mlx_graph_node(graph, id);
    if (computes(node->kind)) add_op(d, node, decode[id - 1], path_of(d, id));
  }
  mlx_free(decode);
  return NULL;
}

mlx_status_t mlx_job_describe_ops(const mlx_compile_job_t *job, mlx_variant_t *out) {
  description_t d = {.job = job, .whole = job->module.kernels && !job->module.kernels->gpu, .out = out};
  mlx_decode_plan_t plan;
  out->op_count = 0;
  if (job->module.kernels && !d.whole)
    MLX_TRY(mlx_decode_plan_make(job->model, job->graph, &job->module, &plan, &d.whole_decode));
  MLX_TRY(mlx_paths_make(job->model, job->graph, &job->module, &d.paths));
  mlx_status_t status = describe(&d);
  mlx_paths_clear(&d.paths);
  return status;
}

mlx_status_t mlx_compile_describe_ops(mlx_model_t *model, const char *target, mlx_variant_t *out,
                                      uint64_t *out_weights) {
  const mlx_compile_options_t options = {.target = target, .weights = MLX_WEIGHTS_AUTO};
  mlx_compile_job_t job = {.options = &options, .model = model};
  *out = (mlx_variant_t){0};
  *out_weights = 0;
  snprintf(out->target, sizeof out->target, "%s", target);
  MLX_TRY(mlx_target_parse(target, &job.target));
  MLX_TRY(mlx_job_module_options(model, &options, MLX_FORM_IREE, &job.module));
  MLX_TRY(mlx_model_build_graph(model, job.module.context, &job.graph));
  mlx_status_t status = mlx_job_choose_kernels(&job);
  if (!status) status = mlx_job_describe_ops(&job, out);
  if (!status) snprintf(out->dtype, sizeof out->dtype, "%s", mlx_job_storage_name(&job));
  if (!status) status = mlx_job_weight_bytes(&job, out_weights);
  size_t position = 0;
  if (!status && mlx_job_kv_bytes(&job, 1, &position)) out->kv_bytes = (int64_t)position;
  mlx_kernels_clear(&job.kernels);
  mlx_nvrtc_close(job.nvrtc);
  mlx_graph_free(job.graph);
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
  return NULL;
}
