// Records the weights of a network in the roles that the decode kernel has for them: places in the archive
// and formats.
#include "compiler/plan_match.h"

#include "compiler/weights.h"

bool mlx_decode_in_layers(mlx_decode_weight_t weight) {
#define IN_LAYERS(name, field, in_layers) [MLX_DECODE_##name] = in_layers,
  static const bool table[MLX_DECODE_WEIGHTS] = {MLX_DECODE_WEIGHT_TABLE(IN_LAYERS)};
#undef IN_LAYERS
  return table[weight];
}

// The role of a matrix, and its bit in |second| of a plan.
typedef struct matrix_role {
  mlx_decode_role_t role;
  uint8_t bit;
} matrix_role_t;

static matrix_role_t role_of(mlx_decode_weight_t which) {
#define MATRIX(weight, role, bit) [MLX_DECODE_##weight] = {MLX_DECODE_ROLE_##role, bit},
  static const matrix_role_t table[MLX_DECODE_WEIGHTS] = {MLX_DECODE_MATRIX_TABLE(MATRIX)};
#undef MATRIX
  return table[which];
}

// Matrices that the kernel multiplies row by row, without tensor cores: tiles or floats, the same in all
// layers.
static bool is_single_row(mlx_decode_weight_t which) {
  return which == MLX_DECODE_SHARED_SCORE || which == MLX_DECODE_DELTA_BETA || which == MLX_DECODE_DELTA_STEP;
}

// Matrices of the role that were found.
static int64_t count_of_role(const mlx_decode_plan_t *plan, mlx_decode_role_t role) {
  int64_t count = 0;
  for (int i = 0; i < MLX_DECODE_WEIGHTS; ++i)
    if (is_single_row((mlx_decode_weight_t)i) && role_of((mlx_decode_weight_t)i).role == role)
      count += plan->form.counts[i];
  return count;
}

// Records the tile format of a matrix as the first or second of its role. A role with rows of 16-bit numbers
// has one format, because the form of the activations depends on it.
static bool match_tiles(mlx_decode_plan_t *plan, mlx_decode_weight_t which, int64_t layer,
                        mlx_tiles_t tiles) {
  const matrix_role_t role = role_of(which);
  mlx_tiles_t *formats = plan->tiles[role.role];
  if (is_single_row(which) && !formats[0].bits && count_of_role(plan, role.role) > 1)
    return false;  // of floats
  if (!formats[0].bits) formats[0] = tiles;
  const bool second = !mlx_tiles_equal(tiles, formats[0]);
  if (second && (!role.bit || mlx_tiles_are_rows(tiles) || mlx_tiles_are_rows(formats[0]))) return false;
  if (second && !formats[1].bits) formats[1] = tiles;
  if (second && !mlx_tiles_equal(tiles, formats[1])) return false;
  if ((which == MLX_DECODE_UP && plan->form.counts[MLX_DECODE_GATE]) || which == MLX_DECODE_SHARED_UP)
    return second == ((plan->second[layer] & role.bit) != 0);
  if (second) plan->second[layer] |= role.bit;
  return true;
}

// Records a matrix of 16 bits in a network with quantized ones. Gate, up and down must be quantized, except
// those of a shared expert.
static bool match_rows16(mlx_decode_plan_t *plan, mlx_decode_weight_t which, int64_t layer,
                         mlx_dtype_t dtype) {
  const mlx_decode_role_t role = role_of(which).role;
  bool first = true;
  for (int i = 0; i < MLX_DECODE_ROLES; ++i) first &= !mlx_tiles_are_rows(plan->tiles[i][0]);
  if (first) plan->dtype = dtype;
  return dtype == plan->dtype && dtype != MLX_F32 && role != MLX_DECODE_ROLE_GATE &&
         role != MLX_DECODE_ROLE_DOWN &&
         match_tiles(plan, which, layer, (mlx_tiles_t){.bits = MLX_DECODE_ROWS});
}

// Bytes of |rows| rows, which precede another matrix in the same tensor. Fails if they do not end with a
// tile.
static bool bytes_before(mlx_stored_t stored, int64_t rows, int64_t columns, uint64_t *out_bytes) {
  *out_bytes = 0;
  if (!rows) return true;
  const int64_t width = stored.dtype == MLX_F32 ? 4 : 2;
  *out_bytes =
      stored.tiles.bits ? mlx_tiles_bytes(stored.tiles, rows, columns) : (uint64_t)(rows * columns * width);
  return !stored.tiles.bits || rows % MLX_TILE_ROWS == 0;
}

// A router, or the score of a shared expert, may have any type of floats. |type|: that of the first layer.
static bool match_float(bool first, mlx_dtype_t *type, mlx_dtype_t dtype) {
  if (first) *type = dtype;
  return dtype == *type && (dtype == MLX_F32 || dtype == MLX_BF16 || dtype == MLX_F16);
}

// Whether a weight that is not in tiles has a type that the kernel reads: vectors and biases are f32, a
// router may have any type, other matrices have one type of 16 bits.
static bool match_dtype(mlx_plan_matcher_t *m, mlx_decode_weight_t which, int64_t layer, bool is_matrix,
                        mlx_dtype_t dtype) {
  mlx_decode_form_t *form = &m->plan->form;
  if (which >= MLX_DECODE_QKV_ORDER) return dtype == MLX_I32;
  if (!is_matrix || which == MLX_DECODE_FILTER) return dtype == MLX_F32;
  if (which == MLX_DECODE_ROUTER) return match_float(form->counts[which] == 1, &form->router, dtype);
  if (is_single_row(which)) {
    const mlx_decode_role_t role = role_of(which).role;
    return !m->plan->tiles[role][0].bits &&
           match_float(count_of_role(m->plan, role) == 1,
                       role == MLX_DECODE_ROLE_DELTA ? &form->delta_rows : &form->score, dtype);
  }
  if (m->storage.layout == MLX_LAYOUT_TILES) return match_rows16(m->plan, which, layer, dtype);
  return dtype == m->plan->dtype && dtype != MLX_F32;
}

void mlx_plan_require(mlx_plan_matcher_t *m, bool holds, int node, const char *why) {
  if (holds || !m->fits) return;
  m->fits = false;
  m->plan->misfit = (mlx_misfit_t){.node = node, .why = why};
}

void mlx_plan_weight(mlx_plan_matcher_t *m, mlx_decode_weight_t which, int64_t layer, int id, int operand,
                     int64_t first, bool is_matrix) {
  const mlx_node_t *weight = mlx_graph_operand(m->graph, mlx_graph_node(m->graph, id), operand);
  mlx_decode_offset_t *offset = &m->plan->offsets[which];
  const size_t index = weight->weight_index;
  ++m->plan->form.counts[which];
  if (m->indices) m->indices[layer * MLX_DECODE_WEIGHTS + which] = index;
  if (!m->offsets) return;
  const mlx_stored_t stored = mlx_weight_stored(&m->model->weights[index], m->storage);
  uint64_t before;
  const bool whole = bytes_before(stored, first, weight->rank > 1 ? weight->dims[1] : 1, &before);
  mlx_plan_require(m, whole, id, "the matrices in its tensor do not start with a whole tile");
  if (!whole) return;
  const uint64_t at = m->offsets[index] + before;
  m->fused |= first > 0;
  if (which == MLX_DECODE_EMBED) m->plan->dtype = stored.dtype;
  if (layer == 0) offset->first = at;
  if (layer == 1) offset->stride = at - offset->first;
  if (offset->first + (uint64_t)layer * offset->stride != at) m->plan->regular = false;
  const bool known = stored.tiles.bits
                         ? which != MLX_DECODE_ROUTER && match_tiles(m->plan, which, layer, stored.tiles)
                         : match_dtype(m, which, layer, is_matrix, stored.dtype);
  mlx_plan_require(m, known, id, "the format of its weight");
}

// The weight that operand |operand| of node |id| is; NULL: it is none.
static const mlx_node_t *weight_operand(const mlx_plan_matcher_t *m, int id, int operand) {
  const mlx_node_t *weight =
      m->fits && id ? mlx_graph_operand(m->graph, mlx_graph_node(m->graph, id), operand) : NULL;
  return weight && weight->kind == MLX_NODE_WEIGHT ? weight : NULL;
}

void mlx_plan_rows(mlx_plan_matcher_t *m, mlx_decode_weight_t which, int64_t layer, int id, int operand,
                   int64_t first, int64_t rows, int64_t columns, int64_t total) {
  const mlx_node_t *weight = weight_operand(m, id, operand);
  mlx_plan_require(m,
                   weight && weight->rank == (columns ? 2 : 1) && weight->dims[0] == total &&
                       first + rows <= total && (!columns || weight->dims[1] == columns),
                   id, "the shape of its weight");
  if (m->fits) mlx_plan_weight(m, which, layer, id, operand, first, columns != 0);
}

void mlx_plan_experts_weight(mlx_plan_matcher_t *m, mlx_decode_weight_t which, int64_t layer, int id,
                             int operand, int64_t rows, int64_t columns) {
  const mlx_node_t *weight = weight_operand(m, id, operand);
  mlx_plan_require(m,
                   weight && weight->rank == (columns ? 3 : 2) && weight->dims[0] == m->plan->form.experts &&
                       weight->dims[1] == rows && (!columns || weight->dims[2] == columns),
                   id, "the shape of its weights");
  if (m->fits) mlx_plan_weight(m, which, layer, id, operand, 0, columns != 0);
}
