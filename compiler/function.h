// The function being built: the state that every op lowering reads and writes (mlx_function_t), and the
// prologue that each emitted function starts with. The bottom of the lowering; it calls no lowering itself.
#ifndef MLXCEL_COMPILER_FUNCTION_H_
#define MLXCEL_COMPILER_FUNCTION_H_

#include "compiler/fusion.h"
#include "compiler/module_facts.h"

#define MLX_MAX_ROPES 4

// Arguments of a function (kernels/step.h). All but the first are updated in place: mlx_builder_load gives
// the current value.
#define MLX_ARG_BATCH "batch"
#define MLX_ARG_HISTORY "history"
#define MLX_ARG_KV "kv"
#define MLX_ARG_LOGITS "logits"
#define MLX_ARG_HIDDEN "hidden"
#define MLX_ARG_RESULTS "results"
#define MLX_ARG_CHUNKS "chunks"  // only of modules that are not ragged

#define MLX_STATE_SCRATCH "state.scratch"  // kernel path: scratch memory of the decode or CPU kernel

// Positions in a chunk of generic attention.
#define MLX_CHUNK_POSITIONS 256

// Cosines and sines of the function's positions for one kind of RoPE.
typedef struct mlx_rope_table {
  const mlx_rope_t *rope;
  mlx_built_t cos, sin;  // [N, rope->dims / 2]
} mlx_rope_table_t;

// The kinds of pages of the KV pool (kernels/step.h).
typedef enum mlx_page_kind { MLX_PAGES, MLX_WINDOW_PAGES, MLX_PAGE_KINDS } mlx_page_kind_t;

// Where the keys and values of a layer are: layer |nth| of the |layers| layers in pages of a kind, from byte
// |first_byte| of a page on. In the KV pool of generic attention each position has |rows| rows of keys and as
// many of values, and the layer's part of a page starts at row |first_row|.
typedef struct mlx_layer_place {
  mlx_page_kind_t kind;
  int64_t nth, layers, first_byte, first_row, rows;
} mlx_layer_place_t;

// The weights of a mixture of experts: matrices [experts, rows, columns], biases [experts, rows].
typedef struct mlx_expert_weights {
  mlx_built_t gate, up, down;
  mlx_built_t gate_bias, up_bias, down_bias;  // each may be MLX_NO_VALUE
  mlx_built_t choice_bias, factors;           // [experts] or MLX_NO_VALUE
} mlx_expert_weights_t;

typedef struct mlx_function {
  mlx_builder_t *b;
  const mlx_model_t *model;
  const mlx_graph_t *graph;
  const mlx_module_options_t *options;
  mlx_module_facts_t facts;  // of the module; the emitter of its path fills it
  mlx_network_attention_t attention;
  mlx_built_t *values;  // owned; node id -> its value in the function being built
  const char *scope;    // of the node that was emitted last
  // Of the function being built.
  mlx_step_size_t size;   // N and W
  mlx_built_t batch;      // i32 [?]
  mlx_built_t ids;        // [N] token IDs, none of them MLX_TOKEN_SAMPLED
  mlx_built_t positions;  // [N] position of each token; 0 for padding
  mlx_built_t wanted;     // [W, 1] index of each wanted token
  // Generic attention, for each kind of page that the module has.
  // [N] row in the KV pool of each token's key, if it is in the page's first layer and that layer has one row
  // for each position; padding: in page 0
  mlx_built_t rows[MLX_PAGE_KINDS];
  mlx_built_t in_page;                     // [N] position of each token in its page
  mlx_built_t first_page[MLX_PAGE_KINDS];  // [1] where the page table of the segment is in |batch|
  mlx_built_t first_row;                   // [1] of the pages, after the window pages; id 0: 0
  mlx_built_t last;                        // [1] last position of the segment
  mlx_built_t chunks;                      // number of chunks that have a position of the segment
  // Attention kernels: what the kernel mlx_place gives for each kind of heads (kernels/cuda/place.cu).
  mlx_built_t placed[MLX_HEAD_KINDS];
  mlx_rope_table_t ropes[MLX_MAX_ROPES];
  size_t rope_count;
  mlx_built_t split_parts;            // of the last MLX_LAUNCH_SPLIT
  bool hides_routes;                  // experts of some layer are chosen on the generic path
  const struct mlx_decode_plan *few;  // the function uses the kernel for few tokens; NULL: it does not
} mlx_function_t;

// Allocates what the function owns. Release with mlx_function_release, also after an error.
mlx_status_t mlx_function_create(const mlx_model_t *model, const mlx_graph_t *graph,
                                 const mlx_module_options_t *options, mlx_function_t *out) MLX_MUST_USE;

// Whether a step may have several segments: the CPU kernel and the attention kernels find them by themselves.
bool mlx_function_is_ragged(const mlx_function_t *g);
// Whether the arguments have fixed first dimensions (kernels/step.h): only kernels read beyond them.
bool mlx_function_has_fixed_rows(const mlx_function_t *g);
// |layer| must store keys and values.
mlx_layer_place_t mlx_function_place_layer(const mlx_function_t *g, int64_t layer);
// Layers in a page of a kind; 0: the module has no such pages.
int64_t mlx_function_page_layers(const mlx_function_t *g, mlx_page_kind_t kind);
// Bytes of a page, and numbers of a row.
int64_t mlx_function_page_bytes(const mlx_function_t *g, mlx_page_kind_t kind);
// Bytes of a state: whole rows of |kv|; 0: the network has no recurrent layer.
int64_t mlx_function_state_bytes(const mlx_function_t *g);
int64_t mlx_function_kv_row(const mlx_function_t *g);  // 0: |kv| is a vector of i32
void mlx_function_state_routes(mlx_function_t *g);     // in |facts|

mlx_status_t mlx_function_declare(mlx_function_t *g) MLX_MUST_USE;  // weights
// Starts step_N or burst and declares its arguments.
void mlx_function_begin(mlx_function_t *g, const char *name, const char *comment, mlx_step_size_t size);
// Sets ids, positions, wanted and the values of generic attention, and stores the token IDs in |history|. All
// of it is StableHLO. compiler/lower_place.h does the same by a kernel.
void mlx_function_place_tokens(mlx_function_t *g);
// The first row of |pages|, which are of |kind|.
mlx_built_t mlx_function_page_rows(mlx_function_t *g, mlx_page_kind_t kind, mlx_built_t pages);
void mlx_function_read_positions(mlx_function_t *g);  // only positions and wanted
void mlx_function_release(mlx_function_t *g);         // frees the builder and what the function owns

#endif  // MLXCEL_COMPILER_FUNCTION_H_
