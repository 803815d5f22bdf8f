// Emits a module whose functions each call the CPU kernel once, and the network description that it reads.
#include "compiler/emit_cpu.h"

#include <stdio.h>
#include <string.h>

#include "artifact/archive.h"
#include "base/cpu.h"
#include "base/memory.h"
#include "compiler/plan.h"
#include "compiler/weights.h"
#include "kernels/cpu/layout.h"

#define PLAN "plan"  // name of the constant that holds the network description

typedef struct emission {
  mlx_function_t *g;
  const mlx_network_plan_t *plan;
  const uint64_t *offsets;
  uint64_t archive_bytes;
  mlx_network_t network;
} emission_t;

// ----------------------------------------------------------------------------------------------------------
// The network description (mlx_network_t) that the kernel reads

static mlx_network_weight_t weight_at(const emission_t *e, int64_t layer, mlx_decode_weight_t which) {
  const size_t index = e->plan->weights[layer * MLX_DECODE_WEIGHTS + which];
  const mlx_stored_t stored =
      mlx_weight_stored(&e->g->model->weights[index], mlx_module_storage(e->g->options));
  return (mlx_network_weight_t){.at = e->offsets[index], .format = (int32_t)stored.format};
}

static mlx_network_layer_t layer_at(const emission_t *e, int64_t layer) {
  return (mlx_network_layer_t){.attn_norm = weight_at(e, layer, MLX_DECODE_ATTN_NORM),
                               .q = weight_at(e, layer, MLX_DECODE_Q),
                               .k = weight_at(e, layer, MLX_DECODE_K),
                               .v = weight_at(e, layer, MLX_DECODE_V),
                               .o = weight_at(e, layer, MLX_DECODE_O),
                               .mlp_norm = weight_at(e, layer, MLX_DECODE_MLP_NORM),
                               .gate = weight_at(e, layer, MLX_DECODE_GATE),
                               .up = weight_at(e, layer, MLX_DECODE_UP),
                               .down = weight_at(e, layer, MLX_DECODE_DOWN)};
}

static void describe(emission_t *e) {
  const mlx_config_t *c = &e->g->model->config;
  const mlx_module_options_t *o = e->g->options;
  e->network = (mlx_network_t){.hidden = (int32_t)c->hidden,
                               .ffn = (int32_t)c->ffn,
                               .heads = (int32_t)c->heads,
                               .kv_heads = (int32_t)c->kv_heads,
                               .head_dim = (int32_t)c->head_dim,
                               .layers = (int32_t)c->layers,
                               .vocab = (int32_t)c->vocab,
                               .sequences = (int32_t)o->sequences,
                               .sequence_pages = (int32_t)mlx_module_sequence_pages(o),
                               .pool_pages = (int32_t)mlx_module_pool_pages(o),
                               .max_tokens = (int32_t)(o->sequences * o->buckets[o->bucket_count - 1]),
                               .kv_format = (int32_t)mlx_dtype_info(o->dtype)->panel,
                               .tiles = !strcmp(o->kernels->cpu_level, "sapphirerapids"),
                               .norm_eps = (float)e->plan->norm_eps,
                               .scale = (float)e->plan->scale,
                               .embed = weight_at(e, 0, MLX_DECODE_EMBED),
                               .final_norm = weight_at(e, 0, MLX_DECODE_FINAL_NORM),
                               .head = weight_at(e, 0, MLX_DECODE_HEAD)};
}

// Serializes the description: mlx_network_t, RoPE frequencies, layers.
static mlx_status_t write_plan(const emission_t *e, int32_t **out_words, int64_t *out_count) {
  const mlx_network_t *n = &e->network;
  const size_t frequencies = (size_t)mlx_network_frequency_words(n) * 4,
               layers = (size_t)n->layers * sizeof(mlx_network_layer_t);
  uint8_t *bytes;
  MLX_TRY(mlx_alloc(sizeof *n + frequencies + layers, 1, &bytes));
  memcpy(bytes, n, sizeof *n);
  memcpy(bytes + sizeof *n, e->plan->rope->frequencies, (size_t)n->head_dim / 2 * 4);
  for (int32_t i = 0; i < n->layers; ++i) {
    const mlx_network_layer_t layer = layer_at(e, i);
    memcpy(bytes + sizeof *n + frequencies + (size_t)i * sizeof layer, &layer, sizeof layer);
  }
  *out_words = (int32_t *)(void *)bytes;
  *out_count = (int64_t)((sizeof *n + frequencies + layers) / 4);
  return NULL;
}

static mlx_status_t declare(const emission_t *e) {
  const mlx_module_options_t *o = e->g->options;
  const mlx_network_t *n = &e->network;
  mlx_builder_t *b = e->g->b;
  int32_t *words;
  int64_t count;
  MLX_TRY(write_plan(e, &words, &count));
  mlx_builder_constant(b, PLAN, words, count);
  mlx_free(words);
  mlx_builder_parameter(b, MLX_WHOLE_ARCHIVE, MLX_TYPE(MLX_I32, (int64_t)(e->archive_bytes / 4)));
  const int64_t kv = (int64_t)n->layers * n->pool_pages * n->kv_heads * 2 * MLX_CPU_PAGE * n->head_dim;
  // Uninitialized: the kernel reads a position only after a token was written there.
  mlx_builder_state_empty(b, MLX_STATE_KV, MLX_TYPE(o->dtype, kv));
  mlx_builder_state_of_ones(b, MLX_STATE_SCRATCH, MLX_TYPE(MLX_I32, mlx_network_scratch(n).words));
  mlx_builder_state(b, MLX_STATE_TOKEN, MLX_TYPE(MLX_I32, o->sequences));
  mlx_builder_state(b, MLX_STATE_POSITION, MLX_TYPE(MLX_I32, o->sequences));
  mlx_builder_state(b, MLX_STATE_LOGITS, MLX_TYPE(MLX_F32, o->sequences, n->vocab));
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Functions

#define STATES 5
static const char *const states[STATES] = {MLX_STATE_KV, MLX_STATE_SCRATCH, MLX_STATE_TOKEN,
                                           MLX_STATE_POSITION, MLX_STATE_LOGITS};

// Name of the object format in IREE.
static const char *elf_target(const emission_t *e) {
  const mlx_cpu_level_t *level = mlx_cpu_level_find(e->g->options->kernels->cpu_level);
  return level->arch == MLX_AARCH64 ? "embedded-elf-arm_64" : "embedded-elf-x86_64";
}

// The operands are the parameters of mlx_network_run, in its order.
static mlx_linked_t kernel_call(const emission_t *e, mlx_value_t tokens, mlx_value_t start, mlx_value_t count,
                                mlx_value_t pages, mlx_type_t result, int64_t width, int64_t steps,
                                const char *file) {
  mlx_builder_t *b = e->g->b;
  mlx_linked_t kernel = {.symbol = "mlx_network_run",
                         .file = file,
                         .target = elf_target(e),
                         .workgroups = MLX_CPU_WORKGROUPS,
                         .operand_count = 6 + STATES,
                         .updated_from = 6,
                         .result = result,
                         .constants = {(int32_t)width, (int32_t)steps},
                         .constant_count = 2};
  kernel.operands[0] = mlx_builder_load(b, MLX_WHOLE_ARCHIVE);
  kernel.operands[1] = mlx_builder_load(b, PLAN);
  const mlx_value_t arguments[] = {tokens, start, count, pages};
  memcpy(kernel.operands + 2, arguments, sizeof arguments);
  for (int i = 0; i < STATES; ++i) kernel.operands[6 + i] = mlx_builder_load(b, states[i]);
  return kernel;
}

static void call_and_return(const emission_t *e, const char *name, const mlx_linked_t *kernel) {
  mlx_builder_t *b = e->g->b;
  mlx_value_t updated[STATES];
  mlx_value_t tokens = mlx_build_linked(b, name, kernel, updated);
  for (int i = 0; i < STATES && tokens.id; ++i) mlx_builder_store(b, states[i], updated[i]);
  mlx_builder_end(b, &tokens, 1);
}

static void emit_prefill(const emission_t *e, int64_t tokens, const char *file) {
  mlx_builder_t *b = e->g->b;
  const int64_t sequences = e->g->options->sequences;
  char name[32];
  snprintf(name, sizeof name, "prefill_%lld", (long long)tokens);
  mlx_builder_begin(b, name,
                    "Reads count[row] tokens that stand at start[row]; a row with count 0 is left alone.");
  mlx_value_t input = mlx_builder_argument(b, "tokens", MLX_TYPE(MLX_I32, sequences, tokens));
  mlx_value_t start = mlx_builder_argument(b, "start", MLX_TYPE(MLX_I32, sequences));
  mlx_value_t count = mlx_builder_argument(b, "count", MLX_TYPE(MLX_I32, sequences));
  mlx_value_t pages = mlx_builder_argument(
      b, "pages", MLX_TYPE(MLX_I32, sequences, mlx_module_sequence_pages(e->g->options)));
  const mlx_linked_t kernel =
      kernel_call(e, input, start, count, pages, MLX_TYPE(MLX_I32, sequences), tokens, 1, file);
  call_and_return(e, "next", &kernel);
}

static void emit_decode(const emission_t *e, int64_t steps, const char *file) {
  mlx_builder_t *b = e->g->b;
  const int64_t sequences = e->g->options->sequences;
  char name[32];
  snprintf(name, sizeof name, "decode_%lld", (long long)steps);
  mlx_builder_begin(b, name,
                    "Reads the token of each active row and goes on from there, one token after the other.");
  mlx_value_t active = mlx_builder_argument(b, "active", MLX_TYPE(MLX_I32, sequences));
  mlx_value_t pages = mlx_builder_argument(
      b, "pages", MLX_TYPE(MLX_I32, sequences, mlx_module_sequence_pages(e->g->options)));
  const mlx_linked_t kernel =
      kernel_call(e, active, active, active, pages, MLX_TYPE(MLX_I32, sequences, steps), 0, steps, file);
  call_and_return(e, "chosen", &kernel);
}

static mlx_status_t emit(emission_t *e) {
  const mlx_module_options_t *o = e->g->options;
  const char *file;
  MLX_TRY(mlx_kernels_image(o->kernels, MLX_KERNEL_NETWORK, "", &file));
  describe(e);
  MLX_TRY(declare(e));
  mlx_linked_t shape = {.symbol = "mlx_network_run",
                        .file = file,
                        .target = elf_target(e),
                        .workgroups = MLX_CPU_WORKGROUPS,
                        .operand_count = 6 + STATES,
                        .updated_from = 6,
                        .result = MLX_TYPE(MLX_I32, 1),
                        .constant_count = 2};
  for (int i = 0; i < 6 + STATES; ++i) shape.operands[i].dtype = MLX_I32;
  shape.operands[6].dtype = o->dtype;
  shape.operands[10].dtype = MLX_F32;
  mlx_builder_link(e->g->b, &shape);
  for (size_t i = 0; i < o->bucket_count; ++i) emit_prefill(e, o->buckets[i], file);
  for (size_t i = 0; i < o->step_count; ++i) emit_decode(e, o->steps[i], file);
  return NULL;
}

mlx_status_t mlx_cpu_emit(mlx_function_t *g) {
  mlx_network_plan_t plan;
  MLX_TRY(mlx_network_plan_make(g->model, g->graph, g->options, &plan));
  uint64_t *offsets = NULL;
  emission_t e = {.g = g, .plan = &plan};
  mlx_status_t status = plan.fits ? mlx_alloc(g->model->weight_count, sizeof *offsets, &offsets)
                                  : mlx_error(MLX_INTERNAL, "the CPU kernel does not support this network");
  e.offsets = offsets;
  if (!status) e.archive_bytes = mlx_weights_layout(g->model, mlx_module_storage(g->options), offsets);
  if (!status) status = emit(&e);
  mlx_free(offsets);
  mlx_network_plan_clear(&plan);
  return status;
}
