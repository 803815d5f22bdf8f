// The function being built: the state that every op lowering reads and writes (mlx_function_t), and the
// prologue that each emitted function starts with. The bottom of the lowering; it calls no lowering itself.
#ifndef MLXCEL_COMPILER_FUNCTION_H_
#define MLXCEL_COMPILER_FUNCTION_H_

#include "compiler/module_facts.h"
#include "compiler/paths.h"

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
  mlx_value_t cos, sin;  // [N, rope->dims / 2]
} mlx_rope_table_t;

// The kinds of pages of the KV pool (kernels/step.h).
typedef enum mlx_page_kind { MLX_PAGES, MLX_WINDOW_PAGES, MLX_PAGE_KINDS } mlx_page_kind_t;

// Where the keys and values of a layer are: layer |nth| of the |layers| layers in pages of a kind.
typedef struct mlx_layer_place {
  mlx_page_kind_t kind;
  int64_t nth, layers;
} mlx_layer_place_t;

typedef struct mlx_function {
  mlx_builder_t *b;
  const mlx_model_t *model;
  const mlx_graph_t *graph;
  const mlx_module_options_t *options;
  mlx_module_facts_t facts;  // of the module; the emitter of its path fills it
  mlx_paths_t paths;         // owned
  mlx_value_t *values;       // owned; node id -> its value in the function being built
  const char *scope;         // of the node that was emitted last
  // Of the function being built.
  mlx_step_size_t size;   // N and W
  mlx_value_t batch;      // i32 [?]
  mlx_value_t ids;        // [N] token IDs, none of them MLX_TOKEN_SAMPLED
  mlx_value_t positions;  // [N] position of each token; 0 for padding
  mlx_value_t wanted;     // [W, 1] index of each wanted token
  // Generic attention, for each kind of page that the module has.
  mlx_value_t rows[MLX_PAGE_KINDS];  // [N] row in the KV pool of each token's key in the page's first layer;
                                     // padding: in page 0
  mlx_value_t first_page[MLX_PAGE_KINDS];  // [1] where the page table of the segment is in |batch|
  mlx_value_t first_row;                   // [1] of the pages, after the window pages; id 0: 0
  mlx_value_t last;                        // [1] last position of the segment
  mlx_value_t chunks;                      // number of chunks that have a position of the segment
  // Attention kernels: what the kernel mlx_place gives, see kernels/cuda/place.cu.
  mlx_value_t placed;
  mlx_value_t into;  // a product kernel writes its rows there instead of to a new value; id 0: nowhere
  mlx_rope_table_t ropes[MLX_MAX_ROPES];
  size_t rope_count;
  // The last input that was split into bf16 parts for a quantized product, and its parts.
  mlx_value_t split_input, split_parts;
  bool split_for_rows16;  // in the column order of 16-bit weights
  mlx_act_t act;          // of the gated product being built
  bool into_parts;        // the kernel stores its result as such parts, in the order of 16-bit weights
  const struct mlx_decode_plan *few;  // the function uses the kernel for few tokens; NULL: it does not
} mlx_function_t;

// Chooses the path of each node and allocates what the function owns. Release with mlx_function_release, also
// after an error.
mlx_status_t mlx_function_create(const mlx_model_t *model, const mlx_graph_t *graph,
                                 const mlx_module_options_t *options, mlx_function_t *out) MLX_MUST_USE;

// Whether a step may have several segments: the CPU kernel and the attention kernels find them by themselves.
bool mlx_function_is_ragged(const mlx_function_t *g);
// Whether the arguments have fixed first dimensions (kernels/step.h): only kernels read beyond them.
bool mlx_function_has_fixed_rows(const mlx_function_t *g);
mlx_layer_place_t mlx_function_place_layer(const mlx_function_t *g, int64_t layer);
// Layers in a page of a kind; 0: the module has no such pages.
int64_t mlx_function_page_layers(const mlx_function_t *g, mlx_page_kind_t kind);
// Type of |kv|. Bytes of a page, and numbers of a row.
mlx_type_t mlx_function_kv_type(const mlx_function_t *g);
int64_t mlx_function_page_bytes(const mlx_function_t *g, mlx_page_kind_t kind);
int64_t mlx_function_kv_row(const mlx_function_t *g);  // 0: |kv| is a vector of i32

mlx_status_t mlx_function_declare(mlx_function_t *g) MLX_MUST_USE;  // weights
// Starts step_N or burst and declares its arguments.
void mlx_function_begin(mlx_function_t *g, const char *name, const char *comment, mlx_step_size_t size);
// Sets ids, positions, wanted and the values of generic attention, and stores the token IDs in |history|. All
// of it is StableHLO. compiler/lower_place.h does the same by a kernel.
void mlx_function_place_tokens(mlx_function_t *g);
// The first row of |pages|, which are of |kind|.
mlx_value_t mlx_function_page_rows(mlx_function_t *g, mlx_page_kind_t kind, mlx_value_t pages);
void mlx_function_read_positions(mlx_function_t *g);  // only positions and wanted
void mlx_function_release(mlx_function_t *g);         // frees the builder and what the function owns

#endif  // MLXCEL_COMPILER_FUNCTION_H_
