// Matrix products of the CPU network kernel, divided into items: a few rows panel by panel, many rows in
// blocks, or on AMX tiles. The epilogue adds a bias, applies an activation, adds the residual stream or finds
// the largest logit.
//
// The result of a row does not depend on the other rows of the step. With weights in f32, f16 or bf16 all
// ways give the same bits. With quantized weights and integers (vectors.h), formats with one scale per block
// are multiplied in one way only. Other quantized weights: the tokens of long segments (MLX_CPU_MIN_LONG
// tokens of one sequence and more) are multiplied in another way than the others; both have the accuracy of
// f32. The way depends on the token's own segment only, and each way computes a row as if it were alone.
#ifndef MLXCEL_KERNELS_CPU_PRODUCTS_H_
#define MLXCEL_KERNELS_CPU_PRODUCTS_H_

#include "call.h"
#include "panel_codes.h"
#include "panels_by_vectors.h"
#include "tile_f32.h"

#define BLOCK_TOKENS 96       // rows of an item, in a product of many rows
#define MAX_BLOCK_TOKENS 192  // the same, if the matrix has MANY_PANELS panels: enough items for all threads
#define MANY_PANELS 256
#define TILED_TOKENS 256  // AMX: rows of an item
#define TILED_PAIRS 2     // AMX: pairs of panels of an item
#define FEW_TOKENS 16     // AMX: rows of a tile
#define SLICE_PANELS 64   // panels multiplied together with a slice of wide rows, of both matrices

typedef struct product {
  const mlx_instruction_t *i;
  const uint8_t *weight, *up;  // up: second matrix of a gated product, else NULL
  int32_t format, up_format;
  int rows, columns, tokens;
  const uint16_t *parts;  // bf16 parts of x, or NULL
  const int32_t *pairs;   // experts: row t of y is pairs[t], row t of x is pairs[t] / divide; NULL: both t
  int divide, expert;
  int head;  // x and y are columns of head |head|
} product_t;

INLINE product_t product_of(const call_t *c, const mlx_instruction_t *i) {
  product_t p = {.i = i,
                 .weight = c->weights + i->weight.at,
                 .format = i->weight.format,
                 .rows = i->out_rows,
                 .columns = i->width,
                 .tokens = row_count(c, i)};
  if (i->a.parts) p.parts = parts_of_buffer(c, &i->a);
  if (has_weight(&i->up)) {
    p.up = c->weights + i->up.at;
    p.up_format = i->up.format;
  }
  return p;
}

INLINE int panel_count(const product_t *p) { return divide_up(p->rows, MLX_PANEL_ROWS); }
INLINE int group_panels(const product_t *p) { return p->up ? TILE_PANELS / 2 : TILE_PANELS; }
// Blocks of rows, of almost equal size.
INLINE int block_count(const product_t *p) {
  return divide_up(p->tokens, panel_count(p) < MANY_PANELS ? BLOCK_TOKENS : MAX_BLOCK_TOKENS);
}
INLINE int tiled_panels(const product_t *p) { return p->up ? TILED_PAIRS : 2 * TILED_PAIRS; }
INLINE int tiled_groups(const product_t *p) { return divide_up(panel_count(p), tiled_panels(p)); }

INLINE bool has_codes(const product_t *p) {
  return is_quantized(p->format) || (p->up && is_quantized(p->up_format));
}

// Panels that are multiplied together with |count| rows. Rows that are too wide to be prepared at once are
// prepared in slices of columns. Each slice is multiplied with many panels, because preparing it takes as
// long as multiplying it with six panels.
INLINE int panels_together(const product_t *p, int count) {
  if (p->columns / MLX_PANEL_BLOCK <= prepared_blocks(count)) return SUM_PANELS;
  return p->up ? SLICE_PANELS / 2 : SLICE_PANELS;
}

INLINE const float *input_row(const call_t *c, const product_t *p, int token) {
  return row_at(c, &p->i->a, p->pairs ? p->pairs[token] / p->divide : token) + (int64_t)p->head * p->columns;
}
INLINE int output_row(const product_t *p, int token) { return p->pairs ? p->pairs[token] : token; }

// Rows [first, first + count) of a product, multiplied in one way.
typedef enum way { BY_VECTOR, BY_BLOCK, BY_FEW_TILES, BY_TILES } way_t;
typedef struct share {
  way_t way;
  int first, count;
} share_t;

// State that a workgroup keeps between items.
typedef struct worker {
  vectors_t vectors;       // prepared activations
  uint64_t vectors_phase;  // phase of |vectors|, or IDLE
  uint64_t items_phase;    // phase of |items|, or IDLE
  uint32_t items, grain;   // mlx_phase_items() and mlx_phase_grain() of it
  int tiles;               // of mlx_start_products(); 0 between phases
} worker_t;

// Items of a product, and how many of them, panels mostly, are computed together.
int mlx_product_items(const call_t *c, const product_t *p);
uint32_t mlx_product_grain(const call_t *c, const product_t *p);
// Computes items [from, to) of a product.
void mlx_run_product(const call_t *c, const product_t *p, worker_t *worker, uint64_t phase, int from, int to);

#endif  // MLXCEL_KERNELS_CPU_PRODUCTS_H_
