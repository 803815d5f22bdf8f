// A Llama-like network with random weights as a program of the CPU kernel, for bench/phases.c and
// tests/kernels/cpu_batch.c. Include it after kernels/cpu/call.h and panel_codes.h.
#ifndef MLXCEL_TESTS_CPU_NETWORK_H_
#define MLXCEL_TESTS_CPU_NETWORK_H_

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct shape {
  int hidden, ffn, heads, kv_heads, head_dim, layers, vocab;
  mlx_panel_format_t body, head;
  mlx_kv_format_t kv;
} shape_t;

#define PHASES_BEFORE_LAYERS 2  // list; embedding and RoPE table
#define PHASES_IN_LAYER 8

typedef struct network {
  shape_t shape;
  uint8_t *weights;
  uint64_t weight_bytes;
  mlx_program_t header;
  mlx_phase_t *phases;
  mlx_instruction_t *code;
  float frequencies[128];
  uint64_t random;
} network_t;

static void *network_alloc(size_t bytes) {
  void *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (!memory) exit(1);
  return memset(memory, 0, bytes);
}

static uint64_t network_random(network_t *w) {
  w->random ^= w->random << 13;
  w->random ^= w->random >> 7;
  return w->random ^= w->random << 17;
}

// A small number, as f32, f16 or bf16; of one byte: as the exponent of a power of two.
static void put_number(network_t *w, int bytes, bool bf16, uint8_t *at) {
  const uint64_t bits = network_random(w);
  const float wide = (float)((int)(bits % 2001) - 1000) / 16000;
  uint32_t whole;
  memcpy(&whole, &wide, 4);
  const uint16_t half = bf16 ? (uint16_t)(whole >> 16) : (uint16_t)((bits & 0x83ff) | 0x2000);
  if (bytes == 1)
    *at = (uint8_t)(MLX_PANEL_POWER_BIAS - 8 + bits % 3);
  else
    bytes == 4 ? memcpy(at, &whole, 4) : memcpy(at, &half, 2);
}

// Fills a matrix with random codes, and numbers that are small.
static mlx_program_weight_t random_matrix(network_t *w, mlx_panel_format_t format, int rows, int columns) {
  const mlx_program_weight_t weight = {.at = w->weight_bytes, .format = (int32_t)format};
  const int64_t bytes = divide_up(rows, MLX_PANEL_ROWS) * mlx_panel_bytes(weight.format, columns);
  uint8_t *at = w->weights + weight.at;
  for (int64_t i = 0; i < bytes; ++i) at[i] = (uint8_t)network_random(w);
  const bool bf16 = has_bf16_scales(weight.format);
  const int number = format == MLX_PANEL_MXFP4 ? 1 : has_f32_scales(weight.format) ? 4 : 2;
  for (int64_t panel = 0; panel < bytes; panel += mlx_panel_bytes(weight.format, columns)) {
    if (!is_quantized(weight.format)) {
      for (int64_t i = 0; i < mlx_panel_bytes(weight.format, columns); i += number)
        put_number(w, number, bf16, at + panel + i);
      continue;
    }
    for (int nth = 0; nth < columns / MLX_PANEL_BLOCK; ++nth) {
      uint8_t *block = at + panel + mlx_panel_block_at(weight.format, nth);
      if (has_super_blocks(weight.format)) {
        if (nth % MLX_PANEL_GROUP) continue;
        for (int64_t i = mlx_panel_group_bytes(weight.format); i > 0; i -= 2) {
          put_number(w, 2, false, block - i);
          block[1 - i] &= 0x87;  // scales are multiplied by bytes
        }
        continue;
      }
      for (int i = 0; i < scale_bytes(weight.format); i += number) put_number(w, number, bf16, block + i);
    }
  }
  w->weight_bytes = (uint64_t)mlx_round_up((int64_t)w->weight_bytes + bytes, 64);
  return weight;
}

static mlx_program_weight_t vector_of_ones(network_t *w, int columns) {
  const mlx_program_weight_t weight = {.at = w->weight_bytes};
  for (int i = 0; i < columns; ++i) ((float *)(void *)(w->weights + w->weight_bytes))[i] = 1;
  w->weight_bytes = (uint64_t)mlx_round_up((int64_t)w->weight_bytes + 4 * columns, 64);
  return weight;
}

// |read|: only products of the body's format read it.
static mlx_program_buffer_t network_buffer(network_t *w, int columns, bool read) {
  const bool codes = is_quantized((int32_t)w->shape.body),
             has_long_way = has_two_scales((int32_t)w->shape.body) && !w->header.row_by_row;
  mlx_program_buffer_t out = {.at = w->header.words, .stride = columns, .stores = MLX_STORE_PLAIN};
  w->header.words += mlx_round_up((int64_t)MLX_CPU_STEP_TOKENS * columns, 16);
  if (!read || !HAS_TILES || columns % MLX_PANEL_BLOCK || (codes && !has_long_way)) return out;
  out.stores = codes ? MLX_STORE_LONG_PARTS | MLX_STORE_SHORT_PLAIN : MLX_STORE_PARTS;
  out.parts = w->header.words;
  w->header.words += mlx_parts_words(MLX_CPU_STEP_TOKENS, columns);
  return out;
}

static mlx_instruction_t *add_instruction(network_t *w, int kind, int rows, bool new_phase) {
  const mlx_program_weight_t none = {.at = MLX_NO_WEIGHT};
  mlx_program_t *n = &w->header;
  mlx_instruction_t *i = &w->code[n->instructions++];
  *i = (mlx_instruction_t){.kind = kind,
                           .rows = rows,
                           .weight = none,
                           .up = none,
                           .bias = none,
                           .up_bias = none,
                           .act = MLX_RUN_NO_ACT,
                           .heads = w->shape.heads,
                           .kv_heads = w->shape.kv_heads,
                           .head_dim = w->shape.head_dim,
                           .dims = w->shape.head_dim};
  if (new_phase) w->phases[n->phases++] = (mlx_phase_t){.first = n->instructions - 1};
  ++w->phases[n->phases - 1].count;
  return i;
}

static void add_norm(network_t *w, int rows, mlx_program_buffer_t from, mlx_program_buffer_t to) {
  mlx_instruction_t *i = add_instruction(w, MLX_RUN_NORM, rows, true);
  i->a = from, i->out = to;
  i->width = w->shape.hidden, i->heads = 1, i->dims = 0;
  i->weight = vector_of_ones(w, w->shape.hidden);
  i->numbers[0] = 1e-5f;
}

static mlx_instruction_t *add_product(network_t *w, int rows, mlx_program_buffer_t from,
                                      mlx_program_buffer_t to, bool new_phase) {
  mlx_instruction_t *i = add_instruction(w, MLX_RUN_PRODUCT, MLX_ROWS_TOKENS, new_phase);
  i->a = from, i->out = i->b = to;
  i->width = from.stride, i->out_rows = rows;
  i->weight = random_matrix(w, w->shape.body, rows, from.stride);
  return i;
}

static void add_rope(network_t *w, int heads, mlx_program_buffer_t x, mlx_program_buffer_t table,
                     bool new_phase) {
  mlx_instruction_t *i = add_instruction(w, MLX_RUN_ROPE, MLX_ROWS_TOKENS, new_phase);
  i->a = i->out = x, i->b = table, i->heads = heads;
}

typedef struct layer_buffers {
  mlx_program_buffer_t x, table, h, q, k, v, attended, act;
} layer_buffers_t;

static void add_layer(network_t *w, const layer_buffers_t *at) {
  const shape_t *s = &w->shape;
  const int q_width = s->heads * s->head_dim, kv_width = s->kv_heads * s->head_dim;
  add_norm(w, MLX_ROWS_TOKENS, at->x, at->h);
  add_product(w, q_width, at->h, at->q, true);
  add_product(w, kv_width, at->h, at->k, false);
  add_product(w, kv_width, at->h, at->v, false);
  add_rope(w, s->heads, at->q, at->table, true);
  add_rope(w, s->kv_heads, at->k, at->table, false);
  mlx_instruction_t *i = add_instruction(w, MLX_RUN_APPEND, MLX_ROWS_TOKENS, false);
  i->a = at->k, i->b = at->v, i->kv_at = w->header.page_bytes;
  i = add_instruction(w, MLX_RUN_ATTEND, MLX_ROWS_TOKENS, true);
  i->a = at->q, i->out = at->attended, i->kv_at = w->header.page_bytes, i->numbers[0] = 0.125f;
  w->header.page_bytes += mlx_kv_page_bytes(w->header.kv_format, s->kv_heads, s->head_dim);
  add_product(w, s->hidden, at->attended, at->x, true)->adds = 1;
  add_norm(w, MLX_ROWS_TOKENS, at->x, at->h);
  i = add_product(w, s->ffn, at->h, at->act, true);
  i->up = random_matrix(w, s->body, s->ffn, s->hidden), i->act = MLX_RUN_SILU;
  add_product(w, s->hidden, at->act, at->x, true)->adds = 1;
}

// The program, as compiler/cpu_program.c writes it for this shape. |weight_bytes|: room for the weights.
static network_t *make_network(shape_t shape, size_t weight_bytes) {
  network_t *w = network_alloc(sizeof *w);
  w->shape = shape;
  w->random = 88172645463325252u;
  w->weights = network_alloc(weight_bytes + AHEAD);
  w->phases = network_alloc(sizeof *w->phases * (size_t)(8 + PHASES_IN_LAYER * shape.layers));
  w->code = network_alloc(sizeof *w->code * (size_t)(10 + 12 * shape.layers));
  mlx_program_t *n = &w->header;
  const int panels = divide_up(shape.vocab, MLX_PANEL_ROWS);
  *n = (mlx_program_t){.vocab = shape.vocab,
                       .capacity = MLX_CPU_STEP_TOKENS,
                       .hidden = shape.hidden,
                       .kv_format = (int32_t)shape.kv,
                       .row_by_row = shape.kv != MLX_KV_F32,
                       .tiles = HAS_TILES,
                       .tokens = MLX_CPU_CONTROL_WORDS};
  n->best = mlx_round_up(n->tokens + mlx_token_words(n->capacity), 16);
  n->sampling = mlx_round_up(n->best + (int64_t)MLX_CPU_MAX_WANTED * panels, 16);
  n->words = n->sampling + MLX_CPU_SAMPLERS * mlx_sampling_words(shape.vocab);
  const mlx_program_weight_t table = random_matrix(w, shape.head, shape.vocab, shape.hidden);
  const layer_buffers_t at = {.x = network_buffer(w, shape.hidden, false),
                              .table = network_buffer(w, shape.head_dim, false),
                              .h = network_buffer(w, shape.hidden, true),
                              .q = network_buffer(w, shape.heads * shape.head_dim, false),
                              .k = network_buffer(w, shape.kv_heads * shape.head_dim, false),
                              .v = network_buffer(w, shape.kv_heads * shape.head_dim, false),
                              .attended = network_buffer(w, shape.heads * shape.head_dim, true),
                              .act = network_buffer(w, shape.ffn, true)};
  for (int i = 0; i < shape.head_dim / 2; ++i) w->frequencies[i] = 1.0f / (float)(i + 1);
  n->floats = shape.head_dim / 2;
  add_instruction(w, MLX_RUN_LIST, MLX_ROWS_TOKENS, true);
  mlx_instruction_t *i = add_instruction(w, MLX_RUN_EMBED, MLX_ROWS_TOKENS, true);
  i->weight = table, i->out = at.x, i->out_rows = shape.vocab, i->width = shape.hidden;
  i = add_instruction(w, MLX_RUN_ROPE_TABLE, MLX_ROWS_TOKENS, false);
  i->out = at.table, i->numbers[0] = 1;
  for (int layer = 0; layer < shape.layers; ++layer) add_layer(w, &at);
  mlx_program_buffer_t last = network_buffer(w, shape.hidden, false);
  if (HAS_TILES && !is_quantized((int32_t)shape.head) && shape.hidden % MLX_PANEL_BLOCK == 0) {
    last.stores = MLX_STORE_PARTS | MLX_STORE_PLAIN;
    last.parts = n->words;
    n->words += mlx_parts_words(MLX_CPU_MAX_WANTED, shape.hidden);
  }
  add_norm(w, MLX_ROWS_SELECT, at.x, last);
  i = add_instruction(w, MLX_RUN_HIDDEN, MLX_ROWS_WANTED, false);
  i->a = last, i->width = shape.hidden;
  i = add_instruction(w, MLX_RUN_PRODUCT, MLX_ROWS_WANTED, true);
  i->a = last, i->width = shape.hidden, i->out_rows = shape.vocab, i->weight = table, i->logits = 1;
  add_instruction(w, MLX_RUN_SAMPLE, MLX_ROWS_WANTED, true);
  return w;
}

// The program as the kernel reads it.
static int32_t *network_plan(const network_t *w) {
  const mlx_program_t *n = &w->header;
  const size_t phases = (size_t)n->phases * sizeof *w->phases,
               code = (size_t)n->instructions * sizeof *w->code,
               floats = (size_t)n->floats * sizeof *w->frequencies;
  uint8_t *plan = network_alloc(sizeof *n + phases + code + floats);
  memcpy(plan, n, sizeof *n);
  memcpy(plan + sizeof *n, w->phases, phases);
  memcpy(plan + sizeof *n + phases, w->code, code);
  memcpy(plan + sizeof *n + phases + code, w->frequencies, floats);
  return (int32_t *)(void *)plan;
}

// ----------------------------------------------------------------------------------------------------------
// Arguments

#define BATCH_WORDS (1 << 19)
#define SLOTS 64
#define SLOT_PAGES 40
#define HISTORY_WIDTH (SLOT_PAGES * MLX_KV_PAGE)
#define POOL_PAGES (1 + SLOTS * SLOT_PAGES)

typedef struct arguments {
  int32_t *plan, *batch, *scratch, *history, *results;
  uint8_t *kv;
  float *logits, *hidden;
} arguments_t;

// The pages of a slot are not neighbours in the pool.
static arguments_t make_arguments(const network_t *w) {
  const mlx_program_t *n = &w->header;
  const arguments_t a = {.plan = network_plan(w),
                         .batch = network_alloc(4 * BATCH_WORDS),
                         .scratch = memset(network_alloc((size_t)n->words * 4), 0xff, (size_t)n->words * 4),
                         .history = network_alloc(4 * SLOTS * HISTORY_WIDTH),
                         .results = network_alloc(4 * MLX_CPU_MAX_WANTED * MLX_RESULT_WORDS),
                         .kv = network_alloc((size_t)(POOL_PAGES * n->page_bytes)),
                         .logits = network_alloc((size_t)n->vocab * 4 * MLX_CPU_MAX_WANTED),
                         .hidden = network_alloc((size_t)n->hidden * 4 * MLX_CPU_MAX_WANTED)};
  enum { N = MLX_CPU_STEP_TOKENS, W = MLX_CPU_MAX_WANTED };
  a.batch[MLX_STEP_POOL_PAGES] = POOL_PAGES;
  a.batch[MLX_STEP_SLOT_COUNT] = SLOTS;
  a.batch[MLX_STEP_SLOT_PAGES] = SLOT_PAGES;
  a.batch[MLX_STEP_HISTORY_WIDTH] = HISTORY_WIDTH;
  a.batch[MLX_STEP_AT_TOKENS] = MLX_STEP_TOKENS_AT;
  a.batch[MLX_STEP_AT_SLOTS] = MLX_STEP_SLOTS_AT(N);
  a.batch[MLX_STEP_AT_POSITIONS] = MLX_STEP_POSITIONS_AT(N);
  a.batch[MLX_STEP_AT_SEGMENTS] = MLX_STEP_SEGMENTS_AT(N);
  a.batch[MLX_STEP_AT_WANTED] = MLX_STEP_WANTED_AT(N);
  a.batch[MLX_STEP_AT_SAMPLING] = MLX_STEP_SAMPLING_AT(N, W);
  a.batch[MLX_STEP_AT_PAGES] = MLX_STEP_PAGES_AT(N, W);
  for (int slot = 0; slot < SLOTS; ++slot) {
    for (int i = 0; i < SLOT_PAGES; ++i)
      a.batch[MLX_STEP_PAGES_AT(N, W) + slot * SLOT_PAGES + i] = 1 + i * SLOTS + slot;
  }
  return a;
}

// Arguments of the kernel. |batch_words| is at most BATCH_WORDS.
static mlx_network_arguments_t network_arguments(const network_t *w, const arguments_t *a,
                                                 int64_t batch_words, bool is_burst) {
  return (mlx_network_arguments_t){.weights = w->weights,
                                   .plan = a->plan,
                                   .batch = a->batch,
                                   .scratch = a->scratch,
                                   .history = a->history,
                                   .kv = a->kv,
                                   .logits = a->logits,
                                   .hidden = a->hidden,
                                   .results = a->results,
                                   .is_burst = is_burst,
                                   .batch_words = batch_words,
                                   .history_words = SLOTS * HISTORY_WIDTH,
                                   .kv_units = POOL_PAGES,
                                   .logits_rows = MLX_CPU_MAX_WANTED,
                                   .hidden_rows = MLX_CPU_MAX_WANTED,
                                   .results_rows = MLX_CPU_MAX_WANTED};
}

static void clear_tokens(const arguments_t *a) {
  a->batch[MLX_STEP_TOKEN_COUNT] = a->batch[MLX_STEP_WANTED_COUNT] = 0;
}

static void add_token(const arguments_t *a, int slot, int position, int id, bool wanted) {
  enum { N = MLX_CPU_STEP_TOKENS, W = MLX_CPU_MAX_WANTED };
  const int i = a->batch[MLX_STEP_TOKEN_COUNT]++;
  a->batch[MLX_STEP_TOKENS_AT + i] = id;
  a->batch[MLX_STEP_SLOTS_AT(N) + i] = slot;
  a->batch[MLX_STEP_POSITIONS_AT(N) + i] = position;
  if (!wanted) return;
  const int w = a->batch[MLX_STEP_WANTED_COUNT]++;
  int32_t *sampling = a->batch + MLX_STEP_SAMPLING_AT(N, W) + w * MLX_SAMPLING_WORDS;
  a->batch[MLX_STEP_WANTED_AT(N) + w] = i;
  memset(sampling, 0, 4 * MLX_SAMPLING_WORDS);
  sampling[MLX_SAMPLING_FLAGS] = MLX_SAMPLE_TOKEN;
  const float off = 1;
  memcpy(&sampling[MLX_SAMPLING_REPEAT], &off, 4);
  memcpy(&sampling[MLX_SAMPLING_TYPICAL_P], &off, 4);
  memcpy(&sampling[MLX_SAMPLING_TOP_P], &off, 4);
}

#endif  // MLXCEL_TESTS_CPU_NETWORK_H_
