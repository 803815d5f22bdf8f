// Every architecture on a GPU against Hugging Face; arch_test.c does the same on the CPU. The small fixtures
// run on the generic path in f32, those with recurrent layers and the wide ones on the kernels. The prepared
// files are in build/gpu/arch and build/gpu/wide, so they can be copied to a GPU machine. ./build.sh test-gpu
// runs this test; ctest does not, because preparing the files takes minutes. MLXCEL_ARCH=NAME prepares and
// runs one fixture.
#include <sys/stat.h>

#include "base/memory.h"
#include "tests/support/architectures.h"
#include "tests/support/gpu.h"
#include "tests/support/listed.h"
#include "tests/support/wide_fixtures.h"

// Recurrent layers have no generic path; with the weights as stored they have kernels.
static mlx_weights_choice_t weights_of(const char *folder) {
  mlx_model_t *model;
  mlx_graph_t *graph;
  CHECK_OK(mlx_model_open(folder, &model));
  CHECK_OK(mlx_model_build_graph(model, CONTEXT, &graph));
  const bool recurrent = mlx_graph_state_numbers(graph) > 0;
  mlx_graph_free(graph);
  mlx_model_close(model);
  return recurrent ? MLX_WEIGHTS_AUTO : MLX_WEIGHTS_FLOAT;
}

// PTX for sm_80 runs on every later GPU. Adds to the count at |user|.
static mlx_status_t prepare_fixture(void *user, const char *name) {
  char folder[] = "/tmp/mlxcel-arch-XXXXXX", path[512], file[64];
  if (!is_architecture(name)) return NULL;
  CHECK(mkdtemp(folder));
  link_model(name, folder);
  snprintf(file, sizeof file, "arch/%.40s.mlxb", name);
  const mlx_compile_options_t options = {
      .target = "cuda:sm_80", .weights = weights_of(folder), .context = CONTEXT};
  gpu_compile(folder, &options, file);
  snprintf(path, sizeof path, GOLDENS "%s.json", name);
  snprintf(file, sizeof file, "arch/%.40s.json", name);
  gpu_copy(path, file);
  CHECK_OK(mlx_remove_tree(folder));
  ++*(size_t *)user;
  return NULL;
}

static mlx_status_t prepare_wide(void *user, const char *wide) {
  char folder[] = "/tmp/mlxcel-arch-XXXXXX", name[64], path[512], file[64];
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
  ++*(size_t *)user;
  return NULL;
}

// Prepares a folder and stores the number of its bundles in the file "count", so that a test can tell when
// the folder is incomplete.
static void prepare_folder(const char *folder, const char *fixtures, mlx_visit_fn_t prepare_one,
                           size_t listed) {
  size_t prepared = 0;
  char file[64], text[32];
  mkdir(gpu_file(folder), 0777);
  snprintf(file, sizeof file, "%s/count", folder);
  unlink(gpu_file(file));
  CHECK_OK(mlx_list_dir(fixtures, prepare_one, &prepared));
  check_compared(prepared, listed);
  snprintf(text, sizeof text, "%zu", prepared);
  CHECK_OK(mlx_write_file(gpu_file(file), text, strlen(text)));
}

static void prepare(void) {
  prepare_folder("wide", WIDE_FIXTURES, prepare_wide, listed_files("fixtures/wide/", ".json"));
  prepare_folder("arch", FIXTURES, prepare_fixture, listed_architectures());
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

static void check_folder(const char *folder, mlx_visit_fn_t check_one) {
  size_t checked = 0, prepared;
  char file[64], *text;
  snprintf(file, sizeof file, "%s/count", folder);
  CHECK_OK(mlx_read_file(gpu_file(file), 32, &text, NULL));
  prepared = (size_t)strtoull(text, NULL, 10);
  mlx_free(text);
  CHECK_OK(mlx_list_dir(gpu_file(folder), check_one, &checked));
  CHECK(checked > 0);
  if (checked < prepared && !getenv("MLXCEL_ARCH"))
    CHECK_FAIL("%s: %zu bundles are left of %zu", folder, checked, prepared);
}

TEST(every_architecture_on_the_gpu_matches_hf_token_for_token) { check_folder("arch", check_fixture); }

TEST(every_architecture_on_the_gpu_kernels_matches_hf_token_for_token) {
  if (!gpu_runs("wide fixtures", 90)) return;
  check_folder("wide", check_wide);
}

GPU_TEST_MAIN(prepare, CASE(every_architecture_on_the_gpu_matches_hf_token_for_token),
              CASE(every_architecture_on_the_gpu_kernels_matches_hf_token_for_token))
