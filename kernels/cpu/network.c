// The CPU network kernel: a forward pass over a batch of tokens in one call, or a burst of them for one
// sequence (step.h). It interprets a program (layout.h), which the compiler writes for a model: a list of
// phases, each with one or more instructions. schedule.h divides the items of a phase between threads.
//
// Freestanding C: no libc, no globals. layout.h describes the memory layouts.
#include <stdbool.h>

#include "attention.h"
#include "batch.h"
#include "call.h"
#include "experts.h"
#include "layout.h"
#include "product.h"
#include "rows.h"
#include "sampling.h"
#include "schedule.h"

// ----------------------------------------------------------------------------------------------------------
// Attention

#define MIN_GROUPED_HEADS 3  // query heads of a KV head that are computed together at least

// Rows from |row| on, up to |end|, that continue each other.
INLINE int consecutive_rows(const call_t *c, int row, int end) {
  int next = row + 1;
  while (next < end && c->slot_of[next] == c->slot_of[row] &&
         c->position_of[next] == c->position_of[next - 1] + 1)
    ++next;
  return next - row;
}

// Items of one head of up to ATTEND_TOKENS rows.
INLINE int head_items(const call_t *c, const mlx_instruction_t *i) {
  return i->heads * divide_up(row_count(c, i), ATTEND_TOKENS);
}

// Whether all query heads of a KV head are computed together, so that keys and values are read once for them.
// That needs rows of different sequences, and must not leave fewer items for the threads.
INLINE bool groups_heads(const call_t *c, const mlx_instruction_t *i) {
  return c->control->separate && i->heads >= MIN_GROUPED_HEADS * i->kv_heads &&
         row_count(c, i) * i->kv_heads >= head_items(c, i);
}

static int attend_items(const call_t *c, const mlx_instruction_t *i) {
  return groups_heads(c, i) ? row_count(c, i) * i->kv_heads : head_items(c, i);
}

// |count| queries: consecutive rows from |row| on of one head, or with |step| 0 consecutive heads of one row.
static void attend_queries(const call_t *c, const mlx_instruction_t *i, int row, int head, int step,
                           int count) {
  const mlx_program_t *n = c->n;
  const int hd = i->head_dim;
  const pages_t *pages = &c->pages[i->pages];
  attention_t a = {.pool = pages->first + i->kv_at,
                   .pages = pages->table + (int64_t)c->slot_of[row] * c->slot_pages,
                   .page_bytes = pages->bytes,
                   .head_bytes = mlx_kv_head_bytes(n->kv_format, hd),
                   .head_dim = hd,
                   .padded = (int)mlx_round_up(hd, 16),
                   .head = head / (i->heads / i->kv_heads),
                   .pool_pages = pages->count,
                   .scale = i->numbers[0],
                   .softcap = i->numbers[1],
                   .window = i->window,
                   .sink = has_weight(&i->weight) ? vector_at(c, &i->weight) + head : 0,
                   .position = c->position_of[row],
                   .step = step};
  for (int k = 0; k < ATTEND_TOKENS; ++k) {
    const int nth = min_int(k, count - 1), at = (head + (step ? 0 : nth)) * hd;
    a.q[k] = row_at(c, &i->a, row + nth * step) + at;
    a.out[k] = row_at(c, &i->out, row + nth * step) + at;
  }
  attention_run(&a, n->kv_format, count);
  for (int k = 0; k < count && stores_parts(c, i, row + k * step); ++k) {
    for (int d = 0; d < hd; d += 16)
      store_parts(parts_of_buffer(c, &i->out), v_load(a.out[k] + d), row + k * step, i->heads * hd,
                  (head + (step ? 0 : k)) * hd + d);
  }
}

// All query heads of one KV head for one row, or one head of up to ATTEND_TOKENS rows. Of these, consecutive
// tokens of a sequence are computed together.
static void attend(const call_t *c, const mlx_instruction_t *i, int item) {
  const int rows = row_count(c, i), tiles = divide_up(rows, ATTEND_TOKENS), group = i->heads / i->kv_heads;
  if (groups_heads(c, i)) {
    for (int k = 0; k < group; k += ATTEND_TOKENS)
      attend_queries(c, i, item / i->kv_heads, item % i->kv_heads * group + k, 0,
                     min_int(ATTEND_TOKENS, group - k));
    return;
  }
  const int end = min_int(rows, (item % tiles + 1) * ATTEND_TOKENS);
  for (int row = item % tiles * ATTEND_TOKENS, count; row < end; row += count) {
    count = consecutive_rows(c, row, end);
    attend_queries(c, i, row, item / tiles, 1, count);
  }
}

// ----------------------------------------------------------------------------------------------------------
// Phases

static uint64_t phases_of_step(const call_t *c) { return (uint64_t)c->n->phases; }

INLINE const mlx_phase_t *phase_at(const call_t *c, uint64_t number) {
  return &c->phases[number % (uint64_t)c->n->phases];
}

static uint32_t item_count(const call_t *c, uint64_t number) {
  const mlx_phase_t *phase = phase_at(c, number);
  const mlx_instruction_t *i = &c->code[phase->first];
  int items = 0;
  switch (i->kind) {
    case MLX_RUN_LIST:
    case MLX_RUN_GROUP: return 1;
    case MLX_RUN_SAMPLE: return (uint32_t)min_int((int)c->control->wanted, MLX_CPU_SAMPLERS);
    case MLX_RUN_ATTEND: return (uint32_t)attend_items(c, i);
    case MLX_RUN_EXPERT_PRODUCT: return (uint32_t)expert_items(c, i);
    case MLX_RUN_PRODUCT: break;
    default: return (uint32_t)row_count(c, i);
  }
  for (int k = 0; k < phase->count; ++k) {
    const product_t p = product_of(c, i + k);
    items += product_items(c, &p);
  }
  return (uint32_t)items;
}

static uint32_t item_grain(const call_t *c, uint64_t number) {
  const mlx_instruction_t *i = &c->code[phase_at(c, number)->first];
  if (i->kind != MLX_RUN_PRODUCT) return 1;
  const product_t p = product_of(c, i);
  return product_grain(c, &p);
}

static void run_products(const call_t *c, const mlx_phase_t *phase, worker_t *worker, uint64_t number,
                         int from, int to) {
  for (int k = 0, base = 0, items; k < phase->count; ++k, base += items) {
    const product_t p = product_of(c, &c->code[phase->first + k]);
    items = product_items(c, &p);
    const int first = from > base ? from - base : 0, end = min_int(to - base, items);
    if (first < end) multiply_items(c, &p, worker, number, first, end);
  }
}

static void run_row(const call_t *c, const mlx_instruction_t *i, int row) {
  switch (i->kind) {
    case MLX_RUN_EMBED: embed_row(c, i, row); break;
    case MLX_RUN_ROPE_TABLE: fill_rope_table(c, i, row); break;
    case MLX_RUN_NORM: norm_row(c, i, row); break;
    case MLX_RUN_MAP: map_row(c, i, row); break;
    case MLX_RUN_PERMUTE: permute_row(c, i, row); break;
    case MLX_RUN_ROPE: rope_row(c, i, row); break;
    case MLX_RUN_APPEND: append_row(c, i, row); break;
    case MLX_RUN_ROUTE: route_row(c, i, row); break;
    case MLX_RUN_HIDDEN: copy_hidden(c, i, row); break;
    default: sum_experts(c, i, row); break;
  }
}

static void run_items(const call_t *c, worker_t *worker, uint64_t number, int from, int to) {
  const mlx_phase_t *phase = phase_at(c, number);
  const mlx_instruction_t *i = &c->code[phase->first];
  switch (i->kind) {
    case MLX_RUN_LIST: list_tokens(c, (int)(number / phases_of_step(c))); return;
    case MLX_RUN_SAMPLE:
      for (int item = from; item < to; ++item) sample_item(c, item, (int)(number / phases_of_step(c)));
      return;
    case MLX_RUN_GROUP: group_pairs(c, i); return;
    case MLX_RUN_PRODUCT: run_products(c, phase, worker, number, from, to); return;
    case MLX_RUN_EXPERT_PRODUCT: multiply_experts(c, i, worker, number, from, to); return;
    case MLX_RUN_ATTEND:
      for (int item = from; item < to; ++item) attend(c, i, item);
      return;
    default: break;
  }
  for (int row = from; row < to; ++row) {
    for (int k = 0; k < phase->count; ++k) run_row(c, i + k, row);
  }
}

// Operands in the order of compiler/emit_cpu.c. The sizes of the arguments: words of |batch| and |history|,
// units of |kv| (mlx_kv_unit), rows of |logits|, |hidden| and |results|.
void mlx_network_run(const uint8_t *weights, const int32_t *plan, const int32_t *batch, int32_t *scratch,
                     int32_t *history, uint8_t *kv, float *logits, float *hidden, int32_t *results,
                     int64_t is_burst, int64_t batch_words, int64_t history_words, int64_t kv_units,
                     int64_t logits_rows, int64_t hidden_rows, int64_t results_rows)
    __attribute__((visibility("hidden")));
void mlx_network_run(const uint8_t *weights, const int32_t *plan, const int32_t *batch, int32_t *scratch,
                     int32_t *history, uint8_t *kv, float *logits, float *hidden, int32_t *results,
                     int64_t is_burst, int64_t batch_words, int64_t history_words, int64_t kv_units,
                     int64_t logits_rows, int64_t hidden_rows, int64_t results_rows) {
  const mlx_program_t *n = (const void *)plan;
  const mlx_phase_t *phases = (const void *)(n + 1);
  const mlx_instruction_t *code = (const void *)(phases + n->phases);
  int32_t *tokens = scratch + n->tokens;
  call_t call = {.n = n,
                 .phases = phases,
                 .code = code,
                 .floats = (const void *)(code + n->instructions),
                 .weights = weights,
                 .batch = batch,
                 .history = history,
                 .results = results,
                 .kv = kv,
                 .logits = logits,
                 .hidden = hidden,
                 .limits = {batch_words, history_words, kv_units, logits_rows, hidden_rows, results_rows},
                 .control = (void *)scratch,
                 .scratch = (void *)scratch,
                 .slot_of = tokens,
                 .position_of = tokens + MLX_CPU_MAX_TOKENS,
                 .id_of = tokens + 2 * MLX_CPU_MAX_TOKENS,
                 .page_of = {tokens + 3 * MLX_CPU_MAX_TOKENS, tokens + 4 * MLX_CPU_MAX_TOKENS},
                 .row_of = tokens + 5 * MLX_CPU_MAX_TOKENS,
                 .wanted_of = tokens + 6 * MLX_CPU_MAX_TOKENS,
                 .best = (float *)(void *)(scratch + n->best),
                 .is_burst = is_burst != 0,
                 .steps = 1,
                 .workgroups = MLX_CPU_WORKGROUPS};
  if (read_header(&call)) run_workgroup(&call);
}
