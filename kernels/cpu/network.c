// Network: a whole model, one call. Prefill reads a prompt's tokens, decode chooses STEPS tokens one after
// the other; both are the same list of phases, over all tokens together.
//
// IREE may run a call's workgroups one after another on one thread, or all at once: so no workgroup waits for
// one that has not come. A phase is so many items, and whoever is there takes some, does them, and takes more
// (one word, the ticket, has the phase and its next item). Who finishes a phase's last item opens the next
// one; a phase of one item it does itself, at once. So one thread alone can do everything, and one that comes
// late helps from where the others are. Items are the same whoever does them, and no sum is divided between
// two: the same bits for any number of threads.
//
// Where others use the machine, a thread may lose its core with items in hand, and all wait. Where that
// happens again and again the call goes on without it: who waited says so, and who finds that said for the
// MOST_DELAYSth time when it comes back leaves, until the next call.
//
// Freestanding C: no libc, no globals. network.h has the layouts.
#include "network.h"

#include <stdbool.h>

#include "attention.h"
#include "integers.h"
#include "panels.h"
#include "tiles.h"
#include "vector.h"

#define IDLE UINT64_MAX  // in the ticket: no call is running; the scratch starts so
#define PATIENCE \
  10000  // turns of waiting, half a millisecond or so, before somebody is late; in prefill, whose items are
#define LONG_PATIENCE 100000  // longer and whose calls take longer to come round again, this many
#define MOST_DELAYS \
  8  // of a call: one costs a few milliseconds, to go on with a thread less costs the rest of the call
#define BLOCK_TOKENS 96        // of a product's item, where there are many
#define TILED_TOKENS 256       // of one that is computed in tiles, and
#define TILED_PAIRS 2          // of panels, and
#define TILED_BLOCKS 8         // blocks of columns that are split into parts at a time: whole groups
#define WIDE_COLUMNS 128       // widened at a time: with four panels, what the first cache holds
#define SEPARATE _Alignas(64)  // on a cache line of its own
_Static_assert(TILED_BLOCKS % MLX_PANEL_GROUP == 0, "tiles begin where a group of blocks does");

typedef struct control {
  SEPARATE uint64_t ticket;      // phase << 32 | its next item
  SEPARATE uint32_t left_to_do;  // items of the phase that are not finished
  SEPARATE uint32_t present;     // workgroups here, less one
  uint32_t gone;                 // workgroups that have been here, less one
  uint32_t tokens, rows;         // of this step: real tokens, and rows that have any
  SEPARATE uint32_t late;        // 1: somebody waits for the phase's last items
  uint32_t delays;               // phases of this call for which that was so, less one
  uint32_t closed;               // 1: nobody joins this call any more
} control_t;
_Static_assert(sizeof(control_t) <= 4 * MLX_CPU_CONTROL_WORDS, "the scratch begins with it");

typedef struct call {
  const mlx_network_t *n;
  const float *frequencies;
  const mlx_network_layer_t *layers;
  const uint8_t *weights;
  const int32_t *tokens, *start, *count, *pages;
  uint8_t *kv;
  int32_t *token, *position, *result;
  float *logits;
  control_t *control;
  int32_t *row_of, *position_of, *id_of, *last_of, *taking_part;  // slots, as network.h has them
  float *turns, *x, *h, *qkv, *attended, *act, *best;
  uint16_t *h_parts, *act_parts;
  int width;  // T of prefill_T; 0: this is decode
  uint32_t steps, workgroups;
} call_t;

INLINE int least(int a, int b) { return a < b ? a : b; }
INLINE int divide_up(int a, int b) { return (a + b - 1) / b; }
INLINE int q_width(const mlx_network_t *n) { return n->heads * n->head_dim; }
INLINE int kv_width(const mlx_network_t *n) { return n->kv_heads * n->head_dim; }
INLINE int qkv_width(const mlx_network_t *n) { return q_width(n) + 2 * kv_width(n); }

// Whether what has |columns| columns is multiplied in tiles: then whoever makes it leaves its parts too.
INLINE bool is_tiled(const call_t *c, int columns) {
  return HAS_TILES && c->n->tiles && c->control->tokens >= LEAST_TILED && columns % MLX_PANEL_BLOCK == 0;
}
INLINE int64_t parts_of_tokens(int columns) {
  return (int64_t)columns / MLX_PANEL_BLOCK * A_BLOCK;
}  // 16 of them

// 16 columns of a token, from |column| on.
INLINE void leave_parts(uint16_t *parts, v16 values, int token, int columns, int column) {
  uint16_t *tiles =
      parts + token / 16 * parts_of_tokens(columns) + (int64_t)(column / MLX_PANEL_BLOCK) * A_BLOCK;
  split_columns(values, tiles + token % 16 * MLX_PANEL_BLOCK + column % MLX_PANEL_BLOCK);
}

// ----------------------------------------------------------------------------------------------------------
// The start of a step: which tokens there are

static void add_token(const call_t *c, int row, int64_t position, int id) {
  const uint32_t slot = c->control->tokens++;
  const int64_t end = (int64_t)c->n->sequence_pages *
                      MLX_CPU_PAGE;  // a wrong number may give wrong results, but never a wrong address
  c->row_of[slot] = row;
  c->position_of[slot] = (int32_t)(position < 0 ? 0 : position < end ? position : end - 1);
  c->id_of[slot] = id < 0 ? 0 : id < c->n->vocab ? id : c->n->vocab - 1;
}

static void list_tokens(const call_t *c) {
  c->control->tokens = c->control->rows = 0;
  for (int row = 0; row < c->n->sequences; ++row) {
    const int count = c->width ? least(c->count[row], c->width) : c->count[row] != 0;
    for (int t = 0; t < count; ++t) {
      if (c->width) {
        add_token(c, row, (int64_t)c->start[row] + t, c->tokens[row * c->width + t]);
      } else {
        add_token(c, row, c->position[row], c->token[row]);
      }
    }
    if (count <= 0) continue;
    c->last_of[c->control->rows] = (int32_t)c->control->tokens - 1;
    c->taking_part[c->control->rows++] = row;
  }
}

static void embed(const call_t *c, int slot) {
  const mlx_network_t *n = c->n;
  const int half = n->head_dim / 2;
  widen_row(n->embed.format, c->weights + n->embed.at, c->id_of[slot], n->hidden,
            c->x + (int64_t)slot * n->hidden);
  float *cosine = c->turns + (int64_t)slot * n->head_dim, *sine = cosine + half;
  for (int i = 0; i < half; ++i)
    sine_and_cosine((float)c->position_of[slot] * c->frequencies[i], &sine[i], &cosine[i]);
}

static void normalise(const call_t *c, const float *x, const mlx_network_weight_t *weight, int token) {
  float *out = c->h + (int64_t)token * c->n->hidden;
  const int width = c->n->hidden, whole = width / 16 * 16;
  const float *gain = (const float *)(const void *)(c->weights + weight->at);
  v16 squares = v_zero();
  for (int i = 0; i < whole; i += 16) squares = v_fma(v_load(x + i), v_load(x + i), squares);
  float sum = v_sum(squares);
  for (int i = whole; i < width; ++i) sum += x[i] * x[i];
  const float scale = 1 / square_root(sum / (float)width + c->n->norm_eps);
  for (int i = 0; i < whole; i += 16)
    v_store(out + i, v_mul(v_mul(v_load(x + i), v_all(scale)), v_load(gain + i)));
  for (int i = whole; i < width; ++i) out[i] = x[i] * scale * gain[i];
  for (int i = 0; is_tiled(c, width) && i < width; i += 16)
    leave_parts(c->h_parts, v_load(out + i), token, width, i);
}

// ----------------------------------------------------------------------------------------------------------
// Matrix products: many tokens in tiles, one token panel by panel

typedef enum end { END_STORE, END_ADD, END_SWIGLU, END_LOGITS } end_t;

typedef struct product {
  const mlx_network_weight_t *weight, *up;  // up: for SWIGLU
  int rows, columns, tokens;
  const float *x;         // [tokens][columns]
  const uint16_t *parts;  // of x
  float *y;
  int64_t y_step;  // from a token's results to the next one's
  end_t end;
} product_t;

INLINE int panel_count(const product_t *p) { return divide_up(p->rows, MLX_PANEL_ROWS); }
INLINE int group_panels(const product_t *p) { return p->end == END_SWIGLU ? TILE_PANELS / 2 : TILE_PANELS; }
INLINE int block_count(const product_t *p) { return divide_up(p->tokens, BLOCK_TOKENS); }
INLINE bool in_tiles(const call_t *c, const product_t *p) {
  return p->end != END_LOGITS && is_tiled(c, p->columns);
}
INLINE int tiled_panels(const product_t *p) { return p->up ? TILED_PAIRS : 2 * TILED_PAIRS; }
INLINE int tiled_groups(const product_t *p) { return divide_up(panel_count(p), tiled_panels(p)); }

static int product_items(const call_t *c, const product_t *p) {
  if (p->tokens <= 1) return p->tokens * panel_count(p);
  if (in_tiles(c, p)) return tiled_groups(p) * divide_up(p->tokens, TILED_TOKENS);
  return divide_up(panel_count(p), group_panels(p)) * block_count(p);
}

// What becomes of 16 rows' sums of a token.
static void finish(const call_t *c, const product_t *p, int token, int panel, v16 value, v16 up) {
  const int64_t row = p->end == END_LOGITS ? c->taking_part[token] : token;
  const int count = least(16, p->rows - 16 * panel);
  float *y = p->y + row * p->y_step + 16 * panel, some[16];
  if (p->end == END_SWIGLU) value = v_mul(v_silu(value), up);
  if (p->end == END_SWIGLU && is_tiled(c, p->rows)) {  // then nobody reads the values themselves
    leave_parts(c->act_parts, value, token, p->rows, 16 * panel);
    return;
  }
  if (p->end == END_LOGITS) {
    const v16 real = v_first(value, count);
    const float largest = v_largest(real);
    float *best = c->best + 2 * (row * panel_count(p) + panel);
    best[0] = largest;
    best[1] = (float)(v_find(real, largest) & 15);
  }
  if (count == 16) {
    v_store(y, p->end == END_ADD ? v_add(v_load(y), value) : value);
    return;
  }
  v_store(some, value);
  for (int i = 0; i < count; ++i) y[i] = p->end == END_ADD ? y[i] + some[i] : some[i];
}

// What a workgroup keeps from item to item.
typedef struct mind {
  vector_t vector;
  uint64_t vector_of;  // the phase that it belongs to; IDLE: none
  uint64_t items_of;   // and that which has so many items
  uint32_t items;
} mind_t;

static void multiply_one(const call_t *c, const product_t *p, mind_t *mind, uint64_t phase, int from,
                         int to) {
  const int64_t bytes = mlx_panel_bytes(p->weight->format, p->columns),
                up_bytes = p->up ? mlx_panel_bytes(p->up->format, p->columns) : 0;
  const bool packed = is_packed(p->weight->format) || (p->up && is_packed(p->up->format));
  if (mind->vector_of != phase || (packed && !mind->vector.packed)) {
    take_vector(p->x, p->columns, packed, &mind->vector);
    mind->vector_of = phase;
  }
  for (int panel = from; panel < to; ++panel) {
    const v16 value = multiply_panel(p->weight->format, c->weights + p->weight->at + panel * bytes,
                                     &mind->vector, p->columns);
    v16 up = value;
    if (p->up)
      up =
          multiply_panel(p->up->format, c->weights + p->up->at + panel * up_bytes, &mind->vector, p->columns);
    finish(c, p, 0, panel, value, up);
  }
}

// One group of panels with one block of tokens.
static void multiply_many(const call_t *c, const product_t *p, int item) {
  float wide[WIDE_COLUMNS * TILE_ROWS], sums[BLOCK_TOKENS * TILE_ROWS];
  const int blocks = block_count(p), panels = panel_count(p), step = group_panels(p);
  const int first = item / blocks * step, token = item % blocks * BLOCK_TOKENS,
            tokens = least(BLOCK_TOKENS, p->tokens - token);
  for (int i = 0; i < BLOCK_TOKENS * TILE_ROWS; i += 16) v_store(sums + i, v_zero());
  for (int k = 0; k < p->columns; k += WIDE_COLUMNS) {
    const int count = least(WIDE_COLUMNS, p->columns - k);
    for (int i = 0; i < TILE_PANELS; ++i) {
      const mlx_network_weight_t *weight = i < step ? p->weight : p->up;
      const int panel = least(first + i % step, panels - 1);  // of those past the last nobody wants the sums
      const uint8_t *from = c->weights + weight->at + panel * mlx_panel_bytes(weight->format, p->columns);
      widen_panel(weight->format, from, k, count, wide + 16 * i, TILE_ROWS);
    }
    for (int t = 0; t < tokens; t += TILE_TOKENS) {
      const float *x[TILE_TOKENS];
      for (int i = 0; i < TILE_TOKENS; ++i)
        x[i] = p->x + (int64_t)(token + least(t + i, tokens - 1)) * p->columns + k;
      multiply_tile(wide, x, count, sums + t * TILE_ROWS);
    }
  }
  for (int t = 0; t < tokens; ++t) {
    for (int i = 0; i < step && first + i < panels; ++i) {
      const float *sum = sums + t * TILE_ROWS + 16 * i;
      finish(c, p, token + t, first + i, v_load(sum), p->up ? v_load(sum + 16 * step) : v_zero());
    }
  }
}

#if HAS_TILES
INLINE int parts_of_product(const product_t *p) {
  const int parts = parts_of(p->weight->format), up = p->up ? parts_of(p->up->format) : 0;
  return parts > up ? parts : up;
}

// The same in tiles, two panels at a time, of SWIGLU one of each matrix. What is taken of x at a time is used
// for all pairs of the item while the caches have it.
static void multiply_tiled(const call_t *c, const product_t *p, int item) {
  _Alignas(64) uint16_t b[TILED_PAIRS][TILED_BLOCKS * B_BLOCK];
  _Alignas(64) float sums[TILED_PAIRS][TILED_TOKENS * 32];
  const int groups = tiled_groups(p), token = item / groups * TILED_TOKENS,
            tokens = least(TILED_TOKENS, p->tokens - token);
  const int first = item % groups * tiled_panels(p), panels = panel_count(p),
            blocks = p->columns / MLX_PANEL_BLOCK;
  const int pairs = least(TILED_PAIRS, divide_up(panels - first, p->up ? 1 : 2)), parts = parts_of_product(p);
  const int64_t group_parts = parts_of_tokens(p->columns);
  configure_tiles();
  for (int k = 0; k < blocks; k += TILED_BLOCKS) {
    const int count = least(TILED_BLOCKS, blocks - k);
    for (int i = 0; i < 2 * pairs; ++i) {
      const mlx_network_weight_t *weight = p->up && i % 2 ? p->up : p->weight;
      const int panel =
          least(first + (p->up ? i / 2 : i), panels - 1);  // of those past the last nobody wants the sums
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
      finish(c, p, token + t, panel, one, other);
      if (!p->up && panel + 1 < panels) finish(c, p, token + t, panel + 1, other, other);
    }
  }
}
#endif

static void multiply(const call_t *c, const product_t *p, mind_t *mind, uint64_t phase, int from, int to) {
  if (p->tokens == 1) {
    multiply_one(c, p, mind, phase, from, to);
    return;
  }
#if HAS_TILES
  for (int item = from; in_tiles(c, p) && item < to; ++item) multiply_tiled(c, p, item);
#endif
  for (int item = from; !in_tiles(c, p) && item < to; ++item) multiply_many(c, p, item);
}

// ----------------------------------------------------------------------------------------------------------
// Keys, values and attention

INLINE int64_t kv_head_bytes(const mlx_network_t *n) {
  return (int64_t)MLX_CPU_PAGE * n->head_dim * (n->kv_format == MLX_PANEL_F32 ? 4 : 2);
}
INLINE int64_t kv_page_bytes(const mlx_network_t *n) { return 2 * n->kv_heads * kv_head_bytes(n); }

static void put_number(int32_t format, uint8_t *at, int64_t index, float value) {
  if (format == MLX_PANEL_F32) {
    ((float *)(void *)at)[index] = value;
    return;
  }
  uint16_t *half = (uint16_t *)(void *)at + index;
  if (format == MLX_PANEL_F16) {
    *half = f16_bits(value);
    return;
  }
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  *half = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void turn(float *head, const float *turns, int half) {
  for (int i = 0; i < half; ++i) {
    const float low = head[i], high = head[half + i], cosine = turns[i], sine = turns[half + i];
    head[i] = low * cosine - high * sine;
    head[half + i] = high * cosine + low * sine;
  }
}

// Turns a token's queries and keys, and puts its keys and values into the pool.
static void append(const call_t *c, int layer, int slot) {
  const mlx_network_t *n = c->n;
  const int hd = n->head_dim, position = c->position_of[slot], place = position % MLX_CPU_PAGE;
  float *q = c->qkv + (int64_t)slot * qkv_width(n), *k = q + q_width(n), *v = k + kv_width(n);
  const float *turns = c->turns + (int64_t)slot * hd;
  for (int head = 0; head < n->heads + n->kv_heads; ++head) turn(q + head * hd, turns, hd / 2);
  const int listed = c->pages[(int64_t)c->row_of[slot] * n->sequence_pages + position / MLX_CPU_PAGE];
  const int64_t page = (int64_t)layer * n->pool_pages + (listed < 0 || listed >= n->pool_pages ? 0 : listed);
  for (int head = 0; head < n->kv_heads; ++head) {
    uint8_t *keys = c->kv + page * kv_page_bytes(n) + 2 * head * kv_head_bytes(n),
            *values = keys + kv_head_bytes(n);
    for (int d = 0; d < hd; ++d) put_number(n->kv_format, keys, d * MLX_CPU_PAGE + place, k[head * hd + d]);
    for (int d = 0; d < hd; ++d) put_number(n->kv_format, values, place * hd + d, v[head * hd + d]);
  }
}

// One head of up to ATTEND_TOKENS tokens: those of one row go together.
static void attend(const call_t *c, int layer, int item) {
  const mlx_network_t *n = c->n;
  const int tokens = (int)c->control->tokens, tiles = divide_up(tokens, ATTEND_TOKENS), hd = n->head_dim,
            head = item / tiles;
  const int end = least(tokens, (item % tiles + 1) * ATTEND_TOKENS);
  attend_t a = {.pool = c->kv + (int64_t)layer * n->pool_pages * kv_page_bytes(n),
                .page_bytes = kv_page_bytes(n),
                .head_bytes = kv_head_bytes(n),
                .head_dim = hd,
                .head = head / (n->heads / n->kv_heads),
                .pool_pages = n->pool_pages,
                .scale = n->scale};
  for (int slot = item % tiles * ATTEND_TOKENS, count; slot < end; slot += count) {
    for (count = 1; slot + count < end && c->row_of[slot + count] == c->row_of[slot];) ++count;
    a.pages = c->pages + (int64_t)c->row_of[slot] * n->sequence_pages;
    a.position = c->position_of[slot];
    for (int i = 0; i < ATTEND_TOKENS; ++i) {
      const int64_t nth = slot + least(i, count - 1);
      a.q[i] = c->qkv + nth * qkv_width(n) + head * hd;
      a.out[i] = c->attended + nth * q_width(n) + head * hd;
    }
    attend_some(&a, n->kv_format, count);
    for (int i = 0; i < count && is_tiled(c, q_width(n)); ++i) {
      for (int d = 0; d < hd; d += 16)
        leave_parts(c->h_parts, v_load(a.out[i] + d), slot + i, q_width(n), head * hd + d);
    }
  }
}

// ----------------------------------------------------------------------------------------------------------
// The end of a step

static void choose(const call_t *c, uint32_t step) {
  const int panels = divide_up(c->n->vocab, MLX_PANEL_ROWS);
  for (uint32_t i = 0; i < c->control->rows; ++i) {
    const int row = c->taking_part[i];
    const float *best = c->best + 2 * (int64_t)row * panels;
    int highest = 0;
    for (int panel = 1; panel < panels; ++panel)
      highest = best[2 * panel] > best[2 * highest] ? panel : highest;
    c->token[row] = highest * MLX_PANEL_ROWS + (int)best[2 * highest + 1];
    c->position[row] = c->position_of[c->last_of[i]] + 1;
  }
  for (int row = 0; row < c->n->sequences; ++row) c->result[(int64_t)row * c->steps + step] = c->token[row];
}

// ----------------------------------------------------------------------------------------------------------
// Phases

enum { LIST, EMBED, BEFORE_LAYERS };
enum { ATTN_NORM, QKV, APPEND, ATTEND, O, MLP_NORM, GATE_UP, DOWN, IN_LAYER };
enum { FINAL_NORM, HEAD, CHOOSE, AFTER_LAYERS };

typedef struct phase {
  bool in_layer;
  int layer, kind;  // of the enum for its place: kinds of what is not in a layer are told apart by |layer|:
                    // -1 before, layers after
} phase_t;

INLINE uint64_t phases_of_step(const call_t *c) {
  return BEFORE_LAYERS + IN_LAYER * (uint64_t)c->n->layers + AFTER_LAYERS;
}

static phase_t phase_at(const call_t *c, uint64_t number) {
  const int at = (int)(number % phases_of_step(c)), in = IN_LAYER * c->n->layers;
  if (at < BEFORE_LAYERS) return (phase_t){false, -1, at};
  if (at < BEFORE_LAYERS + in)
    return (phase_t){true, (at - BEFORE_LAYERS) / IN_LAYER, (at - BEFORE_LAYERS) % IN_LAYER};
  return (phase_t){false, c->n->layers, at - BEFORE_LAYERS - in};
}

static product_t product_of(const call_t *c, phase_t phase, int nth) {
  const mlx_network_t *n = c->n;
  const mlx_network_layer_t *l = &c->layers[phase.in_layer ? phase.layer : 0];
  const int tokens = (int)c->control->tokens, q = q_width(n), kv = kv_width(n), hidden = n->hidden,
            ffn = n->ffn;
  if (!phase.in_layer)
    return (product_t){&n->head, 0, n->vocab,  hidden,   (int)c->control->rows,
                       c->h,     0, c->logits, n->vocab, END_LOGITS};
  if (phase.kind == O)
    return (product_t){&l->o, 0, hidden, q, tokens, c->attended, c->h_parts, c->x, hidden, END_ADD};
  if (phase.kind == GATE_UP)
    return (product_t){&l->gate, &l->up, ffn, hidden, tokens, c->h, c->h_parts, c->act, ffn, END_SWIGLU};
  if (phase.kind == DOWN)
    return (product_t){&l->down, 0, hidden, ffn, tokens, c->act, c->act_parts, c->x, hidden, END_ADD};
  if (nth == 0)
    return (product_t){&l->q, 0, q, hidden, tokens, c->h, c->h_parts, c->qkv, qkv_width(n), END_STORE};
  const mlx_network_weight_t *weight = nth == 1 ? &l->k : &l->v;
  return (product_t){
      weight, 0, kv, hidden, tokens, c->h, c->h_parts, c->qkv + q + (nth - 1) * kv, qkv_width(n), END_STORE};
}

INLINE int products_of(phase_t phase) { return phase.in_layer && phase.kind == QKV ? 3 : 1; }

static bool is_product(phase_t phase) {
  if (phase.in_layer)
    return phase.kind == QKV || phase.kind == O || phase.kind == GATE_UP || phase.kind == DOWN;
  return phase.layer >= 0 && phase.kind == HEAD;
}

static uint32_t items_of(const call_t *c, uint64_t number) {
  const phase_t phase = phase_at(c, number);
  const uint32_t tokens = c->control->tokens;
  if (is_product(phase)) {
    uint32_t items = 0;
    for (int i = 0; i < products_of(phase); ++i) {
      const product_t p = product_of(c, phase, i);
      items += (uint32_t)product_items(c, &p);
    }
    return items;
  }
  if (phase.in_layer && phase.kind == ATTEND)
    return (uint32_t)c->n->heads * ((tokens + ATTEND_TOKENS - 1) / ATTEND_TOKENS);
  if (phase.in_layer) return tokens;
  if (phase.layer < 0) return phase.kind == LIST ? 1 : tokens;
  return phase.kind == CHOOSE ? 1 : c->control->rows;
}

static void do_products(const call_t *c, phase_t phase, mind_t *mind, uint64_t number, int from, int to) {
  for (int i = 0, base = 0, items; i < products_of(phase); ++i, base += items) {
    const product_t p = product_of(c, phase, i);
    items = product_items(c, &p);
    const int first = from > base ? from - base : 0, end = least(to - base, items);
    if (first < end) multiply(c, &p, mind, number, first, end);
  }
}

static void do_item(const call_t *c, phase_t phase, uint32_t step, int item) {
  const mlx_network_t *n = c->n;
  const int64_t at = (int64_t)item * n->hidden;
  if (phase.in_layer) {
    const mlx_network_layer_t *l = &c->layers[phase.layer];
    switch (phase.kind) {
      case ATTN_NORM: normalise(c, c->x + at, &l->attn_norm, item); break;
      case APPEND: append(c, phase.layer, item); break;
      case ATTEND: attend(c, phase.layer, item); break;
      default: normalise(c, c->x + at, &l->mlp_norm, item); break;
    }
  } else if (phase.layer < 0) {
    phase.kind == LIST ? list_tokens(c) : embed(c, item);
  } else if (phase.kind == FINAL_NORM) {
    normalise(c, c->x + (int64_t)c->last_of[item] * n->hidden, &n->final_norm, item);
  } else {
    choose(c, step);
  }
}

static void do_items(const call_t *c, mind_t *mind, uint64_t number, int from, int to) {
  const phase_t phase = phase_at(c, number);
  if (is_product(phase)) {
    do_products(c, phase, mind, number, from, to);
    return;
  }
  const uint32_t step = (uint32_t)(number / phases_of_step(c));
  for (int item = from; item < to; ++item) do_item(c, phase, step, item);
}

// ----------------------------------------------------------------------------------------------------------
// Taking part

// Does what has one item, and opens the first phase from |number| on that has more.
static void open_phase(const call_t *c, mind_t *mind, uint64_t number) {
  const uint64_t end = phases_of_step(c) * c->steps;
  uint32_t items = 0;
  for (; number < end && (items = items_of(c, number)) < 2; ++number) {
    if (items) do_items(c, mind, number, 0, 1);
  }
  __atomic_store_n(&c->control->left_to_do, items, __ATOMIC_RELAXED);
  __atomic_store_n(&c->control->ticket, number << 32, __ATOMIC_RELEASE);
}

// Takes items of the phase that is open; false when all are taken. Of decode's short ones a thread's share of
// what is left at once, also of what somebody who is not there yet might want; of a prompt's, which take
// long, a part of that.
static bool take(const call_t *c, mind_t *mind, uint64_t ticket, uint32_t *from, uint32_t *to) {
  if (mind->items_of != ticket >> 32) {
    mind->items_of = ticket >> 32;
    mind->items = items_of(c, ticket >> 32);
  }
  const uint32_t items = mind->items, next = (uint32_t)ticket;
  if (next >= items) return false;
  const uint32_t present = __atomic_load_n(&c->control->present, __ATOMIC_RELAXED) + 1,
                 parts = present < 2 ? 2 : present;
  const uint32_t share = (items - next) / (c->width ? 8 * parts : parts);
  *from = next;
  *to = next + (share ? share : 1);
  return __atomic_compare_exchange_n(&c->control->ticket, &ticket, ticket + (*to - next), false,
                                     __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

// Finished items of phase |number|. Who finishes the last opens the next phase; true when that one was waited
// for too often and leaves. It is no longer counted before the phase is open, and who is alone stays, whoever
// said late: that may have been meant for a phase before.
static bool finish_items(const call_t *c, mind_t *mind, uint64_t number, uint32_t items) {
  control_t *control = c->control;
  if (__atomic_sub_fetch(&control->left_to_do, items, __ATOMIC_ACQ_REL) != 0) return false;
  const bool late = __atomic_load_n(&control->late, __ATOMIC_RELAXED) == 1 &&
                    __atomic_load_n(&control->present, __ATOMIC_RELAXED) != 0;
  const bool leaves = late && ++control->delays + 1 >= MOST_DELAYS;  // only who finishes a phase counts
  if (leaves) {
    __atomic_store_n(&control->closed, 1, __ATOMIC_RELAXED);
    __atomic_sub_fetch(&control->present, 1, __ATOMIC_RELAXED);
  }
  __atomic_store_n(&control->late, 0, __ATOMIC_RELAXED);
  open_phase(c, mind, number + 1);
  return leaves;
}

// True when it stayed to the end.
static bool take_part(const call_t *c) {
  control_t *control = c->control;
  const uint64_t end = phases_of_step(c) * c->steps;
  const int patience = c->width ? LONG_PATIENCE : PATIENCE;
  mind_t mind;
  mind.vector_of = mind.items_of = IDLE;
  uint64_t idle = IDLE;
  if (__atomic_compare_exchange_n(&control->ticket, &idle, UINT32_MAX, false, __ATOMIC_ACQUIRE,
                                  __ATOMIC_RELAXED))
    open_phase(c, &mind, 0);
  for (int waited = 0;;) {
    const uint64_t ticket = __atomic_load_n(&control->ticket, __ATOMIC_ACQUIRE);
    uint32_t from, to;
    if (ticket >> 32 >= end) return true;
    if (take(c, &mind, ticket, &from, &to)) {
      do_items(c, &mind, ticket >> 32, (int)from, (int)to);
      if (finish_items(c, &mind, ticket >> 32, to - from)) return false;
      waited = 0;
    } else {
      relax();
      if (++waited == patience) __atomic_store_n(&control->late, 1, __ATOMIC_RELAXED);
    }
  }
}

// The last one out puts everything back for the next call.
static void come_and_go(const call_t *c) {
  control_t *control = c->control;
  if (__atomic_load_n(&control->closed, __ATOMIC_RELAXED) != 1) {
    __atomic_add_fetch(&control->present, 1, __ATOMIC_RELAXED);
    if (take_part(c)) __atomic_sub_fetch(&control->present, 1, __ATOMIC_RELAXED);
  }
  if (__atomic_add_fetch(&control->gone, 1, __ATOMIC_ACQ_REL) != c->workgroups - 1) return;
  __atomic_store_n(&control->gone, UINT32_MAX, __ATOMIC_RELAXED);
  __atomic_store_n(&control->closed, 0, __ATOMIC_RELAXED);
  control->delays = UINT32_MAX;
  __atomic_store_n(&control->ticket, IDLE, __ATOMIC_RELEASE);
}

// Operands in the order of compiler/cpu_network.c. |width|: T of prefill_T, or 0 for decode, which has
// neither |tokens| nor |start| and whose |count| says which rows are active.
void mlx_network_run(const uint8_t *weights, const int32_t *plan, const int32_t *tokens, const int32_t *start,
                     const int32_t *count, const int32_t *pages, uint8_t *kv, int32_t *scratch,
                     int32_t *token, int32_t *position, float *logits, int32_t *result, int64_t width,
                     int64_t steps) __attribute__((visibility("hidden")));
void mlx_network_run(const uint8_t *weights, const int32_t *plan, const int32_t *tokens, const int32_t *start,
                     const int32_t *count, const int32_t *pages, uint8_t *kv, int32_t *scratch,
                     int32_t *token, int32_t *position, float *logits, int32_t *result, int64_t width,
                     int64_t steps) {
  const mlx_network_t *n = (const void *)plan;
  const mlx_network_scratch_t s = mlx_network_scratch(n);
  const float *frequencies = (const float *)(const void *)(n + 1);
  int32_t *slots = scratch + s.slots;
  float *floats = (float *)(void *)scratch;
  const call_t call = {.n = n,
                       .frequencies = frequencies,
                       .layers = (const void *)(frequencies + mlx_network_frequency_words(n)),
                       .weights = weights,
                       .tokens = tokens,
                       .start = start,
                       .count = count,
                       .pages = pages,
                       .kv = kv,
                       .token = token,
                       .position = position,
                       .result = result,
                       .logits = logits,
                       .control = (void *)scratch,
                       .row_of = slots,
                       .position_of = slots + n->most_tokens,
                       .id_of = slots + 2 * n->most_tokens,
                       .last_of = slots + 3 * n->most_tokens,
                       .taking_part = slots + 4 * n->most_tokens,
                       .turns = floats + s.turns,
                       .x = floats + s.x,
                       .h = floats + s.h,
                       .qkv = floats + s.qkv,
                       .attended = floats + s.attended,
                       .act = floats + s.act,
                       .best = floats + s.best,
                       .h_parts = (uint16_t *)(void *)(floats + s.h_parts),
                       .act_parts = (uint16_t *)(void *)(floats + s.act_parts),
                       .width = (int)width,
                       .steps = (uint32_t)steps,
                       .workgroups = MLX_CPU_WORKGROUPS};
  come_and_go(&call);
}
