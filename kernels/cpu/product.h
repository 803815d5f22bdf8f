// Matrix products of the CPU network kernel, divided into items: a few rows panel by panel, many rows in
// blocks, or on AMX tiles. The epilogue adds a bias, applies an activation, adds the residual stream or finds
// the largest logit.
//
// The result of a row does not depend on the other rows of the step. With weights in f32, f16 or bf16 all
// ways give the same bits. With quantized weights and integers (integers.h), formats with one scale per block
// are multiplied in one way only. Other quantized weights: the tokens of long segments (MLX_CPU_MIN_LONG
// tokens of one sequence and more) are multiplied in another way than the others; both have the accuracy of
// f32. The way depends on the token's own segment only, and each way computes a row as if it were alone.
#ifndef MLXCEL_KERNELS_CPU_PRODUCT_H_
#define MLXCEL_KERNELS_CPU_PRODUCT_H_

#include "call.h"
#include "functions.h"
#include "integers.h"
#include "panels.h"
#include "together.h"

#define BLOCK_TOKENS 96   // rows of an item, in a product of many rows
#define TILED_TOKENS 256  // AMX: rows of an item
#define TILED_PAIRS 2     // AMX: pairs of panels of an item
#define TILED_BLOCKS 8    // AMX: blocks of columns split into parts at a time
#define SLICE_PANELS 64   // panels multiplied together with a slice of wide rows, of both matrices
#define FEW_TOKENS 16     // AMX: rows of a tile
#define FEW_AHEAD 512     // AMX, few rows: bf16 values that each panel is prefetched ahead
#define WIDE_COLUMNS 128  // columns converted to f32 at a time: four panels of them fit in the L1 cache
_Static_assert(TILED_BLOCKS % MLX_PANEL_GROUP == 0, "blocks are split in whole super-blocks");

typedef struct product {
  const mlx_instruction_t *i;
  const uint8_t *weight, *up;  // up: second matrix of a gated product, else NULL
  int32_t format, up_format;
  int rows, columns, tokens;
  const uint16_t *parts;  // bf16 parts of x, or NULL
  const int32_t *pairs;   // experts: row t of y is pairs[t], row t of x is pairs[t] / divide; NULL: both t
  int divide, expert;
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
INLINE int block_count(const product_t *p) { return divide_up(p->tokens, BLOCK_TOKENS); }
INLINE int tiled_panels(const product_t *p) { return p->up ? TILED_PAIRS : 2 * TILED_PAIRS; }
INLINE int tiled_groups(const product_t *p) { return divide_up(panel_count(p), tiled_panels(p)); }

typedef enum way { BY_VECTOR, BY_BLOCK, BY_FEW_TILES, BY_TILES } way_t;

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

// Whether rows of long segments are multiplied in another way. With integers that is the case for formats
// with two scales per block, whose blocks are slow to scale.
INLINE bool has_long_way(const product_t *p) {
  return !HAS_INTEGERS || has_two_scales(p->format) || (p->up && has_two_scales(p->up_format));
}

// Rows [first, first + count) of a product, multiplied in one way.
typedef struct share {
  way_t way;
  int first, count;
} share_t;
#define MAX_SHARES 2

// Divides the rows of a product. Returns the number of shares.
INLINE int shares_of(const call_t *c, const product_t *p, share_t *out) {
  int count = 0;
  if (p->tokens < 1) return 0;
  if (!has_codes(p)) {
    way_t way = p->tokens == 1 ? BY_VECTOR : BY_BLOCK;
    if (HAS_TILES && p->parts) way = p->tokens <= FEW_TOKENS ? BY_FEW_TILES : BY_TILES;
    out[0] = (share_t){way, 0, p->tokens};
    return 1;
  }
  const int in_long = p->pairs || !has_long_way(p) ? 0 : long_rows(c, p->i);
  if (in_long) out[count++] = (share_t){HAS_TILES && p->parts ? BY_TILES : BY_BLOCK, 0, in_long};
  if (in_long < p->tokens) out[count++] = (share_t){BY_VECTOR, in_long, p->tokens - in_long};
  return count;
}

static int share_items(const product_t *p, const share_t *share) {
  const int panels = panel_count(p);
  switch (share->way) {
    case BY_VECTOR: return panels * divide_up(share->count, MAX_VECTORS);
    case BY_FEW_TILES: return panels;
    case BY_TILES: return tiled_groups(p) * divide_up(share->count, TILED_TOKENS);
    default: return divide_up(panels, group_panels(p)) * divide_up(share->count, BLOCK_TOKENS);
  }
}

static int product_items(const call_t *c, const product_t *p) {
  share_t shares[MAX_SHARES];
  int items = 0;
  for (int i = shares_of(c, p, shares) - 1; i >= 0; --i) items += share_items(p, &shares[i]);
  return items;
}

// Items, panels mostly, that are computed together.
static uint32_t product_grain(const call_t *c, const product_t *p) {
  share_t shares[MAX_SHARES];
  for (int i = shares_of(c, p, shares) - 1; i >= 0; --i) {
    if (shares[i].way == BY_BLOCK || shares[i].way == BY_TILES) return 1;
    if (has_codes(p) && shares[i].count == 1) return 1;
    if (has_codes(p)) return (uint32_t)panels_together(p, min_int(shares[i].count, MAX_VECTORS));
  }
  return SUM_PANELS;
}

INLINE const float *input_row(const call_t *c, const product_t *p, int token) {
  return row_at(c, &p->i->a, p->pairs ? p->pairs[token] / p->divide : token);
}
INLINE int output_row(const product_t *p, int token) { return p->pairs ? p->pairs[token] : token; }

// ----------------------------------------------------------------------------------------------------------
// Epilogue

// 16 values of a bias: [rows] or, for experts, [experts, rows].
INLINE v16 load_bias(const call_t *c, const product_t *p, const mlx_program_weight_t *bias, int panel,
                     int count) {
  return load_some(vector_at(c, bias) + (int64_t)p->expert * p->rows + 16 * panel, count);
}

// The gate of gpt-oss: g * sigmoid(slope * g) * (u + 1), with g and u clamped.
INLINE v16 clamped_gate(const mlx_instruction_t *i, v16 gate, v16 up) {
  const v16 g = v_min(gate, v_all(i->clip)), u = v_clip(up, i->clip);
  return v_mul(v_add(u, v_all(1)), v_mul(g, v_sigmoid(v_mul(g, v_all(i->slope)))));
}

INLINE v16 finish_value(const call_t *c, const product_t *p, int panel, int count, v16 value, v16 up) {
  const mlx_instruction_t *i = p->i;
  if (has_weight(&i->bias)) value = v_add(value, load_bias(c, p, &i->bias, panel, count));
  if (p->up && has_weight(&i->up_bias)) up = v_add(up, load_bias(c, p, &i->up_bias, panel, count));
  if (i->slope != 0) return clamped_gate(i, value, up);
  if (i->clip != 0) value = v_clip(value, i->clip);
  if (p->up && i->act == MLX_RUN_SILU)
    value = v_mul(v_silu(value), up);
  else if (p->up)
    value = v_mul(v_activate(i->act, value), up);
  else if (i->act != MLX_RUN_NO_ACT)
    value = v_activate(i->act, value);
  if (i->factor != 0) value = v_mul(value, v_all(i->factor));
  return i->cap != 0 ? v_softcap(value, i->cap) : value;
}

// Keeps the largest logit of each panel, for greedy sampling. +infinity marks a panel with a logit that is
// not finite. Rows past the last one have zero weights, so their values are finite.
static void store_logits(const call_t *c, const product_t *p, int row, int panel, int count, v16 value) {
  const float nothing = v_sum(v_sub(value, value));
  c->best[(int64_t)row * panel_count(p) + panel] =
      nothing == 0 ? v_reduce_max(v_keep_first(value, count)) : __builtin_inff();
  store_some(c->logits + (int64_t)row * p->rows + 16 * panel, value, count);
}

// Applies the epilogue to the sums of one row of x for the 16 rows of a panel.
static void apply_epilogue(const call_t *c, const product_t *p, int token, int panel, v16 value, v16 up) {
  const mlx_instruction_t *i = p->i;
  const int count = min_int(16, p->rows - 16 * panel), row = output_row(p, token);
  value = finish_value(c, p, panel, count, value, up);
  if (i->logits) {
    store_logits(c, p, token, panel, count, value);
    return;
  }
  if (i->adds) value = v_add(load_some(row_at(c, &i->b, row) + 16 * panel, count), value);
  if (stores_parts(c, i, row)) store_parts(parts_of_buffer(c, &i->out), value, row, p->rows, 16 * panel);
  if (stores_plain(c, i, row)) store_some(row_at(c, &i->out, row) + 16 * panel, value, count);
}

// ----------------------------------------------------------------------------------------------------------
// Few rows, panel by panel

// State that a workgroup keeps between items.
typedef struct worker {
  vectors_t vectors;       // prepared activations
  uint64_t vectors_phase;  // phase of |vectors|, or IDLE
  uint64_t items_phase;    // phase of |items|, or IDLE
  uint32_t items, grain;   // item_count() and item_grain() of it
  int tiles;               // of start_products(); 0 between phases
} worker_t;

// Prepares the blocks from |first| on of |count| rows, starting at |row|, unless the worker has them.
static void prepare_rows(const call_t *c, const product_t *p, worker_t *worker, uint64_t phase, int row,
                         int count, int first) {
  vectors_t *v = &worker->vectors;
  const float *x[MAX_VECTORS];
  const bool codes = has_codes(p);
  bool same =
      worker->vectors_phase == phase && v->count == count && v->first == first && (!codes || v->quantized);
  for (int t = 0; t < count; ++t) {
    x[t] = input_row(c, p, row + t);
    same = same && x[t] == v->x[t];
  }
  if (same) return;
  const int blocks = codes ? min_int(p->columns / MLX_PANEL_BLOCK - first, prepared_blocks(count)) : 0;
  prepare_vectors(x, count, first, blocks, codes, v);
  worker->vectors_phase = phase;
}

INLINE int multiply_panels(int32_t format, const uint8_t *matrix, int panel, int count, vectors_t *x,
                           int columns, v16 *out) {
  const int64_t bytes = mlx_panel_bytes(format, columns);
  if (!is_quantized(format))
    return multiply_plain_panels(format, count, matrix + panel * bytes, bytes, x->x[0], columns, out);
  out[0] = multiply_panel(format, matrix + panel * bytes, x, columns);
  return 1;
}

static void multiply_row(const call_t *c, const product_t *p, worker_t *worker, uint64_t phase, int row,
                         int from, int to) {
  v16 value[PLAIN_PANELS], up[PLAIN_PANELS];
  vectors_t *x = &worker->vectors;
  prepare_rows(c, p, worker, phase, row, 1, 0);
  for (int panel = from, done; panel < to; panel += done) {
    done = multiply_panels(p->format, p->weight, panel, to - panel, x, p->columns, value);
    for (int i = 0, more; p->up && i < done; i += more)
      more = multiply_panels(p->up_format, p->up, panel + i, done - i, x, p->columns, up + i);
    for (int i = 0; i < done; ++i) apply_epilogue(c, p, row, panel + i, value[i], p->up ? up[i] : value[i]);
  }
}

// The prepared blocks of |panels| panels, starting at panel |first|.
static void add_panels(int32_t format, const uint8_t *matrix, int first, int panels, worker_t *worker,
                       int columns, panel_sums_t *sums) {
  vectors_t *x = &worker->vectors;
  const int64_t stride = mlx_panel_bytes(format, columns);
  const uint8_t *panel = matrix + first * stride;
  for (int i = 0; x->first == 0 && i < panels; ++i) clear_sums(&sums[i], x);
  if (is_quantized(format) && format != MLX_PANEL_Q2_K) {
    start_products(format, x, &worker->tiles);
    multiply_together(format, panel, stride, panels, x, sums);
    return;
  }
  for (int i = 0; x->first == 0 && i < panels; ++i)
    multiply_each(format, panel + i * stride, x, columns, &sums[i]);
}

// Whether apply_epilogue() only adds a bias, applies SiLU to the gate or adds |b|, and stores f32 values.
INLINE bool has_plain_epilogue(const product_t *p, int panel) {
  const mlx_instruction_t *i = p->i;
  return !p->pairs && !i->logits && !i->out.parts && !has_weight(&i->up_bias) && i->slope == 0 &&
         i->clip == 0 && i->factor == 0 && i->cap == 0 && 16 * panel + 16 <= p->rows &&
         i->act == (p->up ? MLX_RUN_SILU : MLX_RUN_NO_ACT);
}

// apply_epilogue() for |count| rows, starting at |row|. |up|: sums of the second matrix, if there is one.
static void apply_epilogues(const call_t *c, const product_t *p, int row, int count, int panel,
                            const vectors_t *x, const panel_sums_t *one, const panel_sums_t *up) {
  const mlx_instruction_t *i = p->i;
  if (!has_plain_epilogue(p, panel)) {
    for (int t = 0; t < count; ++t)
      apply_epilogue(c, p, row + t, panel, sum_at(one, x, t), sum_at(p->up ? up : one, x, t));
    return;
  }
  const bool has_bias = has_weight(&i->bias), adds = i->adds;
  const v16 bias = has_bias ? load_bias(c, p, &i->bias, panel, 16) : v_zero();
  float *out = row_at(c, &i->out, row) + 16 * panel;
  const float *b = adds ? row_at(c, &i->b, row) + 16 * panel : out;
  const int64_t stride = i->out.stride, b_stride = i->b.stride;
  for (int t = 0; t < count; ++t, out += stride, b += b_stride) {
    v16 value = sum_at(one, x, t);
    if (has_bias) value = v_add(value, bias);
    if (p->up) value = v_mul(v_silu(value), sum_at(up, x, t));
    v_store(out, adds ? v_add(v_load(b), value) : value);
  }
}

// |count| rows of a quantized product, starting at |row|, with up to panels_together() panels.
static void multiply_rows(const call_t *c, const product_t *p, worker_t *worker, uint64_t phase, int row,
                          int count, int from, int to) {
  panel_sums_t sums[SLICE_PANELS], *up_sums = sums + panels_together(p, count);
  for (int first = 0; first < p->columns / MLX_PANEL_BLOCK; first += prepared_blocks(count)) {
    prepare_rows(c, p, worker, phase, row, count, first);
    for (int panel = from; panel < to; panel += SUM_PANELS) {
      const int panels = min_int(SUM_PANELS, to - panel);
      add_panels(p->format, p->weight, panel, panels, worker, p->columns, sums + panel - from);
      if (p->up) add_panels(p->up_format, p->up, panel, panels, worker, p->columns, up_sums + panel - from);
    }
  }
  for (int panel = from; panel < to; ++panel)
    apply_epilogues(c, p, row, count, panel, &worker->vectors, sums + panel - from, up_sums + panel - from);
}

// Items [from, to) of a share: panels of the first MAX_VECTORS rows, then of the next ones.
static void multiply_by_vector(const call_t *c, const product_t *p, const share_t *share, worker_t *worker,
                               uint64_t phase, int from, int to) {
  const int panels = panel_count(p);
  while (from < to) {
    const int group = from / panels, row = share->first + group * MAX_VECTORS,
              count = min_int(MAX_VECTORS, share->first + share->count - row), first = from - group * panels;
    int end = min_int(panels, to - group * panels);
    if (count == 1) {
      multiply_row(c, p, worker, phase, row, first, end);
    } else {
      end = min_int(end, first + panels_together(p, count));
      multiply_rows(c, p, worker, phase, row, count, first, end);
    }
    from = group * panels + end;
  }
  end_products(&worker->tiles);
}

// ----------------------------------------------------------------------------------------------------------
// Many rows in blocks

// One group of panels with one block of rows.
static void multiply_block(const call_t *c, const product_t *p, int item) {
  float wide[WIDE_COLUMNS * TILE_ROWS], sums[BLOCK_TOKENS * TILE_ROWS];
  const int blocks = block_count(p), panels = panel_count(p), step = group_panels(p);
  const int first = item / blocks * step, token = item % blocks * BLOCK_TOKENS,
            tokens = min_int(BLOCK_TOKENS, p->tokens - token);
  for (int i = 0; i < BLOCK_TOKENS * TILE_ROWS; i += 16) v_store(sums + i, v_zero());
  for (int k = 0; k < p->columns; k += WIDE_COLUMNS) {
    const int count = min_int(WIDE_COLUMNS, p->columns - k);
    for (int i = 0; i < TILE_PANELS; ++i) {
      const int32_t format = i < step ? p->format : p->up_format;
      const int panel = min_int(first + i % step, panels - 1);  // sums of panels past the last are discarded
      const uint8_t *from = (i < step ? p->weight : p->up) + panel * mlx_panel_bytes(format, p->columns);
      dequantize_panel(format, from, k, count, wide + 16 * i, TILE_ROWS);
    }
    for (int t = 0; t < tokens; t += TILE_TOKENS) {
      const float *x[TILE_TOKENS];
      for (int i = 0; i < TILE_TOKENS; ++i) x[i] = input_row(c, p, token + min_int(t + i, tokens - 1)) + k;
      multiply_tile(wide, x, count, sums + t * TILE_ROWS);
    }
  }
  for (int t = 0; t < tokens; ++t) {
    for (int i = 0; i < step && first + i < panels; ++i) {
      const float *sum = sums + t * TILE_ROWS + 16 * i;
      apply_epilogue(c, p, token + t, first + i, v_load(sum), p->up ? v_load(sum + 16 * step) : v_zero());
    }
  }
}

// ----------------------------------------------------------------------------------------------------------
// AMX tiles

#if HAS_TILES
INLINE int parts_of_product(const product_t *p) {
  return p->up ? max_int(parts_of(p->format), parts_of(p->up_format)) : parts_of(p->format);
}
// Panels of bf16 are tiles already.
INLINE bool is_direct(const product_t *p) {
  return p->format == MLX_PANEL_BF16 && (!p->up || p->up_format == MLX_PANEL_BF16);
}
INLINE const uint8_t *panel_at(const product_t *p, bool up, int panel, int32_t *out_format) {
  *out_format = up ? p->up_format : p->format;
  return (up ? p->up : p->weight) + panel * mlx_panel_bytes(*out_format, p->columns);
}

// Up to 16 rows with FEW_PANELS panels of one matrix, or half of them from |up|.
static void multiply_few_panels(const call_t *c, const product_t *p, int first, int count) {
  _Alignas(64) uint16_t split[FEW_PANELS][PARTS * TILE];
  _Alignas(64) float sums[FEW_PANELS * FEW_TOKENS * 16];
  const uint8_t *panel[FEW_PANELS];
  const uint16_t *b[FEW_PANELS];
  int32_t format[FEW_PANELS];
  const int half = p->up ? FEW_PANELS / 2 : FEW_PANELS, parts = parts_of_product(p);
  for (int i = 0; i < FEW_PANELS; ++i)  // sums past |count| are discarded
    panel[i] = panel_at(p, i >= half, first + min_int(i % half, count - 1), &format[i]);
  clear_few();
  for (int k = 0; k < p->columns / MLX_PANEL_BLOCK; ++k) {
    for (int i = 0; i < FEW_PANELS; ++i) {
      b[i] = (const uint16_t *)(const void *)panel[i] + (int64_t)k * TILE;
      if (is_direct(p)) {
        for (int at = 0; i % half < count && at < TILE; at += 32) __builtin_prefetch(b[i] + FEW_AHEAD + at);
        continue;
      }
      split_panel(format[i], panel[i], parts, k, 1, 0, split[i]);
      b[i] = split[i];
    }
    multiply_few(p->parts + (int64_t)k * A_BLOCK, b, parts);
  }
  store_few(sums, p->tokens);
  for (int i = 0; i < count; ++i) {
    for (int t = 0; t < p->tokens; ++t) {
      const float *sum = sums + (i * p->tokens + t) * 16;
      apply_epilogue(c, p, t, first + i, v_load(sum), p->up ? v_load(sum + half * p->tokens * 16) : v_zero());
    }
  }
}

static void multiply_few_rows(const call_t *c, const product_t *p, int from, int to) {
  const int step = p->up ? FEW_PANELS / 2 : FEW_PANELS;
  configure_tiles(p->tokens);
  for (int panel = from; panel < to; panel += step)
    multiply_few_panels(c, p, panel, min_int(step, to - panel));
  release_tiles();
}

// The b tiles of pair |nth|: from the weights, or split into |b|.
INLINE tile_pair_t make_pair(const product_t *p, int first, int nth, int parts, int k, int count,
                             uint16_t *b) {
  const int panels = panel_count(p);
  tile_pair_t pair = {{b, b + PARTS * TILE}, B_BLOCK};
  if (is_direct(p)) pair.step = TILE;
  for (int i = 0; i < 2; ++i) {
    const int panel = min_int(first + (p->up ? nth : 2 * nth + i), panels - 1);  // past the last: discarded
    int32_t format;
    const uint8_t *from = panel_at(p, p->up && i, panel, &format);
    if (is_direct(p))
      pair.panel[i] = (const uint16_t *)(const void *)from + (int64_t)k * TILE;
    else
      split_panel(format, from, parts, k, count, B_BLOCK, b + i * PARTS * TILE);
  }
  return pair;
}

// One item of an AMX product. A pair of panels is two panels of one matrix, or one of gate and one of up. All
// pairs of the item use a part of x while it is in the cache.
static void multiply_amx(const call_t *c, const product_t *p, int item) {
  _Alignas(64) uint16_t b[TILED_PAIRS][TILED_BLOCKS * B_BLOCK];
  _Alignas(64) float sums[TILED_PAIRS][TILED_TOKENS * 32];
  tile_pair_t pair[TILED_PAIRS];
  const int groups = tiled_groups(p), token = item / groups * TILED_TOKENS,
            tokens = min_int(TILED_TOKENS, p->tokens - token);
  const int first = item % groups * tiled_panels(p), panels = panel_count(p),
            blocks = p->columns / MLX_PANEL_BLOCK;
  const int pairs = min_int(TILED_PAIRS, divide_up(panels - first, p->up ? 1 : 2)),
            parts = parts_of_product(p);
  const int64_t group_parts = parts_stride(p->columns);
  configure_tiles(16);
  for (int k = 0; k < blocks; k += TILED_BLOCKS) {
    const int count = min_int(TILED_BLOCKS, blocks - k);
    for (int i = 0; i < pairs; ++i) pair[i] = make_pair(p, first, i, parts, k, count, b[i]);
    for (int t = 0; t < tokens; t += 32) {
      const uint16_t *a = p->parts + (token + t) / 16 * group_parts + (int64_t)k * A_BLOCK;
      for (int i = 0; i < pairs; ++i)
        multiply_tiles(a, group_parts, pair[i], parts, count, k == 0, sums[i] + 32 * t);
    }
  }
  release_tiles();
  for (int i = 0; i < pairs; ++i) {
    for (int t = 0; t < tokens; ++t) {
      const v16 one = v_load(sums[i] + 32 * t), other = v_load(sums[i] + 32 * t + 16);
      const int panel = first + (p->up ? i : 2 * i);
      apply_epilogue(c, p, token + t, panel, one, other);
      if (!p->up && panel + 1 < panels) apply_epilogue(c, p, token + t, panel + 1, other, other);
    }
  }
}
#endif

static void multiply_share(const call_t *c, const product_t *p, const share_t *share, worker_t *worker,
                           uint64_t phase, int from, int to) {
  product_t rows = *p;  // the other ways start at row 0
  rows.tokens = share->count;
  if (share->way == BY_VECTOR) multiply_by_vector(c, p, share, worker, phase, from, to);
#if HAS_TILES
  if (share->way == BY_FEW_TILES) multiply_few_rows(c, &rows, from, to);
  for (int item = from; share->way == BY_TILES && item < to; ++item) multiply_amx(c, &rows, item);
#endif
  for (int item = from; share->way == BY_BLOCK && item < to; ++item) multiply_block(c, &rows, item);
}

static void multiply_items(const call_t *c, const product_t *p, worker_t *worker, uint64_t phase, int from,
                           int to) {
  share_t shares[MAX_SHARES];
  const int count = shares_of(c, p, shares);
  for (int i = 0, base = 0; i < count; ++i) {
    const int items = share_items(p, &shares[i]), first = max_int(from - base, 0),
              end = min_int(to - base, items);
    if (first < end) multiply_share(c, p, &shares[i], worker, phase, first, end);
    base += items;
  }
}

#endif  // MLXCEL_KERNELS_CPU_PRODUCT_H_
