// Builder: emits StableHLO text with type checks.
//
// Every value has a type. An op checks its operands and derives its result type before it writes a line. The
// text is readable: named values, one op per line, a comment per block. Functions access weights and state
// through the builder, because only there the two forms of a module differ:
//
//   MLX_FORM_IREE   weights are named parameters, scratch memory is mutable globals; this form is compiled
//   MLX_FORM_PURE   weights are arguments; any StableHLO tool can run it
//
// The builder keeps the first error. After it, ops return a value with id 0; mlx_builder_finish returns the
// error.
#ifndef MLXCEL_COMPILER_BUILDER_H_
#define MLXCEL_COMPILER_BUILDER_H_

#include "base/text.h"
#include "graph/ops.h"

// First dimension whose size the caller of a function chooses at run time.
#define MLX_DIM_RUNTIME (-3)

typedef enum mlx_form { MLX_FORM_IREE, MLX_FORM_PURE } mlx_form_t;

typedef struct mlx_type {
  mlx_dtype_t dtype;
  int rank;
  int64_t dims[MLX_VALUE_RANK];
} mlx_type_t;

// A value of the function that is being built. Copy it freely; it is valid only in that function.
typedef struct mlx_built {
  int id;  // 0: no value
  mlx_dtype_t dtype;
  int rank;
  int64_t dims[MLX_VALUE_RANK];
  bool is_parts;  // stored as parts that add up to f32 values
  int norm_gain;  // id of a gain. The value is the RMS norm of |id|, not yet computed
  double norm_eps;
  int partials;  // id of |partial_count| tensors that must still be added to it; 0: none
  int64_t partial_count;
  int quantized_weight;  // 1 + index in the model's weights, if it is stored in tiles; else 0
} mlx_built_t;
#define MLX_NO_VALUE ((mlx_built_t){0})

typedef struct mlx_builder mlx_builder_t;

// Release with mlx_builder_free.
mlx_status_t mlx_builder_create(mlx_form_t form, const char *module_name,
                                mlx_builder_t **out_builder) MLX_MUST_USE;
void mlx_builder_free(mlx_builder_t *builder);
// Ends the module. Returns its text (release with mlx_free), or the first error.
mlx_status_t mlx_builder_finish(mlx_builder_t *builder, char **out_text, size_t *out_length) MLX_MUST_USE;
// Records |status| unless there is an earlier error; takes ownership.
void mlx_builder_fail(mlx_builder_t *builder, mlx_status_t status);
mlx_form_t mlx_builder_form(const mlx_builder_t *builder);

// Declarations, before the first function. The builder borrows names: they must outlive it.
void mlx_builder_parameter(mlx_builder_t *builder, const char *name, mlx_type_t type);
// A weight: the words from |at| on of the parameter |archive|, a list of i32 words. The compiler takes time
// for each parameter of a module, but not for parts of one. Pure StableHLO has no archive: there a weight is
// a parameter.
void mlx_builder_weight(mlx_builder_t *builder, const char *name, mlx_type_t type, const char *archive,
                        int64_t at);
// i32 state with all bits set. At most one in a module: IREE merges mutable globals with equal initial values
// into one buffer, and in-place updates then write through all of them.
void mlx_builder_state_of_ones(mlx_builder_t *builder, const char *name, mlx_type_t type);
// Bytes of all states declared so far; INT64_MAX if they exceed it.
int64_t mlx_builder_state_bytes(const mlx_builder_t *builder);
void mlx_builder_constant(mlx_builder_t *builder, const char *name, const int32_t *words, int64_t count);

// One function at a time. In the pure form, parameters and state come before the arguments, and the new state
// after the other results.
void mlx_builder_begin(mlx_builder_t *builder, const char *name, const char *comment);
mlx_built_t mlx_builder_argument(mlx_builder_t *builder, const char *name, mlx_type_t type);
// An argument that the function updates in place: mlx_builder_load gives its current value and
// mlx_builder_store a new one, and the function returns the last one after |results|. All of them are
// declared before the first op.
void mlx_builder_in_place(mlx_builder_t *builder, const char *name, mlx_type_t type);
// An i32 argument for mlx_build_loop. In the IREE form the host passes a number, which needs no read from the
// device; in the pure form it is a tensor.
mlx_built_t mlx_builder_count_argument(mlx_builder_t *builder, const char *name);
void mlx_builder_end(mlx_builder_t *builder, const mlx_built_t *results, size_t count);
// A parameter, or the current value of a state.
mlx_built_t mlx_builder_load(mlx_builder_t *builder, const char *name);
void mlx_builder_store(mlx_builder_t *builder, const char *name, mlx_built_t value);
void mlx_builder_comment(mlx_builder_t *builder, const char *fmt, ...) MLX_PRINTF(2, 3);
void mlx_builder_scope(mlx_builder_t *builder, const char *scope);  // prefix of all later names

mlx_type_t mlx_type(mlx_dtype_t dtype, int rank, const int64_t *dims);
#define MLX_TYPE(dtype, ...) \
  mlx_type(dtype, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__})
mlx_type_t mlx_scalar_type(mlx_dtype_t dtype);
mlx_type_t mlx_type_of(mlx_built_t value);

// ---- ops: |name| names the result; a name used before gets a number ----

mlx_built_t mlx_build_float(mlx_builder_t *b, const char *name, double value, mlx_type_t type);  // splat
mlx_built_t mlx_build_int(mlx_builder_t *b, const char *name, int64_t value, mlx_type_t type);   // splat
mlx_built_t mlx_build_floats(mlx_builder_t *b, const char *name, const float *values, int64_t count);
mlx_built_t mlx_build_unary(mlx_builder_t *b, const char *name, const char *op, mlx_built_t x);
mlx_built_t mlx_build_binary(mlx_builder_t *b, const char *name, const char *op, mlx_built_t x,
                             mlx_built_t y);
mlx_built_t mlx_build_compare(mlx_builder_t *b, const char *name, const char *order, mlx_built_t x,
                              mlx_built_t y);
mlx_built_t mlx_build_select(mlx_builder_t *b, const char *name, mlx_built_t which, mlx_built_t yes,
                             mlx_built_t no);
mlx_built_t mlx_build_convert(mlx_builder_t *b, const char *name, mlx_built_t x, mlx_dtype_t dtype);
mlx_built_t mlx_build_iota(mlx_builder_t *b, const char *name, int dim, mlx_type_t type);
mlx_built_t mlx_build_reshape(mlx_builder_t *b, const char *name, mlx_built_t x, mlx_type_t type);
// Dimension i of x becomes dimension dims[i] of the result; |dims| has one entry per dimension of x.
mlx_built_t mlx_build_broadcast(mlx_builder_t *b, const char *name, mlx_built_t x, const int64_t *dims,
                                mlx_type_t type);
mlx_built_t mlx_build_transpose(mlx_builder_t *b, const char *name, mlx_built_t x,
                                const int64_t *permutation);
// Elements [start, limit) of the last dimension.
mlx_built_t mlx_build_slice_last(mlx_builder_t *b, const char *name, mlx_built_t x, int64_t start,
                                 int64_t limit);
mlx_built_t mlx_build_concat_last(mlx_builder_t *b, const char *name, mlx_built_t x, mlx_built_t y);
// Reduces the last dimension with "add" or "maximum".
mlx_built_t mlx_build_reduce_last(mlx_builder_t *b, const char *name, const char *op, mlx_built_t x);
// i32 index of the largest element of the last dimension; the lowest index on a tie.
mlx_built_t mlx_build_argmax_last(mlx_builder_t *b, const char *name, mlx_built_t x);

typedef struct mlx_dot {
  int batch_count;
  int64_t left_batch[2], right_batch[2];
  int64_t left_contract, right_contract;  // the dimension that is summed over
} mlx_dot_t;
// Result: batch dimensions, then the free dimensions of x, then those of y.
mlx_built_t mlx_build_dot(mlx_builder_t *b, const char *name, mlx_built_t x, mlx_built_t y, mlx_dot_t dot);

// |indices| [..., n] selects along the first n dimensions of |x|; the remaining dimensions are kept. The
// result is [...] + dims of x after the first n. Indices out of range are clamped.
mlx_built_t mlx_build_gather(mlx_builder_t *b, const char *name, mlx_built_t x, mlx_built_t indices);
// Column i of the result is column order[i] of |x| [rows, columns]. |order|: [n, 1]; clamped as well.
mlx_built_t mlx_build_gather_columns(mlx_builder_t *b, const char *name, mlx_built_t x, mlx_built_t order);
// x with the slices at |indices| [count, n] replaced by |updates| [count, rest of x]. If two updates have the
// same index, either one is stored.
mlx_built_t mlx_build_scatter(mlx_builder_t *b, const char *name, mlx_built_t x, mlx_built_t indices,
                              mlx_built_t updates);

// Elements [start, start + count) of the vector |x|, whose size may be MLX_DIM_RUNTIME.
mlx_built_t mlx_build_words(mlx_builder_t *b, const char *name, mlx_built_t x, int64_t start, int64_t count);
// x with its first rows replaced by |rows| [n, rest of x]. x may have MLX_DIM_RUNTIME rows, at least n.
mlx_built_t mlx_build_update_rows(mlx_builder_t *b, const char *name, mlx_built_t x, mlx_built_t rows);

// A loop of |count| iterations over |carried| values (MLX_LOOP_VALUES at most). mlx_build_loop starts the
// body: *|out_index| is the iteration, an i32 of rank 0, and |carried| become the values of this iteration.
// mlx_build_loop_end takes their values for the next iteration, and gives those after the last one.
#define MLX_LOOP_VALUES 4
typedef struct mlx_loop {
  mlx_built_t group, count, index;
  size_t carried;
} mlx_loop_t;
mlx_loop_t mlx_build_loop(mlx_builder_t *b, const char *name, mlx_built_t count, mlx_built_t *carried,
                          size_t carried_count, mlx_built_t *out_index);
void mlx_build_loop_end(mlx_builder_t *b, const mlx_loop_t *loop, mlx_built_t *carried);

// One of our CUDA kernels, linked into the module (IREE form only). Its parameters are the operands, then the
// result, then the constants.
#define MLX_EXTERN_OPERANDS 12
#define MLX_EXTERN_CONSTANTS 10
typedef struct mlx_extern {
  const char *symbol, *file;  // in the image that --iree-hal-executable-object-search-path finds
  int64_t grid[3], threads, shared_bytes;
  mlx_built_t operands[MLX_EXTERN_OPERANDS];
  size_t operand_count;
  size_t updated_from;  // operands from this index on are updated in place
  mlx_type_t result;    // rank 0: no result
  mlx_type_t more[2];   // types of further results; rank 0: none
  int32_t constants[MLX_EXTERN_CONSTANTS];
  size_t constant_count;
} mlx_extern_t;
// |out_updated|: the new values of the updated operands, then the further results. Returns the result, or the
// last updated value if there is no result.
mlx_built_t mlx_build_extern(mlx_builder_t *b, const char *name, const mlx_extern_t *kernel,
                             mlx_built_t *out_updated);

// One of our C functions in object files, linked into a CPU module (IREE form only). Its parameter is a
// pointer to a struct: pointers to the operands and to the result, then the constants and sizes as int64_t.
#define MLX_LINKED_SIZES 8
#define MLX_LINKED_FILES 32
typedef struct mlx_linked {
  const char *symbol;
  const char *files[MLX_LINKED_FILES];  // objects that --iree-hal-executable-object-search-path finds
  size_t file_count;
  const char *target;  // IREE's name of the object format
  int64_t workgroups;
  mlx_built_t operands[MLX_EXTERN_OPERANDS];
  size_t operand_count;
  size_t updated_from;  // operands from this index on are updated in place
  mlx_type_t result;    // rank 0: no result
  int32_t constants[2];
  size_t constant_count;
  struct {
    size_t operand;   // whose first dimension is MLX_DIM_RUNTIME
    int64_t divisor;  // the size is passed divided by this
  } sizes[MLX_LINKED_SIZES];
  size_t size_count;
} mlx_linked_t;
// Declares the function once, before its callers. Uses the files, and only the dtypes of operands and result
// and the numbers of constants and sizes. Calls need no files.
void mlx_builder_link(mlx_builder_t *b, const mlx_linked_t *kernel);
// |out_updated|: the new values of the updated operands. Returns the result, or the last updated value if
// there is no result.
mlx_built_t mlx_build_linked(mlx_builder_t *b, const char *name, const mlx_linked_t *kernel,
                             mlx_built_t *out_updated);

#endif  // MLXCEL_COMPILER_BUILDER_H_
