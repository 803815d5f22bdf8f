// Every architecture on a GPU against Hugging Face; arch_test.c does the same on the CPU. The small fixtures
// run on the generic path in f32, the wide ones on the kernels. The prepared files are in build/gpu/arch and
// build/gpu/wide, so they can be copied to a GPU machine. ./build.sh test-gpu runs this test; ctest does not,
// because preparing the files takes minutes. MLXCEL_ARCH=NAME prepares and runs one fixture.
#include <sys/stat.h>

#include "base/memory.h"
#include "tests/architectures.h"
#include "tests/gpu.h"
#include "tests/wide_fixtures.h"

// PTX for sm_80 runs on every later GPU.
static mlx_status_t prepare_fixture(void *user, const char *name) {
  char folder[] = "/tmp/mlxcel-arch-XXXXXX", path[512], file[64];
  (void)user;
  if (!is_architecture(name)) return NULL;
  CHECK(mkdtemp(folder));
  link_model(name, folder);
  snprintf(file, sizeof file, "arch/%.40s.mlxb", name);
  gpu_compile(folder, &(mlx_compile_options_t){.target = "cuda:sm_80", .context = CONTEXT}, file);
  snprintf(path, sizeof path, GOLDENS "%s.json", name);
  snprintf(file, sizeof file, "arch/%.40s.json", name);
  gpu_copy(path, file);
  CHECK_OK(mlx_remove_tree(folder));
  return NULL;
}

// Experts without kernels are on the generic path, beside the kernels of the other ops.
static mlx_status_t prepare_wide(void *user, const char *wide) {
  char folder[] = "/tmp/mlxcel-arch-XXXXXX", name[64], path[512], file[64];
  (void)user;
  if (!wide_name(wide, name)) return NULL;
  CHECK(mkdtemp(folder));
  write_wide_model(name, folder);
  snprintf(file, sizeof file, "wide/%.40s.mlxb", name);
  gpu_compile(folder,
              &(mlx_compile_options_t){.target = "cuda:sm_90",
                                       .weights = MLX_WEIGHTS_AUTO,
                                       .context = CONTEXT,
                                       .kernels = MLX_KERNELS_REQUIRED},
              file);
  snprintf(path, sizeof path, WIDE_GOLDENS "%s.json", name);
  snprintf(file, sizeof file, "wide/%.40s.json", name);
  gpu_copy(path, file);
  CHECK_OK(mlx_remove_tree(folder));
  return NULL;
}

static void prepare(void) {
  mkdir(gpu_file("arch"), 0777);
  mkdir(gpu_file("wide"), 0777);
  CHECK_OK(mlx_list_dir(WIDE_FIXTURES, prepare_wide, NULL));
  CHECK_OK(mlx_list_dir(FIXTURES, prepare_fixture, NULL));
}

// Adds to *|checked| if |file| is a bundle. |folder| is "arch" or "wide".
static mlx_status_t check_bundle(size_t *checked, const char *folder, const char *file) {
  static const char ending[] = ".mlxb";
  const size_t length = strlen(file);
  const char *only = getenv("MLXCEL_ARCH");
  char name[64], path[96];
  if (length < sizeof ending || strcmp(file + length - (sizeof ending - 1), ending)) return NULL;
  snprintf(name, sizeof name, "%.*s", (int)(length - (sizeof ending - 1)), file);
  if (only && strcmp(only, name)) return NULL;
  snprintf(path, sizeof path, "%s/%.70s", folder, file);
  mlx_engine_t *engine = gpu_open(path);
  snprintf(path, sizeof path, "%s/%s.json", folder, name);
  check_goldens(engine, name, gpu_file(path));
  mlx_engine_close(engine);
  ++*checked;
  return NULL;
}

static mlx_status_t check_fixture(void *user, const char *file) { return check_bundle(user, "arch", file); }
static mlx_status_t check_wide(void *user, const char *file) { return check_bundle(user, "wide", file); }

TEST(every_architecture_on_the_gpu_matches_hf_token_for_token) {
  size_t checked = 0;
  CHECK_OK(mlx_list_dir(gpu_file("arch"), check_fixture, &checked));
  CHECK(checked > 0);
}

TEST(every_architecture_on_the_gpu_kernels_matches_hf_token_for_token) {
  size_t checked = 0;
  if (!gpu_runs("wide fixtures", 90)) return;
  CHECK_OK(mlx_list_dir(gpu_file("wide"), check_wide, &checked));
  CHECK(checked > 0);
}

GPU_TEST_MAIN(prepare, CASE(every_architecture_on_the_gpu_matches_hf_token_for_token),
              CASE(every_architecture_on_the_gpu_kernels_matches_hf_token_for_token))
