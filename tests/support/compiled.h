// Compiles and loads a model in one call, for tests of the C API.
#ifndef MLXCEL_TESTS_COMPILED_H_
#define MLXCEL_TESTS_COMPILED_H_

#include "compiler/compile.h"
#include "runtime/rooms.h"
#include "tests/support/check.h"
#include "tokenizer/tokenizer.h"

// Compiles |model| and opens it with |options|. |weights_path| replaces its weights unless NULL. Release with
// mlx_engine_close.
static inline mlx_status_t try_open_compiled(const char *model, const mlx_compile_options_t *compile,
                                             const char *weights_path, const mlx_engine_options_t *options,
                                             mlx_engine_t **out_engine) {
  mlx_cache_t *cache;
  mlx_compiled_t compiled;
  CHECK_OK(mlx_cache_open(NULL, &cache));
  CHECK_OK(mlx_compile(model, compile, cache, &compiled));
  mlx_tokenizer_t *tokenizer;
  CHECK_OK(mlx_tokenizer_create(model, compiled.tokenizer, compiled.tokenizer_length, &tokenizer));
  const mlx_model_parts_t parts = {.name = model,
                                   .manifest_name = model,
                                   .manifest = compiled.manifest,
                                   .manifest_length = compiled.manifest_length,
                                   .tokenizer = tokenizer,
                                   .chat = compiled.chat,
                                   .chat_length = compiled.chat_length,
                                   .vmfb_path = compiled.vmfb_path,
                                   .weights_path = weights_path ? weights_path : compiled.weights_path};
  mlx_status_t status = mlx_engine_open(&parts, options, out_engine);
  mlx_compiled_release(&compiled);
  mlx_cache_close(cache);
  return status;
}

// Opens |model|, compiled for the CPU, with room for |sequences| sessions; 0: one. The engine has the context
// length of |compile|. |threads| 0 is the default.
static inline mlx_engine_t *open_parallel(const char *model, const mlx_compile_options_t *compile,
                                          const char *weights_path, int threads, int64_t sequences) {
  mlx_engine_t *engine;
  mlx_engine_options_t options;
  mlx_engine_options_initialize(&options);
  options.device = MLX_USE_CPU;
  options.threads = threads;
  options.context = compile->context;
  options.sequences = sequences;
  CHECK_OK(try_open_compiled(model, compile, weights_path, &options, &engine));
  return engine;
}

static inline mlx_engine_t *open_compiled(const char *model, const mlx_compile_options_t *compile,
                                          const char *weights_path, int threads) {
  return open_parallel(model, compile, weights_path, threads, 1);
}

#endif  // MLXCEL_TESTS_COMPILED_H_
