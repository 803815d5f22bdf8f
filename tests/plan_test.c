// Which networks the CUDA decode kernel computes as a whole, and the macros that describe them to it. Needs
// no GPU and no compiler.
#include "compiler/plan.h"

#include "base/memory.h"
#include "compiler/emit.h"
#include "compiler/kernel_plan.h"
#include "compiler/kernels.h"
#include "tests/check.h"

#define FIXTURE(name) MLXCEL_SOURCE_DIR "/tests/fixtures/" name
#define TOKENS 64

typedef struct planned {
  mlx_model_t *model;
  mlx_graph_t *graph;
  mlx_kernels_t kernels;
  mlx_module_options_t options;
  mlx_decode_plan_t plan;
  bool fits;
} planned_t;

// Plans the network at |path| for |sm|, with 16-bit weights or quantized ones.
static void plan_network(const char *path, int sm, mlx_quantize_t quantize, planned_t *p) {
  const char *missing;
  CHECK_OK(mlx_model_open(path, &p->model));
  CHECK_OK(mlx_model_build_graph(p->model, TOKENS, &p->graph));
  mlx_module_options_initialize(TOKENS, &p->options);
  p->options.form = MLX_FORM_IREE;
  p->options.dtype = quantize ? MLX_F32 : MLX_BF16;
  p->options.quantize = quantize;
  if (quantize) p->options.layout = MLX_LAYOUT_TILES;
  p->options.kv = MLX_F32;
  p->kernels = (mlx_kernels_t){.gpu = mlx_gpu_kind_find(sm)};
  CHECK_OK(mlx_module_use_kernels(p->model, p->graph, &p->kernels, &p->options, &missing));
  CHECK(p->options.kernels == &p->kernels);
  CHECK_OK(mlx_decode_plan_make(p->model, p->graph, &p->options, &p->plan, &p->fits));
}

static void planned_free(planned_t *p) {
  mlx_kernels_clear(&p->kernels);
  mlx_graph_free(p->graph);
  mlx_model_close(p->model);
}

// The definitions of the decode kernel; valid until planned_free.
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
// Forms

// Macros that a network of Llama's form does not define.
static const char *const form_macros[] = {
    "Q_BIAS_AT=",   "K_BIAS_AT=",    "V_BIAS_AT=",   "O_BIAS_AT=",   "GATE_BIAS_AT=",
    "UP_BIAS_AT=",  "DOWN_BIAS_AT=", "Q_NORM_AT=",   "K_NORM_AT=",   "POST_ATTN_NORM_AT=",
    "ACT_",         "EMBED_SCALE=",  "LOGIT_SCALE=", "SOFTCAP=",     "RESIDUAL_SCALE=",
    "WINDOW=",      "ROPES=",        "ROPE_DIMS=",   "ROPE_LAYERS=", "ROPE_ADJACENT=",
    "ROPE_SCALES=",
};

TEST(each_fixture_defines_exactly_the_macros_of_its_form) {
  static const struct {
    const char *fixture;
    const char *macros[12];  // the fixture defines these of |form_macros|
  } cases[] = {
      {FIXTURE("llama-yarn"), {"ROPE_SCALES="}},
      {FIXTURE("mimo"), {"Q_BIAS_AT=", "K_BIAS_AT=", "V_BIAS_AT=", "WINDOW="}},  // Qwen2's form
      {FIXTURE("ernie4_5"),
       {"Q_BIAS_AT=", "K_BIAS_AT=", "V_BIAS_AT=", "O_BIAS_AT=", "GATE_BIAS_AT=", "UP_BIAS_AT=",
        "DOWN_BIAS_AT=", "ROPE_ADJACENT="}},
      {FIXTURE("qwen3"),
       {"Q_BIAS_AT=", "K_BIAS_AT=", "V_BIAS_AT=", "O_BIAS_AT=", "Q_NORM_AT=", "K_NORM_AT=", "WINDOW="}},
      {FIXTURE("gemma"), {"ACT_", "EMBED_SCALE="}},
      {FIXTURE("gemma2"), {"ACT_", "EMBED_SCALE=", "POST_ATTN_NORM_AT=", "SOFTCAP=", "WINDOW="}},
      {FIXTURE("gemma3"),
       {"ACT_", "EMBED_SCALE=", "POST_ATTN_NORM_AT=", "Q_NORM_AT=", "K_NORM_AT=", "WINDOW=", "ROPES=",
        "ROPE_LAYERS="}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    planned_t p;
    plan_network(cases[i].fixture, 90, MLX_QUANTIZE_NONE, &p);
    if (!p.fits) CHECK_FAIL("the decode kernel does not support %s", cases[i].fixture);
    const char *definitions = decode_definitions(&p);
    for (size_t m = 0; m < sizeof form_macros / sizeof *form_macros; ++m) {
      bool expected = false;
      for (size_t e = 0; e < 12 && cases[i].macros[e]; ++e)
        expected |= !strcmp(cases[i].macros[e], form_macros[m]);
      char line[64];
      snprintf(line, sizeof line, "\n%s", form_macros[m]);
      if ((strstr(definitions, line) != NULL) != expected)
        CHECK_FAIL("%s: %s is %s", cases[i].fixture, form_macros[m], expected ? "missing" : "defined");
    }
    planned_free(&p);
  }
}

TEST(gemma3_has_a_window_and_a_rope_by_layer) {
  planned_t p;
  plan_network(FIXTURE("gemma3"), 90, MLX_QUANTIZE_NONE, &p);
  CHECK(p.fits);
  const char *definitions = decode_definitions(&p);
  CHECK_CONTAINS(definitions, "\nWINDOW=12\n");
  CHECK_CONTAINS(definitions, "\nWINDOWED_LAYERS=1,0\n");
  CHECK_CONTAINS(definitions, "\nROPES=2\n");
  CHECK_CONTAINS(definitions, "\nROPE_LAYERS=0,1\n");
  CHECK_CONTAINS(definitions, "\nACT_GELU_TANH=1\n");
  planned_free(&p);
}

// The network of each of these has a part that the decode kernel lacks.
TEST(other_networks_decode_op_by_op) {
  static const char *const fixtures[] = {FIXTURE("mixtral"), FIXTURE("gpt2"), FIXTURE("olmo2"),
                                         FIXTURE("gpt_oss"), FIXTURE("phi")};
  for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; ++i) {
    planned_t p;
    plan_network(fixtures[i], 90, MLX_QUANTIZE_NONE, &p);
    if (p.fits) CHECK_FAIL("%s", fixtures[i]);
    planned_free(&p);
  }
}

TEST_MAIN(CASE(each_fixture_defines_exactly_the_macros_of_its_form),
          CASE(gemma3_has_a_window_and_a_rope_by_layer), CASE(other_networks_decode_op_by_op))
