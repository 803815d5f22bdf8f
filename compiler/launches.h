// Launches: what one function of a module computes, as an ordered list of kernel launches. The list is the
// only place that says which nodes a kernel computes together. Lowering prints it as MLIR, the CPU program as
// instructions; `compile -v`, the manifest and tests read it.
#ifndef MLXCEL_COMPILER_LAUNCHES_H_
#define MLXCEL_COMPILER_LAUNCHES_H_

#include "compiler/fusion.h"
#include "compiler/plan.h"
#include "compiler/products.h"
#include "kernels/kernel_tables.h"

// What a launch computes. lower.c has one function for each kind of a GPU, cpu_nodes.c for each of a CPU.
typedef enum mlx_launch_kind {
  MLX_LAUNCH_STABLEHLO,       // one node that no kernel knows
  MLX_LAUNCH_EMBED,           // rows of an embedding, times a factor
  MLX_LAUNCH_NORM,            // a norm, plus an addend or with its columns in another order
  MLX_LAUNCH_PERMUTE,         // columns in another order
  MLX_LAUNCH_ELEMENTS,        // elementwise ops
  MLX_LAUNCH_PRODUCT,         // a matrix product
  MLX_LAUNCH_PRODUCTS,        // several products of the same x
  MLX_LAUNCH_TOKEN_PRODUCTS,  // the same of one token, with norm and biases
  MLX_LAUNCH_EXPERTS,         // a mixture of experts
  MLX_LAUNCH_SPLIT,           // x, or its norm, as parts for the products that follow
  MLX_LAUNCH_COMPLETE,        // adds the partial sums of a product to x, where the norm after it does not
  MLX_LAUNCH_ATTENTION,       // attention, with the biases, norms and RoPE of q and k
  MLX_LAUNCH_HEAD_COLUMNS,    // columns of each head
  MLX_LAUNCH_CONVOLVE,        // a causal convolution
  MLX_LAUNCH_DELTA,           // the gated delta rule
  MLX_LAUNCH_SCAN,            // the selective scan of Mamba 1 and 2
  MLX_LAUNCH_WANTED,          // the rows of the wanted tokens; CPU: or of their norm
  MLX_LAUNCH_POOL,            // CPU: one row of each text of an encoder
  MLX_LAUNCH_ROPE,            // CPU: RoPE
  MLX_LAUNCH_VIEW,            // CPU: columns, which stay where they are
  MLX_LAUNCH_HEAD_PRODUCT,    // a product of each head
  MLX_LAUNCH_FEW_QKV,         // few tokens: the rest of a layer, and q, k and v of the next
  MLX_LAUNCH_FEW_LAYER,       // few tokens: the rest of the last layer
  MLX_LAUNCH_FEW_HEAD,        // few tokens: the logits
  MLX_LAUNCH_NETWORK,         // the whole network: the decode kernel
  MLX_LAUNCH_KINDS
} mlx_launch_kind_t;

typedef int mlx_epilogue_t;  // MLX_EPILOGUE_... of kernels/kernel_tables.h

// A list of node ids.
typedef struct mlx_node_ids {
  const int *ids;  // ascending
  int count;
} mlx_node_ids_t;

typedef struct mlx_launch {
  mlx_launch_kind_t kind;
  mlx_kernel_kind_t kernel;  // the source of kernels/; MLX_KERNEL_KINDS: StableHLO
  int node;                  // gives the launch its name and its place: all inputs are computed before it
  mlx_node_ids_t nodes;      // that it computes
  mlx_node_ids_t inputs;     // that it reads, weights included
  mlx_node_ids_t outputs;    // of |nodes|: those that other launches read. The others have no value
  mlx_epilogue_t epilogue;
  bool parts;     // the result is stored as parts and has no f32 form
  bool rows16;    // NORM with |parts|, SPLIT: in the column order of 16-bit weights
  int split;      // SPLIT: node of x, or of its norm. PRODUCT, PRODUCTS: the last SPLIT stored this x
  bool few;       // PRODUCT: the kernel of 9 to 16 tokens, which splits and normalizes x by itself
  bool appended;  // few tokens: FEW_QKV applies RoPE and stores k and v, ATTENTION only reads them
  int64_t layer;  // FEW_QKV
  const char *unsupported;       // STABLEHLO: static text, the feature that has no kernel; NULL: a cheap op
  const mlx_product_t *product;  // CPU: PRODUCT with its epilogue
} mlx_launch_t;

typedef struct mlx_launches {
  const mlx_graph_t *graph;
  mlx_step_size_t size;
  mlx_launch_t *list;  // owned, in the order in which they run
  size_t count;
  int *first_of;  // owned; node id - 1: index of the first launch that computes it; -1: an input of the graph
  int *ids;       // owned: all lists of node ids
  mlx_product_t *products;  // owned; CPU
} mlx_launches_t;

// The launches of the function for |size|; with a CPU kernel, those of its program. |plan|: the network fits
// the decode kernel; NULL: it does not. Release with mlx_launches_clear.
mlx_status_t mlx_launches_make(const mlx_model_t *model, const mlx_graph_t *graph,
                               const mlx_module_options_t *options, mlx_step_size_t size,
                               const mlx_decode_plan_t *plan, mlx_launches_t *out) MLX_MUST_USE;
// The launches of the CPU program of |graph|, whatever the options say.
mlx_status_t mlx_cpu_launches_make(const mlx_graph_t *graph, mlx_launches_t *out) MLX_MUST_USE;
void mlx_launches_clear(mlx_launches_t *launches);

bool mlx_launch_computes(const mlx_launch_t *launch, int node);
const char *mlx_launch_kernel_name(const mlx_launch_t *launch);  // "packed"; "stablehlo"

// The most memory that values of the function take at a time: the estimate of launch_memory.c, in bytes. It
// has no memory that IREE takes inside an op of the generic path, and no scratch of a kernel of whole
// networks.
mlx_status_t mlx_launches_bytes(const mlx_launches_t *launches, const mlx_module_options_t *options,
                                int64_t *out_bytes) MLX_MUST_USE;

// Appends one line per launch: kernel, kind, epilogue and form of the result; outputs = nodes <- inputs.
//   packed product add: layer0.after_attn = layer0.o, layer0.after_attn <- embedded, layer0.attended, ...
void mlx_launches_print(const mlx_launches_t *launches, mlx_text_t *out);
// Calls |line| for each different launch, in order, with the number of such launches and its nodes. Launches
// of different layers are the same:
//   32, "packed product add: layer*.o, layer*.after_attn"
mlx_status_t mlx_launches_summarize(const mlx_launches_t *launches,
                                    void (*line)(void *user, int count, const char *text),
                                    void *user) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_LAUNCHES_H_
