// Gemma 4 text model: Gemma 3's layers with values that have a norm, a rope that rotates a part of each head
// of layers without a window, and a factor of each layer's output. The small models have per-layer
// embeddings, and their last layers share the keys and values of earlier ones. The mixture of experts is
// beside the MLP and reads the same residual stream.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "models/shared/gemma.h"

// ----------------------------------------------------------------------------------------------------------
// The layers that have a tensor

static bool is_window(const mlx_config_t *c, int layer) { return c->windowed[layer]; }
static bool is_global(const mlx_config_t *c, int layer) { return !c->windowed[layer]; }
static bool has_window_keys(const mlx_config_t *c, int layer) {
  return is_window(c, layer) && !mlx_shares_kv(c, layer);
}
static bool has_global_keys(const mlx_config_t *c, int layer) {
  return is_global(c, layer) && !mlx_shares_kv(c, layer);
}
static bool has_global_values(const mlx_config_t *c, int layer) {
  return has_global_keys(c, layer) && !c->values_are_keys;
}
static bool is_narrow(const mlx_config_t *c, int layer) { return !mlx_shares_kv(c, layer); }
static bool has_layer_embedding(const mlx_config_t *c) { return c->layer_embedding; }
static bool has_experts(const mlx_config_t *c) { return c->experts; }

// ----------------------------------------------------------------------------------------------------------
// Tensors

#define GLOBAL_HEADS(field) (MLX_DIM(field) | MLX_DIM(global_head_dim) << 16)
// q, k, v and o of some layers, with their biases.
#define PROJECTION(name, gguf, rows, columns, has_bias, layers_of)                                     \
  MLX_LAYER_MATRIX("self_attn." name ".weight", gguf ".weight", rows, columns, .in_layer = layers_of), \
      MLX_LAYER_VECTOR("self_attn." name ".bias", gguf ".bias", rows, .present = has_bias,             \
                       .in_layer = layers_of)
#define HEAD_NORM(name, gguf, size, layers_of) \
  MLX_LAYER_VECTOR("self_attn." name ".weight", gguf ".weight", size, .in_layer = layers_of)
#define MLP(width, layers_of)                                                             \
  MLX_LAYER_MATRIX("mlp.gate_proj.weight", "ffn_gate.weight", width, MLX_DIM(hidden),     \
                   .in_layer = layers_of),                                                \
      MLX_LAYER_MATRIX("mlp.up_proj.weight", "ffn_up.weight", width, MLX_DIM(hidden),     \
                       .in_layer = layers_of),                                            \
      MLX_LAYER_MATRIX("mlp.down_proj.weight", "ffn_down.weight", MLX_DIM(hidden), width, \
                       .in_layer = layers_of)
#define EXPERTS(hf, gguf, rows, columns, stored, part) \
  MLX_STACKED_EXPERTS("", hf, gguf, rows, columns, stored, part, .present = has_experts)
#define IN_MIXTURE .present = has_experts
#define OF_LAYERS .present = has_layer_embedding

static const mlx_tensor_rule_t gemma4_tensors[] = {
    MLX_RULE_EMBED,
    MLX_RULES_LAYER_EMBEDDINGS(OF_LAYERS),
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    PROJECTION("q_proj", "attn_q", MLX_HEADS(heads), MLX_DIM(hidden), mlx_has_q_bias, is_window),
    PROJECTION("q_proj", "attn_q", GLOBAL_HEADS(heads), MLX_DIM(hidden), mlx_has_q_bias, is_global),
    PROJECTION("k_proj", "attn_k", MLX_HEADS(kv_heads), MLX_DIM(hidden), mlx_has_kv_bias, has_window_keys),
    PROJECTION("k_proj", "attn_k", GLOBAL_HEADS(global_kv_heads), MLX_DIM(hidden), mlx_has_kv_bias,
               has_global_keys),
    PROJECTION("v_proj", "attn_v", MLX_HEADS(kv_heads), MLX_DIM(hidden), mlx_has_kv_bias, has_window_keys),
    PROJECTION("v_proj", "attn_v", GLOBAL_HEADS(global_kv_heads), MLX_DIM(hidden), mlx_has_kv_bias,
               has_global_values),
    MLX_LAYER_MATRIX("self_attn.o_proj.weight", "attn_output.weight", MLX_DIM(hidden), MLX_HEADS(heads),
                     .in_layer = is_window),
    MLX_LAYER_MATRIX("self_attn.o_proj.weight", "attn_output.weight", MLX_DIM(hidden), GLOBAL_HEADS(heads),
                     .in_layer = is_global),
    MLX_LAYER_VECTOR("self_attn.o_proj.bias", "attn_output.bias", MLX_DIM(hidden), .present = mlx_has_o_bias),
    HEAD_NORM("q_norm", "attn_q_norm", MLX_DIM(head_dim), is_window),
    HEAD_NORM("q_norm", "attn_q_norm", MLX_DIM(global_head_dim), is_global),
    HEAD_NORM("k_norm", "attn_k_norm", MLX_DIM(head_dim), has_window_keys),
    HEAD_NORM("k_norm", "attn_k_norm", MLX_DIM(global_head_dim), has_global_keys),
    MLX_LAYER_NORM("post_attention_layernorm", "post_attention_norm"),
    MLX_LAYER_NORM("pre_feedforward_layernorm", "ffn_norm"),
    MLP(MLX_DIM(ffn), is_narrow),
    MLP(MLX_DIM(wide_ffn), mlx_shares_kv),
    MLX_LAYER_NORM("post_feedforward_layernorm_1", "post_ffw_norm_1", IN_MIXTURE),
    MLX_LAYER_NORM("pre_feedforward_layernorm_2", "pre_ffw_norm_2", IN_MIXTURE),
    MLX_LAYER_NORM("post_feedforward_layernorm_2", "post_ffw_norm_2", IN_MIXTURE),
    MLX_LAYER_VECTOR("router.scale", "ffn_gate_inp.scale", MLX_DIM(hidden), IN_MIXTURE),
    MLX_LAYER_MATRIX("router.proj.weight", "ffn_gate_inp.weight", MLX_DIM(experts), MLX_DIM(hidden),
                     IN_MIXTURE),
    MLX_LAYER_VECTOR("router.per_expert_scale", "ffn_down_exps.scale", MLX_DIM(experts), IN_MIXTURE),
    EXPERTS("gate_proj", "ffn_gate_exps", MLX_DIM(expert_ffn), MLX_DIM(hidden), "gate_up_proj",
            MLX_FUSED_FIRST_HALF),
    EXPERTS("up_proj", "ffn_up_exps", MLX_DIM(expert_ffn), MLX_DIM(hidden), "gate_up_proj",
            MLX_FUSED_SECOND_HALF),
    EXPERTS("down_proj", "ffn_down_exps", MLX_DIM(hidden), MLX_DIM(expert_ffn), "down_proj", MLX_NOT_FUSED),
    MLX_LAYER_NORM("post_feedforward_layernorm", "post_ffw_norm"),
    MLX_RULES_LAYER_EMBEDDING_OF_LAYER(OF_LAYERS),
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

// ----------------------------------------------------------------------------------------------------------
// Config

// A field of one layer: per_layer_config has an object for each layer that differs from the others, named by
// its number, which may have leading zeros. *out is unchanged if the layer has none.
static mlx_status_t read_of_layer(const mlx_source_t *source, int64_t layer, const char *name, int64_t *out) {
  char key[96];
  bool found = false;
  for (int digits = 1; digits <= 4 && !found; ++digits) {
    snprintf(key, sizeof key, "per_layer_config.%0*lld.%s", digits, (long long)layer, name);
    MLX_TRY(mlx_source_int(source, key, NULL, 1, 4096, out, &found));
  }
  return NULL;
}

// Layers of a kind must agree.
static mlx_status_t read_per_layer_config(const mlx_source_t *source, mlx_config_t *c) {
  int64_t sizes[2][2] = {{0}};  // by kind: size of a head, KV heads
  for (int64_t i = 0; i < c->layers; ++i) {
    int64_t *of = sizes[c->windowed[i]], head_dim = c->head_dim, kv_heads = c->kv_heads;
    MLX_TRY(read_of_layer(source, i, "head_dim", &head_dim));
    MLX_TRY(read_of_layer(source, i, "num_key_value_heads", &kv_heads));
    if (!of[0]) {
      of[0] = head_dim;
      of[1] = kv_heads;
    }
    if (of[0] == head_dim && of[1] == kv_heads) continue;
    return mlx_source_field_error(source, "per_layer_config", NULL, MLX_UNSUPPORTED,
                                  "has layers of one type with different heads");
  }
  c->global_head_dim = sizes[0][0];
  c->global_kv_heads = sizes[0][1];
  if (sizes[1][0]) {
    c->head_dim = sizes[1][0];
    c->kv_heads = sizes[1][1];
  }
  return NULL;
}

static mlx_status_t read_hf_heads(const mlx_source_t *source, mlx_config_t *c) {
  bool found;
  MLX_TRY(mlx_read_flag(source, "attention_k_eq_v", NULL, false, &c->values_are_keys));
  if (mlx_source_has(source, "per_layer_config", NULL)) return read_per_layer_config(source, c);
  c->global_head_dim = 512;
  c->global_kv_heads = c->kv_heads;
  MLX_TRY(mlx_source_int(source, "global_head_dim", NULL, 2, 1024, &c->global_head_dim, &found));
  int64_t kv_heads = c->kv_heads;
  MLX_TRY(mlx_source_int(source, "num_global_key_value_heads", NULL, 1, 4096, &kv_heads, &found));
  if (c->values_are_keys) c->global_kv_heads = kv_heads;
  return NULL;
}

// The fields for the size of a head without suffix are those of layers without a window.
static mlx_status_t read_gguf_heads(const mlx_source_t *source, mlx_config_t *c) {
  const char *kv_key = ".attention.head_count_kv";
  char name[64];
  int64_t value_dim;
  c->global_head_dim = c->head_dim;
  c->global_kv_heads = c->kv_heads;
  MLX_TRY(mlx_source_int(source, NULL, ".attention.key_length_swa", 2, 1024, &c->head_dim, NULL));
  MLX_TRY(mlx_source_int(source, NULL, ".attention.value_length_swa", 2, 1024, &value_dim, NULL));
  if (value_dim != c->head_dim)
    return mlx_source_field_error(source, NULL, ".attention.value_length_swa", MLX_UNSUPPORTED,
                                  "differs from the width of the keys");
  for (int64_t i = 0; i < c->layers; ++i) {
    int64_t *heads = c->windowed[i] ? &c->kv_heads : &c->global_kv_heads;
    if (mlx_source_array_length(source, NULL, kv_key))
      MLX_TRY(mlx_source_int_at(source, kv_key, (size_t)i, heads));
    snprintf(name, sizeof name, "blk.%lld.attn_v.weight", (long long)i);
    if (!c->windowed[i] && !mlx_shares_kv(c, (int)i))
      c->values_are_keys = !mlx_source_tensor(source, NULL, name);
  }
  return NULL;
}

static mlx_status_t check_heads(const mlx_source_t *source, const mlx_config_t *c) {
  const int64_t kv_heads[] = {c->kv_heads, c->global_kv_heads}, dims[] = {c->head_dim, c->global_head_dim};
  for (int i = 0; i < 2; ++i) {
    if (kv_heads[i] < 1 || c->heads % kv_heads[i])
      return mlx_source_field_error(source, "num_key_value_heads", ".attention.head_count_kv",
                                    MLX_INVALID_INPUT, "%lld KV heads do not divide %lld heads",
                                    (long long)kv_heads[i], (long long)c->heads);
    if (dims[i] < 2 || dims[i] % 2 || dims[i] > 2 * MLX_MAX_FREQUENCIES)
      return mlx_source_field_error(source, i ? "global_head_dim" : "head_dim",
                                    i ? ".attention.key_length" : ".attention.key_length_swa",
                                    MLX_INVALID_INPUT, "is %lld; it must be even and at most %d",
                                    (long long)dims[i], 2 * MLX_MAX_FREQUENCIES);
  }
  return NULL;
}

// The last layers that share keys and values, and the width of their MLPs.
static mlx_status_t read_shared_layers(const mlx_source_t *source, mlx_config_t *c) {
  const char *list = ".feed_forward_length";
  bool wide;
  MLX_TRY(mlx_read_shared_kv(source, 0, c));
  MLX_TRY(mlx_read_flag(source, "use_double_wide_mlp", NULL, false, &wide));
  if (mlx_source_array_length(source, NULL, list)) {
    MLX_TRY(mlx_source_int_at(source, list, 0, &c->ffn));
    MLX_TRY(mlx_source_int_at(source, list, (size_t)c->layers - 1, &c->wide_ffn));
    if (c->ffn >= 1 && c->ffn <= 1 << 20 && c->wide_ffn >= 1 && c->wide_ffn <= 1 << 20) return NULL;
    return mlx_source_field_error(source, NULL, list, MLX_INVALID_INPUT, "must have numbers up to %d",
                                  1 << 20);
  }
  c->wide_ffn = wide ? 2 * c->ffn : c->ffn;
  return NULL;
}

// The text model of gemma4_unified has neither per-layer embeddings nor experts, and other defaults.
static bool is_unified(const mlx_source_t *source) {
  return !strcmp(mlx_source_architecture(source), "gemma4_unified_text");
}

static mlx_status_t read_layer_embedding(const mlx_source_t *source, mlx_config_t *c) {
  if (is_unified(source)) return NULL;
  MLX_TRY(mlx_read_layer_embedding(source, c));
  if (!c->layer_embedding || c->layer_vocab >= c->vocab) return NULL;
  return mlx_source_field_error(source, "vocab_size_per_layer_input", NULL, MLX_UNSUPPORTED,
                                "is less than the vocabulary size");
}

static mlx_status_t read_experts(const mlx_source_t *source, mlx_config_t *c) {
  bool on;
  (void)mlx_source_has(source, NULL, ".expert_count");  // 0 in files without experts, so mark it as read
  MLX_TRY(mlx_read_flag(source, "enable_moe_block", "blk.0.ffn_gate_inp.weight", false, &on));
  if (!on) return NULL;
  MLX_TRY(mlx_source_int(source, "num_experts", ".expert_count", 1, 4096, &c->experts, NULL));
  MLX_TRY(mlx_source_int(source, "top_k_experts", ".expert_used_count", 1, 64, &c->experts_used, NULL));
  MLX_TRY(mlx_source_int(source, "moe_intermediate_size", ".expert_feed_forward_length", 1, 1 << 20,
                         &c->expert_ffn, NULL));
  c->experts_sum_to_one = true;
  return NULL;
}

// The factor of each layer's output is a tensor of one number.
static mlx_status_t read_layer_scales(const mlx_source_t *source, mlx_config_t *c) {
  for (int64_t i = 0; i < c->layers; ++i) {
    char names[2][64];
    snprintf(names[0], sizeof names[0], "model.layers.%lld.layer_scalar", (long long)i);
    snprintf(names[1], sizeof names[1], "blk.%lld.layer_output_scale.weight", (long long)i);
    const mlx_tensor_t *tensor = mlx_source_tensor(source, names[0], names[1]);
    const mlx_dtype_info_t *info = tensor ? mlx_dtype_info(tensor->dtype) : NULL;
    if (!tensor) continue;
    if (info->block_elements != 1 || tensor->size != info->block_bytes || !info->to_f32)
      return mlx_error(MLX_INVALID_INPUT, "%s: tensor '%s' must be one float", mlx_source_path(source),
                       tensor->name);
    info->to_f32(tensor->data, 1, &c->layer_scales[i]);
    if (!isfinite(c->layer_scales[i]) || c->layer_scales[i] == 0.0f)
      return mlx_error(MLX_INVALID_INPUT, "%s: tensor '%s' must be finite and not 0", mlx_source_path(source),
                       tensor->name);
  }
  return NULL;
}

static mlx_status_t require_causality(const mlx_source_t *source) {
  const char *which;
  bool found;
  MLX_TRY(mlx_source_string(source, "use_bidirectional_attention", NULL, &which, &found));
  if (!found || !strcmp(which, "vision")) return NULL;  // of images only
  return mlx_source_field_error(source, "use_bidirectional_attention", NULL, MLX_UNSUPPORTED,
                                "is '%s', which is not supported", which);
}

static mlx_status_t read_ropes(const mlx_source_t *source, mlx_config_t *c) {
  const bool given = mlx_source_is_gguf(source) || mlx_source_has(source, "rope_parameters", NULL);
  const mlx_rope_fields_t global = {.group = "full_attention",
                                    .default_theta = 1000000.0,
                                    .default_type = given ? NULL : "proportional",
                                    .default_partial = given ? 1.0 : 0.25,
                                    .head_dim = c->global_head_dim,
                                    .proportional = true},
                          local = {.group = "sliding_attention",
                                   .gguf_theta = ".rope.freq_base_swa",
                                   .gguf_dims = ".rope.dimension_count_swa",
                                   .unscaled = true};
  MLX_TRY(mlx_read_rope(source, &global, c, &c->rope));
  return mlx_read_rope(source, &local, c, &c->local_rope);
}

static mlx_status_t gemma4_read_config(const mlx_source_t *source, mlx_config_t *c) {
  const bool gguf = mlx_source_is_gguf(source);
  const mlx_size_names_t names = {.default_head_dim = 256, .default_kv_heads = 4};
  MLX_TRY(require_causality(source));
  MLX_TRY(mlx_read_act(source, "hidden_activation", MLX_ACT_GELU_TANH, &c->act));
  MLX_TRY(mlx_read_sizes(source, &names, true, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  MLX_TRY(mlx_read_attention_bias(source, "attention_bias", false, c));
  MLX_TRY(
      mlx_read_number(source, "final_logit_softcapping", ".final_logit_softcapping", 0.0, &c->logit_softcap));
  MLX_TRY(mlx_read_windows(source, 6, is_unified(source) ? 1024 : 512, c));
  if (!gguf) c->windowed[c->layers - 1] = false;  // as the class does
  MLX_TRY(read_shared_layers(source, c));
  MLX_TRY(gguf ? read_gguf_heads(source, c) : read_hf_heads(source, c));
  MLX_TRY(check_heads(source, c));
  MLX_TRY(read_layer_embedding(source, c));
  if (!is_unified(source)) MLX_TRY(read_experts(source, c));
  MLX_TRY(read_layer_scales(source, c));
  c->attention_scale = 1.0;
  c->embed_scale = sqrt((double)c->hidden);
  return read_ropes(source, c);
}

// ----------------------------------------------------------------------------------------------------------
// The network

// The experts read the residual stream |x|, not the MLP's input.
static mlx_value_t mixture(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_experts_t experts = mlx_experts_of(c);
  experts.factors = mlx_op_weight(g, "model.layers.%d.router.per_expert_scale", layer);
  mlx_value_t h =
      mlx_op_rmsnorm(g, "router_in", x, mlx_op_weight(g, "model.layers.%d.router.scale", layer), c->norm_eps);
  h = mlx_op_scale(g, "router_in_scaled", h, 1.0 / sqrt((double)c->hidden));
  mlx_value_t scores = mlx_op_linear(g, "router", h, MLX_W("router.proj"));  // [M, experts]
  h = mlx_op_rmsnorm(g, "experts_in", x, MLX_W("pre_feedforward_layernorm_2"), c->norm_eps);
  h = mlx_op_experts(g, "experts", &experts, h, scores, MLX_W("experts.all.gate_proj"),
                     MLX_W("experts.all.up_proj"), MLX_W("experts.all.down_proj"));
  return mlx_op_rmsnorm(g, "experts_out", h, MLX_W("post_feedforward_layernorm_2"), c->norm_eps);
}

// |embedding|: of the tokens in all layers [M, layer_embeddings], or MLX_NONE.
static mlx_value_t layer_of(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x,
                            mlx_value_t embedding) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  h = mlx_block_gemma_attention(g, c, layer, h);
  h = mlx_op_rmsnorm(g, "attn_out", h, MLX_W("post_attention_layernorm"), c->norm_eps);
  x = mlx_op_add(g, "after_attn", x, h);
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("pre_feedforward_layernorm"), c->norm_eps);
  h = mlx_block_gated_mlp(g, c, layer, h);
  if (c->experts) {
    h = mlx_op_rmsnorm(g, "dense_out", h, MLX_W("post_feedforward_layernorm_1"), c->norm_eps);
    h = mlx_op_add(g, "both", h, mixture(g, c, layer, x));
  }
  h = mlx_op_rmsnorm(g, "mlp_out", h, MLX_W("post_feedforward_layernorm"), c->norm_eps);
  x = mlx_op_add(g, "after_mlp", x, h);
  if (embedding.id) {
    h = mlx_block_layer_embedding(g, c, layer, x, embedding);
    x = mlx_op_add(g, "after_embedding", x, h);
  }
  const float scale = c->layer_scales[layer];
  return mlx_op_scale(g, "out", x, scale == 0.0f ? 1.0 : (double)scale);
}

static mlx_value_t gemma4_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  const mlx_config_t *c = &model->config;
  mlx_value_t x = mlx_block_embed(g, c, tokens);  // [M, hidden]
  const mlx_value_t embedding = mlx_block_layer_embeddings(g, c, tokens, x);
  for (int layer = 0; layer < c->layers; ++layer) x = layer_of(g, c, layer, x, embedding);
  mlx_op_scope(g, "%s", "");
  return mlx_op_rmsnorm(g, "final", x, mlx_op_weight(g, "model.norm.weight"), c->norm_eps);
}

// The factors of the layers' outputs, which read_config has read.
static const char *const gemma4_ignored[] = {".layer_scalar", ".layer_output_scale.weight", NULL};
static const char *const gemma4_types[] = {"gemma4_text", "gemma4_unified_text", NULL};
static const char *const gemma4_gguf_types[] = {"gemma4", NULL};

const mlx_arch_t mlx_arch_gemma4 = {
    .hf_types = gemma4_types,
    .gguf_types = gemma4_gguf_types,
    MLX_TENSORS(gemma4_tensors),
    .ignored = gemma4_ignored,
    .skips = mlx_skips_shared_kv,
    .read_config = gemma4_read_config,
    .forward = gemma4_forward,
};
