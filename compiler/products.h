// Products: which nodes of a graph the CPU kernel computes in the epilogue of a matrix product.
#ifndef MLXCEL_COMPILER_PRODUCTS_H_
#define MLXCEL_COMPILER_PRODUCTS_H_

#include "graph/graph.h"

// One matrix product with its epilogue, in the order in which the kernel applies it (mlx_instruction_t):
// bias, clip, activation or gate, factor, softcap, addition. The ids are of nodes; 0: none.
typedef struct mlx_product {
  int stage;                 // of the last node; 0: this node is no product
  int x;                     // input
  int weight, bias;          // weight nodes
  int up, up_bias;           // second matrix of a gate
  int64_t up_row;            // row of |up| at which the second matrix starts: gate and up in one weight
  int64_t rows;              // of the matrix
  double clip, factor, cap;  // 0: none
  int act;                   // mlx_act_t, or -1
  const float *act_numbers;  // borrowed from the graph; NULL: none
  int added;                 // node that is added
} mlx_product_t;

typedef struct mlx_products {
  mlx_product_t *of;  // owned; node id - 1: the product that ends with this node
  bool *absorbed;     // owned; node id - 1: a later node computes it
} mlx_products_t;

// Finds all products. Release both lists with mlx_free.
mlx_status_t mlx_products_find(const mlx_graph_t *graph, mlx_products_t *out_products) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_PRODUCTS_H_
