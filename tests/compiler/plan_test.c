// Which networks the CUDA decode kernel computes as a whole, and the configuration that describes them to it.
// Needs no GPU and no compiler.
#include "compiler/plan.h"

#include <sys/stat.h>
#include <unistd.h>

#include "compiler/emit.h"
#include "compiler/kernel_plan.h"
#include "tests/support/packed_model.h"
#include "tests/support/quick_nvrtc.h"
#include "tests/support/random_gguf.h"
#include "tests/support/shuffle.h"
#include "tests/support/wide_fixtures.h"

#define FIXTURE(name) MLXCEL_SOURCE_DIR "/tests/fixtures/" name
#define TOKENS 64

static char root[64];

typedef struct planned {
  mlx_model_t *model;
  mlx_graph_t *graph;
  mlx_kernels_t kernels;
  mlx_module_options_t options;
  mlx_decode_plan_t plan;
  bool fits;
} planned_t;

// Plans the network at |path| for |sm|. |quantized|: with its quantized weights, or |quantize|; else all
// matrices are bf16.
static void plan_layout(const char *path, int sm, mlx_quantize_t quantize, bool quantized, planned_t *p) {
  const char *missing;
  CHECK_OK(mlx_model_open(path, &p->model));
  CHECK_OK(mlx_model_build_graph(p->model, TOKENS, &p->graph));
  mlx_module_options_initialize(TOKENS, &p->options);
  p->options.form = MLX_FORM_IREE;
  p->options.dtype = quantized ? MLX_F32 : MLX_BF16;
  p->options.as_stored = quantized;
  p->options.quantize = quantize;
  if (quantized) p->options.layout = MLX_LAYOUT_TILES;
  p->options.kv = MLX_F32;
  p->kernels = (mlx_kernels_t){.gpu = mlx_gpu_kind_find(sm)};
  CHECK_OK(mlx_module_use_kernels(p->model, p->graph, &p->kernels, &p->options, &missing));
  CHECK(p->options.kernels == &p->kernels);
  CHECK_OK(mlx_decode_plan_make(p->model, p->graph, &p->options, &p->plan, &p->fits));
}

// The same; a GGUF file is quantized.
static void plan_network(const char *path, int sm, mlx_quantize_t quantize, planned_t *p) {
  plan_layout(path, sm, quantize, quantize || strstr(path, ".gguf"), p);
}

static void planned_free(planned_t *p) {
  mlx_kernels_clear(&p->kernels);
  mlx_graph_free(p->graph);
  mlx_model_close(p->model);
}

// The configuration of the decode kernel; valid until planned_free.
static const char *decode_definitions(planned_t *p) {
  char *text;
  CHECK_OK(mlx_module_emit(p->model, p->graph, &p->options, &text, NULL));
  mlx_free(text);
  for (size_t i = 0; i < p->kernels.count; ++i) {
    if (p->kernels.images[i].kind == MLX_KERNEL_DECODE) return p->kernels.images[i].definitions;
  }
  CHECK_FAIL("the module has no decode kernel");
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Models in sparse files: nothing reads their weights

// Writes Llama's config for the architecture |type|, which has the same fields.
static void write_config(const random_llama_t *shape, const char *type, const char *path) {
  static const char llama[] = "\"model_type\":\"llama\"";
  char *config;
  mlx_text_t text = {0};
  random_write_config(shape, path);
  CHECK_OK(mlx_read_file(path, 1 << 16, &config, NULL));
  const char *at = strstr(config, llama);
  CHECK(at);
  mlx_text_printf(&text, "%.*s\"model_type\":\"%s\",\"hidden_act\":\"silu\"%s", (int)(at - config), config,
                  type, at + strlen(llama));
  CHECK_OK(mlx_text_finish(&text));
  CHECK_OK(mlx_write_file(path, text.data, text.length));
  mlx_text_clear(&text);
  mlx_free(config);
}

// A model with Llama's tensors except those whose names contain |without|.
static const char *write_sparse(const random_llama_t *shape, const char *type, const char *without,
                                const char *name) {
  static random_tensor_t tensors[RANDOM_LLAMA_TENSORS];
  static char folder[80];
  char path[128];
  mlx_writer_t writer;
  snprintf(folder, sizeof folder, "%s/%s", root, name);
  if (mlx_is_dir(folder)) return folder;
  CHECK_OK(mlx_make_dirs(folder, 0700));
  snprintf(path, sizeof path, "%s/config.json", folder);
  write_config(shape, type, path);
  snprintf(path, sizeof path, "%s/model.safetensors", folder);
  random_llama_dtype = "BF16";
  const int all = random_llama_tensors(shape, tensors);
  int count = 0;
  for (int i = 0; i < all; ++i)
    if (!strstr(tensors[i].name, without)) tensors[count++] = tensors[i];
  uint64_t bytes = 0;
  struct stat file;
  for (int i = 0; i < count; ++i) bytes += 2 * random_elements(&tensors[i]);
  CHECK_OK(mlx_writer_open(path, &writer));
  random_write_header(&writer, tensors, count);
  CHECK_OK(mlx_writer_close(&writer));
  CHECK(!stat(path, &file) && !truncate(path, file.st_size + (off_t)bytes));
  return folder;
}

// One layer of an 8B model.
static const char *write_8b(void) {
  static const random_llama_t shape = {4096, 14336, 32, 8, 128, 1, 128256, false, 500000};
  return write_sparse(&shape, "llama", "-", "8b");
}

// ----------------------------------------------------------------------------------------------------------
// Forms

// Fields of the configuration that a network of Llama's form does not set.
static const char *const form_fields[] = {
    "q_bias={",
    "k_bias={",
    "v_bias={",
    "o_bias={",
    "gate_bias={",
    "up_bias={",
    "down_bias={",
    "q_norm={",
    "k_norm={",
    "post_attn_norm={",
    "act=",
    "embed_scale=",
    "logit_scale=",
    "softcap=",
    "residual_scale=",
    "window=",
    "ropes=",
    "rope_dims=",
    "rope_layers:",
    "rope_adjacent=",
    "rope_scales:",
    "qk_norm_after_rope=",
    "qk_norm_whole=",
    "query_grow_beta=",
    "query_grow_period=",
    "experts=",
    "router_bias={",
    "limit=",
    "sinks={",
    "layer_norms=",
    "attn_norm_bias={",
    "parallel=",
    "head_bias={",
    "positions={",
    "qkv_clip=",
    "qkv_late_clip=",
    "qk_layer_norm=",
    "shared_ffn=",
    "attention_layers=",
    "gated_heads=",
    "filter_taps=",
    "filter_bias={",
    "recurrent_in={",
    "value_heads=",
    "recurrent_layers:",
};

typedef struct form_case {
  const char *fixture;
  const char *fields[16];  // the fixture sets these of |form_fields|
} form_case_t;

// The decode kernel takes the network with the same definitions if its independent nodes are in another
// order.
static void check_shuffled(planned_t *p, const char *fixture) {
  mlx_graph_t *graph = p->graph;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    int decode = 0;
    p->graph = shuffle_graph(graph, seed);
    CHECK_OK(mlx_decode_plan_make(p->model, p->graph, &p->options, &p->plan, &p->fits));
    if (!p->fits)
      CHECK_FAIL("%s, shuffled: %s: %s", fixture,
                 p->plan.misfit.node ? mlx_graph_node(p->graph, p->plan.misfit.node)->name : "",
                 p->plan.misfit.why);
    decode_definitions(p);
    for (size_t i = 0; i < p->kernels.count; ++i) decode += p->kernels.images[i].kind == MLX_KERNEL_DECODE;
    CHECK_INT(decode, 1);  // equal requests share an image
    mlx_graph_free(p->graph);
  }
  p->graph = graph;
}

static void check_form(const form_case_t *form, const char *path) {
  planned_t p;
  plan_network(path, 90, MLX_QUANTIZE_NONE, &p);
  if (!p.fits) CHECK_FAIL("the decode kernel does not support %s", form->fixture);
  const char *definitions = decode_definitions(&p);
  for (size_t m = 0; m < sizeof form_fields / sizeof *form_fields; ++m) {
    bool expected = false;
    for (size_t e = 0; e < 16 && form->fields[e]; ++e) expected |= !strcmp(form->fields[e], form_fields[m]);
    char line[64];
    snprintf(line, sizeof line, "\n%s", form_fields[m]);
    if ((strstr(definitions, line) != NULL) != expected)
      CHECK_FAIL("%s: %s is %s", form->fixture, form_fields[m], expected ? "missing" : "set");
  }
  check_shuffled(&p, form->fixture);
  planned_free(&p);
}

TEST(each_fixture_sets_exactly_the_fields_of_its_form) {
  static const form_case_t cases[] = {
      {FIXTURE("llama-yarn"), {"rope_scales:"}},
      {FIXTURE("mimo"), {"q_bias={", "k_bias={", "v_bias={", "window="}},  // Qwen2's form
      {FIXTURE("ernie4_5"),
       {"q_bias={", "k_bias={", "v_bias={", "o_bias={", "gate_bias={", "up_bias={", "down_bias={",
        "rope_adjacent="}},
      {FIXTURE("qwen3"), {"q_bias={", "k_bias={", "v_bias={", "o_bias={", "q_norm={", "k_norm={", "window="}},
      {FIXTURE("glm4"),  // gate and up are one tensor
       {"q_bias={", "k_bias={", "v_bias={", "post_attn_norm={", "rope_dims=", "rope_adjacent="}},
      {FIXTURE("gemma"), {"act=", "embed_scale="}},
      {FIXTURE("ministral3"), {"window=", "query_grow_beta=", "query_grow_period="}},
      {FIXTURE("hunyuan_v1_dense"),
       {"q_bias={", "k_bias={", "v_bias={", "o_bias={", "q_norm={", "k_norm={", "qk_norm_after_rope="}},
      {FIXTURE("olmo2"),
       {"q_bias={", "k_bias={", "v_bias={", "o_bias={", "q_norm={", "k_norm={",
        "qk_norm_whole=", "post_attn_norm={"}},
      {FIXTURE("exaone4"),  // some layers have no rope
       {"q_norm={", "k_norm={", "post_attn_norm={", "window=", "ropes=", "rope_layers:"}},
      {FIXTURE("gemma2"), {"act=", "embed_scale=", "post_attn_norm={", "softcap=", "window="}},
      {FIXTURE("gemma3"),
       {"act=", "embed_scale=", "post_attn_norm={", "q_norm={", "k_norm={",
        "window=", "ropes=", "rope_layers:"}},
      {FIXTURE("qwen3_moe"),
       {"q_bias={", "k_bias={", "v_bias={", "o_bias={", "q_norm={", "k_norm={", "experts="}},
      {FIXTURE("gpt_oss"),
       {"q_bias={", "k_bias={", "v_bias={", "o_bias={", "gate_bias={", "up_bias={", "down_bias={",
        "window=", "rope_scales:", "experts=", "router_bias={", "limit=", "sinks={"}},
      {FIXTURE("lfm2"),
       {"q_norm={", "k_norm={", "attention_layers=", "filter_taps=", "filter_bias={", "recurrent_in={",
        "recurrent_layers:"}},
      {FIXTURE("qwen3_5"),
       {"q_norm={", "k_norm={", "rope_dims=", "attention_layers=", "gated_heads=", "filter_taps=",
        "recurrent_in={", "value_heads=", "recurrent_layers:"}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) check_form(&cases[i], cases[i].fixture);
}

// The folder of a wide fixture: the heads of the small ones are too narrow for the kernel.
static const char *wide_folder(const char *name) {
  static char folder[128];
  snprintf(folder, sizeof folder, "%s/wide-%s", root, name);
  if (mlx_is_dir(folder)) return folder;
  CHECK_OK(mlx_make_dirs(folder, 0700));
  write_wide_model(name, folder);
  return folder;
}

#define ATTENTION_BIASES "q_bias={", "k_bias={", "v_bias={", "o_bias={"

TEST(networks_with_layer_norms_parallel_layers_or_no_gate_decode_in_one_launch) {
  static const form_case_t cases[] = {
      {"arcee", {ATTENTION_BIASES, "up_bias={", "down_bias={", "act="}},
      {"starcoder2",
       {ATTENTION_BIASES, "up_bias={", "down_bias={", "act=", "window=", "layer_norms=", "attn_norm_bias={"}},
      {"olmo", {ATTENTION_BIASES, "layer_norms=", "qkv_clip="}},
      {"gpt2",
       {ATTENTION_BIASES, "up_bias={", "down_bias={", "act=", "layer_norms=", "attn_norm_bias={",
        "positions={"}},
      {"gpt_neox-serial",
       {ATTENTION_BIASES, "up_bias={", "down_bias={", "act=", "layer_norms=", "attn_norm_bias={"}},
      {"gpt_neox",
       {ATTENTION_BIASES, "up_bias={", "down_bias={",
        "act=", "rope_dims=", "layer_norms=", "attn_norm_bias={", "parallel="}},
      {"phi",
       {ATTENTION_BIASES, "up_bias={", "down_bias={",
        "act=", "rope_dims=", "layer_norms=", "attn_norm_bias={", "parallel=", "head_bias={"}},
      {"stablelm", {"q_bias={", "k_bias={", "v_bias={", "rope_dims=", "layer_norms=", "attn_norm_bias={"}},
      {"stablelm-parallel",
       {"q_norm={", "k_norm={", "rope_dims=", "layer_norms=", "attn_norm_bias={",
        "parallel=", "qk_layer_norm="}},
      {"cohere",
       {ATTENTION_BIASES, "q_norm={", "k_norm={",
        "logit_scale=", "rope_adjacent=", "layer_norms=", "parallel=", "qk_layer_norm="}},
      {"cohere2",
       {ATTENTION_BIASES,
        "logit_scale=", "window=", "ropes=", "rope_layers:", "rope_adjacent=", "layer_norms=", "parallel="}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i)
    check_form(&cases[i], wide_folder(cases[i].fixture));
}

TEST(a_shared_expert_and_clipping_after_norms_decode_in_one_launch) {
  static const form_case_t cases[] = {
      {"olmoe", {ATTENTION_BIASES, "q_norm={", "k_norm={", "qk_norm_whole=", "experts=", "qkv_late_clip="}},
      {"qwen2_moe", {"q_bias={", "k_bias={", "v_bias={", "experts=", "shared_ffn="}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i)
    check_form(&cases[i], wide_folder(cases[i].fixture));
}

// The kernel takes a network for one without a gate if |gate| is not set.
TEST(only_networks_without_a_gate_set_no_gate) {
  static const struct {
    const char *fixture;
    bool gate;
  } cases[] = {{"arcee", false}, {"starcoder2", false}, {"phi", false},    {"gpt_neox", false},
               {"gpt2", false},  {"olmo", true},        {"cohere2", true}, {"stablelm", true}};
  static const mlx_quantize_t kinds[] = {MLX_QUANTIZE_NONE, MLX_QUANTIZE_Q8_0};
  for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; ++i) {
    planned_t p;
    plan_network(wide_folder(cases[i / 2].fixture), 90, kinds[i % 2], &p);
    if (!p.fits) CHECK_FAIL("%s", cases[i / 2].fixture);
    if ((strstr(decode_definitions(&p), "\ngate={") != NULL) != cases[i / 2].gate)
      CHECK_FAIL("%s", cases[i / 2].fixture);
    planned_free(&p);
  }
}

// kernels/cuda/few.cu computes Llama's network only. OLMo has LayerNorm without weights; an Arcee model with
// SiLU differs from Llama in that its MLP has no gate.
TEST(only_llamas_network_has_a_kernel_for_few_tokens) {
  static const random_llama_t shape = {2048, 8192, 32, 8, 64, 1, 4096, false, 500000};
  static const struct {
    const char *type, *without;
  } cases[] = {{"llama", "-"}, {"olmo", "norm"}, {"arcee", "gate_proj"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    planned_t p;
    plan_network(write_sparse(&shape, cases[i].type, cases[i].without, cases[i].type), 90, MLX_QUANTIZE_NONE,
                 &p);
    if (!p.fits || (p.plan.few.slices > 0) != !strcmp(cases[i].type, "llama"))
      CHECK_FAIL("%s", cases[i].type);
    planned_free(&p);
  }
}

// |ffn| of the kernel is the width of one expert.
TEST(mixture_of_experts_is_planned_with_the_width_of_one_expert) {
  planned_t p;
  plan_network(FIXTURE("gpt_oss"), 90, MLX_QUANTIZE_NONE, &p);
  CHECK(p.fits && p.plan.form.experts == 6 && p.plan.ffn == 24);
  CHECK_CONTAINS(decode_definitions(&p), "\nexperts=6\nused=");
  planned_free(&p);
}

TEST(gemma3_has_a_window_and_a_rope_by_layer) {
  planned_t p;
  plan_network(FIXTURE("gemma3"), 90, MLX_QUANTIZE_NONE, &p);
  CHECK(p.fits);
  const char *definitions = decode_definitions(&p);
  CHECK_CONTAINS(definitions, "\nwindow=12\n");
  CHECK_CONTAINS(definitions, "\nwindowed_layers:u8=1,0\n");
  CHECK_CONTAINS(definitions, "\nropes=2\n");
  CHECK_CONTAINS(definitions, "\nrope_layers:u8=0,1\n");
  CHECK_CONTAINS(definitions, "\nact=Activation::GELU_TANH\n");
  planned_free(&p);
}

// The score of the shared expert is a matrix of one row, which is quantized as other matrices are.
TEST(a_shared_expert_is_planned_with_its_own_width_and_formats) {
  static const struct {
    mlx_quantize_t quantize;
    const char *field;
  } cases[] = {{MLX_QUANTIZE_NONE, "\nscore_dtype=Dtype::BF16\n"},
               {MLX_QUANTIZE_Q8_0, "\nshared_score_tiles={8,0,0,0,0}\n"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    planned_t p;
    plan_network(wide_folder("qwen2_moe"), 90, cases[i].quantize, &p);
    CHECK(p.fits && p.plan.ffn == 32 && p.plan.form.shared_ffn == 64);
    const char *definitions = decode_definitions(&p);
    CHECK_CONTAINS(definitions, "\nshared_ffn=64\n");
    CHECK_CONTAINS(definitions, cases[i].field);
    if (cases[i].quantize)
      CHECK_CONTAINS(definitions, "\nshared_gate_tiles={8,0,0,0,0}\nshared_down_tiles={8,0,0,0,0}\n");
    planned_free(&p);
  }
}

// ----------------------------------------------------------------------------------------------------------
// Types that differ between layers

// As in a file of type Q4_K_M: v and down are Q6_K in some layers.
TEST(a_role_has_two_tile_formats_by_layer) {
  static const random_llama_t shape = {256, 512, 4, 2, 64, 3, 320, true, 10000};
  const random_packed_t q4 = random_packed_type(MLX_Q4_K), q6 = random_packed_type(MLX_Q6_K);
  const random_packed_t types[] = {q6,
                                   /* layer 0 */ q4,
                                   q4,
                                   q6,
                                   q4,
                                   q4,
                                   q4,
                                   q6,
                                   /* layer 1 */ q4,
                                   q4,
                                   q4,
                                   q4,
                                   q4,
                                   q4,
                                   q4,
                                   /* layer 2 */ q4,
                                   q4,
                                   q6,
                                   q4,
                                   q4,
                                   q4,
                                   q6};
  char path[80];
  planned_t p;
  snprintf(path, sizeof path, "%s/q4_k_m.gguf", root);
  random_gguf_write(&shape, types, sizeof types / sizeof *types, path);
  plan_network(path, 90, MLX_QUANTIZE_NONE, &p);
  CHECK(p.fits);
  const mlx_tiles_t narrow = p.plan.tiles[MLX_DECODE_ROLE_O][0], wide = p.plan.tiles[MLX_DECODE_ROLE_HEAD][0];
  CHECK(!mlx_tiles_equal(narrow, wide));
  CHECK(mlx_tiles_equal(p.plan.tiles[MLX_DECODE_ROLE_QKV][0], narrow));
  CHECK(mlx_tiles_equal(p.plan.tiles[MLX_DECODE_ROLE_QKV][1], wide));
  CHECK(mlx_tiles_equal(p.plan.tiles[MLX_DECODE_ROLE_DOWN][0], wide));
  CHECK(mlx_tiles_equal(p.plan.tiles[MLX_DECODE_ROLE_DOWN][1], narrow));
  CHECK(!p.plan.tiles[MLX_DECODE_ROLE_GATE][1].bits);
  const char *definitions = decode_definitions(&p);
  CHECK_CONTAINS(definitions, "\nsecond_formats:u8=4,32,4\n");
  CHECK_CONTAINS(definitions, "\nlayer_weights=9\n");
  CHECK_CONTAINS(definitions, "\nlayer_offsets:u64=");
  planned_free(&p);
}

// Three types in a role: the first keeps its format, the others share one that holds both.
TEST(a_third_tile_format_is_merged_with_the_second) {
  static const random_llama_t shape = {256, 512, 4, 2, 64, 3, 320, true, 10000};
  const random_packed_t q4 = random_packed_type(MLX_Q4_K), q6 = random_packed_type(MLX_Q6_K),
                        q8 = random_packed_type(MLX_Q8_0);
  const random_packed_t types[] = {q6, q4, q4, q6, q4, q4, q4, q4, q4, q4, q8,
                                   q4, q4, q4, q6, q4, q4, q4, q4, q4, q4, q8};
  char path[80];
  planned_t p;
  snprintf(path, sizeof path, "%s/three.gguf", root);
  random_gguf_write(&shape, types, sizeof types / sizeof *types, path);
  plan_network(path, 90, MLX_QUANTIZE_NONE, &p);
  CHECK(p.fits);
  CHECK_CONTAINS(decode_definitions(&p), "\nsecond_formats:u8=4,36,32\n");
  planned_free(&p);
}

// ----------------------------------------------------------------------------------------------------------
// Quantized matrices beside those of 16 bits

static void plan_mixed(random_llama_t shape, random_packed_t embedding, random_packed_t attention,
                       random_packed_t mlp, planned_t *p) {
  random_packed_t types[RANDOM_MATRICES(2)];
  char path[80];
  snprintf(path, sizeof path, "%s/mixed.gguf", root);
  shape.layers = 2;
  random_types_by_role(2, embedding, attention, mlp, types);
  random_gguf_write(&shape, types, RANDOM_MATRICES(2), path);
  plan_network(path, 90, MLX_QUANTIZE_NONE, p);
}

static const random_llama_t mixed_shape = {256, 512, 4, 2, 64, 2, 320, true, 10000};

TEST(a_head_and_embedding_of_16_bits_are_rows_beside_quantized_layers) {
  static const struct {
    const random_packed_t *type;
    const char *field;
  } cases[] = {{&random_f16, "\ndtype=Dtype::F16\n"}, {&random_bf16, "\ndtype=Dtype::BF16\n"}};
  const random_packed_t q4 = random_packed_type(MLX_Q4_0);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    planned_t p;
    plan_mixed(mixed_shape, *cases[i].type, q4, q4, &p);
    CHECK(p.fits);
    const char *definitions = decode_definitions(&p);
    CHECK_CONTAINS(definitions, "\nhead_tiles={16,0,0,0,0}\nembed_tiles={16,0,0,0,0}\npacked=1\n");
    CHECK_CONTAINS(definitions, "\nqkv_tiles={4,");
    CHECK_CONTAINS(definitions, cases[i].field);
    planned_free(&p);
  }
}

// A directory as AutoAWQ writes it. The weights are zeros: only the plan is made.
static void write_awq(const random_llama_t *shape, folder_t *f) {
  static random_tensor_t tensors[RANDOM_LLAMA_TENSORS];
  const int count = random_llama_tensors(shape, tensors), group = 128;
  char *config;
  begin(f);
  for (int i = 0; i < count; ++i) {
    const random_tensor_t *t = &tensors[i];
    char name[100];
    if (!t->rows || strstr(t->name, "embed") || strstr(t->name, "lm_head")) {
      put(f, t->name, MLX_F16, t->rows ? t->rows : t->columns, t->rows ? t->columns : 0, NULL);
      continue;
    }
    const int stem = (int)(strlen(t->name) - strlen("weight"));
    snprintf(name, sizeof name, "%.*sqweight", stem, t->name);
    put(f, name, MLX_I32, t->columns, t->rows / 8, NULL);
    snprintf(name, sizeof name, "%.*sqzeros", stem, t->name);
    put(f, name, MLX_I32, t->columns / group, t->rows / 8, NULL);
    snprintf(name, sizeof name, "%.*sscales", stem, t->name);
    put(f, name, MLX_F16, t->columns / group, t->rows, NULL);
  }
  write_tensors(f);
  random_write_config(shape, path_in(f, "config.json"));
  CHECK_OK(mlx_read_file(path_in(f, "config.json"), 1 << 16, &config, NULL));
  mlx_text_t text = {0};
  mlx_text_printf(&text,
                  "{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":%d},%s",
                  group, strchr(config, '{') + 1);
  CHECK_OK(mlx_text_finish(&text));
  write_text(f, "config.json", text.data);
  mlx_text_clear(&text);
  mlx_free(config);
}

TEST(a_directory_quantized_by_awq_decodes_in_one_launch) {
  random_llama_t shape = mixed_shape;
  folder_t f;
  planned_t p;
  shape.tied = false;
  write_awq(&shape, &f);
  plan_layout(f.path, 90, MLX_QUANTIZE_NONE, true, &p);
  CHECK(p.fits);
  const char *definitions = decode_definitions(&p);
  CHECK_CONTAINS(definitions, "\nqkv_tiles={5,0,0,0,16}\no_tiles={5,0,0,0,16}\n");
  CHECK_CONTAINS(definitions, "\nhead_tiles={16,0,0,0,0}\nembed_tiles={16,0,0,0,0}\npacked=1\noffsets=0\n");
  CHECK_CONTAINS(definitions, "\ndtype=Dtype::F16\n");
  planned_free(&p);
  end(&f);
}

// Quantizes a wide fixture as mlx-lm does, except matrices with |left| in their name. The decode kernel must
// support it and have each of |fields|.
static void check_mlx(const char *fixture, const char *left, const char *const fields[3]) {
  const packed_kind_t kind = {"mlx", MLX_PACKED_MLX, 4, 32, MLX_BF16, true, false, false, left};
  char path[] = "/tmp/mlxcel-plan-XXXXXX";
  folder_t f;
  mlx_model_t *model;
  planned_t p;
  CHECK(mkdtemp(path));
  write_wide_model(fixture, path);
  CHECK_OK(mlx_model_open(path, &model));
  write_packed_model(&kind, path, model, &f, NULL);
  mlx_model_close(model);
  plan_layout(f.path, 90, MLX_QUANTIZE_NONE, true, &p);
  CHECK(p.fits);
  const char *definitions = decode_definitions(&p);
  for (int i = 0; i < 3; ++i) CHECK_CONTAINS(definitions, fields[i]);
  planned_free(&p);
  end(&f);
  CHECK_OK(mlx_remove_tree(path));
}

// mlx-lm quantizes the router too. It is dequantized for the kernel.
TEST(a_mixture_of_experts_quantized_by_mlx_decodes_in_one_launch) {
  static const char *const fields[] = {"\ngate_tiles={4,2,1,0,0}\n", "\ndown_tiles={4,2,1,0,0}\n",
                                       "\nrouter_dtype=Dtype::F32\n"};
  check_mlx("qwen3_moe", NULL, fields);
}

TEST(a_shared_expert_has_the_format_of_the_others_or_16_bits) {
  static const char *const same[] = {"\ngate_tiles={4,2,1,0,0}\n", "\nshared_gate_tiles={4,2,1,0,0}\n",
                                     "\nshared_down_tiles={4,2,1,0,0}\n"},
                           *const rows[] = {"\ngate_tiles={4,2,1,0,0}\n",
                                            "\nshared_gate_tiles={16,0,0,0,0}\n",
                                            "\nshared_down_tiles={16,0,0,0,0}\n"};
  check_mlx("qwen2_moe", NULL, same);
  check_mlx("qwen2_moe", ".shared_expert.", rows);
}

// As gpt-oss is published: experts in MXFP4, all other matrices in bf16.
TEST(experts_in_mxfp4_beside_bf16_matrices_decode_in_one_launch) {
  planned_t p;
  plan_layout(FIXTURE("gpt_oss-mxfp4"), 90, MLX_QUANTIZE_NONE, true, &p);
  CHECK(p.fits);
  const char *definitions = decode_definitions(&p);
  CHECK_CONTAINS(
      definitions,
      "\nqkv_tiles={16,0,0,0,0}\no_tiles={16,0,0,0,0}\ngate_tiles={4,3,0,0,-1}\ndown_tiles={4,3,0,0,-1}\n");
  CHECK_CONTAINS(definitions, "\ndtype=Dtype::BF16\n");
  planned_free(&p);
}

// One type of 16 bits; gate, up and down are quantized, and all layers of a role have rows or none; more than
// 8192 columns do not fit into registers.
TEST(other_mixtures_decode_op_by_op) {
  const random_packed_t q4 = random_packed_type(MLX_Q4_0);
  random_llama_t wide = mixed_shape;
  planned_t p;
  plan_mixed(mixed_shape, random_f16, random_bf16, q4, &p);
  CHECK(!p.fits);
  planned_free(&p);
  plan_mixed(mixed_shape, random_f16, q4, random_f16, &p);
  CHECK(!p.fits);
  planned_free(&p);
  wide.hidden = 8192, wide.ffn = 32, wide.vocab = 8;
  plan_mixed(wide, random_f16, q4, q4, &p);
  CHECK(p.fits);
  planned_free(&p);
  wide.hidden = 8224;
  plan_mixed(wide, random_f16, q4, q4, &p);
  CHECK(!p.fits);
  planned_free(&p);
}

// The node |name| of layer 1, changed by the caller, is the reason why the network does not fit.
static mlx_node_t *node_of_layer_1(planned_t *p, const char *name) {
  for (size_t i = 0; i < p->graph->count; ++i)
    if (!strcmp(p->graph->nodes[i].scope, "layer1") && !strcmp(p->graph->nodes[i].name, name))
      return &p->graph->nodes[i];
  CHECK_FAIL("layer1 has no node '%s'", name);
  return NULL;
}

static void check_misfit(planned_t *p, const mlx_node_t *node, const char *why) {
  CHECK_OK(mlx_decode_plan_make(p->model, p->graph, &p->options, &p->plan, &p->fits));
  CHECK(!p->fits);
  CHECK_TEXT(p->plan.misfit.why, why);
  CHECK_INT(p->plan.misfit.node, node - p->graph->nodes + 1);
}

TEST(a_network_that_does_not_fit_the_decode_kernel_names_the_node_and_the_reason) {
  planned_t p;
  plan_network(FIXTURE("tiny-llama"), 90, MLX_QUANTIZE_NONE, &p);
  CHECK(p.fits && !p.plan.misfit.why);
  mlx_node_t *norm = node_of_layer_1(&p, "mlp_in"), *gate = node_of_layer_1(&p, "gate"),
             *rope = node_of_layer_1(&p, "k_rope");
  const double eps = norm->eps;
  norm->eps = 0.5;
  check_misfit(&p, norm, "has another value than the first layer");
  norm->eps = eps;
  rope->kind = MLX_NODE_SIGMOID;
  check_misfit(&p, rope, "is not the product that the kernel computes here");
  rope->kind = MLX_NODE_ROPE;
  gate->operands[0] = node_of_layer_1(&p, "up")->operands[0] - 1;
  check_misfit(&p, node_of_layer_1(&p, "up"), "reads another value than the kernel does");
  planned_free(&p);
}

// ----------------------------------------------------------------------------------------------------------
// GPUs

// GPUs with 99 KB of shared memory too.
TEST(every_gpu_from_sm_80_on_decodes_an_8b_model_in_one_launch) {
  static const mlx_quantize_t kinds[] = {MLX_QUANTIZE_NONE, MLX_QUANTIZE_Q4_1, MLX_QUANTIZE_Q4_0};
  const char *model = write_8b();
  for (size_t i = 0; mlx_gpu_kind_at(i); ++i) {
    const mlx_gpu_kind_t *gpu = mlx_gpu_kind_at(i);
    for (int kind = 0; gpu->kernel_sm && kind < 3; ++kind) {
      planned_t p;
      plan_network(model, gpu->sm, kinds[kind], &p);
      if (!p.fits) CHECK_FAIL("sm_%d, kind %d", gpu->sm, kind);
      planned_free(&p);
    }
  }
}

static void add_decode_image(int sm, mlx_quantize_t quantize, mlx_kernels_t *kernels) {
  planned_t p;
  const char *file;
  plan_network(write_8b(), sm, quantize, &p);
  CHECK(p.fits);
  CHECK_OK(
      mlx_kernels_image(kernels, MLX_KERNEL_DECODE, decode_definitions(&p), (mlx_kernel_build_t){0}, &file));
  planned_free(&p);
}

// Compiles the decode kernel: static_asserts in it check the plan's sizes. Each GPU compiles the kernel with
// exact bf16 weights and with one of the two 4-bit formats, because an image takes 3 seconds.
TEST(decode_kernel_of_an_8b_model_compiles_for_every_gpu_with_99_kb_of_shared_memory) {
  const mlx_gpu_kind_t *gpu;
  mlx_nvrtc_t *nvrtc;
  int count = 0;
  compile_quickly(true);
  CHECK_OK(mlx_nvrtc_open(NULL, &nvrtc));
  for (size_t i = 0; (gpu = mlx_gpu_kind_at(i)); ++i) {
    char folder[80];
    mlx_kernels_t kernels = {.gpu = gpu};
    if (!gpu->kernel_sm || gpu->shared_bytes != 99 << 10) continue;
    add_decode_image(gpu->sm, MLX_QUANTIZE_NONE, &kernels);
    add_decode_image(gpu->sm, count++ % 2 ? MLX_QUANTIZE_Q4_1 : MLX_QUANTIZE_Q4_0, &kernels);
    CHECK_INT(kernels.count, 2);
    snprintf(folder, sizeof folder, "%s/sm_%d", root, gpu->sm);
    CHECK_OK(mlx_kernels_compile(&kernels, nvrtc, folder, NULL));
    mlx_kernels_clear(&kernels);
  }
  CHECK_INT(count, 4);  // sm_86, sm_89, sm_120 and sm_121
  mlx_nvrtc_close(nvrtc);
}

TEST(launch_length_follows_the_bandwidth_of_the_gpu) {
  static const int kinds[] = {86, 87, 90, 120};
  const double bytes = 2.0 * (2.0 * 128256 * 4096 + 4096 * (2.0 * 4096 + 2.0 * 1024 + 3.0 * 14336));
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i) {
    planned_t p;
    plan_network(write_8b(), kinds[i], MLX_QUANTIZE_NONE, &p);
    const double seconds = (double)p.plan.max_steps * bytes / (p.kernels.gpu->bandwidth * 1e9);
    if (seconds > 0.1001 || seconds < 0.05) CHECK_FAIL("sm_%d: %g seconds", kinds[i], seconds);
    planned_free(&p);
  }
}

int main(int argc, char **argv) {
  static const check_case_t cases[] = {
      CASE(each_fixture_sets_exactly_the_fields_of_its_form),
      CASE(networks_with_layer_norms_parallel_layers_or_no_gate_decode_in_one_launch),
      CASE(a_shared_expert_and_clipping_after_norms_decode_in_one_launch),
      CASE(only_networks_without_a_gate_set_no_gate),
      CASE(only_llamas_network_has_a_kernel_for_few_tokens),
      CASE(mixture_of_experts_is_planned_with_the_width_of_one_expert),
      CASE(gemma3_has_a_window_and_a_rope_by_layer),
      CASE(a_shared_expert_is_planned_with_its_own_width_and_formats),
      CASE(a_role_has_two_tile_formats_by_layer),
      CASE(a_third_tile_format_is_merged_with_the_second),
      CASE(a_head_and_embedding_of_16_bits_are_rows_beside_quantized_layers),
      CASE(a_directory_quantized_by_awq_decodes_in_one_launch),
      CASE(a_mixture_of_experts_quantized_by_mlx_decodes_in_one_launch),
      CASE(a_shared_expert_has_the_format_of_the_others_or_16_bits),
      CASE(experts_in_mxfp4_beside_bf16_matrices_decode_in_one_launch),
      CASE(other_mixtures_decode_op_by_op),
      CASE(a_network_that_does_not_fit_the_decode_kernel_names_the_node_and_the_reason),
      CASE(every_gpu_from_sm_80_on_decodes_an_8b_model_in_one_launch),
      CASE(decode_kernel_of_an_8b_model_compiles_for_every_gpu_with_99_kb_of_shared_memory),
      CASE(launch_length_follows_the_bandwidth_of_the_gpu),
  };
  strcpy(root, "/tmp/mlxcel-plan-XXXXXX");
  if (!mkdtemp(root)) return 1;
  const int failed = check_run(cases, sizeof cases / sizeof *cases, argc, argv);
  mlx_status_free(mlx_remove_tree(root));
  return failed;
}
