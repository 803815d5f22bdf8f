// GPTQ in act order: matrices stay quantized, at the size of the file. Products read their input in the order
// of the columns (models/import/order.c). packed_directory_test.c compares the CPU kernel with the
// dequantized model, packed_gpu_test.c the GPU kernels with the CPU kernel.
#include "base/cpu.h"
#include "compiler/emit.h"
#include "compiler/kernel_plan.h"
#include "compiler/plan.h"
#include "compiler/weights.h"
#include "graph/roles.h"
#include "tests/support/command.h"
#include "tests/support/compiled.h"
#include "tests/support/distance.h"
#include "tests/support/packed_subjects.h"

#define LAYERS 2  // of the dense subject
#define HIDDEN 256
#define MAX_NUMBERS 2048

static char root[64];

static packed_subject_t subject_of(int act_order) {
  return (packed_subject_t){
      {"gptq", MLX_PACKED_GPTQ, 4, 64, MLX_F16, false, act_order, false, NULL}, false, false};
}

typedef struct opened {
  folder_t folder;
  mlx_model_t *model;
  mlx_graph_t *graph;
} opened_t;

static opened_t open_subject(int act_order) {
  const packed_subject_t subject = subject_of(act_order);
  opened_t o;
  write_packed_subject(&subject, root, &o.folder, NULL);
  CHECK_OK(mlx_model_open(o.folder.path, &o.model));
  CHECK_OK(mlx_model_build_graph(o.model, 64, &o.graph));
  return o;
}

static void close_subject(opened_t *o) {
  mlx_graph_free(o->graph);
  mlx_model_close(o->model);
  end(&o->folder);
}

static size_t count_orders(const mlx_model_t *model) {
  size_t count = 0;
  for (size_t i = 0; i < model->weight_count; ++i) count += model->weights[i].is_order;
  return count;
}

static int count_nodes(const mlx_graph_t *graph, mlx_node_kind_t kind) {
  int count = 0;
  for (int id = 1; id <= (int)graph->count; ++id) count += mlx_graph_node(graph, id)->kind == kind;
  return count;
}

static size_t count_text(const char *text, const char *part) {
  size_t count = 0;
  for (; (text = strstr(text, part)); ++text) ++count;
  return count;
}

// Each layer permutes the inputs of q, k and v, of o, and of gate and up. The rows of gate and up are sorted
// for down.
TEST(products_with_the_same_input_and_order_share_a_permutation) {
  static const struct {
    int act_order, permutations;
    size_t orders;
  } cases[] = {{ACT_ORDER_NONE, 0, 0}, {ACT_ORDER, 3, 1}, {ACT_ORDER_OF_V, 4, 2}, {ACT_ORDER_UNEVEN, 0, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    opened_t o = open_subject(cases[i].act_order);
    CHECK_INT(count_nodes(o.graph, MLX_NODE_PERMUTE), LAYERS * cases[i].permutations);
    CHECK_INT(count_orders(o.model), cases[i].orders);
    for (size_t k = 0; k < o.model->weight_count; ++k) {
      const mlx_weight_t *weight = &o.model->weights[k];
      const bool feeds_down = strstr(weight->name, "gate_proj") || strstr(weight->name, "up_proj"),
                 is_down = strstr(weight->name, "down_proj") != NULL;
      CHECK_INT(weight->row_order != NULL, cases[i].orders && feeds_down);
      CHECK_INT(weight->packing.order != NULL, cases[i].orders && weight->packing.kind);
      CHECK_INT(weight->column_order != 0, cases[i].orders && weight->packing.kind && !is_down);
    }
    close_subject(&o);
  }
}

static uint64_t archive_bytes(const mlx_model_t *model, mlx_layout_t layout) {
  uint64_t *starts;
  CHECK_OK(mlx_alloc(model->weight_count, sizeof *starts, &starts));
  const uint64_t bytes =
      mlx_weights_layout(model, (mlx_storage_t){.as_stored = true, .layout = layout}, starts);
  mlx_free(starts);
  return bytes;
}

TEST(matrices_keep_the_size_of_their_codes) {
  static const mlx_layout_t layouts[] = {MLX_LAYOUT_QUANTIZED_PANELS, MLX_LAYOUT_TILES};
  opened_t plain = open_subject(ACT_ORDER_NONE), sorted = open_subject(ACT_ORDER),
           uneven = open_subject(ACT_ORDER_UNEVEN);
  for (int i = 0; i < 2; ++i) {
    const uint64_t bytes = archive_bytes(plain.model, layouts[i]);
    CHECK_INT(archive_bytes(sorted.model, layouts[i]), bytes + HIDDEN * sizeof(int32_t));
    CHECK(archive_bytes(uneven.model, layouts[i]) > 2 * bytes);  // expanded to f32
  }
  close_subject(&plain);
  close_subject(&sorted);
  close_subject(&uneven);
}

// With float weights the order of the file is kept, and the network is the usual one.
TEST(a_model_with_float_weights_is_not_permuted) {
  const packed_subject_t subject = subject_of(ACT_ORDER);
  folder_t packed, dequantized;
  write_packed_subject(&subject, root, &packed, &dequantized);
  mlx_compile_options_t options = {.weights = MLX_WEIGHTS_FLOAT, .dtype = MLX_F32, .context = 64};
  char *text, *expected;
  size_t length;
  CHECK_OK(mlx_compile_stablehlo(packed.path, &options, &text, &length));
  CHECK_OK(mlx_compile_stablehlo(dequantized.path, &options, &expected, &length));
  CHECK_TEXT(text, expected);
  mlx_free(text);
  options.weights = MLX_WEIGHTS_AUTO;
  CHECK_OK(mlx_compile_stablehlo(packed.path, &options, &text, &length));
  CHECK_CONTAINS(text, "_permuted = \"stablehlo.gather\"");
  mlx_free(text);
  mlx_free(expected);
  end(&packed);
  end(&dequantized);
}

// The logits after a prompt, and its embedding, which is the input of the head. Returns the number of both.
static size_t read_prompt(const char *folder, mlx_compile_options_t options, float out[MAX_NUMBERS]) {
  mlx_engine_t *engine = open_compiled(folder, &options, NULL, 2);
  const size_t vocab = (size_t)mlx_engine_info(engine).vocab, hidden = (size_t)mlx_engine_info(engine).hidden;
  mlx_session_t *session;
  int32_t prompt[24], next;
  CHECK(vocab + hidden <= MAX_NUMBERS);
  for (int i = 0; i < 24; ++i) prompt[i] = i * 37 % (int32_t)vocab;
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_OK(mlx_session_read(session, prompt, 24, &next));
  CHECK_OK(mlx_session_logits(session, out, vocab));
  CHECK_OK(mlx_session_embed(session, prompt, 24, out + vocab, hidden));
  mlx_session_free(session);
  mlx_engine_close(engine);
  return vocab + hidden;
}

static void check_same_numbers(const char *name, const folder_t *packed, mlx_compile_options_t options,
                               const folder_t *dequantized) {
  static float numbers[MAX_NUMBERS], expected[MAX_NUMBERS];
  const mlx_compile_options_t plain = {.target = "cpu", .context = 64, .kernels = MLX_KERNELS_OFF};
  const size_t count = read_prompt(packed->path, options, numbers);
  CHECK_INT(read_prompt(dequantized->path, plain, expected), count);
  const double error = distance(numbers, expected, count);
  fprintf(stderr, "  %s: logits and embedding within %.1e\n", name, error);
  CHECK(error < 2e-5);
}

TEST(the_generic_path_matches_the_dequantized_model) {
  const packed_subject_t subject = subject_of(ACT_ORDER_OF_V);
  folder_t packed, dequantized;
  write_packed_subject(&subject, root, &packed, &dequantized);
  check_same_numbers(
      "generic path", &packed,
      (mlx_compile_options_t){
          .target = "cpu", .context = 64, .weights = MLX_WEIGHTS_AUTO, .kernels = MLX_KERNELS_OFF},
      &dequantized);
  end(&packed);
  end(&dequantized);
}

// Only products read their input in another order: an embedding table, and a router, are expanded to f32. So
// are experts, each of which has its own order.
static void check_stored(const mlx_weight_t *weight) {
  static const mlx_layout_t layouts[] = {MLX_LAYOUT_QUANTIZED_PANELS, MLX_LAYOUT_TILES};
  const mlx_packing_t *packing = weight->part_packings ? weight->part_packings : &weight->packing;
  if (!packing->kind) return;
  const bool expanded = packing->columns > packing->group &&
                        (weight->part_packings || weight->roles & (MLX_ROLE_EMBEDDING | MLX_ROLE_ROUTER));
  CHECK(mlx_weight_is_quantized(weight));
  for (int i = 0; i < 2; ++i) {
    const mlx_stored_t stored = mlx_weight_stored(weight, (mlx_storage_t){.layout = layouts[i]});
    CHECK_INT(stored.kind, expanded ? MLX_STORED_FLOATS : MLX_STORED_CODES);
  }
}

// Rows are sorted in one tensor of gate and up (phi3), in an MLP without a gate (arcee), with biases (arcee,
// phi). Attention beside the MLP (phi), a mixture of experts with a shared one (qwen2_moe), and a quantized
// embedding and head, whose input the kernel also returns (all).
TEST(other_networks_match_their_dequantized_models) {
  static const struct {
    const char *fixture;
    int sorted_rows, permutations;  // matrices whose rows are sorted; nodes
    bool all;
  } cases[] = {
      {"phi3-short", 2, 6, false}, {"arcee", 4, 7, true}, {"phi", 4, 4, false}, {"qwen2_moe", 4, 6, false}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    const packed_kind_t kind = {"gptq",       MLX_PACKED_GPTQ, 4,     32,  MLX_F16,
                                cases[i].all, ACT_ORDER,       false, NULL};
    char path[128];
    mlx_model_t *model;
    folder_t packed, dequantized;
    snprintf(path, sizeof path, "%s/%s", root, cases[i].fixture);
    CHECK_OK(mlx_make_dirs(path, 0700));
    write_wide_model(cases[i].fixture, path);
    CHECK_OK(mlx_model_open(path, &model));
    CHECK(write_packed_model(&kind, path, model, &packed, &dequantized) > 0);
    mlx_model_close(model);
    CHECK_OK(mlx_copy_file(TOKENIZER, path_in(&packed, "tokenizer.json")));
    CHECK_OK(mlx_copy_file(TOKENIZER, path_in(&dequantized, "tokenizer.json")));
    mlx_graph_t *graph;
    CHECK_OK(mlx_model_open(packed.path, &model));
    CHECK_OK(mlx_model_build_graph(model, 64, &graph));
    int sorted_rows = 0;
    for (size_t k = 0; k < model->weight_count; ++k) {
      sorted_rows += model->weights[k].row_order != NULL;
      check_stored(&model->weights[k]);
    }
    CHECK_INT(sorted_rows, cases[i].sorted_rows);
    CHECK_INT(count_nodes(graph, MLX_NODE_PERMUTE), cases[i].permutations);
    mlx_graph_free(graph);
    mlx_model_close(model);
    check_same_numbers(cases[i].fixture, &packed,
                       (mlx_compile_options_t){.target = "cpu",
                                               .context = 64,
                                               .weights = MLX_WEIGHTS_QUANTIZED,
                                               .kernels = MLX_KERNELS_REQUIRED},
                       &dequantized);
    end(&packed);
    end(&dequantized);
  }
}

// Every norm stores its result in the order that its products need. Only the input of o is permuted by a
// launch of its own.
TEST(gpu_kernels_compute_every_node) {
  opened_t o = open_subject(ACT_ORDER);
  mlx_module_options_t options;
  mlx_kernels_t kernels = {.gpu = mlx_gpu_kind_find(90)};
  const char *missing;
  char *text;
  mlx_module_options_initialize(64, &options);
  options.form = MLX_FORM_IREE;
  options.as_stored = true;
  options.layout = MLX_LAYOUT_TILES;
  CHECK_OK(mlx_module_use_kernels(o.model, o.graph, &kernels, &options, &missing));
  CHECK(!missing && options.kernels == &kernels);
  mlx_module_options_set_steps((const mlx_step_size_t[]){{1, 1}, {64, 64}}, 2, &options);
  CHECK_OK(mlx_module_emit(o.model, o.graph, &options, &text, NULL));
  CHECK(!strstr(text, "stablehlo.gather") && !strstr(text, "stablehlo.dot_general"));
  CHECK_CONTAINS(text, "@burst(");  // the decode kernel
  CHECK_INT(count_text(text, "::@mlx_permute["), LAYERS);
  CHECK_INT(count_text(text, "::@mlx_rmsnorm["), 2 * LAYERS + 1);
  size_t ordered = 0;
  for (size_t i = 0; i < kernels.count; ++i)
    ordered += strstr(kernels.images[i].definitions, "ordered=1\n") != NULL;
  CHECK_INT(ordered, 1);
  mlx_free(text);
  mlx_kernels_clear(&kernels);
  close_subject(&o);
}

// The decode kernel reads the input of q, k and v once.
TEST(q_k_and_v_in_different_orders_decode_op_by_op) {
  static const int orders[] = {ACT_ORDER, ACT_ORDER_OF_V};
  for (int i = 0; i < 2; ++i) {
    opened_t o = open_subject(orders[i]);
    mlx_kernels_t kernels = {.gpu = mlx_gpu_kind_find(90)};
    mlx_module_options_t options;
    mlx_decode_plan_t plan;
    const char *missing;
    bool fits;
    mlx_module_options_initialize(64, &options);
    options.form = MLX_FORM_IREE;
    options.as_stored = true;
    options.layout = MLX_LAYOUT_TILES;
    CHECK_OK(mlx_module_use_kernels(o.model, o.graph, &kernels, &options, &missing));
    CHECK(!missing);
    CHECK_OK(mlx_decode_plan_make(o.model, o.graph, &options, &plan, &fits));
    CHECK_INT(fits, orders[i] == ACT_ORDER);
    mlx_kernels_clear(&kernels);
    close_subject(&o);
  }
}

// An order is no parameter of the model.
TEST(show_counts_parameters_and_sizes_without_the_orders) {
  const packed_subject_t subjects[] = {subject_of(ACT_ORDER_NONE), subject_of(ACT_ORDER)};
  char first[2][512];
  for (int i = 0; i < 2; ++i) {
    folder_t folder;
    command_t show;
    write_packed_subject(&subjects[i], root, &folder, NULL);
    RUN(&show, "show", folder.path);
    CHECK_INT(show.exit_code, 0);
    const char *line = strstr(show.out, "parameters");
    CHECK(line != NULL);
    snprintf(first[i], sizeof first[i], "%.*s", (int)strcspn(line, "\n"), line);
    CHECK_CONTAINS(show.out, " of weights as quantized");
    CHECK(!strstr(show.out, "I32"));
    command_free(&show);
    end(&folder);
  }
  CHECK_TEXT(first[0], first[1]);
}

int main(int argc, char **argv) {
  snprintf(root, sizeof root, "/tmp/mlxcel-act-order-XXXXXX");
  if (!mkdtemp(root)) return 1;
  const check_case_t cases[] = {
      CASE(products_with_the_same_input_and_order_share_a_permutation),
      CASE(matrices_keep_the_size_of_their_codes),
      CASE(a_model_with_float_weights_is_not_permuted),
      CASE(gpu_kernels_compute_every_node),
      CASE(q_k_and_v_in_different_orders_decode_op_by_op),
      CASE(show_counts_parameters_and_sizes_without_the_orders),
      CASE(the_generic_path_matches_the_dequantized_model),
      CASE(other_networks_match_their_dequantized_models),
  };
  const int failed = check_run(cases, sizeof cases / sizeof *cases, argc, argv);
  mlx_status_free(mlx_remove_tree(root));
  return failed;
}
