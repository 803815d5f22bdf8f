// A program that uses libmlxcel and has the functions of Apple's mlx-c. install_test.py links it with the
// shared and with the static library.
//
//   link_mlx_c MODEL PROMPT      prints 8 tokens after PROMPT
//
// mlx-c is not linked: it needs Apple's MLX. The functions below have its names and types; none may be called
// by libmlxcel.
#include <mlxcel/mlxcel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct mlx_string_ {
  void *ctx;
} mlx_string;
typedef struct mlx_array_ {
  void *ctx;
} mlx_array;
typedef struct mlx_device_ {
  void *ctx;
} mlx_device;
typedef struct mlx_stream_ {
  void *ctx;
} mlx_stream;
typedef struct mlx_closure_ {
  void *ctx;
} mlx_closure;
typedef enum mlx_dtype_ { MLX_BOOL, MLX_UINT8, MLX_FLOAT32, MLX_BFLOAT16 } mlx_dtype;
typedef enum mlx_device_type_ { MLX_CPU, MLX_GPU } mlx_device_type;
#define mlx_error(...) _mlx_error(__FILE__, __LINE__, __VA_ARGS__)

// Defines a function of mlx-c that ends the program.
#define STUB(result, name, ...)                               \
  result name(__VA_ARGS__);                                   \
  result name(__VA_ARGS__) {                                  \
    fprintf(stderr, "libmlxcel called " #name " of mlx-c\n"); \
    exit(1);                                                  \
  }

STUB(void, _mlx_error, const char *file, const int line, const char *format, ...)
STUB(void, mlx_free, void *object)
STUB(void, mlx_retain, void *object)
STUB(size_t, mlx_dtype_size, mlx_dtype dtype)
STUB(int, mlx_array_tostring, mlx_string *out, const mlx_array array)
STUB(mlx_array, mlx_array_new, void)
STUB(int, mlx_array_free, mlx_array array)
STUB(int, mlx_array_set, mlx_array *array, const mlx_array source)
STUB(size_t, mlx_array_size, const mlx_array array)
STUB(int, mlx_array_eval, mlx_array array)
STUB(mlx_string, mlx_string_new, void)
STUB(const char *, mlx_string_data, mlx_string string)
STUB(int, mlx_string_free, mlx_string string)
STUB(mlx_device, mlx_device_new, void)
STUB(int, mlx_device_free, mlx_device device)
STUB(int, mlx_device_get_type, mlx_device_type *out, mlx_device device)
STUB(int, mlx_set_default_device, mlx_device device)
STUB(mlx_stream, mlx_stream_new, void)
STUB(int, mlx_stream_free, mlx_stream stream)
STUB(int, mlx_synchronize, mlx_stream stream)
STUB(int, mlx_compile, mlx_closure *out, const mlx_closure function, bool shapeless)
STUB(int, mlx_closure_free, mlx_closure closure)
STUB(int, mlx_add, mlx_array *out, const mlx_array a, const mlx_array b, const mlx_stream stream)
STUB(int, mlx_load, mlx_array *out, const char *file, const mlx_stream stream)

// The one function of mlx-c that this program calls.
int mlx_version(mlx_string *out);
int mlx_version(mlx_string *out) {
  out->ctx = "mlx-c";
  return 0;
}

static void check(mlxcel_status_t status) {
  if (!status) return;
  fprintf(stderr, "%s\n", mlxcel_status_message(status));
  exit((int)mlxcel_status_code(status));
}

int main(int argc, char **argv) {
  mlx_string version;
  if (argc != 3 || mlx_version(&version) || strcmp(version.ctx, "mlx-c") ||
      !strcmp(mlxcel_version(), "mlx-c"))
    return 1;
  mlxcel_engine_options_t open;
  mlxcel_engine_options_initialize(&open);
  open.device = MLXCEL_USE_CPU;
  mlxcel_engine_t *engine;
  check(mlxcel_open(argv[1], &open, &engine));
  int32_t *ids;
  size_t count;
  check(mlxcel_engine_tokenize(engine, argv[2], strlen(argv[2]), &ids, &count));
  mlxcel_session_t *session;
  check(mlxcel_session_create(engine, &session));
  mlxcel_generate_options_t options;
  mlxcel_generate_options_initialize(&options);
  options.max_tokens = 8;
  mlxcel_generation_t result;
  check(mlxcel_session_generate(session, ids, count, &options, &result));
  puts(result.text);
  mlxcel_generation_clear(&result);
  mlxcel_session_free(session);
  mlxcel_engine_free_ids(ids);
  mlxcel_engine_close(engine);
  return 0;
}
