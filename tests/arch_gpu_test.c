// Every architecture on a GPU in f32 against Hugging Face; arch_test.c does the same on the CPU. The prepared
// files are in build/gpu/arch, so they can be copied to a GPU machine. ./build.sh test-gpu runs this test;
// ctest does not, because preparing the files takes minutes.
#include <sys/stat.h>

#include "base/memory.h"
#include "tests/architectures.h"
#include "tests/gpu.h"

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

static void prepare(void) {
  mkdir(gpu_file("arch"), 0777);
  CHECK_OK(mlx_list_dir(FIXTURES, prepare_fixture, NULL));
}

static mlx_status_t check_fixture(void *user, const char *file) {
  static const char ending[] = ".mlxb";
  size_t *checked = user, length = strlen(file);
  char name[64], path[96];
  if (length < sizeof ending || strcmp(file + length - (sizeof ending - 1), ending)) return NULL;
  snprintf(name, sizeof name, "%.*s", (int)(length - (sizeof ending - 1)), file);
  snprintf(path, sizeof path, "arch/%s", file);
  mlx_engine_t *engine = gpu_open(path);
  snprintf(path, sizeof path, "arch/%s.json", name);
  check_goldens(engine, name, gpu_file(path));
  mlx_engine_close(engine);
  ++*checked;
  return NULL;
}

TEST(every_architecture_on_the_gpu_matches_hf_token_for_token) {
  size_t checked = 0;
  CHECK_OK(mlx_list_dir(gpu_file("arch"), check_fixture, &checked));
  CHECK(checked > 0);
}

GPU_TEST_MAIN(prepare, CASE(every_architecture_on_the_gpu_matches_hf_token_for_token))
