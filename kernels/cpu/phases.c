// Runs the instructions of a phase.
#include "phases.h"

#include "attention.h"
#include "batch.h"
#include "experts.h"
#include "heads.h"
#include "latent.h"
#include "recurrent.h"
#include "rows.h"
#include "sampling.h"

INLINE const mlx_phase_t *phase_at(const call_t *c, uint64_t number) {
  return &c->phases[number % (uint64_t)c->n->phases];
}

// The step of the call that phase |number| belongs to.
INLINE int step_at(const call_t *c, uint64_t number) { return (int)(number / phases_of_step(c)); }

uint32_t mlx_phase_items(const call_t *c, uint64_t number) {
  const mlx_phase_t *phase = phase_at(c, number);
  const mlx_instruction_t *i = &c->code[phase->first];
  int items = 0;
  switch (i->kind) {
    case MLX_RUN_LIST:
    case MLX_RUN_SPREAD:
    case MLX_RUN_GROUP: return 1;
    case MLX_RUN_SAMPLE: return (uint32_t)min_int((int)c->control->wanted, MLX_CPU_SAMPLERS);
    case MLX_RUN_ATTEND: return (uint32_t)mlx_attend_items(c, i);
    case MLX_RUN_CONVOLVE: return (uint32_t)mlx_convolve_items(c, i);
    case MLX_RUN_DELTA: return (uint32_t)mlx_delta_items(c, i);
    case MLX_RUN_SCAN: return (uint32_t)mlx_scan_items(c, i);
    case MLX_RUN_EXPERT_PRODUCT: return (uint32_t)mlx_expert_items(c, i);
    case MLX_RUN_HEAD_PRODUCT: return (uint32_t)mlx_head_items(c, i);
    case MLX_RUN_ATTEND_LATENT: return (uint32_t)mlx_latent_items(c, i);
    case MLX_RUN_PRODUCT: break;
    default: return (uint32_t)row_count(c, i);
  }
  for (int k = 0; k < phase->count; ++k) {
    const product_t p = product_of(c, i + k);
    items += mlx_product_items(c, &p);
  }
  return (uint32_t)items;
}

uint32_t mlx_phase_grain(const call_t *c, uint64_t number) {
  const mlx_instruction_t *i = &c->code[phase_at(c, number)->first];
  if (i->kind != MLX_RUN_PRODUCT) return 1;
  const product_t p = product_of(c, i);
  return mlx_product_grain(c, &p);
}

static void run_products(const call_t *c, const mlx_phase_t *phase, worker_t *worker, uint64_t number,
                         int from, int to) {
  for (int k = 0, base = 0, items; k < phase->count; ++k, base += items) {
    const product_t p = product_of(c, &c->code[phase->first + k]);
    items = mlx_product_items(c, &p);
    const int first = from > base ? from - base : 0, end = min_int(to - base, items);
    if (first < end) mlx_run_product(c, &p, worker, number, first, end);
  }
}

static void run_row(const call_t *c, const mlx_instruction_t *i, int row) {
  switch (i->kind) {
    case MLX_RUN_EMBED: mlx_run_embed(c, i, row); break;
    case MLX_RUN_ROPE_TABLE: mlx_run_rope_table(c, i, row); break;
    case MLX_RUN_NORM: mlx_run_norm(c, i, row); break;
    case MLX_RUN_MAP: mlx_run_map(c, i, row); break;
    case MLX_RUN_PERMUTE: mlx_run_permute(c, i, row); break;
    case MLX_RUN_PICK: mlx_run_pick(c, i, row); break;
    case MLX_RUN_ROPE: mlx_run_rope(c, i, row); break;
    case MLX_RUN_APPEND: mlx_run_append(c, i, row); break;
    case MLX_RUN_ROUTE: mlx_run_route(c, i, row); break;
    case MLX_RUN_POOL: mlx_run_pool(c, i, row); break;
    case MLX_RUN_HIDDEN: mlx_run_hidden(c, i, row); break;
    case MLX_RUN_SUM_RANKS: mlx_run_sum_ranks(c, i, row); break;
    default: mlx_run_expert_sum(c, i, row); break;
  }
}

void mlx_run_phase(const call_t *c, worker_t *worker, uint64_t number, int from, int to) {
  const mlx_phase_t *phase = phase_at(c, number);
  const mlx_instruction_t *i = &c->code[phase->first];
  switch (i->kind) {
    case MLX_RUN_LIST: mlx_run_list(c, step_at(c, number)); return;
    case MLX_RUN_SAMPLE:
      for (int item = from; item < to; ++item) mlx_run_sample(c, item, step_at(c, number));
      return;
    case MLX_RUN_SPREAD: mlx_run_spread(c, i); return;
    case MLX_RUN_GROUP: mlx_run_group(c, i); return;
    case MLX_RUN_PRODUCT: run_products(c, phase, worker, number, from, to); return;
    case MLX_RUN_EXPERT_PRODUCT: mlx_run_expert_product(c, i, worker, number, from, to); return;
    case MLX_RUN_HEAD_PRODUCT: mlx_run_head_product(c, i, worker, number, from, to); return;
    case MLX_RUN_ATTEND_LATENT:
      for (int item = from; item < to; ++item) mlx_run_latent(c, i, item);
      return;
    case MLX_RUN_ATTEND:
      for (int item = from; item < to; ++item) mlx_run_attend(c, i, item);
      return;
    case MLX_RUN_CONVOLVE:
      for (int item = from; item < to; ++item) mlx_run_convolve(c, i, item, step_at(c, number));
      return;
    case MLX_RUN_DELTA:
      for (int item = from; item < to; ++item) mlx_run_delta(c, i, item, step_at(c, number));
      return;
    case MLX_RUN_SCAN:
      for (int item = from; item < to; ++item) mlx_run_scan(c, i, item, step_at(c, number));
      return;
    default: break;
  }
  for (int row = from; row < to; ++row) {
    for (int k = 0; k < phase->count; ++k) run_row(c, i + k, row);
  }
}
