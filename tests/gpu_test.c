// GPUs: the table, and what can be said about compiling for one without having one.
#include "base/gpu.h"
#include "tests/check.h"
#include "tests/command.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"

TEST(every_gpu_of_the_table_is_found_by_its_name_and_runs_its_code) {
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

// IREE refuses sm_90 and takes sm_60 when it is told nothing: what we ask for must be in the PTX.
TEST(code_is_made_for_the_gpu_that_was_named) {
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

static char folder[32], bundle[64];  // of the test that runs; it removes the folder

static void compile_for(const char *target) {
  strcpy(folder, "/tmp/mlxcel-gpu-XXXXXX");
  CHECK(mkdtemp(folder));
  snprintf(bundle, sizeof bundle, "%s/m.mlxb", folder);
  command_t run;
  RUN(&run, "compile", TINY, "--ctx", "64", "--target", target, "-o", bundle);
  CHECK_INT(run.exit_code, 0);
  command_free(&run);
}

TEST(an_artifact_for_a_gpu_does_not_run_on_a_cpu) {
  command_t run;
  compile_for("cuda:sm_75");
  RUN(&run, "run", "--temp", "0", "-m", bundle, "-p", "the", "-n", "1", "--device", "cpu");
  CHECK_INT(run.exit_code, MLX_UNAVAILABLE);
  CHECK_CONTAINS(run.err, "compiled for cuda:sm_75, not for a CPU");
  command_free(&run);
  CHECK_OK(mlx_remove_tree(folder));
}

// What is said about a GPU of this kind with this driver; the answers come from tests/stub_cuda.c.
static void pretend(const char *sm, const char *driver) {
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

TEST(a_gpu_that_cannot_be_used_is_said_why_and_auto_takes_the_cpu) {
  command_t run;
  pretend("0", "13000");
  check_unusable(TINY, "the driver does not start (cuInit says 100)");
  pretend("70", "13000");
  check_unusable(TINY, "mlxcel does not know sm_70 (Stub)");
  pretend("89", "12020");
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

TEST(an_artifact_for_a_newer_gpu_is_refused_before_it_is_loaded) {
  compile_for("cuda:sm_120");
  pretend("90", "13000");
  check_unusable(bundle, "was compiled for cuda:sm_120; this GPU (Stub) is sm_90");
  unsetenv("LD_LIBRARY_PATH");
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(a_driver_under_its_versioned_name_alone_is_found) {
  command_t run;
  pretend("70", "13000");
  setenv("LD_LIBRARY_PATH", STUB_FOLDER "/versioned", 1);
  RUN(&run, "doctor");
  CHECK_CONTAINS(run.out, "mlxcel does not know sm_70 (Stub)");
  command_free(&run);
  unsetenv("LD_LIBRARY_PATH");
}

// The stub opens, and has so little memory free that nothing may be loaded.
TEST(a_model_that_does_not_fit_is_refused_with_the_numbers) {
  command_t run;
  compile_for("cuda:sm_80");
  pretend("90", "13000");
  setenv("STUB_FREE", "104858", 1);
  RUN(&run, "run", "--temp", "0", "-m", bundle, "-p", "the", "-n", "1", "--device", "cuda");
  CHECK_INT(run.exit_code, MLX_OUT_OF_MEMORY);
  CHECK_CONTAINS(run.err, "m.mlxb needs ");
  CHECK_CONTAINS(run.err, " of GPU memory for its weights and ");
  CHECK_CONTAINS(run.err, " for its KV cache, 0.1 MiB of 8.0 GiB are free");
  CHECK_CONTAINS(run.err, "hint: see with `nvidia-smi` who else uses it");
  command_free(&run);
  unsetenv("STUB_FREE");
  unsetenv("LD_LIBRARY_PATH");
  CHECK_OK(mlx_remove_tree(folder));
}

TEST_MAIN(CASE(every_gpu_of_the_table_is_found_by_its_name_and_runs_its_code),
          CASE(code_is_made_for_the_gpu_that_was_named), CASE(an_artifact_for_a_gpu_does_not_run_on_a_cpu),
          CASE(a_gpu_that_cannot_be_used_is_said_why_and_auto_takes_the_cpu),
          CASE(a_driver_under_its_versioned_name_alone_is_found),
          CASE(an_artifact_for_a_newer_gpu_is_refused_before_it_is_loaded),
          CASE(a_model_that_does_not_fit_is_refused_with_the_numbers))
