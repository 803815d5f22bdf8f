// Writes what the decode kernel of a fixture of tests/fixtures/wide needs: its configuration (config.cuh) and
// the archive of weights, for tests/kernels/decode_network_emulated.py.
//
//   decode_case FIXTURE bf16|q8_0|q4_1|gptq FOLDER
//   decode_case MODEL.gguf config FOLDER        only the configuration
//
// FIXTURE is a name, or the path of a file of that form. A name that has no wide fixture is that of a folder
// in tests/fixtures/.
// gptq: matrices in act order; embedding and head stay bf16.
// Exit status 2: the network does not fit the decode kernel.
#include "artifact/archive.h"
#include "base/file.h"
#include "base/memory.h"
#include "compiler/emit.h"
#include "compiler/kernel_config.h"
#include "compiler/kernel_plan.h"
#include "compiler/plan.h"
#include "compiler/weights.h"
#include "tests/support/architectures.h"
#include "tests/support/packed_model.h"
#include "tests/support/wide_fixtures.h"

static mlx_quantize_t quantize_of(const char *kind) {
  return !strcmp(kind, "q8_0")   ? MLX_QUANTIZE_Q8_0
         : !strcmp(kind, "q4_1") ? MLX_QUANTIZE_Q4_1
                                 : MLX_QUANTIZE_NONE;
}

static void use_options(const mlx_model_t *model, const mlx_graph_t *graph, mlx_quantize_t quantize,
                        bool quantized, mlx_kernels_t *kernels, mlx_module_options_t *out) {
  const char *missing;
  mlx_module_options_initialize(CONTEXT, out);
  out->form = MLX_FORM_IREE;
  out->dtype = quantized ? MLX_F32 : MLX_BF16;
  out->as_stored = quantized;
  out->quantize = quantize;
  if (quantized) out->layout = MLX_LAYOUT_TILES;
  out->kv = MLX_F32;
  CHECK_OK(mlx_module_use_kernels(model, graph, kernels, out, &missing));
  CHECK(out->kernels == kernels);
}

static void write_config(const mlx_model_t *model, const mlx_graph_t *graph,
                         const mlx_module_options_t *options, mlx_kernels_t *kernels, const char *folder) {
  char *text, path[512];
  CHECK_OK(mlx_module_emit(model, graph, options, &text, NULL));
  mlx_free(text);
  for (size_t i = 0; i < kernels->count; ++i) {
    if (kernels->images[i].kind != MLX_KERNEL_DECODE) continue;
    CHECK_OK(mlx_kernel_config_header("decode", kernels->images[i].definitions, &text));
    snprintf(path, sizeof path, "%s/" MLX_KERNEL_CONFIG, folder);
    CHECK_OK(mlx_write_file(path, text, strlen(text)));
    mlx_free(text);
  }
}

// The bytes that the kernel gets: from the first weight of the archive to the last.
static void write_weights(const mlx_model_t *model, const mlx_module_options_t *options, const char *folder) {
  char path[512], *file;
  size_t length;
  mlx_archive_t archive;
  snprintf(path, sizeof path, "%s/weights", folder);
  CHECK_OK(mlx_weights_write(model, mlx_module_storage(options), path, NULL));
  CHECK_OK(mlx_read_file(path, 1 << 24, &file, &length));
  CHECK_OK(mlx_archive_parse(path, (const uint8_t *)file, length, &archive));
  const char *first = (const char *)archive.entries[0].data;
  CHECK_OK(mlx_write_file(path, first, length - (size_t)(first - file)));
  mlx_archive_clear(&archive);
  mlx_free(file);
}

// Replaces *|model|, the folder |path|, by the same in act order.
static void quantize_in_act_order(const char *path, mlx_model_t **model) {
  static const packed_kind_t kind = {"gptq", MLX_PACKED_GPTQ, 4, 32, MLX_F16, false, ACT_ORDER, false, NULL};
  folder_t packed;
  CHECK(write_packed_model(&kind, path, *model, &packed, NULL) > 0);
  mlx_model_close(*model);
  CHECK_OK(mlx_model_open(packed.path, model));
  CHECK((*model)->order_count > 0);
  end(&packed);  // the files stay mapped
}

static void write_model(const char *fixture, const char *folder) {
  char path[512];
  snprintf(path, sizeof path, WIDE_FIXTURES "%s.json", fixture);
  if (strchr(fixture, '/'))
    write_wide_file(fixture, folder);
  else if (mlx_is_file(path))
    write_wide_model(fixture, folder);
  else
    link_model(fixture, folder);
}

int main(int argc, char **argv) {
  CHECK(argc == 4);
  const mlx_quantize_t quantize = quantize_of(argv[2]);
  const bool gptq = !strcmp(argv[2], "gptq"), only_config = !strcmp(argv[2], "config");
  mlx_model_t *model;
  mlx_graph_t *graph;
  mlx_module_options_t options;
  mlx_decode_plan_t plan;
  bool fits;
  mlx_kernels_t kernels = {.gpu = mlx_gpu_kind_find(90)};
  if (!only_config) write_model(argv[1], argv[3]);
  CHECK_OK(mlx_model_open(only_config ? argv[1] : argv[3], &model));
  if (gptq) quantize_in_act_order(argv[3], &model);
  CHECK_OK(mlx_model_build_graph(model, CONTEXT, &graph));
  use_options(model, graph, quantize, quantize || gptq || only_config, &kernels, &options);
  CHECK_OK(mlx_decode_plan_make(model, graph, &options, &plan, &fits));
  if (fits) {
    write_config(model, graph, &options, &kernels, argv[3]);
    if (!only_config) write_weights(model, &options, argv[3]);
  } else {
    fprintf(stderr, "%s: %s\n", plan.misfit.node ? mlx_graph_node(graph, plan.misfit.node)->name : "",
            plan.misfit.why);
  }
  mlx_kernels_clear(&kernels);
  mlx_graph_free(graph);
  mlx_model_close(model);
  return fits ? 0 : 2;
}
