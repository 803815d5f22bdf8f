// The size of a model is printed before work begins, and a model that its device cannot hold is refused then.
#include <unistd.h>

#include "artifact/manifest.h"
#include "compiler/compile.h"
#include "tests/support/command.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"  // 156,288 bytes of f32

static char notes[1024];
static void collect(void *user, mlx_report_kind_t kind, const char *text) {
  (void)user;
  if (kind == MLX_REPORT_NOTE) snprintf(notes + strlen(notes), sizeof notes - strlen(notes), "%s\n", text);
}

// There is no such iree-compile: a compilation that is not refused for its size ends with another error.
static mlx_status_t compile(const char *target, uint64_t gpu_memory, uint64_t host_memory) {
  const mlx_report_t report = {.emit = collect};
  const mlx_compile_options_t options = {.target = target,
                                         .weights = MLX_WEIGHTS_AUTO,
                                         .kernels = MLX_KERNELS_OFF,
                                         .iree_compile = "/nonexistent/iree-compile",
                                         .report = &report,
                                         .show_size = true,
                                         .gpu_memory = gpu_memory,
                                         .host_memory = host_memory};
  mlx_cache_t *cache;
  mlx_compiled_t compiled;
  notes[0] = 0;
  CHECK_OK(mlx_cache_open(NULL, &cache));
  mlx_status_t status = mlx_compile(TINY, &options, cache, &compiled);
  if (!status) mlx_compiled_release(&compiled);
  mlx_cache_close(cache);
  return status;
}

TEST(a_model_larger_than_the_memory_of_its_device_is_refused_before_work) {
  mlx_status_t status = compile("cpu", 0, 100000);
  CHECK_CONTAINS(mlx_status_hint_text(status), "--quantize q4");
  CHECK_ERROR(
      status, MLX_OUT_OF_MEMORY,
      "tiny-llama does not fit: its weights as f32 need 156.3 kB; this machine has 100.0 kB of memory");
  CHECK_ERROR(compile("cuda:sm_90", 100000, 0), MLX_OUT_OF_MEMORY, "this GPU has 100.0 kB of memory");
}

TEST(a_model_that_fits_or_is_for_another_machine_is_not_refused) {
  CHECK_ERROR(compile("cpu", 100000, 200000), MLX_NOT_FOUND, "/nonexistent/iree-compile");
  CHECK_CONTAINS(
      notes,
      "size for cpu:host: 156.3 kB of weights as f32, and 256 bytes of KV cache per token; values of a "
      "step of 64 tokens: ");
  CHECK_ERROR(compile("cuda:sm_90", 0, 100000), MLX_NOT_FOUND, "/nonexistent/iree-compile");
  CHECK_ERROR(compile("cpu:x86-64-v3", 0, 100000), MLX_NOT_FOUND, "/nonexistent/iree-compile");
}

TEST(show_prints_the_size_of_the_path_of_this_machine) {
  command_t show;
  RUN(&show, "show", TINY);
  CHECK_INT(show.exit_code, 0);
  CHECK_CONTAINS(show.out, " of weights as f32, and 524.3 kB of KV cache\nthat fits: it has ");
  command_free(&show);
  RUN(&show, "show", TINY, "--json");
  CHECK_CONTAINS(show.out, "\"here\": {\"weights\": ");
  CHECK_CONTAINS(show.out, "\"step\": ");
  CHECK_CONTAINS(show.out, "\"kv_per_token\": 256,");
  command_free(&show);
}

// Keys and values of one position, in f32. Of gemma4: two layers with a window and 2 KV heads of 16, two
// without one and 1 KV head of 32; two more layers share them. Of gemma4-embeddings: one layer of each kind
// with 1 KV head; three share them.
TEST(show_counts_the_keys_and_values_of_each_layer_with_its_own_sizes_and_shared_ones_once) {
  static const struct {
    const char *model, *heads, *shared, *bytes;
  } models[] = {
      {"gemma4", "4 heads of 16 (2 for keys and values)\nno window     heads of 32 (1 for keys and values)",
       "the last 2 layers use keys and values of earlier layers", "\"kv_per_token\": 1024,"},
      {"gemma4-embeddings", "heads of 32 (1 for keys and values)",
       "the last 3 layers use keys and values of earlier layers", "\"kv_per_token\": 384,"}};
  for (int i = 0; i < 2; ++i) {
    char folder[512];
    command_t show;
    snprintf(folder, sizeof folder, MLXCEL_SOURCE_DIR "/tests/fixtures/%s", models[i].model);
    RUN(&show, "show", folder);
    CHECK_CONTAINS(show.out, models[i].heads);
    CHECK_CONTAINS(show.out, models[i].shared);
    command_free(&show);
    RUN(&show, "show", folder, "--json");
    CHECK_CONTAINS(show.out, models[i].bytes);
    command_free(&show);
  }
}

TEST_MAIN(CASE(a_model_larger_than_the_memory_of_its_device_is_refused_before_work),
          CASE(a_model_that_fits_or_is_for_another_machine_is_not_refused),
          CASE(show_prints_the_size_of_the_path_of_this_machine),
          CASE(show_counts_the_keys_and_values_of_each_layer_with_its_own_sizes_and_shared_ones_once))
