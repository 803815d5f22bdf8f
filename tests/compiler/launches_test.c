// The list of launches of a function: its text for some fixtures, and that it does not depend on the order in
// which an architecture calls independent ops. Needs no GPU and no compiler.
#include "compiler/launches.h"

#include <sys/stat.h>
#include <unistd.h>

#include "compiler/cuda_launch.h"
#include "compiler/kernel_plan.h"
#include "tests/support/compile_jobs.h"
#include "tests/support/golden_text.h"
#include "tests/support/listed.h"
#include "tests/support/random_llama.h"
#include "tests/support/shuffle.h"
#include "tests/support/wide_fixtures.h"

#define TOKENS 64

static char root[64];

typedef struct listed {
  mlx_model_t *model;
  mlx_graph_t *graph;
  mlx_kernels_t kernels;
  mlx_module_options_t options;
  mlx_decode_plan_t plan;
  bool fits;
} listed_t;

// Opens the model at |path| in bf16, for an H200.
static void open_model(const char *path, listed_t *l) {
  const char *missing;
  CHECK_OK(mlx_model_open(path, &l->model));
  CHECK_OK(mlx_model_build_graph(l->model, TOKENS, &l->graph));
  mlx_module_options_initialize(TOKENS, &l->options);
  l->options.form = MLX_FORM_IREE;
  l->options.dtype = MLX_BF16;
  l->options.kv = MLX_F32;
  l->options.window_pages = mlx_graph_mixes_windows(l->graph);
  l->kernels = (mlx_kernels_t){.gpu = mlx_gpu_kind_find(90)};
  CHECK_OK(mlx_module_use_kernels(l->model, l->graph, &l->kernels, &l->options, &missing));
  CHECK_OK(mlx_decode_plan_make(l->model, l->graph, &l->options, &l->plan, &l->fits));
}

static void open_wide(const char *name, listed_t *l) {
  char folder[160];
  snprintf(folder, sizeof folder, "%s/%s", root, name);
  if (!mkdir(folder, 0755)) write_wide_model(name, folder);
  open_model(folder, l);
}

static void close_model(listed_t *l) {
  mlx_kernels_clear(&l->kernels);
  mlx_graph_free(l->graph);
  mlx_model_close(l->model);
}

// Appends the launches of the function for |tokens| tokens. |plan| may be NULL.
static void print_function(const listed_t *l, const mlx_graph_t *graph, int64_t tokens,
                           const mlx_decode_plan_t *plan, mlx_text_t *out) {
  mlx_launches_t launches;
  const mlx_step_size_t size = {.tokens = tokens, .wanted = tokens < 256 ? tokens : 256};
  CHECK_OK(mlx_launches_make(l->model, graph, &l->options, size, plan, &launches));
  mlx_text_printf(out, "---- step_%lld%s\n", (long long)tokens, plan ? "" : ", op by op");
  mlx_launches_print(&launches, out);
  mlx_launches_clear(&launches);
}

static void print_launches(const listed_t *l, mlx_graph_t *graph, mlx_text_t *out) {
  static const int64_t sizes[] = {1, MLX_FEW_SEQUENCES, 16, 512};
  mlx_decode_plan_t plan;
  bool fits;
  CHECK_OK(mlx_decode_plan_make(l->model, graph, &l->options, &plan, &fits));
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i)
    print_function(l, graph, sizes[i], fits && i ? &plan : NULL, out);
  mlx_launches_t launches;
  CHECK_OK(mlx_cpu_launches_make(graph, &launches));
  mlx_text_puts(out, "---- CPU program\n");
  mlx_launches_print(&launches, out);
  mlx_launches_clear(&launches);
  CHECK_OK(mlx_text_finish(out));
  CHECK(!strstr(out->data, "null"));  // every kind has a name
}

static void check_golden(const listed_t *l, const char *name) {
  mlx_text_t text = {0};
  char golden[256];
  snprintf(golden, sizeof golden, GOLDENS "launches/%s.txt", name);
  print_launches(l, l->graph, &text);
  check_golden_text(text.data, text.length, golden);
  mlx_text_clear(&text);
}

// Biases; norms after attention and MLP; two kinds of heads, keys as values, and shared keys; per-layer
// embeddings; experts and sinks; a shared expert; LayerNorm beside an MLP without a gate; latent attention,
// also with queries that grow.
// MLXCEL_UPDATE_GOLDENS=1 writes the goldens.
TEST(launches_match_their_goldens) {
  static const char *const names[] = {"qwen2",     "gemma3", "gemma4",      "gemma4-embeddings", "gpt_oss",
                                      "qwen2_moe", "phi",    "deepseek_v3", "mistral4"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    listed_t l;
    open_wide(names[i], &l);
    check_golden(&l, names[i]);
    close_model(&l);
  }
}

// A Llama with sizes that the kernel for few tokens takes: it computes all but attention.
TEST(launches_of_few_tokens_match_their_golden) {
  static const random_llama_t shape = {256, 512, 4, 2, 64, 2, 320, false, 10000};
  listed_t l;
  open_model(random_llama_write(&shape, root, "few"), &l);
  CHECK(l.fits && l.plan.few.slices);
  check_golden(&l, "few");
  close_model(&l);
}

// A convolution beside attention; the gated delta rule beside attention with a gate; the selective scan and
// attention in one layer, and in different layers with a mixture of experts.
TEST(launches_of_recurrent_layers_match_their_goldens) {
  static const char *const names[] = {"lfm2", "qwen3_5", "falcon_h1", "granitemoehybrid"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    char path[256];
    listed_t l;
    snprintf(path, sizeof path, FIXTURES "%s", names[i]);
    open_model(path, &l);
    CHECK_INT(l.fits, i < 2);  // the decode kernel has no selective scan
    check_golden(&l, names[i]);
    close_model(&l);
  }
}

// |l| is the model |name|, which is closed.
static void check_shuffled(const char *name, listed_t *l) {
  mlx_text_t expected = {0};
  print_launches(l, l->graph, &expected);
  for (uint64_t seed = 1; seed <= SHUFFLES; ++seed) {
    mlx_graph_t *shuffled = shuffle_graph(l->graph, seed);
    mlx_text_t text = {0};
    CHECK_OK(mlx_graph_sort(shuffled));
    print_launches(l, shuffled, &text);
    if (strcmp(text.data, expected.data)) CHECK_FAIL("%s: shuffle %d has other launches", name, (int)seed);
    mlx_text_clear(&text);
    mlx_graph_free(shuffled);
  }
  mlx_text_clear(&expected);
  close_model(l);
}

typedef struct folder {
  const char *name;  // "" or "NAME/", below fixtures
  size_t count;      // models found
} folder_t;

static mlx_status_t shuffle_fixture(void *user, const char *name) {
  folder_t *folder = user;
  char path[256], config[300];
  listed_t l;
  snprintf(path, sizeof path, FIXTURES "%s%s", folder->name, name);
  snprintf(config, sizeof config, "%s/config.json", path);
  if (!mlx_is_file(config)) return NULL;
  open_model(path, &l);
  check_shuffled(path, &l);
  ++folder->count;
  return NULL;
}

static mlx_status_t shuffle_wide(void *user, const char *file) {
  char name[64];
  listed_t l;
  if (!wide_name(file, name)) return NULL;
  open_wide(name, &l);
  check_shuffled(name, &l);
  ++*(size_t *)user;
  return NULL;
}

TEST(launches_do_not_depend_on_the_order_in_which_independent_ops_are_called) {
  static const char *const names[] = {"", "classifiers/", "embedders/", "encoders/", "gguf/", "hybrid/"};
  size_t wide = 0;
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    char path[128];
    folder_t folder = {.name = names[i]};
    snprintf(path, sizeof path, FIXTURES "%s", names[i]);
    CHECK_OK(mlx_list_dir(path, shuffle_fixture, &folder));
    snprintf(path, sizeof path, "fixtures/%s", names[i]);
    check_compared(folder.count, listed_files(path, "/config.json"));
  }
  CHECK_OK(mlx_list_dir(WIDE_FIXTURES, shuffle_wide, &wide));
  check_compared(wide, listed_files("fixtures/wide/", ".json"));
}

// Every node is computed, inputs are computed before they are read, and an output is read by another launch.
static void check_list(const mlx_launches_t *launches) {
  for (int id = 1; id <= (int)launches->graph->count; ++id)
    CHECK((launches->first_of[id - 1] < 0) == mlx_node_is_input(mlx_graph_node(launches->graph, id)->kind));
  for (size_t i = 0; i < launches->count; ++i) {
    const mlx_launch_t *launch = &launches->list[i];
    const bool split = launch->kind == MLX_LAUNCH_SPLIT || launch->kind == MLX_LAUNCH_COMPLETE;
    if (split)  // it comes before the launch that has the node
      CHECK(launch->node == launch[1].node && launch[1].split == launch->split);
    else
      CHECK(launch->nodes.count && mlx_launch_computes(launch, launch->node));
    for (int k = 0; k < launch->inputs.count; ++k) {
      CHECK(launches->first_of[launch->inputs.ids[k] - 1] < (int)i);
      CHECK(!mlx_launch_computes(launch, launch->inputs.ids[k]));
    }
    CHECK(launch->outputs.count || split);
    CHECK((launch->kind == MLX_LAUNCH_STABLEHLO) == !strcmp(mlx_launch_kernel_name(launch), "stablehlo"));
    if (launch->kind == MLX_LAUNCH_STABLEHLO) CHECK_INT(launch->nodes.count, 1);
  }
}

TEST(every_node_is_in_a_launch_after_its_inputs) {
  static const int64_t sizes[] = {1, MLX_FEW_SEQUENCES, 16, 64, 512};
  static const char *const names[] = {"llama-llama3", "gpt_oss", "olmo2", "gpt_neox"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    listed_t l;
    open_wide(names[i], &l);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; ++k) {
      mlx_launches_t launches;
      const mlx_step_size_t size = {sizes[k], sizes[k]};
      CHECK_OK(mlx_launches_make(l.model, l.graph, &l.options, size, l.fits ? &l.plan : NULL, &launches));
      check_list(&launches);
      if (l.fits && sizes[k] == 1) CHECK_INT(launches.count, 1);
      mlx_launches_clear(&launches);
    }
    mlx_launches_t program;
    CHECK_OK(mlx_cpu_launches_make(l.graph, &program));
    check_list(&program);
    mlx_launches_clear(&program);
    close_model(&l);
  }
}

// With --dtype bf16, IREE computes norms and additions.
TEST(a_node_that_no_kernel_computes_is_a_launch_of_its_own) {
  listed_t l;
  mlx_text_t text = {0};
  open_wide("llama-llama3", &l);
  l.options.narrow = true;
  print_function(&l, l.graph, 16, NULL, &text);
  CHECK_OK(mlx_text_finish(&text));
  CHECK_CONTAINS(text.data, "\nstablehlo op: layer0.attn_in = layer0.attn_in <- ");
  CHECK_CONTAINS(text.data, "\nlinear product: layer0.q = layer0.q <- ");
  mlx_text_clear(&text);
  close_model(&l);
}

static void collect(void *user, mlx_report_kind_t kind, const char *text) {
  if (kind == MLX_REPORT_NOTE) mlx_text_printf(user, "%s\n", text);
}

TEST(verbose_notes_say_which_node_the_decode_kernel_does_not_support_and_list_the_launches) {
  mlx_text_t notes = {0};
  const mlx_report_t report = {.emit = collect, .user = &notes};
  const mlx_compile_options_t options = {
      .target = "cuda:sm_90", .dtype = MLX_BF16, .context = TOKENS, .report = &report};
  mlx_compile_job_t job;
  begin_job(FIXTURES "tiny-llama", &options, &job);
  for (size_t i = 0; i < job.graph->count; ++i)
    if (!strcmp(job.graph->nodes[i].scope, "layer1") && !strcmp(job.graph->nodes[i].name, "mlp_in"))
      job.graph->nodes[i].eps = 0.5;
  CHECK_OK(mlx_job_explain_ops(&job));
  CHECK_OK(mlx_text_finish(&notes));
  CHECK_CONTAINS(notes.data,
                 "decode kernel: not used: layer1.mlp_in has another value than the first layer\n");
  CHECK_CONTAINS(notes.data, "launches: step_1: 1 rows embed: embedded\n");
  mlx_text_clear(&notes);
  end_job(&job);
}

// The router, the shared expert and the experts of a layer are three launches, each with the norm before
// them: it is one op, whose weights three launches read.
TEST(cost_of_an_op_is_what_the_launches_of_a_decode_step_read) {
  const mlx_compile_options_t options = {.target = "cuda:sm_90", .weights = MLX_WEIGHTS_AUTO};
  char folder[160];
  mlx_compile_job_t job;
  mlx_variant_t variant = {0};
  const mlx_variant_op_t *norms = NULL;
  snprintf(folder, sizeof folder, "%s/qwen2_moe", root);
  if (!mkdir(folder, 0755)) write_wide_model("qwen2_moe", folder);
  begin_job(folder, &options, &job);
  int64_t width = 0, shared = 0;  // numbers of a norm; norms that three launches compute
  for (size_t i = 0; i < job.graph->count; ++i) {
    mlx_node_t *node = &job.graph->nodes[i];
    if (strcmp(node->name, "mlp_in")) continue;
    width = node->dims[1];
    if (!shared++) node->eps = 0.5;  // the decode kernel does not compute this network
  }
  CHECK_OK(mlx_job_describe_ops(&job, &variant));
  for (size_t i = 0; i < variant.op_count; ++i) {
    if (strcmp(variant.ops[i].op, "rmsnorm") || strcmp(variant.ops[i].decode, "packed")) continue;
    norms = &variant.ops[i];
  }
  CHECK(norms && shared);
  CHECK_INT(norms->bytes, (norms->count + 2 * shared) * width * 4);
  end_job(&job);
}

static int64_t bytes_of_step(const listed_t *l, const mlx_module_options_t *options) {
  mlx_launches_t launches;
  int64_t bytes;
  CHECK_OK(mlx_launches_make(l->model, l->graph, options, (mlx_step_size_t){512, 256}, NULL, &launches));
  CHECK_OK(mlx_launches_bytes(&launches, options, &bytes));
  mlx_launches_clear(&launches);
  return bytes;
}

// The product with down of 512 tokens: x and the residual, 512 x 256 in f32; the parts of gate and up, 512 x
// 512; two partial sums of x. Without kernels, gate, up and their product are f32.
TEST(memory_of_a_step_is_that_of_the_values_of_its_launches) {
  static const random_llama_t shape = {256, 512, 4, 2, 64, 2, 320, false, 10000};
  listed_t l;
  open_model(random_llama_write(&shape, root, "memory"), &l);
  CHECK_INT(bytes_of_step(&l, &l.options),
            512 * (2 * 256 * 4 + 2 * 256 * 4) + mlx_quantized_parts_bytes(512, 512));
  mlx_module_options_t generic = l.options;
  generic.kernels = NULL;
  CHECK_INT(bytes_of_step(&l, &generic), 512 * (256 * 4 + 3 * 512 * 4));
  close_model(&l);
}

// Rows of 512 tokens, for each of the experts that a token uses.
TEST(memory_of_a_step_has_the_rows_of_experts) {
  listed_t l;
  open_wide("gpt_oss", &l);
  const mlx_node_t *experts = NULL;
  for (size_t i = 0; i < l.graph->count; ++i)
    if (l.graph->nodes[i].kind == MLX_NODE_EXPERTS) experts = &l.graph->nodes[i];
  CHECK(experts && bytes_of_step(&l, &l.options) > 512 * experts->experts.used * experts->dims[1] * 10);
  close_model(&l);
}

int main(int argc, char **argv) {
  static const check_case_t cases[] = {
      CASE(launches_match_their_goldens),
      CASE(launches_of_few_tokens_match_their_golden),
      CASE(launches_of_recurrent_layers_match_their_goldens),
      CASE(launches_do_not_depend_on_the_order_in_which_independent_ops_are_called),
      CASE(every_node_is_in_a_launch_after_its_inputs),
      CASE(a_node_that_no_kernel_computes_is_a_launch_of_its_own),
      CASE(verbose_notes_say_which_node_the_decode_kernel_does_not_support_and_list_the_launches),
      CASE(cost_of_an_op_is_what_the_launches_of_a_decode_step_read),
      CASE(memory_of_a_step_is_that_of_the_values_of_its_launches),
      CASE(memory_of_a_step_has_the_rows_of_experts),
  };
  strcpy(root, "/tmp/mlxcel-launches-XXXXXX");
  if (!mkdtemp(root)) return 1;
  const int failed = check_run(cases, sizeof cases / sizeof *cases, argc, argv);
  mlx_status_free(mlx_remove_tree(root));
  return failed;
}
