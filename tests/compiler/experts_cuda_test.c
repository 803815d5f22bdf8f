// Mixtures of experts on the CUDA kernel path: storage of their matrices, the formats that the plan chooses,
// and the launches of each function. tests/models/arch_gpu_test.c compares the results.
#include "artifact/archive.h"
#include "base/memory.h"
#include "compiler/emit.h"
#include "compiler/kernel_plan.h"
#include "compiler/weights.h"
#include "tests/compiler/emitted_weight.h"
#include "tests/support/check.h"
#include "tests/support/command.h"

#define FIXTURE(name) MLXCEL_SOURCE_DIR "/tests/fixtures/" name
#define EXPERTS 3
#define ROWS 9  // two rows of tiles, the second with one row
#define COLUMNS 160
#define ROW_BYTES (COLUMNS / 32 * 18)  // Q4_0

// ----------------------------------------------------------------------------------------------------------
// Storage

static uint8_t q4_0[EXPERTS][ROWS][ROW_BYTES];

static void fill_q4_0(void) {
  uint32_t state = 1;
  for (size_t i = 0; i < sizeof q4_0; ++i) {
    state = state * 1664525 + 1013904223;
    ((uint8_t *)q4_0)[i] = i % 18 == 1 ? 0x28 : (uint8_t)(state >> 24);  // the high byte of the scale
  }
}

TEST(matrices_of_experts_are_stored_as_tiles_one_after_the_other) {
  const mlx_storage_t storage = {.dtype = MLX_F32, .layout = MLX_LAYOUT_TILES};
  static char names[1 + EXPERTS][4] = {"all", "0", "1", "2"};
  mlx_weight_t weights[1 + EXPERTS] = {{.name = names[0]}};
  char folder[] = "/tmp/mlxcel-experts-XXXXXX", path[64];
  mlx_archive_t archive;
  mlx_map_t map;
  fill_q4_0();
  weights[0].tensor = (mlx_tensor_t){.dtype = MLX_Q4_0,
                                     .rank = 3,
                                     .dims = {EXPERTS, ROWS, COLUMNS},
                                     .data = (const uint8_t *)q4_0,
                                     .size = sizeof q4_0};
  for (int i = 0; i < EXPERTS; ++i) {
    weights[1 + i] = (mlx_weight_t){.name = names[1 + i]};
    weights[1 + i].tensor = (mlx_tensor_t){.dtype = MLX_Q4_0,
                                           .rank = 2,
                                           .dims = {ROWS, COLUMNS},
                                           .data = (const uint8_t *)q4_0[i],
                                           .size = sizeof q4_0[i]};
  }
  CHECK(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/x.irpa", folder);
  CHECK_OK(mlx_weights_write(&(mlx_model_t){.weights = weights, .weight_count = 1 + EXPERTS}, storage, path,
                             NULL));
  CHECK_OK(mlx_map_file(path, &map));
  CHECK_OK(mlx_archive_parse(path, map.data, map.size, &archive));
  const size_t one = (size_t)mlx_weight_stored_bytes(&weights[1], storage);
  CHECK_INT(one, 2 * 2 * 576);  // 4.5 bits per weight, padded to whole tiles
  CHECK_INT(archive.entries[0].size, EXPERTS * one);
  for (int i = 0; i < EXPERTS; ++i)
    CHECK(!memcmp(archive.entries[0].data + (size_t)i * one, archive.entries[1 + i].data, one));
  CHECK_INT(
      mlx_weights_count(&(mlx_model_t){.weights = weights, .weight_count = 1}, storage, MLX_STORED_CODES), 1);
  mlx_archive_clear(&archive);
  mlx_unmap(&map);
  CHECK_OK(mlx_remove_tree(folder));
}

// ----------------------------------------------------------------------------------------------------------
// Formats

typedef struct planned {
  mlx_model_t *model;
  mlx_graph_t *graph;
  mlx_kernels_t kernels;
  mlx_module_options_t options;
  const char *missing;
} planned_t;

// Opens |fixture| for sm_90. |quantize|: also for a fixture without quantized weights.
static planned_t open_fixture(const char *fixture) {
  planned_t p = {.kernels = {.gpu = mlx_gpu_kind_find(90)}};
  CHECK_OK(mlx_model_open(fixture, &p.model));
  CHECK_OK(mlx_model_build_graph(p.model, 32, &p.graph));
  mlx_module_options_initialize(32, &p.options);
  p.options.form = MLX_FORM_IREE;
  p.options.as_stored = true;
  p.options.layout = MLX_LAYOUT_TILES;
  return p;
}

static void plan(planned_t *p) {
  CHECK_OK(mlx_module_use_kernels(p->model, p->graph, &p->kernels, &p->options, &p->missing));
}

static void close_fixture(planned_t *p) {
  mlx_kernels_clear(&p->kernels);
  mlx_graph_free(p->graph);
  mlx_model_close(p->model);
}

// Operand |nth| (2 gate, 3 up, 4 down) of the first mixture.
static size_t weight_of(const planned_t *p, int nth) {
  for (int id = 1; id <= (int)p->graph->count; ++id) {
    const mlx_node_t *node = mlx_graph_node(p->graph, id);
    if (node->kind == MLX_NODE_EXPERTS) return mlx_graph_operand(p->graph, node, nth)->weight_index;
  }
  CHECK_FAIL("no experts");
  return 0;
}

TEST(gate_and_up_of_different_types_get_one_tile_format) {
  planned_t p = open_fixture(FIXTURE("gpt_oss-mxfp4.gguf"));
  p.model->weights[weight_of(&p, 2)].tensor.dtype = MLX_Q4_0;  // only the plan is made: no data is read
  plan(&p);
  const mlx_tiles_t *tiles = p.kernels.tiles;
  CHECK(!p.missing);
  CHECK(tiles[weight_of(&p, 2)].bits && mlx_tiles_equal(tiles[weight_of(&p, 2)], tiles[weight_of(&p, 3)]));
  CHECK(tiles[weight_of(&p, 4)].bits);
  close_fixture(&p);
}

// The generic path reads floats, so that no matrix of such a layer is in tiles.
TEST(experts_with_a_matrix_that_no_kernel_supports_are_floats_on_the_generic_path) {
  planned_t p = open_fixture(FIXTURE("gpt_oss-mxfp4.gguf"));
  p.model->weights[weight_of(&p, 4)].tensor.dtype = MLX_F32;
  plan(&p);
  CHECK_TEXT(p.missing, "experts with f32 matrices");
  for (int i = 2; i <= 4; ++i) CHECK(!p.kernels.tiles[weight_of(&p, i)].bits);
  close_fixture(&p);
}

// ----------------------------------------------------------------------------------------------------------
// Launches

static size_t count_text(const char *text, const char *part) {
  size_t count = 0;
  for (; (text = strstr(text, part)); ++text) ++count;
  return count;
}

// The decode kernel supports one type of 16 bits: with an embedding of another type, step_1 is op by op.
static planned_t open_without_decode_kernel(const char *fixture) {
  planned_t p = open_fixture(fixture);
  int id = 1;
  while (mlx_graph_node(p.graph, id)->kind != MLX_NODE_EMBED) ++id;
  mlx_weight_t *table =
      &p.model->weights[mlx_graph_operand(p.graph, mlx_graph_node(p.graph, id), 0)->weight_index];
  CHECK(table->tensor.dtype == MLX_BF16);
  table->tensor.dtype = MLX_F16;  // no data is read
  return p;
}

// Two layers; functions of 1, 16, 64, 256 and 512 tokens.
TEST(quantized_experts_have_kernels_in_every_function) {
  planned_t p = open_without_decode_kernel(FIXTURE("gpt_oss-mxfp4"));
  char *text;
  plan(&p);
  CHECK(!p.missing);
  CHECK_OK(mlx_module_emit(p.model, p.graph, &p.options, &text, NULL));
  CHECK_INT(count_text(text, "::@mlx_route["), 4 * 2);  // with one token, the products choose experts
  CHECK_INT(count_text(text, "::@mlx_experts_gemv["), 1 * 2 * 2);  // gate and up; down
  CHECK_INT(count_text(text, "::@mlx_experts_gemm["), 4 * 2 * 2);
  CHECK_INT(count_text(text, "::@mlx_group["), 4 * 2);
  CHECK_INT(count_text(text, "::@mlx_combine["), 4 * 2);
  CHECK(weight_has_type(text, "mlp.router.weight", "tensor<6x32xbf16>"));  // in the dtype of the file
  CHECK(!strstr(text, "expert_weights"));                                  // gathered by the generic path
  mlx_free(text);
  close_fixture(&p);
}

// Clients may ask for the experts of tokens only where a module says that it reports them. Those that the
// generic path chooses are not reported.
TEST(modules_report_routes_if_kernels_choose_the_experts_of_all_layers) {
  static const char *const fixtures[] = {FIXTURE("gpt_oss-mxfp4"), FIXTURE("gpt_oss-mxfp4.gguf"),
                                         FIXTURE("glm4_moe-groups")};
  for (int i = 0; i < 3; ++i) {
    mlx_module_facts_t facts;
    planned_t p = open_fixture(fixtures[i]);
    char *text;
    if (i == 1) p.model->weights[weight_of(&p, 4)].tensor.dtype = MLX_F32;
    plan(&p);
    if (i) CHECK(p.missing);
    CHECK_OK(mlx_module_emit_sized(p.model, p.graph, &p.options, &text, NULL, &facts));
    CHECK_INT(facts.route_used, i ? 0 : 3);
    CHECK_INT(facts.route_layers, i ? 0 : 2);
    mlx_free(text);
    close_fixture(&p);
  }
}

// The text of step_1 alone. The caller frees it.
static char *emit_one_token(planned_t *p) {
  static const mlx_step_size_t one = {1, 1};
  char *text;
  plan(p);
  mlx_module_options_set_steps(&one, 1, &p->options);
  CHECK_OK(mlx_module_emit(p->model, p->graph, &p->options, &text, NULL));
  return text;
}

// A launch costs more than most ops between two products of a token. Two layers.
TEST(one_token_has_seven_launches_per_layer) {
  planned_t p = open_without_decode_kernel(FIXTURE("gpt_oss-mxfp4"));
  char *text = emit_one_token(&p);
  CHECK_INT(count_text(text, "::@mlx_token["), 3 * 2);  // q, k and v; o; router
  CHECK_INT(count_text(text, "::@mlx_append["), 2);
  CHECK_INT(count_text(text, "::@mlx_attend["), 2);
  CHECK_INT(count_text(text, "::@mlx_experts_gemv["), 2 * 2);
  CHECK_INT(count_text(text, "::@mlx_rmsnorm["), 1);  // the last one
  CHECK_INT(count_text(text, "stablehlo.add"), 0);    // biases and residuals
  mlx_free(text);
  close_fixture(&p);
}

// Two layers; the weights of this fixture are f32.
TEST(append_kernel_normalizes_the_heads_of_q_and_k) {
  planned_t p = open_fixture(FIXTURE("qwen3_moe"));
  char *text = emit_one_token(&p);
  CHECK_INT(count_text(text, "::@mlx_append["), 2);
  CHECK(!strstr(text, "q_norm = ") && !strstr(text, "k_norm = "));
  CHECK_INT(count_text(text, "::@mlx_rmsnorm["),
            2 + 1);  // before the experts, which are generic; the last one
  mlx_free(text);
  close_fixture(&p);
}

TEST_MAIN(CASE(matrices_of_experts_are_stored_as_tiles_one_after_the_other),
          CASE(gate_and_up_of_different_types_get_one_tile_format),
          CASE(experts_with_a_matrix_that_no_kernel_supports_are_floats_on_the_generic_path),
          CASE(quantized_experts_have_kernels_in_every_function),
          CASE(modules_report_routes_if_kernels_choose_the_experts_of_all_layers),
          CASE(one_token_has_seven_launches_per_layer), CASE(append_kernel_normalizes_the_heads_of_q_and_k))
