// Copies of weights and tensors to a GPU and back: copied ranges, reused memory and error messages. The GPU
// is tests/support/stub_cuda.c, which uses host memory.
#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "artifact/archive.h"
#include "shim/shim.h"
#include "tests/support/check.h"
#include "tests/support/command.h"

#define A_SIZE 100                 // bytes of a weight at the start
#define WHOLE_SIZE 9000128         // several pieces of an upload, so that several threads work
static const char module_text[] =  // only copies: the stub runs no kernels
    "module @mlxcel {\n"
    "  util.global private @all = #flow.parameter.named<\"model\"::\"*\"> : tensor<2250032xi32>\n"
    "  func.func @get_a(%out: tensor<25xi32> {iree.abi.output = 0 : index}) -> tensor<25xi32> {\n"
    "    %0 = util.global.load @all : tensor<2250032xi32>\n"
    "    %1 = tensor.extract_slice %0[0] [25] [1] : tensor<2250032xi32> to tensor<25xi32>\n"
    "    return %1 : tensor<25xi32>\n"
    "  }\n"
    "  func.func @get_all(%out: tensor<2250032xi32> {iree.abi.output = 0 : index}) -> tensor<2250032xi32> {\n"
    "    %0 = util.global.load @all : tensor<2250032xi32>\n"
    "    return %0 : tensor<2250032xi32>\n"
    "  }\n"
    "  func.func @join(%x: tensor<?xi32>, %y: tensor<?xi32>, %out: tensor<7xi32> {iree.abi.output = 0 : "
    "index}) -> tensor<7xi32> {\n"
    "    %0 = tensor.extract_slice %x[0] [4] [1] : tensor<?xi32> to tensor<4xi32>\n"
    "    %1 = tensor.extract_slice %y[0] [3] [1] : tensor<?xi32> to tensor<3xi32>\n"
    "    %2 = stablehlo.concatenate %0, %1, dim = 0 : (tensor<4xi32>, tensor<3xi32>) -> tensor<7xi32>\n"
    "    return %2 : tensor<7xi32>\n"
    "  }\n"
    "}\n";
static const char changing_text[] =
    "module @mlxcel {\n"
    "  util.global private mutable @a = #flow.parameter.named<\"model\"::\"*\"> : tensor<100xi8>\n"
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
    const char *const argv[] = {MLXCEL_TEST_IREE_COMPILE,
                                in,
                                "-o",
                                out,
                                "--iree-execution-model=async-external",
                                target[0],
                                target[1],
                                target[2],
                                NULL};
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
  return (mlx_weights_t){.name = MLX_WHOLE_ARCHIVE, .data = archive, .size = WHOLE_SIZE};
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

static mlx_shape_t words(int64_t count) {
  return (mlx_shape_t){.element = MLX_ELEMENT_I32, .rank = 1, .dims = {count}};
}

static void call(mlx_device_program_t *program, const char *function, mlx_buffer_t *const *inputs,
                 size_t count) {
  mlx_call_t *pending;
  CHECK_OK(mlx_program_submit(program, function, inputs, NULL, count, NULL, 0, &pending));
  CHECK_OK(mlx_call_wait(pending));
}

static void check_result(mlx_device_t *device, mlx_device_program_t *program, const char *function,
                         const void *expected, size_t size) {
  mlx_buffer_t *output;
  uint8_t *bytes;
  CHECK_OK(mlx_alloc(size, 1, &bytes));
  CHECK_OK(mlx_buffer_reserve(device, words((int64_t)size / 4), &output));
  CHECK_OK(mlx_buffer_commit(output, size));
  call(program, function, &output, 1);
  CHECK_OK(mlx_buffer_read(output, 0, bytes, size));
  if (memcmp(bytes, expected, size)) CHECK_FAIL("%s returns other bytes", function);
  mlx_buffer_free(output);
  mlx_free(bytes);
}

static void check_weights(mlx_device_kind_t kind, mlx_map_t vmfb, const mlx_weights_t *given) {
  mlx_device_t *device;
  mlx_device_program_t *program;
  CHECK_OK(mlx_device_open(kind, 1, &device));
  CHECK_OK(mlx_program_load(device, vmfb.data, vmfb.size, given, &program));
  check_result(device, program, "get_a", archive, A_SIZE);
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

TEST(cpu_uses_weights_in_place) {
  set_up();
  mlx_weights_t given = weights();
  given.on_load = record_progress;  // must not be called: its user pointer is NULL
  check_weights(MLX_DEVICE_CPU, compile("cpu", module_text, for_cpu), &given);
}

static void check_load_fails(mlx_map_t vmfb, const mlx_weights_t *given, mlx_code_t code, const char *part) {
  mlx_device_t *device;
  mlx_device_program_t *program;
  CHECK_OK(mlx_device_open(MLX_DEVICE_CUDA, 1, &device));
  CHECK_ERROR(mlx_program_load(device, vmfb.data, vmfb.size, given, &program), code, part);
  CHECK(!program);
  mlx_device_close(device);
}

TEST(a_cancelled_upload_ends) {
  set_up();
  const atomic_bool cancelled = true;
  mlx_weights_t given = weights();
  given.cancelled = &cancelled;
  mlx_map_t vmfb = compile("cuda", module_text, for_cuda);
  check_load_fails(vmfb, &given, MLX_CANCELLED, "cancelled");
  mlx_unmap(&vmfb);
}

#define WORKERS 3
typedef struct maker {
  atomic_int calls, busy[WORKERS];
  uint64_t fails_at;  // offset of the piece that cannot be made
} maker_t;

static mlx_status_t make(void *user, int worker, uint64_t offset, size_t length, void *out) {
  maker_t *maker = user;
  CHECK(worker >= 0 && worker < WORKERS && offset % 64 == 0 && offset + length <= WHOLE_SIZE);
  CHECK(!atomic_fetch_add(&maker->busy[worker], 1));
  ++maker->calls;
  mlx_status_t status = offset == maker->fails_at ? mlx_error(MLX_INVALID_INPUT, "weight x is bad") : NULL;
  if (!status) memcpy(out, archive + offset, length);
  CHECK(atomic_fetch_sub(&maker->busy[worker], 1) == 1);
  return status;
}

TEST(weights_that_are_made_while_loading_reach_a_gpu) {
  set_up();
  maker_t maker = {.fails_at = UINT64_MAX};
  const mlx_weight_reader_t reader = {.size = WHOLE_SIZE, .workers = WORKERS, .read = make, .user = &maker};
  const mlx_weights_t given = {.name = MLX_WHOLE_ARCHIVE, .size = WHOLE_SIZE, .reader = &reader};
  check_weights(MLX_DEVICE_CUDA, compile("cuda", module_text, for_cuda), &given);
  CHECK_INT(maker.calls, 5);
  maker.fails_at = 4 << 20;
  mlx_map_t vmfb = compile("cuda", module_text, for_cuda);
  check_load_fails(vmfb, &given, MLX_INVALID_INPUT, "weight x is bad");
  mlx_unmap(&vmfb);
}

TEST(error_names_the_weight_that_does_not_match_the_module) {
  set_up();
  mlx_map_t vmfb = compile("cuda", module_text, for_cuda);
  mlx_weights_t given = weights();
  given.size = WHOLE_SIZE - 1;
  check_load_fails(vmfb, &given, MLX_INVALID_INPUT,
                   "the module reads 9000128 bytes of weights, of which the model has 9000127");
  given = weights();
  given.name = "c";
  check_load_fails(vmfb, &given, MLX_NOT_FOUND, "the module needs weight '*'");
  given.name = NULL;
  check_load_fails(vmfb, &given, MLX_NOT_FOUND, "the module needs weight '*'");
  mlx_unmap(&vmfb);
  vmfb = compile("changing", changing_text, for_cuda);
  given = weights();
  check_load_fails(vmfb, &given, MLX_UNSUPPORTED, "the module modifies its weights");
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

// While an input is held, its memory must not be reused.
TEST(input_memory_is_reused_only_when_it_is_free) {
  set_up();
  mlx_map_t vmfb = compile("cuda", module_text, for_cuda);
  const mlx_weights_t given = weights();
  mlx_device_t *device;
  mlx_device_program_t *program;
  CHECK_OK(mlx_device_open(MLX_DEVICE_CUDA, 1, &device));
  CHECK_OK(mlx_program_load(device, vmfb.data, vmfb.size, &given, &program));
  enum { CALLS = 40 };  // more than the pool holds
  mlx_buffer_t *kept[CALLS], *out;
  CHECK_OK(mlx_buffer_share(device, words(7), &out));
  for (int32_t i = 0; i < CALLS; ++i) {
    const int32_t x[4] = {i, 1, 2, 3}, y[3] = {4, 5, 1000 + i}, expected[7] = {i, 1, 2, 3, 4, 5, 1000 + i};
    mlx_buffer_t *in[3] = {NULL, NULL, out};
    CHECK_OK(mlx_buffer_from_i32(device, x, 4, &in[0]));
    CHECK_OK(mlx_buffer_from_i32(device, y, 3, &in[1]));
    call(program, "join", in, 3);
    CHECK(!memcmp(mlx_buffer_host(out), expected, sizeof expected));
    mlx_buffer_free(in[0]);
    kept[i] = in[1];
  }
  for (int32_t i = 0; i < CALLS; ++i) {
    int32_t y[3];
    CHECK_OK(mlx_buffer_read(kept[i], 0, y, sizeof y));
    CHECK_INT(y[2], 1000 + i);
    mlx_buffer_free(kept[i]);
  }
  mlx_buffer_free(out);
  mlx_program_free(program);
  mlx_device_close(device);
  mlx_unmap(&vmfb);
}

#define MIB ((size_t)1 << 20)

static void check_zero(const mlx_buffer_t *buffer, size_t offset, size_t count) {
  static int32_t read[1024];
  CHECK_OK(mlx_buffer_read(buffer, offset, read, count * 4));
  for (size_t i = 0; i < count; ++i) CHECK_INT(read[i], 0);
}

// Writes and copies that are queued with calls, at both ends of the committed part.
static void check_buffer(mlx_device_kind_t kind, mlx_map_t vmfb) {
  mlx_device_t *device;
  mlx_device_program_t *program;
  mlx_buffer_t *buffer;
  const mlx_weights_t given = weights();
  int32_t written[20000], read[20000];
  for (int32_t i = 0; i < 20000; ++i) written[i] = i * 3;
  CHECK_OK(mlx_device_open(kind, 1, &device));
  CHECK_OK(mlx_program_load(device, vmfb.data, vmfb.size, &given, &program));
  CHECK_OK(mlx_buffer_reserve(device, words(1 << 28), &buffer));  // 1 GiB
  CHECK_INT(mlx_buffer_size(buffer), 1024 * MIB);
  CHECK_OK(mlx_buffer_commit(buffer, 1));
  check_zero(buffer, 0, 1024);
  CHECK_OK(mlx_buffer_commit(buffer, 65 * MIB));
  check_zero(buffer, 65 * MIB - 4096, 1024);
  CHECK_OK(mlx_program_write(program, buffer, 8, written, sizeof written));
  CHECK_OK(mlx_program_copy(program, buffer, 8, 65 * MIB - sizeof written, sizeof written));
  memset(written, 0, sizeof written);  // the queued write has its own copy
  CHECK_OK(mlx_program_write(program, buffer, 8, written, sizeof written));
  mlx_buffer_t *out;
  mlx_call_t *pending;
  CHECK_OK(mlx_buffer_share(device, words(25), &out));
  CHECK_OK(mlx_program_submit(program, "get_a", &out, NULL, 1, NULL, 0, &pending));
  CHECK_OK(mlx_call_wait(pending));
  CHECK(!memcmp(mlx_buffer_host(out), archive, A_SIZE));
  CHECK_OK(mlx_buffer_read(buffer, 65 * MIB - sizeof read, read, sizeof read));
  for (int32_t i = 0; i < 20000; ++i) CHECK_INT(read[i], i * 3);
  check_zero(buffer, 8, 1024);
  CHECK_ERROR(mlx_buffer_commit(buffer, 1025 * MIB), MLX_INTERNAL, "cannot commit");
  CHECK_ERROR(mlx_buffer_read(buffer, 1024 * MIB - 4, read, 8), MLX_INTERNAL, "cannot read 8 bytes");
  // A call that is refused does not stop later ones.
  CHECK_ERROR(mlx_program_submit(program, "get_all", &out, NULL, 1, NULL, 0, &pending), MLX_INVALID_INPUT,
              "calling 'get_all'");
  memset(mlx_buffer_host(out), 0, A_SIZE);
  call(program, "get_a", &out, 1);
  CHECK(!memcmp(mlx_buffer_host(out), archive, A_SIZE));
  mlx_buffer_free(out);
  mlx_buffer_free(buffer);
  mlx_program_free(program);
  mlx_device_close(device);
}

TEST(reserved_memory_is_taken_as_it_is_committed) {
  set_up();
  mlx_map_t cuda = compile("cuda", module_text, for_cuda), cpu = compile("cpu", module_text, for_cpu);
  check_buffer(MLX_DEVICE_CPU, cpu);
  check_buffer(MLX_DEVICE_CUDA, cuda);
  setenv("STUB_NO_RANGES", "1", 1);  // the whole buffer is allocated at once
  check_buffer(MLX_DEVICE_CUDA, cuda);
  unsetenv("STUB_NO_RANGES");
  mlx_unmap(&cuda);
  mlx_unmap(&cpu);
}

// Buffers smaller and larger than what a GPU maps at once.
static void check_end(mlx_device_kind_t kind) {
  const size_t sizes[] = {MIB, 65 * MIB, 300 * MIB};
  mlx_device_t *device;
  CHECK_OK(mlx_device_open(kind, 1, &device));
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    mlx_buffer_t *buffer;
    CHECK_OK(mlx_buffer_reserve(device, words((int64_t)sizes[i] / 4), &buffer));
    CHECK_ERROR(mlx_buffer_commit_end(buffer, sizes[i] + 4), MLX_INTERNAL, "cannot commit");
    CHECK_OK(mlx_buffer_commit_end(buffer, MIB / 2));
    check_zero(buffer, sizes[i] - MIB / 2, 1024);
    CHECK_OK(mlx_buffer_commit(buffer, 4096));
    check_zero(buffer, 0, 1024);
    CHECK_OK(mlx_buffer_commit(buffer, sizes[i]));
    check_zero(buffer, sizes[i] / 2, 1024);
    mlx_buffer_free(buffer);
  }
  mlx_device_close(device);
}

TEST(the_end_of_reserved_memory_is_committed_before_the_rest) {
  set_up();
  check_end(MLX_DEVICE_CPU);
  check_end(MLX_DEVICE_CUDA);
  setenv("STUB_NO_RANGES", "1", 1);
  check_end(MLX_DEVICE_CUDA);
  unsetenv("STUB_NO_RANGES");
}

TEST(a_gpu_without_free_memory_refuses_a_commit) {
  set_up();
  mlx_device_t *device;
  mlx_buffer_t *buffer;
  CHECK_OK(mlx_device_open(MLX_DEVICE_CUDA, 1, &device));
  setenv("STUB_FREE", "134217728", 1);  // two steps
  CHECK_OK(mlx_buffer_reserve(device, words(1 << 28), &buffer));
  CHECK_OK(mlx_buffer_commit(buffer, 128 * MIB));
  CHECK_ERROR(mlx_buffer_commit(buffer, 128 * MIB + 1), MLX_OUT_OF_MEMORY, "allocating GPU memory failed");
  check_zero(buffer, 128 * MIB - 4096, 1024);
  mlx_buffer_free(buffer);
  CHECK_OK(mlx_buffer_reserve(device, words(1 << 28), &buffer));  // the memory is free again
  CHECK_OK(mlx_buffer_commit(buffer, 128 * MIB));
  mlx_buffer_free(buffer);
  setenv("STUB_FREE", "2097152", 1);  // a small buffer takes no more than it needs
  CHECK_OK(mlx_buffer_reserve(device, words(1000), &buffer));
  CHECK_OK(mlx_buffer_commit(buffer, 4000));
  check_zero(buffer, 0, 1000);
  mlx_buffer_free(buffer);
  unsetenv("STUB_FREE");
  mlx_device_close(device);
}

// The stub fails if memory is taken on another GPU than that of the thread's context.
TEST(two_gpus_are_used_in_turn_by_one_thread) {
  set_up();
  setenv("STUB_GPUS", "2", 1);
  mlx_map_t vmfb = compile("cuda", module_text, for_cuda);
  const mlx_weights_t given = weights();
  mlx_device_t *devices[2];
  mlx_device_program_t *programs[2];
  mlx_buffer_t *buffers[2], *outs[2];
  for (int i = 0; i < 2; ++i) {
    CHECK_OK(mlx_device_open_gpu(i, &devices[i]));
    CHECK_OK(mlx_program_load(devices[i], vmfb.data, vmfb.size, &given, &programs[i]));
    CHECK_OK(mlx_buffer_reserve(devices[i], words(1 << 28), &buffers[i]));
    CHECK_OK(mlx_buffer_share(devices[i], words(25), &outs[i]));
  }
  for (size_t step = 1; step < 3; ++step) {
    for (int i = 0; i < 2; ++i) CHECK_OK(mlx_buffer_commit(buffers[i], step * 65 * MIB));
    for (int i = 0; i < 2; ++i) check_zero(buffers[i], step * 65 * MIB - 4096, 1024);
  }
  for (int i = 0; i < 2; ++i) {
    call(programs[i], "get_a", &outs[i], 1);
    CHECK(!memcmp(mlx_buffer_host(outs[i]), archive, A_SIZE));
  }
  for (int i = 0; i < 2; ++i) {
    mlx_buffer_free(outs[i]);
    mlx_buffer_free(buffers[i]);
    mlx_program_free(programs[i]);
    mlx_device_close(devices[i]);
  }
  CHECK_ERROR(mlx_device_open_gpu(2, &devices[0]), MLX_UNAVAILABLE, "opening the GPU failed");
  unsetenv("STUB_GPUS");
  mlx_unmap(&vmfb);
}

TEST_MAIN(CASE(two_gpus_are_used_in_turn_by_one_thread),
          CASE(weights_reach_a_gpu_and_progress_goes_from_zero_to_all), CASE(cpu_uses_weights_in_place),
          CASE(a_cancelled_upload_ends), CASE(weights_that_are_made_while_loading_reach_a_gpu),
          CASE(error_names_the_weight_that_does_not_match_the_module), CASE(upload_error_quotes_the_driver),
          CASE(input_memory_is_reused_only_when_it_is_free),
          CASE(reserved_memory_is_taken_as_it_is_committed),
          CASE(the_end_of_reserved_memory_is_committed_before_the_rest),
          CASE(a_gpu_without_free_memory_refuses_a_commit))
