// GPUs: the table of kinds, and errors about GPUs. Needs no GPU.
#include "base/gpu.h"
#include "tests/support/check.h"
#include "tests/support/command.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"

TEST(every_gpu_in_the_table_is_found_by_name_and_runs_its_target) {
  for (size_t i = 0; mlx_gpu_kind_at(i); ++i) {
    const mlx_gpu_kind_t *kind = mlx_gpu_kind_at(i);
    char name[16], target[16];
    snprintf(name, sizeof name, "sm_%d", kind->sm);
    snprintf(target, sizeof target, "sm_%d", kind->iree_sm);
    CHECK(mlx_gpu_kind_parse(name) == kind);
    CHECK_TEXT(kind->iree_target, target);
    CHECK(kind->iree_sm <= kind->sm);
    CHECK(kind->min_driver >= 11000);
  }
  CHECK(!mlx_gpu_kind_parse("sm_70") && !mlx_gpu_kind_parse("sm_") && !mlx_gpu_kind_parse("sm_90a") &&
        !mlx_gpu_kind_parse("90"));
}

// IREE rejects sm_90, and without a target it uses sm_60. So the PTX must name the target that we passed.
TEST(code_is_compiled_for_the_requested_gpu) {
  static const char *const targets[][2] = {
      {"cuda:sm_75", ".target sm_75"}, {"cuda:sm_90", ".target sm_80"}, {"cuda:sm_120", ".target sm_120"}};
  for (int i = 0; i < 3; ++i) {
    command_t run;
    RUN(&run, "compile", TINY, "--ctx", "64", "--target", targets[i][0], "--emit", "vmfb", "-o", "-");
    if (run.exit_code) CHECK_FAIL("%s: exit status %d: %s", targets[i][0], run.exit_code, run.err);
    CHECK(memmem(run.out, run.out_length, targets[i][1], strlen(targets[i][1])));
    command_free(&run);
  }
}

static char folder[32], bundle[64];  // of the current test, which removes the folder

static void compile_for(const char *target) {
  strcpy(folder, "/tmp/mlxcel-gpu-XXXXXX");
  CHECK(mkdtemp(folder));
  snprintf(bundle, sizeof bundle, "%s/m.mlxb", folder);
  command_t run;
  RUN(&run, "compile", TINY, "--ctx", "64", "--target", target, "-o", bundle);
  CHECK_INT(run.exit_code, 0);
  command_free(&run);
}

TEST(bundle_for_a_gpu_does_not_run_on_a_cpu) {
  command_t run;
  compile_for("cuda:sm_75");
  RUN(&run, "run", "--temp", "0", "-m", bundle, "-p", "the", "-n", "1", "--device", "cpu");
  CHECK_INT(run.exit_code, MLX_UNAVAILABLE);
  CHECK_CONTAINS(run.err, "compiled for cuda:sm_75, not for a CPU");
  command_free(&run);
  CHECK_OK(mlx_remove_tree(folder));
}

// Simulates a GPU of this kind with this driver version (tests/support/stub_cuda.c).
static void simulate_gpu(const char *sm, const char *driver) {
  setenv("LD_LIBRARY_PATH", STUB_FOLDER, 1);
  setenv("STUB_SM", sm, 1);
  setenv("STUB_DRIVER", driver, 1);
}

static void check_unusable(const char *model, const char *part) {
  command_t run;
  RUN(&run, "run", "--temp", "0", "-m", model, "-p", "the quick brown", "-n", "2", "--device", "cuda");
  if (run.exit_code != MLX_UNAVAILABLE) CHECK_FAIL("exit status %d: %s", run.exit_code, run.err);
  CHECK_CONTAINS(run.err, part);
  CHECK_CONTAINS(run.err, "hint: ");
  command_free(&run);
}

TEST(unusable_gpu_is_reported_with_the_reason_and_auto_uses_the_cpu) {
  command_t run;
  simulate_gpu("0", "13000");
  check_unusable(TINY, "the driver does not start (cuInit returned 100)");
  simulate_gpu("70", "13000");
  check_unusable(TINY, "sm_70 (Stub) is not supported");
  simulate_gpu("89", "12020");
  check_unusable(TINY, "needs a driver for CUDA 12.4; this one is for CUDA 12.2");
  RUN(&run, "run", "--temp", "0", "-m", TINY, "-p", "the quick brown", "-n", "2", "--json", "-v");
  CHECK_INT(run.exit_code, 0);
  CHECK_CONTAINS(run.err, "device: cpu");
  CHECK_CONTAINS(run.err, "(auto: code for this GPU needs a driver for CUDA 12.4");
  CHECK_CONTAINS(run.out, "\"output_ids\": [142, 218]");
  command_free(&run);
  RUN(&run, "doctor");
  CHECK_INT(run.exit_code, 0);
  CHECK_CONTAINS(run.out, "WARN  gpu           code for this GPU needs a driver for CUDA 12.4");
  command_free(&run);
  unsetenv("LD_LIBRARY_PATH");
}

TEST(bundle_for_a_newer_gpu_is_rejected_before_loading) {
  compile_for("cuda:sm_120");
  simulate_gpu("90", "13000");
  check_unusable(bundle, "was compiled for cuda:sm_120; this GPU (Stub) is sm_90");
  unsetenv("LD_LIBRARY_PATH");
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(driver_is_found_under_its_versioned_name) {
  command_t run;
  simulate_gpu("70", "13000");
  setenv("LD_LIBRARY_PATH", STUB_FOLDER "/versioned", 1);
  RUN(&run, "doctor");
  CHECK_CONTAINS(run.out, "sm_70 (Stub) is not supported");
  command_free(&run);
  unsetenv("LD_LIBRARY_PATH");
}

// The stub GPU has too little free memory to load anything.
TEST(model_too_large_for_gpu_memory_is_rejected_with_the_sizes) {
  command_t run;
  compile_for("cuda:sm_80");
  simulate_gpu("90", "13000");
  setenv("STUB_FREE", "104858", 1);
  RUN(&run, "run", "--temp", "0", "-m", bundle, "-p", "the", "-n", "1", "--device", "cuda");
  CHECK_INT(run.exit_code, MLX_OUT_OF_MEMORY);
  CHECK_CONTAINS(run.err, "m.mlxb needs ");
  CHECK_CONTAINS(run.err, " of GPU memory for its weights and ");
  CHECK_CONTAINS(run.err, " for scratch and results; 0.1 MiB of 8.0 GiB are free");
  CHECK_CONTAINS(run.err, "hint: run `nvidia-smi` to see which processes use");
  command_free(&run);
  unsetenv("STUB_FREE");
  unsetenv("LD_LIBRARY_PATH");
  CHECK_OK(mlx_remove_tree(folder));
}

// The stub GPU runs no kernels, but the weights are read before the module is loaded.
TEST(a_gpu_gets_weights_from_the_files_of_the_model) {
  char *bytes, path[64];
  size_t length;
  command_t run;
  strcpy(folder, "/tmp/mlxcel-gpu-XXXXXX");
  CHECK(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/m.gguf", folder);
  CHECK_OK(mlx_read_file(TINY ".gguf", 1 << 26, &bytes, &length));
  memcpy(bytes + length - 4, "\0\0\xc0\x7f", 4);  // NaN
  CHECK_OK(mlx_write_file(path, bytes, length));
  mlx_free(bytes);
  simulate_gpu("90", "13000");
  RUN(&run, "run", "--temp", "0", "-m", path, "-p", "the", "-n", "1", "--device", "cuda");
  CHECK_INT(run.exit_code, MLX_INVALID_INPUT);
  CHECK_CONTAINS(run.err, "has a value that is not finite: element ");
  CHECK_CONTAINS(run.err, "hint: the file is damaged");
  command_free(&run);
  unsetenv("LD_LIBRARY_PATH");
  CHECK_OK(mlx_remove_tree(folder));
}

static void check_usage(const char *verb, const char *gpus, const char *device, const char *part) {
  command_t run;
  RUN(&run, verb, "-m", TINY, "--gpu", gpus, "--device", device, verb[0] == 'r' ? "-p" : "--port", "0");
  if (run.exit_code != MLX_USAGE) CHECK_FAIL("--gpu %s: exit status %d: %s", gpus, run.exit_code, run.err);
  CHECK_CONTAINS(run.err, part);
  command_free(&run);
}

TEST(a_gpu_is_chosen_by_its_number) {
  command_t run;
  simulate_gpu("90", "13000");
  setenv("STUB_GPUS", "2", 1);
  check_usage("run", "2", "auto", "there is no GPU 2: the driver reports 2 GPUs");
  check_usage("serve", "0,7", "auto", "hint: the GPUs are: 0 (Stub), 1 (Stub 1)");
  check_usage("serve", "0,0", "auto", "GPU 0 is given twice");
  check_usage("serve", "0,", "auto", "numbers of GPUs from 0 on, separated by commas, not '0,'");
  check_usage("serve", "-1", "auto", "not '-1'");
  check_usage("serve", "99999999999999999999", "auto", "not '99999999999999999999'");
  check_usage("serve", "0,1", "cpu", "--gpu cannot be used with --device cpu");
  check_usage("run", "0,1", "auto", "this command runs on one GPU, not on 0,1");
  RUN(&run, "serve", "-m", TINY, "--gpu", "0,1", "--engines", "40", "--port", "0");
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err, "2 GPUs with 40 engines each: a model has at most 64 engines");
  command_free(&run);
  RUN(&run, "doctor");
  CHECK_CONTAINS(run.out, "OK    gpu           Stub, sm_90, 8.0 GiB");
  CHECK_CONTAINS(run.out, "OK    gpu 1         Stub 1, sm_90, 8.0 GiB");
  command_free(&run);
  unsetenv("STUB_GPUS");
  unsetenv("LD_LIBRARY_PATH");
}

TEST_MAIN(CASE(a_gpu_is_chosen_by_its_number),
          CASE(every_gpu_in_the_table_is_found_by_name_and_runs_its_target),
          CASE(code_is_compiled_for_the_requested_gpu), CASE(bundle_for_a_gpu_does_not_run_on_a_cpu),
          CASE(unusable_gpu_is_reported_with_the_reason_and_auto_uses_the_cpu),
          CASE(driver_is_found_under_its_versioned_name),
          CASE(bundle_for_a_newer_gpu_is_rejected_before_loading),
          CASE(a_gpu_gets_weights_from_the_files_of_the_model),
          CASE(model_too_large_for_gpu_memory_is_rejected_with_the_sizes))
