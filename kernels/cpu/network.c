// The CPU network kernel: a whole forward pass in one call. Prefill processes the tokens of prompts, decode
// generates STEPS tokens one after the other. Both interpret the same program (layout.h), which the compiler
// writes for a model: a list of phases, each with one or more instructions. schedule.h divides the items of a
// phase between threads.
//
// Freestanding C: no libc, no globals. layout.h describes the memory layouts.
#include <stdbool.h>

#include "attention.h"
#include "call.h"
#include "experts.h"
#include "layout.h"
#include "product.h"
#include "rows.h"
#include "schedule.h"

// ----------------------------------------------------------------------------------------------------------
// Start of a step: list the tokens

static void add_token(const call_t *c, int sequence, int64_t position, int id) {
  const uint32_t slot = c->control->tokens++;
  // Clamp: invalid input may give wrong results, but never an out-of-bounds access.
  const int64_t end = (int64_t)c->n->sequence_pages * MLX_CPU_PAGE;
  c->sequence_of[slot] = sequence;
  c->position_of[slot] = (int32_t)(position < 0 ? 0 : position < end ? position : end - 1);
  c->id_of[slot] = id < 0 ? 0 : id < c->n->vocab ? id : c->n->vocab - 1;
}

static void list_tokens(const call_t *c) {
  c->control->tokens = c->control->active = 0;
  for (int sequence = 0; sequence < c->n->sequences; ++sequence) {
    const int count = c->width ? min_int(c->count[sequence], c->width) : c->count[sequence] != 0;
    for (int t = 0; t < count; ++t) {
      if (c->width) {
        add_token(c, sequence, (int64_t)c->start[sequence] + t, c->tokens[sequence * c->width + t]);
      } else {
        add_token(c, sequence, c->position[sequence], c->token[sequence]);
      }
    }
    if (count <= 0) continue;
    c->last_of[c->control->active] = (int32_t)c->control->tokens - 1;
    c->active_sequences[c->control->active++] = sequence;
  }
}

// ----------------------------------------------------------------------------------------------------------
// Attention

// One head of up to ATTEND_TOKENS tokens. Tokens of the same sequence are computed together.
static void attend(const call_t *c, const mlx_instruction_t *i, int item) {
  const mlx_program_t *n = c->n;
  const int tokens = (int)c->control->tokens, tiles = divide_up(tokens, ATTEND_TOKENS), hd = i->head_dim,
            head = item / tiles;
  const int end = min_int(tokens, (item % tiles + 1) * ATTEND_TOKENS);
  attention_t a = {.pool = c->kv + i->kv_at,
                   .page_bytes = mlx_kv_page_bytes(n->kv_format, i->kv_heads, hd),
                   .head_bytes = mlx_kv_head_bytes(n->kv_format, hd),
                   .head_dim = hd,
                   .padded = (int)mlx_round_up(hd, 16),
                   .head = head / (i->heads / i->kv_heads),
                   .pool_pages = n->pool_pages,
                   .scale = i->numbers[0],
                   .softcap = i->numbers[1],
                   .window = i->window,
                   .sink = has_weight(&i->weight) ? vector_at(c, &i->weight) + head : 0};
  for (int slot = item % tiles * ATTEND_TOKENS, count; slot < end; slot += count) {
    for (count = 1; slot + count < end && c->sequence_of[slot + count] == c->sequence_of[slot];) ++count;
    a.pages = c->pages + (int64_t)c->sequence_of[slot] * n->sequence_pages;
    a.position = c->position_of[slot];
    for (int k = 0; k < ATTEND_TOKENS; ++k) {
      const int64_t nth = slot + min_int(k, count - 1);
      a.q[k] = row_at(c, &i->a, nth) + head * hd;
      a.out[k] = row_at(c, &i->out, nth) + head * hd;
    }
    attention_run(&a, n->kv_format, count);
    for (int k = 0; k < count && stores_parts(&i->out, tokens); ++k) {
      for (int d = 0; d < hd; d += 16)
        store_parts(parts_of_buffer(c, &i->out), v_load(a.out[k] + d), slot + k, i->heads * hd,
                    head * hd + d);
    }
  }
}

// ----------------------------------------------------------------------------------------------------------
// End of a step: greedy sampling

static void sample_greedy(const call_t *c, uint32_t step) {
  const int panels = divide_up(c->n->vocab, MLX_PANEL_ROWS);
  for (uint32_t i = 0; i < c->control->active; ++i) {
    const int sequence = c->active_sequences[i];
    const float *best = c->best + 2 * (int64_t)sequence * panels;
    int highest = 0;
    for (int panel = 1; panel < panels; ++panel)
      highest = best[2 * panel] > best[2 * highest] ? panel : highest;
    c->token[sequence] = highest * MLX_PANEL_ROWS + (int)best[2 * highest + 1];
    c->position[sequence] = c->position_of[c->last_of[i]] + 1;
  }
  for (int sequence = 0; sequence < c->n->sequences; ++sequence)
    c->result[(int64_t)sequence * c->steps + step] = c->token[sequence];
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
    case MLX_RUN_SAMPLE:
    case MLX_RUN_GROUP: return 1;
    case MLX_RUN_ATTEND: return (uint32_t)(i->heads * divide_up(row_count(c, i), ATTEND_TOKENS));
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
    case MLX_RUN_ROPE: rope_row(c, i, row); break;
    case MLX_RUN_APPEND: append_row(c, i, row); break;
    case MLX_RUN_ROUTE: route_row(c, i, row); break;
    default: sum_experts(c, i, row); break;
  }
}

static void run_items(const call_t *c, worker_t *worker, uint64_t number, int from, int to) {
  const mlx_phase_t *phase = phase_at(c, number);
  const mlx_instruction_t *i = &c->code[phase->first];
  switch (i->kind) {
    case MLX_RUN_LIST: list_tokens(c); return;
    case MLX_RUN_SAMPLE: sample_greedy(c, (uint32_t)(number / phases_of_step(c))); return;
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

// Operands in the order of compiler/emit_cpu.c. |width| is T of prefill_T, or 0 for decode. Decode has no
// |tokens| and no |start|; its |count| is nonzero for active sequences.
void mlx_network_run(const uint8_t *weights, const int32_t *plan, const int32_t *tokens, const int32_t *start,
                     const int32_t *count, const int32_t *pages, uint8_t *kv, int32_t *scratch,
                     int32_t *token, int32_t *position, float *logits, int32_t *result, int64_t width,
                     int64_t steps) __attribute__((visibility("hidden")));
void mlx_network_run(const uint8_t *weights, const int32_t *plan, const int32_t *tokens, const int32_t *start,
                     const int32_t *count, const int32_t *pages, uint8_t *kv, int32_t *scratch,
                     int32_t *token, int32_t *position, float *logits, int32_t *result, int64_t width,
                     int64_t steps) {
  const mlx_program_t *n = (const void *)plan;
  const mlx_phase_t *phases = (const void *)(n + 1);
  const mlx_instruction_t *code = (const void *)(phases + n->phases);
  int32_t *slots = scratch + n->slots;
  const call_t call = {.n = n,
                       .phases = phases,
                       .code = code,
                       .floats = (const void *)(code + n->instructions),
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
                       .scratch = (void *)scratch,
                       .sequence_of = slots,
                       .position_of = slots + n->max_tokens,
                       .id_of = slots + 2 * n->max_tokens,
                       .last_of = slots + 3 * n->max_tokens,
                       .active_sequences = slots + 4 * n->max_tokens,
                       .best = (float *)(void *)(scratch + n->best),
                       .width = (int)width,
                       .steps = (uint32_t)steps,
                       .workgroups = MLX_CPU_WORKGROUPS};
  run_workgroup(&call);
}
