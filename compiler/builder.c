// Types, names, declarations and functions. build_ops.c has the ops, build_state.c in-place arguments and
// loops, build_linked.c the calls of CPU kernels.
#include "compiler/builder.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "compiler/builder_internal.h"

// ----------------------------------------------------------------------------------------------------------
// Types

mlx_type_t mlx_type(mlx_dtype_t dtype, int rank, const int64_t *dims) {
  mlx_type_t type = {.dtype = dtype, .rank = rank};
  for (int i = 0; i < rank; ++i) type.dims[i] = dims[i];
  return type;
}

mlx_type_t mlx_scalar_type(mlx_dtype_t dtype) { return (mlx_type_t){.dtype = dtype}; }

mlx_type_t mlx_type_of(mlx_built_t value) { return mlx_type(value.dtype, value.rank, value.dims); }

bool mlx_type_equal(mlx_type_t a, mlx_type_t b) {
  if (a.dtype != b.dtype || a.rank != b.rank) return false;
  for (int i = 0; i < a.rank; ++i) {
    if (a.dims[i] != b.dims[i]) return false;
  }
  return true;
}

mlx_type_text_t mlx_type_text(mlx_type_t type) {
  mlx_type_text_t text;
  int at = snprintf(text.chars, sizeof text.chars, "tensor<");
  for (int i = 0; i < type.rank; ++i) {
    at += type.dims[i] == MLX_DIM_RUNTIME
              ? snprintf(text.chars + at, sizeof text.chars - (size_t)at, "?x")
              : snprintf(text.chars + at, sizeof text.chars - (size_t)at, "%lldx", (long long)type.dims[i]);
  }
  snprintf(text.chars + at, sizeof text.chars - (size_t)at, "%s>", mlx_dtype_info(type.dtype)->mlir);
  return text;
}

// ----------------------------------------------------------------------------------------------------------
// Builder

void mlx_builder_fail(mlx_builder_t *b, mlx_status_t status) {
  b->status = mlx_status_join(b->status, status);
}

mlx_form_t mlx_builder_form(const mlx_builder_t *b) { return b->form; }

mlx_status_t mlx_builder_create(mlx_form_t form, const char *module_name, mlx_builder_t **out_builder) {
  MLX_TRY(mlx_alloc(1, sizeof **out_builder, out_builder));
  (*out_builder)->form = form;
  mlx_text_printf(&(*out_builder)->module, "module @%s {\n", module_name);
  return NULL;
}

static void clear_function(mlx_builder_t *b) {
  for (size_t i = 0; i < b->value_count; ++i) mlx_free(b->values[i].name);
  b->value_count = 0;
  memset(b->buckets, 0, sizeof b->buckets);
  mlx_text_clear(&b->arguments);
  mlx_text_clear(&b->body);
  b->scope[0] = 0;
  while (b->global_count && b->globals[b->global_count - 1].in_place) --b->global_count;
  for (size_t i = 0; i < b->global_count; ++i) b->globals[i].current = (mlx_built_t){0};
}

void mlx_builder_free(mlx_builder_t *b) {
  if (!b) return;
  clear_function(b);
  mlx_free(b->values);
  mlx_free(b->globals);
  for (size_t i = 0; i < b->executable_count; ++i) mlx_free(b->executables[i]);
  mlx_free(b->executables);
  mlx_text_clear(&b->prelude);
  mlx_text_clear(&b->module);
  mlx_status_free(b->status);
  mlx_free(b);
}

static void put_executables(mlx_builder_t *b) {
  if (b->executable_count) mlx_text_puts(&b->module, "\n  // The CUDA kernels.\n");
  for (size_t i = 0; i < b->executable_count; ++i)
    mlx_text_printf(&b->module, "  hal.executable private @kernel%zu%s", i, b->executables[i]);
}

mlx_status_t mlx_builder_finish(mlx_builder_t *b, char **out_text, size_t *out_length) {
  mlx_status_t status = b->status;
  b->status = NULL;
  *out_text = NULL;
  if (status) return status;
  put_executables(b);
  mlx_text_puts(&b->module, "}\n");
  if (!b->prelude.length) return mlx_text_take(&b->module, out_text, out_length);
  if (b->module.failed) return mlx_text_finish(&b->module);
  mlx_text_append(&b->prelude, b->module.data, b->module.length);
  return mlx_text_take(&b->prelude, out_text, out_length);
}

// ----------------------------------------------------------------------------------------------------------
// Weights and state

mlx_global_t *mlx_builder_add_global(mlx_builder_t *b, const char *name, mlx_type_t type, bool is_state) {
  mlx_status_t status =
      mlx_reserve(b->global_count + 1, sizeof *b->globals, &b->global_capacity, &b->globals);
  mlx_builder_fail(b, status);
  if (status) return NULL;
  b->globals[b->global_count] = (mlx_global_t){.name = name, .type = type, .is_state = is_state};
  return &b->globals[b->global_count++];
}

void mlx_builder_parameter(mlx_builder_t *b, const char *name, mlx_type_t type) {
  if (!mlx_builder_add_global(b, name, type, false) || b->form == MLX_FORM_PURE) return;
  mlx_text_printf(&b->module,
                  "  util.global private @\"%s\" = #flow.parameter.named<\"model\"::\"%s\"> : %s\n", name,
                  name, mlx_type_text(type).chars);
}
void mlx_builder_weight(mlx_builder_t *b, const char *name, mlx_type_t type, const char *archive,
                        int64_t at) {
  mlx_global_t *global = mlx_builder_add_global(b, name, type, false);
  if (!global || b->form == MLX_FORM_PURE) return;
  global->archive = archive;
  global->archive_at = at;
}
void mlx_builder_state_of_ones(mlx_builder_t *b, const char *name, mlx_type_t type) {
  if (!mlx_builder_add_global(b, name, type, true) || b->form == MLX_FORM_PURE) return;
  mlx_text_printf(&b->module, "  util.global private mutable @\"%s\" = dense<-1> : %s\n", name,
                  mlx_type_text(type).chars);
}

// False if the bytes of |type| exceed a size_t.
static bool type_bytes(const mlx_type_t *type, size_t *out_bytes) {
  *out_bytes = mlx_dtype_info(type->dtype)->block_bytes;
  for (int d = 0; d < type->rank; ++d) {
    if (!mlx_mul(*out_bytes, (size_t)type->dims[d], out_bytes)) return false;
  }
  return true;
}

int64_t mlx_builder_state_bytes(const mlx_builder_t *b) {
  size_t total = 0, bytes;
  for (size_t i = 0; i < b->global_count; ++i) {
    if (!b->globals[i].is_state || b->globals[i].in_place) continue;
    if (!type_bytes(&b->globals[i].type, &bytes) || !mlx_add(total, bytes, &total) || total > INT64_MAX)
      return INT64_MAX;
  }
  return (int64_t)total;
}

void mlx_builder_constant(mlx_builder_t *b, const char *name, const int32_t *words, int64_t count) {
  if (!mlx_builder_add_global(b, name, MLX_TYPE(MLX_I32, count), false)) return;
  mlx_text_printf(&b->module, "  util.global private @\"%s\" = dense<[", name);
  for (int64_t i = 0; i < count; ++i)
    mlx_text_printf(&b->module, "%s%d", i == 0 ? "" : i % 16 ? ", " : ",\n      ", (int)words[i]);
  mlx_text_printf(&b->module, "]> : %s\n", mlx_type_text(MLX_TYPE(MLX_I32, count)).chars);
}

static mlx_global_t *find_global(mlx_builder_t *b, const char *name) {
  for (size_t i = 0; i < b->global_count; ++i) {
    if (!strcmp(b->globals[i].name, name)) return &b->globals[i];
  }
  mlx_builder_fail(b, mlx_error(MLX_INTERNAL, "global '%s' is used but not declared", name));
  return NULL;
}

// 16-bit weights of an odd number: |words| has one more.
static mlx_built_t drop_last(mlx_builder_t *b, const mlx_global_t *global, mlx_built_t words) {
  const int64_t count = 2 * mlx_type_of(words).dims[0];
  const mlx_type_text_t all = mlx_type_text(MLX_TYPE(global->type.dtype, count)),
                        used = mlx_type_text(MLX_TYPE(global->type.dtype, count - 1));
  const char *name = mlx_builder_name(b, words);
  mlx_text_printf(&b->body, "    %%%s_all = flow.tensor.bitcast %%%s : %s -> %s\n", name, name,
                  mlx_type_text(mlx_type_of(words)).chars, all.chars);
  mlx_text_printf(&b->body, "    %%%s_first = arith.constant 0 : index\n", name);
  mlx_text_printf(&b->body, "    %%%s_used = arith.constant %lld : index\n", name, (long long)(count - 1));
  mlx_text_printf(&b->body,
                  "    %%%s_row = flow.tensor.slice %%%s_all[%%%s_first for %%%s_used] : %s -> %s\n", name,
                  name, name, name, all.chars, used.chars);
  return mlx_builder_emit(b, global->name, global->type, "flow.tensor.reshape %%%s_row : %s -> %s", name,
                          used.chars, mlx_type_text(global->type).chars);
}

// The part of an archive that is a weight.
static mlx_built_t load_part(mlx_builder_t *b, const mlx_global_t *global) {
  const mlx_built_t archive = mlx_builder_load(b, global->archive);
  size_t bytes;
  if (!type_bytes(&global->type, &bytes))
    mlx_builder_fail(b, mlx_error(MLX_INTERNAL, "weight '%s' is too large", global->name));
  if (!archive.id || b->status) return MLX_NO_VALUE;
  const mlx_type_t words = MLX_TYPE(MLX_I32, (int64_t)((bytes + 3) / 4));
  const mlx_type_text_t from = mlx_type_text(mlx_type_of(archive)), part = mlx_type_text(words);
  const bool is_words = mlx_type_equal(words, global->type);
  const mlx_built_t value = mlx_builder_new_value(b, is_words ? global->name : "words", words);
  const char *name = mlx_builder_name(b, value);
  mlx_text_printf(&b->body, "    %%%s_at = arith.constant %lld : index\n", name,
                  (long long)global->archive_at);
  mlx_text_printf(&b->body, "    %%%s_count = arith.constant %lld : index\n", name, (long long)words.dims[0]);
  mlx_text_printf(&b->body, "    %%%s = flow.tensor.slice %%%s[%%%s_at for %%%s_count] : %s -> %s\n", name,
                  mlx_builder_name(b, archive), name, name, from.chars, part.chars);
  if (is_words) return value;
  if (bytes % 4) return drop_last(b, global, value);
  return mlx_builder_emit(b, global->name, global->type, "flow.tensor.bitcast %%%s : %s -> %s", name,
                          part.chars, mlx_type_text(global->type).chars);
}

mlx_built_t mlx_builder_load(mlx_builder_t *b, const char *name) {
  mlx_global_t *global = find_global(b, name);
  if (!global) return (mlx_built_t){0};
  if (!global->current.id) {  // each function loads it once, at its first use
    char scope[sizeof b->scope];
    memcpy(scope, b->scope, sizeof scope);
    b->scope[0] = 0;  // the name of a weight already contains its layer
    const char *value_name =
        isalpha((unsigned char)name[0]) ? name : "all_weights";  // "*" is not a valid MLIR name
    global->current = global->archive
                          ? load_part(b, global)
                          : mlx_builder_emit(b, value_name, global->type, "util.global.load @\"%s\" : %s",
                                             name, mlx_type_text(global->type).chars);
    memcpy(b->scope, scope, sizeof scope);
  }
  return global->current;
}

void mlx_builder_store(mlx_builder_t *b, const char *name, mlx_built_t value) {
  mlx_global_t *global = find_global(b, name);
  if (!global || b->status) return;
  if (!mlx_type_equal(global->type, mlx_type_of(value))) {
    mlx_builder_fail(
        b, mlx_error(MLX_INTERNAL, "state '%s' is %s, not %s", name, mlx_type_text(global->type).chars,
                     mlx_type_text(mlx_type_of(value)).chars));
    return;
  }
  global->current = value;
  if (b->form == MLX_FORM_IREE && !global->in_place) {
    mlx_text_printf(&b->body, "    util.global.store %%%s, @\"%s\" : %s\n", mlx_builder_name(b, value), name,
                    mlx_type_text(global->type).chars);
  }
}

// ----------------------------------------------------------------------------------------------------------
// Functions

void mlx_builder_begin(mlx_builder_t *b, const char *name, const char *comment) {
  clear_function(b);
  mlx_text_printf(&b->module, "\n  // %s\n  func.func %s@%s(", comment,
                  b->form == MLX_FORM_PURE ? "public " : "", name);
  if (b->form == MLX_FORM_IREE) return;
  for (size_t i = 0; i < b->global_count; ++i) {
    b->globals[i].current = mlx_builder_argument(b, b->globals[i].name, b->globals[i].type);
  }
}

static bool has_runtime_size(mlx_built_t value) { return value.rank && value.dims[0] == MLX_DIM_RUNTIME; }

// Of MLX_DIM_RUNTIME.
static void read_size(mlx_builder_t *b, mlx_built_t argument) {
  char name[128];
  if (!argument.id || !has_runtime_size(argument)) return;
  snprintf(name, sizeof name, "%.100s_size", mlx_builder_name(b, argument));
  mlx_text_printf(&b->body, "    %%%s_dim = arith.constant 0 : index\n", mlx_builder_name(b, argument));
  const mlx_built_t size = mlx_builder_exact_value(b, name, mlx_scalar_type(MLX_I32));
  mlx_text_printf(&b->body, "    %%%s = tensor.dim %%%s, %%%s_dim : %s\n", name,
                  mlx_builder_name(b, argument), mlx_builder_name(b, argument),
                  mlx_type_text(mlx_type_of(argument)).chars);
  if (size.id) b->values[argument.id - 1].size = size.id;
}

mlx_built_t mlx_builder_put_argument(mlx_builder_t *b, const char *name, mlx_type_t type,
                                     const char *attributes) {
  mlx_built_t value = mlx_builder_new_value(b, name, type);
  if (!value.id) return value;
  mlx_text_printf(&b->arguments, "%s\n      %%%s: %s%s", b->arguments.length ? "," : "",
                  mlx_builder_name(b, value), mlx_type_text(type).chars, attributes);
  read_size(b, value);
  return value;
}

mlx_built_t mlx_builder_argument(mlx_builder_t *b, const char *name, mlx_type_t type) {
  return mlx_builder_put_argument(b, name, type, "");
}

// The values that a function returns: its results, the new values of in-place arguments and, in the pure
// form, the new state.
static bool next_result(const mlx_builder_t *b, const mlx_built_t *results, size_t count, size_t *cursor,
                        mlx_built_t *out) {
  if (*cursor < count) {
    *out = results[(*cursor)++];
    return true;
  }
  for (size_t i; (i = *cursor - count) < b->global_count;) {
    ++*cursor;
    if (!b->globals[i].is_state || (b->form == MLX_FORM_IREE && !b->globals[i].in_place)) continue;
    *out = b->globals[i].current;
    return true;
  }
  return false;
}

void mlx_builder_end(mlx_builder_t *b, const mlx_built_t *results, size_t count) {
  if (b->status) return;
  mlx_text_t types = {0}, names = {0};
  mlx_built_t value;
  for (size_t cursor = 0; next_result(b, results, count, &cursor, &value);) {
    const char *comma = names.length ? ", " : "";
    mlx_text_printf(&names, "%s%%%s", comma, mlx_builder_name(b, value));
    mlx_text_printf(&types, "%s%s", comma, mlx_type_text(mlx_type_of(value)).chars);
  }
  mlx_builder_fail(b, mlx_text_finish(&types));
  mlx_builder_fail(b, mlx_text_finish(&names));
  mlx_builder_fail(b, mlx_text_finish(&b->body));
  mlx_builder_fail(b, mlx_text_finish(&b->arguments));
  if (!b->status) {
    mlx_text_printf(&b->module, "%s) -> (%s) {\n", b->arguments.data, types.data);
    mlx_text_append(&b->module, b->body.data, b->body.length);
    mlx_text_printf(&b->module, "    return %s : %s\n  }\n", names.data, types.data);
  }
  mlx_text_clear(&types);
  mlx_text_clear(&names);
}

void mlx_builder_comment(mlx_builder_t *b, const char *fmt, ...) {
  char line[256];
  va_list args;
  va_start(args, fmt);
  vsnprintf(line, sizeof line, fmt, args);
  va_end(args);
  mlx_text_printf(&b->body, "\n    // %s\n", line);
}

void mlx_builder_scope(mlx_builder_t *b, const char *scope) {
  snprintf(b->scope, sizeof b->scope, "%s", scope);
}

// ----------------------------------------------------------------------------------------------------------
// Values and their names

const char *mlx_builder_name(const mlx_builder_t *b, mlx_built_t value) {
  return value.id > 0 && (size_t)value.id <= b->value_count ? b->values[value.id - 1].name : "?";
}

static uint32_t hash_name(const char *name) {
  uint32_t hash = 2166136261u;
  for (; *name; ++name) hash = (hash ^ (uint8_t)*name) * 16777619u;
  return hash % MLX_BUILDER_BUCKETS;
}

static int find_name(const mlx_builder_t *b, const char *name) {
  int id = b->buckets[hash_name(name)];
  while (id && strcmp(b->values[id - 1].name, name)) id = b->values[id - 1].next;
  return id;
}

// "scope.name", with a number appended if it is already used.
static mlx_status_t make_name(mlx_builder_t *b, const char *name, char **out_name) {
  MLX_TRY(mlx_format(out_name, "%s%s%s", b->scope, b->scope[0] ? "." : "", name));
  int first = find_name(b, *out_name);
  while (first && find_name(b, *out_name)) {
    mlx_free(*out_name);
    MLX_TRY(mlx_format(out_name, "%s%s%s_%d", b->scope, b->scope[0] ? "." : "", name,
                       ++b->values[first - 1].uses));
  }
  return NULL;
}

// Takes ownership of |name|, which must be unique.
static mlx_built_t add_value(mlx_builder_t *b, char *name, mlx_type_t type) {
  uint32_t bucket = hash_name(name);
  b->values[b->value_count] = (mlx_named_t){.name = name, .next = b->buckets[bucket], .uses = 1};
  mlx_built_t value = {.id = (int)++b->value_count, .dtype = type.dtype, .rank = type.rank};
  memcpy(value.dims, type.dims, sizeof value.dims);
  b->buckets[bucket] = value.id;
  return value;
}

static mlx_built_t new_value(mlx_builder_t *b, const char *name, bool exact, mlx_type_t type) {
  if (b->status) return (mlx_built_t){0};
  char *unique = NULL;
  mlx_status_t status = mlx_reserve(b->value_count + 1, sizeof *b->values, &b->value_capacity, &b->values);
  if (!status) status = exact ? mlx_copy_text(name, strlen(name), &unique) : make_name(b, name, &unique);
  if (!status) return add_value(b, unique, type);
  mlx_builder_fail(b, status);
  return (mlx_built_t){0};
}

mlx_built_t mlx_builder_new_value(mlx_builder_t *b, const char *name, mlx_type_t type) {
  return new_value(b, name, false, type);
}

mlx_built_t mlx_builder_exact_value(mlx_builder_t *b, const char *name, mlx_type_t type) {
  return new_value(b, name, true, type);
}

mlx_built_t mlx_builder_emit(mlx_builder_t *b, const char *name, mlx_type_t type, const char *fmt, ...) {
  mlx_built_t value = mlx_builder_new_value(b, name, type);
  if (!value.id) return value;
  char line[1024];
  va_list args;
  va_start(args, fmt);
  int length = vsnprintf(line, sizeof line, fmt, args);
  va_end(args);
  if (length < 0 || (size_t)length >= sizeof line) {
    mlx_builder_fail(b, mlx_error(MLX_INTERNAL, "the emitted line for '%s' is too long", name));
    return (mlx_built_t){0};
  }
  mlx_text_printf(&b->body, "    %%%s = %s\n", mlx_builder_name(b, value), line);
  return value;
}

// ----------------------------------------------------------------------------------------------------------
// Sizes that are known at run time

void mlx_builder_copy_size(mlx_builder_t *b, mlx_built_t value, mlx_built_t like) {
  if (value.id && like.id && has_runtime_size(value))
    b->values[value.id - 1].size = b->values[like.id - 1].size;
}

mlx_builder_size_text_t mlx_builder_size_text(const mlx_builder_t *b, mlx_built_t value) {
  mlx_builder_size_text_t text = {{0}};
  const int size = value.id && has_runtime_size(value) ? b->values[value.id - 1].size : 0;
  if (size) snprintf(text.chars, sizeof text.chars, "{%%%s}", b->values[size - 1].name);
  return text;
}
