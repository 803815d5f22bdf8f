// Matrix products of the CPU network kernel, divided into items: a single token panel by panel, many tokens
// in blocks, or on AMX tiles. The epilogue stores, adds, applies SwiGLU or finds the largest logit.
#ifndef MLXCEL_KERNELS_CPU_PRODUCT_H_
#define MLXCEL_KERNELS_CPU_PRODUCT_H_

#include "call.h"
#include "integers.h"
#include "panels.h"

#define BLOCK_TOKENS 96   // tokens of an item, in a product of many tokens
#define TILED_TOKENS 256  // AMX: tokens of an item
#define TILED_PAIRS 2     // AMX: pairs of panels of an item
#define TILED_BLOCKS 8    // AMX: blocks of columns split into parts at a time
#define WIDE_COLUMNS 128  // columns converted to f32 at a time: four panels of them fit in the L1 cache
_Static_assert(TILED_BLOCKS % MLX_PANEL_GROUP == 0, "blocks are split in whole super-blocks");

typedef enum epilogue { EPILOGUE_STORE, EPILOGUE_ADD, EPILOGUE_SWIGLU, EPILOGUE_LOGITS } epilogue_t;

typedef struct product {
  const mlx_network_weight_t *weight, *up;  // up: second matrix of SwiGLU, else NULL
  int rows, columns, tokens;
  const float *x;         // [tokens][columns]
  const uint16_t *parts;  // bf16 parts of x
  float *y;
  int64_t y_step;  // distance between the results of two tokens
  epilogue_t epilogue;
} product_t;

INLINE int panel_count(const product_t *p) { return divide_up(p->rows, MLX_PANEL_ROWS); }
INLINE int group_panels(const product_t *p) {
  return p->epilogue == EPILOGUE_SWIGLU ? TILE_PANELS / 2 : TILE_PANELS;
}
INLINE int block_count(const product_t *p) { return divide_up(p->tokens, BLOCK_TOKENS); }
INLINE bool in_tiles(const call_t *c, const product_t *p) {
  return p->epilogue != EPILOGUE_LOGITS && is_tiled(c, p->columns);
}
INLINE int tiled_panels(const product_t *p) { return p->up ? TILED_PAIRS : 2 * TILED_PAIRS; }
INLINE int tiled_groups(const product_t *p) { return divide_up(panel_count(p), tiled_panels(p)); }

static int product_items(const call_t *c, const product_t *p) {
  if (p->tokens <= 1) return p->tokens * panel_count(p);
  if (in_tiles(c, p)) return tiled_groups(p) * divide_up(p->tokens, TILED_TOKENS);
  return divide_up(panel_count(p), group_panels(p)) * block_count(p);
}

// Applies the epilogue to the sums of one token for the 16 rows of a panel.
static void apply_epilogue(const call_t *c, const product_t *p, int token, int panel, v16 value, v16 up) {
  const int64_t output = p->epilogue == EPILOGUE_LOGITS ? c->active_sequences[token] : token;
  const int count = min_int(16, p->rows - 16 * panel);
  float *y = p->y + output * p->y_step + 16 * panel, some[16];
  if (p->epilogue == EPILOGUE_SWIGLU) value = v_mul(v_silu(value), up);
  if (p->epilogue == EPILOGUE_SWIGLU && is_tiled(c, p->rows)) {  // the next product reads only the parts
    store_parts(c->act_parts, value, token, p->rows, 16 * panel);
    return;
  }
  if (p->epilogue == EPILOGUE_LOGITS) {
    const v16 real = v_keep_first(value, count);
    const float largest = v_reduce_max(real);
    float *best = c->best + 2 * (output * panel_count(p) + panel);
    best[0] = largest;
    best[1] = (float)(v_find(real, largest) & 15);
  }
  if (count == 16) {
    v_store(y, p->epilogue == EPILOGUE_ADD ? v_add(v_load(y), value) : value);
    return;
  }
  v_store(some, value);
  for (int i = 0; i < count; ++i) y[i] = p->epilogue == EPILOGUE_ADD ? y[i] + some[i] : some[i];
}

// State that a workgroup keeps between items.
typedef struct worker {
  vector_t vector;        // the activations of a product with a single token
  uint64_t vector_phase;  // phase of |vector|, or IDLE
  uint64_t items_phase;   // phase of |items|, or IDLE
  uint32_t items;
} worker_t;

static void multiply_token(const call_t *c, const product_t *p, worker_t *worker, uint64_t phase, int from,
                           int to) {
  const int64_t bytes = mlx_panel_bytes(p->weight->format, p->columns),
                up_bytes = p->up ? mlx_panel_bytes(p->up->format, p->columns) : 0;
  const bool quantized = is_quantized(p->weight->format) || (p->up && is_quantized(p->up->format));
  if (worker->vector_phase != phase || (quantized && !worker->vector.quantized)) {
    prepare_vector(p->x, p->columns, quantized, &worker->vector);
    worker->vector_phase = phase;
  }
  for (int panel = from; panel < to; ++panel) {
    const v16 value = multiply_panel(p->weight->format, c->weights + p->weight->at + panel * bytes,
                                     &worker->vector, p->columns);
    v16 up = value;
    if (p->up)
      up = multiply_panel(p->up->format, c->weights + p->up->at + panel * up_bytes, &worker->vector,
                          p->columns);
    apply_epilogue(c, p, 0, panel, value, up);
  }
}

// One group of panels with one block of tokens.
static void multiply_block(const call_t *c, const product_t *p, int item) {
  float wide[WIDE_COLUMNS * TILE_ROWS], sums[BLOCK_TOKENS * TILE_ROWS];
  const int blocks = block_count(p), panels = panel_count(p), step = group_panels(p);
  const int first = item / blocks * step, token = item % blocks * BLOCK_TOKENS,
            tokens = min_int(BLOCK_TOKENS, p->tokens - token);
  for (int i = 0; i < BLOCK_TOKENS * TILE_ROWS; i += 16) v_store(sums + i, v_zero());
  for (int k = 0; k < p->columns; k += WIDE_COLUMNS) {
    const int count = min_int(WIDE_COLUMNS, p->columns - k);
    for (int i = 0; i < TILE_PANELS; ++i) {
      const mlx_network_weight_t *weight = i < step ? p->weight : p->up;
      const int panel = min_int(first + i % step, panels - 1);  // sums of panels past the last are discarded
      const uint8_t *from = c->weights + weight->at + panel * mlx_panel_bytes(weight->format, p->columns);
      dequantize_panel(weight->format, from, k, count, wide + 16 * i, TILE_ROWS);
    }
    for (int t = 0; t < tokens; t += TILE_TOKENS) {
      const float *x[TILE_TOKENS];
      for (int i = 0; i < TILE_TOKENS; ++i)
        x[i] = p->x + (int64_t)(token + min_int(t + i, tokens - 1)) * p->columns + k;
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

#if HAS_TILES
INLINE int parts_of_product(const product_t *p) {
  const int parts = parts_of(p->weight->format), up = p->up ? parts_of(p->up->format) : 0;
  return parts > up ? parts : up;
}

// One item of an AMX product. A pair of panels is two panels of one matrix, or one of gate and one of up. All
// pairs of the item use a part of x while it is in the cache.
static void multiply_amx(const call_t *c, const product_t *p, int item) {
  _Alignas(64) uint16_t b[TILED_PAIRS][TILED_BLOCKS * B_BLOCK];
  _Alignas(64) float sums[TILED_PAIRS][TILED_TOKENS * 32];
  const int groups = tiled_groups(p), token = item / groups * TILED_TOKENS,
            tokens = min_int(TILED_TOKENS, p->tokens - token);
  const int first = item % groups * tiled_panels(p), panels = panel_count(p),
            blocks = p->columns / MLX_PANEL_BLOCK;
  const int pairs = min_int(TILED_PAIRS, divide_up(panels - first, p->up ? 1 : 2)),
            parts = parts_of_product(p);
  const int64_t group_parts = parts_stride(p->columns);
  configure_tiles();
  for (int k = 0; k < blocks; k += TILED_BLOCKS) {
    const int count = min_int(TILED_BLOCKS, blocks - k);
    for (int i = 0; i < 2 * pairs; ++i) {
      const mlx_network_weight_t *weight = p->up && i % 2 ? p->up : p->weight;
      const int panel = min_int(first + (p->up ? i / 2 : i), panels - 1);  // sums past the last are discarded
      const uint8_t *from = c->weights + weight->at + panel * mlx_panel_bytes(weight->format, p->columns);
      split_panel(weight->format, from, parts, k, count, i % 2, b[i / 2]);
    }
    for (int t = 0; t < tokens; t += 32) {
      const uint16_t *a = p->parts + (token + t) / 16 * group_parts + (int64_t)k * A_BLOCK;
      for (int i = 0; i < pairs; ++i)
        multiply_tiles(a, group_parts, b[i], parts, count, k == 0, sums[i] + 32 * t);
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

static void multiply_items(const call_t *c, const product_t *p, worker_t *worker, uint64_t phase, int from,
                           int to) {
  if (p->tokens == 1) {
    multiply_token(c, p, worker, phase, from, to);
    return;
  }
#if HAS_TILES
  for (int item = from; in_tiles(c, p) && item < to; ++item) multiply_amx(c, p, item);
#endif
  for (int item = from; !in_tiles(c, p) && item < to; ++item) multiply_block(c, p, item);
}

#endif  // MLXCEL_KERNELS_CPU_PRODUCT_H_
