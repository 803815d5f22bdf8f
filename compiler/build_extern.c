// Calls of CUDA kernels: the HAL executables that hold them, and the dispatches.
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "compiler/builder_internal.h"

#define N(value) mlx_builder_name(b, value)
#define T(type) mlx_type_text(type).chars
#define TV(value) mlx_type_text(mlx_type_of(value)).chars

#define VARIANT "cuda_nvptx_fb"

static size_t count_results(const mlx_extern_t *kernel) {
  return (kernel->result.rank != 0) + (kernel->more[0].rank != 0) + (kernel->more[1].rank != 0);
}

static void put_operands(mlx_builder_t *b, const mlx_extern_t *kernel, mlx_text_t *names, mlx_text_t *types,
                         mlx_text_t *results) {
  for (size_t i = 0; i < kernel->operand_count; ++i) {
    const char *comma = i ? ", " : "";
    mlx_text_printf(names, "%s%%%s", comma, N(kernel->operands[i]));
    const mlx_builder_size_text_t size = mlx_builder_size_text(b, kernel->operands[i]);
    mlx_text_printf(types, "%s%s%s", comma, TV(kernel->operands[i]), size.chars);
    if (i >= kernel->updated_from)
      mlx_text_printf(results, "%s%%%s%s", i > kernel->updated_from ? ", " : "", N(kernel->operands[i]),
                      size.chars);
  }
  for (size_t i = 0; i < count_results(kernel); ++i)
    mlx_text_printf(results, "%s%s", results->length ? ", " : "",
                    T(i ? kernel->more[i - 1] : kernel->result));
}

// Indirect bindings: IREE passes the buffers of a call in a binding table, so that a recorded command buffer
// does not depend on them and is recorded once.
static void put_layout(mlx_text_t *body, const mlx_extern_t *kernel) {
  const size_t bindings = kernel->operand_count + count_results(kernel);
  mlx_text_puts(body, "layout(#hal.pipeline.layout<");
  if (kernel->constant_count) mlx_text_printf(body, "constants = %zu, ", kernel->constant_count);
  mlx_text_puts(body, "bindings = [");
  for (size_t i = 0; i < bindings; ++i) {
    mlx_text_printf(body, "%s#hal.pipeline.binding<storage_buffer, %s>", i ? ", " : "",
                    i < kernel->updated_from ? "\"ReadOnly|Indirect\"" : "Indirect");
  }
  mlx_text_puts(body, "], flags = Indirect>)");
}

// Defines the constants and the size of the grid. The grid is an operand of the dispatch, not a part of the
// executable: IREE then stores one executable for all launches of a kernel.
static void put_numbers(mlx_text_t *body, const char *first, const mlx_extern_t *kernel) {
  for (size_t i = 0; i < kernel->constant_count; ++i)
    mlx_text_printf(body, "    %%%s_constant%zu = arith.constant %d : i32\n", first, i,
                    (int)kernel->constants[i]);
  for (int i = 0; i < 3; ++i)
    mlx_text_printf(body, "    %%%s_grid%d = arith.constant %lld : index\n", first, i,
                    (long long)kernel->grid[i]);
}

// Writes the executable of |kernel| without its name. It has all that a launch needs beside operands and
// grid.
static void put_executable(mlx_text_t *out, const mlx_extern_t *kernel) {
  mlx_text_puts(out,
                " {\n    hal.executable.variant public @" VARIANT " target(<\"cuda\", \"cuda-nvptx-fb\">) ");
  mlx_text_printf(out, "objects([#hal.executable.object<{path = \"%s\"}>]) {\n", kernel->file);
  mlx_text_printf(out, "      hal.executable.export public @%s ordinal(0) ", kernel->symbol);
  put_layout(out, kernel);
  mlx_text_puts(out,
                " count(%device: !hal.device, %x: index, %y: index, %z: index) -> (index, index, index) {\n"
                "        hal.return %x, %y, %z : index, index, index\n      }");
  mlx_text_printf(out, " <workgroup_size = [%lld : index, 1 : index, 1 : index]", (long long)kernel->threads);
  if (kernel->shared_bytes)
    mlx_text_printf(out, ", workgroup_local_memory = %lld", (long long)kernel->shared_bytes);
  mlx_text_puts(out, ">\n    }\n  }\n");
}

// Returns the number of the executable of |kernel|, and writes the executable at the first call. Launches
// that differ in operands and grid only share one: comparing thousands of equal executables takes
// iree-compile a third of its time.
static size_t executable_of(mlx_builder_t *b, const mlx_extern_t *kernel) {
  mlx_text_t text = {0};
  put_executable(&text, kernel);
  mlx_status_t status = mlx_text_finish(&text);
  size_t nth = 0;
  while (!status && nth < b->executable_count && strcmp(b->executables[nth], text.data)) ++nth;
  if (!status && nth == b->executable_count) {
    status = mlx_reserve(nth + 1, sizeof *b->executables, &b->executable_capacity, &b->executables);
    if (!status) status = mlx_text_take(&text, &b->executables[nth], NULL);
    if (!status) ++b->executable_count;
  }
  mlx_text_clear(&text);
  mlx_builder_fail(b, status);
  return nth;
}

static void put_dispatch(mlx_builder_t *b, const char *first, const mlx_extern_t *kernel,
                         const mlx_text_t *names, const mlx_text_t *types, const mlx_text_t *results,
                         size_t result_count) {
  mlx_text_t *body = &b->body;
  put_numbers(body, first, kernel);
  mlx_text_printf(body, "    %%%s:%zu = flow.dispatch @kernel%zu::@" VARIANT "::@%s", first, result_count,
                  executable_of(b, kernel), kernel->symbol);
  mlx_text_printf(body, "[%%%s_grid0, %%%s_grid1, %%%s_grid2](", first, first, first);
  for (size_t i = 0; i < kernel->constant_count; ++i) mlx_text_printf(body, "%%%s_constant%zu, ", first, i);
  mlx_text_printf(body, "%s) : (", names->data);
  for (size_t i = 0; i < kernel->constant_count; ++i) mlx_text_puts(body, "i32, ");
  mlx_text_printf(body, "%s) -> (%s)\n", types->data, results->data);
}

mlx_built_t mlx_build_extern(mlx_builder_t *b, const char *name, const mlx_extern_t *kernel,
                             mlx_built_t *out_updated) {
  const size_t updated = kernel->operand_count - kernel->updated_from,
               count = updated + count_results(kernel);
  if (b->status) return (mlx_built_t){0};
  if (b->form != MLX_FORM_IREE || !count || kernel->operand_count > MLX_EXTERN_OPERANDS ||
      kernel->constant_count > MLX_EXTERN_CONSTANTS) {
    mlx_builder_fail(b,
                     mlx_error(MLX_INTERNAL, "cannot build '%s.%s': not a call of a kernel", b->scope, name));
    return (mlx_built_t){0};
  }
  mlx_text_t names = {0}, types = {0}, results = {0};
  put_operands(b, kernel, &names, &types, &results);
  mlx_builder_fail(b, mlx_text_finish(&names));
  mlx_builder_fail(b, mlx_text_finish(&types));
  mlx_builder_fail(b, mlx_text_finish(&results));
  mlx_built_t result = {0}, group = mlx_builder_new_value(b, name, kernel->result);
  if (group.id) put_dispatch(b, N(group), kernel, &names, &types, &results, count);
  for (size_t i = 0; i < count && group.id; ++i) {  // "%name#1"
    char nth[256];
    snprintf(nth, sizeof nth, "%s#%zu", N(group), i);
    const mlx_built_t *operand = i < updated ? &kernel->operands[kernel->updated_from + i] : NULL;
    const mlx_type_t type = operand        ? mlx_type_of(*operand)
                            : i == updated ? kernel->result
                                           : kernel->more[i - updated - 1];
    const mlx_built_t value = mlx_builder_exact_value(b, nth, type);
    if (operand) mlx_builder_copy_size(b, value, *operand);
    if (i <= updated) result = value;
    if (operand) out_updated[i] = value;
    if (i > updated) out_updated[i - 1] = value;
  }
  mlx_text_clear(&names);
  mlx_text_clear(&types);
  mlx_text_clear(&results);
  return result;
}
