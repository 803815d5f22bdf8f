// Finds the nodes of latent attention by their operands.
#include "compiler/latent.h"

typedef struct finder {
  const mlx_graph_t *graph;
  mlx_latent_t *out;
} finder_t;

// Adds node |id| to out->nodes and returns it, if it has |kind| and one user; else returns NULL.
static const mlx_node_t *take(const finder_t *f, int id, mlx_node_kind_t kind) {
  const mlx_node_t *node = id ? mlx_graph_node(f->graph, id) : NULL;
  if (!node || node->kind != kind || node->uses != 1 || f->out->count == MLX_LATENT_NODES) return NULL;
  f->out->nodes[f->out->count++] = id;
  return node;
}

// Takes RoPE node |id| over all |dims| columns, and its operand of kind |from|. Returns the operand, or NULL.
static const mlx_node_t *take_rotated(const finder_t *f, int id, int64_t dims, mlx_node_kind_t from) {
  const mlx_node_t *rope = take(f, id, MLX_NODE_ROPE);
  if (!rope || rope->head_dim != dims || rope->rope->dims != dims) return NULL;
  if (f->out->rope && !mlx_rope_equal(f->out->rope, rope->rope)) return NULL;
  f->out->rope = rope->rope;
  return take(f, rope->operands[0], from);
}

static bool find_queries(const finder_t *f, const mlx_attention_t *a, int id) {
  const int64_t rotary = a->head_dim - a->value_dim;
  if (mlx_graph_node(f->graph, id)->kind == MLX_NODE_GROW) {
    f->out->grow = take(f, id, MLX_NODE_GROW);
    if (!f->out->grow) return false;
    id = f->out->grow->operands[0];
  }
  const mlx_node_t *join = take(f, id, MLX_NODE_HEAD_JOIN);
  if (!join || join->head_dim != a->value_dim) return false;
  f->out->columns = take_rotated(f, join->operands[1], rotary, MLX_NODE_HEAD_COLUMNS);
  if (!f->out->columns || f->out->columns->dims[1] != a->heads * rotary) return false;
  f->out->absorbed = join->operands[0];
  f->out->q = f->out->columns->operands[0];
  return true;
}

static bool find_key(const finder_t *f, const mlx_attention_t *a, int id) {
  const int64_t rotary = a->head_dim - a->value_dim;
  const mlx_node_t *join = take(f, id, MLX_NODE_JOIN);
  if (!join) return false;
  f->out->norm = take(f, join->operands[0], MLX_NODE_RMSNORM);
  const mlx_node_t *latent = f->out->norm ? take(f, f->out->norm->operands[0], MLX_NODE_COLUMNS) : NULL,
                   *columns = latent ? take_rotated(f, join->operands[1], rotary, MLX_NODE_COLUMNS) : NULL;
  if (!columns || !f->out->norm->operands[1] || columns->operands[0] != latent->operands[0]) return false;
  f->out->row = latent->operands[0];
  return latent->start == 0 && latent->dims[1] == a->value_dim && columns->start == a->value_dim &&
         columns->dims[1] == rotary && mlx_graph_node(f->graph, f->out->row)->dims[1] == a->head_dim;
}

bool mlx_latent_find(const mlx_graph_t *graph, const mlx_node_t *attention, mlx_latent_t *out) {
  const finder_t f = {graph, out};
  *out = (mlx_latent_t){.count = 0};
  return find_queries(&f, &attention->attention, attention->operands[0]) &&
         find_key(&f, &attention->attention, attention->operands[1]);
}
