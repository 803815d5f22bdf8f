// Products of heads: a product (products.h) for each head. The matrices of the heads follow each other.
#include "heads.h"

INLINE product_t head_product(const call_t *c, const mlx_instruction_t *i, int head) {
  product_t p = product_of(c, i);
  p.weight += head * panel_count(&p) * mlx_panel_bytes(p.format, p.columns);
  p.head = head;
  p.parts = 0;
  return p;
}

int mlx_head_items(const call_t *c, const mlx_instruction_t *i) {
  const product_t p = head_product(c, i, 0);
  return i->heads * mlx_product_items(c, &p);
}

void mlx_run_head_product(const call_t *c, const mlx_instruction_t *i, worker_t *worker, uint64_t phase,
                          int from, int to) {
  const product_t any = head_product(c, i, 0);
  const int items = mlx_product_items(c, &any);
  while (from < to) {
    const int head = from / items, base = head * items, end = min_int(to - base, items);
    const product_t p = head_product(c, i, head);
    mlx_run_product(c, &p, worker, phase, from - base, end);
    from = base + end;
  }
}
