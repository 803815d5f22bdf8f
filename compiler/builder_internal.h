// Internals of the builder, shared by builder.c, build_ops.c, build_state.c, build_linked.c and
// build_extern.c.
#ifndef MLXCEL_COMPILER_BUILDER_INTERNAL_H_
#define MLXCEL_COMPILER_BUILDER_INTERNAL_H_

#include "compiler/builder.h"

#define MLX_BUILDER_BUCKETS 4096

typedef struct mlx_global {
  const char *name;  // borrowed
  mlx_type_t type;
  bool is_state;
  bool in_place;        // an argument of the function being built
  const char *archive;  // borrowed; of a weight: the parameter that it is a part of; NULL: none
  int64_t archive_at;   // i32 words before the weight
  mlx_built_t current;  // value at this point of the function; id 0 before the first use
} mlx_global_t;

typedef struct mlx_named {
  char *name;  // owned
  int next;    // id of the next value in the same hash bucket
  int uses;    // number of values that requested this name
  int size;    // id of the value that holds the size of a first dimension of MLX_DIM_RUNTIME; else 0
} mlx_named_t;

struct mlx_builder {
  mlx_form_t form;
  mlx_status_t status;  // the first error
  mlx_text_t prelude;   // text before the module
  mlx_text_t module;
  mlx_global_t *globals;
  size_t global_count, global_capacity;
  char **executables;  // of CUDA kernels, without their names; owned, as are the elements
  size_t executable_count, executable_capacity;
  // Of the function being built.
  mlx_text_t arguments, body;
  char scope[64];
  mlx_named_t *values;  // id - 1 -> name
  size_t value_count, value_capacity;
  int buckets[MLX_BUILDER_BUCKETS];
};

typedef struct mlx_type_text {
  char chars[192];
} mlx_type_text_t;
mlx_type_text_t mlx_type_text(mlx_type_t type);
bool mlx_type_equal(mlx_type_t a, mlx_type_t b);

const char *mlx_builder_name(const mlx_builder_t *b, mlx_built_t value);  // without the %
mlx_built_t mlx_builder_new_value(mlx_builder_t *b, const char *name, mlx_type_t type);
// A value with exactly this name. The caller has already written the op that defines it.
mlx_built_t mlx_builder_exact_value(mlx_builder_t *b, const char *name, mlx_type_t type);
// Declares a global, or an in-place argument of the function being built. NULL after an error.
mlx_global_t *mlx_builder_add_global(mlx_builder_t *b, const char *name, mlx_type_t type, bool is_state);
// Gives |value|, whose first dimension may be MLX_DIM_RUNTIME, the size of |like|.
void mlx_builder_copy_size(mlx_builder_t *b, mlx_built_t value, mlx_built_t like);
typedef struct mlx_builder_size_text {
  char chars[256];
} mlx_builder_size_text_t;
mlx_builder_size_text_t mlx_builder_size_text(const mlx_builder_t *b, mlx_built_t value);  // "{%size}", or ""
// Adds an argument with |attributes|, the text after its type.
mlx_built_t mlx_builder_put_argument(mlx_builder_t *b, const char *name, mlx_type_t type,
                                     const char *attributes);
// Writes the line "%name = " followed by the formatted op.
mlx_built_t mlx_builder_emit(mlx_builder_t *b, const char *name, mlx_type_t type, const char *fmt, ...)
    MLX_PRINTF(4, 5);

#endif  // MLXCEL_COMPILER_BUILDER_INTERNAL_H_
