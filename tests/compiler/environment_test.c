// CUDA variables that are set for other software: doctor explains them, compile and the NVRTC search use
// them. Also tests ./build.sh check-env.
#include "base/gpu.h"
#include "base/text.h"
#include "compiler/nvrtc.h"
#include "tests/support/check.h"
#include "tests/support/command.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"

static char folder[64];

static void make_folder(void) {
  strcpy(folder, "/tmp/mlxcel-env-XXXXXX");
  CHECK(mkdtemp(folder));
}

static void remove_folder(void) { CHECK_OK(mlx_remove_tree(folder)); }

static void set_variables(const char *toolkit, const char *compiler, const char *capability) {
  setenv("CUDA_HOME", toolkit, 1);
  setenv("NVCC_CCBIN", compiler, 1);
  setenv("CUDA_COMPUTE_CAP", capability, 1);
}

static void unset_variables(void) {
  static const char *const names[] = {"CUDA_PATH",        "CUDA_HOME",     "NVCC_CCBIN",
                                      "CUDA_COMPUTE_CAP", "SSL_CERT_FILE", "CURL_CA_BUNDLE"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) unsetenv(names[i]);
}

TEST(compute_capability_parses_with_and_without_a_dot) {
  CHECK_INT(mlx_gpu_kind_parse_capability("90")->sm, 90);
  CHECK_INT(mlx_gpu_kind_parse_capability("9.0")->sm, 90);
  CHECK_INT(mlx_gpu_kind_parse_capability("12.1")->sm, 121);
  CHECK_INT(mlx_gpu_kind_parse_capability("100")->sm, 100);
  static const char *const wrong[] = {"",      "9",  "9.",   "9.0a", "90a",
                                      "sm_90", "70", "9.00", "-90",  "99999999999999999999"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    if (mlx_gpu_kind_parse_capability(wrong[i])) CHECK_FAIL("'%s' was accepted", wrong[i]);
  }
}

TEST(doctor_explains_cuda_variables) {
  command_t run;
  make_folder();
  unset_variables();
  RUN(&run, "doctor");
  CHECK(!strstr(run.out, "CUDA_HOME") && !strstr(run.out, "NVCC_CCBIN"));
  command_free(&run);
  set_variables(folder, "/usr/bin/g++-9", "9.0");
  RUN(&run, "doctor");
  CHECK_INT(run.exit_code, 0);
  CHECK_CONTAINS(run.out, "OK    C++ library   libstdc++.so.6");
  CHECK_CONTAINS(run.out, "OK    CUDA_HOME     /tmp/mlxcel-env-");
  CHECK_CONTAINS(run.out, "mlxcel needs no toolkit");
  CHECK_CONTAINS(run.out, "OK    NVCC_CCBIN    /usr/bin/g++-9: not used");
  CHECK_CONTAINS(run.out, "without a GPU, `compile --target cuda` means cuda:sm_90 (Hopper)");
  command_free(&run);
  set_variables("/nowhere", "", "35");
  setenv("SSL_CERT_FILE", "/nowhere/certificates", 1);
  RUN(&run, "doctor");
  unset_variables();
  CHECK_INT(run.exit_code, 0);  // an invalid variable is a warning: mlxcel works without it
  CHECK_CONTAINS(run.out, "WARN  CUDA_HOME     '/nowhere' is not a folder");
  CHECK_CONTAINS(run.out, "fix: unset CUDA_HOME");
  CHECK_CONTAINS(run.out, "'35' is not a GPU architecture that mlxcel supports");
  CHECK_CONTAINS(run.out,
                 "WARN  certificates  SSL_CERT_FILE is set to '/nowhere/certificates', which is not a file");
  CHECK(!strstr(run.out, "NVCC_CCBIN"));
  command_free(&run);
  remove_folder();
}

TEST(target_cuda_uses_cuda_compute_cap) {
  command_t run;
  make_folder();
  char bundle[96], manifest[128], *text;
  snprintf(bundle, sizeof bundle, "%s/m.mlxb", folder);
  snprintf(manifest, sizeof manifest, "%s/manifest.json", bundle);
  setenv("CUDA_VISIBLE_DEVICES", "", 1);  // hides the GPU of this machine
  setenv("CUDA_COMPUTE_CAP", "9.0", 1);
  RUN(&run, "compile", TINY, "--ctx", "64", "--target", "cuda", "-o", bundle);
  if (run.exit_code) CHECK_FAIL("exit status %d: %s", run.exit_code, run.err);
  command_free(&run);
  CHECK_OK(mlx_read_file(manifest, 1 << 20, &text, NULL));
  CHECK_CONTAINS(text, "cuda:sm_90");
  mlx_free(text);
  setenv("CUDA_COMPUTE_CAP", "hopper", 1);
  RUN(&run, "compile", TINY, "--ctx", "64", "--target", "cuda", "-o", bundle);
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err,
                 "CUDA_COMPUTE_CAP is 'hopper', which is not a GPU architecture that mlxcel supports");
  CHECK_CONTAINS(run.err, "hint: ");
  command_free(&run);
  unset_variables();
  unsetenv("CUDA_VISIBLE_DEVICES");
  remove_folder();
}

// Without the built-in NVRTC, the toolkit's is used, from lib64 or lib.
TEST(nvrtc_is_found_in_a_cuda_toolkit) {
  make_folder();
  char place[128];
  const char *built_in = mlx_nvrtc_built_in;
  static const char *const cases[][2] = {{"CUDA_PATH", "lib64"}, {"CUDA_HOME", "lib"}};
  for (size_t i = 0; i < 2; ++i) {
    unset_variables();
    snprintf(place, sizeof place, "%s/%s", folder, cases[i][1]);
    CHECK(!symlink(built_in, place));
    setenv(cases[i][0], folder, 1);
    mlx_nvrtc_built_in = "";
    mlx_nvrtc_t *nvrtc;
    mlx_status_t status = mlx_nvrtc_open(NULL, &nvrtc);
    mlx_nvrtc_built_in = built_in;
    CHECK_OK(status);
    CHECK(strlen(mlx_nvrtc_version(nvrtc)) > 0);
    mlx_nvrtc_close(nvrtc);
    CHECK(!unlink(place));
  }
  unset_variables();
  remove_folder();
}

// Fills the folder with links to ordinary tools, an old cargo and no C++ compiler.
static void make_bare_machine(void) {
  command_t run;
  char script[1024];
  snprintf(script, sizeof script,
           "cd %s && for t in bash env dirname basename mkdir uname awk sort head grep df getconf tar git; "
           "do ln -s \"$(command -v $t)\" $t; done && "
           "printf '#!/bin/sh\\necho 12.2.0\\n' >cc && printf '#!/bin/sh\\necho cargo 1.60.0\\n' >cargo && "
           "printf '#!/bin/sh\\n' >apt-get && chmod +x cc cargo apt-get",
           folder);
  command_start(&run, (const char *const[]){"/bin/sh", "-c", script, NULL});
  command_wait(&run);
  CHECK_INT(run.exit_code, 0);
  command_free(&run);
}

static void check_environment(command_t *run, const char *platform) {
  command_start(
      run, (const char *const[]){"/bin/bash", MLXCEL_SOURCE_DIR "/build.sh", "check-env", platform, NULL});
  command_wait(run);
}

TEST(check_env_lists_missing_tools_with_install_commands) {
  command_t run;
  make_folder();
  make_bare_machine();
  char *path = strdup(getenv("PATH"));
  unset_variables();
  unsetenv("CC");
  setenv("PATH", folder, 1);
  set_variables("/nowhere", "/usr/bin/g++-9", "8.9");
  check_environment(&run, "linux-aarch64");
  setenv("PATH", path, 1);
  free(path);
  unset_variables();
  CHECK_INT(run.exit_code, 1);
  CHECK_CONTAINS(run.out, ", version 12.2.0");
  CHECK_CONTAINS(run.out, "FAIL  c++              c++ is not installed");
  CHECK_CONTAINS(run.out, "fix: apt-get install g++\n");
  CHECK_CONTAINS(run.out, "cargo has version 1.60.0; 1.65 or newer is needed");
  CHECK_CONTAINS(run.out, "FAIL  python3          python3 is not installed");
  CHECK_CONTAINS(run.out, "WARN  CUDA_HOME        '/nowhere' is not a folder");
  CHECK_CONTAINS(run.out, "OK    NVCC_CCBIN       /usr/bin/g++-9: not used");
  CHECK_CONTAINS(run.out, "to install what is missing: apt-get install g++ python3 python3-pip cargo\n");
  CHECK_CONTAINS(run.out, "means cuda:sm_89 if no GPU is visible");
#ifdef __x86_64__
  CHECK_CONTAINS(run.out, "OK    qemu-aarch64     ./build.sh test-aarch64 fetches it into build/");
#endif
  command_free(&run);
  check_environment(&run, "linux-sparc");
  CHECK_INT(run.exit_code, 1);
  CHECK_CONTAINS(run.out, "fix: platforms: linux-x86_64, linux-aarch64, windows-x86_64");
  command_free(&run);
  remove_folder();
}

TEST_MAIN(CASE(compute_capability_parses_with_and_without_a_dot), CASE(doctor_explains_cuda_variables),
          CASE(target_cuda_uses_cuda_compute_cap), CASE(nvrtc_is_found_in_a_cuda_toolkit),
          CASE(check_env_lists_missing_tools_with_install_commands))
