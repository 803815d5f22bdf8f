// Divides a matrix product into items, and chooses the way in which each is computed.
#include "products.h"

#include "products_by.h"

// Whether rows of long segments are multiplied in another way. With integers that is the case for formats
// with two scales per block, whose blocks are slow to scale.
INLINE bool has_long_way(const product_t *p) {
  return !HAS_INTEGERS || has_two_scales(p->format) || (p->up && has_two_scales(p->up_format));
}

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
  product_t rows = *p;
  switch (share->way) {
    case BY_VECTOR: return panels * divide_up(share->count, MAX_VECTORS);
    case BY_FEW_TILES: return panels;
    case BY_TILES: return tiled_groups(p) * divide_up(share->count, TILED_TOKENS);
    default: rows.tokens = share->count; return divide_up(panels, group_panels(p)) * block_count(&rows);
  }
}

int mlx_product_items(const call_t *c, const product_t *p) {
  share_t shares[MAX_SHARES];
  int items = 0;
  for (int i = shares_of(c, p, shares) - 1; i >= 0; --i) items += share_items(p, &shares[i]);
  return items;
}

// Items, panels mostly, that are computed together.
uint32_t mlx_product_grain(const call_t *c, const product_t *p) {
  share_t shares[MAX_SHARES];
  for (int i = shares_of(c, p, shares) - 1; i >= 0; --i) {
    if (shares[i].way == BY_BLOCK || shares[i].way == BY_TILES) return 1;
    if (has_codes(p) && shares[i].count == 1) return 1;
    if (has_codes(p)) return (uint32_t)panels_together(p, min_int(shares[i].count, MAX_VECTORS));
  }
  return SUM_PANELS;
}

static void multiply_share(const call_t *c, const product_t *p, const share_t *share, worker_t *worker,
                           uint64_t phase, int from, int to) {
  product_t rows = *p;  // the other ways start at row 0
  rows.tokens = share->count;
  if (share->way == BY_VECTOR) mlx_multiply_by_vector(c, p, share, worker, phase, from, to);
#if HAS_TILES
  if (share->way == BY_FEW_TILES) mlx_multiply_by_few_tiles(c, &rows, from, to);
  for (int item = from; share->way == BY_TILES && item < to; ++item) mlx_multiply_by_tiles(c, &rows, item);
#endif
  for (int item = from; share->way == BY_BLOCK && item < to; ++item) mlx_multiply_by_block(c, &rows, item);
}

void mlx_run_product(const call_t *c, const product_t *p, worker_t *worker, uint64_t phase, int from,
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
