// Emits burst and step_1, each as a launch of kernels/cuda/decode.cu: macro definitions, grid and operands.
#include "compiler/emit_cuda.h"

#include "artifact/archive.h"
#include "base/memory.h"
#include "compiler/cuda_image.h"
#include "compiler/lower_place.h"
#include "compiler/weights.h"
#include "kernels/step.h"

#define DECODE_THREADS 288

static const char *const weight_names[] = {"EMBED",
                                           "ATTN_NORM",
                                           "Q",
                                           "K",
                                           "V",
                                           "O",
                                           "MLP_NORM",
                                           "GATE",
                                           "UP",
                                           "DOWN",
                                           "FINAL_NORM",
                                           "HEAD",
                                           "Q_BIAS",
                                           "K_BIAS",
                                           "V_BIAS",
                                           "O_BIAS",
                                           "GATE_BIAS",
                                           "UP_BIAS",
                                           "DOWN_BIAS",
                                           "Q_NORM",
                                           "K_NORM",
                                           "POST_ATTN_NORM",
                                           "POST_MLP_NORM",
                                           "SINKS",
                                           "ROUTER",
                                           "ROUTER_BIAS",
                                           "ATTN_NORM_BIAS",
                                           "MLP_NORM_BIAS",
                                           "FINAL_NORM_BIAS",
                                           "HEAD_BIAS",
                                           "POSITIONS",
                                           "SHARED_GATE",
                                           "SHARED_UP",
                                           "SHARED_DOWN",
                                           "SHARED_SCORE",
                                           "QKV_ORDER",
                                           "O_ORDER",
                                           "GATE_ORDER"};

void mlx_cuda_define_offsets(mlx_text_t *definitions, const mlx_decode_plan_t *plan) {
  for (size_t i = 0; i < MLX_DECODE_WEIGHTS; ++i) {
    if (plan->form.counts[i])
      mlx_text_printf(definitions, "%s_AT=%lluull\n%s_STEP=%lluull\n", weight_names[i],
                      (unsigned long long)plan->offsets[i].first, weight_names[i],
                      (unsigned long long)plan->offsets[i].stride);
  }
}

// Tile formats for decode_tiles.cuh.
static void define_tiles(mlx_text_t *definitions, const mlx_decode_plan_t *plan, int64_t layers) {
  static const char *const roles[MLX_DECODE_ROLES] = {
      "QKV", "O", "GATE", "DOWN", "SHARED_GATE", "SHARED_DOWN", "HEAD", "EMBED", "SHARED_SCORE"};
  bool offsets = false, second = false;
  if (!plan->tiles[MLX_DECODE_ROLE_QKV][0].bits) return;
  for (int i = 0; i < 2 * MLX_DECODE_ROLES; ++i) {
    const mlx_tiles_t tiles = plan->tiles[i / 2][i % 2];
    if (!tiles.bits) continue;
    if (tiles.bits == MLX_DECODE_ROWS) {
      mlx_text_printf(definitions, "%s_TILES=%d\n", roles[i / 2], MLX_DECODE_ROWS);
      continue;
    }
    mlx_text_printf(definitions, "%s_TILES%s=" MLX_TILES_FORMAT "\n", roles[i / 2], i % 2 ? "_2" : "",
                    MLX_TILES_ARGUMENTS(tiles));
    offsets |= tiles.offset;
    second |= i % 2;
  }
  MLX_DEFINE(definitions, {"PACKED", 1}, {"OFFSETS", offsets});
  if (!second) return;
  mlx_text_puts(definitions, "SECOND_FORMATS=");
  for (int64_t i = 0; i < layers; ++i) mlx_text_printf(definitions, "%s%d", i ? "," : "", plan->second[i]);
  mlx_text_puts(definitions, "\n");
}

static void write_layer_offsets(mlx_text_t *d, const mlx_decode_plan_t *plan, const size_t *weights,
                                const uint64_t *offsets, int64_t layers) {
  int count = 0;
  for (size_t i = 0; i < MLX_DECODE_WEIGHTS; ++i) {
    if (mlx_decode_in_layers((mlx_decode_weight_t)i) && plan->form.counts[i])
      mlx_text_printf(d, "%s_NTH=%d\n", weight_names[i], count++);
  }
  mlx_text_printf(d, "LAYER_WEIGHTS=%d\nLAYER_OFFSETS=", count);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const size_t *row = weights + layer * MLX_DECODE_WEIGHTS;
    const char *separator = layer ? "," : "";
    for (size_t i = 0; i < MLX_DECODE_WEIGHTS; ++i) {
      if (!mlx_decode_in_layers((mlx_decode_weight_t)i) || !plan->form.counts[i]) continue;
      mlx_text_printf(d, "%s%lluull", separator, (unsigned long long)offsets[row[i]]);
      separator = ",";
    }
  }
  mlx_text_puts(d, "\n");
}

// The offsets of every layer, if layers differ in size.
static mlx_status_t define_layer_offsets(mlx_text_t *definitions, const mlx_function_t *g,
                                         const mlx_decode_plan_t *plan) {
  if (plan->regular) return NULL;
  mlx_network_plan_t network;
  uint64_t *offsets = NULL;
  MLX_TRY(mlx_network_plan_make(g->model, g->graph, &network));
  mlx_status_t status = mlx_alloc(g->model->weight_count, sizeof *offsets, &offsets);
  if (!status) {
    mlx_weights_layout(g->model, mlx_module_storage(g->options), offsets);
    write_layer_offsets(definitions, plan, network.weights, offsets, g->model->config.layers);
  }
  mlx_free(offsets);
  mlx_network_plan_clear(&network);
  return status;
}

static void define_number(mlx_text_t *definitions, const char *name, double value, double usual) {
  if (value != usual) mlx_text_printf(definitions, "%s=%.9ef\n", name, value);
}

// Frequencies of all ropes; pairs that are not rotated have frequency 0.
static void define_ropes(mlx_text_t *d, const mlx_decode_form_t *form, const mlx_config_t *c) {
  const mlx_rope_t *any = form->ropes[0] ? form->ropes[0] : form->rope_count > 1 ? form->ropes[1] : NULL;
  bool scaled = false;
  if (form->rope_count > 1) MLX_DEFINE(d, {"ROPES", form->rope_count});
  if (any && any->dims != c->head_dim) MLX_DEFINE(d, {"ROPE_DIMS", any->dims});
  if (any && any->adjacent) MLX_DEFINE(d, {"ROPE_ADJACENT", 1});
  mlx_text_puts(d, "ROPE_FREQUENCIES=");
  for (int r = 0; r < form->rope_count; ++r) {
    const mlx_rope_t *rope = form->ropes[r];
    scaled |= rope && rope->scale != 1.0;
    for (int64_t i = 0; i < c->head_dim / 2; ++i) {
      const bool rotated = rope && i < rope->dims / 2;
      mlx_text_printf(d, "%s%.9ef", r || i ? "," : "", rotated ? (double)rope->frequencies[i] : 0.0);
    }
  }
  mlx_text_puts(d, "\n");
  if (scaled) mlx_text_puts(d, "ROPE_SCALES=");
  for (int r = 0; scaled && r < form->rope_count; ++r)
    mlx_text_printf(d, "%s%.9ef", r ? "," : "", form->ropes[r] ? form->ropes[r]->scale : 1.0);
  if (scaled) mlx_text_puts(d, "\n");
}

static void define_experts(mlx_text_t *d, const mlx_decode_plan_t *plan) {
  static const char *const routers[] = {
      [MLX_F32] = "ROUTER_F32", [MLX_BF16] = "ROUTER_BF16", [MLX_F16] = "ROUTER_F16"};
  static const char *const scores[] = {
      [MLX_F32] = "SHARED_SCORE_F32", [MLX_BF16] = "SHARED_SCORE_BF16", [MLX_F16] = "SHARED_SCORE_F16"};
  const mlx_decode_form_t *form = &plan->form;
  if (!form->experts) return;
  MLX_DEFINE(d, {"EXPERTS", form->experts}, {"USED", form->used}, {"SUM_TO_ONE", form->sum_to_one},
             {routers[form->router], 1});
  if (form->limit != 0.0) mlx_text_printf(d, "LIMIT=%.9ef\nSLOPE=%.9ef\n", form->limit, form->slope);
  if (!form->shared_ffn) return;
  MLX_DEFINE(d, {"SHARED_FFN", form->shared_ffn});
  if (!plan->tiles[MLX_DECODE_ROLE_SHARED_SCORE][0].bits) MLX_DEFINE(d, {scores[form->score], 1});
}

// Macros of kernels/cuda/decode_form.cuh, where the network differs from Llama's.
static void define_form(mlx_text_t *d, const mlx_function_t *g, const mlx_decode_plan_t *plan) {
  const mlx_config_t *c = &g->model->config;
  static const char *const acts[] = {[MLX_ACT_GELU] = "ACT_GELU",
                                     [MLX_ACT_GELU_TANH] = "ACT_GELU_TANH",
                                     [MLX_ACT_RELU] = "ACT_RELU",
                                     [MLX_ACT_RELU2] = "ACT_RELU2"};
  const mlx_decode_form_t *form = &plan->form;
  if (form->act != MLX_ACT_SILU) MLX_DEFINE(d, {acts[form->act], 1});
  if (form->layer_norms) MLX_DEFINE(d, {"LAYER_NORMS", 1});
  if (form->parallel) MLX_DEFINE(d, {"PARALLEL", 1});
  if (form->positions) MLX_DEFINE(d, {"POSITION_ROWS", form->positions});
  define_number(d, "QKV_CLIP", form->clip, 0.0);
  define_number(d, "QKV_LATE_CLIP", form->late_clip, 0.0);
  define_number(d, "EMBED_SCALE", form->embed_scale, 1.0);
  define_number(d, "RESIDUAL_SCALE", form->residual_scale, 1.0);
  define_number(d, "LOGIT_SCALE", form->logit_scale, 1.0);
  define_number(d, "LOGIT_SOFTCAP", form->logit_softcap, 0.0);
  define_number(d, "SOFTCAP", plan->attention.softcap, 0.0);
  define_number(d, "QUERY_GROW_BETA", form->grow_beta, 0.0);
  if (form->grow_beta != 0.0) MLX_DEFINE(d, {"QUERY_GROW_PERIOD", form->grow_period});
  if (form->norm_after_rope) MLX_DEFINE(d, {"QK_NORM_AFTER_ROPE", 1});
  if (form->whole_norms) MLX_DEFINE(d, {"QK_NORM_WHOLE", 1});
  if (form->qk_layer_norms) MLX_DEFINE(d, {"QK_LAYER_NORM", 1});
  if (form->window) {
    MLX_DEFINE(d, {"WINDOW", form->window});
    mlx_text_puts(d, "WINDOWED_LAYERS=");
    for (int64_t i = 0; i < c->layers; ++i)
      mlx_text_printf(d, "%s%d", i ? "," : "", form->windowed[i] ? 1 : 0);
    mlx_text_puts(d, "\n");
  }
  define_experts(d, plan);
  if (g->options->window_pages) {
    MLX_DEFINE(d, {"WINDOW_LAYERS", mlx_function_page_layers(g, MLX_WINDOW_PAGES)});
    mlx_text_puts(d, "PAGE_LAYERS=");
    for (int64_t i = 0; i < c->layers; ++i)
      mlx_text_printf(d, "%s%lld", i ? "," : "", (long long)mlx_function_place_layer(g, i).nth);
    mlx_text_puts(d, "\n");
  }
  define_ropes(d, form, c);
  if (form->rope_count < 2) return;
  mlx_text_puts(d, "ROPE_LAYERS=");
  for (int64_t i = 0; i < c->layers; ++i) mlx_text_printf(d, "%s%d", i ? "," : "", form->rope_of[i]);
  mlx_text_puts(d, "\n");
}

static const char *decode_image(mlx_function_t *g, const mlx_decode_plan_t *plan) {
  const mlx_config_t *c = &g->model->config;
  mlx_text_t d = {0};
  MLX_DEFINE(&d, {"HIDDEN", c->hidden}, {"FFN", plan->ffn}, {"HEADS", c->heads}, {"KV_HEADS", c->kv_heads},
             {"HEAD_DIM", c->head_dim});
  MLX_DEFINE(&d, {"LAYERS", c->layers}, {"VOCAB", c->vocab}, {"PAGE", MLX_KV_PAGE});
  MLX_DEFINE(&d, {"BLOCKS", plan->blocks}, {"SHARED_BYTES", plan->shared_bytes},
             {"SCRATCH_WORDS", plan->scratch_words}, {"SEGMENT", plan->segment});
  mlx_text_printf(&d, "NORM_EPS=%.9ef\nSCALE=%.9ef\n", plan->norm_eps, plan->attention.scale);
  mlx_cuda_define_offsets(&d, plan);
  define_tiles(&d, plan, c->layers);
  mlx_status_t status = define_layer_offsets(&d, g, plan);
  if (status) {
    mlx_builder_fail(g->b, status);
    mlx_text_clear(&d);
    return NULL;
  }
  mlx_cuda_define_dtype(&d, plan->dtype);
  mlx_cuda_define_kv(&d, g->options->kv);
  define_form(&d, g, plan);
  return mlx_cuda_image(g, MLX_KERNEL_DECODE, &d);
}

void mlx_cuda_declare_scratch(mlx_function_t *g, const mlx_decode_plan_t *plan) {
  mlx_builder_state_of_ones(
      g->b, MLX_STATE_SCRATCH,
      MLX_TYPE(MLX_I32, plan->few.slices ? plan->few.words_at + plan->few.words : plan->scratch_words));
}

// Parameters of the kernel: archive, batch, then the arguments and the scratch buffer, updated in place.
static void launch_decode(mlx_function_t *g, const mlx_decode_plan_t *plan) {
  mlx_builder_t *b = g->b;
  static const char *const updates[] = {MLX_ARG_HISTORY, MLX_ARG_KV,      MLX_ARG_LOGITS,
                                        MLX_ARG_HIDDEN,  MLX_ARG_RESULTS, MLX_STATE_SCRATCH};
  enum { UPDATES = sizeof updates / sizeof *updates };
  mlx_extern_t kernel = {.symbol = "mlx_decode",
                         .file = decode_image(g, plan),
                         .grid = {plan->blocks, 1, 1},
                         .threads = DECODE_THREADS,
                         .shared_bytes = plan->shared_bytes,
                         .operands = {mlx_builder_load(b, MLX_WHOLE_ARCHIVE), g->batch},
                         .operand_count = 2 + UPDATES,
                         .updated_from = 2};
  for (int i = 0; i < UPDATES; ++i) kernel.operands[2 + i] = mlx_builder_load(b, updates[i]);
  mlx_value_t updated[UPDATES];
  if (!kernel.file || !mlx_build_extern(b, "decoded", &kernel, updated).id) return;
  for (int i = 0; i < UPDATES; ++i) mlx_builder_store(b, updates[i], updated[i]);
}

mlx_status_t mlx_cuda_emit_burst(mlx_function_t *g, const mlx_decode_plan_t *plan) {
  const mlx_step_size_t one = {1, 1};
  mlx_function_begin(g, "burst", "Decodes tokens of one sequence, one after the other.", one);
  launch_decode(g, plan);
  mlx_builder_end(g->b, NULL, 0);
  mlx_function_begin(g, "step_1", "A forward pass over one token.", one);
  launch_decode(g, plan);
  if (mlx_cuda_samples(g)) mlx_cuda_sample(g);
  mlx_builder_end(g->b, NULL, 0);
  return NULL;
}
