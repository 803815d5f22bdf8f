// Llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU. Also SmolLM2 and other models of the same type.
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "models/ops.h"

// ---------------------------------------------------------------------------------------------------------------------
// Names

#define DIM(field) {offsetof(mlx_config_t, field), 0}
#define HEADS(field) {offsetof(mlx_config_t, field), offsetof(mlx_config_t, head_dim)}

static bool has_own_head(const mlx_config_t *config) { return !config->tied_head; }

static const mlx_tensor_rule_t llama_tensors[] = {
    {"model.embed_tokens.weight", "token_embd.weight", 2, {DIM(vocab), DIM(hidden)}, NULL, 0},
    {"model.layers.%d.input_layernorm.weight", "blk.%d.attn_norm.weight", 1, {DIM(hidden)}, NULL, 0},
    {"model.layers.%d.self_attn.q_proj.weight", "blk.%d.attn_q.weight", 2, {HEADS(heads), DIM(hidden)}, NULL,
     MLX_ROWS_INTERLEAVED_HALVES},
    {"model.layers.%d.self_attn.k_proj.weight", "blk.%d.attn_k.weight", 2, {HEADS(kv_heads), DIM(hidden)}, NULL,
     MLX_ROWS_INTERLEAVED_HALVES},
    {"model.layers.%d.self_attn.v_proj.weight", "blk.%d.attn_v.weight", 2, {HEADS(kv_heads), DIM(hidden)}, NULL, 0},
    {"model.layers.%d.self_attn.o_proj.weight", "blk.%d.attn_output.weight", 2, {DIM(hidden), HEADS(heads)}, NULL, 0},
    {"model.layers.%d.post_attention_layernorm.weight", "blk.%d.ffn_norm.weight", 1, {DIM(hidden)}, NULL, 0},
    {"model.layers.%d.mlp.gate_proj.weight", "blk.%d.ffn_gate.weight", 2, {DIM(ffn), DIM(hidden)}, NULL, 0},
    {"model.layers.%d.mlp.up_proj.weight", "blk.%d.ffn_up.weight", 2, {DIM(ffn), DIM(hidden)}, NULL, 0},
    {"model.layers.%d.mlp.down_proj.weight", "blk.%d.ffn_down.weight", 2, {DIM(hidden), DIM(ffn)}, NULL, 0},
    {"model.norm.weight", "output_norm.weight", 1, {DIM(hidden)}, NULL, 0},
    {"lm_head.weight", "output.weight", 2, {DIM(vocab), DIM(hidden)}, has_own_head, 0},
};

// ---------------------------------------------------------------------------------------------------------------------
// Config

static bool is_plain_rope(const char *type) { return !strcmp(type, "default") || !strcmp(type, "none"); }

static mlx_status_t refuse_scaled_rope(const mlx_source_t *source) {
  static const char *const types[][2] = {{"rope_scaling.rope_type", ".rope.scaling.type"},
                                         {"rope_scaling.type", NULL},
                                         {"rope_parameters.rope_type", NULL}};
  bool told_plain = false;
  for (size_t i = 0; i < sizeof types / sizeof *types; ++i) {
    const char *type = NULL;
    bool found;
    MLX_TRY(mlx_source_string(source, types[i][0], types[i][1], &type, &found));
    if (found && !is_plain_rope(type)) {
      return mlx_source_field_error(source, types[i][0], types[i][1], MLX_UNSUPPORTED,
                                    "is '%s'; scaled rotary positions are not supported", type);
    }
    told_plain |= found && strncmp(types[i][0], "rope_parameters", 15);
  }
  // A factor without a type means linear scaling in some files.
  static const char *const factors[][2] = {{"rope_scaling", ".rope.scaling.factor"}, {NULL, ".rope.scale_linear"}};
  for (size_t i = 0; i < sizeof factors / sizeof *factors; ++i) {
    if (!told_plain && mlx_source_has(source, factors[i][0], factors[i][1])) {
      return mlx_source_field_error(source, factors[i][0], factors[i][1], MLX_UNSUPPORTED,
                                    "is given; scaled rotary positions are not supported");
    }
  }
  if (mlx_source_tensor(source, NULL, "rope_freqs.weight")) {
    return mlx_error(MLX_UNSUPPORTED, "%s: tensor 'rope_freqs.weight' scales rotary positions, which is not supported",
                     mlx_source_path(source));
  }
  return NULL;
}

// Refuses, by name, every field that would change the maths below.
static mlx_status_t refuse_what_is_not_here(const mlx_source_t *source) {
  static const char *const biases[] = {"attention_bias", "mlp_bias"};
  for (size_t i = 0; i < sizeof biases / sizeof *biases; ++i) {
    bool on = false, found;
    MLX_TRY(mlx_source_bool(source, biases[i], NULL, &on, &found));
    if (on) return mlx_source_field_error(source, biases[i], NULL, MLX_UNSUPPORTED, "is true; biases are not supported");
  }
  const char *text = NULL;
  bool found;
  MLX_TRY(mlx_source_string(source, "hidden_act", NULL, &text, &found));
  if (found && strcmp(text, "silu")) {
    return mlx_source_field_error(source, "hidden_act", NULL, MLX_UNSUPPORTED, "is '%s'; only silu is supported", text);
  }
  static const char *const partial[] = {"partial_rotary_factor", "rope_parameters.partial_rotary_factor"};
  for (size_t i = 0; i < sizeof partial / sizeof *partial; ++i) {
    double factor = 1.0;
    MLX_TRY(mlx_source_number(source, partial[i], NULL, &factor, &found));
    if (factor != 1.0) {
      return mlx_source_field_error(source, partial[i], NULL, MLX_UNSUPPORTED,
                                    "is %g; rotating part of a head is not supported", factor);
    }
  }
  return refuse_scaled_rope(source);
}

static mlx_status_t llama_read_config(const mlx_source_t *source, mlx_config_t *c) {
  const int64_t big = 1 << 20;
  bool found;
  MLX_TRY(refuse_what_is_not_here(source));
  MLX_TRY(mlx_source_int(source, "num_hidden_layers", ".block_count", 1, 1024, &c->layers, NULL));
  MLX_TRY(mlx_source_int(source, "hidden_size", ".embedding_length", 1, big, &c->hidden, NULL));
  MLX_TRY(mlx_source_int(source, "intermediate_size", ".feed_forward_length", 1, big, &c->ffn, NULL));
  MLX_TRY(mlx_source_int(source, "num_attention_heads", ".attention.head_count", 1, 4096, &c->heads, NULL));
  c->kv_heads = c->heads;
  MLX_TRY(mlx_source_int(source, "num_key_value_heads", ".attention.head_count_kv", 1, 4096, &c->kv_heads, &found));
  if (c->heads % c->kv_heads) {
    return mlx_source_field_error(source, "num_key_value_heads", ".attention.head_count_kv", MLX_INVALID_INPUT,
                                  "is %lld, which does not divide the %lld query heads", (long long)c->kv_heads,
                                  (long long)c->heads);
  }
  c->head_dim = c->hidden / c->heads;
  MLX_TRY(mlx_source_int(source, "head_dim", ".attention.key_length", 2, 1024, &c->head_dim, &found));
  if (c->head_dim < 2 || c->head_dim % 2 || (!found && c->hidden % c->heads)) {
    return mlx_source_field_error(source, "head_dim", ".attention.key_length", MLX_INVALID_INPUT,
                                  "must be even (hidden size %lld, %lld heads)", (long long)c->hidden, (long long)c->heads);
  }
  int64_t rotated = c->head_dim;
  MLX_TRY(mlx_source_int(source, NULL, ".rope.dimension_count", 1, big, &rotated, &found));
  if (rotated != c->head_dim) {
    return mlx_source_field_error(source, NULL, ".rope.dimension_count", MLX_UNSUPPORTED,
                                  "is %lld of %lld; rotating part of a head is not supported", (long long)rotated,
                                  (long long)c->head_dim);
  }
  MLX_TRY(mlx_source_int(source, "max_position_embeddings", ".context_length", 1, 1 << 30, &c->context, NULL));
  MLX_TRY(mlx_source_number(source, "rms_norm_eps", ".attention.layer_norm_rms_epsilon", &c->norm_eps, NULL));
  c->rope_theta = 10000.0;
  MLX_TRY(mlx_source_number(source, "rope_theta", ".rope.freq_base", &c->rope_theta, &found));
  if (!found) MLX_TRY(mlx_source_number(source, "rope_parameters.rope_theta", NULL, &c->rope_theta, &found));
  if (!(c->rope_theta > 1.0)) {
    return mlx_source_field_error(source, "rope_theta", ".rope.freq_base", MLX_INVALID_INPUT, "must be greater than 1");
  }
  if (!(c->norm_eps >= 0.0 && c->norm_eps < 1.0)) {
    return mlx_source_field_error(source, "rms_norm_eps", ".attention.layer_norm_rms_epsilon", MLX_INVALID_INPUT,
                                  "must lie in [0, 1)");
  }
  // GGUF does not say how large the vocabulary is, nor that the head is tied: the tensors do.
  const mlx_tensor_t *table = mlx_source_tensor(source, NULL, "token_embd.weight");
  if (mlx_source_is_gguf(source)) {
    c->vocab = table ? table->dims[0] : 0;
    c->tied_head = !mlx_source_tensor(source, NULL, "output.weight");
  } else {
    MLX_TRY(mlx_source_int(source, "vocab_size", NULL, 1, 1 << 26, &c->vocab, NULL));
    MLX_TRY(mlx_source_bool(source, "tie_word_embeddings", NULL, &c->tied_head, &found));
  }
  return NULL;
}

// ---------------------------------------------------------------------------------------------------------------------
// Network

static mlx_value_t llama_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
#define W(name) mlx_op_weight(g, "model.layers.%d." name ".weight", layer)
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, W("input_layernorm"), c->norm_eps);
  mlx_value_t q = mlx_op_linear(g, "q", h, W("self_attn.q_proj"));  // [M, heads * head_dim]
  mlx_value_t k = mlx_op_linear(g, "k", h, W("self_attn.k_proj"));  // [M, kv_heads * head_dim]
  mlx_value_t v = mlx_op_linear(g, "v", h, W("self_attn.v_proj"));
  q = mlx_op_rope(g, "q_rope", q, c->head_dim, c->rope_theta);
  k = mlx_op_rope(g, "k_rope", k, c->head_dim, c->rope_theta);
  const mlx_attention_t attention = {.layer = layer,
                                     .heads = c->heads,
                                     .kv_heads = c->kv_heads,
                                     .head_dim = c->head_dim,
                                     .scale = 1.0 / sqrt((double)c->head_dim)};
  h = mlx_op_attention(g, &attention, q, k, v);
  h = mlx_op_linear(g, "o", h, W("self_attn.o_proj"));
  x = mlx_op_add(g, "after_attn", x, h);

  h = mlx_op_rmsnorm(g, "mlp_in", x, W("post_attention_layernorm"), c->norm_eps);
  mlx_value_t gate = mlx_op_linear(g, "gate", h, W("mlp.gate_proj"));  // [M, ffn]
  mlx_value_t up = mlx_op_linear(g, "up", h, W("mlp.up_proj"));
  h = mlx_op_swiglu(g, "act", gate, up);
  h = mlx_op_linear(g, "down", h, W("mlp.down_proj"));
  return mlx_op_add(g, "out", x, h);
#undef W
}

static mlx_value_t llama_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  const mlx_config_t *c = &model->config;
  mlx_value_t x = mlx_op_embed(g, mlx_op_weight(g, "model.embed_tokens.weight"), tokens);  // [M, hidden]
  for (int layer = 0; layer < c->layers; ++layer) x = llama_layer(g, c, layer, x);
  mlx_op_scope(g, "%s", "");
  return mlx_op_rmsnorm(g, "final", x, mlx_op_weight(g, "model.norm.weight"), c->norm_eps);
}

static mlx_value_t llama_head(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t hidden) {
  const char *name = model->config.tied_head ? "model.embed_tokens.weight" : "lm_head.weight";
  return mlx_op_linear(g, "logits", hidden, mlx_op_weight(g, "%s", name));  // [rows, vocab]
}

static const char *const llama_types[] = {"llama", NULL};

const mlx_arch_t mlx_arch_llama = {
    .hf_types = llama_types,
    .gguf_types = llama_types,
    .tensors = llama_tensors,
    .tensor_count = sizeof llama_tensors / sizeof *llama_tensors,
    .read_config = llama_read_config,
    .forward = llama_forward,
    .head = llama_head,
};
