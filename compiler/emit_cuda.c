// Emits burst and step_1, each as a launch of kernels/cuda/decode.cu: macro definitions, grid and operands.
#include "compiler/emit_cuda.h"

#include "artifact/archive.h"
#include "base/memory.h"
#include "compiler/cuda_image.h"
#include "compiler/lower_place.h"
#include "compiler/weights.h"
#include "kernels/step.h"

#define DECODE_THREADS 288

static void define_offsets(mlx_text_t *definitions, const mlx_decode_plan_t *plan) {
  static const char *const names[] = {"EMBED",    "ATTN_NORM", "Q",  "K",    "V",          "O",
                                      "MLP_NORM", "GATE",      "UP", "DOWN", "FINAL_NORM", "HEAD"};
  for (size_t i = 0; i < MLX_DECODE_WEIGHTS; ++i) {
    mlx_text_printf(definitions, "%s_AT=%lluull\n%s_STEP=%lluull\n", names[i],
                    (unsigned long long)plan->offsets[i].first, names[i],
                    (unsigned long long)plan->offsets[i].stride);
  }
}

// Tile formats for decode_tiles.cuh. All layers share one format per role. q, k and v share a format; so do
// gate and up.
static void define_tiles(mlx_text_t *definitions, const mlx_decode_plan_t *plan) {
  static const struct {
    const char *name;
    mlx_decode_weight_t weight;
  } roles[] = {{"QKV", MLX_DECODE_Q},     {"O", MLX_DECODE_O},       {"GATE", MLX_DECODE_GATE},
               {"DOWN", MLX_DECODE_DOWN}, {"HEAD", MLX_DECODE_HEAD}, {"EMBED", MLX_DECODE_EMBED}};
  bool offsets = false;
  if (!plan->tiles[MLX_DECODE_Q].bits) return;
  for (size_t i = 0; i < sizeof roles / sizeof *roles; ++i) {
    const mlx_tiles_t tiles = plan->tiles[roles[i].weight];
    mlx_text_printf(definitions, "%s_TILES=" MLX_TILES_FORMAT "\n", roles[i].name,
                    MLX_TILES_ARGUMENTS(tiles));
    offsets |= tiles.offset;
  }
  MLX_DEFINE(definitions, {"PACKED", 1}, {"OFFSETS", offsets});
}

static const char *decode_image(mlx_function_t *g, const mlx_decode_plan_t *plan) {
  const mlx_config_t *c = &g->model->config;
  mlx_text_t d = {0};
  MLX_DEFINE(&d, {"HIDDEN", c->hidden}, {"FFN", c->ffn}, {"HEADS", c->heads}, {"KV_HEADS", c->kv_heads},
             {"HEAD_DIM", c->head_dim});
  MLX_DEFINE(&d, {"LAYERS", c->layers}, {"VOCAB", c->vocab}, {"PAGE", MLX_KV_PAGE});
  MLX_DEFINE(&d, {"BLOCKS", plan->blocks}, {"SHARED_BYTES", plan->shared_bytes},
             {"SCRATCH_WORDS", plan->scratch_words}, {"SEGMENT", plan->segment});
  mlx_text_printf(&d, "NORM_EPS=%.9ef\nSCALE=%.9ef\n", plan->norm_eps, plan->attention.scale);
  define_offsets(&d, plan);
  define_tiles(&d, plan);
  mlx_cuda_define_dtype(&d, plan->dtype);
  mlx_cuda_define_kv(&d, g->options->kv);
  const float *frequencies = plan->rope->frequencies;
  mlx_text_puts(&d, "ROPE_FREQUENCIES=");
  for (int64_t i = 0; i < c->head_dim / 2; ++i)
    mlx_text_printf(&d, "%s%.9ef", i ? "," : "", (double)frequencies[i]);
  mlx_text_puts(&d, "\n");
  return mlx_cuda_image(g, MLX_KERNEL_DECODE, &d);
}

// The decode kernel reads the whole archive as one tensor and keeps a scratch buffer.
mlx_status_t mlx_cuda_declare_burst(mlx_function_t *g, const mlx_decode_plan_t *plan) {
  uint64_t *offsets;
  MLX_TRY(mlx_alloc(g->model->weight_count, sizeof *offsets, &offsets));
  const uint64_t bytes = mlx_weights_layout(g->model, mlx_module_storage(g->options), offsets);
  mlx_free(offsets);
  mlx_builder_parameter(g->b, MLX_WHOLE_ARCHIVE, MLX_TYPE(MLX_I32, (int64_t)(bytes / 4)));
  mlx_builder_state_of_ones(g->b, MLX_STATE_SCRATCH, MLX_TYPE(MLX_I32, plan->scratch_words));
  return NULL;
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
