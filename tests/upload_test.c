// Copies of weights and tensors to a GPU and back: copied ranges, reused memory and error messages. The GPU
// is tests/stub_cuda.c, which uses host memory.
#include <dlfcn.h>
#include <sys/mman.h>

#include "artifact/archive.h"
#include "shim/shim.h"
#include "tests/check.h"
#include "tests/command.h"

#define A_SIZE 100
#define B_SIZE 9000000  // several pieces of an upload, so that several threads work
#define B_OFFSET 128
#define WHOLE_SIZE (B_OFFSET + B_SIZE)
static const char module_text[] =  // only copies: the stub runs no kernels
    "module @mlxcel {\n"
    "  util.global private @a = #flow.parameter.named<\"model\"::\"a\"> : tensor<100xi8>\n"
    "  util.global private @b = #flow.parameter.named<\"model\"::\"b\"> : tensor<9000000xi8>\n"
    "  util.global private @all = #flow.parameter.named<\"model\"::\"*\"> : tensor<9000128xi8>\n"
    "  func.func @get_a() -> tensor<100xi8> {\n"
    "    %0 = util.global.load @a : tensor<100xi8>\n"
    "    return %0 : tensor<100xi8>\n"
    "  }\n"
    "  func.func @get_b() -> tensor<9000000xi8> {\n"
    "    %0 = util.global.load @b : tensor<9000000xi8>\n"
    "    return %0 : tensor<9000000xi8>\n"
    "  }\n"
    "  func.func @get_all() -> tensor<9000128xi8> {\n"
    "    %0 = util.global.load @all : tensor<9000128xi8>\n"
    "    return %0 : tensor<9000128xi8>\n"
    "  }\n"
    "  func.func @join(%x: tensor<4xi32>, %y: tensor<3xi32>) -> (tensor<7xi32>, tensor<3xi32>) {\n"
    "    %0 = stablehlo.concatenate %x, %y, dim = 0 : (tensor<4xi32>, tensor<3xi32>) -> tensor<7xi32>\n"
    "    return %0, %y : tensor<7xi32>, tensor<3xi32>\n"
    "  }\n"
    "}\n";
static const char changing_text[] =
    "module @mlxcel {\n"
    "  util.global private mutable @a = #flow.parameter.named<\"model\"::\"a\"> : tensor<100xi8>\n"
    "  func.func @swap(%x: tensor<100xi8>) -> tensor<100xi8> {\n"
    "    %0 = util.global.load @a : tensor<100xi8>\n"
    "    util.global.store %x, @a : tensor<100xi8>\n"
    "    return %0 : tensor<100xi8>\n"
    "  }\n"
    "}\n";

static char folder[] = "/tmp/mlxcel-upload-XXXXXX";

// Compiles once per name; later calls reuse the file.
static mlx_map_t compile(const char *name, const char *text, const char *const *target) {
  char in[64], out[64];
  mlx_map_t vmfb;
  snprintf(in, sizeof in, "%s/%s.mlir", folder, name);
  snprintf(out, sizeof out, "%s/%s.vmfb", folder, name);
  if (!mlx_is_file(out)) {
    CHECK_OK(mlx_write_file(in, text, strlen(text)));
    const char *const argv[] = {
        MLXCEL_TEST_IREE_COMPILE, in, "-o", out, target[0], target[1], target[2], NULL};
    command_t run;
    command_start(&run, argv);
    command_wait(&run);
    if (run.exit_code) CHECK_FAIL("iree-compile: %s", run.err);
    command_free(&run);
  }
  CHECK_OK(mlx_map_file(out, &vmfb));
  return vmfb;
}

static const char *const for_cuda[] = {"--iree-hal-target-device=cuda", "--iree-cuda-target=sm_80", NULL};
static const char *const for_cpu[] = {"--iree-hal-target-device=local",
                                      "--iree-hal-local-target-device-backends=llvm-cpu",
                                      "--iree-llvmcpu-target-cpu=host"};

static uint8_t *archive;  // WHOLE_SIZE bytes, each different from its neighbours

static mlx_weights_t weights(void) {
  static mlx_parameter_t parameters[] = {{.name = "b", .size = B_SIZE}, {.name = "a", .size = A_SIZE}};
  parameters[0].data = archive + B_OFFSET;
  parameters[1].data = archive;
  return (mlx_weights_t){.parameters = parameters, .count = 2, .whole = MLX_WHOLE_ARCHIVE};
}

static void remove_folder(void) { mlx_status_free(mlx_remove_tree(folder)); }

static void set_up(void) {
  if (archive) return;
  setenv("STUB_SM", "90", 1);
  CHECK(dlopen(STUB_FOLDER "/libcuda.so", RTLD_NOW));  // later opens of libcuda.so return this one
  CHECK(mkdtemp(folder));
  atexit(remove_folder);
  archive = mmap(NULL, WHOLE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(archive != MAP_FAILED);
  for (size_t i = 0; i < WHOLE_SIZE; ++i) archive[i] = (uint8_t)(i * 7 + (i >> 8) * 13 + (i >> 20));
}

static void check_result(mlx_device_t *device, mlx_program_t *program, const char *function,
                         const void *expected, size_t size) {
  mlx_buffer_t *output;
  uint8_t *bytes;
  CHECK_OK(mlx_alloc(size, 1, &bytes));
  CHECK_OK(mlx_program_call(program, function, NULL, 0, &output, 1));
  CHECK_OK(mlx_buffer_read(device, output, bytes, size));
  if (memcmp(bytes, expected, size)) CHECK_FAIL("%s returns other bytes", function);
  mlx_buffer_free(output);
  mlx_free(bytes);
}

static void check_weights(mlx_device_kind_t kind, mlx_map_t vmfb, const mlx_weights_t *given) {
  mlx_device_t *device;
  mlx_program_t *program;
  CHECK_OK(mlx_device_open(kind, 1, &device));
  CHECK_OK(mlx_program_load(device, vmfb.data, vmfb.size, given, &program));
  check_result(device, program, "get_a", archive, A_SIZE);
  check_result(device, program, "get_b", archive + B_OFFSET, B_SIZE);
  check_result(device, program, "get_all", archive, WHOLE_SIZE);
  mlx_program_free(program);
  mlx_device_close(device);
  mlx_unmap(&vmfb);
}

typedef struct progress {
  int calls;
  uint64_t first, last, total;
} progress_t;

static void record_progress(void *user, uint64_t done, uint64_t total) {
  progress_t *progress = user;
  if (!progress->calls++) progress->first = done;
  CHECK(done >= progress->last && done <= total);
  progress->last = done;
  progress->total = total;
}

TEST(weights_reach_a_gpu_and_progress_goes_from_zero_to_all) {
  set_up();
  progress_t progress = {0};
  mlx_weights_t given = weights();
  given.on_load = record_progress;
  given.user = &progress;
  check_weights(MLX_DEVICE_CUDA, compile("cuda", module_text, for_cuda), &given);
  CHECK(progress.calls >= 2);
  CHECK_INT(progress.first, 0);
  CHECK_INT(progress.last, WHOLE_SIZE);
  CHECK_INT(progress.total, WHOLE_SIZE);
}

TEST(cpu_uses_weights_and_the_whole_archive_in_place) {
  set_up();
  mlx_weights_t given = weights();
  given.on_load = record_progress;  // must not be called: its user pointer is NULL
  check_weights(MLX_DEVICE_CPU, compile("cpu", module_text, for_cpu), &given);
}

static void check_load_fails(mlx_map_t vmfb, const mlx_weights_t *given, mlx_code_t code, const char *part) {
  mlx_device_t *device;
  mlx_program_t *program;
  CHECK_OK(mlx_device_open(MLX_DEVICE_CUDA, 1, &device));
  CHECK_ERROR(mlx_program_load(device, vmfb.data, vmfb.size, given, &program), code, part);
  CHECK(!program);
  mlx_device_close(device);
}

TEST(error_names_the_weight_that_does_not_match_the_module) {
  set_up();
  mlx_map_t vmfb = compile("cuda", module_text, for_cuda);
  mlx_weights_t given = weights();
  mlx_parameter_t *first = (mlx_parameter_t *)(uintptr_t)given.parameters;
  first->size = B_SIZE - 1;
  check_load_fails(vmfb, &given, MLX_INVALID_INPUT,
                   "the module reads 9000000 bytes of weight 'b', which has 8999999");
  first->name = "c";
  check_load_fails(vmfb, &given, MLX_NOT_FOUND, "the module needs weight 'b'");
  first->data = archive + B_OFFSET + 4;
  check_load_fails(vmfb, &given, MLX_INVALID_INPUT, "weight 'c' is not aligned to 64 bytes");
  *first = (mlx_parameter_t){.name = "b", .size = B_SIZE};
  given = weights();
  given.whole = NULL;
  check_load_fails(vmfb, &given, MLX_NOT_FOUND, "the module needs weight '*'");
  mlx_unmap(&vmfb);
  vmfb = compile("changing", changing_text, for_cuda);
  given = weights();
  check_load_fails(vmfb, &given, MLX_UNSUPPORTED, "the module modifies weight 'a'");
  mlx_unmap(&vmfb);
}

TEST(upload_error_quotes_the_driver) {
  set_up();
  mlx_map_t vmfb = compile("cuda", module_text, for_cuda);
  const mlx_weights_t given = weights();
  setenv("STUB_FREE", "9000127", 1);
  check_load_fails(vmfb, &given, MLX_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY");
  setenv("STUB_FREE", "9000128", 1);
  setenv("STUB_BAD_WRITE", "611520", 1);  // size of the last piece
  check_load_fails(vmfb, &given, MLX_UNAVAILABLE,
                   "uploading the weights failed: the CUDA driver returned CUDA_ERROR_LAUNCH_FAILED (719)");
  setenv("STUB_BAD_WRITE", "2097152", 1);
  check_load_fails(vmfb, &given, MLX_UNAVAILABLE,
                   "uploading the weights failed: the CUDA driver returned CUDA_ERROR_LAUNCH_FAILED (719)");
  unsetenv("STUB_FREE");
  unsetenv("STUB_BAD_WRITE");
  mlx_unmap(&vmfb);
}

// A result may share memory with an input: while the result is held, its memory must not be reused.
TEST(input_memory_is_reused_only_when_it_is_free) {
  set_up();
  mlx_map_t vmfb = compile("cuda", module_text, for_cuda);
  const mlx_weights_t given = weights();
  mlx_device_t *device;
  mlx_program_t *program;
  CHECK_OK(mlx_device_open(MLX_DEVICE_CUDA, 1, &device));
  CHECK_OK(mlx_program_load(device, vmfb.data, vmfb.size, &given, &program));
  enum { CALLS = 40 };  // more than the pool holds
  mlx_buffer_t *kept[CALLS];
  for (int32_t i = 0; i < CALLS; ++i) {
    const int32_t x[4] = {i, 1, 2, 3}, y[3] = {4, 5, 1000 + i}, expected[7] = {i, 1, 2, 3, 4, 5, 1000 + i};
    int32_t joined[7];
    mlx_buffer_t *in[2], *out[2];
    CHECK_OK(mlx_buffer_from_i32(device, 1, (int64_t[]){4}, x, &in[0]));
    CHECK_OK(mlx_buffer_from_i32(device, 1, (int64_t[]){3}, y, &in[1]));
    CHECK_OK(mlx_program_call(program, "join", in, 2, out, 2));
    CHECK_OK(mlx_buffer_read(device, out[0], joined, sizeof joined));
    CHECK(!memcmp(joined, expected, sizeof joined));
    for (int k = 0; k < 2; ++k) mlx_buffer_free(in[k]);
    mlx_buffer_free(out[0]);
    kept[i] = out[1];
  }
  for (int32_t i = 0; i < CALLS; ++i) {
    int32_t y[3];
    CHECK_OK(mlx_buffer_read(device, kept[i], y, sizeof y));
    CHECK_INT(y[2], 1000 + i);
    mlx_buffer_free(kept[i]);
  }
  mlx_program_free(program);
  mlx_device_close(device);
  mlx_unmap(&vmfb);
}

TEST_MAIN(CASE(weights_reach_a_gpu_and_progress_goes_from_zero_to_all),
          CASE(cpu_uses_weights_and_the_whole_archive_in_place),
          CASE(error_names_the_weight_that_does_not_match_the_module), CASE(upload_error_quotes_the_driver),
          CASE(input_memory_is_reused_only_when_it_is_free))
