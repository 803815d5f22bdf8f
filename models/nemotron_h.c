// Nemotron-H: a layer is Mamba 2, attention without positions, an MLP of squared ReLU without a gate, or a
// mixture of such MLPs with one more that every token uses (Nemotron 3). The experts may read and write a
// narrower vector, a projection of the hidden state.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/shared/mamba2.h"

#define ATTENTION .layers = MLX_ATTENTION_LAYERS
#define RECURRENT .layers = MLX_RECURRENT_LAYERS
#define MLP .layers = MLX_MLP_LAYERS
#define MIXTURE .layers = MLX_MIXTURE_LAYERS
#define STORED "backbone.layers.%d.mixer."

static bool has_latent(const mlx_config_t *c) { return c->expert_hidden != c->hidden; }
static bool has_latent_bias(const mlx_config_t *c) { return has_latent(c) && c->mlp_bias; }

// Files of transformers 4 have one tensor per expert, others one for all.
#define EXPERTS(hf, gguf, rows, columns, mlx)                                                      \
  MLX_EXPERTS(STORED "experts.%e." hf ".weight", "blk.%d." gguf ".weight", rows, columns, MIXTURE, \
              .hf_stacked = true, .hf_stored = STORED "experts." hf,                               \
              .mlx_name = STORED "switch_mlp." mlx ".weight")
// A matrix of the expert that all tokens use, or to or from what the experts read, with an optional bias.
#define SHARED(hf, gguf, rows, columns, has, has_bias)                                                   \
  MLX_LAYER_MATRIX("mlp." hf ".weight", gguf ".weight", rows, columns, .hf_stored = STORED hf ".weight", \
                   .present = has, MIXTURE),                                                             \
      MLX_LAYER_VECTOR("mlp." hf ".bias", gguf ".bias", rows, .hf_stored = STORED hf ".bias",            \
                       .present = has_bias, MIXTURE)

static const mlx_tensor_rule_t nemotron_h_tensors[] = {
    MLX_MATRIX("model.embed_tokens.weight", "token_embd.weight", MLX_DIM(vocab), MLX_DIM(hidden),
               .hf_stored = "backbone.embeddings.weight"),
    MLX_LAYER_NORM("norm", "attn_norm", .hf_stored = "backbone.layers.%d.norm.weight"),
    MLX_RULES_MAMBA2(STORED, RECURRENT),
    MLX_LAYER_MATRIX("self_attn.q_proj.weight", "attn_q.weight", MLX_HEADS(heads), MLX_DIM(hidden),
                     .hf_stored = STORED "q_proj.weight", ATTENTION),
    MLX_LAYER_MATRIX("self_attn.k_proj.weight", "attn_k.weight", MLX_HEADS(kv_heads), MLX_DIM(hidden),
                     .hf_stored = STORED "k_proj.weight", ATTENTION),
    MLX_LAYER_MATRIX("self_attn.v_proj.weight", "attn_v.weight", MLX_HEADS(kv_heads), MLX_DIM(hidden),
                     .hf_stored = STORED "v_proj.weight", ATTENTION),
    MLX_LAYER_MATRIX("self_attn.o_proj.weight", "attn_output.weight", MLX_DIM(hidden), MLX_HEADS(heads),
                     .hf_stored = STORED "o_proj.weight", ATTENTION),
    MLX_LAYER_MATRIX("mlp.up_proj.weight", "ffn_up.weight", MLX_DIM(ffn), MLX_DIM(hidden),
                     .hf_stored = STORED "up_proj.weight", MLP),
    MLX_LAYER_MATRIX("mlp.down_proj.weight", "ffn_down.weight", MLX_DIM(hidden), MLX_DIM(ffn),
                     .hf_stored = STORED "down_proj.weight", MLP),
    MLX_LAYER_VECTOR("mlp.up_proj.bias", "ffn_up.bias", MLX_DIM(ffn), .hf_stored = STORED "up_proj.bias",
                     .present = mlx_has_mlp_bias, MLP),
    MLX_LAYER_VECTOR("mlp.down_proj.bias", "ffn_down.bias", MLX_DIM(hidden),
                     .hf_stored = STORED "down_proj.bias", .present = mlx_has_mlp_bias, MLP),
    MLX_LAYER_MATRIX("mlp.gate.weight", "ffn_gate_inp.weight", MLX_DIM(experts), MLX_DIM(hidden),
                     .hf_stored = STORED "gate.weight", MIXTURE),
    MLX_LAYER_VECTOR("mlp.gate.e_score_correction_bias", "exp_probs_b.bias", MLX_DIM(experts),
                     .hf_stored = STORED "gate.e_score_correction_bias", MIXTURE),
    SHARED("fc1_latent_proj", "ffn_latent_down", MLX_DIM(expert_hidden), MLX_DIM(hidden), has_latent,
           has_latent_bias),
    EXPERTS("up_proj", "ffn_up_exps", MLX_DIM(expert_ffn), MLX_DIM(expert_hidden), "fc1"),
    EXPERTS("down_proj", "ffn_down_exps", MLX_DIM(expert_hidden), MLX_DIM(expert_ffn), "fc2"),
    SHARED("fc2_latent_proj", "ffn_latent_up", MLX_DIM(hidden), MLX_DIM(expert_hidden), has_latent,
           has_latent_bias),
    SHARED("shared_experts.up_proj", "ffn_up_shexp", MLX_DIM(shared_ffn), MLX_DIM(hidden), NULL,
           mlx_has_mlp_bias),
    SHARED("shared_experts.down_proj", "ffn_down_shexp", MLX_DIM(hidden), MLX_DIM(shared_ffn), NULL,
           mlx_has_mlp_bias),
    MLX_VECTOR("model.norm.weight", "output_norm.weight", MLX_DIM(hidden),
               .hf_stored = "backbone.norm_f.weight"),
    MLX_RULE_HEAD,
};

// One letter per layer: M, *, - and E, as in hybrid_override_pattern.
static mlx_status_t set_layer(const mlx_source_t *source, const char *key, int64_t layer, const char *type,
                              mlx_config_t *c) {
  c->recurrent[layer] = !strcmp(type, "M") || !strcmp(type, "mamba") || !strcmp(type, "linear_attention");
  c->mixture[layer] = !strcmp(type, "E") || !strcmp(type, "moe");
  c->mlp_only[layer] = c->mixture[layer] || !strcmp(type, "-") || !strcmp(type, "mlp");
  if (c->recurrent[layer] || c->mlp_only[layer] || !strcmp(type, "*") || !strcmp(type, "attention") ||
      !strcmp(type, "full_attention"))
    return NULL;
  return mlx_source_field_error(source, key, NULL, MLX_UNSUPPORTED, "has '%s', an unsupported layer type",
                                type);
}

#define LAYERS "layers_block_type"
#define PATTERN "hybrid_override_pattern"

// The number of layers that the lists of layers give; 0: there are none.
static mlx_status_t count_layers(const mlx_source_t *source, int64_t *out) {
  const char *pattern;
  bool found;
  *out = (int64_t)mlx_source_array_length(source, LAYERS, NULL);
  if (*out) return NULL;
  MLX_TRY(mlx_source_string(source, PATTERN, NULL, &pattern, &found));
  if (found) *out = (int64_t)strlen(pattern);
  return NULL;
}

// GGUF: a layer has KV heads, or a width of its MLP or of its experts, or neither.
static mlx_status_t read_gguf_layers(const mlx_source_t *source, mlx_config_t *c) {
  const char *key = ".feed_forward_length";
  MLX_TRY(mlx_read_layers_without_kv(source, c));
  c->ffn = 0;
  for (int64_t i = 0; i < c->layers; ++i) {
    int64_t width;
    MLX_TRY(mlx_source_int_at(source, key, (size_t)i, &width));
    c->mlp_only[i] = width != 0;
    c->mixture[i] = width && mlx_source_has(source, NULL, ".expert_count");
    if (width && c->recurrent[i]) c->recurrent[i] = false;
    if (width < 0 || width > 1 << 20 || (width && c->ffn && width != c->ffn))
      return mlx_source_field_error(source, NULL, key, MLX_UNSUPPORTED, "has MLPs of different widths");
    if (width) c->ffn = width;
  }
  return NULL;
}

static mlx_status_t read_layers(const mlx_source_t *source, int64_t listed, mlx_config_t *c) {
  const char *type, *pattern = NULL;
  bool found = false;
  if (mlx_source_is_gguf(source)) return read_gguf_layers(source, c);
  const bool has_list = mlx_source_array_length(source, LAYERS, NULL) > 0;
  if (!has_list) MLX_TRY(mlx_source_string(source, PATTERN, NULL, &pattern, &found));
  if (listed != c->layers)
    return mlx_source_field_error(source, has_list ? LAYERS : PATTERN, NULL, MLX_INVALID_INPUT,
                                  "must have one entry for each of the %lld layers", (long long)c->layers);
  for (int64_t i = 0; i < c->layers; ++i) {
    char letter[2] = {pattern ? pattern[i] : 0};
    type = letter;
    if (has_list) MLX_TRY(mlx_source_string_at(source, LAYERS, (size_t)i, &type));
    MLX_TRY(set_layer(source, has_list ? LAYERS : PATTERN, i, type, c));
  }
  return NULL;
}

static mlx_status_t read_mlp_bias(const mlx_source_t *source, mlx_config_t *c) {
  char name[64];
  int layer = 0;
  while (layer < c->layers && !c->mlp_only[layer]) ++layer;
  snprintf(name, sizeof name, "blk.%d.ffn_up.bias", layer);
  return mlx_read_flag(source, "mlp_bias", name, false, &c->mlp_bias);
}

// The name that config.json uses: older files have |old|.
static const char *either(const mlx_source_t *source, const char *old, const char *name) {
  return mlx_source_has(source, old, NULL) ? old : name;
}

// The class ignores time_step_limit. GGUF files have no limits: theirs are the defaults of the class.
static mlx_status_t read_step_limit(const mlx_source_t *source, mlx_config_t *c) {
  const char *key = either(source, "mamba_dt_min", "time_step_min");
  MLX_TRY(mlx_read_number(source, key, NULL, 0.001, &c->scan.min_step));
  c->scan.max_step = INFINITY;
  if (c->scan.min_step >= 0.0) return NULL;
  return mlx_source_field_error(source, key, NULL, MLX_INVALID_INPUT, "must be at least 0");
}

// |groups|: of the experts; |used|: of these, the groups that a token may use.
static mlx_status_t check_groups(const mlx_source_t *source) {
  int64_t groups = 1, used = 1;
  bool found;
  MLX_TRY(mlx_source_int(source, "n_group", ".expert_group_count", 0, 4096, &groups, &found));
  MLX_TRY(mlx_source_int(source, "topk_group", ".expert_group_used_count", 0, 4096, &used, &found));
  if (groups <= 1 || used == groups) return NULL;
  return mlx_source_field_error(source, "n_group", ".expert_group_count", MLX_UNSUPPORTED,
                                "is %lld; groups of experts are not supported", (long long)groups);
}

static mlx_status_t read_experts(const mlx_source_t *source, mlx_config_t *c) {
  int64_t shared = 1;
  bool any = false, found, *const missing = mlx_source_is_gguf(source) ? NULL : &found;
  for (int64_t i = 0; i < c->layers; ++i) any = any || c->mixture[i];
  if (!any) return NULL;
  c->experts = 8;
  c->experts_used = 2;
  c->expert_ffn = c->shared_ffn = 7688;
  c->expert_hidden = c->hidden;
  MLX_TRY(mlx_source_int(source, "n_routed_experts", ".expert_count", 1, 4096, &c->experts, missing));
  MLX_TRY(
      mlx_source_int(source, "num_experts_per_tok", ".expert_used_count", 1, 64, &c->experts_used, missing));
  if (c->experts_used > c->experts)
    return mlx_source_field_error(source, "num_experts_per_tok", ".expert_used_count", MLX_INVALID_INPUT,
                                  "must be from 1 to the number of experts, %lld", (long long)c->experts);
  MLX_TRY(mlx_source_int(source, "moe_intermediate_size", ".expert_feed_forward_length", 1, 1 << 20,
                         &c->expert_ffn, missing));
  MLX_TRY(mlx_source_int(source, "moe_shared_expert_intermediate_size", ".expert_shared_feed_forward_length",
                         1, 1 << 20, &c->shared_ffn, missing));
  MLX_TRY(
      mlx_source_int(source, "moe_latent_size", ".moe_latent_size", 1, 1 << 20, &c->expert_hidden, &found));
  MLX_TRY(
      mlx_source_int(source, NULL, ".expert_shared_count", 0, 4096, &shared, &found));  // they are one MLP
  c->sigmoid_scores = true;
  c->expert_sum_eps = 1e-20;
  MLX_TRY(mlx_read_expert_weights(source, true, c));
  return check_groups(source);
}

// GGUF: the last layers only draft tokens. Hugging Face's files have them apart, as mtp.
static mlx_status_t read_draft_layers(const mlx_source_t *source, mlx_config_t *c) {
  bool found;
  MLX_TRY(mlx_source_int(source, NULL, ".nextn_predict_layers", 0, c->layers - 1, &c->draft_layers, &found));
  c->layers -= c->draft_layers;
  return NULL;
}

static mlx_status_t nemotron_h_read_config(const mlx_source_t *source, mlx_config_t *c) {
  const mlx_mamba2_names_t names = {
      .heads = "mamba_num_heads",
      .head_dim = "mamba_head_dim",
      .groups = either(source, "mamba_n_groups", "n_groups"),
      .state_size = "ssm_state_size",
      .taps = either(source, "mamba_d_conv", "conv_kernel"),
      .conv_bias = either(source, "mamba_conv_bias", "use_conv_bias"),
      .act = "mamba_hidden_act",
      .defaults = {.heads = 128, .groups = 8, .head_dim = 64, .state_size = 128},
  };
  mlx_size_names_t sizes = {.default_head_dim = 128, .default_kv_heads = 8};
  MLX_TRY(count_layers(source, &sizes.default_layers));
  MLX_TRY(mlx_read_act(source, "mlp_hidden_act", MLX_ACT_RELU2, &c->act));
  MLX_TRY(mlx_read_sizes(source, &sizes, false, c));
  MLX_TRY(read_draft_layers(source, c));
  MLX_TRY(mlx_read_eps(source, "layer_norm_epsilon", ".attention.layer_norm_rms_epsilon", c));
  MLX_TRY(read_layers(source, sizes.default_layers, c));
  MLX_TRY(read_mlp_bias(source, c));
  MLX_TRY(read_experts(source, c));
  MLX_TRY(mlx_read_mamba2(source, &names, c));
  MLX_TRY(read_step_limit(source, c));
  c->scan_norm_groups = c->scan.groups;
  if (mlx_source_is_gguf(source))  // has fields of RoPE, which the network does not use
    return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
  MLX_TRY(mlx_read_flag(source, "use_bias", NULL, false, &c->scan_in_bias));
  c->scan_out_bias = c->scan_in_bias;
  return NULL;
}

static mlx_value_t mlp(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const bool bias = c->mlp_bias;
  h = mlx_op_linear_bias(g, "up", h, MLX_W("mlp.up_proj"), MLX_B("mlp.up_proj", bias));  // [M, ffn]
  h = mlx_op_activate(g, "act", c->act, NULL, h);
  return mlx_op_linear_bias(g, "down", h, MLX_W("mlp.down_proj"), MLX_B("mlp.down_proj", bias));
}

static mlx_value_t shared_expert(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const bool bias = c->mlp_bias;
  h = mlx_op_linear_bias(g, "shared_up", h, MLX_W("mlp.shared_experts.up_proj"),
                         MLX_B("mlp.shared_experts.up_proj", bias));  // [M, shared_ffn]
  h = mlx_op_activate(g, "shared_act", c->act, NULL, h);
  return mlx_op_linear_bias(g, "shared_down", h, MLX_W("mlp.shared_experts.down_proj"),
                            MLX_B("mlp.shared_experts.down_proj", bias));
}

static mlx_value_t mixture(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const bool latent = has_latent(c), bias = c->mlp_bias;
  const mlx_experts_t e = {
      .used = c->experts_used,
      .sum_to_one = c->experts_sum_to_one,
      .sigmoid = true,
      .sum_eps = c->expert_sum_eps,
      .weight_scale = c->expert_scale,
      .choice_bias = mlx_op_weight(g, "model.layers.%d.mlp.gate.e_score_correction_bias", layer),
      .act = c->act};
  mlx_value_t x = h, scores = mlx_op_linear(g, "router", h, MLX_W("mlp.gate"));  // [M, experts]
  if (latent)
    x = mlx_op_linear_bias(g, "latent", x, MLX_W("mlp.fc1_latent_proj"),
                           MLX_B("mlp.fc1_latent_proj", bias));  // [M, expert_hidden]
  x = mlx_op_experts(g, "experts", &e, x, scores,
                     mlx_op_weight(g, "backbone.layers.%d.mixer.experts.all.up_proj.weight", layer), MLX_NONE,
                     mlx_op_weight(g, "backbone.layers.%d.mixer.experts.all.down_proj.weight", layer));
  if (latent)
    x = mlx_op_linear_bias(g, "unlatent", x, MLX_W("mlp.fc2_latent_proj"),
                           MLX_B("mlp.fc2_latent_proj", bias));
  return mlx_op_add(g, "mlp", x, shared_expert(g, c, layer, h));
}

static mlx_value_t attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const mlx_attention_t a = mlx_attention_of(c, layer);
  const mlx_qkv_t p = mlx_block_qkv(g, c, layer, h);
  return mlx_block_output(g, c, layer, mlx_op_attention(g, &a, p.q, p.k, p.v));
}

static mlx_value_t nemotron_h_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "normed", x, MLX_W("norm"), c->norm_eps);
  h = c->recurrent[layer]  ? mlx_block_mamba2(g, c, layer, h)
      : c->mixture[layer]  ? mixture(g, c, layer, h)
      : c->mlp_only[layer] ? mlp(g, c, layer, h)
                           : attention(g, c, layer, h);
  return mlx_op_add(g, "out", x, h);
}

static const char *const nemotron_h_unused[] = {"mtp.", NULL};  // draft layers
static const char *const nemotron_h_types[] = {"nemotron_h", NULL};
static const char *const nemotron_h_gguf_types[] = {"nemotron_h", "nemotron_h_moe", NULL};

const mlx_arch_t mlx_arch_nemotron_h = {
    .hf_types = nemotron_h_types,
    .gguf_types = nemotron_h_gguf_types,
    MLX_TENSORS(nemotron_h_tensors),
    .unused = nemotron_h_unused,
    .read_config = nemotron_h_read_config,
    .layer = nemotron_h_layer,
};
