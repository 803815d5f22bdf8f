// The StableHLO ops of the builder. Each checks its operands before it writes a line.
#include <stdio.h>
#include <string.h>

#include "compiler/builder_internal.h"

#define N(value) mlx_builder_name(b, value)
#define T(type) mlx_type_text(type).chars
#define TV(value) mlx_type_text(mlx_type_of(value)).chars

// Makes the calling op return an empty value: silently if the builder already has an error, else with an
// error if the operands do not match.
#define REQUIRE(condition)                                                                            \
  do {                                                                                                \
    if (b->status) return (mlx_built_t){0};                                                           \
    if (!(condition)) {                                                                               \
      mlx_builder_fail(b, mlx_error(MLX_INTERNAL, "cannot build '%s.%s': operands do not satisfy %s", \
                                    b->scope, name, #condition));                                     \
      return (mlx_built_t){0};                                                                        \
    }                                                                                                 \
  } while (0)

static int64_t element_count(mlx_type_t type) {
  int64_t count = 1;
  for (int i = 0; i < type.rank; ++i) count *= type.dims[i];
  return count;
}

typedef struct list_text {
  char chars[96];
} list_text_t;

static list_text_t list_text(const int64_t *items, int count) {
  list_text_t text = {{0}};
  int at = 0;
  for (int i = 0; i < count; ++i) {
    at += snprintf(text.chars + at, sizeof text.chars - (size_t)at, "%s%lld", i ? ", " : "",
                   (long long)items[i]);
  }
  return text;
}
#define LIST(items, count) list_text(items, count).chars

mlx_built_t mlx_build_float(mlx_builder_t *b, const char *name, double value, mlx_type_t type) {
  REQUIRE(type.dtype == MLX_F32);
  if (value < -3.0e38)
    return mlx_builder_emit(b, name, type, "stablehlo.constant dense<0xFF800000> : %s  // -inf", T(type));
  // Round to f32 first: a value must give the same text whether a file stored it as f32 or as decimal.
  return mlx_builder_emit(b, name, type, "stablehlo.constant dense<%.9e> : %s", (double)(float)value,
                          T(type));
}

mlx_built_t mlx_build_int(mlx_builder_t *b, const char *name, int64_t value, mlx_type_t type) {
  REQUIRE(type.dtype == MLX_I32);
  return mlx_builder_emit(b, name, type, "stablehlo.constant dense<%lld> : %s", (long long)value, T(type));
}

mlx_built_t mlx_build_floats(mlx_builder_t *b, const char *name, const float *values, int64_t count) {
  mlx_type_t type = MLX_TYPE(MLX_F32, count);
  mlx_built_t value = mlx_builder_new_value(b, name, type);
  if (!value.id) return value;
  mlx_text_printf(&b->body, "    %%%s = stablehlo.constant dense<[", N(value));
  for (int64_t i = 0; i < count; ++i) {
    mlx_text_printf(&b->body, "%s%.9e", i == 0 ? "" : i % 8 ? ", " : ",\n        ", (double)values[i]);
  }
  mlx_text_printf(&b->body, "]> : %s\n", T(type));
  return value;
}

mlx_built_t mlx_build_unary(mlx_builder_t *b, const char *name, const char *op, mlx_built_t x) {
  REQUIRE(x.id);
  return mlx_builder_emit(b, name, mlx_type_of(x), "stablehlo.%s %%%s : %s", op, N(x), TV(x));
}

mlx_built_t mlx_build_binary(mlx_builder_t *b, const char *name, const char *op, mlx_built_t x,
                             mlx_built_t y) {
  REQUIRE(mlx_type_equal(mlx_type_of(x), mlx_type_of(y)));
  return mlx_builder_emit(b, name, mlx_type_of(x), "stablehlo.%s %%%s, %%%s : %s", op, N(x), N(y), TV(x));
}

mlx_built_t mlx_build_compare(mlx_builder_t *b, const char *name, const char *order, mlx_built_t x,
                              mlx_built_t y) {
  REQUIRE(mlx_type_equal(mlx_type_of(x), mlx_type_of(y)));
  mlx_type_t type = mlx_type(MLX_I1, x.rank, x.dims);
  return mlx_builder_emit(b, name, type, "stablehlo.compare %s, %%%s, %%%s : (%s, %s) -> %s", order, N(x),
                          N(y), TV(x), TV(y), T(type));
}

mlx_built_t mlx_build_select(mlx_builder_t *b, const char *name, mlx_built_t which, mlx_built_t yes,
                             mlx_built_t no) {
  REQUIRE(mlx_type_equal(mlx_type_of(yes), mlx_type_of(no)));
  REQUIRE(mlx_type_equal(mlx_type_of(which), mlx_type(MLX_I1, yes.rank, yes.dims)));
  return mlx_builder_emit(b, name, mlx_type_of(yes), "stablehlo.select %%%s, %%%s, %%%s : %s, %s", N(which),
                          N(yes), N(no), TV(which), TV(yes));
}

mlx_built_t mlx_build_convert(mlx_builder_t *b, const char *name, mlx_built_t x, mlx_dtype_t dtype) {
  REQUIRE(x.id);
  if (x.dtype == dtype) return x;
  mlx_type_t type = mlx_type(dtype, x.rank, x.dims);
  return mlx_builder_emit(b, name, type, "stablehlo.convert %%%s : (%s) -> %s", N(x), TV(x), T(type));
}

mlx_built_t mlx_build_iota(mlx_builder_t *b, const char *name, int dim, mlx_type_t type) {
  REQUIRE(dim >= 0 && dim < type.rank);
  return mlx_builder_emit(b, name, type, "stablehlo.iota dim = %d : %s", dim, T(type));
}

mlx_built_t mlx_build_reshape(mlx_builder_t *b, const char *name, mlx_built_t x, mlx_type_t type) {
  REQUIRE(x.dtype == type.dtype && element_count(mlx_type_of(x)) == element_count(type));
  if (mlx_type_equal(mlx_type_of(x), type)) return x;
  return mlx_builder_emit(b, name, type, "stablehlo.reshape %%%s : (%s) -> %s", N(x), TV(x), T(type));
}

mlx_built_t mlx_build_broadcast(mlx_builder_t *b, const char *name, mlx_built_t x, const int64_t *dims,
                                mlx_type_t type) {
  REQUIRE(x.dtype == type.dtype);
  for (int i = 0; i < x.rank; ++i) {
    REQUIRE(dims[i] >= 0 && dims[i] < type.rank && (x.dims[i] == 1 || x.dims[i] == type.dims[dims[i]]));
  }
  return mlx_builder_emit(b, name, type, "stablehlo.broadcast_in_dim %%%s, dims = [%s] : (%s) -> %s", N(x),
                          LIST(dims, x.rank), TV(x), T(type));
}

mlx_built_t mlx_build_transpose(mlx_builder_t *b, const char *name, mlx_built_t x,
                                const int64_t *permutation) {
  REQUIRE(x.id);
  mlx_type_t type = {.dtype = x.dtype, .rank = x.rank};
  for (int i = 0; i < x.rank; ++i) {
    REQUIRE(permutation[i] >= 0 && permutation[i] < x.rank);
    type.dims[i] = x.dims[permutation[i]];
  }
  return mlx_builder_emit(b, name, type, "stablehlo.transpose %%%s, dims = [%s] : (%s) -> %s", N(x),
                          LIST(permutation, x.rank), TV(x), T(type));
}

mlx_built_t mlx_build_slice_last(mlx_builder_t *b, const char *name, mlx_built_t x, int64_t start,
                                 int64_t limit) {
  REQUIRE(x.rank > 0 && start >= 0 && start < limit && limit <= x.dims[x.rank - 1]);
  mlx_type_t type = mlx_type_of(x);
  type.dims[x.rank - 1] = limit - start;
  char ranges[192];
  int at = 0;
  for (int i = 0; i < x.rank; ++i) {
    bool last = i == x.rank - 1;
    at += snprintf(ranges + at, sizeof ranges - (size_t)at, "%s%lld:%lld", i ? ", " : "",
                   last ? (long long)start : 0LL, (long long)(last ? limit : x.dims[i]));
  }
  return mlx_builder_emit(b, name, type, "stablehlo.slice %%%s [%s] : (%s) -> %s", N(x), ranges, TV(x),
                          T(type));
}

mlx_built_t mlx_build_concat_last(mlx_builder_t *b, const char *name, mlx_built_t x, mlx_built_t y) {
  REQUIRE(x.rank > 0 && x.rank == y.rank && x.dtype == y.dtype);
  for (int i = 0; i < x.rank - 1; ++i) REQUIRE(x.dims[i] == y.dims[i]);
  mlx_type_t type = mlx_type_of(x);
  type.dims[x.rank - 1] += y.dims[y.rank - 1];
  return mlx_builder_emit(b, name, type, "stablehlo.concatenate %%%s, %%%s, dim = %d : (%s, %s) -> %s", N(x),
                          N(y), x.rank - 1, TV(x), TV(y), T(type));
}

mlx_built_t mlx_build_reduce_last(mlx_builder_t *b, const char *name, const char *op, mlx_built_t x) {
  REQUIRE(x.rank > 0 && x.dtype == MLX_F32);
  mlx_type_t type = mlx_type(x.dtype, x.rank - 1, x.dims);
  mlx_built_t start =
      mlx_build_float(b, "start", strcmp(op, "maximum") ? 0.0 : -4.0e38, mlx_scalar_type(MLX_F32));
  return mlx_builder_emit(
      b, name, type,
      "stablehlo.reduce(%%%s init: %%%s) applies stablehlo.%s across dimensions = [%d] : (%s, %s) -> %s",
      N(x), N(start), op, x.rank - 1, TV(x), TV(start), T(type));
}

// Finds the largest value, then the lowest index that has it. On a GPU, IREE runs a reduction over (value,
// index) pairs on one thread, and integer reductions give wrong results. So this reduces the indices as f32,
// counted from the end.
mlx_built_t mlx_build_argmax_last(mlx_builder_t *b, const char *name, mlx_built_t x) {
  REQUIRE(x.rank > 0 && x.rank <= 4 && x.dtype == MLX_F32 && x.dims[x.rank - 1] < 1 << 24);
  const int64_t outer[] = {0, 1, 2, 3};
  const double last = (double)(x.dims[x.rank - 1] - 1);
  const mlx_type_t wide = mlx_type_of(x), narrow = mlx_type(MLX_F32, x.rank - 1, x.dims);
  mlx_built_t peak = mlx_build_reduce_last(b, "largest", "maximum", x);
  mlx_built_t peaks = mlx_build_broadcast(b, "largest_wide", peak, outer, wide);
  mlx_built_t is_peak = mlx_build_compare(b, "is_largest", "EQ", x, peaks);
  mlx_built_t index = mlx_build_iota(b, "index", x.rank - 1, mlx_type(MLX_I32, x.rank, x.dims));
  index = mlx_build_convert(b, "index_f32", index, MLX_F32);
  mlx_built_t lasts = mlx_build_float(b, "last_index", last, wide);
  mlx_built_t from_end = mlx_build_binary(b, "from_end", "subtract", lasts, index);
  mlx_built_t none =
      mlx_build_float(b, "no_index", 0.0, wide);  // if all values are NaN, the result is the last index
  mlx_built_t candidates = mlx_build_select(b, "candidates", is_peak, from_end, none);
  mlx_built_t furthest = mlx_build_reduce_last(b, "furthest", "maximum", candidates);
  mlx_built_t first = mlx_build_binary(b, "first_largest", "subtract",
                                       mlx_build_float(b, "last_place", last, narrow), furthest);
  return mlx_build_convert(b, name, first, MLX_I32);
}

mlx_built_t mlx_build_dot(mlx_builder_t *b, const char *name, mlx_built_t x, mlx_built_t y, mlx_dot_t dot) {
  REQUIRE(x.id && y.id);
  REQUIRE(x.rank + y.rank - dot.batch_count - 2 <= MLX_VALUE_RANK);
  REQUIRE(x.dims[dot.left_contract] == y.dims[dot.right_contract]);
  mlx_type_t type = {.dtype = MLX_F32};
  for (int i = 0; i < dot.batch_count; ++i) {
    REQUIRE(x.dims[dot.left_batch[i]] == y.dims[dot.right_batch[i]]);
    type.dims[type.rank++] = x.dims[dot.left_batch[i]];
  }
  for (int side = 0; side < 2; ++side) {
    mlx_built_t operand = side ? y : x;
    const int64_t *batch = side ? dot.right_batch : dot.left_batch;
    for (int d = 0; d < operand.rank; ++d) {
      bool used = d == (side ? dot.right_contract : dot.left_contract);
      for (int i = 0; i < dot.batch_count; ++i) used |= d == batch[i];
      if (!used) type.dims[type.rank++] = operand.dims[d];
    }
  }
  char batching[256] = "";
  if (dot.batch_count) {
    snprintf(batching, sizeof batching, "batching_dims = [%s] x [%s], ",
             LIST(dot.left_batch, dot.batch_count), LIST(dot.right_batch, dot.batch_count));
  }
  return mlx_builder_emit(
      b, name, type, "stablehlo.dot_general %%%s, %%%s, %scontracting_dims = [%s] x [%s] : (%s, %s) -> %s",
      N(x), N(y), batching, LIST(&dot.left_contract, 1), LIST(&dot.right_contract, 1), TV(x), TV(y), T(type));
}

// The list |start|, |start| + 1, ... with |count| elements.
static list_text_t range_text(int start, int count) {
  int64_t items[MLX_VALUE_RANK * 2];
  for (int i = 0; i < count; ++i) items[i] = start + i;
  return list_text(items, count);
}
#define RANGE(start, count) range_text(start, count).chars

mlx_built_t mlx_build_gather(mlx_builder_t *b, const char *name, mlx_built_t x, mlx_built_t indices) {
  REQUIRE(indices.dtype == MLX_I32 && indices.rank > 0);
  int picked = (int)indices.dims[indices.rank - 1], outer = indices.rank - 1, rest = x.rank - picked;
  REQUIRE(picked >= 1 && rest >= 0 && outer + rest <= MLX_VALUE_RANK);
  mlx_type_t type = mlx_type(x.dtype, outer, indices.dims);
  int64_t sizes[MLX_VALUE_RANK];
  for (int i = 0; i < x.rank; ++i) {
    sizes[i] = i < picked ? 1 : x.dims[i];
    if (i >= picked) type.dims[type.rank++] = x.dims[i];
  }
  return mlx_builder_emit(
      b, name, type,
      "\"stablehlo.gather\"(%%%s, %%%s) <{dimension_numbers = #stablehlo.gather<offset_dims = [%s], "
      "collapsed_slice_dims = [%s], start_index_map = [%s], index_vector_dim = %d>, indices_are_sorted = "
      "false, "
      "slice_sizes = array<i64: %s>}> : (%s, %s) -> %s",
      N(x), N(indices), RANGE(outer, rest), RANGE(0, picked), RANGE(0, picked), outer, LIST(sizes, x.rank),
      TV(x), TV(indices), T(type));
}

mlx_built_t mlx_build_gather_columns(mlx_builder_t *b, const char *name, mlx_built_t x, mlx_built_t order) {
  REQUIRE(x.rank == 2 && order.dtype == MLX_I32 && order.rank == 2 && order.dims[1] == 1);
  const mlx_type_t type = MLX_TYPE(x.dtype, x.dims[0], order.dims[0]);
  return mlx_builder_emit(
      b, name, type,
      "\"stablehlo.gather\"(%%%s, %%%s) <{dimension_numbers = #stablehlo.gather<offset_dims = [0], "
      "collapsed_slice_dims = [1], start_index_map = [1], index_vector_dim = 1>, indices_are_sorted = false, "
      "slice_sizes = array<i64: %lld, 1>}> : (%s, %s) -> %s",
      N(x), N(order), (long long)x.dims[0], TV(x), TV(order), T(type));
}

mlx_built_t mlx_build_scatter(mlx_builder_t *b, const char *name, mlx_built_t x, mlx_built_t indices,
                              mlx_built_t updates) {
  REQUIRE(indices.dtype == MLX_I32 && indices.rank == 2 && updates.dtype == x.dtype);
  int picked = (int)indices.dims[1], rest = x.rank - picked;
  REQUIRE(picked >= 1 && rest >= 0 && updates.rank == 1 + rest && updates.dims[0] == indices.dims[0]);
  mlx_built_t value = mlx_builder_new_value(b, name, mlx_type_of(x));
  if (!value.id) return value;
  const char *element = mlx_dtype_info(x.dtype)->mlir;
  mlx_text_printf(&b->body,
                  "    %%%s = \"stablehlo.scatter\"(%%%s, %%%s, %%%s) <{scatter_dimension_numbers = "
                  "#stablehlo.scatter<update_window_dims = [%s], inserted_window_dims = [%s], "
                  "scatter_dims_to_operand_dims = [%s], index_vector_dim = 1>, indices_are_sorted = false, "
                  "unique_indices = false}> ({\n"
                  "    ^bb0(%%old: tensor<%s>, %%new: tensor<%s>):\n"
                  "      stablehlo.return %%new : tensor<%s>\n"
                  "    }) : (%s, %s, %s) -> %s\n",
                  N(value), N(x), N(indices), N(updates), RANGE(1, rest), RANGE(0, picked), RANGE(0, picked),
                  element, element, element, TV(x), TV(indices), TV(updates), TV(x));
  mlx_builder_copy_size(b, value, x);
  return value;
}
