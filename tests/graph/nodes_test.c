// The op graph: its text form, the checks of its ops, and the roles of weights.
#include "graph/graph.h"

#include <dirent.h>

#include "graph/roles.h"
#include "models/model.h"
#include "tests/support/golden_text.h"
#include "tests/support/listed.h"
#include "tests/support/shuffle.h"

#define FIXTURE(name) MLXCEL_SOURCE_DIR "/tests/fixtures/" name
#define GOLDEN(name) MLXCEL_SOURCE_DIR "/tests/goldens/" name

static void check_graph(const char *fixture, int64_t context, const char *golden) {
  mlx_model_t *model;
  mlx_graph_t *graph;
  mlx_text_t text = {0};
  CHECK_OK(mlx_model_open(fixture, &model));
  CHECK_OK(mlx_model_build_graph(model, context, &graph));
  mlx_graph_print(graph, &text);
  CHECK_OK(mlx_text_finish(&text));
  check_golden_text(text.data, text.length, golden);
  mlx_text_clear(&text);
  mlx_graph_free(graph);
  mlx_model_close(model);
}

TEST(graph_of_tiny_llama_matches_golden) {
  check_graph(FIXTURE("tiny-llama"), 64, GOLDEN("tiny-llama.graph.txt"));
}

// Experts with biases, sinks, sliding windows, biases of projections.
TEST(graph_of_gpt_oss_matches_golden) { check_graph(FIXTURE("gpt_oss"), 64, GOLDEN("gpt_oss.graph.txt")); }

// A file's format does not change the network.
TEST(gguf_and_safetensors_give_the_same_graph) {
  check_graph(FIXTURE("tiny-llama.gguf"), 64, GOLDEN("tiny-llama.graph.txt"));
}

static void check_order(const char *fixture, const char *path) {
  mlx_model_t *model;
  mlx_graph_t *graph;
  mlx_text_t expected = {0};
  int changed = 0;
  CHECK_OK(mlx_model_open(path, &model));
  CHECK_OK(mlx_model_build_graph(model, 64, &graph));
  mlx_graph_print(graph, &expected);
  CHECK_OK(mlx_text_finish(&expected));
  for (uint64_t seed = 1; seed <= SHUFFLES; ++seed) {
    mlx_graph_t *shuffled = shuffle_graph(graph, seed);
    mlx_text_t before = {0}, after = {0};
    mlx_graph_print(shuffled, &before);
    CHECK_OK(mlx_graph_sort(shuffled));
    mlx_graph_print(shuffled, &after);
    CHECK_OK(mlx_text_finish(&before));
    CHECK_OK(mlx_text_finish(&after));
    if (strcmp(expected.data, after.data)) CHECK_FAIL("%s: shuffle %d has another order", fixture, (int)seed);
    changed += strcmp(before.data, after.data) != 0;
    mlx_text_clear(&before);
    mlx_text_clear(&after);
    mlx_graph_free(shuffled);
  }
  CHECK_INT(changed, SHUFFLES);
  mlx_text_clear(&expected);
  mlx_graph_free(graph);
  mlx_model_close(model);
}

TEST(independent_ops_of_every_fixture_give_the_same_graph_in_any_order) {
  DIR *folder = opendir(FIXTURE(""));
  int networks = 0;
  CHECK(folder);
  for (struct dirent *entry; (entry = readdir(folder));) {
    char path[512], config[600];
    snprintf(path, sizeof path, FIXTURE("%s"), entry->d_name);
    snprintf(config, sizeof config, "%s/config.json", path);
    if (!mlx_is_file(config)) continue;
    check_order(entry->d_name, path);
    ++networks;
  }
  closedir(folder);
  CHECK_INT(networks, listed_files("fixtures/", "/config.json"));
}

// ----------------------------------------------------------------------------------------------------------
// Checks

// "first" and "second" have their columns in the order "order", "wrong" in one of another length.
static const mlx_graph_weight_t weights[] = {
    {.name = "table", .rank = 2, .dims = {10, 8}},
    {.name = "square", .rank = 2, .dims = {8, 8}},
    {.name = "tall", .rank = 2, .dims = {16, 8}},
    {.name = "norm", .rank = 1, .dims = {8}},
    {.name = "odd", .rank = 2, .dims = {8, 6}},
    {.name = "router", .rank = 2, .dims = {4, 8}},
    {.name = "gate", .rank = 3, .dims = {4, 16, 8}},
    {.name = "down", .rank = 3, .dims = {4, 8, 16}},
    {.name = "order", .rank = 1, .dims = {8}, .dtype = MLX_I32},
    {.name = "first", .rank = 2, .dims = {8, 8}, .order = 9},
    {.name = "second", .rank = 2, .dims = {16, 8}, .order = 9},
    {.name = "long", .rank = 1, .dims = {16}, .dtype = MLX_I32},
    {.name = "wrong", .rank = 2, .dims = {8, 8}, .order = 12},
};

static mlx_graph_t *new_graph(void) {
  mlx_graph_t *graph;
  CHECK_OK(mlx_graph_create(weights, sizeof weights / sizeof *weights, 64, &graph));
  return graph;
}

static void check_refused(mlx_graph_t *graph, mlx_value_t logits, const char *message) {
  CHECK_INT(logits.id, 0);
  CHECK_ERROR(mlx_graph_finish(graph, logits), MLX_INTERNAL, message);
  mlx_graph_free(graph);
}

TEST(shape_errors_name_the_op_its_scope_and_both_shapes) {
  mlx_graph_t *g = new_graph();
  mlx_value_t x = mlx_op_embed(g, mlx_op_weight(g, "table"), mlx_graph_tokens(g));
  mlx_op_scope(g, "layer%d", 3);
  mlx_value_t q = mlx_op_linear(g, "q", x, mlx_op_weight(g, "odd"));
  check_refused(g, q,
                "op 'layer3.q' (linear): f32[M, 8] and f32[8, 6] do not fit: expected x [M, in] and weight "
                "[out, in]");
  g = new_graph();
  x = mlx_op_embed(g, mlx_op_weight(g, "table"), mlx_graph_tokens(g));
  mlx_value_t wide = mlx_op_linear(g, "wide", x, mlx_op_weight(g, "tall"));
  check_refused(g, mlx_op_add(g, "sum", x, wide),
                "op 'sum' (add): f32[M, 8] and f32[M, 16] do not fit: expected equal shapes [M, width]");
}

TEST(ops_on_rows_check_their_operands) {
  mlx_graph_t *g = new_graph();
  mlx_value_t x = mlx_op_embed(g, mlx_op_weight(g, "table"), mlx_graph_tokens(g));
  mlx_value_t wide = mlx_op_linear(g, "wide", x, mlx_op_weight(g, "tall"));
  check_refused(
      g, mlx_op_gain(g, "gain", wide, mlx_op_weight(g, "norm")),
      "op 'gain' (gain): f32[M, 16] and f32[8] do not fit: expected x [M, width] and weight [width]");
  g = new_graph();
  x = mlx_op_embed(g, mlx_op_weight(g, "table"), mlx_graph_tokens(g));
  wide = mlx_op_linear(g, "wide", x, mlx_op_weight(g, "tall"));
  check_refused(g, mlx_op_match(g, "like", x, wide, 1e-5),
                "op 'like' (match): f32[M, 8] and f32[M, 16] do not fit: expected equal shapes [M, width]");
}

TEST(dtype_errors_and_missing_weights_are_found) {
  mlx_graph_t *g = new_graph();
  mlx_value_t tokens = mlx_graph_tokens(g);
  check_refused(
      g, mlx_op_rmsnorm(g, "norm", tokens, mlx_op_weight(g, "norm"), 1e-5),
      "op 'norm' (rmsnorm): i32[M] and f32[8] do not fit: expected x [M, width] and weight [width]");
  g = new_graph();
  check_refused(g, mlx_op_embed(g, mlx_op_weight(g, "tabel"), mlx_graph_tokens(g)),
                "the network uses a weight 'tabel' that the model does not have");
}

// Attention of layer 1 with the keys of layer 0, whose two heads have 4 numbers. |kv_heads| and |head_dim|
// are those of layer 1. |depends|: its queries are the output of layer 0.
static mlx_value_t shared_attention(mlx_graph_t *g, int64_t kv_heads, int64_t head_dim, bool depends) {
  const mlx_attention_t first = {.heads = 2, .kv_heads = 2, .head_dim = 4, .scale = 1.0},
                        second = {.layer = 1,
                                  .heads = kv_heads,
                                  .kv_heads = kv_heads,
                                  .head_dim = head_dim,
                                  .scale = 1.0,
                                  .shared = true};
  mlx_value_t x = mlx_op_embed(g, mlx_op_weight(g, "table"), mlx_graph_tokens(g));
  mlx_value_t y = mlx_op_attention(g, &first, x, x, x);
  return mlx_op_attention(g, &second, depends ? y : x, MLX_NONE, MLX_NONE);
}

TEST(a_layer_shares_the_keys_of_an_earlier_layer_with_the_same_heads) {
  mlx_graph_t *g = new_graph();
  mlx_value_t h = mlx_graph_wanted(g, shared_attention(g, 2, 4, true));
  CHECK_OK(mlx_graph_finish(g, mlx_op_linear(g, "logits", h, mlx_op_weight(g, "square"))));
  CHECK_INT(mlx_graph_kv_numbers(g), 16);  // of one layer
  mlx_graph_free(g);
  g = new_graph();
  check_refused(g, shared_attention(g, 1, 8, true), "expected an earlier layer with the same KV heads");
  g = new_graph();
  h = mlx_graph_wanted(g, shared_attention(g, 2, 4, false));
  CHECK_ERROR(mlx_graph_finish(g, mlx_op_linear(g, "logits", h, mlx_op_weight(g, "square"))), MLX_INTERNAL,
              "attention of layer 1 reads the keys of layer 0 before they exist");
  mlx_graph_free(g);
}

// The rows of wanted tokens and those of all tokens are different dimensions.
TEST(rows_of_tokens_and_of_wanted_tokens_do_not_mix) {
  mlx_graph_t *g = new_graph();
  mlx_value_t x = mlx_op_embed(g, mlx_op_weight(g, "table"), mlx_graph_tokens(g));
  mlx_value_t wanted = mlx_graph_wanted(g, x);
  check_refused(g, mlx_op_add(g, "sum", x, wanted),
                "op 'sum' (add): f32[M, 8] and f32[W, 8] do not fit: expected equal shapes [M, width]");
}

TEST(products_with_an_order_of_columns_read_their_input_in_that_order) {
  mlx_graph_t *g = new_graph();
  mlx_value_t x = mlx_op_embed(g, mlx_op_weight(g, "table"), mlx_graph_tokens(g));
  const mlx_value_t first = mlx_op_linear(g, "first", x, mlx_op_weight(g, "first")),
                    second = mlx_op_linear(g, "second", x, mlx_op_weight(g, "second")),
                    third = mlx_op_linear(g, "third", first, mlx_op_weight(g, "first")),
                    plain = mlx_op_linear(g, "plain", x, mlx_op_weight(g, "square"));
  const int permuted = mlx_graph_node(g, first.id)->operands[0];
  const mlx_node_t *node = mlx_graph_node(g, permuted);
  CHECK_INT(node->kind, MLX_NODE_PERMUTE);
  CHECK_INT(node->operands[0], x.id);
  CHECK_TEXT(mlx_graph_operand(g, node, 1)->weight_name, "order");
  CHECK_INT(mlx_graph_node(g, second.id)->operands[0], permuted);  // shared
  const int other = mlx_graph_node(g, third.id)->operands[0];
  CHECK(other != permuted && mlx_graph_node(g, other)->operands[0] == first.id);
  CHECK_INT(mlx_graph_node(g, plain.id)->operands[0], x.id);
  mlx_graph_free(g);
  g = new_graph();
  x = mlx_op_embed(g, mlx_op_weight(g, "table"), mlx_graph_tokens(g));
  check_refused(g, mlx_op_linear(g, "q", x, mlx_op_weight(g, "wrong")),
                "op 'embedded_permuted' (permute): f32[M, 8] and f32[8, 8] do not fit: expected an order of "
                "the columns of the weight");
}

TEST(nodes_that_the_logits_do_not_need_are_left_out) {
  mlx_graph_t *g = new_graph();
  const mlx_value_t table = mlx_op_weight(g, "table"), x = mlx_op_embed(g, table, mlx_graph_tokens(g));
  mlx_op_linear(g, "unused", x, mlx_op_weight(g, "square"));
  CHECK_OK(mlx_graph_finish(g, mlx_op_linear(g, "logits", mlx_graph_wanted(g, x), table)));
  CHECK_INT(g->count, g->weight_count + 5);  // tokens, embedded, wanted, product, logits
  for (int id = 1; id <= (int)g->count; ++id) {
    const mlx_node_t *node = mlx_graph_node(g, id);
    CHECK(strcmp(node->name, "unused"));
    if (node->kind == MLX_NODE_EMBED) CHECK_INT(node->uses, 1);
  }
  mlx_graph_free(g);
}

// ----------------------------------------------------------------------------------------------------------
// Roles

TEST(roles_come_from_use_also_through_bias_sigmoid_and_softcap) {
  mlx_graph_t *g = new_graph();
  unsigned roles[sizeof weights / sizeof *weights];
  mlx_value_t table = mlx_op_weight(g, "table"), x = mlx_op_embed(g, table, mlx_graph_tokens(g));
  x = mlx_op_rmsnorm(g, "norm", x, mlx_op_weight(g, "norm"), 1e-5);
  x = mlx_op_linear(g, "projection", x, mlx_op_weight(g, "square"));
  mlx_value_t scores = mlx_op_sigmoid(g, "scores", mlx_op_linear(g, "router", x, mlx_op_weight(g, "router")));
  const mlx_experts_t experts = {.used = 2};
  mlx_value_t gate = mlx_op_weight(g, "gate");
  x = mlx_op_experts(g, "experts", &experts, x, scores, gate, gate, mlx_op_weight(g, "down"));
  mlx_value_t logits = mlx_op_linear(g, "logits", mlx_graph_wanted(g, x), table);
  CHECK_OK(mlx_graph_finish(g, mlx_op_softcap(g, "capped", logits, 30.0)));
  mlx_graph_roles(g, roles);
  const unsigned expected[] = {MLX_ROLE_EMBEDDING | MLX_ROLE_HEAD,
                               MLX_ROLE_PROJECTION,
                               0,
                               MLX_ROLE_VECTOR,
                               0,
                               MLX_ROLE_ROUTER,
                               MLX_ROLE_EXPERT,
                               MLX_ROLE_EXPERT,
                               0,
                               0,
                               0,
                               0,
                               0};
  for (size_t i = 0; i < sizeof roles / sizeof *roles; ++i) CHECK_INT(roles[i], expected[i]);
  mlx_graph_free(g);
}

static void check_role(const char *fixture, const char *name, unsigned roles) {
  mlx_model_t *model;
  size_t found = 0;
  CHECK_OK(mlx_model_open(fixture, &model));
  for (size_t i = 0; i < model->weight_count; ++i) {
    if (strcmp(model->weights[i].name, name)) continue;
    ++found;
    if (model->weights[i].roles != roles)
      CHECK_FAIL("%s of %s has roles %u, not %u", name, fixture, model->weights[i].roles, roles);
  }
  CHECK_INT(found, 1);
  mlx_model_close(model);
}

// Their names differ from Llama's.
TEST(embeddings_heads_and_routers_of_other_names_are_found) {
  check_role(FIXTURE("gpt2"), "transformer.wte.weight", MLX_ROLE_EMBEDDING | MLX_ROLE_HEAD);
  check_role(FIXTURE("gpt2"), "transformer.wpe.weight", MLX_ROLE_POSITIONS);
  check_role(FIXTURE("gpt_neox"), "gpt_neox.embed_in.weight", MLX_ROLE_EMBEDDING);
  check_role(FIXTURE("gpt_neox"), "embed_out.weight", MLX_ROLE_HEAD);
  check_role(FIXTURE("gpt_oss"), "model.layers.0.mlp.router.weight", MLX_ROLE_ROUTER);
  check_role(FIXTURE("gpt_oss"), "model.layers.0.mlp.experts.gate.bias", MLX_ROLE_VECTOR);
  check_role(FIXTURE("qwen2_moe"), "model.layers.0.mlp.gate.weight", MLX_ROLE_ROUTER);
  check_role(FIXTURE("qwen2_moe"), "model.layers.0.mlp.shared_expert_gate.weight", MLX_ROLE_PROJECTION);
}

TEST_MAIN(CASE(graph_of_tiny_llama_matches_golden), CASE(graph_of_gpt_oss_matches_golden),
          CASE(gguf_and_safetensors_give_the_same_graph),
          CASE(independent_ops_of_every_fixture_give_the_same_graph_in_any_order),
          CASE(shape_errors_name_the_op_its_scope_and_both_shapes), CASE(ops_on_rows_check_their_operands),
          CASE(dtype_errors_and_missing_weights_are_found),
          CASE(a_layer_shares_the_keys_of_an_earlier_layer_with_the_same_heads),
          CASE(rows_of_tokens_and_of_wanted_tokens_do_not_mix),
          CASE(products_with_an_order_of_columns_read_their_input_in_that_order),
          CASE(nodes_that_the_logits_do_not_need_are_left_out),
          CASE(roles_come_from_use_also_through_bias_sigmoid_and_softcap),
          CASE(embeddings_heads_and_routers_of_other_names_are_found))
