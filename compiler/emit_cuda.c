// Emits decode_K as one launch of kernels/cuda/decode.cu: macro definitions, grid and operands.
#include "compiler/emit_cuda.h"

#include <stdio.h>

#include "artifact/archive.h"
#include "compiler/cuda_image.h"

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
  MLX_DEFINE(&d, {"LAYERS", c->layers}, {"VOCAB", c->vocab}, {"PAGE", g->options->page_size},
             {"POOL_PAGES", mlx_module_pool_pages(g->options)});
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

void mlx_cuda_emit_decode(mlx_function_t *g, const mlx_decode_plan_t *plan, int64_t steps) {
  mlx_builder_t *b = g->b;
  char name[32];
  snprintf(name, sizeof name, "decode_%lld", (long long)steps);
  mlx_builder_begin(
      b, name,
      "Reads the token of the sequence, if it is active, and decodes the next tokens one after the other.");
  mlx_value_t active = mlx_builder_argument(b, "active", MLX_TYPE(MLX_I32, 1));
  mlx_value_t pages =
      mlx_builder_argument(b, "pages", MLX_TYPE(MLX_I32, 1, mlx_module_sequence_pages(g->options)));
  static const char *const states[] = {MLX_STATE_KV, MLX_STATE_SCRATCH, MLX_STATE_TOKEN, MLX_STATE_POSITION,
                                       MLX_STATE_LOGITS};
  mlx_extern_t kernel = {.symbol = "mlx_decode",
                         .file = decode_image(g, plan),
                         .grid = {plan->blocks, 1, 1},
                         .threads = DECODE_THREADS,
                         .shared_bytes = plan->shared_bytes,
                         .operands = {mlx_builder_load(b, MLX_WHOLE_ARCHIVE), pages, active},
                         .operand_count = 8,
                         .updated_from = 3,
                         .result = MLX_TYPE(MLX_I32, 1, steps),
                         .constant = (int32_t)steps,
                         .has_constant = true};
  for (int i = 0; i < 5; ++i) kernel.operands[3 + i] = mlx_builder_load(b, states[i]);
  mlx_value_t updated[5], tokens = {0};
  if (kernel.file) tokens = mlx_build_extern(b, "chosen", &kernel, updated);
  for (int i = 0; i < 5 && tokens.id; ++i) mlx_builder_store(b, states[i], updated[i]);
  mlx_builder_end(b, &tokens, 1);
}
