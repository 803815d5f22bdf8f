// Graphs with their independent nodes in another order, as if an architecture had called its ops in that
// order.
#ifndef MLXCEL_TESTS_SHUFFLE_H_
#define MLXCEL_TESTS_SHUFFLE_H_

#include "base/memory.h"
#include "graph/graph.h"
#include "tests/support/check.h"
#include "tests/support/random_numbers.h"

#define SHUFFLES 20  // of each fixture

// Whether all operands of node |id| have a new id.
static inline bool shuffle_is_ready(const mlx_graph_t *graph, int id, const int *places) {
  const mlx_node_t *node = mlx_graph_node(graph, id);
  for (int i = 0; i < MLX_NODE_OPERANDS; ++i)
    if (node->operands[i] && !places[node->operands[i] - 1]) return false;
  return true;
}

// A copy of |graph| whose nodes are in a random order in which they can be executed. Weights and tokens stay
// first. Release with mlx_graph_free.
static inline mlx_graph_t *shuffle_graph(const mlx_graph_t *graph, uint64_t seed) {
  mlx_graph_t *copy;
  int *places, *ready;
  const size_t count = graph->count;
  CHECK_OK(mlx_alloc(1, sizeof *copy, &copy));
  CHECK_OK(mlx_alloc(count, sizeof *places, &places));
  CHECK_OK(mlx_alloc(count, sizeof *ready, &ready));
  *copy = *graph;
  CHECK_OK(mlx_alloc(count, sizeof *copy->nodes, &copy->nodes));
  copy->capacity = count;
  for (size_t done = 0; done < count; ++done) {
    size_t choices = 0;
    for (int id = 1; id <= (int)count && !(done <= graph->weight_count && choices); ++id)
      if (!places[id - 1] && shuffle_is_ready(graph, id, places)) ready[choices++] = id;
    CHECK(choices);
    const int id = ready[random_next(&seed) % choices];
    mlx_node_t *node = &copy->nodes[done];
    *node = *mlx_graph_node(graph, id);
    for (int i = 0; i < MLX_NODE_OPERANDS; ++i)
      if (node->operands[i]) node->operands[i] = places[node->operands[i] - 1];
    places[id - 1] = (int)done + 1;
  }
  copy->positions = graph->positions ? places[graph->positions - 1] : 0;
  copy->types = graph->types ? places[graph->types - 1] : 0;
  mlx_free(places);
  mlx_free(ready);
  return copy;
}

#endif  // MLXCEL_TESTS_SHUFFLE_H_
