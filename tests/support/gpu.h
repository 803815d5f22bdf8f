// Framework for tests that need a GPU: tests/ROOM/NAME_gpu_test.c. Such a program is built into build/gpu and
// reads only files of that folder. `NAME_gpu_test --prepare` creates them on a machine with a compiler; then
// the folder can be copied to a machine that has only a GPU. Without a usable GPU the program prints the
// reason and is skipped, or fails if MLXCEL_NEED_GPU is set. With --whole it prepares and runs, if there is a
// GPU: ctest calls it this way.
//
//   static void prepare(void) {
//     gpu_compile(MODEL, &(mlx_compile_options_t){.target = "cuda:sm_80"}, "m.mlxb");
//   }
//   TEST(a_promise) { mlx_engine_t *engine = gpu_open("m.mlxb"); ... }
//   GPU_TEST_MAIN(prepare, CASE(a_promise))
#ifndef MLXCEL_TESTS_GPU_H_
#define MLXCEL_TESTS_GPU_H_

#include <libgen.h>
#include <limits.h>
#include <unistd.h>

#include "base/file.h"
#include "compiler/compile.h"
#include "runtime/rooms.h"
#include "tests/support/check.h"

// Path of |name| in the folder of the running program. The last four results stay valid.
static inline const char *gpu_file(const char *name) {
  static char paths[4][PATH_MAX + 64], program[PATH_MAX];
  static int next;
  char *path = paths[next++ % 4];
  ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  CHECK(length > 0);
  program[length] = 0;
  snprintf(path, sizeof paths[0], "%s/%.60s", dirname(program), name);
  return path;
}

// For prepare: gpu_compile compiles |model| into the bundle |name|; gpu_copy copies a file to |name|.
static inline void gpu_compile(const char *model, const mlx_compile_options_t *options, const char *name) {
  mlx_cache_t *cache;
  mlx_compiled_t compiled;
  CHECK_OK(mlx_cache_open(NULL, &cache));
  CHECK_OK(mlx_compile(model, options, cache, &compiled));
  CHECK_OK(mlx_compiled_write(&compiled, gpu_file(name), &(mlx_write_options_t){0}));
  mlx_compiled_release(&compiled);
  mlx_cache_close(cache);
}

static inline void gpu_copy(const char *path, const char *name) {
  const char *to = gpu_file(name);
  CHECK(!unlink(to) || !mlx_is_file(to));
  CHECK_OK(mlx_copy_file(path, to));
}

// For tests: opens the bundle |name| on the GPU, or on the CPU.
static inline mlx_engine_t *gpu_open_on(mlx_device_choice_t device, const char *name) {
  mlx_engine_t *engine;
  mlx_engine_options_t options;
  mlx_engine_options_initialize(&options);
  options.device = device;
  options.allow_unsigned = true;  // the bundle may have been prepared on another machine
  CHECK_OK(mlx_engine_open_bundle(gpu_file(name), &options, &engine));
  return engine;
}
static inline mlx_engine_t *gpu_open(const char *name) { return gpu_open_on(MLX_USE_CUDA, name); }

// True if this GPU runs code for |sm|; otherwise prints that |name| is skipped.
static inline bool gpu_runs(const char *name, int sm) {
  char target[64];
  uint64_t memory;
  int here = 0;
  CHECK_OK(mlx_engine_gpu_target(0, target, sizeof target, &memory));
  CHECK(sscanf(target, "cuda:sm_%d", &here) == 1);
  if (here < sm)
    fprintf(stderr, "  %s: skipped, needs a GPU from sm_%d on; this GPU is sm_%d\n", name, sm, here);
  return here >= sm;
}

static inline int gpu_refuse(mlx_status_t status) {
  static const char known[] = "no usable NVIDIA GPU: ";
  const char *message = mlx_status_message(status);
  const bool needed = getenv("MLXCEL_NEED_GPU");
  fprintf(stderr, "%s: no usable NVIDIA GPU (%s)\n", needed ? "failed" : "skipped",
          strncmp(message, known, strlen(known)) ? message : message + strlen(known));
  mlx_status_free(status);
  return needed ? 1 : CHECK_SKIPPED;
}

static inline int gpu_run(void (*prepare)(void), const check_case_t *cases, size_t count, int argc,
                          char **argv) {
  char target[64];
  uint64_t memory;
  if (argc > 1 && !strcmp(argv[1], "--prepare"))
    return check_run(&(check_case_t){"prepare", prepare}, 1, 1, argv);
  mlx_status_t status = mlx_engine_gpu_target(0, target, sizeof target, &memory);
  if (status) return gpu_refuse(status);
  if (argc < 2 || strcmp(argv[1], "--whole")) return check_run(cases, count, argc, argv);
  const int failed = check_run(&(check_case_t){"prepare", prepare}, 1, 1, argv);
  return failed ? failed : check_run(cases, count, 1, argv);
}

#define GPU_TEST_MAIN(prepare, ...)                                           \
  int main(int argc, char **argv) {                                           \
    static const check_case_t cases[] = {__VA_ARGS__};                        \
    return gpu_run(prepare, cases, sizeof cases / sizeof *cases, argc, argv); \
  }

#endif  // MLXCEL_TESTS_GPU_H_
