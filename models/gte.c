// GTE (model_type "new" of the published files, "gte" in transformers) as an encoder: BERT with rotary
// positions, a gated MLP, and fused matrices.
#include <string.h>

#include "models/shared/encoder.h"

#define LAYER "new.encoder.layer.%d."
#define NO_GGUF "none"

static const mlx_tensor_rule_t gte_tensors[] = {
    MLX_MATRIX("new.embeddings.word_embeddings.weight", NO_GGUF, MLX_DIM(vocab), MLX_DIM(hidden)),
    MLX_MATRIX("new.embeddings.token_type_embeddings.weight", NO_GGUF, MLX_DIM(types), MLX_DIM(hidden),
               .present = mlx_has_types),
    MLX_ENCODER_NORM("new.embeddings.LayerNorm", NO_GGUF),
    MLX_ENCODER_PRODUCT(LAYER "attention.qkv_proj", NO_GGUF, qkv_width, hidden),
    MLX_ENCODER_PRODUCT(LAYER "attention.o_proj", NO_GGUF, hidden, hidden),
    MLX_ENCODER_NORM(LAYER "attn_ln", NO_GGUF),
    MLX_MATRIX(LAYER "mlp.up_gate_proj.weight", NO_GGUF, MLX_DIM(gate_up_width), MLX_DIM(hidden)),
    MLX_ENCODER_PRODUCT(LAYER "mlp.down_proj", NO_GGUF, hidden, ffn),
    MLX_ENCODER_NORM(LAYER "mlp_ln", NO_GGUF),
    MLX_RULES_CLASS_HEAD("new.pooler.dense", "classifier"),
};

static mlx_status_t require_text(const mlx_source_t *source, const char *key, const char *expected) {
  const char *value = expected;
  bool found;
  MLX_TRY(mlx_source_string(source, key, NULL, &value, &found));
  if (!strcmp(value, expected)) return NULL;
  return mlx_source_field_error(source, key, NULL, MLX_UNSUPPORTED, "is '%s'; only '%s' is supported", value,
                                expected);
}

static mlx_status_t gte_read_config(const mlx_source_t *source, mlx_config_t *c) {
  static const mlx_size_names_t names = {.encoder = true};
  const bool published = !strcmp(mlx_source_architecture(source), "new");
  const mlx_rope_fields_t rope = {.default_theta = published ? 10000.0 : 160000.0, .ntk = true};
  bool found;
  MLX_TRY(require_text(source, "position_embedding_type", "rope"));
  MLX_TRY(require_text(source, "layer_norm_type", "layer_norm"));
  MLX_TRY(mlx_require_flag(source, "pack_qkv", true));
  MLX_TRY(mlx_require_flag(source, "logn_attention_scale", false));
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_GELU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &names, true, c));
  c->types = 1;
  MLX_TRY(mlx_source_int(source, "type_vocab_size", NULL, 0, 1 << 20, &c->types, &found));
  MLX_TRY(mlx_read_eps(source, "layer_norm_eps", NULL, c));
  MLX_TRY(mlx_read_rope(source, &rope, c, &c->rope));
  return mlx_read_encoder(source, c);
}

#define W(part) mlx_op_weight(g, LAYER part ".weight", layer)
#define B(part) mlx_op_weight(g, LAYER part ".bias", layer)

static mlx_value_t gte_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  const mlx_attention_t attention = mlx_attention_of(c, layer);
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t qkv = mlx_op_linear_bias(g, "qkv", x, W("attention.qkv_proj"), B("attention.qkv_proj"));
  mlx_value_t q = mlx_op_columns(g, "q", qkv, 0, c->hidden);
  mlx_value_t k = mlx_op_columns(g, "k", qkv, c->hidden, c->hidden);
  mlx_value_t v = mlx_op_columns(g, "v", qkv, 2 * c->hidden, c->hidden);
  q = mlx_op_rope(g, "q_rope", q, c->head_dim, &c->rope);
  k = mlx_op_rope(g, "k_rope", k, c->head_dim, &c->rope);
  mlx_value_t h = mlx_op_attention(g, &attention, q, k, v);
  h = mlx_op_linear_bias(g, "o", h, W("attention.o_proj"), B("attention.o_proj"));
  h = mlx_op_add(g, "after_attn", h, x);
  x = mlx_op_layernorm(g, "attn_out", h, W("attn_ln"), B("attn_ln"), c->norm_eps);

  h = mlx_op_linear(g, "up_gate", x, W("mlp.up_gate_proj"));  // [M, 2 * ffn]: up, then gate
  h = mlx_op_gated(g, "act", c->act, mlx_op_columns(g, "gate", h, c->ffn, c->ffn),
                   mlx_op_columns(g, "up", h, 0, c->ffn));
  h = mlx_op_linear_bias(g, "down", h, W("mlp.down_proj"), B("mlp.down_proj"));
  h = mlx_op_add(g, "after_mlp", h, x);
  return mlx_op_layernorm(g, "out", h, W("mlp_ln"), B("mlp_ln"), c->norm_eps);
}

static mlx_value_t gte_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  const mlx_config_t *c = &model->config;
  mlx_value_t x = mlx_op_embed(g, mlx_op_weight(g, "new.embeddings.word_embeddings.weight"), tokens);
  if (c->types) {
    mlx_value_t types = mlx_op_weight(g, "new.embeddings.token_type_embeddings.weight");
    x = mlx_op_add(g, "typed", x, mlx_op_embed(g, types, mlx_op_types(g)));
  }
  x = mlx_op_layernorm(g, "embedded_normed", x, mlx_op_weight(g, "new.embeddings.LayerNorm.weight"),
                       mlx_op_weight(g, "new.embeddings.LayerNorm.bias"), c->norm_eps);
  for (int layer = 0; layer < c->layers; ++layer) x = gte_layer(g, c, layer, x);
  mlx_op_scope(g, "%s", "");
  return x;
}

static mlx_value_t gte_head(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t pooled) {
  (void)model;
  return mlx_class_head(g, "new.pooler.dense", false, "classifier", pooled);
}

static const char *const gte_types[] = {"new", "gte", NULL};
static const char *const gte_gguf_types[] = {NULL};
static const char *const gte_ignored[] = {"embeddings.position_ids", NULL};
static const char *const gte_unused[] = {"pooler.",  "new.pooler.", "gte.pooler.",
                                         "lm_head.", "classifier.", NULL};

const mlx_arch_t mlx_arch_gte = {
    .hf_types = gte_types,
    .gguf_types = gte_gguf_types,
    MLX_TENSORS(gte_tensors),
    .ignored = gte_ignored,
    .unused = gte_unused,
    .read_config = gte_read_config,
    .forward = gte_forward,
    .head = gte_head,
};
