// Emits burst and step_1, each as a launch of kernels/cuda/decode.cu: configuration, grid and operands.
#include "compiler/emit_cuda.h"

#include "artifact/archive.h"
#include "base/memory.h"
#include "compiler/cuda_image.h"
#include "compiler/lower_place.h"
#include "compiler/weights.h"
#include "kernels/step.h"

static const char *const weight_names[] = {
#define WEIGHT_NAME(name, field, in_layers) [MLX_DECODE_##name] = #field,
    MLX_DECODE_WEIGHT_TABLE(WEIGHT_NAME)
#undef WEIGHT_NAME
};

void mlx_cuda_define_weights(mlx_text_t *definitions, const mlx_decode_plan_t *plan) {
  int in_layers = 0;
  for (size_t i = 0; i < MLX_DECODE_WEIGHTS; ++i) {
    if (!plan->form.counts[i]) continue;
    mlx_text_printf(definitions, "%s={.at=%lluull,.step=%lluull", weight_names[i],
                    (unsigned long long)plan->offsets[i].first, (unsigned long long)plan->offsets[i].stride);
    if (!plan->regular && mlx_decode_in_layers((mlx_decode_weight_t)i))
      mlx_text_printf(definitions, ",.nth=%d", in_layers++);
    mlx_text_puts(definitions, "}\n");
  }
}

// Tile formats for decode_tiles.cuh.
static void define_tiles(mlx_text_t *definitions, const mlx_decode_plan_t *plan, int64_t layers) {
  static const char *const roles[MLX_DECODE_ROLES] = {
#define ROLE_NAME(name, field) [MLX_DECODE_ROLE_##name] = #field,
      MLX_DECODE_ROLE_TABLE(ROLE_NAME)
#undef ROLE_NAME
  };
  bool offsets = false, second = false;
  int64_t bits[MLX_MAX_LAYERS];
  if (!plan->tiles[MLX_DECODE_ROLE_QKV][0].bits) return;
  for (int i = 0; i < 2 * MLX_DECODE_ROLES; ++i) {
    const mlx_tiles_t tiles = plan->tiles[i / 2][i % 2];
    if (!tiles.bits) continue;
    mlx_text_printf(definitions, "%s_tiles%s={" MLX_TILES_FORMAT "}\n", roles[i / 2], i % 2 ? "_2" : "",
                    MLX_TILES_ARGUMENTS(tiles));
    offsets |= tiles.offset;
    second |= i % 2;
  }
  MLX_DEFINE(definitions, {"packed", 1}, {"offsets", offsets});
  if (!second) return;
  MLX_DEFINE(definitions, {"second_formats", 1});
  for (int64_t i = 0; i < layers; ++i) bits[i] = plan->second[i];
  mlx_cuda_define_table(definitions, "second_formats", "u8", bits, layers);
}

static void write_layer_offsets(mlx_text_t *d, const mlx_decode_plan_t *plan, const size_t *weights,
                                const uint64_t *offsets, int64_t layers) {
  int count = 0;
  for (size_t i = 0; i < MLX_DECODE_WEIGHTS; ++i)
    count += mlx_decode_in_layers((mlx_decode_weight_t)i) && plan->form.counts[i];
  MLX_DEFINE(d, {"layer_weights", count});
  mlx_text_puts(d, "layer_offsets:u64=");
  for (int64_t layer = 0; layer < layers; ++layer) {
    const size_t *row = weights + layer * MLX_DECODE_WEIGHTS;
    const char *separator = layer ? "," : "";
    for (size_t i = 0; i < MLX_DECODE_WEIGHTS; ++i) {
      if (!mlx_decode_in_layers((mlx_decode_weight_t)i) || !plan->form.counts[i]) continue;
      mlx_text_printf(d, "%s%lluull", separator,
                      row[i] == MLX_WEIGHT_ABSENT ? 0 : (unsigned long long)offsets[row[i]]);
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
  int64_t rope_of[MLX_MAX_LAYERS];
  bool scaled = false;
  for (int r = 0; r < form->rope_count; ++r) scaled |= form->ropes[r] && form->ropes[r]->scale != 1.0;
  if (form->rope_count > 1) MLX_DEFINE(d, {"ropes", form->rope_count});
  if (any && any->dims != c->head_dim) MLX_DEFINE(d, {"rope_dims", any->dims});
  if (any && any->adjacent) MLX_DEFINE(d, {"rope_adjacent", 1});
  if (scaled) MLX_DEFINE(d, {"rope_scaled", 1});
  mlx_text_puts(d, "rope_frequencies:float=");
  for (int r = 0; r < form->rope_count; ++r) {
    const mlx_rope_t *rope = form->ropes[r];
    for (int64_t i = 0; i < c->head_dim / 2; ++i) {
      const bool rotated = rope && i < rope->dims / 2;
      mlx_text_printf(d, "%s%.9ef", r || i ? "," : "", rotated ? (double)rope->frequencies[i] : 0.0);
    }
  }
  mlx_text_puts(d, "\n");
  if (scaled) mlx_text_puts(d, "rope_scales:float=");
  for (int r = 0; scaled && r < form->rope_count; ++r)
    mlx_text_printf(d, "%s%.9ef", r ? "," : "", form->ropes[r] ? form->ropes[r]->scale : 1.0);
  if (scaled) mlx_text_puts(d, "\n");
  if (form->rope_count < 2) return;
  for (int64_t i = 0; i < c->layers; ++i) rope_of[i] = form->rope_of[i];
  mlx_cuda_define_table(d, "rope_layers", "u8", rope_of, c->layers);
}

static void define_experts(mlx_text_t *d, const mlx_decode_plan_t *plan) {
  const mlx_decode_form_t *form = &plan->form;
  if (!form->experts) return;
  MLX_DEFINE(d, {"experts", form->experts}, {"used", form->used}, {"sum_to_one", form->sum_to_one});
  mlx_cuda_define_type(d, "router_dtype", form->router);
  if (form->limit != 0.0) mlx_text_printf(d, "limit=%.9ef\nslope=%.9ef\n", form->limit, form->slope);
  if (!form->shared_ffn) return;
  MLX_DEFINE(d, {"shared_ffn", form->shared_ffn});
  if (!plan->tiles[MLX_DECODE_ROLE_SHARED_SCORE][0].bits) mlx_cuda_define_type(d, "score_dtype", form->score);
}

// Layers with a sliding window.
static void define_windows(mlx_text_t *d, const mlx_decode_form_t *form, int64_t layers) {
  int64_t windowed[MLX_MAX_LAYERS];
  if (!form->window) return;
  MLX_DEFINE(d, {"window", form->window});
  for (int64_t i = 0; i < layers; ++i) windowed[i] = form->windowed[i];
  mlx_cuda_define_table(d, "windowed_layers", "u8", windowed, layers);
}

// The number of each layer in its page.
static void define_page_layers(mlx_text_t *d, const mlx_function_t *g) {
  int64_t nth[MLX_MAX_LAYERS];
  for (int64_t i = 0; i < g->model->config.layers; ++i) nth[i] = mlx_function_place_layer(g, i).nth;
  mlx_cuda_define_table(d, "page_layers", "u16", nth, g->model->config.layers);
}

static void define_window_pages(mlx_text_t *d, const mlx_function_t *g) {
  if (!g->options->window_pages) return;
  MLX_DEFINE(d, {"window_layers", mlx_function_page_layers(g, MLX_WINDOW_PAGES)});
  define_page_layers(d, g);
}

static void define_delta(mlx_text_t *d, const mlx_decode_plan_t *plan) {
  const mlx_delta_t *p = &plan->form.delta;
  if (!p->value_heads) return;
  MLX_DEFINE(d, {"key_heads", p->key_heads}, {"value_heads", p->value_heads}, {"key_dim", p->key_dim},
             {"value_dim", p->value_dim});
  mlx_cuda_define_float(d, "delta_scale", p->scale);
  mlx_cuda_define_float(d, "delta_eps", p->eps);
  MLX_DEFINE(d, {"log_rate", p->log_rate}, {"tiled_heads", p->tiled});
  if (plan->form.delta_rows_format)
    MLX_DEFINE(d, {"delta_rows_format", plan->form.delta_rows_format});
  else if (!plan->tiles[MLX_DECODE_ROLE_DELTA][0].bits)
    mlx_cuda_define_type(d, "delta_dtype", plan->form.delta_rows);
}

// Recurrent layers, and where their states and the pages of the other layers are.
static void define_recurrent(mlx_text_t *d, const mlx_function_t *g, const mlx_decode_plan_t *plan) {
  const mlx_decode_form_t *form = &plan->form;
  const int64_t layers = g->model->config.layers;
  int64_t recurrent[MLX_MAX_LAYERS], places[2 * MLX_MAX_LAYERS];
  if (form->gated_heads && !form->recurrent_layers) MLX_DEFINE(d, {"gated_heads", 1});
  if (!form->recurrent_layers) return;
  MLX_DEFINE(d, {"attention_layers", layers - form->recurrent_layers});
  if (form->gated_heads) MLX_DEFINE(d, {"gated_heads", 1});
  MLX_DEFINE(d, {"page_words", mlx_function_page_bytes(g, MLX_PAGES) / 4},
             {"state_words", mlx_function_state_bytes(g) / 4}, {"filter_taps", form->taps});
  define_delta(d, plan);
  for (int64_t i = 0; i < layers; ++i) recurrent[i] = form->recurrent[i];
  for (int64_t i = 0; i < 2 * layers; ++i) {
    const int node = form->state_nodes[i / 2][i % 2];
    places[i] = 0;
    if (node) mlx_graph_state(g->graph, node, &places[i]);
  }
  mlx_cuda_define_table(d, "recurrent_layers", "u8", recurrent, layers);
  mlx_cuda_define_table(d, "state_places", "u32", places, 2 * layers);
  define_page_layers(d, g);
}

// An activation whose numbers are all 0 has none.
static void define_activation(mlx_text_t *d, const mlx_decode_form_t *form, int64_t layers) {
  bool has_numbers = false;
  for (int64_t i = 0; i < layers * MLX_ACT_NUMBERS; ++i) {
    const float *numbers = form->act_numbers[i / MLX_ACT_NUMBERS];
    has_numbers |= numbers && numbers[i % MLX_ACT_NUMBERS] != 0.0f;
  }
  if (form->act != MLX_ACT_SILU) mlx_cuda_define_activation(d, "act", form->act);
  if (!has_numbers) return;
  MLX_DEFINE(d, {"act_has_numbers", 1});
  mlx_text_puts(d, "act_numbers:float=");
  for (int64_t i = 0; i < layers * MLX_ACT_NUMBERS; ++i)
    mlx_text_printf(d, "%s%.9ef", i ? "," : "",
                    (double)form->act_numbers[i / MLX_ACT_NUMBERS][i % MLX_ACT_NUMBERS]);
  mlx_text_puts(d, "\n");
}

// Fields of kernels/cuda/decode_config.cuh, where the network differs from Llama's.
static void define_form(mlx_text_t *d, const mlx_function_t *g, const mlx_decode_plan_t *plan) {
  const mlx_config_t *c = &g->model->config;
  const mlx_decode_form_t *form = &plan->form;
  define_activation(d, form, c->layers);
  if (form->layer_norms) MLX_DEFINE(d, {"layer_norms", 1});
  if (form->parallel) MLX_DEFINE(d, {"parallel", 1});
  if (form->positions) MLX_DEFINE(d, {"position_rows", form->positions});
  define_number(d, "qkv_clip", form->clip, 0.0);
  define_number(d, "qkv_late_clip", form->late_clip, 0.0);
  define_number(d, "embed_scale", form->embed_scale, 1.0);
  define_number(d, "residual_scale", form->residual_scale, 1.0);
  define_number(d, "logit_scale", form->logit_scale, 1.0);
  define_number(d, "logit_softcap", form->logit_softcap, 0.0);
  define_number(d, "softcap", plan->attention.softcap, 0.0);
  define_number(d, "query_grow_beta", form->grow_beta, 0.0);
  if (form->grow_beta != 0.0) MLX_DEFINE(d, {"query_grow_period", form->grow_period});
  if (form->norm_after_rope) MLX_DEFINE(d, {"qk_norm_after_rope", 1});
  if (form->whole_norms) MLX_DEFINE(d, {"qk_norm_whole", 1});
  if (form->qk_layer_norms) MLX_DEFINE(d, {"qk_layer_norm", 1});
  define_windows(d, form, c->layers);
  define_experts(d, plan);
  define_window_pages(d, g);
  define_ropes(d, form, c);
  define_recurrent(d, g, plan);
}

static const char *decode_image(mlx_function_t *g, const mlx_decode_plan_t *plan) {
  const mlx_config_t *c = &g->model->config;
  mlx_text_t d = {0};
  MLX_DEFINE(&d, {"hidden", c->hidden}, {"ffn", plan->ffn}, {"heads", c->heads}, {"kv_heads", c->kv_heads},
             {"head_dim", c->head_dim});
  MLX_DEFINE(&d, {"layers", c->layers}, {"vocab", c->vocab});
  MLX_DEFINE(&d, {"blocks", plan->blocks}, {"shared_bytes", plan->shared_bytes},
             {"scratch_words", plan->scratch_words}, {"segment", plan->segment});
  mlx_text_printf(&d, "norm_eps=%.9ef\nscale=%.9ef\n", plan->norm_eps, plan->attention.scale);
  mlx_cuda_define_weights(&d, plan);
  define_tiles(&d, plan, c->layers);
  mlx_status_t status = define_layer_offsets(&d, g, plan);
  if (status) {
    mlx_builder_fail(g->b, status);
    mlx_text_clear(&d);
    return NULL;
  }
  mlx_cuda_define_type(&d, "dtype", plan->dtype);
  mlx_cuda_define_type(&d, "kv", g->options->kv);
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
                         .threads = MLX_DECODE_THREADS,
                         .shared_bytes = plan->shared_bytes,
                         .operands = {mlx_builder_load(b, MLX_WHOLE_ARCHIVE), g->batch},
                         .operand_count = 2 + UPDATES,
                         .updated_from = 2};
  for (int i = 0; i < UPDATES; ++i) kernel.operands[2 + i] = mlx_builder_load(b, updates[i]);
  mlx_built_t updated[UPDATES];
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
