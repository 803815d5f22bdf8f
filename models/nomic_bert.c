// Nomic BERT as an encoder: BERT with rotary positions, a gated MLP, a fused q, k and v, and no biases.
#include <string.h>

#include "models/shared/encoder.h"

#define LAYER "bert.encoder.layers.%d."

static const mlx_tensor_rule_t nomic_bert_tensors[] = {
    MLX_MATRIX("bert.embeddings.word_embeddings.weight", "token_embd.weight", MLX_DIM(vocab),
               MLX_DIM(hidden)),
    MLX_MATRIX("bert.embeddings.token_type_embeddings.weight", "token_types.weight", MLX_DIM(types),
               MLX_DIM(hidden)),
    MLX_ENCODER_NORM("bert.emb_ln", "token_embd_norm"),
    MLX_MATRIX(LAYER "attn.Wqkv.weight", "blk.%d.attn_qkv.weight", MLX_DIM(qkv_width), MLX_DIM(hidden)),
    MLX_MATRIX(LAYER "attn.out_proj.weight", "blk.%d.attn_output.weight", MLX_DIM(hidden), MLX_DIM(hidden)),
    MLX_ENCODER_NORM(LAYER "norm1", "blk.%d.attn_output_norm"),
    MLX_MATRIX(LAYER "mlp.fc12.weight", "blk.%d.ffn_gate.weight", MLX_DIM(ffn), MLX_DIM(hidden)),
    MLX_MATRIX(LAYER "mlp.fc11.weight", "blk.%d.ffn_up.weight", MLX_DIM(ffn), MLX_DIM(hidden)),
    MLX_MATRIX(LAYER "mlp.fc2.weight", "blk.%d.ffn_down.weight", MLX_DIM(hidden), MLX_DIM(ffn)),
    MLX_ENCODER_NORM(LAYER "norm2", "blk.%d.layer_output_norm"),
    MLX_RULES_CLASS_HEAD("bert.pooler.dense", "classifier"),
};

// The published files have the fields of the modeling code on the hub. transformers has other names for them.
static bool is_published(const mlx_source_t *source) { return mlx_source_mentions(source, "n_embd"); }

static mlx_status_t read_activation(const mlx_source_t *source, mlx_config_t *c) {
  const char *name = "swiglu";
  bool found;
  c->act = MLX_ACT_SILU;
  if (!is_published(source)) return mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act);
  MLX_TRY(mlx_source_string(source, "activation_function", NULL, &name, &found));
  if (!strcmp(name, "geglu")) c->act = MLX_ACT_GELU;
  if (!strcmp(name, "geglu") || !strcmp(name, "swiglu")) return NULL;
  return mlx_source_field_error(source, "activation_function", NULL, MLX_UNSUPPORTED,
                                "is '%s'; only swiglu and geglu are supported", name);
}

// Options of the code on the hub that no published model of this form uses.
static mlx_status_t require_usual(const mlx_source_t *source) {
  static const char *const off[] = {
      "causal",       "prenorm",      "parallel_block", "qkv_proj_bias",
      "mlp_fc1_bias", "mlp_fc2_bias", "use_rms_norm",   "rotary_emb_interleaved"};
  for (size_t i = 0; is_published(source) && i < sizeof off / sizeof *off; ++i)
    MLX_TRY(mlx_require_flag(source, off[i], false));
  static const char *const absent[] = {"rotary_scaling_factor", "rotary_emb_scale_base"};
  for (size_t i = 0; i < sizeof absent / sizeof *absent; ++i) {
    if (mlx_source_has(source, absent[i], NULL))
      return mlx_source_field_error(source, absent[i], NULL, MLX_UNSUPPORTED,
                                    "is not null, which is not supported");
  }
  return NULL;
}

static mlx_status_t nomic_bert_read_config(const mlx_source_t *source, mlx_config_t *c) {
  static const mlx_size_names_t names = {.encoder = true}, published = {.layers = "n_layer",
                                                                        .hidden = "n_embd",
                                                                        .ffn = "n_inner",
                                                                        .heads = "n_head",
                                                                        .kv_heads = "n_head",
                                                                        .context = "n_positions",
                                                                        .encoder = true};
  static const mlx_rope_fields_t rope = {
      .theta = "rotary_emb_base", .default_theta = 1000.0, .partial = "rotary_emb_fraction"};
  const mlx_tensor_t *types = mlx_source_tensor(source, NULL, "token_types.weight");
  const bool old = is_published(source);
  bool found;
  MLX_TRY(require_usual(source));
  MLX_TRY(read_activation(source, c));
  MLX_TRY(mlx_read_sizes(source, old ? &published : &names, true, c));
  c->types = types ? types->dims[0] : 2;
  MLX_TRY(mlx_source_int(source, "type_vocab_size", NULL, 1, 1 << 20, &c->types, &found));
  MLX_TRY(mlx_read_eps(source, old ? "layer_norm_epsilon" : "layer_norm_eps", ".attention.layer_norm_epsilon",
                       c));
  MLX_TRY(mlx_read_rope(source, &rope, c, &c->rope));
  return mlx_read_encoder(source, c);
}

#define W(part) mlx_op_weight(g, LAYER part ".weight", layer)
#define B(part) mlx_op_weight(g, LAYER part ".bias", layer)

static mlx_value_t nomic_bert_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  const mlx_attention_t attention = mlx_attention_of(c, layer);
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t qkv = mlx_op_linear(g, "qkv", x, W("attn.Wqkv"));  // [M, 3 * hidden]
  mlx_value_t q = mlx_op_columns(g, "q", qkv, 0, c->hidden);
  mlx_value_t k = mlx_op_columns(g, "k", qkv, c->hidden, c->hidden);
  mlx_value_t v = mlx_op_columns(g, "v", qkv, 2 * c->hidden, c->hidden);
  q = mlx_op_rope(g, "q_rope", q, c->head_dim, &c->rope);
  k = mlx_op_rope(g, "k_rope", k, c->head_dim, &c->rope);
  mlx_value_t h = mlx_op_linear(g, "o", mlx_op_attention(g, &attention, q, k, v), W("attn.out_proj"));
  h = mlx_op_add(g, "after_attn", h, x);
  x = mlx_op_layernorm(g, "attn_out", h, W("norm1"), B("norm1"), c->norm_eps);

  h = mlx_op_gated(g, "act", c->act, mlx_op_linear(g, "gate", x, W("mlp.fc12")),
                   mlx_op_linear(g, "up", x, W("mlp.fc11")));  // [M, ffn]
  h = mlx_op_add(g, "after_mlp", mlx_op_linear(g, "down", h, W("mlp.fc2")), x);
  return mlx_op_layernorm(g, "out", h, W("norm2"), B("norm2"), c->norm_eps);
}

static mlx_value_t nomic_bert_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  const mlx_config_t *c = &model->config;
  mlx_value_t types = mlx_op_weight(g, "bert.embeddings.token_type_embeddings.weight");
  mlx_value_t x = mlx_op_embed(g, mlx_op_weight(g, "bert.embeddings.word_embeddings.weight"), tokens);
  x = mlx_op_add(g, "typed", x, mlx_op_embed(g, types, mlx_op_types(g)));
  x = mlx_op_layernorm(g, "embedded_normed", x, mlx_op_weight(g, "bert.emb_ln.weight"),
                       mlx_op_weight(g, "bert.emb_ln.bias"), c->norm_eps);
  for (int layer = 0; layer < c->layers; ++layer) x = nomic_bert_layer(g, c, layer, x);
  mlx_op_scope(g, "%s", "");
  return x;
}

static mlx_value_t nomic_bert_head(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t pooled) {
  (void)model;
  return mlx_class_head(g, "bert.pooler.dense", false, "classifier", pooled);
}

static const char *const nomic_bert_types[] = {"nomic_bert", NULL};
static const char *const nomic_bert_gguf_types[] = {"nomic-bert", NULL};
static const char *const nomic_bert_unused[] = {"pooler.", "bert.pooler.", "nomic_bert.pooler.", "cls.",
                                                NULL};

const mlx_arch_t mlx_arch_nomic_bert = {
    .hf_types = nomic_bert_types,
    .gguf_types = nomic_bert_gguf_types,
    MLX_TENSORS(nomic_bert_tensors),
    .unused = nomic_bert_unused,
    .read_config = nomic_bert_read_config,
    .forward = nomic_bert_forward,
    .head = nomic_bert_head,
};
