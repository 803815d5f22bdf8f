// Arguments that a function updates in place, parts of them, and loops.
#include <stdio.h>

#include "compiler/builder_internal.h"

#define N(value) mlx_builder_name(b, value)
#define T(type) mlx_type_text(type).chars
#define TV(value) mlx_type_text(mlx_type_of(value)).chars

static mlx_built_t refuse(mlx_builder_t *b, const char *name, const char *why) {
  if (!b->status)
    mlx_builder_fail(b, mlx_error(MLX_INTERNAL, "cannot build '%s.%s': %s", b->scope, name, why));
  return (mlx_built_t){0};
}

// ----------------------------------------------------------------------------------------------------------
// Arguments

// The index of the result that an in-place argument becomes.
static int result_index(const mlx_builder_t *b) {
  int index = 0;
  for (size_t i = 0; i < b->global_count; ++i) index += b->globals[i].in_place;
  return index;
}

void mlx_builder_in_place(mlx_builder_t *b, const char *name, mlx_type_t type) {
  char attributes[64] = "";
  if (b->status) return;
  if (b->form == MLX_FORM_IREE)
    snprintf(attributes, sizeof attributes, " {iree.abi.output = %d : index}", result_index(b));
  const mlx_built_t value = mlx_builder_put_argument(b, name, type, attributes);
  mlx_global_t *global = value.id ? mlx_builder_add_global(b, name, type, true) : NULL;
  if (!global) return;
  global->in_place = true;
  global->current = value;
}

mlx_built_t mlx_builder_count_argument(mlx_builder_t *b, const char *name) {
  const mlx_type_t type = mlx_scalar_type(MLX_I32);
  if (b->form == MLX_FORM_PURE) return mlx_builder_argument(b, name, type);
  const mlx_built_t value = mlx_builder_new_value(b, name, type);
  if (value.id)
    mlx_text_printf(&b->arguments, "%s\n      %%%s: i32", b->arguments.length ? "," : "", N(value));
  return value;
}

// ----------------------------------------------------------------------------------------------------------
// Parts of arguments

mlx_built_t mlx_build_words(mlx_builder_t *b, const char *name, mlx_built_t x, int64_t start, int64_t count) {
  if (!x.id || x.rank != 1 || start < 0 || count < 1 ||
      (x.dims[0] != MLX_DIM_RUNTIME && start + count > x.dims[0]))
    return refuse(b, name, "the elements are not a part of the vector");
  const mlx_type_t type = MLX_TYPE(x.dtype, count);
  return mlx_builder_emit(b, name, type, "stablehlo.slice %%%s [%lld:%lld] : (%s) -> %s", N(x),
                          (long long)start, (long long)(start + count), TV(x), T(type));
}

mlx_built_t mlx_build_update_rows(mlx_builder_t *b, const char *name, mlx_built_t x, mlx_built_t rows) {
  if (!x.id || !rows.id || x.rank != 2 || rows.rank != 2 || x.dtype != rows.dtype ||
      x.dims[1] != rows.dims[1] || (x.dims[0] != MLX_DIM_RUNTIME && rows.dims[0] > x.dims[0]))
    return refuse(b, name, "the rows are not a part of the matrix");
  mlx_built_t value;
  if (b->form == MLX_FORM_IREE) {
    value = mlx_builder_emit(
        b, name, mlx_type_of(x), "tensor.insert_slice %%%s into %%%s[0, 0] [%lld, %lld] [1, 1] : %s into %s",
        N(rows), N(x), (long long)rows.dims[0], (long long)rows.dims[1], TV(rows), TV(x));
  } else {
    const mlx_built_t zero = mlx_build_int(b, "first_row", 0, mlx_scalar_type(MLX_I32));
    value = mlx_builder_emit(
        b, name, mlx_type_of(x),
        "stablehlo.dynamic_update_slice %%%s, %%%s, %%%s, %%%s : (%s, %s, tensor<i32>, tensor<i32>) -> %s",
        N(x), N(rows), N(zero), N(zero), TV(x), TV(rows), TV(x));
  }
  mlx_builder_copy_size(b, value, x);
  return value;
}

// ----------------------------------------------------------------------------------------------------------
// Loops

// The carried values as "NAME = START, ..." and as types.
static void put_carried(mlx_builder_t *b, const mlx_built_t *inside, const mlx_built_t *start, size_t count,
                        const char *before, mlx_text_t *types) {
  for (size_t i = 0; i < count; ++i) {
    mlx_text_printf(&b->body, "%s%%%s = %%%s", i ? ", " : before, N(inside[i]), N(start[i]));
    mlx_text_printf(types, "%s%s", i ? ", " : "", TV(start[i]));
  }
}

static void begin_scf(mlx_builder_t *b, const mlx_loop_t *loop, const mlx_built_t *inside,
                      const mlx_built_t *start) {
  const char *name = N(loop->group);
  mlx_text_t *out = &b->body, types = {0};
  mlx_text_printf(out,
                  "    %%%s_first = arith.constant 0 : index\n    %%%s_step = arith.constant 1 : index\n",
                  name, name);
  mlx_text_printf(out, "    %%%s_end = arith.index_cast %%%s : i32 to index\n", name, N(loop->count));
  mlx_text_printf(out, "    %%%s:%zu = scf.for %%%s_at = %%%s_first to %%%s_end step %%%s_step iter_args(",
                  name, loop->carried, name, name, name, name);
  put_carried(b, inside, start, loop->carried, "", &types);
  mlx_builder_fail(b, mlx_text_finish(&types));
  if (!b->status) mlx_text_printf(out, ") -> (%s) {\n", types.data);
  mlx_text_printf(out, "    %%%s_i32 = arith.index_cast %%%s_at : index to i32\n", name, name);
  mlx_text_printf(out, "    %%%s = tensor.from_elements %%%s_i32 : tensor<i32>\n", N(loop->index), name);
  mlx_text_clear(&types);
}

static void begin_while(mlx_builder_t *b, const mlx_loop_t *loop, const mlx_built_t *inside,
                        const mlx_built_t *start) {
  const char *name = N(loop->group);
  mlx_text_t *out = &b->body, types = {0};
  mlx_text_printf(out, "    %%%s_first = stablehlo.constant dense<0> : tensor<i32>\n", name);
  mlx_text_printf(out, "    %%%s:%zu = stablehlo.while(%%%s = %%%s_first", name, loop->carried + 1,
                  N(loop->index), name);
  put_carried(b, inside, start, loop->carried, ", ", &types);
  mlx_builder_fail(b, mlx_text_finish(&types));
  if (!b->status) mlx_text_printf(out, ") : tensor<i32>, %s\n", types.data);
  mlx_text_printf(
      out,
      "    cond {\n    %%%s_more = stablehlo.compare LT, %%%s, %%%s : (tensor<i32>, tensor<i32>) -> "
      "tensor<i1>\n    stablehlo.return %%%s_more : tensor<i1>\n    } do {\n",
      name, N(loop->index), N(loop->count), name);
  mlx_text_clear(&types);
}

mlx_loop_t mlx_build_loop(mlx_builder_t *b, const char *name, mlx_built_t count, mlx_built_t *carried,
                          size_t carried_count, mlx_built_t *out_index) {
  mlx_loop_t loop = {.count = count, .carried = carried_count};
  mlx_built_t inside[MLX_LOOP_VALUES] = {{0}};
  *out_index = (mlx_built_t){0};
  if (!count.id || count.rank || !carried_count || carried_count > MLX_LOOP_VALUES) {
    refuse(b, name, "a loop carries 1 to 4 values, and its count has rank 0");
    return loop;
  }
  loop.group = mlx_builder_new_value(b, name, mlx_scalar_type(MLX_I32));
  loop.index = mlx_builder_new_value(b, "iteration", mlx_scalar_type(MLX_I32));
  for (size_t i = 0; i < carried_count; ++i)
    inside[i] = mlx_builder_new_value(b, "carried", mlx_type_of(carried[i]));
  if (b->status) return loop;
  if (b->form == MLX_FORM_IREE)
    begin_scf(b, &loop, inside, carried);
  else
    begin_while(b, &loop, inside, carried);
  for (size_t i = 0; i < carried_count; ++i) carried[i] = inside[i];
  *out_index = loop.index;
  return loop;
}

void mlx_build_loop_end(mlx_builder_t *b, const mlx_loop_t *loop, mlx_built_t *carried) {
  const bool pure = b->form == MLX_FORM_PURE;
  mlx_text_t names = {0}, types = {0};
  if (b->status) return;
  if (pure) {
    const char *name = N(loop->group);
    mlx_text_printf(&b->body, "    %%%s_one = stablehlo.constant dense<1> : tensor<i32>\n", name);
    mlx_text_printf(&b->body, "    %%%s_next = stablehlo.add %%%s, %%%s_one : tensor<i32>\n", name,
                    N(loop->index), name);
    mlx_text_printf(&names, "%%%s_next", name);
    mlx_text_puts(&types, "tensor<i32>");
  }
  for (size_t i = 0; i < loop->carried; ++i) {
    mlx_text_printf(&names, "%s%%%s", names.length ? ", " : "", N(carried[i]));
    mlx_text_printf(&types, "%s%s", types.length ? ", " : "", TV(carried[i]));
  }
  mlx_builder_fail(b, mlx_text_finish(&names));
  mlx_builder_fail(b, mlx_text_finish(&types));
  if (!b->status)
    mlx_text_printf(&b->body, "    %s %s : %s\n    }\n", pure ? "stablehlo.return" : "scf.yield", names.data,
                    types.data);
  for (size_t i = 0; i < loop->carried && !b->status; ++i) {  // "%name#1"
    char nth[256];
    snprintf(nth, sizeof nth, "%s#%zu", N(loop->group), i + pure);
    carried[i] = mlx_builder_exact_value(b, nth, mlx_type_of(carried[i]));
  }
  mlx_text_clear(&names);
  mlx_text_clear(&types);
}
