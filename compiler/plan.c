// Plans the launches of the CUDA decode kernel and of the kernel for few tokens.
#include "compiler/plan.h"

#include "base/memory.h"
#include "compiler/cuda_launch.h"
#include "compiler/plan_match.h"
#include "compiler/weights.h"
#include "kernels/step.h"

// ----------------------------------------------------------------------------------------------------------
// Launch of the CUDA decode kernel. The sizes must match the structs of kernels/cuda/decode.cu, which asserts
// it.

// Runs of 128 columns of each warp, if rows of |width| columns are divided into |segments|.
static int64_t runs_of(int64_t width, int64_t segments) {
  return segments * mlx_ceil_div(mlx_ceil_div(mlx_ceil_div(width, segments), 128), 8);
}

// The same with the best number of segments, of |segment| columns at most.
static int64_t fewest_runs(int64_t width, int64_t segment) {
  const int64_t least = mlx_ceil_div(width, segment);
  int64_t runs = runs_of(width, least);
  for (int64_t i = least + 1; i <= 2 * least; ++i) runs = mlx_min(runs, runs_of(width, i));
  return runs;
}

static bool is_quantized(const mlx_decode_plan_t *plan, mlx_decode_role_t role) {
  const mlx_tiles_t tiles = plan->tiles[role][0];
  return tiles.bits && !mlx_tiles_are_rows(tiles);
}

// Shared memory for the activations that rows of |width| columns are multiplied with. Activations of up to 8
// runs (16 with quantized weights), and those that are multiplied in parts, are kept in registers, and only
// some runs are in shared memory at a time.
static int64_t staged_bytes(const mlx_decode_plan_t *plan, mlx_decode_role_t role, int64_t width) {
  const bool quantized = is_quantized(plan, role),
             in_parts = role == MLX_DECODE_ROLE_DOWN || role == MLX_DECODE_ROLE_SHARED_DOWN;
  int64_t runs = fewest_runs(width, plan->segment);
  if (runs <= (quantized ? 16 : 8) || in_parts) runs = mlx_min(runs, quantized ? 4 : 2);
  return 8 * (quantized ? 640 : 768) * mlx_ceil_div(runs, 2) * 2;
}

// Columns of the matrices of a role; |down|: of the down projections.
static int64_t columns_of(const mlx_decode_plan_t *plan, int role, int64_t queries, int64_t down) {
  switch (role) {
    case MLX_DECODE_ROLE_O: return queries;
    case MLX_DECODE_ROLE_DOWN: return down;
    case MLX_DECODE_ROLE_SHARED_DOWN: return plan->form.shared_ffn;
    default: return plan->hidden;
  }
}

static bool is_of_shared_expert(int role) {
  return role == MLX_DECODE_ROLE_SHARED_GATE || role == MLX_DECODE_ROLE_SHARED_DOWN;
}

// Whether the network has matrices of the role, of which most networks have none.
static bool has_role(const mlx_decode_plan_t *plan, int role) {
  if (role == MLX_DECODE_ROLE_RECURRENT) return plan->form.recurrent_layers > 0;
  return plan->form.shared_ffn || !is_of_shared_expert(role);
}

// Columns of the outputs of recurrent layers; 0: there are none.
static int64_t recurrent_columns(const mlx_decode_plan_t *plan) {
  return plan->form.recurrent_layers ? mlx_recurrent_width(&plan->form, plan->hidden) : 0;
}

// The largest of them.
static int64_t most_staged_bytes(const mlx_decode_plan_t *plan, int64_t queries, int64_t down) {
  int64_t most = 0;
  for (int i = 0; i < MLX_DECODE_ROLE_EMBED; ++i) {
    const int64_t width = columns_of(plan, i, queries, down);
    if (has_role(plan, i)) most = mlx_max(most, staged_bytes(plan, (mlx_decode_role_t)i, width));
  }
  const int64_t outputs = recurrent_columns(plan);
  return outputs ? mlx_max(most, staged_bytes(plan, MLX_DECODE_ROLE_O, outputs)) : most;
}

// Whether the activations of 16-bit rows in a network with quantized matrices fit into registers.
static bool rows_fit(const mlx_decode_plan_t *plan, int64_t queries) {
  for (int i = 0; i < MLX_DECODE_ROLE_EMBED; ++i) {
    const int64_t width =
        mlx_max(columns_of(plan, i, queries, 0), i == MLX_DECODE_ROLE_O ? recurrent_columns(plan) : 0);
    if (mlx_tiles_are_rows(plan->tiles[i][0]) && fewest_runs(width, plan->segment) > 8) return false;
  }
  return true;
}

// Shared memory of attention.
static int64_t attention_bytes(const mlx_config_t *c, mlx_dtype_t kv, bool gated) {
  const int64_t group = c->heads / c->kv_heads, d = c->head_dim;
  const bool wide = kv == MLX_F32 || kv == MLX_Q8_0;
  const int64_t value_warps = wide ? (d <= 128 || group <= 4 ? 1 : 2) : d <= 64 ? 1 : d <= 128 ? 2 : 4;
  const int64_t merge = 4 * (8 * d + 16), gates = gated ? 4 * group * d : 0,
                mixed = 4 * (8 / value_warps * group * (d + 2)) + gates;
  if (wide) return mlx_max(merge, mixed + 4 * (2 + group) * d + 2048 + 256);
  return mlx_max(merge, mixed + (group + 3) / 4 * ((d + 31) / 32) * 1024 + 4 * d + 256);
}

// Matrices of the MLP that are multiplied together: gate and up, or up.
static int64_t mlp_matrices(const mlx_decode_plan_t *plan) {
  return plan->form.counts[MLX_DECODE_GATE] ? 2 : 1;
}

// Large GPUs have stages of up to 24 KB, and stages with rows of both gate and up.
static bool has_large_stages(const mlx_decode_plan_t *plan) { return plan->shared_bytes >= 160 << 10; }

// The largest stage of the ring buffer that weights stream through, with its barriers. A stage has at least
// one tile (128 columns) for each of 8 warps.
static int64_t stage_bytes(const mlx_decode_plan_t *plan, bool quantized) {
  if (!quantized) return 8 * (2 * plan->segment + 64) + 16;
  int64_t largest = 0;
  for (int i = 0; i < 2 * MLX_DECODE_ROLES; ++i) {
    const mlx_tiles_t tiles = plan->tiles[i / 2][i % 2];
    const bool pairs = i / 2 == MLX_DECODE_ROLE_GATE || i / 2 == MLX_DECODE_ROLE_SHARED_GATE;
    const int64_t rows = pairs && has_large_stages(plan) ? mlp_matrices(plan) : 1;
    if (!tiles.bits || i / 2 == MLX_DECODE_ROLE_SHARED_SCORE || i / 2 == MLX_DECODE_ROLE_DELTA) continue;
    if (mlx_tiles_are_rows(tiles)) {
      if (i / 2 != MLX_DECODE_ROLE_EMBED)
        largest = mlx_max(largest, 8 * (2 * mlx_min(plan->segment, 1024) + 64));
      continue;
    }
    const int64_t least = rows * (int64_t)mlx_tiles_bytes(tiles, 1, 1024),
                  whole = rows * (int64_t)mlx_tiles_bytes(tiles, 1, plan->segment);
    largest = mlx_max(largest, mlx_min(whole, mlx_max(least, 24 << 10)));
  }
  return largest + 16;
}

// Columns of the down projection: those of the experts that a token uses follow each other, each padded to
// whole pairs of tiles.
static int64_t down_columns(const mlx_decode_plan_t *plan, bool quantized) {
  if (!plan->form.experts) return plan->ffn;
  return plan->form.used * (quantized ? mlx_ceil_div(plan->ffn, 256) * 256 : plan->ffn);
}

// Rows of gate, or of up, in the matrices that a token is multiplied with.
static int64_t mlp_rows(const mlx_decode_plan_t *plan) {
  return plan->form.experts ? plan->form.used * plan->ffn : plan->ffn;
}

// Shared memory for the sums of tiles that are completed together: BATCH of the kernel.
static int64_t sums_bytes(const mlx_decode_plan_t *plan, bool quantized) {
  const int64_t tiles = mlx_ceil_div(mlp_rows(plan), MLX_TILE_ROWS * plan->blocks);
  const int64_t together = mlx_max(8, mlx_min(32, mlp_matrices(plan) * tiles));
  return 512 * (quantized && has_large_stages(plan) ? together : 8);
}

// Words of the exchange of recurrent layers.
static int64_t recurrent_words(const mlx_decode_plan_t *plan) {
  const mlx_delta_t *d = &plan->form.delta;
  const int64_t outputs = recurrent_columns(plan);
  if (!d->value_heads) return outputs;
  return 2 * d->key_heads * d->key_dim + 3 * outputs + mlx_ceil_div(2 * d->value_heads, 4) * 4 +
         4 * d->value_heads;
}

// Every block needs at least one row of every matrix, or one tile row (8 rows) of a quantized one.
static void plan_launch(const mlx_model_t *model, const mlx_gpu_kind_t *gpu, bool quantized,
                        mlx_decode_plan_t *plan) {
  const mlx_config_t *c = &model->config;
  const int64_t queries = c->heads * c->head_dim, keys = c->kv_heads * c->head_dim,
                together = quantized ? MLX_TILE_ROWS : 1;
  const int64_t rows = mlx_min(mlx_min(c->hidden, mlp_rows(plan)), mlx_min(c->vocab, queries + 2 * keys));
  plan->blocks = mlx_min(gpu->blocks, mlx_ceil_div(rows, together));
  plan->shared_bytes = gpu->shared_bytes;
  const int64_t splits = mlx_max(1, plan->blocks / c->kv_heads);
  const int64_t choice = plan->blocks * (8 + 4 * (2 + 2 * 64)) + mlx_ceil_div(c->vocab, 4) * 4;
  plan->scratch_words = 64 + choice + 3 * c->hidden + 2 * queries + 2 * keys;
  const int64_t scores = plan->form.experts + (plan->form.shared_ffn ? 1 : 0);
  plan->scratch_words += 2 * down_columns(plan, quantized) + 2 * mlx_ceil_div(scores, 4) * 4;
  plan->scratch_words += 2 * plan->form.shared_ffn;
  plan->scratch_words += c->heads * splits * (c->head_dim + 2);
  if (plan->form.parallel) plan->scratch_words += queries;
  if (plan->form.gated_heads) plan->scratch_words += queries;
  plan->scratch_words += recurrent_words(plan);
}

// The activations of all experts of a token are kept in registers, in one part.
static bool experts_fit(const mlx_decode_plan_t *plan, bool quantized) {
  const mlx_decode_form_t *form = &plan->form;
  return !form->experts ||
         (form->used <= 32 && form->experts <= 1024 && plan->ffn % MLX_TILE_ROWS == 0 &&
          fewest_runs(down_columns(plan, quantized), plan->segment) <= (quantized ? 16 : 8));
}

// Whether every block keeps the residual stream in shared memory: KEEPS_ROW of the kernel.
static bool keeps_row(const mlx_decode_plan_t *plan) {
  const mlx_decode_form_t *form = &plan->form;
  return mlx_has_post_norms(form) ||
         (form->parallel &&
          (form->counts[MLX_DECODE_MLP_NORM] || mlx_tiles_are_rows(plan->tiles[MLX_DECODE_ROLE_QKV][0])));
}

// Whether stages of plan->segment columns fit. The ring buffer needs one stage more than the kernel requests
// ahead.
static bool segment_fits(const mlx_model_t *model, mlx_dtype_t kv, bool quantized,
                         const mlx_decode_plan_t *plan) {
  const mlx_config_t *c = &model->config;
  const int64_t queries = c->heads * c->head_dim,
                staged = most_staged_bytes(plan, queries, down_columns(plan, quantized));
  const int64_t residual = keeps_row(plan) ? 4 * c->hidden : 0,
                row = mlx_has_orders(&plan->form) ? 4 * mlx_max(c->hidden, queries) : 0;
  const int64_t work = mlx_max(attention_bytes(c, kv, plan->form.gated_heads), staged) + residual + row,
                unit = quantized ? MLX_CODES : 8;
  return experts_fit(plan, quantized) && rows_fit(plan, queries) && c->hidden % unit == 0 &&
         plan->ffn % unit == 0 && plan->form.shared_ffn % unit == 0 && recurrent_columns(plan) % unit == 0 &&
         c->head_dim % 8 == 0 && c->head_dim <= 256 &&
         4 * stage_bytes(plan, quantized) + work + sums_bytes(plan, quantized) + (4 << 10) <=
             plan->shared_bytes;
}

// Chooses the widest segments that fit. Rows of the hidden size are one segment, if they have at most 4096
// quantized columns: each stage costs a wait.
static bool launch_fits(const mlx_model_t *model, mlx_dtype_t kv, bool quantized, mlx_decode_plan_t *plan) {
  const int64_t hidden = mlx_ceil_div(model->config.hidden, 256) * 256;
  plan->segment = quantized && has_large_stages(plan) ? mlx_min(4096, mlx_max(2048, hidden)) : 1024;
  for (; plan->segment >= 512; plan->segment = plan->segment / 2 / 256 * 256) {
    if (segment_fits(model, kv, quantized, plan)) return true;
  }
  return false;
}

// ----------------------------------------------------------------------------------------------------------
// Launch of kernels/cuda/few.cu, which asserts the sizes. It knows Llama's network with bf16 weights.

#define FEW_WARPS 8
#define FEW_STAGES 6
#define FEW_COLUMNS 2048  // most columns of x, which the warps keep in registers

static bool is_few_width(int64_t columns) {
  return columns % (32 * FEW_WARPS) == 0 && columns <= FEW_COLUMNS;
}

static bool has_llama_form(const mlx_decode_plan_t *plan) {
  const mlx_decode_form_t *form = &plan->form;
  for (int i = MLX_DECODE_HEAD + 1; i < MLX_DECODE_WEIGHTS; ++i)
    if (form->counts[i]) return false;
  return form->counts[MLX_DECODE_ATTN_NORM] && form->counts[MLX_DECODE_GATE] && !form->layer_norms &&
         !form->parallel && form->act == MLX_ACT_SILU && form->residual_scale == 1.0 && form->clip == 0.0 &&
         form->late_clip == 0.0 && form->grow_beta == 0.0 && !form->experts;
}

// |room|: shared memory of a block.
static void plan_few(const mlx_model_t *model, const mlx_module_options_t *options, int64_t room,
                     mlx_decode_plan_t *plan) {
  const mlx_config_t *c = &model->config;
  const int64_t queries = c->heads * c->head_dim;
  int64_t slices = 1;
  while (slices <= 8 && (c->ffn % slices || !is_few_width(c->ffn / slices))) ++slices;
  if (slices > 8 || options->narrow || options->kernels->gpu->kernel_sm != 90 || !plan->regular ||
      plan->dtype != MLX_BF16 || plan->tiles[MLX_DECODE_ROLE_QKV][0].bits || !has_llama_form(plan) ||
      !is_few_width(c->hidden) || !is_few_width(queries) || c->head_dim % 8 || c->vocab % 8 ||
      plan->blocks < slices)
    return;
  const int64_t columns = mlx_max(mlx_max(c->hidden, queries), c->ffn / slices);
  plan->few.shared_bytes =
      FEW_STAGES * (8 * (columns * 2 + 16) + 16) + 4 * FEW_WARPS * 512 + 8 * c->hidden + FEW_WARPS * 32 + 128;
  if (plan->few.shared_bytes > room) return;
  plan->few.slices = slices;
  plan->few.words_at = mlx_ceil_div(plan->scratch_words, 64) * 64;
  plan->few.words = 2 * MLX_FEW_SEQUENCES * ((2 + slices) * c->hidden + c->ffn);
}

// ----------------------------------------------------------------------------------------------------------
// Plans

// A launch takes at most a tenth of a second, so that output keeps streaming and other work gets its turn.
// Each token reads all weights.
static int64_t steps_of_launch(const mlx_gpu_kind_t *gpu, uint64_t weight_bytes) {
  const uint64_t launch_bytes = (uint64_t)gpu->bandwidth * (1000000000 / 10);
  return mlx_min(MLX_BURST_TOKENS, mlx_max(1, (int64_t)(launch_bytes / mlx_max(1, (int64_t)weight_bytes))));
}

mlx_status_t mlx_decode_plan_make(const mlx_model_t *model, const mlx_graph_t *graph,
                                  const mlx_module_options_t *options, mlx_decode_plan_t *out_plan,
                                  bool *out_fits) {
  *out_plan = (mlx_decode_plan_t){.hidden = model->config.hidden, .ffn = model->config.ffn, .regular = true};
  *out_fits = false;
  if (!options->kernels || !options->kernels->gpu) return NULL;
  const bool quantized = options->layout == MLX_LAYOUT_TILES;
  const mlx_storage_t storage = mlx_module_storage(options);
  uint64_t *offsets = NULL;
  bool matches = false;
  mlx_status_t status = mlx_alloc(model->weight_count, sizeof *offsets, &offsets);
  if (!status) {
    const uint64_t bytes = mlx_weights_layout(model, storage, offsets);  // each step reads all
    out_plan->max_steps = steps_of_launch(options->kernels->gpu, bytes);
    status = mlx_plan_match_network(model, graph, offsets, storage, NULL, out_plan, &matches);
  }
  if (!status) {
    plan_launch(model, options->kernels->gpu, quantized, out_plan);
    *out_fits = matches && launch_fits(model, options->kv, quantized, out_plan);
    if (matches && !*out_fits) out_plan->misfit.why = "sizes that do not fit the shared memory of the GPU";
    if (*out_fits) plan_few(model, options, options->kernels->gpu->shared_bytes, out_plan);
  }
  mlx_free(offsets);
  return status;
}

mlx_status_t mlx_network_plan_make(const mlx_model_t *model, const mlx_graph_t *graph,
                                   mlx_network_plan_t *out_plan) {
  *out_plan = (mlx_network_plan_t){0};
  mlx_decode_plan_t plan = {.hidden = model->config.hidden, .ffn = model->config.ffn};
  mlx_status_t status = mlx_alloc((size_t)model->config.layers * MLX_DECODE_WEIGHTS,
                                  sizeof *out_plan->weights, &out_plan->weights);
  for (int64_t i = 0; !status && i < model->config.layers * MLX_DECODE_WEIGHTS; ++i)
    out_plan->weights[i] = MLX_WEIGHT_ABSENT;
  if (!status)
    status = mlx_plan_match_network(model, graph, NULL, (mlx_storage_t){0}, out_plan->weights, &plan,
                                    &out_plan->fits);
  if (status) {
    mlx_network_plan_clear(out_plan);
    return status;
  }
  out_plan->gated = plan.form.counts[MLX_DECODE_GATE] > 0;
  out_plan->shared = plan.form.shared_ffn > 0;
  return NULL;
}

void mlx_network_plan_clear(mlx_network_plan_t *plan) {
  mlx_free(plan->weights);
  *plan = (mlx_network_plan_t){0};
}
