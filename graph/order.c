// The order of the nodes of a graph. It depends on their operands, not on the order in which an architecture
// calls its ops.
//
// A node follows its operands, and the nodes of its first operand come before those of its second
// (depth first from the logits). Attention is the exception: its operands are chains of products, norms and
// rotations that start at one input. The input comes first. Then the chains advance side by side, so that q,
// k and v, which read the same input, follow each other.
#include "graph/graph.h"

#include <string.h>

#include "base/memory.h"

typedef struct sorter {
  const mlx_graph_t *graph;
  // Of each node, by id - 1. All owned.
  int *rank;            // place in the depth-first order, from 1; 0: the logits do not need the node
  int *level;           // ops before it; a bias and a limit belong to the level of their product
  int *place;           // new id; 0: not placed yet
  unsigned char *uses;  // of the attention that is being placed: bit i if operand i needs the node
  int *stack;           // ids; the last one is placed next
  int *placed;          // ids in the new order
  size_t depth, count;
} sorter_t;

static void place(sorter_t *s, int id) {
  if (s->place[id - 1]) return;
  s->placed[s->count++] = id;
  s->place[id - 1] = (int)s->count;
}

// ----------------------------------------------------------------------------------------------------------
// Depth first

static void set_rank(sorter_t *s, int id, int rank) {
  const mlx_node_t *node = mlx_graph_node(s->graph, id);
  const bool joins = node->kind == MLX_NODE_BIAS || node->kind == MLX_NODE_CLIP;
  int most = 0;
  for (int i = 0; i < MLX_NODE_OPERANDS; ++i) {
    const int operand = node->operands[i];
    if (operand && s->level[operand - 1] > most) most = s->level[operand - 1];
  }
  s->level[id - 1] = mlx_node_is_input(node->kind) ? 0 : most + (joins ? 0 : 1);
  s->rank[id - 1] = rank;
}

// The first operand of |id| that |done| does not have; 0: it has all.
static int missing_operand(const sorter_t *s, const int *done, int id) {
  const mlx_node_t *node = mlx_graph_node(s->graph, id);
  for (int i = 0; i < MLX_NODE_OPERANDS; ++i)
    if (node->operands[i] && !done[node->operands[i] - 1]) return node->operands[i];
  return 0;
}

static void rank_nodes(sorter_t *s) {
  int rank = 0;
  s->depth = 0;
  s->stack[s->depth++] = (int)s->graph->count;
  while (s->depth) {
    const int id = s->stack[s->depth - 1], operand = missing_operand(s, s->rank, id);
    if (operand) {
      s->stack[s->depth++] = operand;
    } else {
      set_rank(s, id, ++rank);
      --s->depth;
    }
  }
}

// ----------------------------------------------------------------------------------------------------------
// Attention

// Finds the nodes that the operands of |attention| need and that are not placed yet. Nodes have larger ids
// than their operands.
static void mark_operands(sorter_t *s, int attention) {
  const mlx_node_t *node = mlx_graph_node(s->graph, attention);
  memset(s->uses, 0, s->graph->count);
  for (int i = 0; i < 3; ++i)
    if (node->operands[i]) s->uses[node->operands[i] - 1] |= (unsigned char)(1 << i);
  for (int id = attention - 1; id; --id) {
    if (s->place[id - 1]) s->uses[id - 1] = 0;
    const mlx_node_t *needed = s->uses[id - 1] ? mlx_graph_node(s->graph, id) : NULL;
    for (int i = 0; needed && i < MLX_NODE_OPERANDS; ++i)
      if (needed->operands[i]) s->uses[needed->operands[i] - 1] |= s->uses[id - 1];
  }
}

static bool is_shared(const sorter_t *s, int id) {
  const unsigned uses = s->uses[id - 1];
  return uses & (uses - 1);
}

// The last of the nodes that several operands need; 0: there is none.
static int last_shared(const sorter_t *s, int attention) {
  int last = 0;
  for (int id = 1; id < attention; ++id)
    if (is_shared(s, id) && (!last || s->rank[id - 1] > s->rank[last - 1])) last = id;
  return last;
}

// The next node of the chains; 0: all are placed.
static int next_of_chains(const sorter_t *s, int attention) {
  int next = 0;
  for (int id = 1; id < attention; ++id) {
    if (!s->uses[id - 1] || s->place[id - 1]) continue;
    const int ahead = next ? s->level[id - 1] - s->level[next - 1] : -1;
    if (ahead < 0 || (!ahead && s->rank[id - 1] < s->rank[next - 1])) next = id;
  }
  return next;
}

// Returns a node that must be placed before the chains of |attention|. 0: the chains are placed now.
static int place_chains(sorter_t *s, int attention) {
  mark_operands(s, attention);
  const int shared = last_shared(s, attention);
  if (shared) return shared;
  for (int id = next_of_chains(s, attention); id; id = next_of_chains(s, attention)) place(s, id);
  return 0;
}

// ----------------------------------------------------------------------------------------------------------
// All nodes

static void place_nodes(sorter_t *s) {
  const mlx_graph_t *graph = s->graph;
  for (int kind = 0; kind < 4; ++kind)
    for (int id = 1; id <= (int)graph->count; ++id) {
      static const mlx_node_kind_t inputs[] = {MLX_NODE_WEIGHT, MLX_NODE_TOKENS, MLX_NODE_POSITIONS,
                                               MLX_NODE_TYPES};
      if (mlx_graph_node(graph, id)->kind == inputs[kind]) place(s, id);
    }
  s->depth = 0;
  s->stack[s->depth++] = (int)graph->count;
  while (s->depth) {
    const int id = s->stack[s->depth - 1];
    int before = missing_operand(s, s->place, id);
    if (before && mlx_graph_node(graph, id)->kind == MLX_NODE_ATTENTION) before = place_chains(s, id);
    if (before) {
      s->stack[s->depth++] = before;
    } else {
      place(s, id);
      --s->depth;
    }
  }
}

// The nodes in the new order, with their new ids as operands.
static void renumber(const sorter_t *s, mlx_node_t *out) {
  for (size_t i = 0; i < s->count; ++i) {
    out[i] = *mlx_graph_node(s->graph, s->placed[i]);
    out[i].uses = 0;
    for (int k = 0; k < MLX_NODE_OPERANDS; ++k) {
      int *operand = &out[i].operands[k];
      if (!*operand) continue;
      *operand = s->place[*operand - 1];
      ++out[*operand - 1].uses;
    }
  }
}

static mlx_status_t allocate(sorter_t *s, size_t count) {
  MLX_TRY(mlx_alloc(count, sizeof *s->rank, &s->rank));
  MLX_TRY(mlx_alloc(count, sizeof *s->level, &s->level));
  MLX_TRY(mlx_alloc(count, sizeof *s->place, &s->place));
  MLX_TRY(mlx_alloc(count, sizeof *s->uses, &s->uses));
  MLX_TRY(mlx_alloc(count, sizeof *s->stack, &s->stack));
  return mlx_alloc(count, sizeof *s->placed, &s->placed);
}

mlx_status_t mlx_graph_sort(mlx_graph_t *graph) {
  sorter_t s = {.graph = graph};
  mlx_node_t *nodes = NULL;
  mlx_status_t status = allocate(&s, graph->count);
  if (!status) status = mlx_alloc(graph->count, sizeof *nodes, &nodes);
  if (!status) {
    rank_nodes(&s);
    place_nodes(&s);
    renumber(&s, nodes);
    if (graph->positions) graph->positions = s.place[graph->positions - 1];
    if (graph->types) graph->types = s.place[graph->types - 1];
    mlx_free(graph->nodes);
    graph->nodes = nodes;
    graph->capacity = graph->count;
    graph->count = s.count;
  }
  mlx_free(s.rank);
  mlx_free(s.level);
  mlx_free(s.place);
  mlx_free(s.uses);
  mlx_free(s.stack);
  mlx_free(s.placed);
  return status;
}
