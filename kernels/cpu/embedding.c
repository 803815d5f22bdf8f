// The row of an embedding table for a token, a position or a type of token.
#include "dequantize.h"
#include "rows.h"

void mlx_run_embed(const call_t *c, const mlx_instruction_t *i, int row) {
  const int index = i->op == MLX_INDEX_POSITIONS ? c->position_of[row]
                    : i->op == MLX_INDEX_TYPES   ? c->type_of[row]
                                                 : c->id_of[row];
  mlx_dequantize_row(i->weight.format, c->weights + i->weight.at, index < i->out_rows ? index : 0, i->width,
                     row_at(c, &i->out, row));
  store_row_parts(c, i, row, i->width);
}
