// Calls of a C function that is linked into a CPU module from object files: the HAL executable that wraps it,
// and the dispatches.
#include <stdio.h>

#include "compiler/builder_internal.h"

#define N(value) mlx_builder_name(b, value)
#define T(type) mlx_type_text(type).chars
#define TV(value) mlx_type_text(mlx_type_of(value)).chars

static const char *element(const mlx_linked_t *kernel, size_t nth) {
  const mlx_dtype_t dtype = nth < kernel->operand_count ? kernel->operands[nth].dtype : kernel->result.dtype;
  return mlx_dtype_info(dtype)->mlir;
}

static size_t binding_count(const mlx_linked_t *kernel) {
  return kernel->operand_count + (kernel->result.rank ? 1 : 0);
}

// Numbers that are passed beside the bindings.
static size_t number_count(const mlx_linked_t *kernel) { return kernel->constant_count + kernel->size_count; }

static void put_layout(mlx_text_t *out, const mlx_linked_t *kernel) {
  mlx_text_printf(out, "#%s_layout = #hal.pipeline.layout<constants = %zu, bindings = [\n", kernel->symbol,
                  number_count(kernel));
  for (size_t i = 0; i < binding_count(kernel); ++i) {
    mlx_text_printf(out, "  #hal.pipeline.binding<storage_buffer%s>%s\n",
                    i < kernel->updated_from ? ", ReadOnly" : "", i + 1 < binding_count(kernel) ? "," : "");
  }
  mlx_text_puts(out, "]>\n");
}

// The next field of the struct becomes %f.
static void put_field(mlx_text_t *out, size_t nth, size_t fields) {
  mlx_text_printf(out, "        %%i%zu = arith.constant %zu : index\n", nth, nth);
  mlx_text_printf(out, "        memref.store %%f%zu, %%fields[%%i%zu] : memref<%zuxi64>\n", nth, nth, fields);
}

// The wrapper: writes the addresses of the bindings and the constants into a struct, and passes its address.
static void put_wrapper(mlx_text_t *out, const mlx_linked_t *kernel) {
  const char *symbol = kernel->symbol;
  const size_t bindings = binding_count(kernel), fields = bindings + number_count(kernel);
  mlx_text_printf(out, "      func.func private @%s(memref<%zuxi64>) ", symbol, fields);
  mlx_text_printf(out, "attributes {hal.import.static, llvm.bareptr = true}\n      func.func @call_%s() {\n",
                  symbol);
  mlx_text_puts(out, "        %start = arith.constant 0 : index\n");
  mlx_text_printf(out, "        %%fields = memref.alloca() : memref<%zuxi64>\n", fields);
  for (size_t i = 0; i < bindings; ++i) {
    const char *type = element(kernel, i);
    mlx_text_printf(
        out, "        %%b%zu = hal.interface.binding.subspan layout(#%s_layout) binding(%zu) alignment(64) ",
        i, symbol, i);
    mlx_text_printf(out, "offset(%%start) : memref<%s>\n", type);
    mlx_text_printf(out,
                    "        %%p%zu = memref.extract_aligned_pointer_as_index %%b%zu : memref<%s> -> index\n",
                    i, i, type);
    mlx_text_printf(out, "        %%f%zu = arith.index_cast %%p%zu : index to i64\n", i, i);
    put_field(out, i, fields);
  }
  for (size_t i = 0; i < number_count(kernel); ++i) {
    mlx_text_printf(out,
                    "        %%n%zu = hal.interface.constant.load layout(#%s_layout) ordinal(%zu) : i32\n", i,
                    symbol, i);
    mlx_text_printf(out, "        %%f%zu = arith.extsi %%n%zu : i32 to i64\n", bindings + i, i);
    put_field(out, bindings + i, fields);
  }
  mlx_text_printf(out, "        func.call @%s(%%fields) : (memref<%zuxi64>) -> ()\n", symbol, fields);
  mlx_text_puts(out, "        return\n      }\n");
}

void mlx_builder_link(mlx_builder_t *b, const mlx_linked_t *kernel) {
  put_layout(&b->prelude, kernel);
  mlx_text_t *out = &b->module;
  mlx_text_printf(out, "\n  // The kernel %s, and how many workgroups a call of it has.\n", kernel->symbol);
  mlx_text_printf(out, "  hal.executable.source private @%s_code <objects = #hal.executable.objects<{",
                  kernel->symbol);
  mlx_text_printf(out, "#hal.executable.target<\"llvm-cpu\", \"%s\"> = [", kernel->target);
  for (size_t i = 0; i < kernel->file_count; ++i)
    mlx_text_printf(out, "%s\n    #hal.executable.object<{path = \"%s\"}>", i ? "," : "", kernel->files[i]);
  mlx_text_puts(out, "]}>> {\n");
  mlx_text_printf(out, "    hal.executable.export public @call_%s ordinal(0) layout(#%s_layout) ",
                  kernel->symbol, kernel->symbol);
  mlx_text_puts(out, "count(%device: !hal.device) -> (index, index, index) {\n");
  mlx_text_printf(out, "      %%groups = arith.constant %lld : index\n", (long long)kernel->workgroups);
  mlx_text_puts(out, "      %one = arith.constant 1 : index\n");
  mlx_text_puts(out,
                "      hal.return %groups, %one, %one : index, index, index\n    }\n    builtin.module {\n");
  put_wrapper(out, kernel);
  mlx_text_puts(out, "    }\n  }\n");
}

// The types of operands and results. An updated operand stands for its result.
static void put_types(mlx_builder_t *b, const mlx_linked_t *kernel) {
  mlx_text_t *out = &b->body;
  mlx_text_puts(out, ")\n        : (");
  for (size_t i = 0; i < number_count(kernel); ++i) mlx_text_puts(out, "i32, ");
  for (size_t i = 0; i < kernel->operand_count; ++i) {
    const mlx_built_t operand = kernel->operands[i];
    mlx_text_printf(out, "%s%s%s", i ? ", " : "", TV(operand), mlx_builder_size_text(b, operand).chars);
  }
  mlx_text_puts(out, ")\n        -> (");
  for (size_t i = kernel->updated_from; i < kernel->operand_count; ++i) {
    const mlx_built_t operand = kernel->operands[i];
    mlx_text_printf(out, "%s%%%s%s", i > kernel->updated_from ? ", " : "", N(operand),
                    mlx_builder_size_text(b, operand).chars);
  }
  if (kernel->result.rank)
    mlx_text_printf(out, "%s%s", kernel->updated_from < kernel->operand_count ? ", " : "", T(kernel->result));
  mlx_text_puts(out, ")\n");
}

// Defines the numbers that the call |group| passes: "%NAME_numberI".
static void put_numbers(mlx_builder_t *b, const char *name, const mlx_linked_t *kernel) {
  mlx_text_t *out = &b->body;
  for (size_t i = 0; i < kernel->constant_count; ++i)
    mlx_text_printf(out, "    %%%s_number%zu = arith.constant %d : i32\n", name, i,
                    (int)kernel->constants[i]);
  for (size_t i = 0; i < kernel->size_count; ++i) {
    const mlx_built_t operand = kernel->operands[kernel->sizes[i].operand];
    const int size = operand.id ? b->values[operand.id - 1].size : 0;
    if (!size) mlx_builder_fail(b, mlx_error(MLX_INTERNAL, "operand of '%s' has no run-time size", name));
    if (!size) return;
    mlx_text_printf(out, "    %%%s_divisor%zu = arith.constant %lld : index\n", name, i,
                    (long long)kernel->sizes[i].divisor);
    mlx_text_printf(out, "    %%%s_size%zu = arith.divui %%%s, %%%s_divisor%zu : index\n", name, i,
                    b->values[size - 1].name, name, i);
    mlx_text_printf(out, "    %%%s_number%zu = arith.index_cast %%%s_size%zu : index to i32\n", name,
                    kernel->constant_count + i, name, i);
  }
}

mlx_built_t mlx_build_linked(mlx_builder_t *b, const char *name, const mlx_linked_t *kernel,
                             mlx_built_t *out_updated) {
  mlx_built_t group = mlx_builder_new_value(b, name, kernel->result), value = {0};
  if (!group.id) return group;
  mlx_text_t *out = &b->body;
  const size_t updated = kernel->operand_count - kernel->updated_from,
               count = updated + (kernel->result.rank ? 1 : 0);
  put_numbers(b, N(group), kernel);
  mlx_text_printf(out, "    %%%s:%zu = flow.dispatch @%s_code::@call_%s(", N(group), count, kernel->symbol,
                  kernel->symbol);
  for (size_t i = 0; i < number_count(kernel); ++i) mlx_text_printf(out, "%%%s_number%zu, ", N(group), i);
  for (size_t i = 0; i < kernel->operand_count; ++i)
    mlx_text_printf(out, "%s%%%s", i ? ", " : "", N(kernel->operands[i]));
  put_types(b, kernel);
  for (size_t i = 0; i < count; ++i) {  // "%name#1"
    char nth[256];
    snprintf(nth, sizeof nth, "%s#%zu", N(group), i);
    const mlx_built_t *operand = i < updated ? &kernel->operands[kernel->updated_from + i] : NULL;
    value = mlx_builder_exact_value(b, nth, operand ? mlx_type_of(*operand) : kernel->result);
    if (!operand) continue;
    mlx_builder_copy_size(b, value, *operand);
    out_updated[i] = value;
  }
  return value;
}
